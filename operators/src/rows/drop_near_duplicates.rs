//! `drop_near_duplicates`: keeps the first of the rows in a window that have similar signatures.
//!
//! The decision depends on the window's signatures in file order, so shuffling the window does not change it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, UInt32Type};
use datafusion::common::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, Rows};
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt, WindowTooLarge};
use crate::row_operator::{ReadColumn, RowArguments, RowOperator, RowPlan, RowScope};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "drop_near_duplicates",
    version: 1,
    category: "list",
    summary: "Drops rows that are similar to an earlier kept row of their window",
    parameters: &[
        Parameter::rows("With a signature in each row"),
        Parameter::constant("threshold", ConstantKind::Number, "The minimum share of equal numbers in similar rows")
            .or("0.8"),
        Parameter::constant("column", ConstantKind::Text, "The column of the signatures, if there are several")
            .or("NULL"),
    ],
    returns: "the kept rows, with all their columns",
    rows: Rows::Shrinks,
    docs: "Signatures are those of `minhash_signature`. Two rows are similar if at least threshold of their numbers \
           are equal at the same position, which estimates the Jaccard similarity of their texts. Of similar rows, the \
           first in file order stays. A row without a signature stays. Candidates share two bands of the signature; \
           the bands are so narrow that no pair above the threshold is missed. If rows share so much that comparing \
           them would take too long, reading fails with resources exhausted and asks for smaller windows. Rows are \
           compared within their window only, and with shuffling a window has different rows in each epoch. To find \
           duplicates across a dataset, do so beforehand.",
    source: "Broder, On the resemblance and containment of documents (1997); bands as in Leskovec et al., Mining of \
             Massive Datasets, chapter 3",
    examples: &[Example {
        sql: "SELECT id FROM drop_near_duplicates((SELECT id, minhash_signature(s || ' fish', ngram => 1) AS signature \
              FROM numbers))",
        result: "0; 1; 2; 3",
    }],
    ..Descriptor::BASE
};

/// The absence of a row.
const NONE: u32 = u32::MAX;
/// Maximum number of meetings of rows in a band, some ten seconds of work.
const MEETINGS_MAX: u64 = 1 << 31;

/// The operator `drop_near_duplicates`.
#[derive(Debug)]
pub(crate) struct DropNearDuplicates;

impl RowOperator for DropNearDuplicates {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn scope(&self) -> RowScope {
        RowScope::Window
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        let what = "a signature of minhash_signature";
        let column = arguments.column("column", what, |field| NearDuplicates::length_of(field).is_some())?;
        let threshold = arguments.number("threshold")?;
        let Some(call) = NearDuplicates::new(threshold, arguments.field(column)) else {
            return arguments.refuse("threshold", format_args!("must be above 0 and at most 1, got {threshold}"));
        };
        Ok(RowPlan {
            columns: vec![("column", column)],
            reads: vec![ReadColumn::plain(column)],
            ..RowPlan::keeping(arguments.input(), Arc::new(call))
        })
    }
}

impl MakeRows for NearDuplicates {
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let mut rows: Vec<(RowAt, Option<&[u32]>)> = Vec::with_capacity(window.len());
        let mut positions = window.positions();
        for part in &window.parts {
            let lists = part.reads[0].as_fixed_size_list();
            let (size, values) = (lists.value_length() as usize, lists.values().as_primitive::<UInt32Type>());
            for (at, row) in (0..lists.len()).zip(&mut positions) {
                let numbers = at * size..(at + 1) * size;
                let is_whole = lists.is_valid(at)
                    && values.nulls().is_none_or(|nulls| nulls.slice(numbers.start, size).null_count() == 0);
                rows.push((row, is_whole.then(|| &values.values()[numbers])));
            }
        }
        rows.sort_unstable_by_key(|(row, _)| window.place(*row));
        let signatures: Vec<_> = rows.iter().map(|(_, signature)| *signature).collect();
        let stay = self.stay(&signatures, window.bytes_max).ok_or_else(|| WindowTooLarge {
            message: "DROP_NEAR_DUPLICATES finds too many rows in one window that share parts of their signatures"
                .to_owned(),
            hint: "lower window_rows or window_bytes, or raise threshold".to_owned(),
        })?;
        let mut stay: Vec<RowAt> =
            rows.iter().zip(stay).filter_map(|((row, _), stays)| stays.then_some(*row)).collect();
        stay.sort_unstable();
        let parts = 0..window.parts.len() as u32;
        Ok(Box::new(parts.map(move |part| {
            let rows = stay.partition_point(|row| row.part < part)..stay.partition_point(|row| row.part <= part);
            Ok(Made::kept(stay[rows].to_vec()))
        })))
    }
}

/// A call of `drop_near_duplicates`, without its input.
#[derive(Clone, Copy, Debug)]
struct NearDuplicates {
    /// Numbers in a signature.
    length: usize,
    /// Equal numbers from which rows are similar.
    equal: usize,
}

impl NearDuplicates {
    fn length_of(field: &Field) -> Option<usize> {
        match field.data_type() {
            DataType::FixedSizeList(item, length) if *item.data_type() == DataType::UInt32 && *length > 0 => {
                usize::try_from(*length).ok()
            }
            _ => None,
        }
    }

    /// Makes the call over signatures of this field. Returns `None` if the threshold is not above 0 and at most 1, or
    /// the field holds no signatures.
    fn new(threshold: f64, signature: &Field) -> Option<Self> {
        let length = Self::length_of(signature).filter(|_| threshold > 0.0 && threshold <= 1.0)?;
        // The float of a threshold such as 0.8 is slightly above its decimal value.
        let equal = (threshold * length as f64 - 1e-9).ceil().max(1.0) as usize;
        Some(Self { length, equal })
    }

    /// Returns whether each row stays. Returns `None` if the index of the rows would exceed `bytes_max`, or if rows
    /// share so many parts of their signatures that comparing them would take too long.
    fn stay(&self, signatures: &[Option<&[u32]>], bytes_max: u64) -> Option<Vec<bool>> {
        // Similar rows differ in at most `apart` numbers, so with `apart + 2` bands, two bands are equal. One equal
        // band is too often a coincidence, but the number of bands is limited by the number of numbers.
        let apart = self.length - self.equal;
        let (bands, meetings_least) = if apart + 2 <= self.length { (apart + 2, 2) } else { (apart + 1, 1) };
        let band = |band: usize| -> Range<usize> { band * self.length / bands..(band + 1) * self.length / bands };
        let mut kept: Vec<&[u32]> = Vec::new();
        // The last kept row by band, and for each band of each kept row the previous row with it.
        let mut last: HashMap<u64, u32> = HashMap::new();
        let mut before: Vec<u32> = Vec::new();
        // For each kept row, the last row that shared a band with it, and the number of shared bands.
        let mut met: Vec<(usize, u32)> = Vec::new();
        let mut meetings = 0_u64;
        let mut stay = Vec::with_capacity(signatures.len());
        for (row, signature) in signatures.iter().enumerate() {
            let Some(signature) = *signature else {
                stay.push(true);
                continue;
            };
            let hashes: Vec<u64> = (0..bands)
                .map(|index| xxh3_64_with_seed(bytemuck::cast_slice(&signature[band(index)]), index as u64))
                .collect();
            let is_similar = |other: &[u32]| {
                let differing = signature.iter().zip(other).filter(|(one, other)| one != other);
                differing.take(apart + 1).count() <= apart
            };
            let mut is_duplicate = false;
            'bands: for (index, hash) in hashes.iter().enumerate() {
                let mut candidate = last.get(hash).copied().unwrap_or(NONE);
                while candidate != NONE {
                    let other = candidate as usize;
                    let (by, bands_met) = &mut met[other];
                    *bands_met = if *by == row { *bands_met + 1 } else { 1 };
                    *by = row;
                    meetings += 1;
                    if *bands_met == meetings_least && is_similar(kept[other]) {
                        is_duplicate = true;
                        break 'bands;
                    }
                    candidate = before[other * bands + index];
                }
                if meetings > MEETINGS_MAX {
                    return None;
                }
            }
            stay.push(!is_duplicate);
            if is_duplicate {
                continue;
            }
            let this = kept.len() as u32;
            for hash in hashes {
                before.push(last.insert(hash, this).unwrap_or(NONE));
            }
            kept.push(signature);
            met.push((usize::MAX, 0));
            let index_bytes = last.capacity() * size_of::<(u64, u32)>() + before.len() * size_of::<u32>();
            if index_bytes as u64 > bytes_max {
                return None;
            }
        }
        Some(stay)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::keyed::Draws;

    fn call(length: i32, threshold: f64) -> Option<NearDuplicates> {
        let item = Arc::new(Field::new_list_field(DataType::UInt32, true));
        NearDuplicates::new(threshold, &Field::new("s", DataType::FixedSizeList(item, length), true))
    }

    #[test]
    fn rows_stay_as_if_each_was_compared_with_each() {
        for (length, threshold, equal) in
            [(128, 0.8, 103), (10, 0.8, 8), (16, 0.5, 8), (7, 1.0, 7), (9, 0.1, 1), (1, 0.3, 1)]
        {
            let call = call(length, threshold).unwrap();
            assert_eq!((call.length, call.equal), (length as usize, equal));
            let mut draws = Draws::new(17, length as u64);
            let mut rows: Vec<Option<Vec<u32>>> = Vec::new();
            for row in 0..400 {
                let fresh = rows.is_empty() || draws.uniform() < 0.3;
                let from = if fresh { None } else { rows[draws.below(row) as usize].clone() };
                let mut signature = from.unwrap_or_else(|| (0..length).map(|_| draws.below(1 << 32) as u32).collect());
                for _ in 0..draws.below(length as u64 / 3 + 1) {
                    signature[draws.below(length as u64) as usize] = draws.below(1 << 32) as u32;
                }
                rows.push((draws.uniform() < 0.95).then_some(signature));
            }
            let stay = call.stay(&rows.iter().map(Option::as_deref).collect::<Vec<_>>(), 1 << 30).unwrap();
            let mut kept: Vec<&Vec<u32>> = Vec::new();
            let mut dropped = 0;
            for (row, stays) in rows.iter().zip(stay) {
                let Some(row) = row else {
                    assert!(stays);
                    continue;
                };
                let shared = |other: &Vec<u32>| row.iter().zip(other).filter(|(a, b)| a == b).count();
                assert_eq!(stays, kept.iter().all(|other| shared(other) < equal));
                if stays { kept.push(row) } else { dropped += 1 }
            }
            assert!(dropped > 50 && kept.len() > 5, "{dropped} dropped, {} kept", kept.len());
        }
    }

    #[test]
    fn rows_that_share_a_part_are_bounded_in_memory() {
        // The first half is the same in all rows.
        let mut draws = Draws::new(3, 0);
        let rows: Vec<Vec<u32>> = (0..2000)
            .map(|_| (0..64).map(|at| if at < 32 { at } else { draws.below(1 << 32) as u32 }).collect())
            .collect();
        let call = call(64, 0.8).unwrap();
        let signatures: Vec<_> = rows.iter().map(|row| Some(row.as_slice())).collect();
        let run = |bytes_max| call.stay(&signatures, bytes_max);
        assert_eq!(run(1 << 30), Some(vec![true; 2000]));
        assert_eq!(run(1 << 10), None);
    }

    #[test]
    fn thresholds_are_above_zero_and_at_most_one() {
        for threshold in [0.0, -1.0, 1.01, f64::NAN] {
            assert!(call(4, threshold).is_none());
        }
        assert!(NearDuplicates::new(0.5, &Field::new("s", DataType::Int64, true)).is_none());
    }
}
