//! `detokenize`: token ids to text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{Result, exec_datafusion_err, exec_err, internal_err};

use super::offset;
use super::tiktoken;
use super::tokenizer::Tokenizer;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "detokenize",
    version: 1,
    category: "text",
    summary: "Converts token ids back to text",
    parameters: &[
        Parameter::input("tokens", TypeClass::IntegerList, "The ids"),
        Parameter::constant(
            "tokenizer",
            ConstantKind::File,
            "A `tokenizer.json`, as saved by Hugging Face's libraries",
        ),
        Parameter::constant("skip_special_tokens", ConstantKind::Boolean, "Whether to leave out special tokens")
            .or("true"),
    ],
    returns: "Utf8",
    docs: "An id that is negative or above 2^32 - 1 is an error. A null id, or one that is not in the vocabulary, is \
           left out. Invalid UTF-8 becomes U+FFFD. Hugging Face's libraries do the same. The file is read, and \
           identifies the query, like with `tokenize`. Null in, null out.",
    source: "Hugging Face's `tokenizers` 1.0.0-rc.3; texts tested against 0.23",
    examples: &[Example { sql: "detokenize([493, 439], tokenizer => 'tokenizer.json')", result: "to be" }],
    ..Descriptor::BASE
};

/// The operator `detokenize`.
#[derive(Debug)]
pub(crate) struct Detokenize;

impl Operator for Detokenize {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("tokens")?;
        tokenizer(arguments)?;
        Ok(Field::new("text", DataType::Utf8, field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let tokenizer = tokenizer(arguments)?;
        let skip_special_tokens = arguments.flag("skip_special_tokens")?;
        let list = cast(arguments.array("tokens")?, &DataType::new_large_list(DataType::Int64, true))?;
        let Some(list) = list.as_list_opt::<i64>() else { return internal_err!("detokenize got {}", list.data_type()) };
        let values = list.values().as_primitive::<Int64Type>();
        let mut texts = StringBuilder::with_capacity(list.len(), values.len() * 4);
        let mut ids = Vec::new();
        let mut bytes = 0;
        for row in 0..list.len() {
            if list.is_null(row) {
                texts.append_null();
                continue;
            }
            ids.clear();
            for at in list.value_offsets()[row] as usize..list.value_offsets()[row + 1] as usize {
                match u32::try_from(values.value(at)).ok().filter(|_| values.is_valid(at)) {
                    Some(id) => ids.push(id),
                    None if values.is_null(at) => {}
                    None => return exec_err!("detokenize: {} is not the id of a token", values.value(at)),
                }
            }
            let named = |problem| exec_datafusion_err!("{}: {problem}", DESCRIPTOR.name);
            let text = tokenizer.decode(&ids, skip_special_tokens).map_err(named)?;
            bytes += text.len();
            offset(DESCRIPTOR.name, bytes)?;
            texts.append_value(text);
        }
        Ok(Arc::new(texts.finish()))
    }
}

fn tokenizer(arguments: &Arguments) -> Result<Arc<Tokenizer>> {
    Tokenizer::get(&arguments.text("tokenizer")?, tiktoken::PATTERN_DEFAULT)
        .or_else(|problem| arguments.refuse_file("tokenizer", problem))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, ListArray};
    use arrow::datatypes::{Int32Type, UInt16Type};

    use super::*;
    use crate::testing::{column, sql, tokenizer};

    #[test]
    fn ids_that_are_none_are_errors_and_unknown_ones_are_left_out() {
        let call = format!("detokenize(x, '{}')", tokenizer("gpt2"));
        let check = |ids: &[Option<i32>], expect: std::result::Result<&str, &str>| {
            let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(ids.to_vec())]);
            let got = sql(&call, vec![column("x", list)]).map(|(_, text)| text.as_string::<i32>().value(0).to_owned());
            assert_eq!(got.as_deref().map_err(String::as_str), expect, "{ids:?}");
        };
        check(&[Some(493), Some(439)], Ok("to be"));
        check(&[Some(493), Some(999_999), Some(0)], Ok("to"));
        check(&[Some(-100)], Err("detokenize: -100 is not the id of a token"));
        check(&[None, Some(439)], Ok(" be"));
    }

    #[test]
    fn any_list_of_integers_is_taken() {
        let call = format!("detokenize(x, '{}')", tokenizer("gpt2"));
        let list = ListArray::from_iter_primitive::<UInt16Type, _, _>([None, Some([Some(493)]), Some([Some(439)])]);
        let (_, got) = sql(&call, vec![column("x", list.slice(0, 2))]).unwrap();
        assert_eq!(got.as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("to")]);
        let floats =
            sql(&format!("detokenize([x], '{}')", tokenizer("gpt2")), vec![column("x", Float32Array::from(vec![1.0]))]);
        let expect = "detokenize: \"tokens\" must be a list of integers, got List(Float32)";
        assert_eq!(floats.unwrap_err(), expect);
    }
}
