//! An open feed: its sequencer, its readers, and its jobs with dynamic delivery.

use std::collections::{BTreeMap, BTreeSet};

use super::fence::Fence;
use super::group::{Group, GroupKey, JobStatus};
use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::{Report, Route};
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, LeaseId, ReaderId, Sequencer, WorkerId};
use crate::window::{Plan, WindowId};

/// A rank that has not asked for longer is taken to ask another dispatcher.
const ASKED_MS: Millis = 1_500;

/// The sequencer's only reader of a job: the next file to store is its current window.
pub(super) const WRITER: ReaderId = 0;
pub(super) const FIRST: WindowId = WindowId { epoch: 0, index: 0 };

/// What an open feed has that is a job.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Whether somebody asks for it, so that its files are leased.
    pub(super) is_asked_for: bool,
    /// Samples and bytes that workers reported as stored.
    pub(super) stored: [u64; 2],
    /// Why a second copy of a stored file failed, if that shows that the job does not give the same files again.
    pub(super) contradiction: Option<Report>,
}

/// A feed that the dispatcher has open.
#[derive(Debug)]
pub(super) struct OpenFeed<P> {
    pub(super) sequencer: Sequencer<P>,
    pub(super) readers: BTreeMap<u64, ReaderContact>,
    pub(super) failures: BTreeMap<WindowId, Report>,
    /// When each lease of a window that is not ready was granted.
    pub(super) granted: BTreeMap<(WindowId, LeaseId), Millis>,
    /// The usual time to compute a window, once one is ready.
    pub(super) typical_ms: Option<Millis>,
    pub(super) last_read: Millis,
    /// Named jobs with ordered delivery.
    pub(super) fence: Fence,
    /// Jobs with dynamic delivery.
    pub(super) groups: BTreeMap<GroupKey, Group>,
    /// Of a job that writes files.
    pub(super) writing: Option<Writing>,
    /// A description of the feed's pipeline, for errors.
    pub(super) about: String,
}

/// A trainer in contact: one rank of one reader.
#[derive(Debug)]
pub(super) struct ReaderContact {
    pub(super) seq: u64,
    pub(super) contact: Millis,
    pub(super) rank: u64,
    pub(super) world_size: u64,
    pub(super) at: WindowId,
    pub(super) until_epoch: u64,
    /// For each window, a worker that the trainer could not reach.
    pub(super) avoid: BTreeMap<WindowId, WorkerId>,
    pub(super) waiting: Option<(WindowId, u64)>,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) stalled_ms: u64,
    pub(super) told: ToldReader,
    pub(super) version: u64,
}

/// The content of the last answer to a trainer: routes, failure, number of workers, and whether all refuse the feed.
pub(super) type ToldReader = (Vec<Route>, Option<(WindowId, Report)>, usize, bool);

impl<P: Plan> OpenFeed<P> {
    /// Opens a feed that has no readers yet.
    pub(super) fn new(sequencer: Sequencer<P>, now: Millis) -> Self {
        Self {
            sequencer,
            readers: BTreeMap::new(),
            failures: BTreeMap::new(),
            granted: BTreeMap::new(),
            typical_ms: None,
            last_read: now,
            fence: Fence::default(),
            groups: BTreeMap::new(),
            writing: None,
            about: String::new(),
        }
    }

    /// Returns why `window` cannot be computed.
    pub(super) fn failure(&self, window: WindowId) -> Report {
        let of_job = self.writing.is_some();
        self.failures.get(&window).cloned().unwrap_or_else(|| lost_too_often(window, of_job, &self.about))
    }

    pub(super) fn remove_reader(&mut self, session: u64) {
        self.readers.remove(&session);
        let _ = self.sequencer.handle(Event::ReaderLeft { reader: session });
    }

    pub(super) fn counted(&mut self, window: WindowId, lease: LeaseId, rows: u64, bytes: u64) {
        if !self.sequencer.holds(window, lease) {
            return;
        }
        if let Err(impure) = self.sequencer.handle(Event::WindowCounted { window, lease, rows, bytes }) {
            let (before, now) = impure.rows;
            self.failures.insert(
                window,
                Report {
                    kind: ErrorKind::Internal,
                    message: format!(
                        "window {} of epoch {} has {now} samples, but had {before} when it was first computed",
                        window.index, window.epoch
                    ),
                    hint: Some("check that all workers read the same files and run the same build".to_owned()),
                    retry: false,
                },
            );
            let _ = self.sequencer.handle(Event::WindowFailed { window, lease, retry: false });
        }
    }

    /// Returns how long a window may take before a second copy is leased for a reader that waits.
    pub(super) fn patience(&self, stall_ms: Millis) -> Millis {
        stall_ms.max(3 * self.typical_ms.unwrap_or_default())
    }

    /// Counts the time that a window took from its lease until it was ready.
    pub(super) fn took(&mut self, ms: Millis) {
        self.typical_ms = Some(self.typical_ms.map_or(ms, |typical| (3 * typical + ms) / 4));
    }

    /// Returns the age of the oldest lease of `window`, if it is not ready.
    pub(super) fn age(&self, window: WindowId, now: Millis) -> Millis {
        let leases = self.granted.range((window, 0)..=(window, LeaseId::MAX));
        let leases = leases.filter(|((window, lease), _)| self.sequencer.holds(*window, *lease));
        leases.map(|(_, granted)| now.saturating_sub(*granted)).max().unwrap_or_default()
    }

    /// Has idle workers compute windows that take long, those next to a reader first. Nothing else would be computed
    /// meanwhile, so the patience is shorter than for a worker that is busy. Removes the workers that it takes.
    pub(super) fn use_idle_workers(&mut self, idle: &mut Vec<WorkerId>, stall_ms: Millis, now: Millis) {
        if idle.is_empty() || self.typical_ms.is_none() {
            return;
        }
        let patience = self.patience(stall_ms) / 2;
        let late = self.granted.keys().filter(|(window, _)| self.age(*window, now) >= patience);
        let late = late.filter_map(|&(window, _)| Some((self.sequencer.distance(window)?, window)));
        let late: BTreeSet<_> = late.collect();
        for (_, window) in late {
            idle.retain(|&idle| {
                let before = self.sequencer.granted();
                let _ = self.sequencer.handle(Event::WindowLate { window, idle });
                self.sequencer.granted() == before
            });
        }
    }

    /// Retries failed windows that this job needs.
    pub(super) fn retry_group(&mut self, key: &GroupKey) {
        if let Some((group, at)) = self.groups.get(key).and_then(|group| Some((group, group.at?))) {
            self.failures.retain(|&window, _| window < at);
            let _ = self.sequencer.handle(group.joined(at));
        }
    }

    /// Releases the windows of jobs that are silent since `silent_since`, which keep their claims. Forgets jobs that
    /// are silent since `forgotten_since`; they start over as with a new dispatcher.
    pub(super) fn release_silent_groups(&mut self, silent_since: Millis, forgotten_since: Millis) {
        for group in self.groups.values_mut().filter(|group| group.contact < silent_since && group.at.is_some()) {
            let _ = self.sequencer.handle(Event::ReaderLeft { reader: group.reader });
            group.at = None;
        }
        self.groups.retain(|_, group| group.contact >= forgotten_since);
    }

    /// Returns whether ranks with dynamic delivery are here and wait for others.
    pub(super) fn has_waiting_ranks(&self, now: Millis) -> bool {
        self.groups.values().any(|group| group.awaiting.is_some() && group.contact + ASKED_MS >= now)
    }

    /// Returns the feed's jobs with dynamic delivery.
    pub(super) fn jobs(&self, now: Millis) -> impl Iterator<Item = JobStatus> {
        let mut newest: BTreeMap<&str, (&GroupKey, &Group)> = BTreeMap::new();
        for (key, group) in &self.groups {
            // A job that began again may have two groups.
            let seen = newest.entry(&key.job).or_insert((key, group));
            if seen.1.contact < group.contact {
                *seen = (key, group);
            }
        }
        newest.into_values().map(move |(GroupKey { job, world_size, .. }, group)| JobStatus {
            job: job.clone(),
            world_size: *world_size,
            awaited: group.awaited(*world_size),
            awaiting_ms: group
                .awaiting
                .filter(|_| group.contact + ASKED_MS >= now)
                .map_or(0, |since| now.saturating_sub(since)),
            claims_held: group.claims.held(),
            epoch: group.claims.next().epoch,
            claims_granted: group.claims.next().run,
        })
    }

    /// Doesn't count this process's own pause against its jobs and windows.
    pub(super) fn discount_pause(&mut self, still: Millis) {
        self.fence.discount_pause(still);
        self.granted.values_mut().for_each(|granted| *granted += still);
        self.groups.values_mut().for_each(|group| group.contact += still);
        if self.writing.is_some() {
            self.last_read += still;
        }
    }
}

impl<P: Plan> OpenFeed<P> {
    /// Takes the report of a stored file. It counts whatever became of its lease: the file is in the target.
    pub(super) fn stored(&mut self, window: WindowId, lease: LeaseId, [rows, bytes]: [u64; 2], now: Millis) {
        let is_file = window.epoch == 0 && self.sequencer.plan().has(window, 1);
        let Some(writing) = self.writing.as_mut().filter(|_| is_file) else { return };
        if self.sequencer.is_stored(window) {
            return;
        }
        writing.stored = [writing.stored[0] + rows, writing.stored[1] + bytes];
        self.failures.remove(&window);
        if let Some(granted) = self.granted.remove(&(window, lease)) {
            self.took(now.saturating_sub(granted));
        }
        let _ = self.sequencer.handle(Event::WindowStored { window });
        let to = self.sequencer.next_to_store(self.sequencer.position(WRITER).unwrap_or(FIRST));
        let _ = self.sequencer.handle(Event::ReaderAdvanced { reader: WRITER, to });
    }

    /// Takes the report of a window or file that could not be computed.
    pub(super) fn failed(&mut self, window: WindowId, lease: LeaseId, report: Report) {
        if self.sequencer.holds(window, lease) {
            let retry = report.retry;
            self.failures.insert(window, report);
            let _ = self.sequencer.handle(Event::WindowFailed { window, lease, retry });
        } else if let Some(writing) = &mut self.writing
            && self.sequencer.is_stored(window)
            && report.kind == ErrorKind::Internal
        {
            // The lease ended when another copy was stored.
            writing.contradiction.get_or_insert(report);
        }
    }

    /// Stops leasing the files of a job that nobody has asked for since `silent_since`.
    pub(super) fn stop_forgotten_writing(&mut self, silent_since: Millis) {
        let Some(writing) = self.writing.as_mut().filter(|writing| writing.is_asked_for) else { return };
        if self.last_read < silent_since && holds(Rule::ForgottenJobsStop) {
            writing.is_asked_for = false;
            let _ = self.sequencer.handle(Event::ReaderLeft { reader: WRITER });
        }
    }
}

fn lost_too_often(window: WindowId, of_job: bool, about: &str) -> Report {
    let WindowId { epoch, index } = window;
    let lost = match of_job {
        true => format!("file {index}"),
        false => format!("window {index} of epoch {epoch}"),
    };
    Report {
        kind: ErrorKind::Unavailable,
        message: format!("{lost}{about} was given up: every worker that computed it was lost"),
        hint: Some("look at the workers' logs: if they ran out of memory, lower window_bytes".to_owned()),
        retry: false,
    }
}
