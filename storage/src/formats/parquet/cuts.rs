//! Where row groups are cut into pieces, so that an epoch reads hardly more bytes than the files have.
//!
//! A piece is read by itself, at a time that the order of the epoch decides. Pieces of a row group share its
//! dictionaries, and the pages that a cut divides. While they are few they stay in memory (see
//! [`shared`](super::shared)), and any cut is free. Otherwise each piece reads them again, so a row group is cut only
//! where pages of all its columns begin, or few bytes are read twice, and only as often as that costs little.

use std::ops::Range;

use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::offset_index::PageLocation;

use super::shared::SHARED_BYTES_MAX;
use crate::source_file::{Cuts, RowGroup};

/// Bytes in memory of the smallest pieces. Only windows far smaller than the default have smaller ones.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes in the file of a row group that is cut anywhere. Decoding its pages again costs little.
const SMALL_GROUP_BYTES: u64 = 1 << 20;
/// Maximum number of pieces of a row group.
const PIECES_MAX: u64 = 1 << 14;
/// The part of a row group's bytes that its pieces may read again.
const READ_AGAIN_PART: u64 = 40;

/// Decides the cuts of all row groups of a dataset.
pub(super) fn cut<'a>(footers: impl Iterator<Item = &'a ParquetMetaData> + Clone, files: &mut [Vec<RowGroup>]) {
    let mut shared = 0_u64;
    for (metadata, groups) in footers.clone().zip(&mut *files) {
        for (number, group) in groups.iter_mut().enumerate() {
            if let Some(pages) = GroupPages::new(metadata, number) {
                let (cuts, read_again) = pages.cuts(group, u64::MAX);
                group.cuts = cuts;
                shared = shared.saturating_add(read_again);
            }
        }
    }
    if shared <= SHARED_BYTES_MAX {
        return;
    }
    for (metadata, groups) in footers.zip(files) {
        for (number, group) in groups.iter_mut().enumerate().filter(|(_, group)| group.cuts != Cuts::Nowhere) {
            if let Some(pages) = GroupPages::new(metadata, number) {
                group.cuts = pages.cuts(group, pages.bytes / READ_AGAIN_PART).0;
            }
        }
    }
}

/// The pages of a row group.
struct GroupPages<'a> {
    /// The pages of each column.
    columns: Vec<&'a [PageLocation]>,
    /// Bytes of all dictionaries.
    dictionaries: u64,
    /// Bytes of all columns in the file.
    bytes: u64,
}

/// A row before which a row group can be cut, and the bytes of the pages that the cut divides.
#[derive(Clone, Copy)]
struct Candidate {
    row: u64,
    divided: u64,
}

impl<'a> GroupPages<'a> {
    /// The pages of a row group, if all its columns have an offset index.
    fn new(metadata: &'a ParquetMetaData, group: usize) -> Option<Self> {
        let indexes = metadata.offset_index()?.get(group)?;
        let chunks = metadata.row_group(group).columns();
        if indexes.len() != chunks.len() || chunks.iter().any(|chunk| chunk.offset_index_offset().is_none()) {
            return None;
        }
        let columns: Vec<&[PageLocation]> = indexes.iter().map(|index| &index.page_locations()[..]).collect();
        let (mut dictionaries, mut bytes) = (0_u64, 0_u64);
        for (chunk, pages) in chunks.iter().zip(&columns) {
            let (start, length) = chunk.byte_range();
            bytes = bytes.saturating_add(length);
            dictionaries = dictionaries.saturating_add(dictionary(start, pages).map_or(0, |range| range.end - start));
        }
        Some(Self { columns, dictionaries, bytes })
    }

    /// The cuts whose pieces read at most `budget` bytes again, and the bytes that all pieces share.
    fn cuts(&self, group: &RowGroup, budget: u64) -> (Cuts, u64) {
        if self.bytes <= SMALL_GROUP_BYTES && budget >= self.bytes {
            return (Cuts::Anywhere, self.bytes);
        }
        let most = (group.bytes / PIECE_BYTES).min(PIECES_MAX);
        let candidates = self.candidates(most);
        let mut pieces = most.min(candidates.len() as u64 + 1);
        while pieces > 1 {
            let chosen = nearest_to_even(&candidates, group.rows, pieces);
            let divided: u64 = chosen.iter().map(|cut| cut.divided).sum();
            let again = self.dictionaries.saturating_mul(chosen.len() as u64).saturating_add(divided);
            if !chosen.is_empty() && again <= budget {
                let rows = chosen.iter().map(|cut| u32::try_from(cut.row).expect("a row group has 31-bit rows"));
                return (Cuts::At(rows.collect()), self.dictionaries.saturating_add(divided).min(self.bytes));
            }
            pieces /= 2;
        }
        (Cuts::Nowhere, 0)
    }

    /// Beginnings of pages of the column with most bytes: cutting its pages would cost most. There are at least as many
    /// as `pieces`, if there are so many pages.
    fn candidates(&self, pieces: u64) -> Vec<Candidate> {
        let bytes = |pages: &[PageLocation]| pages.iter().map(page_bytes).sum::<u64>();
        let Some(largest) = self.columns.iter().max_by_key(|pages| bytes(pages)) else { return Vec::new() };
        let mut rows: Vec<i64> = largest.iter().skip(1).map(|page| page.first_row_index).collect();
        rows.dedup();
        // More would not be used.
        let step = rows.len().div_ceil(4 * usize::try_from(pieces).unwrap_or(usize::MAX).max(1)).max(1);
        let rows: Vec<i64> = rows.into_iter().step_by(step).collect();
        let divided = |row: i64| {
            let at_cut = |pages: &&[PageLocation]| {
                let after = pages.partition_point(|page| page.first_row_index < row);
                let begins = pages.get(after).is_some_and(|page| page.first_row_index == row);
                let before = after.checked_sub(1).map(|before| &pages[before]);
                before.filter(|_| !begins).map_or(0, page_bytes)
            };
            self.columns.iter().map(at_cut).sum()
        };
        rows.into_iter()
            .filter(|row| *row > 0)
            .map(|row| Candidate { row: row as u64, divided: divided(row) })
            .collect()
    }
}

/// Of the candidates around the end of each even piece, the one that divides the fewest bytes.
fn nearest_to_even(candidates: &[Candidate], rows: u64, pieces: u64) -> Vec<Candidate> {
    let half = rows / pieces / 2;
    let around = |piece: u64| {
        let even = (u128::from(rows) * u128::from(piece) / u128::from(pieces)) as u64;
        let from = candidates.partition_point(|candidate| candidate.row + half < even);
        let to = candidates.partition_point(|candidate| candidate.row < even + half.max(1));
        candidates[from..to.max(from)].iter().min_by_key(|cut| (cut.divided, cut.row.abs_diff(even))).copied()
    };
    let mut chosen: Vec<Candidate> = (1..pieces).filter_map(around).filter(|cut| cut.row < rows).collect();
    chosen.dedup_by_key(|cut| cut.row);
    chosen
}

/// The bytes of the dictionary of a column chunk that begins at `start`. It lies before the first page.
pub(super) fn dictionary(start: u64, pages: &[PageLocation]) -> Option<Range<u64>> {
    let first = pages.first()?.offset as u64;
    (first > start).then_some(start..first)
}

fn page_bytes(page: &PageLocation) -> u64 {
    page.compressed_page_size as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of `rows` rows and `bytes` bytes each.
    fn pages(rows: i64, bytes: i32, end: i64) -> Vec<PageLocation> {
        let page = |first_row_index| PageLocation { offset: 0, compressed_page_size: bytes, first_row_index };
        (0..end).step_by(rows as usize).map(page).collect()
    }

    fn cuts(columns: &[&[PageLocation]], dictionaries: u64, budget: u64) -> Vec<u32> {
        let bytes = columns.iter().flat_map(|pages| *pages).map(page_bytes).sum::<u64>() + dictionaries;
        let group = RowGroup { first_row: 0, rows: 1000, bytes: 64 << 20, offset: 0, length: 0, cuts: Cuts::Nowhere };
        match (GroupPages { columns: columns.to_vec(), dictionaries, bytes }).cuts(&group, budget).0 {
            Cuts::At(rows) => rows.to_vec(),
            Cuts::Nowhere => Vec::new(),
            Cuts::Anywhere => panic!("the group is not small"),
        }
    }

    #[test]
    fn groups_are_cut_where_all_pages_begin() {
        let (wide, narrow) = (pages(100, 4 << 20, 1000), pages(200, 100, 1000));
        assert_eq!(cuts(&[&wide, &narrow], 0, 0), [200, 400, 600, 800]);
        assert_eq!(cuts(&[&narrow, &wide], 0, 500), [100, 200, 300, 400, 500, 600, 700, 800, 900]);
    }

    #[test]
    fn dictionaries_bound_the_number_of_pieces() {
        let wide = pages(100, 4 << 20, 1000);
        assert_eq!(cuts(&[&wide], 1000, 9000).len(), 9);
        assert_eq!(cuts(&[&wide], 1000, 8999), [200, 400, 600, 800]);
        assert_eq!(cuts(&[&wide], 1000, 1000), [500]);
        assert!(cuts(&[&wide], 1000, 999).is_empty());
    }

    #[test]
    fn pages_that_never_begin_together_are_divided_rarely() {
        let (one, other) = (pages(100, 4 << 20, 1000), pages(70, 2 << 20, 1000));
        assert_eq!(cuts(&[&one, &other], 0, 0), [700]);
        assert_eq!(cuts(&[&one, &other], 0, 6 << 20), [200, 400, 600, 700]);
        assert_eq!(cuts(&[&one, &other], 0, u64::MAX).len(), 9);
    }
}
