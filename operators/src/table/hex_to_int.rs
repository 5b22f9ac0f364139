//! `hex_to_int`: hexadecimal text to integers.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err};

use crate::descriptor::{Commutes, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::Texts;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hex_to_int",
    version: 1,
    category: "category",
    summary: "Reads hexadecimal text as an integer",
    parameters: &[Parameter::input("text", TypeClass::Hexadecimal, "The digits, such as Criteo's `68fd1e64`")],
    returns: "Int64",
    determinism: Determinism::Deterministic,
    rows: Rows::OneToOne,
    nulls: Nulls::Kept,
    size_ratio: 0.7,
    commutes: Commutes::NONE,
    docs: "One to sixteen digits in either case, without sign or prefix. Sixteen digits are the bits of the integer, so from \
           8000000000000000 on it is negative. Any other text, the empty one too, is an error: `nullif(text, '')` makes a \
           null of it. Null in, null out.",
    source: "TorchRec's and NVTabular's preprocessing of Criteo, `int(text, 16)`",
    examples: &[Example { sql: "hex_to_int('68fd1e64')", result: "1761418852" }],
};

/// The operator `hex_to_int`.
#[derive(Debug)]
pub(crate) struct HexToInt;

impl Operator for HexToInt {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Ok(Field::new("id", DataType::Int64, arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.array("text")?;
        if let Some(integers) = array.as_string_opt::<i32>().and_then(all_eight) {
            return Ok(Arc::new(Int64Array::try_new(integers.into(), array.nulls().cloned())?));
        }
        let texts = Texts::try_new(array)?;
        let mut integers = Vec::with_capacity(texts.len());
        for text in texts.iter() {
            integers.push(match text.map(|text| (text, parse(text.as_bytes()))) {
                Some((_, Some(integer))) => integer as i64,
                Some((text, None)) => {
                    let start: String = text.chars().take(20).collect();
                    return exec_err!("hex_to_int: {start:?} is not one to sixteen hexadecimal digits");
                }
                None => 0,
            });
        }
        Ok(Arc::new(Int64Array::try_new(integers.into(), texts.nulls().cloned())?))
    }
}

/// The integers of a column in which every text is eight digits, and what lies under nulls nothing or eight digits.
fn all_eight(texts: &StringArray) -> Option<Vec<i64>> {
    let (bytes, mut integers) = (texts.value_data(), Vec::with_capacity(texts.len()));
    // Whether anything was else, looked at once in the end: a branch in each step would be the dearest part of it.
    let mut is_good = true;
    for ends in texts.value_offsets().windows(2) {
        let digits = bytes[ends[0] as usize..ends[1] as usize].first_chunk::<8>();
        let is_eight = digits.is_some() && ends[1] - ends[0] == 8;
        let (integer, is_parsed) = eight(digits.copied().unwrap_or([b'0'; 8]));
        is_good &= is_parsed && (is_eight || ends[0] == ends[1]);
        integers.push(i64::from(integer));
    }
    let lengths = texts.value_offsets().windows(2).map(|ends| ends[1] - ends[0]);
    let is_hidden = |(length, row)| length > 0 || texts.is_null(row);
    (is_good && lengths.zip(0..).all(is_hidden)).then_some(integers)
}

fn parse(digits: &[u8]) -> Option<u64> {
    if let Ok(digits) = digits.try_into() {
        let (integer, is_good) = eight(digits);
        return is_good.then_some(u64::from(integer));
    }
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// Eight digits at once, since Criteo's columns have nothing else: each step works on all bytes of a word. Also whether
/// they are digits; if not, the number is of no use.
#[inline]
fn eight(digits: [u8; 8]) -> (u32, bool) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_be_bytes(digits);
    // For a byte b of 0 to 127, bit 7 of (b + 128 - low) says whether b is at least low.
    let at_least = |bytes: u64, low: u64| (bytes | (ONES * 0x80)) - ONES * low;
    let lower = word | (ONES * 0x20);
    let is_number = at_least(word, 0x30) & !at_least(word, 0x3A);
    let is_letter = at_least(lower, 0x61) & !at_least(lower, 0x67);
    let is_good = (word | !(is_number | is_letter)) & (ONES * 0x80) == 0;
    // A letter's low four bits are its value less nine.
    let nibbles = (word & (ONES * 0x0F)).wrapping_add(9 * ((is_letter >> 7) & ONES));
    let pairs = (nibbles | (nibbles >> 4)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs | (pairs >> 8)) & 0x0000_FFFF_0000_FFFF;
    ((fours | (fours >> 16)) as u32, is_good)
}
