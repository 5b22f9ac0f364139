//! `pack`: the documents of a whole window, in the window's order, to sequences of one length.

use std::ops::Range;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int32Type;
use forebay_operators::pack::{Layout, Pack};

use super::stage::SourceRows;
use crate::error::{Error, Result};

/// Tokens that are put together at a time, so that offsets and arrays stay small.
const TOKENS: usize = 1 << 20;

/// Documents waiting for the rest of their window, and how they lie in sequences.
pub(crate) struct Packing<'a> {
    pack: &'a Pack,
    documents: Vec<&'a [i32]>,
    /// Where each document comes from: which rows, and which of them.
    places: Vec<(&'a SourceRows, usize)>,
    layout: Layout,
}

/// Sequences, not yet with identities.
pub(crate) struct Sequences {
    pub(crate) columns: Vec<ArrayRef>,
    /// Of the row that the first token of each comes from: random key, origin, and the token's place in it.
    pub(crate) firsts: Vec<(u64, u64, u64)>,
}

impl<'a> Packing<'a> {
    /// Lays out the documents of `waiting`, ordered by `order` of a row's random key.
    pub(crate) fn new(pack: &'a Pack, waiting: &'a [SourceRows], order: impl Fn(u64) -> u64) -> Self {
        let rows = waiting.iter().flat_map(|rows| (0..rows.sample_ids.len()).map(move |at| (rows, at)));
        let mut places: Vec<(&SourceRows, usize)> = rows.collect();
        places.sort_by_cached_key(|(rows, at)| {
            (order(rows.random_keys.value(*at)), rows.origin(*at), rows.sample_ids.value(*at))
        });
        let documents: Vec<&[i32]> = places.iter().map(|(rows, at)| document(&rows.batch, *at)).collect();
        let layout = Layout::new(pack, documents.iter().map(|document| document.len()));
        Self { pack, documents, places, layout }
    }

    /// The sequences in parts that are not too large.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (sequences, step) = (self.layout.len(), (TOKENS / self.pack.length).max(1));
        (0..sequences).step_by(step).map(move |first| first..(first + step).min(sequences))
    }

    /// Some sequences, with the columns `made` of tokens and bounds.
    pub(crate) fn sequences(&self, part: &Range<usize>, made: &[usize]) -> Result<Sequences> {
        let column = |column: &usize| match column {
            0 => Ok(self.layout.tokens(self.pack, &self.documents, part.clone())),
            1 => Ok(self.layout.bounds(part.clone())),
            other => Err(Error::internal(format!("pack makes no column {other}"))),
        };
        let first = |sequence: usize| {
            let piece = self.layout.pieces(sequence)[0];
            let (rows, at) = self.places[piece.document];
            (rows.random_keys.value(at), rows.origin(at), piece.start as u64)
        };
        Ok(Sequences {
            columns: made.iter().map(column).collect::<Result<_>>()?,
            firsts: part.clone().map(first).collect(),
        })
    }
}

/// The tokens of a row; the plan below has made them int32 without nulls.
fn document(batch: &RecordBatch, row: usize) -> &[i32] {
    let list = batch.column(0).as_list::<i32>();
    let offsets = list.value_offsets();
    &list.values().as_primitive::<Int32Type>().values()[offsets[row] as usize..offsets[row + 1] as usize]
}
