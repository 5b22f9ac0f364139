//! Tokenizers from a `tokenizer.json` or a tiktoken vocabulary, ready to encode and decode.
//!
//! The library is the rewrite of Hugging Face's `tokenizers`, of which only the per-text code is kept. It parses
//! untrusted files and texts, so a panic in it fails a row or a plan, and not the worker.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy};

use super::tiktoken;
use crate::files::Loaded;

/// Maximum number of cached tokenizers. A tokenizer takes tens of megabytes.
const TOKENIZERS_KEPT: usize = 8;

static LOADED: Loaded<Tokenizer> = Loaded::new(TOKENIZERS_KEPT);

/// A tokenizer as described by its file.
pub(crate) struct Tokenizer(PipelineTokenizer);

/// The treatment of a text that exceeds the maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncation {
    /// Drops the end.
    Right,
    /// Drops the beginning.
    Left,
    /// Returns an error.
    Refused,
}

/// The settings of encoding, the same for all rows of a call.
pub(crate) struct Encoding {
    options: EncodeOptions,
    length_max: usize,
}

impl Tokenizer {
    /// Returns the tokenizer of a file that a constant names. The error text continues the parameter's name.
    ///
    /// A tiktoken vocabulary uses the named [`tiktoken::pattern`].
    pub(crate) fn get(file: &str, pattern: &str) -> Result<Arc<Self>, String> {
        LOADED.get_as(file, pattern, |bytes| Self::read(bytes, pattern))
    }

    pub(super) fn read(bytes: &[u8], pattern: &str) -> Result<Self, String> {
        if !tiktoken::is_json(bytes) {
            return Self::from_json(&tiktoken::to_json(bytes, pattern)?);
        }
        Self::from_json(std::str::from_utf8(bytes).map_err(|e| e.to_string())?)
    }

    fn from_json(json: &str) -> Result<Self, String> {
        guarded(|| {
            // The library converts files of older versions to its current format.
            let canonical = tokenizers::canonicalize_str(json).map_err(|e| e.to_string())?;
            tokenizers::from_json(canonical.as_ref()).map(Self).map_err(|e| e.to_string())
        })
    }

    /// Appends the ids of a text to `out`.
    pub(crate) fn encode(&self, text: &str, encoding: &Encoding, out: &mut Vec<PipelineToken>) -> Result<(), String> {
        let start = out.len();
        guarded(|| self.0.encode_into(text, &encoding.options, out).map_err(|e| e.to_string()))?;
        match out.len() - start {
            length if length > encoding.length_max => {
                let most = encoding.length_max;
                Err(format!("a text of {length} tokens is longer than {most}; truncation => 'right' would cut it"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the text of some ids. Ids that are not in the vocabulary are left out.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        guarded(|| self.0.decode(ids, skip_special_tokens).map_err(|e| e.to_string()))
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokenizer")
    }
}

impl Encoding {
    /// Ignores the file's own padding and truncation, which are settings of whoever saved it. A limit of 0 is no limit.
    pub(crate) fn new(add_special_tokens: bool, length_max: usize, truncation: Truncation) -> Self {
        let direction = match truncation {
            Truncation::Left => TruncationDirection::Left,
            Truncation::Right | Truncation::Refused => TruncationDirection::Right,
        };
        let cut = TruncationParams {
            direction,
            max_length: length_max,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
        };
        let cuts = length_max > 0 && truncation != Truncation::Refused;
        let options = EncodeOptions {
            add_special_tokens,
            encode_special_tokens: false,
            padding: Override::Off,
            truncation: if cuts { Override::With(cut) } else { Override::Off },
        };
        Self { options, length_max: if length_max == 0 { usize::MAX } else { length_max } }
    }
}

fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the tokenizer panicked".to_owned()))
}
