//! `chunk_text`: splits a long text into a list of short ones.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, StringBuilder};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::{Texts, offset};
use crate::chunk::Splitter;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "chunk_text",
    version: 1,
    category: "text",
    summary: "Splits texts into pieces of a number of words or characters, which may overlap",
    parameters: &[
        Parameter::input("text", TypeClass::Text, "The texts"),
        Parameter::constant("size", ConstantKind::PositiveInteger, "The number of words or characters in a piece"),
        Parameter::constant(
            "overlap",
            ConstantKind::Integer,
            "The number of units that a piece repeats from the previous one",
        )
        .or("0"),
        Parameter::constant("unit", ConstantKind::Text, "`'words'` or `'characters'`").or("'words'"),
        Parameter::constant("drop_last", ConstantKind::Boolean, "Whether to drop a last piece that is shorter")
            .or("false"),
    ],
    returns: "a list of Utf8",
    docs: "A piece begins every size - overlap units, until one reaches the end, like with `chunk`. overlap must be \
           from 0 to size - 1. White space separates words. A piece of words keeps the white space between them, but \
           not around them. A character is a Unicode scalar value. A text without units has no pieces. A row stays one \
           row; `unnest` turns its pieces into rows. Null in, null out.",
    source: "the sliding windows of `chunk`",
    examples: &[
        Example {
            sql: "chunk_text('to be or not to be', size => 4, overlap => 1)",
            result: "[to be or not, not to be]",
        },
        Example { sql: "chunk_text('Ñandú', size => 2, unit => 'characters')", result: "[Ña, nd, ú]" },
    ],
    ..Descriptor::BASE
};

/// The operator `chunk_text`.
#[derive(Debug)]
pub(crate) struct ChunkText;

impl Operator for ChunkText {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Splitter::read(arguments)?;
        is_words(arguments)?;
        let item = Field::new_list_field(DataType::Utf8, false);
        Ok(Field::new("pieces", DataType::List(Arc::new(item)), arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (splitter, is_words) = (Splitter::read(arguments)?, is_words(arguments)?);
        let texts = Texts::try_new(arguments.array("text")?)?;
        let mut pieces = StringBuilder::new();
        let (mut ends, mut count, mut bytes) = (vec![0], 0, 0);
        // Start and end of each unit of one text.
        let mut units: Vec<(usize, usize)> = Vec::new();
        for text in texts.iter() {
            let text = text.unwrap_or_default();
            units.clear();
            if is_words {
                let start = |word: &str| word.as_ptr() as usize - text.as_ptr() as usize;
                units.extend(text.split_whitespace().map(|word| (start(word), start(word) + word.len())));
            } else {
                units.extend(text.char_indices().map(|(start, c)| (start, start + c.len_utf8())));
            }
            for (first, last) in splitter.pieces(units.len()) {
                let piece = &text[units[first].0..units[last - 1].1];
                bytes += piece.len();
                offset(DESCRIPTOR.name, bytes)?;
                pieces.append_value(piece);
                count += 1;
            }
            ends.push(offset(DESCRIPTOR.name, count)?);
        }
        let item = Arc::new(Field::new_list_field(DataType::Utf8, false));
        let ends = OffsetBuffer::new(ends.into());
        Ok(Arc::new(ListArray::try_new(item, ends, Arc::new(pieces.finish()), texts.nulls().cloned())?))
    }
}

fn is_words(arguments: &Arguments) -> Result<bool> {
    match arguments.text("unit")?.as_str() {
        "words" => Ok(true),
        "characters" => Ok(false),
        other => arguments.refuse("unit", format_args!("must be 'words' or 'characters', got \"{other}\"")),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, LargeStringArray};
    use arrow::util::display::array_value_to_string;

    use crate::testing::{column, sql};

    #[test]
    fn texts_are_cut_at_words_or_characters() {
        let check = |arguments: &str, expect: &[&str]| {
            let texts = [Some("  one two\tthree\n four five "), None, Some(" \n"), Some("Ñandú漢🙂")];
            let texts = column("x", LargeStringArray::from(texts.to_vec()));
            let (_, got) = sql(&format!("chunk_text(x, {arguments})"), vec![texts]).unwrap();
            let text =
                |row| if got.is_null(row) { "NULL".to_owned() } else { array_value_to_string(&got, row).unwrap() };
            assert_eq!((0..got.len()).map(text).collect::<Vec<_>>(), expect, "{arguments}");
        };
        check("2", &["[one two, three\n four, five]", "NULL", "[]", "[Ñandú漢🙂]"]);
        check("3, 1", &["[one two\tthree, three\n four five]", "NULL", "[]", "[Ñandú漢🙂]"]);
        check("2, 0, 'words', true", &["[one two, three\n four]", "NULL", "[]", "[]"]);
        check("12, 2, 'characters'", &["[  one two\tth, three\n four , r five ]", "NULL", "[ \n]", "[Ñandú漢🙂]"]);
        check(
            "3, 1, 'characters', true",
            &["[  o, one, e t, two, o\tt, thr, ree, e\n ,  fo, our, r f, fiv, ve ]", "NULL", "[]", "[Ñan, ndú, ú漢🙂]"],
        );
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let check = |call: &str, expect: &str| {
            let x = column("x", LargeStringArray::from(vec!["x"]));
            assert_eq!(sql(call, vec![x]).unwrap_err(), expect);
        };
        check("chunk_text(x, 3, 3)", "chunk_text: \"overlap\" must be from 0 to 2, got 3");
        let expect = "chunk_text: \"unit\" must be 'words' or 'characters', got \"lines\"";
        check("chunk_text(x, 3, 0, 'lines')", expect);
    }
}
