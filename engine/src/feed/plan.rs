//! Divides row ranges into windows: a pure function of snapshot, seed, epoch and options.
//!
//! With shuffling, a keyed permutation orders the row ranges (by a hash of seed, epoch and ordinal), so that a window
//! mixes ranges from the whole dataset. Without shuffling they keep file order. In both cases, windows are filled in
//! that order up to a target of bytes and rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_delivery::{Plan, WindowId};
use forebay_storage::{Dataset, RowRange};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use forebay_protocol::FeedSettings;

/// Separates the hash space of plans from that of rows, which use the same seed and epoch.
const PLAN_DOMAIN: u64 = 0x706c_616e;
/// Number of epoch plans to keep, for readers in different epochs. A plan costs four bytes per row range.
const PLANS_KEPT: usize = 16;
/// Bytes up to which adjacent ranges are read together: with few requests, and still several at a time.
const JOINED_BYTES_MAX: u64 = 8 << 20;

/// The windows of one epoch.
pub(crate) struct EpochPlan {
    /// Indices into the feed's row ranges.
    order: Vec<u32>,
    /// The start of each window in `order`, then the end of the last window.
    starts: Vec<u32>,
    /// Source rows before each window, then the total.
    rows_before: Vec<u64>,
    bytes: Vec<u64>,
}

impl EpochPlan {
    pub(crate) fn new(ranges: &[RowRange], settings: &FeedSettings, epoch: u64) -> Self {
        let mut order: Vec<u32> =
            (0..u32::try_from(ranges.len()).expect("a feed has fewer than 2^32 row ranges")).collect();
        if settings.shuffle {
            order.sort_by_cached_key(|&index| (keyed(settings.seed, epoch, u64::from(index)), index));
        }
        let mut plan = Self { order: Vec::new(), starts: vec![0], rows_before: vec![0], bytes: Vec::new() };
        let (mut rows, mut bytes) = (0, 0_u64);
        for (position, &index) in order.iter().enumerate() {
            let range = &ranges[index as usize];
            let full =
                bytes.saturating_add(range.bytes) > settings.window_bytes || rows + range.rows > settings.window_rows;
            if full && rows > 0 {
                plan.close(position, rows, bytes);
                (rows, bytes) = (0, 0);
            }
            rows += range.rows;
            bytes = bytes.saturating_add(range.bytes);
        }
        if rows > 0 {
            plan.close(order.len(), rows, bytes);
        }
        plan.order = order;
        plan
    }

    fn close(&mut self, end: usize, rows: u64, bytes: u64) {
        self.starts.push(u32::try_from(end).expect("bounded by the number of row ranges"));
        self.rows_before.push(self.rows() + rows);
        self.bytes.push(bytes);
    }

    /// The number of windows in the epoch.
    pub(crate) fn windows(&self) -> u32 {
        u32::try_from(self.bytes.len()).expect("bounded by the number of row ranges")
    }

    /// The number of source rows in the epoch.
    pub(crate) fn rows(&self) -> u64 {
        *self.rows_before.last().expect("holds one more entry than there are windows")
    }

    /// Source rows before window `index`.
    pub(crate) fn rows_before(&self, index: u32) -> u64 {
        self.rows_before[index as usize]
    }

    /// The window that holds source row `row` of the epoch, or the last one.
    pub(crate) fn window_at(&self, row: u64) -> u32 {
        let after = self.rows_before.partition_point(|&before| before <= row);
        u32::try_from(after.saturating_sub(1))
            .expect("bounded by the number of windows")
            .min(self.windows().saturating_sub(1))
    }

    /// Estimated bytes of window `index` when read.
    pub(crate) fn bytes(&self, index: u32) -> u64 {
        self.bytes.get(index as usize).copied().unwrap_or(0)
    }

    /// Indices of the row ranges of window `index`.
    pub(crate) fn ranges(&self, index: u32) -> &[u32] {
        &self.order[self.starts[index as usize] as usize..self.starts[index as usize + 1] as usize]
    }
}

fn keyed(seed: u64, epoch: u64, value: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    bytes[16..].copy_from_slice(&value.to_le_bytes());
    xxh3_64_with_seed(&bytes, PLAN_DOMAIN)
}

/// The epoch plans of a feed, computed on demand.
pub(crate) struct FeedPlan {
    ranges: Vec<RowRange>,
    /// The ranges to read. With a LIMIT the last range may include rows beyond the limit.
    read: Vec<RowRange>,
    settings: FeedSettings,
    epochs: Mutex<BTreeMap<u64, Arc<EpochPlan>>>,
}

impl FeedPlan {
    pub(crate) fn new(ranges: Vec<RowRange>, settings: FeedSettings) -> Self {
        Self { read: ranges.clone(), ranges, settings, epochs: Mutex::new(BTreeMap::new()) }
    }

    /// Limits the plan to the first rows of the dataset.
    pub(crate) fn limited(mut self, dataset: &Dataset, limit: Option<u64>) -> Self {
        let Some(limit) = limit else { return self };
        let first =
            |range: &RowRange| dataset.snapshot().files()[range.file as usize].first_sample_id + range.first_row;
        self.read.retain(|range| first(range) < limit);
        self.ranges = self.read.clone();
        for range in &mut self.ranges {
            range.rows = range.rows.min(limit - first(range));
        }
        self
    }

    pub(crate) fn epoch(&self, epoch: u64) -> Arc<EpochPlan> {
        let mut epochs = self.epochs.lock();
        if let Some(plan) = epochs.get(&epoch) {
            return Arc::clone(plan);
        }
        let plan = Arc::new(EpochPlan::new(&self.ranges, &self.settings, epoch));
        epochs.insert(epoch, Arc::clone(&plan));
        if epochs.len() > PLANS_KEPT {
            // Evict the plan furthest from the current epoch: it is the least likely to be needed again.
            let furthest = epochs.keys().copied().max_by_key(|kept| kept.abs_diff(epoch)).expect("not empty");
            epochs.remove(&furthest);
        }
        plan
    }

    /// The ranges of a window to read. Adjacent ones are read together.
    pub(crate) fn ranges(&self, window: WindowId) -> Vec<RowRange> {
        let epoch = self.epoch(window.epoch);
        joined(epoch.ranges(window.index).iter().map(|&index| self.read[index as usize]))
    }

    /// The ranges of a window to read, each on its own, with the number of rows that belong to the feed.
    pub(crate) fn single_ranges(&self, window: WindowId) -> Vec<(RowRange, u64)> {
        let epoch = self.epoch(window.epoch);
        let range = |&index: &u32| (self.read[index as usize], self.ranges[index as usize].rows);
        epoch.ranges(window.index).iter().map(range).collect()
    }

    /// The ranges of an epoch to read, in file order.
    pub(crate) fn read(&self) -> &[RowRange] {
        &self.read
    }

    pub(crate) fn row_ranges(&self) -> usize {
        self.ranges.len()
    }
}

/// The same ranges. Adjacent ones are read together.
fn joined(ranges: impl Iterator<Item = RowRange>) -> Vec<RowRange> {
    let mut joined: Vec<RowRange> = Vec::new();
    for range in ranges {
        let is_next = |last: &&mut RowRange| {
            let follows = (last.file, last.group, last.first_row + last.rows);
            follows == (range.file, range.group, range.first_row)
                && last.bytes.saturating_add(range.bytes) <= JOINED_BYTES_MAX
        };
        match joined.last_mut().filter(is_next) {
            Some(last) => (last.rows, last.bytes) = (last.rows + range.rows, last.bytes + range.bytes),
            None => joined.push(range),
        }
    }
    joined
}

/// The plan of an open feed, for its sequencer.
#[derive(Clone)]
pub struct WindowPlan(pub(crate) Arc<FeedPlan>);

impl Plan for WindowPlan {
    fn windows(&self, epoch: u64) -> u32 {
        self.0.windows(epoch)
    }

    fn bytes(&self, window: WindowId) -> u64 {
        self.0.bytes(window)
    }
}

impl Plan for FeedPlan {
    fn windows(&self, epoch: u64) -> u32 {
        self.epoch(epoch).windows()
    }

    fn bytes(&self, window: WindowId) -> u64 {
        self.epoch(window.epoch).bytes(window.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(n: u32) -> Vec<RowRange> {
        (0..n)
            .map(|file| RowRange {
                file,
                group: 0,
                first_row: 0,
                rows: 1 + u64::from(file % 5),
                bytes: 100 * u64::from(1 + file % 7),
            })
            .collect()
    }

    fn settings(shuffle: bool, seed: u64) -> FeedSettings {
        FeedSettings { seed, shuffle, window_bytes: 2_000, window_rows: 25, ..FeedSettings::default() }
    }

    #[test]
    fn windows_hold_every_range_once_within_their_limits() {
        for shuffle in [false, true] {
            for n in [1, 2, 17, 300] {
                let ranges = ranges(n);
                let plan = EpochPlan::new(&ranges, &settings(shuffle, 3), 0);
                let mut seen: Vec<u32> = Vec::new();
                for window in 0..plan.windows() {
                    let members = plan.ranges(window);
                    let rows: u64 = members.iter().map(|&i| ranges[i as usize].rows).sum();
                    let bytes: u64 = members.iter().map(|&i| ranges[i as usize].bytes).sum();
                    assert!(rows <= 25 && bytes <= 2_000 || members.len() == 1);
                    assert_eq!(bytes, plan.bytes(window));
                    assert_eq!(rows, plan.rows_before(window + 1) - plan.rows_before(window));
                    assert_eq!(plan.window_at(plan.rows_before(window)), window);
                    assert_eq!(plan.window_at(plan.rows_before(window + 1) - 1), window);
                    seen.extend(members);
                }
                if !shuffle {
                    assert!(seen.is_sorted());
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..n).collect::<Vec<_>>());
                assert_eq!(plan.rows(), ranges.iter().map(|range| range.rows).sum::<u64>());
            }
        }
    }

    #[test]
    fn adjacent_ranges_are_read_together() {
        let range = |first_row, bytes| RowRange { file: 0, group: 0, first_row, rows: 10, bytes };
        let other = RowRange { group: 1, ..range(40, 1) };
        let ranges = vec![range(0, 4 << 20), range(10, 4 << 20), range(20, 1), range(30, 1), other];
        let settings = FeedSettings { shuffle: false, ..FeedSettings::default() };
        let plan = FeedPlan::new(ranges, settings);
        let read: Vec<_> = plan.ranges(WindowId { epoch: 0, index: 0 }).iter().map(|r| (r.group, r.rows)).collect();
        assert_eq!(read, [(0, 20), (0, 20), (1, 10)]);
    }

    #[test]
    fn order_depends_on_seed_and_epoch_only() {
        let ranges = ranges(100);
        let order = |seed, epoch| EpochPlan::new(&ranges, &settings(true, seed), epoch).order;
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn an_empty_dataset_has_no_windows() {
        let plan = EpochPlan::new(&[], &settings(true, 0), 0);
        assert_eq!((plan.windows(), plan.rows()), (0, 0));
    }

    #[test]
    fn a_range_larger_than_the_target_is_a_window_of_its_own() {
        let mut ranges = ranges(3);
        ranges[1].bytes = 1 << 40;
        let plan = EpochPlan::new(&ranges, &settings(false, 0), 0);
        assert_eq!((0..plan.windows()).map(|window| plan.ranges(window).to_vec()).collect::<Vec<_>>(), [[0], [1], [2]]);
    }
}
