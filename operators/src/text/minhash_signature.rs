//! `minhash_signature`: a few numbers, many of them equal for similar texts.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, UInt32Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{DataFusionError, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::Texts;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};

/// Maximum length of a signature.
const PERMUTATIONS_MAX: usize = 1 << 16;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "minhash_signature",
    version: 1,
    category: "text",
    summary: "Computes a signature of a text; the share of equal numbers in two signatures estimates the texts' \
              similarity",
    parameters: &[
        Parameter::input("text", TypeClass::Text, "The texts"),
        Parameter::constant("permutations", ConstantKind::PositiveInteger, "The length of a signature, up to 65536")
            .or("128"),
        Parameter::constant("ngram", ConstantKind::PositiveInteger, "The number of words in a shingle").or("5"),
        Parameter::constant("seed", ConstantKind::Integer, "A different seed gives different, independent numbers")
            .or("1"),
    ],
    returns: "FixedSizeList(UInt32) of that length",
    docs: "White space separates words. A shingle is ngram consecutive words joined by single spaces, or all words of \
           a text that has fewer. Case and accents matter: apply `lower` and `normalize_text` first. A shingle's hash \
           h is the lower 32 bits of XXH3, mixed by MurmurHash3's finalizer. Number i of the signature is the minimum \
           of a * h + b modulo 2^32 over all shingles. The seed determines a (made odd) and b: they are draws 2i + 1 \
           and 2i + 2, upper 32 bits, of the stream that `keyed` defines for key seed and site 0. A text without words \
           has only 4294967295. Null in, null out.",
    source: "Broder, 1997; the same numbers as `datasketch` 2.0 with scheme affine32, these permutations and this hash",
    examples: &[Example {
        sql: "minhash_signature('the cat sat on the mat', permutations => 4, ngram => 2)",
        result: "[694424266, 86710673, 633415711, 712112757]",
    }],
    ..Descriptor::BASE
};

/// The operator `minhash_signature`.
#[derive(Debug)]
pub(crate) struct MinhashSignature;

impl Operator for MinhashSignature {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let length = arguments.positive("permutations")?;
        if length > PERMUTATIONS_MAX {
            return arguments.refuse("permutations", format_args!("must be at most {PERMUTATIONS_MAX}, got {length}"));
        }
        let list = DataType::new_fixed_size_list(DataType::UInt32, length as i32, true);
        Ok(Field::new("signature", list, arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (length, ngram) = (arguments.positive("permutations")?, arguments.positive("ngram")?);
        let permutations = Permutations::new(length, arguments.integer("seed")? as u64);
        let texts = Texts::try_new(arguments.array("text")?)?;
        let total = texts.len().checked_mul(length).filter(|total| *total <= i32::MAX as usize).ok_or_else(|| {
            DataFusionError::ResourcesExhausted(format!(
                "{}: the signatures of one batch exceed {} values; use smaller batches",
                DESCRIPTOR.name,
                i32::MAX
            ))
        })?;
        let mut signatures = vec![u32::MAX; total];
        let mut shingles = Shingles::default();
        for (text, signature) in texts.iter().zip(signatures.chunks_exact_mut(length)) {
            let Some(text) = text else { continue };
            shingles.set(text);
            shingles.for_each(ngram, |shingle| permutations.add(shingle, signature));
        }
        let item = Arc::new(Field::new_list_field(DataType::UInt32, true));
        let values = Arc::new(UInt32Array::from(signatures));
        Ok(Arc::new(FixedSizeListArray::try_new(item, length as i32, values, texts.nulls().cloned())?))
    }
}

struct Permutations {
    factors: Vec<u32>,
    summands: Vec<u32>,
}

impl Permutations {
    fn new(length: usize, seed: u64) -> Self {
        let mut draws = Draws::new(seed, 0);
        let mut draw = || draws.below(1 << 32) as u32;
        let (factors, summands) = (0..length).map(|_| (draw() | 1, draw())).unzip();
        Self { factors, summands }
    }

    fn add(&self, shingle: &str, signature: &mut [u32]) {
        let hash = finalize(xxh3_64(shingle.as_bytes()) as u32);
        for ((least, a), b) in signature.iter_mut().zip(&self.factors).zip(&self.summands) {
            *least = (*least).min(a.wrapping_mul(hash).wrapping_add(*b));
        }
    }
}

/// MurmurHash3's finalizer.
fn finalize(mut hash: u32) -> u32 {
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85EB_CA6B);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xC2B2_AE35);
    hash ^ (hash >> 16)
}

/// A text's words separated by single spaces, and the start of each word.
#[derive(Default)]
struct Shingles {
    text: String,
    starts: Vec<usize>,
}

impl Shingles {
    fn set(&mut self, text: &str) {
        self.text.clear();
        self.starts.clear();
        for word in text.split_whitespace() {
            self.starts.push(self.text.len());
            self.text.push_str(word);
            self.text.push(' ');
        }
    }

    fn for_each(&self, ngram: usize, mut each: impl FnMut(&str)) {
        let words = self.starts.len();
        for first in 0..words.saturating_sub(ngram - 1).max(words.min(1)) {
            let end = self.starts.get(first + ngram).copied().unwrap_or(self.text.len());
            each(&self.text[self.starts[first]..end - 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, StringArray};
    use arrow::datatypes::UInt32Type;

    use crate::testing::{column, golden, sql};

    #[test]
    fn signatures_are_datasketchs() {
        let golden = golden("text");
        let texts: Vec<_> = golden["texts"].as_array().unwrap().iter().map(|text| text.as_str()).collect();
        for (arguments, expect) in golden["minhash"].as_object().unwrap() {
            let call = format!("minhash_signature(text, {arguments})");
            let (_, got) = sql(&call, vec![column("text", StringArray::from(texts.clone()))]).unwrap();
            for (row, got) in got.as_fixed_size_list().iter().enumerate() {
                let got = got.unwrap().as_primitive::<UInt32Type>().values().to_vec();
                assert_eq!(serde_json::Value::from(got), expect[row], "{call} of {:?}", texts[row]);
            }
        }
    }

    #[test]
    fn equal_numbers_estimate_similarity() {
        let words: Vec<_> = (0..200).map(|i| format!("w{i}")).collect();
        let texts = StringArray::from(vec![words[..150].join(" "), words[50..].join("  ")]);
        let (_, got) = sql("minhash_signature(text, 1024, 1)", vec![column("text", texts)]).unwrap();
        let list = got.as_fixed_size_list();
        let (a, b) = (list.value(0), list.value(1));
        let pairs = a.as_primitive::<UInt32Type>().values().iter().zip(b.as_primitive::<UInt32Type>().values());
        let equal = pairs.filter(|(a, b)| a == b).count();
        // The texts share 100 of 200 words. The standard deviation of the estimate is 16.
        assert!((512 - 64..512 + 64).contains(&equal), "{equal}");
    }

    #[test]
    fn too_long_signatures_are_refused() {
        let expect = "minhash_signature: \"permutations\" must be at most 65536, got 65537";
        let texts = vec![column("text", StringArray::from(vec!["x"]))];
        assert_eq!(sql("minhash_signature(text, 65537)", texts).unwrap_err(), expect);
    }
}
