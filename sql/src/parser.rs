//! Parses a text into statements.
//!
//! DataFusion's parser handles `CREATE EXTERNAL TABLE` and queries. This module parses the few statements about
//! pipelines, from the same tokens. The whole text is split into tokens once, so every place refers to the whole text.

mod materialize;

use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, DFParserBuilder};
use datafusion::sql::sqlparser::ast::Query;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Word};

use crate::error::{Error, Place, Result};
use crate::statement::{OptionValue, PipelineDefinition, PipelineOption, QueryDefinition, Statement};
use crate::tokens::{DIALECT, Tokens, is_word, slice};
use crate::{depth, table};
use forebay_diagnostics::nearest;
use forebay_diagnostics::{lower_first, plain_message};

/// Maximum length of a text. Parsing is linear, but its result is about fifty times as large as the text.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The first words of statements.
const ACCEPTED: &str = "CREATE PIPELINE, DROP PIPELINE, SHOW PIPELINES, DESCRIBE PIPELINE, EXPLAIN PIPELINE, \
                        MATERIALIZE, CREATE EXTERNAL TABLE, DROP TABLE, SHOW TABLES, DESCRIBE and SELECT";

/// Reads all statements of a text. They are separated by `;`; comments are skipped.
///
/// # Errors
///
/// The error for the first part of the text that is not a statement of Forebay, with its place.
pub fn parse(text: &str) -> Result<Vec<Statement>> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Error::new(format!("the text has {} bytes, more than {TEXT_BYTES_MAX}", text.len()))
            .with_place(Place::START));
    }
    depth::on_large_stack(|| {
        let tokens = Tokens::of(text)?;
        depth::check_tokens(&tokens)?;
        let parser = DFParserBuilder::new(tokens.to_vec())
            .with_dialect(&DIALECT)
            .build()
            .map_err(|error| parser_error(&error, Place::START, tokens.end()))?;
        Statements { text, tokens, parser }.all()
    })
}

/// A parser in the middle of a text.
pub(crate) struct Statements<'a> {
    text: &'a str,
    tokens: Tokens,
    parser: DFParser<'static>,
}

impl Statements<'_> {
    fn all(mut self) -> Result<Vec<Statement>> {
        let mut statements = Vec::new();
        loop {
            while self.parser.parser.consume_token(&Token::SemiColon) {}
            if self.peek(0).token == Token::EOF {
                return Ok(statements);
            }
            statements.push(self.statement()?);
            let next = self.peek(0);
            if !matches!(next.token, Token::SemiColon | Token::EOF) {
                return Err(self.expected("`;` or the end of the text", &next));
            }
        }
    }

    fn statement(&mut self) -> Result<Statement> {
        let first = self.peek(0);
        let place = self.place(&first);
        match keyword(&first.token).as_deref() {
            Some("CREATE") => self.create(place),
            Some("DROP") => self.drop(),
            Some("SHOW") => self.show(),
            Some("DESCRIBE" | "DESC") => self.describe(),
            Some("EXPLAIN") => self.explain(),
            Some("MATERIALIZE") => self.materialize(place),
            Some("SELECT" | "WITH" | "VALUES") => self.query(place),
            None if first.token == Token::LParen => self.query(place),
            _ => Err(refuse_statement(&first).with_place(place)),
        }
    }

    fn query(&mut self, place: Place) -> Result<Statement> {
        let (query, text) = self.query_and_text(place)?;
        Ok(Statement::Query(QueryDefinition { query, text, place }))
    }

    /// Parses a query that begins here, and returns its text too.
    fn query_and_text(&mut self, place: Place) -> Result<(Box<Query>, String)> {
        let start = self.peek(0).span.start;
        let query = self.parser.parser.parse_query().map_err(|error| self.parser_error(&error.into(), place))?;
        depth::check_query(&query, place)?;
        let end = self.parser.parser.get_current_token().span.end;
        Ok((query, slice(self.text, start, end).to_owned()))
    }

    fn create(&mut self, place: Place) -> Result<Statement> {
        let or_replace = self.peek_is(1, "OR") && self.peek_is(2, "REPLACE");
        let kind = self.peek(if or_replace { 3 } else { 1 });
        match keyword(&kind.token).as_deref() {
            Some("PIPELINE") => {
                let start = self.peek(0).span.start;
                self.skip(if or_replace { 4 } else { 2 });
                self.create_pipeline(or_replace, start)
            }
            Some("EXTERNAL" | "UNBOUNDED") => {
                let statement = self.parser.parse_statement().map_err(|error| {
                    let error = self.parser_error(&error, place);
                    if error.hint().is_none() && error.message().starts_with("missing ") {
                        return error.with_hint("write `CREATE EXTERNAL TABLE name STORED AS PARQUET LOCATION '…'`");
                    }
                    error
                })?;
                table::definition(statement, place, &self.tokens)
            }
            _ => {
                let error = self.expected("PIPELINE or EXTERNAL TABLE after CREATE", &kind);
                Err(match keyword(&kind.token).as_deref() {
                    Some("TABLE") => Error::new("CREATE TABLE is not supported: tables are existing files")
                        .or_place(error.place())
                        .with_hint("write `CREATE EXTERNAL TABLE name STORED AS PARQUET LOCATION '…'`"),
                    Some(other) => match nearest(other, ["PIPELINE", "EXTERNAL"]) {
                        Some(near) => error.with_hint(format!("did you mean {near}?")),
                        None => Error::new(format!("CREATE {other} is not supported"))
                            .or_place(error.place())
                            .with_hint(format!("statements are {ACCEPTED}")),
                    },
                    None => error,
                })
            }
        }
    }

    fn create_pipeline(&mut self, or_replace: bool, start: Location) -> Result<Statement> {
        let if_not_exists = self.peek_is(0, "IF") && self.peek_is(1, "NOT") && self.peek_is(2, "EXISTS");
        if if_not_exists {
            if or_replace {
                return Err(
                    Error::new("OR REPLACE and IF NOT EXISTS cannot be combined").with_place(self.place(&self.peek(0)))
                );
            }
            self.skip(3);
        }
        let (name, name_place) = self.name("a pipeline's name")?;
        let options = if self.take("WITH") { self.options()? } else { Vec::new() };
        if !self.take("AS") {
            let next = self.peek(0);
            let wanted =
                if options.is_empty() { "AS or WITH (…) after the pipeline's name" } else { "AS after WITH (…)" };
            let error = self.expected(wanted, &next);
            return Err(match keyword(&next.token).as_deref() {
                Some("SELECT" | "WITH" | "FROM") => error.with_hint("write `AS` before the query"),
                _ => error,
            });
        }
        let first = self.peek(0);
        let place = self.place(&first);
        if matches!(first.token, Token::EOF | Token::SemiColon) {
            return Err(self.expected("a query after AS", &first));
        }
        let (query, text) = self.query_and_text(place)?;
        let end = self.parser.parser.get_current_token().span.end;
        let statement = slice(self.text, start, end).to_owned();
        Ok(Statement::CreatePipeline(PipelineDefinition {
            name,
            or_replace,
            if_not_exists,
            options,
            query,
            text,
            statement,
            place,
            name_place,
        }))
    }

    fn options(&mut self) -> Result<Vec<PipelineOption>> {
        let mut options: Vec<PipelineOption> = Vec::new();
        let open = self.peek(0);
        if !self.parser.parser.consume_token(&Token::LParen) {
            return Err(self.expected("`(` after WITH", &open));
        }
        while !self.parser.parser.consume_token(&Token::RParen) {
            let option = self.option()?;
            if options.iter().any(|other| other.name == option.name) {
                return Err(Error::new(format!("option \"{}\" is given twice", option.name)).with_place(option.place));
            }
            let value = option.value.clone();
            let end = self.parser.parser.get_current_token().span.end;
            options.push(option);
            // A comma after the last option is allowed, as in DataFusion's OPTIONS (…).
            if !self.parser.parser.consume_token(&Token::Comma) && self.peek(0).token != Token::RParen {
                let next = self.peek(0);
                let error = self.expected("`,` or `)` after an option", &next);
                return Err(match (value, &next.token) {
                    // `10s` is a number and a word.
                    (OptionValue::Number(number), Token::Word(unit)) if next.span.start == end => {
                        error.with_hint(format!("quote it: `'{number}{}'`", unit.value))
                    }
                    _ => error,
                });
            }
        }
        Ok(options)
    }

    fn option(&mut self) -> Result<PipelineOption> {
        let first = self.parser.parser.next_token();
        let place = self.place(&first);
        let mut name = match &first.token {
            Token::Word(word) => normalized(word),
            Token::SingleQuotedString(text) | Token::DoubleQuotedString(text) => text.clone(),
            _ => return Err(self.expected("an option's name", &first)),
        };
        while self.parser.parser.consume_token(&Token::Period) {
            let part = self.parser.parser.next_token();
            let Token::Word(word) = &part.token else {
                return Err(self.expected("the rest of an option's name", &part));
            };
            name.push('.');
            name.push_str(&normalized(word));
        }
        let equals = self.parser.parser.next_token();
        if !matches!(equals.token, Token::Eq | Token::RArrow) {
            return Err(self.expected(&format!("`=` or `=>` after option \"{name}\""), &equals));
        }
        let first = self.parser.parser.next_token();
        let value_place = self.place(&first);
        let value = match first.token {
            Token::Word(word) if word.quote_style.is_some() => OptionValue::Text(word.value),
            Token::Word(word) if word.value.eq_ignore_ascii_case("true") => OptionValue::Boolean(true),
            Token::Word(word) if word.value.eq_ignore_ascii_case("false") => OptionValue::Boolean(false),
            Token::Word(word) => OptionValue::Text(word.value),
            Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => OptionValue::Text(text),
            Token::Number(number, _) => OptionValue::Number(number),
            Token::Minus | Token::Plus => {
                let number = self.parser.parser.next_token();
                match number.token {
                    Token::Number(number, _) if first.token == Token::Minus => {
                        OptionValue::Number(format!("-{number}"))
                    }
                    Token::Number(number, _) => OptionValue::Number(number),
                    _ => return Err(self.expected("a number after the sign", &number)),
                }
            }
            _ => return Err(self.expected(&format!("a text, number, true or false for option \"{name}\""), &first)),
        };
        Ok(PipelineOption { name, value, place, value_place })
    }

    fn drop(&mut self) -> Result<Statement> {
        let pipeline = self.kind("DROP", &["PIPELINE", "TABLE"])? == "PIPELINE";
        let if_exists = self.peek_is(0, "IF") && self.peek_is(1, "EXISTS");
        if if_exists {
            self.skip(2);
        }
        if pipeline {
            let (name, place) = self.name("a pipeline's name")?;
            Ok(Statement::DropPipeline { name, if_exists, place })
        } else {
            let (name, place) = self.name("a table's name")?;
            Ok(Statement::DropTable { name, if_exists, place })
        }
    }

    fn show(&mut self) -> Result<Statement> {
        Ok(match self.kind("SHOW", &["PIPELINES", "TABLES"])? {
            "PIPELINES" => Statement::ShowPipelines,
            _ => Statement::ShowTables,
        })
    }

    fn describe(&mut self) -> Result<Statement> {
        // `DESCRIBE pipeline` describes a table of that name.
        let of_kind = matches!(self.peek(2).token, Token::Word(_));
        if of_kind && self.peek_is(1, "PIPELINE") {
            self.skip(2);
            let (name, place) = self.name("a pipeline's name")?;
            return Ok(Statement::DescribePipeline { name, place });
        }
        self.skip(if of_kind && self.peek_is(1, "TABLE") { 2 } else { 1 });
        let misspelt = of_kind
            .then(|| keyword(&self.peek(0).token))
            .flatten()
            .and_then(|word| nearest(&word, ["PIPELINE", "TABLE"]));
        let first = self.peek(0);
        let (name, place) = self.name("PIPELINE and a name, or a table's name")?;
        if let Some(near) = misspelt {
            return Err(self.expected("PIPELINE or a table's name", &first).with_hint(format!("did you mean {near}?")));
        }
        Ok(Statement::DescribeTable { name, place })
    }

    fn explain(&mut self) -> Result<Statement> {
        self.kind("EXPLAIN", &["PIPELINE"])?;
        let (name, place) = self.name("a pipeline's name")?;
        Ok(Statement::ExplainPipeline { name, place })
    }

    /// Parses a statement's first word and the second word, which must be one of `kinds`.
    fn kind(&mut self, first: &str, kinds: &[&'static str]) -> Result<&'static str> {
        self.skip(1);
        let next = self.peek(0);
        if let Some(kind) = kinds.iter().find(|kind| is_word(&next.token, kind)) {
            self.skip(1);
            return Ok(kind);
        }
        let error = self.expected(&format!("{} after {first}", kinds.join(" or ")), &next);
        Err(match keyword(&next.token) {
            Some(word) => match nearest(&word, kinds.iter().copied()) {
                Some(near) => error.with_hint(format!("did you mean {near}?")),
                None if first == "EXPLAIN" => {
                    error.with_hint("only pipelines are explained: create one, then `EXPLAIN PIPELINE name`")
                }
                None => error.with_hint(format!("statements are {ACCEPTED}")),
            },
            None => error,
        })
    }

    fn name(&mut self, wanted: &str) -> Result<(String, Place)> {
        let token = self.peek(0);
        let place = self.place(&token);
        let Token::Word(word) = &token.token else { return Err(self.expected(wanted, &token)) };
        if word.value.is_empty() {
            return Err(Error::new("a name is empty").with_place(place));
        }
        self.skip(1);
        let name = normalized(word);
        if self.peek(0).token == Token::Period {
            return Err(Error::new(format!("names have one part, and \"{name}\" is followed by another"))
                .with_place(place)
                .with_hint("schemas and catalogs are not supported; quote a name that has a period in it"));
        }
        Ok((name, place))
    }

    fn peek(&self, ahead: usize) -> TokenWithSpan {
        self.parser.parser.peek_nth_token(ahead)
    }

    fn peek_is(&self, ahead: usize, word: &str) -> bool {
        is_word(&self.parser.parser.peek_nth_token_ref(ahead).token, word)
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek_is(0, word);
        if found {
            self.skip(1);
        }
        found
    }

    fn skip(&mut self, tokens: usize) {
        for _ in 0..tokens {
            self.parser.parser.next_token();
        }
    }

    /// A token's place. The end of the text has no token position of its own.
    fn place(&self, token: &TokenWithSpan) -> Place {
        Place::start(token.span).unwrap_or_else(|| self.tokens.end())
    }

    fn expected(&self, wanted: &str, found: &TokenWithSpan) -> Error {
        let error = Error::new(format!("expected {wanted}, found {}", described(&found.token)));
        error.with_place(self.place(found))
    }

    fn parser_error(&self, error: &DataFusionError, statement: Place) -> Error {
        parser_error(error, statement, self.tokens.end())
    }
}

/// The word of an unquoted identifier or keyword, in upper case.
fn keyword(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_uppercase()),
        _ => None,
    }
}

/// Unquoted names are lower case, as in DataFusion.
fn normalized(word: &Word) -> String {
    if word.quote_style.is_some() { word.value.clone() } else { word.value.to_lowercase() }
}

fn described(token: &Token) -> String {
    match token {
        Token::EOF => "the end of the text".to_owned(),
        Token::Word(word) => format!("\"{}\"", word.value),
        Token::SingleQuotedString(_) => token.to_string(),
        other => format!("`{other}`"),
    }
}

fn refuse_statement(first: &TokenWithSpan) -> Error {
    let Some(word) = keyword(&first.token) else {
        let error = Error::new(format!("expected a statement, found {}", described(&first.token)));
        return error.with_hint(format!("statements are {ACCEPTED}"));
    };
    match word.as_str() {
        "FROM" | "TABLE" => {
            Error::new(format!("{word} does not begin a statement here")).with_hint("write SELECT * FROM table")
        }
        "INSERT" | "UPDATE" | "DELETE" | "MERGE" | "COPY" | "TRUNCATE" | "ALTER" => {
            Error::new(format!("{word} is not supported: tables are read-only files"))
                .with_hint(format!("statements are {ACCEPTED}"))
        }
        "SET" | "RESET" | "USE" | "PRAGMA" => {
            Error::new(format!("{word} is not supported: a script cannot change session settings"))
                .with_hint("options of a pipeline are in its `WITH (…)`")
        }
        _ => match nearest(&word, ["CREATE", "DROP", "SHOW", "DESCRIBE", "EXPLAIN", "MATERIALIZE", "SELECT"]) {
            Some(near) => Error::new(format!("expected a statement, found {}", described(&first.token)))
                .with_hint(format!("did you mean {near}?")),
            None => Error::new(format!("{word} is not supported")).with_hint(format!("statements are {ACCEPTED}")),
        },
    }
}

/// Rewords the parser's error.
fn parser_error(error: &DataFusionError, statement: Place, end: Place) -> Error {
    let message = match error.find_root() {
        DataFusionError::SQL(error, _) => match error.as_ref() {
            ParserError::ParserError(message) | ParserError::TokenizerError(message) => message.clone(),
            ParserError::RecursionLimitExceeded => {
                return depth::too_deep(statement);
            }
        },
        other => other.message().into_owned(),
    };
    let (message, place) = split_location(&message);
    let found_end = message.strip_suffix("found: EOF");
    let place = place.or(found_end.map(|_| end)).unwrap_or(statement);
    let Some((wanted, found)) = message.strip_prefix("Expected: ").and_then(|rest| rest.rsplit_once(", found: "))
    else {
        return Error::new(plain_message(message)).with_place(place);
    };
    let is_word = |text: &str| text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let found_worded = match found {
        "EOF" => "the end of the text".to_owned(),
        found if found.starts_with(['\'', '"']) => found.to_owned(),
        found if is_word(found) => format!("\"{found}\""),
        found => format!("`{found}`"),
    };
    let wanted_worded = if wanted.contains(char::is_alphabetic) { lower_first(wanted) } else { format!("`{wanted}`") };
    let error = Error::new(format!("expected {wanted_worded}, found {found_worded}")).with_place(place);
    match nearest(found, [wanted]) {
        Some(near) if is_word(found) => error.with_hint(format!("did you mean {near}?")),
        _ => error,
    }
}

/// Splits off the ` at Line: 1, Column: 2` at the end of the parser's messages.
fn split_location(message: &str) -> (&str, Option<Place>) {
    let split = || {
        let (head, tail) = message.rsplit_once(" at Line: ")?;
        let (line, column) = tail.split_once(", Column: ")?;
        let place = Place { line: line.trim().parse().ok()?, column: column.trim().parse().ok()? };
        Some((head, Some(place)))
    };
    split().unwrap_or((message, None))
}
