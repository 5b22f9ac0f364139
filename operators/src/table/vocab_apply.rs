//! `vocab_apply`: maps values to their indices in a given vocabulary.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::vocabulary::Vocabulary;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::files::Loaded;
use crate::fits::FittedList;
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "vocab_apply",
    version: 1,
    category: "category",
    summary: "Maps values to their indices in a vocabulary",
    parameters: &[
        Parameter::input("value", TypeClass::Category, "The values"),
        Parameter::constant(
            "vocabulary",
            ConstantKind::Vocabulary,
            "The entries in order: a list of strings, or a file with one on each line",
        )
        .fitted(),
        Parameter::constant("start", ConstantKind::Integer, "The result for the first entry").or("0"),
        Parameter::constant("other", ConstantKind::Integer, "The result for values that are not an entry").or("-1"),
    ],
    returns: "Int64",
    docs: "Strings are compared byte by byte. An integer matches the entry that spells it. A vocabulary with a \
           repeated entry is refused. A file is UTF-8 with lines that end with \\n or \\r\\n, and an empty line is an \
           entry. The file is read, and identifies the query, like with `tokenize`. A vocabulary is a \
           constant; `categorify` fits one to the rows. Null in, null out.",
    source: "Keras' `StringLookup` and `IntegerLookup` with a given vocabulary",
    examples: &[
        Example { sql: "vocab_apply('green', vocabulary => ['red', 'green'])", result: "1" },
        Example { sql: "vocab_apply('blue', vocabulary => ['red', 'green'], start => 1, other => 0)", result: "0" },
    ],
    takes_views: true,
    ..Descriptor::BASE
};

/// Maximum number of cached vocabularies. A table may have one for each column.
const VOCABULARIES_KEPT: usize = 256;

static LOADED: Loaded<Vocabulary> = Loaded::new(VOCABULARIES_KEPT);

/// The operator `vocab_apply`.
#[derive(Debug)]
pub(crate) struct VocabApply;

impl Operator for VocabApply {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let entries = if arguments.are_known() { vocabulary(arguments)?.len() } else { 0 };
        let start = arguments.integer("start")?;
        if i64::try_from(entries).ok().and_then(|entries| start.checked_add(entries)).is_none() {
            return arguments.refuse("start", format_args!("leaves no room for {entries} entries, got {start}"));
        }
        Ok(Field::new("index", DataType::Int64, arguments.field("value")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (start, other) = (arguments.integer("start")?, arguments.integer("other")?);
        let vocabulary = vocabulary(arguments)?;
        let place = |place: Option<u32>| place.map_or(other, |place| start + i64::from(place));
        let array = arguments.array("value")?;
        let places = vocabulary.places(array, place)?;
        Ok(Arc::new(Int64Array::try_new(places.into(), array.nulls().cloned())?))
    }
}

fn vocabulary(arguments: &Arguments) -> Result<Arc<Vocabulary>> {
    let found = match arguments.texts("vocabulary") {
        Ok(entries) => {
            let found = Vocabulary::new(entries.iter().map(String::as_str)).map(Arc::new);
            return found.or_else(|problem| arguments.refuse("vocabulary", problem));
        }
        Err(_) => {
            let text = arguments.text("vocabulary")?;
            FittedList::vocabulary(&text).unwrap_or_else(|| LOADED.get(&text, of_lines))
        }
    };
    found.or_else(|problem| arguments.refuse_file("vocabulary", problem))
}

fn of_lines(bytes: &[u8]) -> std::result::Result<Vocabulary, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    // Windows programs write a byte order mark before the first entry.
    Vocabulary::new(text.strip_prefix('\u{feff}').unwrap_or(text).lines())
}
