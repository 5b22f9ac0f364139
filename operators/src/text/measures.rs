//! Quality measures of text: language-independent counts and shares, as filters of web text use them.
//!
//! Each is one operator, and all are one struct: a descriptor and a function of a text.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::Texts;
use super::repetition::{self, Words};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
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

/// What all measures declare alike.
const MEASURE: Descriptor = Descriptor { category: "text", parameters: &[TEXT], source: GOPHER, ..Descriptor::BASE };

pub(crate) static WORD_COUNT: Measure = Measure {
    descriptor: &Descriptor {
        name: "word_count",
        summary: "Counts the words of a text",
        returns: "Int64",
        docs: "White space separates words. Null in, null out.",
        examples: &[Example { sql: "word_count('to be or not')", result: "4" }],
        ..MEASURE
    },
    function: TextFunction::Count(word_count),
};

pub(crate) static MEAN_WORD_LENGTH: Measure = Measure {
    descriptor: &Descriptor {
        name: "mean_word_length",
        summary: "Computes the mean length of a text's words, in characters",
        returns: "Float64",
        docs: "White space separates words. 0 for a text without words. Null in, null out.",
        examples: &[Example { sql: "mean_word_length('to be or not')", result: "2.25" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(mean_word_length),
};

pub(crate) static ALPHA_WORD_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "alpha_word_ratio",
        summary: "Computes the share of words that contain a letter",
        returns: "Float64, from 0 to 1",
        docs: "White space separates words. A letter is a character that Unicode calls alphabetic. 0 for a text \
             without words. Null in, null out.",
        examples: &[Example { sql: "alpha_word_ratio('1 + 1 = two')", result: "0.2" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(alpha_word_ratio),
};

pub(crate) static ALPHA_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "alpha_ratio",
        summary: "Computes the share of characters that are letters",
        returns: "Float64, from 0 to 1",
        docs: "A letter is a character that Unicode calls alphabetic. 0 for an empty text. Null in, null out.",
        source: "datatrove's document statistics",
        examples: &[Example { sql: "alpha_ratio('a1b2')", result: "0.5" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(alpha_ratio),
};

pub(crate) static DIGIT_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "digit_ratio",
        summary: "Computes the share of characters that are digits or other numbers",
        returns: "Float64, from 0 to 1",
        docs: "Counts characters in Unicode's categories Nd, Nl and No, including ½. 0 for an empty text. Null in, \
             null out.",
        source: "datatrove's document statistics",
        examples: &[Example { sql: "digit_ratio('a1b2')", result: "0.5" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(digit_ratio),
};

pub(crate) static UPPERCASE_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "uppercase_ratio",
        summary: "Computes the share of upper-case characters",
        returns: "Float64, from 0 to 1",
        docs: "Counts characters that Unicode calls upper case. 0 for an empty text. Null in, null out.",
        source: "datatrove's document statistics",
        examples: &[Example { sql: "uppercase_ratio('NASA!')", result: "0.8" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(uppercase_ratio),
};

pub(crate) static WHITESPACE_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "whitespace_ratio",
        summary: "Computes the share of white-space characters",
        returns: "Float64, from 0 to 1",
        docs: "Counts characters that Unicode calls white space. 0 for an empty text. Null in, null out.",
        source: "datatrove's document statistics",
        examples: &[Example { sql: "whitespace_ratio('a b ')", result: "0.5" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(whitespace_ratio),
};

pub(crate) static BULLET_LINE_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "bullet_line_ratio",
        summary: "Computes the share of lines that begin with a bullet",
        returns: "Float64, from 0 to 1",
        docs: "A bullet is • or -, optionally after white space. Lines end with \\n or \\r\\n. 0 for an empty \
             text. Null in, null out.",
        examples: &[Example { sql: "bullet_line_ratio('- one')", result: "1.0" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(bullet_line_ratio),
};

pub(crate) static ELLIPSIS_LINE_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "ellipsis_line_ratio",
        summary: "Computes the share of lines that end with an ellipsis",
        returns: "Float64, from 0 to 1",
        docs: "An ellipsis is ... or …, optionally before white space. Lines end with \\n or \\r\\n. 0 for an \
             empty text. Null in, null out.",
        examples: &[Example { sql: "ellipsis_line_ratio('read more...')", result: "1.0" }],
        ..MEASURE
    },
    function: TextFunction::Ratio(ellipsis_line_ratio),
};

pub(crate) static DUPLICATE_LINE_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "duplicate_line_ratio",
        summary: "Computes the share of duplicate lines",
        returns: "Float64, from 0 to 1",
        docs: "A line is a duplicate if an earlier line is equal. One or more \\n separate lines, and lines are \
             compared by their 64-bit XXH3. 0 for an empty text. Null in, null out.",
        examples: &[Example { sql: "duplicate_line_ratio('one line')", result: "0.0" }],
        ..MEASURE
    },
    function: TextFunction::Lines(repetition::duplicate_lines),
};

pub(crate) static DUPLICATE_LINE_CHAR_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "duplicate_line_char_ratio",
        summary: "Computes the share of characters in duplicate lines",
        returns: "Float64, from 0 to 1",
        docs: "A line is a duplicate if an earlier line is equal. One or more \\n separate lines, and lines are \
             compared by their 64-bit XXH3. 0 for an empty text. Null in, null out.",
        examples: &[Example { sql: "duplicate_line_char_ratio('one line')", result: "0.0" }],
        ..MEASURE
    },
    function: TextFunction::Lines(repetition::duplicate_line_chars),
};

pub(crate) static TOP_NGRAM_CHAR_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "top_ngram_char_ratio",
        summary: "Computes the share of characters in the most frequent n-gram of words",
        parameters: &[
            TEXT,
            Parameter::constant("n", ConstantKind::PositiveInteger, "The number of words in an n-gram"),
        ],
        returns: "Float64; above 1 if n-grams overlap a lot",
        docs: "White space separates words. The result is the number of characters in the n-gram, with single \
             spaces between words, times its number of occurrences, divided by the number of characters in the \
             text. Of equally frequent n-grams, the first counts. 0 for a text with fewer words. N-grams are \
             compared by 64-bit hashes. Null in, null out.",
        examples: &[Example {
            sql: "top_ngram_char_ratio('to be or not to be', n => 2)",
            result: "0.5555555555555556",
        }],
        ..MEASURE
    },
    function: TextFunction::Ngrams(repetition::top_ngram),
};

pub(crate) static DUPLICATE_NGRAM_CHAR_RATIO: Measure = Measure {
    descriptor: &Descriptor {
        name: "duplicate_ngram_char_ratio",
        summary: "Computes the share of characters in duplicate n-grams of words",
        parameters: &[
            TEXT,
            Parameter::constant("n", ConstantKind::PositiveInteger, "The number of words in an n-gram"),
        ],
        returns: "Float64, from 0 to 1",
        docs: "White space separates words. The text is read from the start. An n-gram that occurred before adds \
             the characters of its words, and reading continues after it. 0 for a text with fewer words. N-grams \
             are compared by 64-bit hashes; unlike in datatrove, 'ab c' is not 'a bc'. Null in, null out.",
        examples: &[Example { sql: "duplicate_ngram_char_ratio('a b c a b c', n => 3)", result: "0.2727272727272727" }],
        ..MEASURE
    },
    function: TextFunction::Ngrams(repetition::duplicate_ngrams),
};

#[cfg(test)]
static MEASURES: &[&Measure] = &[
    &WORD_COUNT,
    &MEAN_WORD_LENGTH,
    &ALPHA_WORD_RATIO,
    &ALPHA_RATIO,
    &DIGIT_RATIO,
    &UPPERCASE_RATIO,
    &WHITESPACE_RATIO,
    &BULLET_LINE_RATIO,
    &ELLIPSIS_LINE_RATIO,
    &DUPLICATE_LINE_RATIO,
    &DUPLICATE_LINE_CHAR_RATIO,
    &TOP_NGRAM_CHAR_RATIO,
    &DUPLICATE_NGRAM_CHAR_RATIO,
];

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
