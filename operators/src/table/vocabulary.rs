//! The entries of a vocabulary, by text or by integer.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;

use super::entries::{Entries, READ_AHEAD};
use crate::text::Texts;

/// The index of each entry, and of each integer that an entry spells.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    texts: Entries,
    /// The integers, each as its eight bytes.
    integers: Entries,
    /// The index of each integer's entry. Empty if all entries are integers, whose indices are those in `integers`.
    of_integers: Vec<u32>,
}

impl Vocabulary {
    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.texts.len().max(self.integers.len())
    }

    /// A vocabulary of the values of a column, which is one of strings or of integers like `values`.
    pub(crate) fn of_values(values: &ArrayRef) -> std::result::Result<Self, String> {
        let (mut texts, mut integers) = (Entries::new(), Entries::new());
        match values.as_primitive_opt::<Int64Type>() {
            Some(values) => {
                integers = Entries::with_room(values.len())?;
                for near in values.values().chunks(READ_AHEAD) {
                    integers.read_ahead(near);
                    near.iter().for_each(|integer| _ = integers.add(&integer.to_le_bytes()));
                }
            }
            None => {
                for text in Texts::try_new(values).map_err(|error| error.to_string())?.iter().flatten() {
                    texts.add(text.as_bytes());
                }
            }
        }
        Ok(Self { texts, integers, of_integers: Vec::new() })
    }

    /// Maps each value of a column by the index of its entry. Results at null positions are arbitrary.
    pub(crate) fn places(&self, array: &ArrayRef, place: impl Fn(Option<u32>) -> i64) -> Result<Vec<i64>> {
        if array.data_type().is_integer() {
            // The cast makes an unsigned integer beyond Int64 null, and null is no entry.
            let integers = cast(array, &DataType::Int64)?;
            let integers = integers.as_primitive::<Int64Type>();
            let mut places = Vec::with_capacity(integers.len());
            for near in integers.values().chunks(READ_AHEAD) {
                self.integers.read_ahead(near);
                places.extend(near.iter().map(|integer| place(self.place_of(*integer))));
            }
            if integers.null_count() > array.null_count() {
                let beyond = (0..array.len()).filter(|row| integers.is_null(*row));
                beyond.for_each(|row| places[row] = place(None));
            }
            return Ok(places);
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

    /// The index of the entry that is this integer.
    #[inline]
    fn place_of(&self, integer: i64) -> Option<u32> {
        let at = self.integers.get(&integer.to_le_bytes())?;
        Some(if self.of_integers.is_empty() { at } else { self.of_integers[at as usize] })
    }

    pub(crate) fn new<'a>(entries: impl Iterator<Item = &'a str>) -> std::result::Result<Self, String> {
        let entries: Vec<&str> = entries.collect();
        let (mut texts, mut integers, mut of_integers) =
            (Entries::with_room_for(&entries)?, Entries::new(), Vec::new());
        for (place, entry) in (0..).zip(entries) {
            if !texts.insert(entry.as_bytes()) {
                return Err(format!("has the entry {entry:?} twice"));
            }
            if let Some(integer) = entry.parse().ok().filter(|integer: &i64| integer.to_string() == entry) {
                integers.add(&integer.to_le_bytes());
                of_integers.push(place);
            }
        }
        Ok(Self { texts, integers, of_integers })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, UInt64Array};

    use super::*;

    #[test]
    fn integers_are_found_in_lists_of_texts_and_of_integers() {
        let numbers: Vec<i64> = (0..500).map(|n| n * n * 7919 % 10_007 - 7919).collect();
        let texts: Vec<String> =
            (0..500).map(|n| if n % 3 == 0 { format!("x{n}") } else { numbers[n].to_string() }).collect();
        let of_texts = Vocabulary::new(texts.iter().map(String::as_str)).unwrap();
        let list: ArrayRef = Arc::new(Int64Array::from(numbers.clone()));
        let of_integers = Vocabulary::of_values(&list).unwrap();
        let place = |place: Option<u32>| place.map_or(-1, i64::from);
        let rows: Vec<i64> = (-9000..6000).collect();
        let expected = |list: &dyn Fn(usize) -> Option<i64>| -> Vec<i64> {
            rows.iter().map(|n| (0..500).find(|at| list(*at) == Some(*n)).map_or(-1, |at| at as i64)).collect()
        };
        let array: ArrayRef = Arc::new(Int64Array::from(rows.clone()));
        assert_eq!(of_texts.places(&array, place).unwrap(), expected(&|at| texts[at].parse().ok()));
        assert_eq!(of_integers.places(&array, place).unwrap(), expected(&|at| Some(numbers[at])));
        // Beyond Int64, integers are no entries. They become 0 in the cast, and 0 is an entry.
        assert!(numbers.contains(&0) && numbers.iter().any(|n| *n < 0));
        let beyond = |at: usize| (!at.is_multiple_of(5)).then(|| numbers[at].cast_unsigned());
        let array: ArrayRef = Arc::new(UInt64Array::from_iter((0..500).map(beyond)));
        let places = of_integers.places(&array, place).unwrap();
        for at in (0..500).filter(|at| array.is_valid(*at)) {
            assert_eq!(places[at], if numbers[at] < 0 { -1 } else { at as i64 });
        }
    }
}
