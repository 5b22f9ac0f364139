//! Length buckets: a window's rows in groups of one global step each, whose rows are of about one length.
//!
//! A step's batches are padded to one length, on every rank: so its rows should be of one bucket. What is left of a bucket
//! when its whole groups are taken moves on to the next longer one, where it fits too; what is left at the end is the
//! window's one group with gaps, which are offsets without rows. So a window covers whole steps only, and which rows form
//! a step depends on nothing outside of the window.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Result};

/// A larger global batch would cost memory for nothing: a window's last group is held with its gaps.
const GLOBAL_BATCH_MAX: u64 = 1 << 20;
/// Nobody pads to this many lengths.
const BOUNDARIES_MAX: usize = 4096;

/// Upper bounds of length buckets, ascending. A row that is longer than the last is in one further bucket.
///
/// As text `64,128,256`; in JSON a list of numbers, or that text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Boundaries(Vec<u64>);

impl Boundaries {
    /// Checks that `bounds` are positive and ascending.
    ///
    /// # Errors
    /// `Invalid` where they are not.
    pub fn new(bounds: Vec<u64>) -> Result<Self> {
        let error = match &bounds[..] {
            [] => "must have at least one".to_owned(),
            [0, ..] => "must be positive, got 0".to_owned(),
            all if all.len() > BOUNDARIES_MAX => format!("must be at most {BOUNDARIES_MAX}, got {}", all.len()),
            all => match all.windows(2).find(|pair| pair[0] >= pair[1]) {
                Some(pair) => format!("must be ascending, got {} before {}", pair[0], pair[1]),
                None => return Ok(Self(bounds)),
            },
        };
        Err(Error::invalid(format!("\"bucket_boundaries\" {error}")).with_hint(EXAMPLE))
    }

    /// The bucket of a row of this length, from 0.
    fn bucket(&self, length: u64) -> u32 {
        // Bounded by BOUNDARIES_MAX.
        self.0.partition_point(|&bound| bound < length) as u32
    }
}

const EXAMPLE: &str = "write the longest length of each bucket, such as '64,128,256'";

impl FromStr for Boundaries {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bounds = text.split(',').map(|bound| bound.trim().parse().ok()).collect::<Option<_>>();
        let wrong = || Error::invalid(format!("\"bucket_boundaries\" must be positive integers, got '{text}'"));
        Self::new(bounds.ok_or_else(|| wrong().with_hint(EXAMPLE))?)
    }
}

impl fmt::Display for Boundaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds: Vec<_> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&bounds.join(","))
    }
}

impl<'de> Deserialize<'de> for Boundaries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            List(Vec<u64>),
        }
        let bounds = match Either::deserialize(deserializer)? {
            Either::Text(text) => text.parse(),
            Either::List(bounds) => Self::new(bounds),
        };
        bounds.map_err(serde::de::Error::custom)
    }
}

/// How a feed groups its rows by length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LengthBuckets {
    /// The output column whose length decides.
    pub by: String,
    /// The buckets' upper bounds.
    pub boundaries: Boundaries,
    /// Samples of all ranks in a step.
    pub global_batch_size: u64,
}

impl LengthBuckets {
    /// The settings that these options make, if any is given.
    pub(crate) fn resolve(
        by: Option<String>,
        boundaries: Option<Boundaries>,
        global_batch_size: Option<u64>,
    ) -> Result<Option<Self>> {
        let missing = match (by, boundaries, global_batch_size) {
            (None, None, None) => return Ok(None),
            (Some(by), Some(boundaries), Some(global_batch_size)) => {
                let buckets = Self { by, boundaries, global_batch_size };
                buckets.check()?;
                return Ok(Some(buckets));
            }
            (None, ..) => "bucket_by_length",
            (_, None, _) => "bucket_boundaries",
            (_, _, None) => "global_batch_size",
        };
        Err(Error::invalid(format!("\"{missing}\" is missing: length buckets need it")).with_hint(
            "write bucket_by_length = 'column', bucket_boundaries = '64,128,256', global_batch_size = 96 together",
        ))
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_global_batch_size(self.global_batch_size)
    }

    /// The batch size of one of `world_size` ranks, if that is what `asked` says.
    pub(crate) fn batch_size(&self, asked: Option<u64>, world_size: u64) -> Result<u64> {
        let global = self.global_batch_size;
        let error = match asked {
            None if global.is_multiple_of(world_size) => return Ok(global / world_size),
            None => format!("the global batch of {global} samples cannot be shared by {world_size} ranks"),
            Some(asked) if asked.checked_mul(world_size) == Some(global) => return Ok(asked),
            Some(asked) => format!(
                "{world_size} ranks with batches of {asked} make no global batch of {global} samples, \
                 which this feed's length buckets are for"
            ),
        };
        let divisors: Vec<_> = (1..=global).filter(|n| global.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        let divisors = match &divisors[..] {
            [few @ .., last] if divisors.len() > 16 => format!("{}, …, {last}", few[..15].join(", ")),
            all => all.join(", "),
        };
        let hint = format!(
            "\"batch_size\" times \"world_size\" is {global}: world sizes may be {divisors}; \
             or open the feed with another \"global_batch_size\""
        );
        Err(Error::invalid(error).with_hint(hint))
    }

    /// Refuses to begin inside of a step.
    pub(crate) fn check_start(&self, offset: u64) -> Result<()> {
        let global = self.global_batch_size;
        if offset.is_multiple_of(global) {
            return Ok(());
        }
        let (before, after) = (offset / global * global, (offset / global + 1) * global);
        Err(Error::invalid(format!(
            "\"from\" is offset {offset}, inside a global step of {global}: its rows are of one length bucket"
        ))
        .with_hint(format!("begin at {before} or {after}, or with a token")))
    }

    /// Puts rows, given by their lengths in the window's order, in groups. See [`positions`].
    pub(crate) fn group(&self, lengths: &[u64], group_key: impl Fn(usize) -> u64) -> Grouped {
        let buckets: Vec<u32> = lengths.iter().map(|&length| self.boundaries.bucket(length)).collect();
        // Bounded by GLOBAL_BATCH_MAX.
        let size = self.global_batch_size as usize;
        let positions = positions(&buckets, size, group_key);
        let longest = |group: &[Option<usize>]| {
            let longest = group.iter().flatten().map(|&row| buckets[row]).max().unwrap_or(0);
            self.boundaries.0.get(longest as usize).copied().unwrap_or(u64::MAX)
        };
        Grouped { lengths: positions.chunks(size).map(longest).collect(), positions }
    }
}

/// A window's rows in groups.
pub(crate) struct Grouped {
    /// Which row is at each position, `None` for a gap.
    pub(crate) positions: Vec<Option<usize>>,
    /// How long rows may be, for each group: the greatest integer for the bucket beyond the last boundary.
    pub(crate) lengths: Vec<u64>,
}

pub(crate) fn check_global_batch_size(size: u64) -> Result<()> {
    match size {
        1..=GLOBAL_BATCH_MAX => Ok(()),
        size => {
            Err(Error::invalid(format!("\"global_batch_size\" must be between 1 and {GLOBAL_BATCH_MAX}, got {size}")))
        }
    }
}

/// Which row is at each position of a window, `None` for a gap. Rows are given by their buckets, in the window's order.
///
/// Positions come in groups of `size`, at most one of which has gaps. Groups are in the order of `group_key` of their
/// first row, and a group's rows in the window's order.
fn positions(buckets: &[u32], size: usize, group_key: impl Fn(usize) -> u64) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..buckets.len()).collect();
    order.sort_by_key(|&row| buckets[row]);
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // What is left of shorter buckets comes first, so that little of it moves on twice. Such rows and the next bucket's
    // first rows follow each other: cutting all rows in bucket order is all there is to it.
    for group in order.chunks(size.max(1)) {
        let mut group = group.to_vec();
        group.sort_unstable();
        groups.push(group);
    }
    groups.sort_by_cached_key(|group| (group_key(group[0]), group[0]));
    groups.iter().flat_map(|group| spread(group, size)).collect()
}

/// The rows of a group at its positions. Gaps are so spread that runs of equal length have equally many rows, but for one:
/// whatever the batch size, no rank is much better off than another.
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

    fn bounds(list: &[u64]) -> Boundaries {
        Boundaries::new(list.to_vec()).expect("good boundaries")
    }

    /// Groups of positions, and what must hold of them whatever the rows.
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

    /// The buckets of a group's rows, without repetition.
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
                    // What is left of a bucket is less than a group, so that many groups at least are of one bucket.
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
                    // Rows that move on do so to a bucket that nothing between is left of.
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
    fn a_bound_is_the_longest_of_its_bucket() {
        let bounds = bounds(&[64, 128]);
        let lengths = [0, 1, 64, 65, 128, 129, u64::MAX];
        assert_eq!(lengths.map(|length| bounds.bucket(length)), [0, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_group_is_as_long_as_its_longest_bucket() {
        let buckets = LengthBuckets { by: "x".to_owned(), boundaries: bounds(&[8, 16]), global_batch_size: 2 };
        let grouped = buckets.group(&[3, 8, 8, 9, 10, 99], |first| first as u64);
        assert_eq!(grouped.positions, [0, 1, 2, 3, 4, 5].map(Some));
        assert_eq!(grouped.lengths, [8, 16, u64::MAX]);
    }

    #[test]
    fn boundaries_are_read_from_text_and_json() {
        let all = bounds(&[64, 128, 256]);
        assert_eq!(" 64, 128,256".parse::<Boundaries>().expect("good text"), all);
        assert_eq!(serde_json::from_str::<Boundaries>("\"64,128,256\"").expect("a text"), all);
        assert_eq!(serde_json::from_str::<Boundaries>("[64,128,256]").expect("a list"), all);
        assert_eq!(
            (all.to_string().as_str(), serde_json::to_string(&all).expect("plain data").as_str()),
            ("64,128,256", "[64,128,256]")
        );
        let wrong = |text: &str| text.parse::<Boundaries>().expect_err("no boundaries").message().to_owned();
        assert_eq!(wrong("64,x"), "\"bucket_boundaries\" must be positive integers, got '64,x'");
        assert_eq!(wrong(""), "\"bucket_boundaries\" must be positive integers, got ''");
        assert_eq!(wrong("-1,3"), "\"bucket_boundaries\" must be positive integers, got '-1,3'");
        assert_eq!(wrong("0,3"), "\"bucket_boundaries\" must be positive, got 0");
        assert_eq!(wrong("64,64"), "\"bucket_boundaries\" must be ascending, got 64 before 64");
        assert!(serde_json::from_str::<Boundaries>("[]").is_err());
    }

    #[test]
    fn batch_sizes_are_shares_of_the_global_batch() {
        let buckets = LengthBuckets { by: "x".to_owned(), boundaries: bounds(&[8]), global_batch_size: 12 };
        for (world_size, batch_size) in [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)] {
            assert_eq!(buckets.batch_size(None, world_size).expect("a divisor"), batch_size);
            assert_eq!(buckets.batch_size(Some(batch_size), world_size).expect("the same"), batch_size);
        }
        for (asked, world_size) in [(None, 5), (Some(6), 1), (Some(u64::MAX), 2), (Some(3), 5)] {
            let error = buckets.batch_size(asked, world_size).expect_err("not twelve");
            assert!(error.to_string().contains("1, 2, 3, 4, 6, 12"), "{error}");
        }
        assert!([0, 12, 24].into_iter().all(|offset| buckets.check_start(offset).is_ok()));
        assert!(buckets.check_start(18).expect_err("inside").to_string().contains("12 or 24"));
    }
}
