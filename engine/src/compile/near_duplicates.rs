//! `drop_near_duplicates`: the rows of a window that are similar to none before them.

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter;
use arrow::datatypes::UInt32Type;
use forebay_operators::near_duplicates::NearDuplicates as Call;

use super::changes::Made;
use super::stage::SourceRows;
use crate::error::{Error, Result};

/// The call, and the column of its input that holds signatures.
pub(crate) struct NearDuplicates {
    call: Call,
    column: usize,
}

impl NearDuplicates {
    pub(crate) fn new(call: Call, column: usize) -> Self {
        Self { call, column }
    }

    /// The signatures first, then the others in order.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        std::iter::once(self.column).chain(made.iter().copied().filter(|&column| column != self.column)).collect()
    }

    /// Whether each row stays, over all of `passed`; which of two similar ones does is decided by their order in the files.
    /// `None` where finding out takes more than `bytes_max`, or too long.
    pub(crate) fn stay(&self, passed: &[SourceRows], bytes_max: u64) -> Option<Vec<bool>> {
        let mut places = Vec::new();
        for rows in passed {
            let lists = rows.batch.column(0).as_fixed_size_list();
            let (size, values) = (lists.value_length() as usize, lists.values().as_primitive::<UInt32Type>());
            for at in 0..lists.len() {
                let numbers = at * size..(at + 1) * size;
                let is_whole = lists.is_valid(at)
                    && values.nulls().is_none_or(|nulls| nulls.slice(numbers.start, size).null_count() == 0);
                let signature = is_whole.then(|| &values.values()[numbers]);
                places.push(((rows.origin(at), rows.sample_ids.value(at)), places.len(), signature));
            }
        }
        places.sort_unstable_by_key(|(order, ..)| *order);
        let signatures: Vec<_> = places.iter().map(|(.., signature)| *signature).collect();
        let stays = self.call.stay(&signatures, bytes_max)?;
        let mut stay = vec![false; stays.len()];
        for ((_, index, _), stays) in places.iter().zip(stays) {
            stay[*index] = stays;
        }
        Some(stay)
    }

    /// The rows of `input` that stay, as the next of `stay` say, with the columns `made`.
    pub(crate) fn make(
        &self,
        input: &RecordBatch,
        made: &[usize],
        stay: &mut impl Iterator<Item = bool>,
    ) -> Result<Made> {
        let stay = BooleanArray::from(stay.take(input.num_rows()).collect::<Vec<_>>());
        let needed = self.needs(made);
        let column = |column: &usize| {
            let at = needed.iter().position(|needed| needed == column);
            let at = at.ok_or_else(|| Error::internal("a row that stays lacks a column"))?;
            filter(input.column(at), &stay).map_err(|error| Error::internal(format!("cannot drop rows: {error}")))
        };
        let parents: Vec<u32> = stay.values().set_indices_u32().collect();
        Ok(Made {
            columns: made.iter().map(column).collect::<Result<_>>()?,
            ordinals: vec![None; parents.len()],
            parents,
        })
    }
}
