//! Length buckets: groups a window's rows by length, one global step per group.
//!
//! A step's batches are padded to one length on every rank, so its rows should come from one bucket. The rows that
//! remain in a bucket after its whole groups move to the next longer bucket, where they fit too. The rows that remain
//! at the end form the window's only group with gaps, which are offsets without rows. So a window covers whole steps
//! only, and the rows of a step depend on nothing outside the window.

use forebay_protocol::LengthBuckets;

/// A window's rows in groups.
pub(crate) struct Grouped {
    /// The row at each position, `None` for a gap.
    pub(crate) positions: Vec<Option<usize>>,
    /// The maximum length of each group: `u64::MAX` for the bucket beyond the last boundary.
    pub(crate) lengths: Vec<u64>,
}

/// Groups rows, given by their lengths in the window's order. See [`positions`].
pub(crate) fn group(buckets: &LengthBuckets, lengths: &[u64], group_key: impl Fn(usize) -> u64) -> Grouped {
    let of_rows: Vec<u32> = lengths.iter().map(|&length| buckets.boundaries.bucket(length)).collect();
    // `LengthBuckets` bounds this when it is checked.
    let size = buckets.global_batch_size as usize;
    let positions = positions(&of_rows, size, group_key);
    let longest =
        |group: &[Option<usize>]| buckets.longest(group.iter().flatten().map(|&row| of_rows[row]).max().unwrap_or(0));
    Grouped { lengths: positions.chunks(size).map(longest).collect(), positions }
}

/// The row at each position of a window, `None` for a gap. Rows are given by their buckets, in the window's order.
///
/// Positions come in groups of `size`, at most one of which has gaps. Groups are ordered by the `group_key` of their
/// first row; rows within a group keep the window's order.
fn positions(buckets: &[u32], size: usize, group_key: impl Fn(usize) -> u64) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..buckets.len()).collect();
    order.sort_by_key(|&row| buckets[row]);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // The remainder of shorter buckets comes first, so that few rows move twice. The next bucket's rows follow it, so
    // cutting all rows in bucket order suffices.
    for group in order.chunks(size.max(1)) {
        let mut group = group.to_vec();
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort_by_cached_key(|group| (group_key(group[0]), group[0]));
    groups.iter().flat_map(|group| spread(group, size)).collect()
}

/// Assigns a group's rows to its positions. Gaps are spread so that runs of equal length differ by at most one row. For
/// any batch size, ranks then get nearly equal numbers of rows.
fn spread(rows: &[usize], size: usize) -> Vec<Option<usize>> {
    let mut positions = vec![None; size];
    for (at, &row) in rows.iter().enumerate() {
        positions[at * size / rows.len()] = Some(row);
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups positions, and checks the invariants that hold for any rows.
    fn check(buckets: &[u32], size: usize, key: impl Fn(usize) -> u64) -> Vec<Vec<Option<usize>>> {
        let positions = positions(buckets, size, key);
        assert_eq!(positions.len(), buckets.len().div_ceil(size) * size, "{buckets:?} in groups of {size}");
        let mut seen: Vec<usize> = positions.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..buckets.len()).collect::<Vec<_>>(), "every row exactly once");
        let groups: Vec<Vec<Option<usize>>> = positions.chunks(size).map(<[_]>::to_vec).collect();
        let incomplete = groups.iter().filter(|group| group.contains(&None)).count();
        assert_eq!(incomplete, usize::from(!buckets.len().is_multiple_of(size)));
        for group in &groups {
            assert!(group.iter().flatten().is_sorted(), "a group's rows are in the window's order");
            let rows = group.iter().flatten().count();
            for block in (1..=size).filter(|block| size.is_multiple_of(*block)) {
                let counts: Vec<_> = group.chunks(block).map(|block| block.iter().flatten().count()).collect();
                let (least, most) = (counts.iter().min(), counts.iter().max());
                assert!(most <= least.map(|least| least + 1).as_ref(), "{rows} of {size} by {block}: {counts:?}");
            }
        }
        groups
    }

    /// The distinct buckets of a group's rows.
    fn of(group: &[Option<usize>], buckets: &[u32]) -> Vec<u32> {
        let mut of: Vec<u32> = group.iter().flatten().map(|&row| buckets[row]).collect();
        of.sort_unstable();
        of.dedup();
        of
    }

    #[test]
    fn every_small_window_is_grouped_as_promised() {
        // All windows of up to seven rows in three buckets.
        for rows in 0..=7u32 {
            for code in 0..3u32.pow(rows) {
                let buckets: Vec<u32> = (0..rows).map(|row| code / 3u32.pow(row) % 3).collect();
                for size in 1..=6 {
                    let groups = check(&buckets, size, |row| row as u64);
                    assert!(groups.iter().map(|group| group[0]).is_sorted(), "file order is by the first row");
                    let rows_of = |bucket| buckets.iter().filter(|of| **of == bucket).count();
                    // A bucket's remainder is less than a group, so at least this many groups come from one bucket.
                    let mut promoted = 0;
                    for bucket in 0..3 {
                        let own = rows_of(bucket);
                        let pure = groups
                            .iter()
                            .filter(|group| of(group, &buckets) == [bucket] && !group.contains(&None))
                            .count();
                        let needed = (size - promoted) % size;
                        assert_eq!(pure, own.saturating_sub(needed) / size, "{buckets:?} by {size}, bucket {bucket}");
                        promoted = (promoted + own) % size;
                    }
                    // Rows skip only buckets that have no remainder.
                    let mut mixed: Vec<Vec<u32>> = groups.iter().map(|group| of(group, &buckets)).collect();
                    mixed.sort();
                    assert!(mixed.windows(2).all(|pair| pair[0].last() <= pair[1].first()), "{mixed:?}");
                }
            }
        }
    }

    #[test]
    fn larger_windows_spread_their_last_group_evenly() {
        for size in [12, 96, 100, 128] {
            for rows in 0..2 * size {
                let buckets: Vec<u32> = (0..rows as u32).map(|row| row * 7919 % 5).collect();
                check(&buckets, size, |row| (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
    }

    #[test]
    fn the_order_of_groups_is_by_key() {
        let buckets = [0, 1, 2, 0, 1, 2];
        let groups = |key: &dyn Fn(usize) -> u64| {
            check(&buckets, 2, key).iter().map(|group| group[0]).collect::<Vec<Option<usize>>>()
        };
        assert_eq!(groups(&|row| row as u64), [Some(0), Some(1), Some(2)]);
        assert_eq!(groups(&|row| 9 - row as u64), [Some(2), Some(1), Some(0)]);
    }

    #[test]
    fn a_group_is_as_long_as_its_longest_bucket() {
        let buckets = LengthBuckets {
            by: "x".to_owned(),
            boundaries: "8,16".parse().expect("good boundaries"),
            global_batch_size: 2,
        };
        let grouped = group(&buckets, &[3, 8, 8, 9, 10, 99], |first| first as u64);
        assert_eq!(grouped.positions, [0, 1, 2, 3, 4, 5].map(Some));
        assert_eq!(grouped.lengths, [8, 16, u64::MAX]);
    }
}
