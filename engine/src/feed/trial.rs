//! Measures what a feed costs, cut by cut of its query, on a few of its rows.
//!
//! PRESTO (SIGMOD 2022) runs a pipeline once for each cut. A trial runs each cut over the same few rows, row range by
//! row range, so that other work of the machine slows all cuts alike. What a cut saves is measured, not summed up
//! from calls: calls that run together cost less than each alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_arrays::batch_bytes;
use forebay_delivery::WindowId;
use forebay_operators::image_chain::is_last_step;
use forebay_policy::{Cut, Finish, Measured, Store, Workload};
use forebay_protocol::random_id;
use forebay_storage::{RangeRows, RowRange, StoreRates, store_rates};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use super::costs::FeedCosts;
use super::feed_core::FeedCore;
use super::memo::Memo;
use super::reads::READS_LEAST;
use super::rows_read::limited;
use super::window::Window;
use crate::error::{Error, Result};

/// A trial measures at most this share of an epoch's rows, and at least one row.
pub(super) const ROWS_SHARE: f64 = 0.05;
/// The most bytes of source rows that are in memory at a time, and that are computed at a time.
const BYTES_AT_ONCE: u64 = 16 << 20;
const RANGE_BYTES_MAX: u64 = 4 << 20;
/// The least time that a read takes, so that a rate is finite.
const READ_LEAST: Duration = Duration::from_micros(10);
/// The names of the first and of the last cut.
pub(super) const SOURCE: &str = "source";
const WHOLE: &str = "whole query";

/// A place where the feed may keep its samples.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    pub(crate) memo: Arc<Memo>,
    /// Whether a sample differs between epochs there.
    pub(crate) is_random: bool,
}

/// What a trial measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Source rows that were measured.
    pub rows: u64,
    /// Source rows of an epoch.
    pub rows_of_epoch: u64,
    /// Samples that were made of the measured rows.
    pub samples: u64,
    /// Places to keep samples: the source, then those of the query, whose time is what keeping saves. The last is the
    /// whole query, at which nothing is kept.
    pub cuts: Vec<Cut>,
    /// The last step, if trainers over the wire compute it.
    pub finish: Option<Finish>,
    /// How far the time of a sample is from its mean, relative to it: half the width of a 95 % interval.
    pub error: f64,
    /// The store that the source is read from.
    pub source: Store,
    /// The store under the session's root.
    pub cache: Store,
}

/// The work to come, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Epochs that the job will read.
    pub epochs_to_come: u32,
    /// Other jobs that read the same samples as often, afterwards.
    pub other_jobs: u32,
    /// Samples per second that all trainers take when they never wait, if known.
    pub demand: Option<f64>,
    /// Trainers, each with its own price.
    pub trainers: u32,
    /// Cores that compute.
    pub cores: f64,
    /// The most bytes to keep.
    pub limit_bytes: f64,
}

/// A demand that is not known is greater than what any machine computes.
const DEMAND_UNKNOWN: f64 = 1e9;

impl Trial {
    /// Measures until a share of the rows, or about so many seconds of computing, have been spent.
    ///
    /// # Errors
    /// Those of reading and computing, and of the store under the feed's root.
    pub(crate) async fn run(core: &Arc<FeedCore>, candidates: &[Candidate], seconds: f64) -> Result<Self> {
        let rows_of_epoch = core.plan.epoch(0).rows();
        let mut left = ((rows_of_epoch as f64 * ROWS_SHARE) as u64).max(1);
        let mut sums = Sums::new(candidates.len());
        let before = core.meter.costs();
        let mut ranges = Ranges::new(core);
        let begun = Instant::now();
        while sums.rows == 0 || begun.elapsed().as_secs_f64() < seconds {
            let group = ranges.next(left);
            if group.is_empty() {
                break;
            }
            left -= group.iter().map(|part| part.rows).sum::<u64>();
            sums.read(core, &group, candidates, seconds, begun).await?;
        }
        let rates = store_rates(&core.stores, &core.root, random_id()?).await.map_err(|error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("the root's store cannot be measured: {}", error.message()))
                .with_hint("choose a writable folder or URL with the option \"root\"")
        })?;
        let finish = finish(&core.meter.costs().since(&before));
        Ok(sums.trial(rows_of_epoch, candidates, rates, (core.dataset.is_local(), finish)))
    }

    /// Thread-seconds to compute a sample from its source rows.
    pub fn seconds_per_sample(&self) -> f64 {
        self.cuts.last().map_or(0.0, |cut| cut.compute_seconds_per_sample)
    }

    /// Samples of an epoch, estimated from those of the measured rows.
    pub fn samples_of_epoch(&self) -> f64 {
        (self.rows_of_epoch as f64 * self.samples as f64 / self.rows.max(1) as f64).max(1.0)
    }

    /// The question to the policy: see [`forebay_policy::advise`].
    pub fn measured(&self, work: &Work) -> Measured {
        Measured {
            cuts: self.cuts.clone(),
            source: self.source,
            cache: self.cache,
            workload: Workload {
                samples: self.samples_of_epoch(),
                epochs_to_come: work.epochs_to_come,
                other_jobs: work.other_jobs,
                trainers_samples_per_second: work.demand.unwrap_or(DEMAND_UNKNOWN),
                trainers: work.trainers,
                cores: work.cores,
                cores_per_worker: work.cores,
            },
            limit_bytes: work.limit_bytes,
        }
    }
}

/// The row ranges to measure, from windows of the whole epoch.
struct Ranges<'a> {
    core: &'a FeedCore,
    /// Not read yet, of the windows before `window`, each with its rows that belong to the feed.
    rest: Vec<(RowRange, u64)>,
    window: u32,
}

impl<'a> Ranges<'a> {
    fn new(core: &'a FeedCore) -> Self {
        Self { core, rest: Vec::new(), window: 0 }
    }

    /// Parts of ranges to read at a time, of at most `rows` rows.
    fn next(&mut self, rows: u64) -> Vec<Part> {
        let (mut group, mut left, mut bytes) = (Vec::new(), rows, 0);
        while left > 0 && group.len() < READS_LEAST && bytes < BYTES_AT_ONCE {
            let Some((range, rows)) = self.rest.pop() else {
                if self.window >= self.core.plan.epoch(0).windows() {
                    break;
                }
                let of_window = self.core.plan.single_ranges(WindowId { epoch: 0, index: self.window });
                self.rest.extend(of_window);
                self.window += 1;
                continue;
            };
            let at_once = (range.rows * RANGE_BYTES_MAX / range.bytes.max(1)).max(1);
            let rows = rows.min(left).min(at_once);
            (left, bytes) = (left - rows, bytes + range.bytes);
            let first = self.core.dataset.snapshot().files()[range.file as usize].first_sample_id + range.first_row;
            group.push(Part { range, rows, end: (first + rows).min(self.core.limit) });
        }
        group
    }
}

/// The first rows of a range. The range is read whole: not every format has parts.
struct Part {
    range: RowRange,
    rows: u64,
    /// The id after its last row.
    end: u64,
}

/// What a trial has counted.
struct Sums {
    rows: u64,
    samples: u64,
    /// Of the rows that were read, which may be more than were computed.
    read_rows: u64,
    bytes: u64,
    reads: u64,
    reading: Duration,
    /// Of the whole query over source rows, and the bytes of its samples.
    whole: Duration,
    sample_bytes: u64,
    /// For each range: samples, and seconds of the whole query.
    ranges: Vec<(f64, f64)>,
    /// Of each candidate: the time of the rest of the query over what it keeps, bytes kept, and blocks.
    rest: Vec<(Duration, u64, u64)>,
    is_warm: bool,
}

impl Sums {
    fn new(candidates: usize) -> Self {
        Self {
            rows: 0,
            samples: 0,
            read_rows: 0,
            bytes: 0,
            reads: 0,
            reading: Duration::ZERO,
            whole: Duration::ZERO,
            sample_bytes: 0,
            ranges: Vec::new(),
            rest: vec![Default::default(); candidates],
            is_warm: false,
        }
    }

    /// Reads some ranges at a time, and computes them one by one.
    async fn read(
        &mut self,
        core: &Arc<FeedCore>,
        group: &[Part],
        candidates: &[Candidate],
        seconds: f64,
        begun: Instant,
    ) -> Result<()> {
        let (columns, categories) = (core.stage.read_columns(), core.stage.read_categories());
        let since = Instant::now();
        // What an earlier job has kept says nothing about the store.
        let dataset = core.dataset.without_pieces();
        let read = group.iter().map(|part| dataset.read_with_dictionaries(&part.range, columns, categories));
        let read = try_join_all(read).await?;
        self.reading += since.elapsed();
        self.read_rows += group.iter().map(|part| part.range.rows).sum::<u64>();
        self.bytes += group.iter().map(|part| part.range.bytes).sum::<u64>();
        self.reads += group.len() as u64;
        for (part, rows) in group.iter().zip(read) {
            let rows = limited(rows, part.end);
            if !self.is_warm {
                // The first rows pay for memory that the others use again.
                compute(core, rows.clone(), candidates, part).await?;
                self.is_warm = true;
            }
            let computed = compute(core, rows, candidates, part).await?;
            self.rows += part.rows;
            self.samples += computed.samples;
            self.whole += computed.whole;
            self.sample_bytes += computed.sample_bytes;
            self.ranges.push((computed.samples as f64, computed.whole.as_secs_f64()));
            for (sum, (time, bytes)) in self.rest.iter_mut().zip(computed.rest) {
                *sum = (sum.0 + time, sum.1 + bytes, sum.2 + 1);
            }
            if begun.elapsed().as_secs_f64() >= seconds {
                break;
            }
        }
        Ok(())
    }

    fn trial(
        self,
        rows_of_epoch: u64,
        candidates: &[Candidate],
        rates: StoreRates,
        (is_local, finish): (bool, Option<Finish>),
    ) -> Trial {
        let samples = self.samples.max(1) as f64;
        let reading = self.reading.max(READ_LEAST).as_secs_f64();
        let source_rate = (self.bytes as f64 / reading).max(1.0);
        let bytes_per_row = self.bytes as f64 / self.read_rows.max(1) as f64;
        let whole = self.whole.as_secs_f64() / samples;
        let mut cuts = vec![Cut {
            name: SOURCE.to_owned(),
            compute_seconds_per_sample: 0.0,
            bytes_per_sample: bytes_per_row * self.rows as f64 / samples,
            never_kept: is_local,
        }];
        let (mut saved, mut block_bytes) = (0.0_f64, 0.0_f64);
        for (candidate, (rest, bytes, blocks)) in candidates.iter().zip(&self.rest) {
            // A later cut saves no less than one before it. Noise of measuring may say otherwise.
            saved = saved.max(whole - rest.as_secs_f64() / samples);
            block_bytes = block_bytes.max(*bytes as f64 / (*blocks).max(1) as f64);
            cuts.push(Cut {
                name: candidate.name.clone(),
                compute_seconds_per_sample: saved,
                bytes_per_sample: *bytes as f64 / samples,
                never_kept: candidate.is_random,
            });
        }
        let rest = (whole - saved).max(0.0);
        cuts.push(Cut {
            name: WHOLE.to_owned(),
            compute_seconds_per_sample: whole.max(saved),
            bytes_per_sample: self.sample_bytes as f64 / samples,
            never_kept: true,
        });
        let finish = finish.map(|finish| Finish {
            seconds_per_sample: finish.seconds_per_sample.min(rest),
            bytes_before: self.sample_bytes as f64 / samples - (finish.bytes_after - finish.bytes_before),
            bytes_after: self.sample_bytes as f64 / samples,
        });
        let store = |read: f64, written: f64, bytes: f64| Store {
            bytes_per_second: read.max(1.0),
            written_bytes_per_second: written.max(1.0),
            // The rates were measured with as many requests at a time.
            seconds_per_request: 0.0,
            bytes_per_request: bytes.max(1.0),
        };
        Trial {
            rows: self.rows,
            rows_of_epoch,
            samples: self.samples,
            cuts,
            finish: finish.filter(|finish| finish.bytes_before >= 0.0),
            error: error(&self.ranges),
            source: store(source_rate, source_rate, self.bytes as f64 / self.reads.max(1) as f64),
            cache: store(rates.read, rates.written, block_bytes),
        }
    }
}

/// What computing a row range has taken.
struct Computed {
    samples: u64,
    sample_bytes: u64,
    whole: Duration,
    /// For each candidate, the time of the rest of the query, and the bytes that it keeps.
    rest: Vec<(Duration, u64)>,
}

async fn compute(core: &Arc<FeedCore>, rows: RangeRows, candidates: &[Candidate], part: &Part) -> Result<Computed> {
    let begun = Instant::now();
    let (samples, sample_bytes) = transformed(&Window::of_source(core, rows.clone()).await?).await?;
    let whole = begun.elapsed();
    let mut rest = Vec::with_capacity(candidates.len());
    for Candidate { memo, .. } in candidates {
        let reads_same =
            core.stage.read_categories().is_empty() && memo.stage.read_columns() == core.stage.read_columns();
        let made = match reads_same {
            true => memo.made(core, std::slice::from_ref(&rows), 0).await?,
            false => {
                let read = memo.source(core, part.range).await?.into_iter();
                memo.made(core, &read.map(|rows| limited(rows, part.end)).collect::<Vec<_>>(), 0).await?
            }
        };
        let bytes = memo.bytes_to_keep(&made)?;
        let begun = Instant::now();
        transformed(&Window::of_made(core, memo, made).await?).await?;
        rest.push((begun.elapsed(), bytes));
    }
    Ok(Computed { samples, sample_bytes, whole, rest })
}

/// Computes all samples of a window, and returns their number and bytes.
async fn transformed(window: &Window) -> Result<(u64, u64)> {
    let all = 0..window.len();
    let made = window.transform(std::slice::from_ref(&all), false).await?;
    let rows = made.batches.iter().map(|batch| batch.num_rows() as u64).sum();
    Ok((rows, made.batches.iter().map(batch_bytes).sum()))
}

/// The last step of the query, if trainers over the wire compute it, with its bytes in and out for each row.
fn finish(costs: &FeedCosts) -> Option<Finish> {
    let call = costs.calls.last().filter(|call| is_last_step(&call.name) && call.rows > 0)?;
    let each = |sum: f64| sum / call.rows as f64;
    Some(Finish {
        seconds_per_sample: each(call.seconds),
        bytes_before: each(call.bytes_in as f64),
        bytes_after: each(call.bytes_out as f64),
    })
}

/// Half the width of the 95 % interval of the seconds of a sample, relative to them, from ranges of samples.
fn error(ranges: &[(f64, f64)]) -> f64 {
    let (samples, seconds) = ranges.iter().fold((0.0, 0.0), |sum, range| (sum.0 + range.0, sum.1 + range.1));
    if ranges.len() < 2 || samples == 0.0 || seconds == 0.0 {
        return 1.0;
    }
    let mean = seconds / samples;
    // The variance of a ratio of sums.
    let squares: f64 = ranges.iter().map(|(samples, seconds)| (seconds - mean * samples).powi(2)).sum();
    let number = ranges.len() as f64;
    1.96 * (squares * number / (number - 1.0)).sqrt() / seconds
}
