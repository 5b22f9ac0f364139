//! The files of a snapshot, their row groups, and their row ranges.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::artifact::ContentDigest;

/// Maximum bytes of a range, so that a batch's 32-bit offsets can address it.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// The absolute path, or the URL if the file is not on a local disk.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The store's version of the content, if it has one.
    pub etag: Option<String>,
    /// The modification time, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The `sample_id` of the file's first row.
    pub first_sample_id: u64,
    /// The number of rows.
    pub rows: u64,
    /// The row groups, in order.
    pub groups: Vec<RowGroup>,
    /// For a file of an artifact. It identifies the content, so path, version and time do not.
    pub content: Option<FileContent>,
}

/// What an artifact's manifest says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileContent {
    /// The digest of the content.
    pub digest: ContentDigest,
    /// The number of rows.
    pub rows: u64,
    /// The number of folders on the way from the artifact's folder to the file.
    pub folders: u32,
}

/// Rows that are stored together: a Parquet row group, a block of text, one media file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// The row number in the file of the group's first row.
    pub first_row: u64,
    /// The number of rows.
    pub rows: u64,
    /// Approximate bytes of all columns in memory, according to the file.
    pub bytes: u64,
    /// The offset of the group in the file; zero for formats that store it in the footer.
    pub offset: u64,
    /// The length of the group in the file; zero for formats that store it in the footer.
    pub length: u64,
    /// Where the group can be divided into pieces that are read separately.
    pub cuts: Cuts,
}

/// Where a row group can be divided into pieces that are read separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cuts {
    /// Nowhere: to read a piece is to read the group.
    Nowhere,
    /// Between any two rows.
    Anywhere,
    /// Before these rows of the group, ascending. At others, pieces would read the same bytes again.
    At(Arc<[u32]>),
}

impl Cuts {
    /// The reason that these cannot be cuts of a group with this many rows, or `None`.
    pub(crate) fn misfit(&self, rows: u64) -> Option<String> {
        let Self::At(cuts) = self else { return None };
        let ascend = cuts.windows(2).all(|pair| pair[0] < pair[1]);
        let fits = ascend && cuts.first() > Some(&0) && cuts.last().is_some_and(|last| u64::from(*last) < rows);
        (!fits).then(|| format!("a row group of {rows} rows is cut where it has none"))
    }

    /// The row nearest to `row` before which the group can be cut.
    fn nearest(&self, row: u64) -> u64 {
        let Self::At(cuts) = self else { return row };
        let after = cuts.partition_point(|cut| u64::from(*cut) < row);
        let near = cuts[after.saturating_sub(1)..].iter().take(2).map(|cut| u64::from(*cut));
        near.min_by_key(|cut| cut.abs_diff(row)).unwrap_or(row)
    }
}

/// The smallest unit of reading: consecutive rows of one row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowRange {
    /// The position of the file in the snapshot.
    pub file: u32,
    /// The position of the row group in the file.
    pub group: u32,
    /// The row number in the file, not in the group.
    pub first_row: u64,
    /// The number of rows.
    pub rows: u64,
    /// Approximate bytes of the rows in memory, with all columns.
    pub bytes: u64,
}

impl SourceFile {
    /// The path below the artifact's folder. Empty for other files.
    pub(crate) fn name_in_artifact(&self) -> &str {
        let Some(content) = &self.content else { return "" };
        let mut slashes = self.path.rmatch_indices('/').skip(content.folders as usize);
        slashes.next().map_or(&*self.path, |(at, _)| &self.path[at + 1..])
    }

    /// The store's version of the content, if it identifies the content permanently. The version of a local file
    /// includes its inode, which reveals a change but differs for a restored backup, a copy that preserves the
    /// modification time, and another mount.
    pub(crate) fn lasting_etag(&self) -> Option<&String> {
        self.etag.as_ref().filter(|_| !self.path.starts_with('/'))
    }
}

/// All rows of `files`, in order, in ranges of about `bytes_target` bytes where row groups can be split.
pub(crate) fn row_ranges(files: &[SourceFile], bytes_target: u64) -> Vec<RowRange> {
    let mut ranges = Vec::new();
    for (file, source) in files.iter().enumerate() {
        for (group, stored) in source.groups.iter().enumerate() {
            split_group(file as u32, group as u32, stored, bytes_target, &mut ranges);
        }
    }
    ranges
}

fn split_group(file: u32, group: u32, stored: &RowGroup, bytes_target: u64, ranges: &mut Vec<RowRange>) {
    if stored.rows == 0 {
        return;
    }
    let target = match stored.cuts {
        Cuts::Nowhere => RANGE_BYTES_MAX,
        _ => bytes_target.clamp(1, RANGE_BYTES_MAX),
    };
    let bytes_before = |row: u64| (u128::from(stored.bytes) * u128::from(row) / u128::from(stored.rows)) as u64;
    let pieces = stored.bytes.div_ceil(target).clamp(1, stored.rows);
    let even = |rows: u64, piece: u64, pieces: u64| (u128::from(rows) * u128::from(piece) / u128::from(pieces)) as u64;
    let mut start = 0;
    for piece in 1..=pieces {
        let end = match piece == pieces {
            true => stored.rows,
            false => stored.cuts.nearest(even(stored.rows, piece, pieces)),
        };
        if end <= start {
            continue;
        }
        // A piece between two cuts may still be too large for a batch.
        let parts = match stored.cuts {
            Cuts::At(_) => (bytes_before(end) - bytes_before(start)).div_ceil(RANGE_BYTES_MAX).clamp(1, end - start),
            _ => 1,
        };
        for part in 0..parts {
            let first = start + even(end - start, part, parts);
            let last = start + even(end - start, part + 1, parts);
            let bytes = bytes_before(last) - bytes_before(first);
            ranges.push(RowRange { file, group, first_row: stored.first_row + first, rows: last - first, bytes });
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: u64, bytes: u64, cuts: Cuts) -> RowGroup {
        RowGroup { first_row: 100, rows, bytes, offset: 0, length: 0, cuts }
    }

    fn at(cuts: &[u32]) -> Cuts {
        Cuts::At(cuts.into())
    }

    fn split(group: RowGroup, target: u64) -> Vec<(u64, u64, u64)> {
        let mut ranges = Vec::new();
        split_group(0, 0, &group, target, &mut ranges);
        ranges.iter().map(|r| (r.first_row, r.rows, r.bytes)).collect()
    }

    #[test]
    fn groups_are_cut_near_the_target() {
        let anywhere = |rows, bytes| group(rows, bytes, Cuts::Anywhere);
        assert_eq!(split(anywhere(10, 100), 100), [(100, 10, 100)]);
        assert_eq!(split(anywhere(10, 100), 40), [(100, 3, 30), (103, 3, 30), (106, 4, 40)]);
        assert_eq!(split(anywhere(2, 100), 0), [(100, 1, 50), (101, 1, 50)]);
        assert_eq!(split(anywhere(0, 0), 10), []);
        assert_eq!(split(anywhere(10, 0), 10), [(100, 10, 0)]);
    }

    #[test]
    fn cuts_are_those_nearest_to_even_pieces() {
        assert_eq!(split(group(10, 100, at(&[4])), 40), [(100, 4, 40), (104, 6, 60)]);
        assert_eq!(split(group(10, 100, at(&[1, 4, 6, 9])), 40), [(100, 4, 40), (104, 2, 20), (106, 4, 40)]);
        assert_eq!(split(group(10, 100, at(&[1, 9])), 1), [(100, 1, 10), (101, 8, 80), (109, 1, 10)]);
        assert_eq!(split(group(10, 100, at(&[5])), 100), [(100, 10, 100)]);
    }

    #[test]
    fn cuts_lie_in_their_group() {
        assert_eq!(at(&[1, 9]).misfit(10), None);
        for cuts in [at(&[]), at(&[0]), at(&[10]), at(&[5, 5]), at(&[5, 4])] {
            assert!(cuts.misfit(10).is_some(), "{cuts:?}");
        }
    }

    #[test]
    fn a_group_that_is_cut_nowhere_stays_whole_while_a_batch_can_hold_it() {
        assert_eq!(split(group(10, 100, Cuts::Nowhere), 1), [(100, 10, 100)]);
        assert_eq!(split(group(10, 3 << 30, Cuts::Nowhere), 1).len(), 3);
        assert_eq!(split(group(10, 3 << 30, Cuts::Anywhere), u64::MAX).len(), 3);
        assert_eq!(split(group(10, 4 << 30, at(&[1])), u64::MAX).len(), 5);
    }
}
