//! The entries of a vocabulary, by text or by integer.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::entries::Entries;
use crate::text::Texts;

/// The index of each entry, and of each integer that an entry spells.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    texts: Entries,
    integers: HashMap<i64, u32, BuildHasherDefault<Xxh3>>,
}

impl Vocabulary {
    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.texts.len().max(self.integers.len())
    }

    /// A vocabulary of the values of a column, which is one of strings or of integers like `values`.
    pub(crate) fn of_values(values: &ArrayRef) -> std::result::Result<Self, String> {
        match values.as_primitive_opt::<Int64Type>() {
            Some(integers) => {
                let integers = integers.values().iter().copied().zip(0..).collect();
                Ok(Self { texts: Entries::with_room_for(&[])?, integers })
            }
            None => {
                let mut texts = Entries::new();
                for text in Texts::try_new(values).map_err(|error| error.to_string())?.iter().flatten() {
                    texts.add(text.as_bytes());
                }
                Ok(Self { texts, integers: HashMap::default() })
            }
        }
    }

    /// Maps each value of a column by the index of its entry. Results at null positions are arbitrary.
    pub(crate) fn places(&self, array: &ArrayRef, place: impl Fn(Option<u32>) -> i64) -> Result<Vec<i64>> {
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

    pub(crate) fn new<'a>(entries: impl Iterator<Item = &'a str>) -> std::result::Result<Self, String> {
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
