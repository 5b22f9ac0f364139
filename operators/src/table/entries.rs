//! The index of each text in a vocabulary: a hash table that is read for every row.
//!
//! Categories are short. The table stores up to eight bytes in the slot itself and compares them as one number, so a
//! lookup touches one cache line.

use std::hint::black_box;

use xxhash_rust::xxh3::xxh3_64;

/// A hash table with open addressing and linear probing, at most three quarters full.
#[derive(Debug)]
pub(crate) struct Entries {
    slots: Vec<EntrySlot>,
    /// The right shift from a product to a slot number.
    shift: u32,
    /// The number of texts.
    len: usize,
    /// The long texts, concatenated, and their starts by index, up to the last long one.
    long: Vec<u8>,
    starts: Vec<usize>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct EntrySlot {
    /// The bytes of a short text, or the hash of a long one.
    key: u64,
    /// Length in bytes.
    len: u32,
    place: u32,
}

const EMPTY: u32 = u32::MAX;
const SHORT: usize = 8;
const SLOTS_LEAST: usize = 64;
/// Integers whose slots are [read ahead](Entries::read_ahead) together.
pub(crate) const READ_AHEAD: usize = 64;

/// The most texts of a table.
pub(crate) const ENTRIES_MAX: usize = EMPTY as usize - 1;

impl Entries {
    /// Makes an empty table with room for these texts.
    pub(crate) fn with_room_for(texts: &[&str]) -> Result<Self, String> {
        if texts.iter().any(|text| u32::try_from(text.len()).is_err()) {
            return Err("has an entry of 4 GiB or more".to_owned());
        }
        Self::with_room(texts.len())
    }

    /// Makes an empty table with room for so many texts.
    pub(crate) fn with_room(texts: usize) -> Result<Self, String> {
        match texts > ENTRIES_MAX {
            true => Err("has more than 2^32 - 2 entries".to_owned()),
            false => Ok(Self::with_slots((texts * 4 / 3 + 2).next_power_of_two())),
        }
    }

    /// Makes an empty table that grows.
    pub(crate) fn new() -> Self {
        Self::with_slots(SLOTS_LEAST)
    }

    fn with_slots(slots: usize) -> Self {
        let slots = vec![EntrySlot { key: 0, len: 0, place: EMPTY }; slots];
        Self { shift: 64 - slots.len().trailing_zeros(), slots, len: 0, long: Vec::new(), starts: Vec::new() }
    }

    /// Adds a text with the next index. Returns `false` if the table has it already.
    pub(crate) fn insert(&mut self, text: &[u8]) -> bool {
        let before = self.len();
        self.add(text) as usize == before
    }

    /// Adds a text of less than 4 GiB if it is absent. Returns its index. The table holds [`ENTRIES_MAX`] texts.
    #[inline]
    pub(crate) fn add(&mut self, text: &[u8]) -> u32 {
        let key = key(text);
        let (at, found) = self.find(text, key);
        found.unwrap_or_else(|| self.add_at(at, text, key))
    }

    /// Reads the slots at which the searches for these integers begin, each of which is a text of its eight bytes.
    ///
    /// A large table is not in the cache. The searches that follow would wait for one slot after the other. These reads
    /// do not depend on each other, so the processor waits for many at a time.
    #[inline]
    pub(crate) fn read_ahead(&self, integers: &[i64]) {
        let key = |integer: &i64| u64::from_le_bytes(integer.to_le_bytes());
        let places = integers.iter().map(|integer| self.slots[self.first_slot(key(integer), SHORT)].place);
        black_box(places.fold(0, |all, place| all ^ place));
    }

    fn add_at(&mut self, mut at: usize, text: &[u8], key: u64) -> u32 {
        if (self.len() + 1) * 4 > self.slots.len() * 3 {
            self.grow();
            at = self.find(text, key).0;
        }
        let place = self.len;
        self.slots[at] = EntrySlot { key, len: text.len() as u32, place: place as u32 };
        self.len += 1;
        if text.len() > SHORT {
            self.starts.resize(place, 0);
            self.starts.push(self.long.len());
            self.long.extend_from_slice(text);
        }
        place as u32
    }

    fn grow(&mut self) {
        let larger = Self::with_slots(self.slots.len() * 2);
        let slots = std::mem::replace(&mut self.slots, larger.slots);
        self.shift = larger.shift;
        // The texts differ, so none is compared.
        for slot in slots.into_iter().filter(|slot| slot.place != EMPTY) {
            let mut at = self.first_slot(slot.key, slot.len as usize);
            while self.slots[at].place != EMPTY {
                at = (at + 1) & (self.slots.len() - 1);
            }
            self.slots[at] = slot;
        }
    }

    /// The slot at which the search for a text begins.
    #[inline]
    fn first_slot(&self, key: u64, len: usize) -> usize {
        let mixed = (key ^ (key >> 32) ^ len as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> self.shift) as usize
    }

    /// Returns the number of texts.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the index of a text.
    #[inline]
    pub(crate) fn get(&self, text: &[u8]) -> Option<u32> {
        self.find(text, key(text)).1
    }

    /// Returns the slots of the texts, by index.
    pub(crate) fn in_order(&self) -> Vec<EntrySlot> {
        let mut slots = vec![EntrySlot { key: 0, len: 0, place: EMPTY }; self.len()];
        for slot in self.slots.iter().filter(|slot| slot.place != EMPTY) {
            slots[slot.place as usize] = *slot;
        }
        slots
    }

    /// Returns the first eight bytes of the text in a slot as a number that sorts like them. Zeros follow a shorter
    /// text.
    pub(crate) fn beginning(&self, slot: &EntrySlot) -> u64 {
        let mut short = [0; SHORT];
        let text = self.text(slot, &mut short);
        match text.first_chunk() {
            Some(first) => u64::from_be_bytes(*first),
            None => u64::from_be_bytes(slot.key.to_le_bytes()),
        }
    }

    /// Returns the bytes of the text in a slot. Those of a short one are copied to `short`.
    pub(crate) fn text<'a>(&'a self, slot: &EntrySlot, short: &'a mut [u8; SHORT]) -> &'a [u8] {
        let len = slot.len as usize;
        if len > SHORT {
            return &self.long[self.starts[slot.place as usize]..][..len];
        }
        *short = slot.key.to_le_bytes();
        &short[..len]
    }

    /// The bytes of memory that the table has reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<EntrySlot>()
            + self.long.capacity()
            + self.starts.capacity() * size_of::<usize>()
    }

    /// Returns the slot of a text, and its index. An absent text has the slot in which it would be inserted.
    #[inline]
    fn find(&self, text: &[u8], key: u64) -> (usize, Option<u32>) {
        let mut at = self.first_slot(key, text.len());
        loop {
            let slot = &self.slots[at];
            if slot.place == EMPTY {
                return (at, None);
            }
            if slot.key == key && slot.len as usize == text.len() && (text.len() <= SHORT || self.is_at(slot, text)) {
                return (at, Some(slot.place));
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    fn is_at(&self, slot: &EntrySlot, text: &[u8]) -> bool {
        self.long[self.starts[slot.place as usize]..].starts_with(text)
    }
}

#[inline]
fn key(text: &[u8]) -> u64 {
    if let Ok(eight) = <[u8; SHORT]>::try_from(text) {
        return u64::from_le_bytes(eight);
    }
    if text.len() > SHORT {
        return xxh3_64(text);
    }
    text.iter().rev().fold(0, |key, byte| key << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_text_is_found_and_no_other() {
        let long = "x".repeat(70);
        let texts: Vec<String> = (0..5000)
            .map(|n| match n % 5 {
                0 => format!("{n:08x}"),
                1 => n.to_string(),
                2 => format!("{long}{n}"),
                3 => format!("{n}\0"),
                _ => format!("{n:b}é"),
            })
            .chain(["".to_owned(), "\0".to_owned(), "\0\0".to_owned()])
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut entries = Entries::with_room_for(&texts).unwrap();
        for text in &texts {
            assert!(entries.insert(text.as_bytes()), "{text:?}");
        }
        for (place, text) in texts.iter().enumerate() {
            assert_eq!(entries.get(text.as_bytes()), Some(place as u32), "{text:?}");
            assert!(!entries.insert(text.as_bytes()));
        }
        for absent in ["x", "00000001\0", "\0\0\0", "99999999", &long] {
            assert_eq!(entries.get(absent.as_bytes()), None, "{absent:?}");
        }
        assert_eq!(Entries::with_room_for(&[]).unwrap().get(b"x"), None);
        let mut grown = Entries::new();
        for (place, text) in texts.iter().enumerate() {
            assert_eq!(grown.add(text.as_bytes()), place as u32, "{text:?}");
            assert_eq!(grown.add(text.as_bytes()), place as u32, "{text:?} again");
        }
        for (text, slot) in texts.iter().zip(grown.in_order()) {
            assert_eq!(grown.get(text.as_bytes()), entries.get(text.as_bytes()));
            assert_eq!(grown.text(&slot, &mut [0; SHORT]), text.as_bytes());
        }
        let mut sorted: Vec<_> =
            texts.iter().zip(grown.in_order()).map(|(text, slot)| (text.as_bytes(), slot)).collect();
        sorted.sort_by_key(|(text, _)| *text);
        assert!(sorted.is_sorted_by_key(|(_, slot)| grown.beginning(slot)));
    }
}
