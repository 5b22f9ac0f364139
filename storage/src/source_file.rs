//! The files of a snapshot, their row groups, and their row ranges.

use serde::{Deserialize, Serialize};

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
}

/// Rows that are stored together: a Parquet row group, a block of text, one media file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Whether a part of the group can be read without decoding the rest.
    pub splittable: bool,
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
    let target = match stored.splittable {
        true => bytes_target.clamp(1, RANGE_BYTES_MAX),
        false => RANGE_BYTES_MAX,
    };
    let pieces = stored.bytes.div_ceil(target).clamp(1, stored.rows);
    let share = |total: u64, piece: u64| (u128::from(total) * u128::from(piece) / u128::from(pieces)) as u64;
    ranges.extend((0..pieces).map(|piece| {
        let (start, end) = (share(stored.rows, piece), share(stored.rows, piece + 1));
        RowRange {
            file,
            group,
            first_row: stored.first_row + start,
            rows: end - start,
            bytes: share(stored.bytes, piece + 1) - share(stored.bytes, piece),
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: u64, bytes: u64, splittable: bool) -> RowGroup {
        RowGroup { first_row: 100, rows, bytes, offset: 0, length: 0, splittable }
    }

    fn split(group: RowGroup, target: u64) -> Vec<(u64, u64, u64)> {
        let mut ranges = Vec::new();
        split_group(0, 0, &group, target, &mut ranges);
        ranges.iter().map(|r| (r.first_row, r.rows, r.bytes)).collect()
    }

    #[test]
    fn groups_are_cut_near_the_target() {
        assert_eq!(split(group(10, 100, true), 100), [(100, 10, 100)]);
        assert_eq!(split(group(10, 100, true), 40), [(100, 3, 33), (103, 3, 33), (106, 4, 34)]);
        assert_eq!(split(group(2, 100, true), 0), [(100, 1, 50), (101, 1, 50)]);
        assert_eq!(split(group(0, 0, true), 10), []);
        assert_eq!(split(group(10, 0, true), 10), [(100, 10, 0)]);
    }

    #[test]
    fn a_group_that_does_not_split_stays_whole_while_a_batch_can_hold_it() {
        assert_eq!(split(group(10, 100, false), 1), [(100, 10, 100)]);
        assert_eq!(split(group(10, 3 << 30, false), 1).len(), 3);
        assert_eq!(split(group(10, 3 << 30, true), u64::MAX).len(), 3);
    }
}
