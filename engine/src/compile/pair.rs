//! `mixup` and `cutmix`: beside each row of a window, the columns of another.

use arrow::array::{Array, ArrayRef, UInt64Array};
use arrow::compute::interleave;
use forebay_operators::random_key;
use std::sync::Arc;

use super::changes::Made;
use super::stage::SourceRows;
use crate::error::{Error, Result};

/// Splits the hash space of the order of partners from that of others.
const PARTNER_DOMAIN: u64 = 0x7061_6972_0000;

/// What is made of so many columns: these, then those of the partner, then the partner's random key.
pub(crate) struct Pair {
    columns: usize,
    /// Which layer it is: another has other partners.
    layer: usize,
}

impl Pair {
    pub(crate) fn new(columns: usize, layer: usize) -> Self {
        Self { columns, layer }
    }

    /// The columns of the input, ascending, that the columns `made` are made of.
    pub(crate) fn needs(&self, made: &[usize]) -> Vec<usize> {
        let of_rows = made.iter().filter(|&&column| column < 2 * self.columns);
        let mut needed: Vec<usize> = of_rows.map(|column| column % self.columns).collect();
        needed.sort_unstable();
        needed.dedup();
        needed
    }
}

/// The rows of a window, each with its partner.
pub(crate) struct Pairs<'a> {
    pair: &'a Pair,
    passed: &'a [SourceRows],
    /// Of each row of each part of the window: part and row of its partner.
    partners: Vec<Vec<(usize, usize)>>,
}

impl<'a> Pairs<'a> {
    /// Puts the rows in a random cycle, in which each is the partner of the one before it.
    pub(crate) fn new(pair: &'a Pair, passed: &'a [SourceRows]) -> Self {
        let mut partners: Vec<Vec<(usize, usize)>> =
            passed.iter().map(|rows| vec![(0, 0); rows.sample_ids.len()]).collect();
        let rows = passed.iter().enumerate().flat_map(|(part, rows)| {
            (0..rows.sample_ids.len()).map(move |at| {
                let order = random_key(rows.random_keys.value(at), PARTNER_DOMAIN, pair.layer as u64);
                (order, rows.origin(at), rows.sample_ids.value(at), part, at)
            })
        });
        let mut cycle: Vec<_> = rows.collect();
        cycle.sort_unstable();
        for (index, (.., part, at)) in cycle.iter().enumerate() {
            let (.., partner_part, partner_at) = cycle[(index + 1) % cycle.len()];
            partners[*part][*at] = (partner_part, partner_at);
        }
        Self { pair, passed, partners }
    }

    /// The columns `made` for one part of the window.
    pub(crate) fn make(&self, part: usize, made: &[usize]) -> Result<Made> {
        let (needed, partners) = (self.pair.needs(made), &self.partners[part]);
        let place =
            |column: usize| needed.binary_search(&column).map_err(|_| Error::internal("a pair of rows lacks a column"));
        let column = |&column: &usize| -> Result<ArrayRef> {
            if column < self.pair.columns {
                return Ok(Arc::clone(self.passed[part].batch.column(place(column)?)));
            }
            if column == 2 * self.pair.columns {
                let key = |&(part, at): &(usize, usize)| self.passed[part].random_keys.value(at);
                return Ok(Arc::new(UInt64Array::from_iter_values(partners.iter().map(key))));
            }
            let at = place(column - self.pair.columns)?;
            let parts: Vec<&dyn Array> = self.passed.iter().map(|rows| rows.batch.column(at).as_ref()).collect();
            interleave(&parts, partners).map_err(|error| Error::internal(format!("cannot pair rows: {error}")))
        };
        Ok(Made {
            columns: made.iter().map(column).collect::<Result<_>>()?,
            parents: (0..partners.len() as u32).collect(),
            ordinals: vec![None; partners.len()],
        })
    }
}
