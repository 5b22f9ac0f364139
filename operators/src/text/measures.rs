//! Quality measures of text: language-independent counts and shares, as filters of web text use them.
//!
//! Each is one operator, and all are one struct: a descriptor and a function of a text.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::Texts;
use super::repetition::{self, Words};
use crate::descriptor::{Commutes, ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};
use crate::operator::{Arguments, Operator};

/// An operator that measures texts.
#[derive(Debug)]
pub(crate) struct Measure {
    descriptor: &'static Descriptor,
    function: TextFunction,
}

#[derive(Debug)]
enum TextFunction {
    Count(fn(&str) -> i64),
    Ratio(fn(&str) -> f64),
    Lines(fn(&str, &mut Words) -> f64),
    Ngrams(fn(&str, usize, &mut Words) -> f64),
}

impl Operator for Measure {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let data_type = match self.function {
            TextFunction::Count(_) => DataType::Int64,
            _ => DataType::Float64,
        };
        Ok(Field::new(self.descriptor.name, data_type, arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let texts = Texts::try_new(arguments.array("text")?)?;
        let nulls = texts.nulls().cloned();
        let texts = texts.iter().map(Option::unwrap_or_default);
        let mut words = Words::default();
        let ratios: Vec<f64> = match self.function {
            TextFunction::Count(count) => {
                let counts = texts.map(count).collect::<Vec<_>>();
                return Ok(Arc::new(Int64Array::try_new(counts.into(), nulls)?));
            }
            TextFunction::Ratio(ratio) => texts.map(ratio).collect(),
            TextFunction::Lines(ratio) => texts.map(|text| ratio(text, &mut words)).collect(),
            TextFunction::Ngrams(ratio) => {
                let n = arguments.positive("n")?;
                texts.map(|text| ratio(text, n, &mut words)).collect()
            }
        };
        Ok(Arc::new(Float64Array::try_new(ratios.into(), nulls)?))
    }
}

const TEXT: Parameter = Parameter::input("text", TypeClass::Text, "The texts");

const GOPHER: &str = "Gopher's quality rules (Rae et al., 2021, table A1), as datatrove computes them";

macro_rules! measures {
    ($($constant:ident $name:literal $kind:ident($function:path) $(+ $parameter:expr)?,
       $summary:literal, $returns:literal, $docs:literal, $source:expr, $example:literal = $result:literal;)+) => {
        $(pub(crate) static $constant: Measure = Measure {
            descriptor: {
                static DESCRIPTOR: Descriptor = Descriptor {
                    name: $name,
                    version: 1,
                    category: "text",
                    summary: $summary,
                    parameters: &[TEXT $(, $parameter)?],
                    returns: $returns,
                    determinism: Determinism::Deterministic,
                    rows: Rows::OneToOne,
                    nulls: Nulls::Kept,
                    size_ratio: 0.01,
                    commutes: Commutes::NONE,
                    docs: concat!($docs, " Null in, null out."),
                    source: $source,
                    examples: &[Example { sql: $example, result: $result }],
                };
                &DESCRIPTOR
            },
            function: TextFunction::$kind($function),
        };)+

        #[cfg(test)]
        static MEASURES: &[&Measure] = &[$(&$constant),+];
    };
}

measures! {
    WORD_COUNT "word_count" Count(word_count),
        "Counts the words of a text", "Int64",
        "White space separates words.",
        GOPHER, "word_count('to be or not')" = "4";
    MEAN_WORD_LENGTH "mean_word_length" Ratio(mean_word_length),
        "Computes the mean length of a text's words, in characters", "Float64",
        "White space separates words. 0 for a text without words.",
        GOPHER, "mean_word_length('to be or not')" = "2.25";
    ALPHA_WORD_RATIO "alpha_word_ratio" Ratio(alpha_word_ratio),
        "Computes the share of words that contain a letter", "Float64, from 0 to 1",
        "White space separates words. A letter is a character that Unicode calls alphabetic. 0 for a text without \
         words.",
        GOPHER, "alpha_word_ratio('1 + 1 = two')" = "0.2";
    ALPHA_RATIO "alpha_ratio" Ratio(alpha_ratio),
        "Computes the share of characters that are letters", "Float64, from 0 to 1",
        "A letter is a character that Unicode calls alphabetic. 0 for an empty text.",
        "datatrove's document statistics", "alpha_ratio('a1b2')" = "0.5";
    DIGIT_RATIO "digit_ratio" Ratio(digit_ratio),
        "Computes the share of characters that are digits or other numbers", "Float64, from 0 to 1",
        "Counts characters in Unicode's categories Nd, Nl and No, including ½. 0 for an empty text.",
        "datatrove's document statistics", "digit_ratio('a1b2')" = "0.5";
    UPPERCASE_RATIO "uppercase_ratio" Ratio(uppercase_ratio),
        "Computes the share of upper-case characters", "Float64, from 0 to 1",
        "Counts characters that Unicode calls upper case. 0 for an empty text.",
        "datatrove's document statistics", "uppercase_ratio('NASA!')" = "0.8";
    WHITESPACE_RATIO "whitespace_ratio" Ratio(whitespace_ratio),
        "Computes the share of white-space characters", "Float64, from 0 to 1",
        "Counts characters that Unicode calls white space. 0 for an empty text.",
        "datatrove's document statistics", "whitespace_ratio('a b ')" = "0.5";
    BULLET_LINE_RATIO "bullet_line_ratio" Ratio(bullet_line_ratio),
        "Computes the share of lines that begin with a bullet", "Float64, from 0 to 1",
        "A bullet is • or -, optionally after white space. Lines end with \\n or \\r\\n. 0 for an empty text.",
        GOPHER, "bullet_line_ratio('- one')" = "1.0";
    ELLIPSIS_LINE_RATIO "ellipsis_line_ratio" Ratio(ellipsis_line_ratio),
        "Computes the share of lines that end with an ellipsis", "Float64, from 0 to 1",
        "An ellipsis is ... or …, optionally before white space. Lines end with \\n or \\r\\n. 0 for an empty text.",
        GOPHER, "ellipsis_line_ratio('read more...')" = "1.0";
    DUPLICATE_LINE_RATIO "duplicate_line_ratio" Lines(repetition::duplicate_lines),
        "Computes the share of duplicate lines", "Float64, from 0 to 1",
        "A line is a duplicate if an earlier line is equal. One or more \\n separate lines, and lines are compared by \
         their 64-bit XXH3. 0 for an empty text.",
        GOPHER, "duplicate_line_ratio('one line')" = "0.0";
    DUPLICATE_LINE_CHAR_RATIO "duplicate_line_char_ratio" Lines(repetition::duplicate_line_chars),
        "Computes the share of characters in duplicate lines", "Float64, from 0 to 1",
        "A line is a duplicate if an earlier line is equal. One or more \\n separate lines, and lines are compared by \
         their 64-bit XXH3. 0 for an empty text.",
        GOPHER, "duplicate_line_char_ratio('one line')" = "0.0";
    TOP_NGRAM_CHAR_RATIO "top_ngram_char_ratio"
        Ngrams(repetition::top_ngram) + Parameter::constant("n", ConstantKind::PositiveInteger, "The number of words in an n-gram"),
        "Computes the share of characters in the most frequent n-gram of words", "Float64; above 1 if n-grams overlap a lot",
        "White space separates words. The result is the number of characters in the n-gram, with single spaces between \
         words, times its number of occurrences, divided by the number of characters in the text. Of equally frequent \
         n-grams, the first counts. 0 for a text with fewer words. N-grams are compared by 64-bit hashes.",
        GOPHER, "top_ngram_char_ratio('to be or not to be', n => 2)" = "0.5555555555555556";
    DUPLICATE_NGRAM_CHAR_RATIO "duplicate_ngram_char_ratio"
        Ngrams(repetition::duplicate_ngrams) + Parameter::constant("n", ConstantKind::PositiveInteger, "The number of words in an n-gram"),
        "Computes the share of characters in duplicate n-grams of words", "Float64, from 0 to 1",
        "White space separates words. The text is read from the start. An n-gram that occurred before adds the \
         characters of its words, and reading continues after it. 0 for a text with fewer words. N-grams are compared \
         by 64-bit hashes; unlike in datatrove, 'ab c' is not 'a bc'.",
        GOPHER, "duplicate_ngram_char_ratio('a b c a b c', n => 3)" = "0.2727272727272727";
}

/// Returns `part / whole`, or 0 if `whole` is 0.
pub(super) fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub(super) fn chars(text: &str) -> usize {
    text.chars().count()
}

fn word_count(text: &str) -> i64 {
    text.split_whitespace().count() as i64
}

fn mean_word_length(text: &str) -> f64 {
    let (words, length) =
        text.split_whitespace().fold((0, 0), |(words, length), word| (words + 1, length + chars(word)));
    share(length, words)
}

fn alpha_word_ratio(text: &str) -> f64 {
    let words = text.split_whitespace().map(|word| word.contains(char::is_alphabetic));
    let (all, alpha) = words.fold((0, 0), |(all, alpha), is_alpha| (all + 1, alpha + usize::from(is_alpha)));
    share(alpha, all)
}

fn share_of_chars(text: &str, counts: fn(char) -> bool) -> f64 {
    let (all, counted) = text.chars().fold((0, 0), |(all, counted), c| (all + 1, counted + usize::from(counts(c))));
    share(counted, all)
}

fn alpha_ratio(text: &str) -> f64 {
    share_of_chars(text, char::is_alphabetic)
}

fn digit_ratio(text: &str) -> f64 {
    share_of_chars(text, char::is_numeric)
}

fn uppercase_ratio(text: &str) -> f64 {
    share_of_chars(text, char::is_uppercase)
}

fn whitespace_ratio(text: &str) -> f64 {
    share_of_chars(text, char::is_whitespace)
}

fn bullet_line_ratio(text: &str) -> f64 {
    let bullets = text.lines().filter(|line| line.trim_start().starts_with(['•', '-']));
    share(bullets.count(), text.lines().count())
}

fn ellipsis_line_ratio(text: &str) -> f64 {
    let ellipses = text.lines().map(str::trim_end).filter(|line| line.ends_with("...") || line.ends_with('…'));
    share(ellipses.count(), text.lines().count())
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, StringViewArray};
    use arrow::compute::cast;
    use arrow::datatypes::Float64Type;

    use super::*;
    use crate::testing::{column, golden, sql};

    #[test]
    fn measures_are_datatroves() {
        let golden = golden("text");
        let texts: Vec<_> = golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        let expected = golden["measures"].as_object().unwrap();
        for (call, values) in expected {
            let (_, got) = sql(call, vec![column("text", StringViewArray::from(texts.clone()))]).unwrap();
            let got = cast(&got, &DataType::Float64).unwrap();
            let got = got.as_primitive::<Float64Type>();
            for (row, expect) in values.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).enumerate() {
                // serde_json may read a number as either of the two nearest floats.
                let (got, text) = (got.value(row), texts[row]);
                assert!((got - expect).abs() < 1e-13, "{call} of {text:?}: {got} and not {expect}");
            }
        }
        for measure in MEASURES {
            let name = measure.descriptor.name;
            assert!(expected.keys().any(|call| call.starts_with(&format!("{name}("))), "no golden values for {name}");
        }
    }

    #[test]
    fn a_text_that_is_null_has_no_measure() {
        for measure in MEASURES.iter().filter(|measure| measure.descriptor.parameters.len() == 1) {
            let call = format!("{}(text)", measure.descriptor.name);
            let (_, got) = sql(&call, vec![column("text", StringViewArray::from(vec![Some("a"), None]))]).unwrap();
            assert_eq!((got.is_null(0), got.is_null(1)), (false, true));
        }
    }
}
