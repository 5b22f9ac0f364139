//! Builds a window of rows: filters them, lets layers derive rows of them, and orders them.

use std::sync::Arc;
use std::time::Instant;

use forebay_operators::random_key;
use forebay_protocol::FeedSettings;
use forebay_storage::RangeRows;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{BAD, GAP, Groups, Row, Window};
use crate::compile::{BadRow, Lookup, MadeSoFar, SourceRows, Stage};
use crate::error::Result;
use crate::feed::buckets::{Grouped, group};
use crate::feed::costs::{CostMeter, Step};
use crate::feed::feed_core::FeedCore;
use crate::feed::rows_read::with_keys;
use crate::feed::shared_texts;
use crate::sealed::Sealed;

/// Separates the hash space of row order from that of random keys, which use the same seed, epoch and sample id.
const ORDER_DOMAIN: u64 = 0x6f72_6465_7200;
/// Separates the hash space of the order of groups from that of rows.
const GROUP_DOMAIN: u64 = 0x6772_6f75_7000;

/// Builds a window.
pub(super) struct Builder<'a> {
    core: &'a Arc<FeedCore>,
    meter: CostMeter,
    stage: &'a Sealed<Stage>,
    /// The lookup table of each layer that joins.
    lookups: &'a [Option<Lookup>],
    epoch: u64,
    made: MadeSoFar,
    /// For each layer, the rows buffered until the whole window has been read.
    waiting: Vec<Vec<SourceRows>>,
    sources: Vec<SourceRows>,
    keyed: Vec<Keyed>,
    bad: Vec<BadRow>,
}

/// A row that passed the filters, or a bad row.
struct Keyed {
    key: u64,
    /// The row of the driving table. Without shuffling, rows keep its order.
    origin: u64,
    sample_id: u64,
    /// 0 if not needed, and for bad rows.
    length: u64,
    row: Row,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        core: &'a Arc<FeedCore>,
        stage: &'a Sealed<Stage>,
        lookups: &'a [Option<Lookup>],
        epoch: u64,
    ) -> Self {
        let waiting = stage.layers().iter().map(|_| Vec::new()).collect();
        let made = MadeSoFar::default();
        let (meter, sources) = (core.meter.clone(), Vec::new());
        Self { core, meter, stage, lookups, epoch, made, waiting, sources, keyed: Vec::new(), bad: Vec::new() }
    }

    /// The same, whose work does not count as the feed's.
    pub(super) fn uncounted(self) -> Self {
        Self { meter: CostMeter::new(&[]), ..self }
    }

    /// Adds rows read from the dataset, and the rows that layers derive from them.
    pub(super) async fn add(&mut self, group: Vec<RangeRows>) -> Result<()> {
        let begun = Instant::now();
        self.add_unreadable(&group);
        if let Some(rows) = self.with_keys(&group)? {
            self.rise(rows, 0).await?;
        }
        self.meter.count(Step::Preparing, begun);
        Ok(())
    }

    /// Adds input rows of the lowest layer, and the rows that layers derive from them.
    pub(super) async fn add_risen(&mut self, group: Vec<RangeRows>) -> Result<()> {
        let begun = Instant::now();
        self.add_unreadable(&group);
        let Some(rows) = self.with_keys(&group)? else { return Ok(()) };
        for rows in self.derive(0, vec![rows])? {
            self.rise(rows, 1).await?;
        }
        self.meter.count(Step::Preparing, begun);
        Ok(())
    }

    fn with_keys(&self, group: &[RangeRows]) -> Result<Option<SourceRows>> {
        with_keys(group, self.core.settings.seed, self.core.drawing_epoch(self.epoch))
    }

    fn add_unreadable(&mut self, group: &[RangeRows]) {
        for bad in group.iter().flat_map(|rows| &rows.bad) {
            self.add_bad(BadRow::new(bad.sample_id, bad.sample_id, &bad.reason));
        }
    }

    /// Passes rows through the layers from `from` on, up to a layer that needs the whole window.
    async fn rise(&mut self, rows: SourceRows, from: usize) -> Result<()> {
        let stage = self.stage.clone();
        let mut rows = vec![rows];
        for (index, layer) in stage.layers().iter().enumerate().skip(from) {
            let mut passed = Vec::with_capacity(rows.len());
            for rows in &rows {
                let risen = stage.rise(layer, rows).await?;
                risen.bad.into_iter().for_each(|bad| self.add_bad(bad));
                passed.push(risen.rows);
            }
            rows = self.derive(index, passed)?;
        }
        for rows in rows {
            self.add_rows(rows).await?;
        }
        Ok(())
    }

    /// The rows that a layer derives from its input rows. A layer that needs all rows of the window derives none yet.
    fn derive(&mut self, index: usize, passed: Vec<SourceRows>) -> Result<Vec<SourceRows>> {
        let layer = &self.stage.layers()[index];
        if layer.is_of_window() {
            self.waiting[index].extend(passed);
            return Ok(Vec::new());
        }
        let order = self.core.order(self.epoch);
        layer.make(&passed, |key| order.key(key), self.lookups[index].as_ref(), &mut self.made)
    }

    /// Runs the layers that need all rows of the window.
    pub(super) async fn make_of_window(&mut self) -> Result<()> {
        let (stage, begun) = (self.stage.clone(), Instant::now());
        let order = self.core.order(self.epoch);
        for (index, layer) in stage.layers().iter().enumerate().filter(|(_, layer)| layer.is_of_window()) {
            let waiting = std::mem::take(&mut self.waiting[index]);
            for rows in layer.make(&waiting, |key| order.key(key), None, &mut self.made)? {
                self.rise(rows, index + 1).await?;
            }
        }
        self.meter.count(Step::Preparing, begun);
        Ok(())
    }

    /// Adds the rows of `rows` that pass the filters.
    async fn add_rows(&mut self, rows: SourceRows) -> Result<()> {
        if rows.sample_ids.is_empty() {
            return Ok(());
        }
        let source = u32::try_from(self.sources.len()).expect("bounded by the number of row ranges");
        let selected = self.stage.select(&rows).await?;
        let (mut kept, mut bad) = selected.unwrap_or_else(|| (rows.sample_ids.clone(), Vec::new()));
        let mut lengths = Vec::new();
        if let Some(plan) = &self.core.lengths {
            let measured = self.stage.measure(plan, &rows, &kept).await?;
            (kept, lengths) = (measured.sample_ids, measured.lengths);
            bad.extend(measured.bad);
        }
        // Rows pass in order, so one pass finds each kept id's row.
        let mut row = 0;
        for (index, &id) in kept.values().iter().enumerate() {
            while rows.sample_ids.value(row) != id {
                row += 1;
            }
            self.add_row(&rows, row, source, lengths.get(index).copied().unwrap_or(0));
        }
        bad.into_iter().for_each(|bad| self.add_bad(bad));
        self.sources.push(rows);
        Ok(())
    }

    fn add_row(&mut self, rows: &SourceRows, at: usize, source: u32, length: u64) {
        let row = Row { source, row: u32::try_from(at).expect("a group has fewer than 2^32 rows") };
        let key = self.core.order(self.epoch).key(rows.random_keys.value(at));
        self.keyed.push(Keyed { key, origin: rows.origin(at), sample_id: rows.sample_ids.value(at), length, row });
    }

    fn add_bad(&mut self, bad: BadRow) {
        let row = Row { source: BAD, row: u32::try_from(self.bad.len()).expect("a window has fewer than 2^32 rows") };
        let key = random_key(self.core.settings.seed, self.core.drawing_epoch(self.epoch), bad.origin);
        let key = self.core.order(self.epoch).key(key);
        self.keyed.push(Keyed { key, origin: bad.origin, sample_id: bad.sample_id, length: 0, row });
        self.bad.push(bad);
    }

    pub(super) fn finish(mut self) -> Result<Window> {
        let begun = Instant::now();
        self.keyed.sort_unstable_by_key(|keyed| (keyed.key, keyed.origin, keyed.sample_id));
        let (order, groups) = self.order();
        shared_texts::share(&mut self.sources, self.stage)?;
        let sources = shared_texts::memory_size(&self.sources, self.stage);
        let reasons: usize = self.bad.iter().map(|bad| size_of::<BadRow>() + bad.reason.len()).sum();
        let bytes = (sources + reasons + order.len() * size_of::<Row>()) as u64;
        let (stage, meter) = (self.stage.clone(), self.meter.clone());
        let executor = Arc::clone(&self.core.executor);
        meter.count(Step::Preparing, begun);
        meter.count_window();
        let (sources, bad) = (self.sources, self.bad);
        Ok(Window { stage, executor, meter, sources, order, bad, groups, is_shared: false, bytes })
    }

    /// The content of each position, after all rows have been ordered.
    fn order(&self) -> (Vec<Row>, Option<Groups>) {
        let Some(buckets) = &self.core.settings.buckets else {
            return (self.keyed.iter().map(|keyed| keyed.row).collect(), None);
        };
        let lengths: Vec<u64> = self.keyed.iter().map(|keyed| keyed.length).collect();
        let group_key = |first: usize| match self.core.settings.shuffle {
            // Hash the key again, because the first of many rows tends to have a lower key than the first of few.
            true => xxh3_64_with_seed(&self.keyed[first].key.to_le_bytes(), GROUP_DOMAIN),
            false => first as u64,
        };
        let Grouped { positions, lengths } = group(buckets, &lengths, group_key);
        let has_gaps = positions.len() > self.keyed.len();
        let order = positions.into_iter().map(|row| row.map_or(GAP, |row| self.keyed[row].row)).collect();
        (order, Some(Groups { size: buckets.global_batch_size, lengths, has_gaps }))
    }
}

/// The order of rows within a window.
#[derive(Clone, Copy)]
enum RowOrder {
    /// That of the dataset.
    Files,
    /// A keyed random order. Equal random keys give another order in each of these domains.
    Keyed(u64),
}

impl RowOrder {
    /// The sort key of a row with this random key.
    fn key(self, random_key: u64) -> u64 {
        match self {
            Self::Files => 0,
            Self::Keyed(domain) => xxh3_64_with_seed(&random_key.to_le_bytes(), domain),
        }
    }
}

impl FeedCore {
    /// The order of rows in the windows of an epoch.
    fn order(&self, epoch: u64) -> RowOrder {
        match &self.settings {
            FeedSettings { shuffle: false, .. } => RowOrder::Files,
            // Rows keep their keys, so the epochs have different orders by different domains.
            FeedSettings { draws_once: true, .. } => RowOrder::Keyed(ORDER_DOMAIN.wrapping_add(epoch)),
            _ => RowOrder::Keyed(ORDER_DOMAIN),
        }
    }
}
