//! The tokens of a text, for the places that the syntax tree does not store.
//!
//! The parser stores the places of identifiers and literals, but not of the keywords between them. An error about
//! `ORDER BY` should point at `ORDER`, so keywords are searched forwards or backwards from a known place.

use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};

use crate::error::{Error, Place, Result};
use forebay_diagnostics::lower_first;

/// The dialect of every text, which is DataFusion's default.
pub(crate) const DIALECT: GenericDialect = GenericDialect {};

/// The tokens of a text without white space and comments.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<TokenWithSpan>);

impl Tokens {
    /// Tokenizes a text.
    pub(crate) fn of(text: &str) -> Result<Tokens> {
        let tokens = Tokenizer::new(&DIALECT, text).tokenize_with_location().map_err(|error| {
            let message = lower_first(&error.message);
            let error_at = Error::new(message);
            match Place::of(error.location) {
                Some(place) => error_at.with_place(place),
                None => error_at,
            }
        })?;
        Ok(Tokens(tokens.into_iter().filter(|token| !matches!(token.token, Token::Whitespace(_))).collect()))
    }

    /// Tokenizes a part of a text that starts at `place` of the whole.
    pub(crate) fn of_part(text: &str, place: Place) -> Result<Tokens> {
        let mut tokens = Tokens::of(text)?;
        for token in &mut tokens.0 {
            for location in [&mut token.span.start, &mut token.span.end] {
                if location.line == 1 {
                    location.column += place.column - 1;
                }
                location.line += place.line - 1;
            }
        }
        Ok(tokens)
    }

    /// A copy for the parser.
    pub(crate) fn to_vec(&self) -> Vec<TokenWithSpan> {
        self.0.clone()
    }

    /// The tokens in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &TokenWithSpan> {
        self.0.iter()
    }

    /// The end of the last token.
    pub(crate) fn end(&self) -> Place {
        self.0.last().and_then(|token| Place::of(token.span.end)).unwrap_or(Place::START)
    }

    /// The first occurrence of these consecutive keywords at or after `from`.
    pub(crate) fn next(&self, from: Place, words: &[&str]) -> Option<Place> {
        let first = self.0.partition_point(|token| before(token, from));
        (first..self.0.len()).find(|&at| self.matches(at, words)).and_then(|at| self.place(at))
    }

    /// The last occurrence of these consecutive keywords that starts before `until`.
    pub(crate) fn last(&self, until: Place, words: &[&str]) -> Option<Place> {
        let end = self.0.partition_point(|token| before(token, until));
        (0..end).rev().find(|&at| self.matches(at, words)).and_then(|at| self.place(at))
    }

    /// The place of the key of an option at or after `from`: a word, words with periods between them, or a text.
    pub(crate) fn option(&self, from: Place, key: &str) -> Option<Place> {
        let first = self.0.partition_point(|token| before(token, from));
        let word = key.split('.').next().unwrap_or(key);
        let is_key = |token: &TokenWithSpan| match &token.token {
            Token::Word(found) => found.value.eq_ignore_ascii_case(word),
            Token::SingleQuotedString(text) | Token::DoubleQuotedString(text) => text.eq_ignore_ascii_case(key),
            _ => false,
        };
        self.0[first..].iter().find(|token| is_key(token)).and_then(|token| Place::start(token.span))
    }

    /// The place of the token `steps` after the one at `place`.
    pub(crate) fn after(&self, place: Place, steps: usize) -> Option<Place> {
        self.place(self.0.partition_point(|token| before(token, place)) + steps)
    }

    /// The starts of a call's arguments, given the place of the function's name.
    ///
    /// The tree does not store the places of signs, brackets and parentheses, and many arguments start with one.
    pub(crate) fn arguments(&self, name: Place) -> Vec<Place> {
        let mut places = Vec::new();
        let mut depth = 0usize;
        let mut expects = false;
        for token in &self.0[self.0.partition_point(|token| before(token, name))..] {
            let closes = matches!(token.token, Token::RParen | Token::RBracket | Token::RBrace);
            if expects && !closes {
                places.extend(Place::start(token.span));
            }
            expects = false;
            match token.token {
                Token::LParen | Token::LBracket | Token::LBrace => {
                    depth += 1;
                    expects = depth == 1;
                }
                Token::Comma => expects = depth == 1,
                _ if closes && depth <= 1 => break,
                _ if closes => depth -= 1,
                _ => {}
            }
        }
        places
    }

    fn place(&self, at: usize) -> Option<Place> {
        self.0.get(at).and_then(|token| Place::start(token.span))
    }

    fn matches(&self, at: usize, words: &[&str]) -> bool {
        words
            .iter()
            .enumerate()
            .all(|(offset, word)| self.0.get(at + offset).is_some_and(|token| is_word(&token.token, word)))
    }
}

/// Whether a token is this keyword, unquoted. Operators are compared by their text.
pub(crate) fn is_word(token: &Token, word: &str) -> bool {
    match token {
        Token::Word(found) => found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word),
        Token::SingleQuotedString(_) | Token::DoubleQuotedString(_) | Token::EOF => false,
        other => !word.starts_with(char::is_alphabetic) && other.to_string() == word,
    }
}

fn before(token: &TokenWithSpan, place: Place) -> bool {
    (token.span.start.line, token.span.start.column) < (place.line, place.column)
}

/// The text between two locations of the parser.
pub(crate) fn slice(text: &str, start: Location, end: Location) -> &str {
    let (start, end) = (byte_offset(text, start), byte_offset(text, end));
    text.get(start..end).unwrap_or_default()
}

fn byte_offset(text: &str, location: Location) -> usize {
    let line_start = match usize::try_from(location.line).unwrap_or(usize::MAX) {
        0 => return text.len(),
        1 => 0,
        line => match text.match_indices('\n').nth(line - 2) {
            Some((at, _)) => at + 1,
            None => return text.len(),
        },
    };
    let column = usize::try_from(location.column).unwrap_or(usize::MAX);
    text[line_start..].char_indices().nth(column.saturating_sub(1)).map_or(text.len(), |(at, _)| line_start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_part_are_places_of_the_whole() {
        let whole = "-- ä\nAS SELECT 'ö', x\n  ORDER BY y";
        let part = &whole["-- ä\nAS ".len()..];
        let tokens = Tokens::of_part(part, Place { line: 2, column: 4 }).unwrap();
        let start = Place { line: 2, column: 4 };
        assert_eq!(tokens.next(Place::START, &["SELECT"]), Some(start));
        assert_eq!(tokens.next(start, &["x"]), Some(Place { line: 2, column: 16 }));
        assert_eq!(tokens.next(start, &["ORDER", "BY"]), Some(Place { line: 3, column: 3 }));
        assert_eq!(tokens.last(Place { line: 3, column: 12 }, &["ORDER"]), Some(Place { line: 3, column: 3 }));
        assert_eq!(tokens.after(Place { line: 3, column: 3 }, 2), Some(Place { line: 3, column: 12 }));
        assert_eq!(tokens.end(), Place { line: 3, column: 13 });
    }

    #[test]
    fn slice_counts_characters() {
        let text = "ab\r\nä'ö'\tz";
        let at = |line, column| Location { line, column };
        assert_eq!(slice(text, at(2, 2), at(2, 5)), "'ö'");
        assert_eq!(slice(text, at(2, 6), at(2, 7)), "z");
        assert_eq!(slice(text, at(1, 1), at(9, 9)), text);
    }
}
