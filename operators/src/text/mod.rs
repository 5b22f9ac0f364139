//! Operators on text, and their shared view of a column of strings.

mod bpe;
pub(crate) mod chat;
pub(crate) mod chunk_text;
pub(crate) mod corrupt_spans;
pub(crate) mod detokenize;
pub(crate) mod mask_tokens;
pub(crate) mod measures;
pub(crate) mod minhash_signature;
pub(crate) mod normalize_text;
pub(crate) mod repetition;
mod segment_places;
mod tiktoken;
mod token_pairs;
pub(crate) mod tokenize;
pub(crate) mod tokenize_segments;
pub(crate) mod tokenizer;

use arrow::array::{Array, AsArray, LargeStringArray, StringArray, StringViewArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, internal_err};

/// A column of strings, in any Arrow layout.
pub(crate) enum Texts<'a> {
    Small(&'a StringArray),
    Large(&'a LargeStringArray),
    View(&'a StringViewArray),
}

impl<'a> Texts<'a> {
    pub(crate) fn try_new(array: &'a dyn Array) -> Result<Self> {
        match array.data_type() {
            DataType::Utf8 => Ok(Self::Small(array.as_string())),
            DataType::LargeUtf8 => Ok(Self::Large(array.as_string())),
            DataType::Utf8View => Ok(Self::View(array.as_string_view())),
            other => internal_err!("{other} is not a column of strings, and its type class refuses it"),
        }
    }

    fn array(&self) -> &'a dyn Array {
        match self {
            Self::Small(array) => *array,
            Self::Large(array) => *array,
            Self::View(array) => *array,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.array().len()
    }

    pub(crate) fn nulls(&self) -> Option<&'a NullBuffer> {
        self.array().nulls()
    }

    pub(crate) fn get(&self, row: usize) -> Option<&'a str> {
        if self.array().is_null(row) {
            return None;
        }
        Some(match self {
            Self::Small(array) => array.value(row),
            Self::Large(array) => array.value(row),
            Self::View(array) => array.value(row),
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&'a str>> {
        (0..self.len()).map(|row| self.get(row))
    }
}

/// Returns the offset at the end of a row, or an error if one array cannot hold the batch's values.
pub(crate) fn offset(operator: &str, values: usize) -> Result<i32> {
    i32::try_from(values).map_err(|_| {
        DataFusionError::ResourcesExhausted(format!(
            "{operator}: a batch has more than {} values; use smaller batches",
            i32::MAX
        ))
    })
}
