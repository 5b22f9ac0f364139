//! Chooses what a feed keeps: nothing, what it reads of remote files, or its samples at one of several cuts.
//!
//! A trial measures each cut while the first windows are computed, and the policy chooses by it. No choice changes a
//! sample, so windows before and after it belong together. What was measured is recorded under the root, so that other
//! processes of the feed, and later jobs, need not measure again. Each decides by itself, for its own epochs. Rows that
//! another job has kept cost nothing to keep, so a job that finds them reads them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use forebay_policy::{Estimate, Grouped, Weights, advise};
use forebay_protocol::{CacheMode, CallOrder};
use forebay_storage::Stores;
use serde::{Deserialize, Serialize};

use super::cache_report::CacheReport;
use super::cache_room::{Worth, make_room};
use super::feed_core::FeedCore;
use super::trial::{Candidate, Trial, Work};
use crate::error::{Error, Result};

/// About the time that a trial may compute beside the first windows.
const TRIAL_SECONDS: f64 = 1.0;
/// The epochs that a feed is expected to be read if the number is not given.
const EPOCHS_UNKNOWN: u32 = 10;
/// A measurement that is less sure is repeated by the next process.
const ERROR_MOST: f64 = 0.3;
/// Rows that others keep are used if they are at least this share of the epoch.
const KEPT_SHARE_LEAST: f64 = 0.5;
/// Raise this when records have another form or meaning.
const RECORD_VERSION: u32 = 1;
/// How often the room for what is kept is found out again: others keep rows too.
const ROOM_PAUSE: Duration = Duration::from_secs(60);

/// A choice of what to keep that is made while the feed is read.
pub(crate) struct AutoCache {
    candidates: Vec<Candidate>,
    /// Switches keeping of remote files' pieces on; `None` if no file is remote.
    pieces: Option<Arc<AtomicBool>>,
    limit_bytes: u64,
    root: String,
    trial_of: TrialOf,
    /// What was chosen; `None` if nothing could be measured.
    choice: OnceLock<Option<Choice>>,
    begun: AtomicBool,
}

/// What was chosen, and why.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The index of the candidate whose rows are kept.
    candidate: Option<usize>,
    /// Whether pieces of remote files are kept.
    keeps_pieces: bool,
    /// Bytes that the choice would keep, within the limit.
    bytes: u64,
    /// What they are worth.
    worth: Worth,
    reason: String,
}

/// What a trial measured, for other processes and later jobs.
#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    trial_of: TrialOf,
    trial: Trial,
    /// Of each candidate.
    worths: Vec<Worth>,
}

/// What identifies a trial: the same for each seed, batch size and process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TrialOf {
    /// The query, and the order of its calls.
    pub(super) query: (String, CallOrder),
    pub(super) snapshot: String,
    pub(super) build: serde_json::Value,
}

impl AutoCache {
    pub(super) fn new(
        candidates: Vec<Candidate>,
        pieces: Option<Arc<AtomicBool>>,
        limit_bytes: u64,
        root: &str,
        trial_of: TrialOf,
    ) -> Self {
        let (choice, begun) = (OnceLock::new(), AtomicBool::new(false));
        let root = root.trim_end_matches('/').to_owned();
        Self { candidates, pieces, limit_bytes, root, trial_of, choice, begun }
    }

    /// Whether it has begun to choose, and has not chosen.
    pub(super) fn is_choosing(&self) -> bool {
        self.begun.load(Ordering::Relaxed) && self.choice.get().is_none()
    }

    /// The places that it chooses from.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Chooses, and carries the choice out until the future is dropped. `None` if that has begun before, or if there is
    /// nothing to choose from. The feed will be read for `epochs` epochs, if their number is known.
    pub(super) fn begin(
        self: &Arc<Self>,
        core: &Arc<FeedCore>,
        epochs: Option<u64>,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let has_choice = !self.candidates.is_empty() || self.pieces.is_some();
        if !has_choice || self.begun.swap(true, Ordering::Relaxed) {
            return None;
        }
        let (this, core) = (Arc::clone(self), Arc::clone(core));
        Some(async move {
            match this.choose(&core, epochs).await {
                Ok(choice) => {
                    tracing::info!(feed = %core.id, "{}", choice.reason);
                    core.meter.set_keeps(&choice.reason);
                    this.carry_out(choice, core).await;
                }
                Err(error) => {
                    tracing::warn!(feed = %core.id, %error, "nothing is kept: what it would save cannot be measured");
                    let _ = this.choice.set(None);
                }
            }
        })
    }

    /// Keeps what was chosen, within the room that there is, while the feed is open.
    async fn carry_out(&self, choice: Choice, core: Arc<FeedCore>) {
        let (chosen, bytes) = (choice.candidate, choice.bytes);
        if let Some(pieces) = &self.pieces {
            pieces.store(choice.keeps_pieces, Ordering::Relaxed);
        }
        let worth = choice.worth.clone();
        let _ = self.choice.set(Some(choice));
        let Some((at, candidate)) = chosen.and_then(|at| Some((at, self.candidates.get(at)?))) else { return };
        candidate.memo.limit(0);
        let _ = core.kept.set(at);
        let stores = core.stores.clone();
        // The feed's end ends this.
        drop(core);
        loop {
            match make_room(&stores, &self.root, &worth, bytes, self.limit_bytes, || self.worths(&stores)).await {
                Ok(room) => candidate.memo.limit(room),
                Err(error) => tracing::warn!(%error, "no more is kept: the room for it cannot be found out"),
            }
            tokio::time::sleep(ROOM_PAUSE).await;
        }
    }

    /// What folders of kept rows are worth, as far as that was measured. What an older build or snapshot has kept is
    /// worth nothing.
    async fn worths(&self, stores: &Stores) -> Result<Vec<Worth>> {
        let mut worths = Vec::new();
        for object in stores.list(&format!("{}/trials", self.root)).await? {
            let Ok(text) = stores.get(&format!("{}/trials/{}", self.root, object.name)).await else { continue };
            let Ok(Record { trial_of, worths: of_record, .. }) = serde_json::from_slice::<Record>(&text) else {
                continue;
            };
            let is_old = trial_of.build != self.trial_of.build
                || (trial_of.query == self.trial_of.query && trial_of.snapshot != self.trial_of.snapshot);
            let worth =
                |worth: Worth| Worth { seconds_per_byte: if is_old { 0.0 } else { worth.seconds_per_byte }, ..worth };
            worths.extend(of_record.into_iter().map(worth));
        }
        Ok(worths)
    }

    /// The choice for what is known now.
    pub(crate) async fn choose(&self, core: &Arc<FeedCore>, epochs: Option<u64>) -> Result<Choice> {
        let trial = match self.recorded(core).await {
            Some(trial) => trial,
            None => {
                let trial = Trial::run(core, &self.candidates, TRIAL_SECONDS).await?;
                self.record(core, &trial).await;
                trial
            }
        };
        let work = Work {
            epochs_to_come: epochs.map_or(EPOCHS_UNKNOWN, |epochs| u32::try_from(epochs).unwrap_or(u32::MAX)),
            demand: core.demand.samples_per_second(),
            limit_bytes: self.limit_bytes as f64,
            ..Work::of(core)
        };
        let advice = advise(&trial.measured(&work), None, &Weights::default()).map_err(refused)?;
        let passes = f64::from(work.epochs_to_come);
        let (nothing, mut chosen) = (&advice.estimates[0], advice.chosen);
        let mut total = advice.choice().total_seconds;
        // What is kept already costs no more than reading it.
        let stored = core.dataset.bytes_to_read(core.plan.read(), core.stage.read_columns()).await?;
        let (stored, kept_bytes) =
            (stored.map_or(f64::INFINITY, |(own, _)| own as f64), core.dataset.kept_bytes().await);
        let mut kept = vec![(SOURCE_AT, kept_bytes as f64 / stored.max(1.0))];
        for (at, Candidate { memo, .. }) in self.candidates.iter().enumerate() {
            memo.learn().await?;
            kept.push((at + FIRST_CANDIDATE, memo.usage().rows as f64 / trial.rows_of_epoch.max(1) as f64));
        }
        for (at, share) in kept {
            let estimate = &advice.estimates[at];
            let reading = passes * estimate.epoch_seconds;
            if share >= KEPT_SHARE_LEAST && estimate.epoch_seconds < nothing.epoch_seconds && reading < total {
                (chosen, total) = (at, reading);
            }
        }
        let estimate = &advice.estimates[chosen];
        let keeps_pieces = chosen == SOURCE_AT && self.pieces.is_some();
        let candidate = chosen.checked_sub(FIRST_CANDIDATE);
        let worth = candidate.and_then(|at| self.worths_of(&trial).nth(at));
        Ok(Choice {
            candidate,
            worth: worth.unwrap_or_default(),
            keeps_pieces,
            bytes: estimate.kept_bytes as u64,
            reason: reason(estimate, nothing, keeps_pieces),
        })
    }

    /// What is chosen, or would be, for `EXPLAIN PIPELINE`. Computes a few rows.
    pub(super) async fn explain(self: &Arc<Self>, core: &Arc<FeedCore>) -> Result<CacheReport> {
        let chosen = match self.choice.get() {
            Some(choice) => choice.clone(),
            None => {
                let (this, its) = (Arc::clone(self), Arc::clone(core));
                match core.executor.spawn(async move { this.choose(&its, None).await }).join().await? {
                    Ok(choice) => Some(choice),
                    Err(error) => {
                        tracing::warn!(%error, "what keeping samples would save cannot be measured");
                        None
                    }
                }
            }
        };
        let Some(choice) = chosen else {
            return Ok(CacheReport {
                mode: CacheMode::Auto,
                folder: String::new(),
                rows: None,
                bytes: 0,
                limit: Some(self.limit_bytes),
                is_local: self.pieces.is_none(),
                bytes_per_byte: None,
                choice: Some("nothing, since what it would save cannot be measured".to_owned()),
            });
        };
        let memo = choice.candidate.and_then(|at| self.candidates.get(at)).map(|candidate| &candidate.memo);
        let usage = memo.map(|memo| memo.usage());
        Ok(CacheReport {
            mode: CacheMode::Auto,
            folder: memo.map_or_else(String::new, |memo| memo.folder().to_owned()),
            rows: usage.map(|usage| usage.rows),
            bytes: usage.map_or(0, |usage| usage.bytes),
            limit: Some(self.limit_bytes),
            is_local: self.pieces.is_none(),
            bytes_per_byte: None,
            choice: Some(choice.reason),
        })
    }

    /// What another process has measured.
    async fn recorded(&self, core: &FeedCore) -> Option<Trial> {
        let bytes = core.stores.get(&self.record_url()).await.ok()?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        let is_whole = record.version == RECORD_VERSION
            && record.trial.error <= ERROR_MOST
            && record.trial.cuts.len() == self.candidates.len() + 2
            && record
                .trial
                .cuts
                .iter()
                .skip(1)
                .zip(&self.candidates)
                .all(|(cut, candidate)| cut.name == candidate.name);
        is_whole.then_some(record.trial)
    }

    /// Records what was measured. Without a record, others measure again.
    async fn record(&self, core: &FeedCore, trial: &Trial) {
        let record = Record {
            version: RECORD_VERSION,
            trial_of: self.trial_of.clone(),
            trial: trial.clone(),
            worths: self.worths_of(trial).collect(),
        };
        let Ok(text) = serde_json::to_vec(&record) else { return };
        let url = self.record_url();
        if let Err(error) = core.stores.put(&url, Bytes::from(text)).await {
            tracing::debug!(url, %error, "what was measured is not recorded");
        }
    }

    /// What each candidate is worth.
    fn worths_of<'a>(&'a self, trial: &'a Trial) -> impl Iterator<Item = Worth> + 'a {
        let cuts = trial.cuts.iter().skip(1).zip(&self.candidates);
        cuts.map(|(cut, candidate)| Worth {
            folder: folder_name(candidate),
            seconds_per_byte: cut.compute_seconds_per_sample / cut.bytes_per_sample.max(1.0),
        })
    }

    fn record_url(&self) -> String {
        let name = serde_json::json!(self.trial_of).to_string();
        format!("{}/trials/{}.json", self.root, &blake3::hash(name.as_bytes()).to_hex()[..32])
    }
}

/// The name of the folder in which a candidate's rows are kept.
fn folder_name(candidate: &Candidate) -> String {
    let folder = candidate.memo.folder();
    folder.rsplit('/').next().unwrap_or(folder).to_owned()
}

/// The error of a policy that was asked wrongly.
fn refused(error: forebay_policy::Error) -> Error {
    Error::invalid(error.message).with_hint(error.hint)
}

/// The places of the source and of the first candidate in the policy's advice, which begins with keeping nothing.
const SOURCE_AT: usize = 1;
const FIRST_CANDIDATE: usize = 2;

impl Work {
    /// The work of a feed in this process.
    pub(crate) fn of(core: &FeedCore) -> Self {
        Self {
            epochs_to_come: EPOCHS_UNKNOWN,
            other_jobs: 0,
            demand: None,
            trainers: 1,
            cores: core.executor.threads() as f64,
            limit_bytes: f64::MAX,
        }
    }
}

fn reason(chosen: &Estimate, nothing: &Estimate, keeps_pieces: bool) -> String {
    let rate = |estimate: &Estimate| Grouped(estimate.samples_per_second.round());
    let kept = match chosen.cut.as_deref() {
        Some(super::trial::SOURCE) if keeps_pieces => "what is read of remote files".to_owned(),
        None | Some(super::trial::SOURCE) => {
            return format!("cache: nothing, since it would not pay off: {} samples/s without", rate(nothing));
        }
        Some(cut) => format!("{:.0} % of the samples after {cut}", chosen.share * 100.0),
    };
    let (bytes, without) = (forebay_policy::Bytes(chosen.kept_bytes), rate(nothing));
    format!("cache: {kept}, {bytes}, for {} samples/s from epoch 2 instead of {without}", rate(chosen))
}
