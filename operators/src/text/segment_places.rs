//! The tokens at a place of a text. The tokenizer gives no places, so ids are compared with the text that they decode
//! to, or with the ids of both sides.

use std::cell::OnceCell;
use std::ops::Range;

use super::tokenizer::Tokenizer;

/// A text with its tokens.
pub(super) struct Places<'a> {
    tokenizer: &'a Tokenizer,
    text: &'a str,
    ids: &'a [u32],
    /// Whether the ids decode to the text.
    is_exact: OnceCell<bool>,
}

/// Characters that an error shows of each side of a place.
const SHOWN_MAX: usize = 20;

impl<'a> Places<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer, text: &'a str, ids: &'a [u32]) -> Self {
        Self { tokenizer, text, ids, is_exact: OnceCell::new() }
    }

    /// Returns the token with text of both sides of a place. If there is none, the range is empty, and stands between
    /// the tokens of both sides.
    pub(super) fn across(&self, bytes: usize) -> Result<Range<usize>, String> {
        match self.by_text(bytes) {
            Some(range) => Ok(range),
            None => self.by_tokens(bytes),
        }
    }

    fn by_text(&self, bytes: usize) -> Option<Range<usize>> {
        let is_exact = || {
            // Half a character decodes to this one.
            !self.text.contains(char::REPLACEMENT_CHARACTER)
                && self.tokenizer.decode(self.ids, false).as_deref() == Ok(self.text)
        };
        if !self.is_exact.get_or_init(is_exact) {
            return None;
        }
        // The least number of tokens that hold all text before the place.
        let (mut low, mut end) = (0, self.ids.len());
        while low < end {
            let middle = low.midpoint(end);
            match self.covered(middle)?.0 < bytes {
                true => low = middle + 1,
                false => end = middle,
            }
        }
        let is_between = self.covered(end)? == (bytes, false);
        Some(if is_between { end..end } else { end.checked_sub(1)?..end })
    }

    /// Returns the bytes of whole characters that the first tokens hold, and whether a part of the next one follows.
    fn covered(&self, tokens: usize) -> Option<(usize, bool)> {
        let decoded = self.tokenizer.decode(&self.ids[..tokens], false).ok()?;
        let whole = decoded.trim_end_matches(char::REPLACEMENT_CHARACTER);
        self.text.starts_with(whole).then_some((whole.len(), whole.len() < decoded.len()))
    }

    /// For tokenizers that change the text, for example its spaces or the case of its letters.
    fn by_tokens(&self, bytes: usize) -> Result<Range<usize>, String> {
        let (left, right) = self.text.split_at(bytes);
        let before = self.tokenizer.ids(left, false)?;
        let same = before.iter().zip(self.ids).take_while(|(own, whole)| own == whole).count();
        if same == before.len() {
            return Ok(same..same);
        }
        let (after, rest) = (self.tokenizer.ids(right, false)?, &self.ids[same..]);
        let behind = after.iter().rev().zip(rest.iter().rev()).take_while(|(own, whole)| own == whole).count();
        if rest.len() - behind > 1 {
            let left: Vec<char> = left.chars().rev().take(SHOWN_MAX).collect();
            let left: String = left.into_iter().rev().collect();
            let right: String = right.chars().take(SHOWN_MAX).collect();
            return Err(format!(
                "the tokens where {left:?} and {right:?} meet do not show which text they hold, because the tokenizer \
                 changes the text; separately => true tokenizes each segment alone"
            ));
        }
        Ok(same..(same + 1).min(self.ids.len()))
    }
}
