//! `hex_to_int`: parses hexadecimal text as integers.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err};

use crate::descriptor::{Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::Texts;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hex_to_int",
    version: 1,
    category: "category",
    summary: "Parses hexadecimal text as an integer",
    parameters: &[Parameter::input("text", TypeClass::Hexadecimal, "The digits, such as Criteo's `68fd1e64`")],
    returns: "Int64",
    docs: "The text has one to sixteen digits in either case, without sign or prefix. Sixteen digits are the bits of \
           the integer, so the result is negative from 8000000000000000. Any other text, including the empty one, is \
           an error; `nullif(text, '')` turns it into null. Null in, null out.",
    source: "TorchRec's and NVTabular's preprocessing of Criteo, `int(text, 16)`",
    examples: &[Example { sql: "hex_to_int('68fd1e64')", result: "1761418852" }],
    takes_views: true,
    ..Descriptor::BASE
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
        let integers = match array.as_string_view_opt() {
            Some(views) => all_eight_in(views),
            None => array.as_string_opt::<i32>().and_then(all_eight),
        };
        if let Some(integers) = integers {
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

/// Parses a column whose texts all have eight digits; at null positions they may be empty. Otherwise returns `None`.
fn all_eight(texts: &StringArray) -> Option<Vec<i64>> {
    let (bytes, offsets) = (texts.value_data(), texts.value_offsets());
    let mut integers = Vec::with_capacity(texts.len());
    let mut words = [0; 128];
    for (chunk, first) in offsets[1..].chunks(words.len()).zip((0..).step_by(words.len())) {
        let mut start = offsets[first] as usize;
        for ((word, end), row) in words.iter_mut().zip(chunk).zip(first..) {
            let text = &bytes[start..*end as usize];
            *word = match <[u8; 8]>::try_from(text) {
                Ok(digits) => u64::from_be_bytes(digits),
                Err(_) if text.is_empty() && texts.is_null(row) => 0x3030_3030_3030_3030,
                Err(_) => return None,
            };
            start = *end as usize;
        }
        // Check for digits once a chunk, so that the loop is vectorized.
        let mut wrong = 0;
        integers.extend(words[..chunk.len()].iter().map(|word| {
            let (integer, is_wrong) = eight(*word);
            wrong |= is_wrong;
            i64::from(integer)
        }));
        if wrong != 0 {
            return None;
        }
    }
    Some(integers)
}

/// Like `all_eight`, for views. A view holds a text of eight bytes inline, after four bytes of length.
fn all_eight_in(texts: &StringViewArray) -> Option<Vec<i64>> {
    const CHUNK: usize = 64;
    let valid = texts.nulls().map(|nulls| nulls.inner().bit_chunks());
    let mut valid = valid.iter().flat_map(|bits| bits.iter_padded());
    let mut integers = Vec::with_capacity(texts.len());
    for views in texts.views().chunks(CHUNK) {
        let (mut empty, mut wrong) = (0_u64, 0);
        let mut words = [0; CHUNK];
        for (at, (word, view)) in words.iter_mut().zip(views).enumerate() {
            let length = *view as u32;
            empty |= u64::from(length == 0) << at;
            wrong |= u64::from(length != 0 && length != 8);
            *word = if length == 0 { 0x3030_3030_3030_3030 } else { ((*view >> 32) as u64).swap_bytes() };
        }
        integers.extend(words[..views.len()].iter().map(|word| {
            let (integer, is_wrong) = eight(*word);
            wrong |= is_wrong;
            i64::from(integer)
        }));
        // Only a null may be empty.
        if wrong != 0 || empty & valid.next().unwrap_or(u64::MAX) != 0 {
            return None;
        }
    }
    Some(integers)
}

fn parse(digits: &[u8]) -> Option<u64> {
    if let Ok(digits) = <[u8; 8]>::try_from(digits) {
        let (integer, wrong) = eight(u64::from_be_bytes(digits));
        return (wrong == 0).then_some(u64::from(integer));
    }
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | u64::from(char::from(*digit).to_digit(16)?)))
}

/// Parses eight digits at once, the first in the highest byte. Criteo's columns have only such texts. Each step works
/// on all bytes of a word. The second number is 0 if all bytes are digits.
#[inline(always)]
fn eight(word: u64) -> (u32, u64) {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // For a byte b from 0 to 127, bit 7 of (b + 128 - low) is set if b is at least low.
    let at_least = |bytes: u64, low: u64| (bytes | (ONES * 0x80)) - ONES * low;
    let lower = word | (ONES * 0x20);
    let is_number = at_least(word, 0x30) & !at_least(word, 0x3A);
    let is_letter = at_least(lower, 0x61) & !at_least(lower, 0x67);
    let wrong = (word | !(is_number | is_letter)) & (ONES * 0x80);
    // A letter's low four bits are its value minus nine.
    let nibbles = (word & (ONES * 0x0F)).wrapping_add(((is_letter >> 7) & ONES) * 9);
    let pairs = (nibbles | (nibbles >> 4)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs | (pairs >> 8)) & 0x0000_FFFF_0000_FFFF;
    ((fours | (fours >> 16)) as u32, wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Draws;
    use crate::testing::{column, sql};

    /// Draws texts of eight digits, with nulls and a few other texts.
    fn texts(draws: &mut Draws, others: u64) -> Vec<Option<String>> {
        let text = |draws: &mut Draws| match draws.below(1000) {
            other if other < others => ["", "f", "Ab3", "0123456789abcdef", "123456789"][other as usize % 5].to_owned(),
            _ => format!("{:08x}", draws.below(1 << 32)),
        };
        (0..draws.below(300)).map(|_| (draws.below(10) > 0).then(|| text(draws))).collect()
    }

    #[test]
    fn views_give_what_texts_give() {
        for seed in 0..200 {
            let mut draws = Draws::new(seed, 17);
            let texts = texts(&mut draws, 5 * (seed % 2));
            let from = draws.below(texts.len() as u64 + 1) as usize;
            let plain = StringArray::from(texts.clone()).slice(from, texts.len() - from);
            let views = StringViewArray::from_iter(texts).slice(from, plain.len());
            let integers = |texts| sql("hex_to_int(text)", vec![texts]).map(|(_, integers)| integers);
            assert_eq!(integers(column("text", views)), integers(column("text", plain)), "seed {seed}");
        }
    }

    #[test]
    fn an_empty_text_is_refused_in_views_too() {
        for texts in [vec![Some("0000000a"), Some("")], vec![None, Some("")], vec![Some("0000000g")]] {
            let views = column("text", StringViewArray::from_iter(texts));
            assert!(sql("hex_to_int(text)", vec![views]).is_err());
        }
        let views = StringViewArray::from_iter([None, Some("0000000a")]);
        assert_eq!(all_eight_in(&views), Some(vec![0, 10]));
        assert_eq!(all_eight_in(&StringViewArray::from(vec!["0000000a", "", "b"])), None);
    }
}
