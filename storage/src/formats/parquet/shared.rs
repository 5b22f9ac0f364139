//! Reads the bytes of pieces of row groups, and keeps those that other pieces need too: dictionaries, and pages that
//! the end of a piece divides.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{OBJECT_STORE_COALESCE_DEFAULT, coalesce_ranges};
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::Result;
use crate::pinned::PinnedFile;

/// Maximum bytes to keep for each dataset.
pub(super) const SHARED_BYTES_MAX: u64 = 64 << 20;
/// The part of the bytes asked for that may be read beside them to save requests.
const BESIDE_PART: u64 = 50;

/// Bytes of a dataset's files that several pieces of a row group need.
#[derive(Clone, Debug)]
pub(super) struct SharedBytes {
    kept: Arc<Kept>,
}

/// The number of the file, and the place of the first byte.
type Place = (u32, u64);

type Kept = Cache<Place, Bytes, Length, DefaultHashBuilder, DefaultLifecycle<Place, Bytes>>;

#[derive(Clone, Debug)]
struct Length;

impl Weighter<Place, Bytes> for Length {
    fn weight(&self, _: &Place, bytes: &Bytes) -> u64 {
        bytes.len() as u64
    }
}

/// Bytes to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) range: Range<u64>,
    /// Whether other pieces need them too.
    pub(super) is_shared: bool,
}

impl Default for SharedBytes {
    fn default() -> Self {
        let mut options = OptionsBuilder::new();
        // One shard, so that one page may take any part of the bytes.
        options.shards(1).weight_capacity(SHARED_BYTES_MAX).estimated_items_capacity(1024);
        let options = options.build().expect("all options are set");
        let kept = Kept::with_options(options, Length, DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self { kept: Arc::new(kept) }
    }
}

impl SharedBytes {
    /// Reads ranges of file `number`. Of readers that need the same bytes at once, one reads them.
    pub(super) async fn read(&self, number: u32, file: &PinnedFile, wanted: &[Wanted]) -> Result<Vec<Bytes>> {
        let mut found: Vec<Option<Bytes>> = vec![None; wanted.len()];
        let (mut mine, mut guards, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (at, Wanted { range, is_shared }) in wanted.iter().enumerate() {
            if !is_shared {
                mine.push(at);
                continue;
            }
            // Waiting here for a reader that waits for this one would never end.
            match self.kept.get_value_or_guard(&(number, range.start), Some(Duration::ZERO)) {
                GuardResult::Value(bytes) if bytes.len() as u64 == range.end - range.start => found[at] = Some(bytes),
                // The offset index of a damaged file may name two pages that begin at one place.
                GuardResult::Value(_) => mine.push(at),
                GuardResult::Guard(guard) => {
                    mine.push(at);
                    guards.push((at, guard));
                }
                GuardResult::Timeout => others.push(at),
            }
        }
        let ranges: Vec<Range<u64>> = mine.iter().map(|&at| wanted[at].range.clone()).collect();
        let fetched = coalesce_ranges(&ranges, |range| file.get_range(range), gap(&ranges)).await?;
        for (at, bytes) in mine.into_iter().zip(fetched) {
            found[at] = Some(bytes);
        }
        for (at, guard) in guards {
            // A slice would keep all that one request read.
            let bytes = found[at].as_deref().map(Bytes::copy_from_slice).unwrap_or_default();
            found[at] = Some(bytes.clone());
            // The cache may have evicted the place that it kept for these bytes, and then does not take them.
            let _ = guard.insert(bytes);
        }
        let waited = stream::iter(others.into_iter().map(|at| self.read_one(number, file, at, &wanted[at].range)));
        for (at, bytes) in waited.buffer_unordered(usize::MAX).try_collect::<Vec<_>>().await? {
            found[at] = Some(bytes);
        }
        Ok(found.into_iter().map(|bytes| bytes.expect("each range was read")).collect())
    }

    /// Waits for bytes that another reader reads, or reads them if it failed.
    async fn read_one(&self, number: u32, file: &PinnedFile, at: usize, range: &Range<u64>) -> Result<(usize, Bytes)> {
        let kept = self.kept.get_or_insert_async(&(number, range.start), file.get_range(range.clone())).await?;
        match kept.len() as u64 == range.end - range.start {
            true => Ok((at, kept)),
            false => Ok((at, file.get_range(range.clone()).await?)),
        }
    }
}

/// The most bytes between two ranges that are read with them. Few large requests are faster than many small ones.
pub(super) fn gap(ranges: &[Range<u64>]) -> u64 {
    let mut ranges: Vec<&Range<u64>> = ranges.iter().collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut end = ranges.first().map_or(0, |range| range.start);
    let (mut bytes, mut gaps) = (0_u64, Vec::new());
    for range in ranges {
        gaps.push(range.start.saturating_sub(end));
        bytes = bytes.saturating_add(range.end.saturating_sub(range.start));
        end = end.max(range.end);
    }
    gaps.sort_unstable();
    let mut beside = bytes / BESIDE_PART;
    let mut most = 0;
    for gap in gaps {
        match beside.checked_sub(gap) {
            Some(left) if gap <= OBJECT_STORE_COALESCE_DEFAULT => (beside, most) = (left, gap),
            // One more gap of the size of the last would read too much.
            _ => return most.saturating_sub(u64::from(gap == most)),
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_read_while_they_are_a_small_part() {
        let ranges = |places: &[(u64, u64)]| places.iter().map(|(start, end)| *start..*end).collect::<Vec<_>>();
        assert_eq!(gap(&ranges(&[])), 0);
        assert_eq!(gap(&ranges(&[(0, 1000)])), 0);
        assert_eq!(gap(&ranges(&[(0, 1000), (1010, 2000)])), 10);
        assert_eq!(gap(&ranges(&[(1010, 2000), (0, 1000)])), 10);
        assert_eq!(gap(&ranges(&[(0, 1000), (1010, 2000), (2035, 3000)])), 35);
        assert_eq!(gap(&ranges(&[(0, 1000), (1010, 2000), (2065, 3000)])), 10);
        assert_eq!(gap(&ranges(&[(0, 1000), (1030, 2000), (2030, 3000)])), 29);
        assert_eq!(gap(&ranges(&[(0, 1 << 40), ((1 << 40) + (2 << 20), 1 << 41)])), 0);
    }
}
