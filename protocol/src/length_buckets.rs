//! The settings of length buckets: a feed whose rows are grouped by length into global steps.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{Error, Result};

/// A larger global batch would waste memory, because a window's last group is held with its gaps.
const GLOBAL_BATCH_MAX: u64 = 1 << 20;
/// More lengths than any pipeline pads to.
const BOUNDARIES_MAX: usize = 4096;

/// Upper bounds of length buckets, ascending. Rows longer than the last bound form one further bucket.
///
/// In text `64,128,256`; in JSON a list of numbers, or that text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Boundaries(Vec<u64>);

impl Boundaries {
    /// Checks that `bounds` are positive and ascending.
    ///
    /// # Errors
    /// `Invalid` if they are not.
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
    pub fn bucket(&self, length: u64) -> u32 {
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
    /// The output column whose length selects the bucket.
    pub by: String,
    /// The buckets' upper bounds.
    pub boundaries: Boundaries,
    /// Samples per step over all ranks.
    pub global_batch_size: u64,
}

impl LengthBuckets {
    /// The settings in these options, if any are given.
    pub fn resolve(
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

    /// Refuses invalid settings.
    pub fn check(&self) -> Result<()> {
        check_global_batch_size(self.global_batch_size)
    }

    /// The batch size of one of `world_size` ranks. Refuses another size in `asked`.
    pub fn batch_size(&self, asked: Option<u64>, world_size: u64) -> Result<u64> {
        let global = self.global_batch_size;
        let error = match asked {
            None if global.is_multiple_of(world_size) => return Ok(global / world_size),
            None => format!("the global batch of {global} samples cannot be divided among {world_size} ranks"),
            Some(asked) if asked.checked_mul(world_size) == Some(global) => return Ok(asked),
            Some(asked) => format!(
                "{world_size} ranks with batches of {asked} do not make a global batch of {global} samples, \
                 which this feed's length buckets require"
            ),
        };
        let divisors: Vec<_> = (1..=global).filter(|n| global.is_multiple_of(*n)).map(|n| n.to_string()).collect();
        let divisors = match &divisors[..] {
            [few @ .., last] if divisors.len() > 16 => format!("{}, …, {last}", few[..15].join(", ")),
            all => all.join(", "),
        };
        let hint = format!(
            "\"batch_size\" times \"world_size\" is {global}: allowed world sizes are {divisors}; \
             or open the feed with a different \"global_batch_size\""
        );
        Err(Error::invalid(error).with_hint(hint))
    }

    /// Refuses to begin inside a step.
    pub fn check_start(&self, offset: u64) -> Result<()> {
        let global = self.global_batch_size;
        if offset.is_multiple_of(global) {
            return Ok(());
        }
        let (before, after) = (offset / global * global, (offset / global + 1) * global);
        Err(Error::invalid(format!(
            "\"from\" is offset {offset}, inside a global step of {global}, whose rows belong to one length bucket"
        ))
        .with_hint(format!("begin at {before} or {after}, or with a token")))
    }

    /// The maximum length of a row of `bucket`; `u64::MAX` for the bucket beyond the last boundary.
    pub fn longest(&self, bucket: u32) -> u64 {
        self.boundaries.0.get(bucket as usize).copied().unwrap_or(u64::MAX)
    }
}

/// Refuses a global batch that is empty or too large.
pub fn check_global_batch_size(size: u64) -> Result<()> {
    match size {
        1..=GLOBAL_BATCH_MAX => Ok(()),
        size => {
            Err(Error::invalid(format!("\"global_batch_size\" must be between 1 and {GLOBAL_BATCH_MAX}, got {size}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(list: &[u64]) -> Boundaries {
        Boundaries::new(list.to_vec()).expect("good boundaries")
    }

    #[test]
    fn a_bound_is_the_longest_of_its_bucket() {
        let bounds = bounds(&[64, 128]);
        let lengths = [0, 1, 64, 65, 128, 129, u64::MAX];
        assert_eq!(lengths.map(|length| bounds.bucket(length)), [0, 0, 0, 1, 1, 2, 2]);
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
