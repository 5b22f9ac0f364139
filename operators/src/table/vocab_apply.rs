//! `vocab_apply`: maps values to their indices in a given vocabulary.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entries::Entries;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::files::Loaded;
use crate::operator::{Arguments, Operator};
use crate::text::Texts;

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
        ),
        Parameter::constant("start", ConstantKind::Integer, "The result for the first entry").or("0"),
        Parameter::constant("other", ConstantKind::Integer, "The result for values that are not an entry").or("-1"),
    ],
    returns: "Int64",
    docs: "Strings are compared byte by byte. An integer matches the entry that spells it. A vocabulary with a \
           repeated entry is refused. A file is UTF-8 with lines that end with \\n or \\r\\n, and an empty line is an \
           entry. The file is read, and identifies the query, like with `tokenize`. Vocabularies are constants: fit \
           them over the dataset beforehand. Null in, null out.",
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
        let (start, entries) = (arguments.integer("start")?, vocabulary(arguments)?.len());
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
        Err(_) => LOADED.get(&arguments.text("vocabulary")?, |bytes| {
            let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
            // Windows programs write a byte order mark before the first entry.
            Vocabulary::new(text.strip_prefix('\u{feff}').unwrap_or(text).lines())
        }),
    };
    found.or_else(|problem| arguments.refuse_file("vocabulary", problem))
}

/// The index of each entry, and of each integer that an entry spells.
#[derive(Debug)]
pub(super) struct Vocabulary {
    texts: Entries,
    integers: HashMap<i64, u32, BuildHasherDefault<Xxh3>>,
}

impl Vocabulary {
    /// Returns the number of entries.
    fn len(&self) -> usize {
        self.texts.len()
    }

    /// Maps each value of a column by the index of its entry. Results at null positions are arbitrary.
    pub(super) fn places(&self, array: &ArrayRef, place: impl Fn(Option<u32>) -> i64) -> Result<Vec<i64>> {
        if array.data_type().is_integer() {
            // The cast makes an unsigned integer beyond Int64 null, and null is no entry.
            let integers = cast(array, &DataType::Int64)?;
            let integers = integers.as_primitive::<Int64Type>().iter();
            return Ok(integers.map(|n| place(n.and_then(|n| self.integers.get(&n).copied()))).collect());
        }
        if let Some(texts) = array.as_string_opt::<i32>() {
            let bytes = texts.value_data();
            let ends = texts.value_offsets().windows(2);
            return Ok(ends.map(|ends| place(self.texts.get(&bytes[ends[0] as usize..ends[1] as usize]))).collect());
        }
        if let Some(texts) = array.as_string_view_opt() {
            let bytes = |row| -> &[u8] { texts.value(row).as_bytes() };
            return Ok((0..texts.len()).map(|row| place(self.texts.get(bytes(row)))).collect());
        }
        let texts = Texts::try_new(array)?;
        Ok(texts.iter().map(|text| place(text.and_then(|text| self.texts.get(text.as_bytes())))).collect())
    }

    pub(super) fn new<'a>(entries: impl Iterator<Item = &'a str>) -> std::result::Result<Self, String> {
        let entries: Vec<&str> = entries.collect();
        let mut vocabulary = Self { texts: Entries::with_room_for(&entries)?, integers: HashMap::default() };
        for (place, entry) in (0..).zip(entries) {
            if !vocabulary.texts.insert(entry.as_bytes()) {
                return Err(format!("has the entry {entry:?} twice"));
            }
            if let Some(integer) = entry.parse().ok().filter(|integer: &i64| integer.to_string() == entry) {
                vocabulary.integers.insert(integer, place);
            }
        }
        Ok(vocabulary)
    }
}

/// A hasher for integers. The standard one resists attackers that choose the keys, at five times the cost. Here the
/// vocabulary is given.
#[derive(Debug, Default)]
struct Xxh3(u64);

impl Hasher for Xxh3 {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// Ignores the mark at the end of a string. A key has only one part.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
