//! `tokenize`: text to token ids.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err};

use super::tokenizer::{Encoding, Tokenizer, Truncation};
use super::{Texts, offset, tiktoken};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "tokenize",
    version: 2,
    category: "text",
    summary: "Converts text to token ids",
    parameters: &[
        Parameter::input("text", TypeClass::Text, "The texts"),
        Parameter::constant(
            "tokenizer",
            ConstantKind::File,
            "A `tokenizer.json`, as saved by Hugging Face's libraries, or a tiktoken vocabulary",
        ),
        Parameter::constant(
            "add_special_tokens",
            ConstantKind::Boolean,
            "Whether to add the special tokens of the file's template",
        )
        .or("true"),
        Parameter::constant(
            "max_length",
            ConstantKind::Integer,
            "The maximum number of ids, including special tokens; 0 for no limit",
        )
        .or("0"),
        Parameter::constant(
            "truncation",
            ConstantKind::Text,
            "The end of a longer text that is dropped, `'right'` or `'left'`; `'error'` makes it a bad row",
        )
        .or("'right'"),
        Parameter::constant(
            "pattern",
            ConstantKind::Text,
            "The pattern by which a tiktoken vocabulary splits texts: `'cl100k_base'`, `'o200k_base'` or `'r50k_base'` \
             (GPT-2's)",
        )
        .or("'cl100k_base'"),
    ],
    returns: "List(Int32)",
    docs: "The file may describe any model, normalizer, pre-tokenizer and template. Special tokens in the text become \
           their ids. A character that a BPE vocabulary lacks becomes its bytes if `byte_fallback` is true and all \
           have tokens, otherwise the `unk_token`, otherwise nothing, as in Hugging Face's `tokenizers`; a text that \
           needs an `unk_token` outside the vocabulary is an error. Padding and truncation in the file are ignored: they are settings of whoever saved it. If \
           max_length is below the number of special tokens, every row is an error.\n\nA tiktoken vocabulary has a \
           token in base64 and its rank on each line. It has no special tokens, so they are read as text. The ids are \
           tiktoken's. The pattern has no effect with a `tokenizer.json`, which describes its own splitting.\n\nThe \
           file is read when the query is planned, relative to the script's folder or the session's base. Its content \
           identifies the query: different bytes at the same path make a different feed, and a worker whose file \
           differs refuses it. Null in, null out. An empty text gives the template's tokens.",
    source: "Hugging Face's `tokenizers` 1.0.0-rc.3; ids tested against 0.23",
    examples: &[
        Example { sql: "tokenize('to be', tokenizer => 'tokenizer.json')", result: "[493, 439]" },
        Example { sql: "tokenize('to be or not', tokenizer => 'tokenizer.json', max_length => 1)", result: "[493]" },
    ],
    ..Descriptor::BASE
};

/// The operator `tokenize`.
#[derive(Debug)]
pub(crate) struct Tokenize;

impl Operator for Tokenize {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        prepare(arguments)?;
        let ids = DataType::new_list(DataType::Int32, true);
        Ok(Field::new("tokens", ids, arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (tokenizer, encoding) = prepare(arguments)?;
        let texts = Texts::try_new(arguments.array("text")?)?;
        let mut offsets = Vec::with_capacity(texts.len() + 1);
        let mut ids = Vec::new();
        offsets.push(0);
        for text in texts.iter() {
            if let Some(text) = text {
                let named = |problem| exec_datafusion_err!("{}: {problem}", DESCRIPTOR.name);
                tokenizer.encode(text, &encoding, &mut ids).map_err(named)?;
            }
            offsets.push(offset(DESCRIPTOR.name, ids.len())?);
        }
        let ids = Int32Array::from_iter_values(ids.into_iter().map(|id| u32::from(id) as i32));
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let offsets = OffsetBuffer::new(offsets.into());
        Ok(Arc::new(ListArray::try_new(item, offsets, Arc::new(ids), texts.nulls().cloned())?))
    }
}

fn prepare(arguments: &Arguments) -> Result<(Arc<Tokenizer>, Encoding)> {
    let truncation = Truncation::read(arguments)?;
    let length_max = arguments.integer("max_length")?;
    let Some(length_max) = usize::try_from(length_max).ok() else {
        return arguments.refuse("max_length", format_args!("must not be negative, got {length_max}"));
    };
    let encoding = Encoding::new(arguments.flag("add_special_tokens")?, length_max, truncation);
    let (file, pattern) = (arguments.text("tokenizer")?, arguments.text("pattern")?);
    if let Err(problem) = tiktoken::pattern(&pattern) {
        return arguments.refuse("pattern", problem);
    }
    match Tokenizer::get(&file, &pattern) {
        Ok(tokenizer) => Ok((tokenizer, encoding)),
        Err(problem) => arguments.refuse_file("tokenizer", problem),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DictionaryArray, StringArray, StringViewArray};
    use arrow::datatypes::Int32Type;
    use serde_json::Value;

    use super::*;
    use crate::testing::{Column, column, golden, sql, tokenizer};

    fn rows(column: &Column) -> Vec<Option<Vec<i32>>> {
        let row = |ids: ArrayRef| ids.as_primitive::<Int32Type>().values().to_vec();
        column.1.as_list::<i32>().iter().map(|ids| ids.map(row)).collect()
    }

    fn texts(golden: &Value) -> Vec<&str> {
        golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
    }

    #[test]
    fn ids_and_texts_are_those_of_the_library_in_python() {
        let golden = golden("tokens");
        let texts = texts(&golden);
        for (name, expect) in golden["tokenizers"].as_object().unwrap() {
            let file = tokenizer(name);
            let ids = |arguments: &str, texts: &[&str]| {
                let call = format!("tokenize(text, '{file}', {arguments})");
                let got = rows(&sql(&call, vec![column("text", StringArray::from(texts.to_vec()))]).unwrap());
                got.into_iter().map(|ids| ids.unwrap_or_default()).collect::<Vec<_>>()
            };
            let check = |what: &str, got: Vec<Vec<i32>>, expect: &Value| {
                for (row, ids) in got.into_iter().enumerate() {
                    assert_eq!(Value::from(ids), expect[row], "{name} {what} of {:?}", texts[row]);
                }
            };
            check("ids", ids("true", &texts), &expect["ids"]);
            check("bare", ids("false", &texts), &expect["bare"]);
            check("cut at the right", ids("true, 5, 'right'", &texts[..40]), &expect["cut"]["right"]);
            check("cut at the left", ids("true, 5, 'left'", &texts[..40]), &expect["cut"]["left"]);
            for (skip, decoded) in [("true", "decoded"), ("false", "decoded_all")] {
                let call = format!("detokenize(tokenize(text, '{file}', true), '{file}', {skip})");
                let (_, got) = sql(&call, vec![column("text", StringArray::from(texts.clone()))]).unwrap();
                for (row, got) in got.as_string::<i32>().iter().enumerate() {
                    assert_eq!(got, expect[decoded][row].as_str(), "{name} {decoded} of {:?}", texts[row]);
                }
            }
        }
    }

    #[test]
    fn every_kind_of_string_and_null_is_taken() {
        let file = tokenizer("gpt2");
        let expect = [Some(vec![493, 439]), None, Some(vec![])];
        let texts = StringViewArray::from(vec![Some("to be"), None, Some("")]);
        assert_eq!(rows(&sql(&format!("tokenize(text, '{file}')"), vec![column("text", texts)]).unwrap()), expect);
        let texts: DictionaryArray<Int32Type> = [Some("to be"), None, Some("")].into_iter().collect();
        assert_eq!(rows(&sql(&format!("tokenize(text, '{file}')"), vec![column("text", texts)]).unwrap()), expect);
        let none =
            sql(&format!("tokenize(NULL, '{file}')"), vec![column("text", StringArray::from(vec!["x"]))]).unwrap();
        assert_eq!(rows(&none), [None]);
    }

    #[test]
    fn a_document_of_ten_megabytes_is_a_row() {
        let text = "a window of rows, ".repeat(600_000);
        let call = format!("tokenize(text, '{}', true, 100)", tokenizer("gpt2"));
        let got = rows(&sql(&call, vec![column("text", StringArray::from(vec![text]))]).unwrap());
        assert_eq!(got[0].as_ref().unwrap().len(), 100);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let check = |arguments: &str, expect: &str| {
            let call = format!("tokenize(text, {arguments})");
            let got = sql(&call, vec![column("text", StringArray::from(vec!["to be or not"]))]).unwrap_err();
            assert!(got.contains(expect), "{got}\n{expect}");
        };
        let file = tokenizer("gpt2");
        check(
            "'no/such.json'",
            "tokenize: \"tokenizer\" names a file that cannot be read: \"no/such.json\": No such file",
        );
        check(&format!("'{file}', 1"), "tokenize: \"add_special_tokens\" must be true or false, got 1");
        check(&format!("'{file}', true, -1"), "tokenize: \"max_length\" must not be negative, got -1");
        check(
            &format!("'{file}', true, 3, 'middle'"),
            "tokenize: \"truncation\" must be 'right', 'left' or 'error', got \"middle\"",
        );
        check(
            &format!("'{file}', true, 3, 'error'"),
            "tokenize: a text of 4 tokens is longer than 3; truncation => 'right' would cut it",
        );
        let broken = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/text.json");
        check(&format!("'{broken}'"), "tokenize: \"tokenizer\" names a file that cannot be used: ");
        let photo = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/photo.jpg");
        check(&format!("'{photo}'"), "tokenize: \"tokenizer\" names a file that cannot be used: ");
        let number =
            sql(&format!("tokenize(1, '{file}')"), vec![column("x", StringArray::from(vec!["x"]))]).unwrap_err();
        assert_eq!(number, "tokenize: \"text\" must be a string, got Int64");
    }

    #[test]
    fn damaged_files_are_refused_and_do_not_panic() {
        let mut draws = crate::keyed::Draws::new(11, 0);
        for name in ["gpt2", "cl100k", "bert", "unigram"] {
            let whole = std::fs::read(tokenizer(name)).unwrap();
            for _ in 0..60 {
                let mut bytes = whole.clone();
                match draws.below(3) {
                    0 => bytes.truncate(draws.below(whole.len() as u64) as usize),
                    _ => {
                        for _ in 0..1 + draws.below(4) {
                            // The first part of the file holds the settings, the rest is the vocabulary.
                            let at = draws.below(1500.min(whole.len()) as u64) as usize;
                            bytes[at] = draws.below(128) as u8;
                        }
                    }
                }
                if let Ok(tokenizer) = Tokenizer::read(&bytes, tiktoken::PATTERN_DEFAULT) {
                    let encoding = Encoding::new(true, 0, Truncation::Right);
                    let _ = tokenizer.encode("to be or not, 1984 \u{1F600}", &encoding, &mut vec![]);
                }
            }
        }
    }
}
