//! The events of a dispatcher: each is logged once, and counted.
//!
//! The state machine only knows the present: readers that left, and the rows they read, are no longer part of it. The
//! journal keeps the sums that must outlive readers, since a Prometheus counter never falls.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use forebay_delivery::messages::{ReaderSync, Report, WorkerSync};
use forebay_delivery::{JobStatus, Millis, ReaderStatus, Status, WindowId, WorkerId};

/// A reader that waits longer than this gets a warning.
const STALL_MS: Millis = 5_000;
/// A job that waits longer than this for ranks gets a warning, which names at most [`RANKS_NAMED`] of them.
const AWAITED_MS: Millis = 2_000;
const RANKS_NAMED: usize = 16;
/// Maximum number of ranks per feed with counters of their own. A client may claim any rank, and each takes memory here
/// and in Prometheus.
const RANKS_MAX: usize = 1024;

/// The label of ranks beyond the first [`RANKS_MAX`].
pub(crate) const OTHER_RANKS: u64 = u64::MAX;

/// The last logged state of each worker and reader.
#[derive(Default)]
pub(crate) struct Journal {
    workers: HashMap<WorkerId, WorkerJournal>,
    feeds: HashMap<Arc<str>, FeedJournal>,
}

struct WorkerJournal {
    seq: u64,
    address: String,
    windows: usize,
    draining: bool,
    refused: BTreeSet<Arc<str>>,
}

struct FeedJournal {
    readers: HashMap<u64, ReaderJournal>,
    reading: FeedReading,
    failed: HashSet<WindowId>,
    /// Jobs whose missing ranks were logged, by name and world size.
    awaiting: HashSet<(String, u64)>,
    speculative: u64,
    recomputed: u64,
}

struct ReaderJournal {
    seq: u64,
    rank: u64,
    world_size: u64,
    samples: u64,
    bytes: u64,
    stalled_ms: Millis,
    elapsed_ms: Millis,
    is_stalled: bool,
}

/// Counters of a feed's readers, including readers that left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FeedReading {
    pub(crate) pipeline: String,
    pub(crate) samples: u64,
    pub(crate) bytes: u64,
    /// How long loops waited, by rank.
    pub(crate) stalled_ms: BTreeMap<u64, Millis>,
    /// How long loops ran, waits included.
    pub(crate) elapsed_ms: Millis,
}

impl Journal {
    /// A feed was opened.
    pub(crate) fn opened(&mut self, id: &Arc<str>, pipeline: &str) {
        if self.feeds.contains_key(id) {
            return;
        }
        tracing::info!(feed = %id, pipeline, "feed opened");
        let feed = FeedJournal {
            readers: HashMap::new(),
            reading: FeedReading { pipeline: pipeline.to_owned(), ..FeedReading::default() },
            failed: HashSet::new(),
            awaiting: HashSet::new(),
            speculative: 0,
            recomputed: 0,
        };
        self.feeds.insert(Arc::clone(id), feed);
    }

    /// Handles an accepted message of a worker.
    pub(crate) fn worker(&mut self, sync: &WorkerSync) {
        let id = format!("{:016x}", sync.worker);
        if sync.leaving {
            if let Some(worker) = self.workers.remove(&sync.worker) {
                tracing::info!(worker = worker.address, id, "worker left");
            }
            return;
        }
        if !self.workers.contains_key(&sync.worker) {
            let rival = self.workers.iter().find(|(_, it)| it.address == sync.address).map(|(&id, _)| id);
            if let Some(rival) = rival {
                self.workers.remove(&rival);
                tracing::warn!(worker = sync.address, id = format!("{rival:016x}"), by = id, "worker replaced");
            }
            let memory_bytes = sync.memory_bytes;
            tracing::info!(worker = sync.address, id, windows = sync.windows, memory_bytes, "worker joined");
        }
        let worker = self.workers.entry(sync.worker).or_insert_with(|| WorkerJournal {
            seq: 0,
            address: sync.address.clone(),
            windows: 0,
            draining: false,
            refused: BTreeSet::new(),
        });
        if worker.seq >= sync.seq {
            return;
        }
        (worker.seq, worker.windows) = (sync.seq, sync.windows);
        worker.address.clone_from(&sync.address);
        if sync.draining && !worker.draining {
            tracing::info!(worker = worker.address, id, windows = worker.windows, "worker is draining");
        }
        worker.draining = sync.draining;
        for (feed, report) in &sync.refused {
            if !worker.refused.contains(feed) {
                let (worker, error) = (&worker.address, &report.message);
                tracing::warn!(worker, %feed, error, "worker cannot compute the feed");
            }
        }
        if worker.refused.len() != sync.refused.len() || !sync.refused.is_empty() {
            worker.refused = sync.refused.iter().map(|(feed, _)| Arc::clone(feed)).collect();
        }
    }

    /// Handles a message of a reader of an open feed.
    pub(crate) fn reader(&mut self, sync: &ReaderSync) {
        let Some(feed) = self.feeds.get_mut(&sync.feed) else { return };
        let is_known = feed.readers.contains_key(&sync.session);
        if !is_known && sync.leaving {
            return;
        }
        // The reader's previous dispatcher counted its earlier reads.
        let reader = feed.readers.entry(sync.session).or_insert_with(|| ReaderJournal {
            seq: 0,
            rank: sync.rank,
            world_size: sync.world_size,
            samples: sync.samples,
            bytes: sync.bytes,
            stalled_ms: sync.stalled_ms,
            elapsed_ms: sync.elapsed_ms,
            is_stalled: false,
        });
        if !is_known {
            let (pipeline, at) = (&feed.reading.pipeline, sync.at);
            let (rank, world_size) = (reader.rank, reader.world_size);
            let session = format!("{:016x}", sync.session);
            tracing::info!(
                feed = %sync.feed, pipeline, rank, world_size, session, epoch = at.epoch, window = at.index,
                "reader joined"
            );
        }
        if reader.seq < sync.seq {
            reader.seq = sync.seq;
            feed.reading.samples += grow(&mut reader.samples, sync.samples);
            feed.reading.bytes += grow(&mut reader.bytes, sync.bytes);
            feed.reading.elapsed_ms += grow(&mut reader.elapsed_ms, sync.elapsed_ms);
            let stalled = &mut feed.reading.stalled_ms;
            let rank = match stalled.len() < RANKS_MAX || stalled.contains_key(&reader.rank) {
                true => reader.rank,
                false => OTHER_RANKS,
            };
            *stalled.entry(rank).or_default() += grow(&mut reader.stalled_ms, sync.stalled_ms);
        }
        if sync.leaving
            && let Some(reader) = feed.readers.remove(&sync.session)
        {
            reader.gone(&sync.feed, sync.session, false);
        }
    }

    /// Logs changes that come without a message: silent workers and readers, failed windows, waiting readers.
    pub(crate) fn look(&mut self, status: &Status, failures: Vec<(Arc<str>, WindowId, Report)>) {
        let here: HashSet<WorkerId> = status.workers.iter().map(|worker| worker.worker).collect();
        self.workers.retain(|&id, worker| {
            let is_here = here.contains(&id);
            if !is_here {
                let (id, windows) = (format!("{id:016x}"), worker.windows);
                tracing::warn!(worker = worker.address, id, windows, "worker lost: its windows go to other workers");
            }
            is_here
        });
        for now in &status.feeds {
            if let Some(feed) = self.feeds.get_mut(&now.feed) {
                feed.look(&now.feed, &now.readers);
                feed.look_at_jobs(&now.feed, &now.jobs);
                let second = now.leases_speculative.saturating_sub(feed.speculative);
                if second > 0 {
                    tracing::info!(feed = %now.feed, windows = second, "leased a second time: the first worker is slow or out of reach");
                }
                let again = now.windows_recomputed.saturating_sub(feed.recomputed);
                if again > 0 {
                    tracing::debug!(feed = %now.feed, windows = again, "leased again after eviction or loss");
                }
                (feed.speculative, feed.recomputed) = (now.leases_speculative, now.windows_recomputed);
            }
        }
        let mut failed: HashMap<Arc<str>, HashSet<WindowId>> = HashMap::new();
        for (id, window, report) in failures {
            failed.entry(Arc::clone(&id)).or_default().insert(window);
            if self.feeds.get(&id).is_some_and(|feed| !feed.failed.contains(&window)) {
                let error = report.message;
                tracing::warn!(feed = %id, epoch = window.epoch, window = window.index, error, "window given up");
            }
        }
        self.feeds.retain(|id, feed| {
            feed.failed = failed.remove(id).unwrap_or_default();
            let is_open = status.feeds.iter().any(|it| it.feed == *id);
            if !is_open {
                tracing::info!(feed = %id, pipeline = feed.reading.pipeline, "feed closed: it has no reader");
            }
            is_open
        });
    }

    /// The counters of a feed's readers.
    pub(crate) fn reading(&self, feed: &str) -> FeedReading {
        self.feeds.get(feed).map(|feed| feed.reading.clone()).unwrap_or_default()
    }
}

impl FeedJournal {
    fn look(&mut self, id: &Arc<str>, now: &[ReaderStatus]) {
        let now: HashMap<u64, &ReaderStatus> = now.iter().map(|reader| (reader.session, reader)).collect();
        self.readers.retain(|session, reader| {
            let Some(status) = now.get(session) else {
                reader.gone(id, *session, true);
                return false;
            };
            let session = format!("{session:016x}");
            match status.waiting {
                Some((window, waited_ms)) if waited_ms >= STALL_MS && !reader.is_stalled => {
                    let rank = reader.rank;
                    tracing::warn!(
                        feed = %id, rank, session, epoch = window.epoch, window = window.index, waited_ms,
                        "reader stalled"
                    );
                    reader.is_stalled = true;
                }
                None if reader.is_stalled => {
                    tracing::info!(feed = %id, rank = reader.rank, session, "reader resumed");
                    reader.is_stalled = false;
                }
                _ => {}
            }
            true
        });
    }
}

impl FeedJournal {
    /// Jobs with dynamic delivery stand still until all their ranks have joined.
    fn look_at_jobs(&mut self, id: &Arc<str>, jobs: &[JobStatus]) {
        for job in jobs {
            let key = (job.job.clone(), job.world_size);
            if job.awaiting_ms >= AWAITED_MS && !self.awaiting.contains(&key) {
                let JobStatus { job, world_size, awaited, .. } = job;
                let ranks = awaited.iter().take(RANKS_NAMED).map(u64::to_string).collect::<Vec<_>>().join(", ");
                let missing = awaited.len();
                tracing::warn!(
                    feed = %id, job, world_size, missing, ranks,
                    "no batches are assigned until these ranks join"
                );
                self.awaiting.insert(key);
            } else if job.awaited.is_empty() && self.awaiting.remove(&key) {
                tracing::info!(feed = %id, job = job.job, world_size = job.world_size, "all ranks have joined");
            }
        }
        self.awaiting.retain(|(name, size)| jobs.iter().any(|job| job.job == *name && job.world_size == *size));
    }
}

impl ReaderJournal {
    fn gone(&self, feed: &str, session: u64, is_silent: bool) {
        let Self { rank, world_size, samples, bytes, stalled_ms, .. } = *self;
        let session = format!("{session:016x}");
        match is_silent {
            true => tracing::warn!(%feed, rank, world_size, session, samples, bytes, stalled_ms, "reader fell silent"),
            false => tracing::info!(%feed, rank, world_size, session, samples, bytes, stalled_ms, "reader left"),
        }
    }
}

/// The growth of a reader's counter since the last call.
fn grow(known: &mut u64, now: u64) -> u64 {
    let grown = now.saturating_sub(*known);
    *known = now.max(*known);
    grown
}

#[cfg(test)]
mod tests {
    use forebay_delivery::FeedStatus;

    use super::*;

    const AT: WindowId = WindowId { epoch: 0, index: 0 };

    fn reader(session: u64, seq: u64, samples: u64) -> ReaderSync {
        ReaderSync {
            session,
            seq,
            feed: "f".into(),
            rank: session % 2,
            world_size: 2,
            member: None,
            at: AT,
            until_epoch: 1,
            known: 0,
            broken: Vec::new(),
            waiting: None,
            leaving: false,
            is_later_claim: false,
            samples,
            bytes: samples * 10,
            stalled_ms: samples,
            elapsed_ms: samples * 2,
        }
    }

    /// A status in which these sessions read `f`.
    fn status(sessions: &[u64]) -> Status {
        let readers = sessions.iter().map(|&session| ReaderStatus {
            session,
            rank: session % 2,
            world_size: 2,
            at: AT,
            until_epoch: 1,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            waiting: None,
        });
        let feed = FeedStatus {
            feed: "f".into(),
            windows_leased: 0,
            windows_counted: 0,
            windows_ready: 0,
            windows_failed: 0,
            leases_granted: 0,
            leases_speculative: 0,
            windows_recomputed: 0,
            window_ms: 0,
            readers: readers.collect(),
            jobs: Vec::new(),
            writing: None,
            keeps: None,
        };
        Status { feeds: vec![feed], ..Status::default() }
    }

    #[test]
    fn what_was_read_outlives_its_readers() {
        let mut journal = Journal::default();
        journal.opened(&"f".into(), "train");
        for (session, seq, samples) in [(1, 1, 0), (1, 2, 5), (2, 1, 0), (1, 3, 8), (2, 2, 7), (1, 2, 5)] {
            journal.reader(&reader(session, seq, samples));
        }
        let before = journal.reading("f");
        assert_eq!((before.samples, before.bytes), (15, 150));
        assert_eq!(before.stalled_ms, [(0, 7), (1, 8)].into());
        // One leaves and reports its last samples, the other falls silent.
        journal.reader(&ReaderSync { leaving: true, ..reader(1, 4, 10) });
        journal.look(&status(&[]), Vec::new());
        assert_eq!((journal.reading("f").samples, journal.reading("f").pipeline.as_str()), (17, "train"));
        // It comes back: its earlier samples are not counted again.
        journal.reader(&reader(2, 3, 7));
        journal.reader(&reader(2, 4, 9));
        assert_eq!(journal.reading("f").samples, 19);
        // A late message of a reader that left counts nothing.
        journal.reader(&ReaderSync { leaving: true, ..reader(1, 4, 10) });
        assert_eq!(journal.reading("f").samples, 19);
    }

    #[test]
    fn a_reader_of_another_dispatcher_brings_nothing_along() {
        let mut journal = Journal::default();
        journal.opened(&"f".into(), "train");
        journal.reader(&reader(1, 40, 1000));
        assert_eq!(journal.reading("f").samples, 0);
        journal.reader(&reader(1, 41, 1010));
        assert_eq!(journal.reading("f").samples, 10);
    }

    #[test]
    fn ranks_are_bounded() {
        let mut journal = Journal::default();
        journal.opened(&"f".into(), "train");
        for rank in 0..2 * RANKS_MAX as u64 {
            journal.reader(&ReaderSync { rank, ..reader(rank, 1, 0) });
            journal.reader(&ReaderSync { rank, ..reader(rank, 2, 1) });
        }
        let stalled = journal.reading("f").stalled_ms;
        assert_eq!((stalled.len(), stalled[&OTHER_RANKS]), (RANKS_MAX + 1, RANKS_MAX as u64));
    }

    #[test]
    fn a_feed_that_closed_is_forgotten() {
        let mut journal = Journal::default();
        journal.opened(&"f".into(), "train");
        journal.look(&Status::default(), Vec::new());
        assert!(journal.feeds.is_empty());
    }
}
