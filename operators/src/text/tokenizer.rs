//! Tokenizers from a `tokenizer.json` or a tiktoken vocabulary, ready to encode and decode.
//!
//! The library is the rewrite of Hugging Face's `tokenizers`, of which only the per-text code is kept. It parses
//! untrusted files and texts, so a panic in it fails a row or a plan, and not the worker. [`Bpe`] takes the place of
//! its model for vocabularies that it does not read.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::common::DataFusionError;
use tokenizers::pipeline::{
    EncodeOptions, Override, PipelineToken, PipelineTokenizer, PreTokenizer, PreTokenizerScratch, Segment,
    SpecialSegmentIterator, normalize_all,
};
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy, truncate_pair};

use super::bpe::Bpe;
use super::tiktoken;
use crate::files::Loaded;
use crate::operator::Arguments;

/// Maximum number of cached tokenizers. A tokenizer takes tens of megabytes.
const TOKENIZERS_KEPT: usize = 8;

static LOADED: Loaded<Tokenizer> = Loaded::new(TOKENIZERS_KEPT);

/// A tokenizer as described by its file.
pub(crate) struct Tokenizer {
    library: PipelineTokenizer,
    /// The model, if the library's does not read the vocabulary.
    model: Option<Bpe>,
}

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

impl Truncation {
    /// Reads the argument `truncation` of a call.
    pub(crate) fn read(arguments: &Arguments) -> Result<Self, DataFusionError> {
        match arguments.text("truncation")?.as_str() {
            "right" => Ok(Self::Right),
            "left" => Ok(Self::Left),
            "error" => Ok(Self::Refused),
            other => {
                let must = "must be 'right', 'left' or 'error'";
                arguments.refuse("truncation", format_args!("{must}, got \"{other}\""))
            }
        }
    }
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
            let refused = match tokenizers::from_json(canonical.as_ref()) {
                // Only a suffix can make it read a vocabulary with gaps in another way. Few files have one, and reading
                // a large vocabulary twice takes time.
                Ok(library) if !has_suffix(&canonical) => return Ok(Self { library, model: None }),
                other => other,
            };
            match (Bpe::read(canonical.as_ref())?, refused) {
                (Some((model, file)), _) => {
                    let library = tokenizers::from_json(&file).map_err(|e| e.to_string())?;
                    Ok(Self { library, model: Some(model) })
                }
                (None, Ok(library)) => Ok(Self { library, model: None }),
                (None, Err(refused)) => Err(refused.to_string()),
            }
        })
    }

    /// Appends the ids of a text to `out`.
    pub(crate) fn encode(&self, text: &str, encoding: &Encoding, out: &mut Vec<PipelineToken>) -> Result<(), String> {
        let start = out.len();
        match &self.model {
            None => guarded(|| self.library.encode_into(text, &encoding.options, out).map_err(|e| e.to_string()))?,
            Some(model) => guarded(|| self.encode_by(model, text, &encoding.options, out))?,
        }
        match out.len() - start {
            length if length > encoding.length_max => {
                let most = encoding.length_max;
                Err(format!("a text of {length} tokens is longer than {most}; truncation => 'right' would cut it"))
            }
            _ => Ok(()),
        }
    }

    /// Returns all ids of a text.
    pub(crate) fn ids(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        self.encode(text, &Encoding::new(add_special_tokens, 0, Truncation::Right), &mut ids)?;
        Ok(ids.into_iter().map(u32::from).collect())
    }

    /// Encodes by another model than the library's, with all its other parts in the order in which it runs them.
    fn encode_by(
        &self,
        model: &Bpe,
        text: &str,
        options: &EncodeOptions,
        out: &mut Vec<PipelineToken>,
    ) -> Result<(), String> {
        let special = self.library.get_added_vocabulary();
        let (mut ids, mut words, mut scratch) = (Vec::new(), Vec::new(), PreTokenizerScratch::default());
        for segment in SpecialSegmentIterator::new(text, special, false, options.encode_special_tokens) {
            let (text, offset) = match segment {
                Segment::SpecialToken(id) => {
                    ids.push(PipelineToken::from(id));
                    continue;
                }
                Segment::Text { text, input_offset } => (text, input_offset),
            };
            let normalized = normalize_all(self.library.get_normalizers(), text, offset).map_err(|e| e.to_string())?;
            for segment in SpecialSegmentIterator::new(&normalized, special, true, options.encode_special_tokens) {
                let text = match segment {
                    Segment::SpecialToken(id) => {
                        ids.push(PipelineToken::from(id));
                        continue;
                    }
                    Segment::Text { text, .. } => text,
                };
                words.clear();
                let pre_tokenizer = self.library.get_pre_tokenizer();
                pre_tokenizer.pre_tokenize(text, &mut scratch, &mut words).map_err(|e| e.to_string())?;
                for word in &words {
                    model.encode(&text[word.range()], &mut ids)?;
                }
            }
        }
        let template = &self.library.get_post_processor().single;
        let truncation = self.library.resolve_truncation(&options.truncation);
        let added = if options.add_special_tokens { template.n_special() } else { 0 };
        let (ids, _) = truncate_pair(ids, None, truncation, added).map_err(|e| e.to_string())?;
        let whole = match options.add_special_tokens {
            true => template.post_process::<true>(ids, None),
            false => template.post_process::<false>(ids, None),
        };
        out.extend_from_slice(whole.ids());
        Ok(())
    }

    /// Returns the text of some ids. Ids that are not in the vocabulary are left out.
    pub(crate) fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, String> {
        let known: Vec<u32>;
        let ids = match &self.model {
            Some(model) => {
                known = ids.iter().copied().filter(|id| model.knows(*id)).collect();
                &known
            }
            None => ids,
        };
        guarded(|| self.library.decode(ids, skip_special_tokens).map_err(|e| e.to_string()))
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

/// Returns whether a `tokenizer.json` has an `end_of_word_suffix`, without parsing it.
fn has_suffix(json: &str) -> bool {
    json.split("\"end_of_word_suffix\"").skip(1).any(|rest| {
        let value = rest.trim_start().trim_start_matches(':').trim_start();
        value.starts_with('"') && !value.starts_with("\"\"")
    })
}

fn guarded<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("the tokenizer panicked".to_owned()))
}
