//! Jobs that write the samples of a feed to files.
//!
//! Such a job is a feed of its own, whose windows are its files: they are leased, retried and blamed alike. A worker
//! writes a file that is leased to it into the job's target, and reports it as stored. The target has all that is
//! stored, so a new dispatcher is told what its process lists there. A job continues while somebody asks for it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::feed::{FIRST, WRITER, Writing};
use super::{Dispatcher, computing};
use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::Report;
use crate::rules::{Rule, holds};
use crate::sequencer::Event;
use crate::window::{Plan, WindowId};

/// How far a job is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WritingProgress {
    /// The job's files.
    pub files: u32,
    /// Those of them that are stored.
    pub stored: u32,
    /// Samples in the files that were stored since this dispatcher opened the job.
    pub rows: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Files that are being written.
    pub being_written: usize,
    /// Workers that can write them.
    pub workers: usize,
    /// Why the job cannot be finished.
    pub failed: Option<Report>,
}

impl WritingProgress {
    /// Returns whether all files are stored.
    pub fn is_whole(&self) -> bool {
        match holds(Rule::JobsEndWhole) {
            true => self.stored == self.files,
            false => self.stored + 1 >= self.files,
        }
    }
}

/// The refusal of a client that reads a job.
pub(super) fn not_a_feed(id: &str) -> Report {
    Report {
        kind: ErrorKind::Invalid,
        message: format!("{id} is a job that writes files, and has no readers"),
        hint: None,
        retry: false,
    }
}

impl<P: Plan> Dispatcher<P> {
    /// Opens a job whose files are the windows of the first epoch of `plan`, unless it is open. The files `stored` are
    /// in the target already.
    pub fn open_writing(&mut self, job: &Arc<str>, plan: P, stored: impl IntoIterator<Item = u32>, now: Millis) {
        if self.feeds.contains_key(job) {
            return;
        }
        self.open(job, plan, now);
        let Some(feed) = self.feeds.get_mut(job) else { return };
        feed.writing = Some(Writing::default());
        for index in stored.into_iter().filter(|_| holds(Rule::JobsResumeFromTheTarget)) {
            let _ = feed.sequencer.handle(Event::WindowStored { window: WindowId { epoch: 0, index } });
        }
        // Workers may have stored files whose reports no dispatcher has heard.
        let ids: Vec<_> = self.workers.keys().copied().collect();
        for id in ids {
            let Some(worker) = self.workers.get(&id) else { continue };
            let held = worker.held.values().iter().filter(|((of, _), _)| of == job);
            let held: Vec<_> = held.map(|(key, held)| (key.clone(), held.clone())).collect();
            self.take_stock(id, held, false, now);
        }
    }

    /// Closes a job, so that its workers stop writing. What they have stored stays in the target.
    pub fn close_writing(&mut self, job: &str) {
        if self.feeds.get(job).is_some_and(|feed| feed.writing.is_some())
            && let Some(closed) = self.feeds.remove(job)
        {
            self.revision += closed.sequencer.revision() + 1;
            self.share_memory();
        }
    }

    /// Asks for a job, which continues for as long as this is called more often than every
    /// [`reader_contact_ms`](super::DispatcherSettings::reader_contact_ms).
    pub fn ask_for_writing(&mut self, job: &str, now: Millis) {
        self.tick(now);
        let Some(feed) = self.feeds.get_mut(job) else { return };
        let Some(writing) = &mut feed.writing else { return };
        feed.last_read = now;
        if !std::mem::replace(&mut writing.is_asked_for, true) {
            let at = feed.sequencer.next_to_store(FIRST);
            let _ = feed.sequencer.handle(Event::ReaderJoined { reader: WRITER, at, until_epoch: 1, share: 1.0 });
        }
    }

    /// Returns the files of a job that are known to be stored.
    #[cfg(test)]
    pub(crate) fn stored_files(&self, job: &str) -> std::collections::BTreeSet<WindowId> {
        let Some(feed) = self.feeds.get(job) else { return Default::default() };
        let files = (0..feed.sequencer.plan().windows(0)).map(|index| WindowId { epoch: 0, index });
        files.filter(|file| feed.sequencer.is_stored(*file)).collect()
    }

    /// Returns how far a job is, if it is open.
    pub fn writing_progress(&self, job: &str) -> Option<WritingProgress> {
        let feed = self.feeds.get(job)?;
        let writing = feed.writing.as_ref()?;
        let [rows, bytes] = writing.stored;
        let (workers, refusal) = computing(&self.workers, job);
        let refusal = refusal.filter(|_| !self.young).cloned();
        let mut given_up = feed.sequencer.failed().chain(feed.sequencer.given_up());
        let failed = writing.contradiction.clone().or_else(|| given_up.next().map(|file| feed.failure(file)));
        Some(WritingProgress {
            files: feed.sequencer.plan().windows(0),
            stored: feed.sequencer.stored().try_into().unwrap_or(u32::MAX),
            rows,
            bytes,
            being_written: feed.sequencer.census()[0],
            workers,
            failed: failed.or(refusal),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::messages::{HeldState, Holding};
    use crate::rules::break_rule;
    use crate::{DispatcherSettings, Worker, WorkerAction, WorkerProfile};

    /// A job of six files.
    struct SixFiles;

    impl Plan for SixFiles {
        fn windows(&self, _: u64) -> u32 {
            6
        }

        fn bytes(&self, _: WindowId) -> u64 {
            10
        }
    }

    /// A time at which a dispatcher is no longer young.
    const LATER: Millis = 10_000;

    fn dispatcher(stored: &[u32]) -> Dispatcher<SixFiles> {
        let mut dispatcher = Dispatcher::new(DispatcherSettings::default(), 1, 0);
        dispatcher.tick(LATER);
        dispatcher.open_writing(&"job".into(), SixFiles, stored.iter().copied(), LATER);
        dispatcher
    }

    fn worker(id: u64) -> Worker {
        Worker::new(WorkerProfile { worker: id, address: format!("w{id}"), memory_bytes: 1_000, computing: 2 })
    }

    /// Sends one message and takes the answer. Returns the files to begin.
    fn exchange(dispatcher: &mut Dispatcher<SixFiles>, worker: &mut Worker, now: Millis) -> BTreeSet<u32> {
        let sync = worker.sync();
        dispatcher.worker_sync(&sync, now).expect("its own address");
        let reply = dispatcher.worker_reply(sync.worker, now).expect("known");
        let begun = worker.reply(&reply).into_iter().filter_map(|action| match action {
            WorkerAction::Start((_, window)) => Some(window.index),
            WorkerAction::Drop(_) => None,
        });
        begun.collect()
    }

    fn store(worker: &mut Worker, index: u32) {
        worker.report(&("job".into(), WindowId { epoch: 0, index }), HeldState::Stored { rows: 5, bytes: 7 }, false);
    }

    #[test]
    fn files_that_are_stored_are_written_by_nobody() {
        let mut dispatcher = dispatcher(&[0, 3]);
        let mut worker = worker(7);
        assert!(exchange(&mut dispatcher, &mut worker, LATER).is_empty(), "nobody has asked for the job");
        dispatcher.ask_for_writing("job", LATER);
        let mut written = vec![0, 3];
        for _ in 0..6 {
            for index in exchange(&mut dispatcher, &mut worker, LATER) {
                store(&mut worker, index);
                written.push(index);
            }
        }
        written.sort_unstable();
        assert_eq!(written, [0, 1, 2, 3, 4, 5]);
        let progress = dispatcher.writing_progress("job").expect("open");
        assert!(progress.is_whole() && (progress.rows, progress.bytes, progress.workers) == (20, 28, 1));
        assert!(worker.is_empty());
    }

    #[test]
    fn a_report_counts_behind_a_new_dispatcher() {
        let mut before = dispatcher(&[]);
        before.ask_for_writing("job", LATER);
        let mut worker = worker(7);
        let begun = exchange(&mut before, &mut worker, LATER);
        let [first, second] = [0, 1].map(|at| *begun.iter().nth(at).expect("two files at a time"));
        store(&mut worker, first);
        // The worker comes first, then the client.
        let mut after = Dispatcher::new(DispatcherSettings::default(), 2, LATER);
        assert!(exchange(&mut after, &mut worker, LATER).is_empty());
        after.open_writing(&"job".into(), SixFiles, [second], LATER);
        assert_eq!(after.writing_progress("job").expect("open").stored, 2);
    }

    #[test]
    fn a_job_that_nobody_asks_for_stops_and_goes_on() {
        let leases = |rule| {
            break_rule(rule);
            let mut dispatcher = dispatcher(&[]);
            let mut worker = worker(7);
            dispatcher.ask_for_writing("job", LATER);
            assert_eq!(exchange(&mut dispatcher, &mut worker, LATER).len(), 2);
            (LATER..LATER + 12_000).step_by(500).for_each(|now| _ = exchange(&mut dispatcher, &mut worker, now));
            let silent = worker.leases().len();
            dispatcher.ask_for_writing("job", LATER + 12_000);
            exchange(&mut dispatcher, &mut worker, LATER + 12_000);
            break_rule(None);
            (silent, worker.leases().len())
        };
        assert_eq!(leases(None), (0, 2));
        assert_eq!(leases(Some(Rule::ForgottenJobsStop)), (2, 2));
    }

    #[test]
    fn a_job_fails_for_a_file_that_ended_earlier_processes() {
        let mut dispatcher = dispatcher(&[3]);
        for file in [2, 3] {
            let window = WindowId { epoch: 0, index: file };
            (0..5).for_each(|_| dispatcher.remember_loss("job", vec![window], true));
        }
        dispatcher.ask_for_writing("job", LATER);
        let failed = dispatcher.writing_progress("job").expect("open").failed.expect("file 2 is never leased");
        assert!(failed.message.starts_with("file 2 was given up"), "{}", failed.message);
    }

    #[test]
    fn a_second_copy_with_other_content_fails_the_job() {
        let mut dispatcher = dispatcher(&[]);
        dispatcher.ask_for_writing("job", LATER);
        let mut worker = worker(7);
        let file = *exchange(&mut dispatcher, &mut worker, LATER).first().expect("leased");
        let key = ("job".into(), WindowId { epoch: 0, index: file });
        let lease = worker.leases().iter().find(|lease| lease.key == key).expect("leased").lease;
        store(&mut worker, file);
        exchange(&mut dispatcher, &mut worker, LATER);
        assert_eq!(dispatcher.writing_progress("job").expect("open").failed, None);
        let differs = |kind| {
            let report = Report { kind, message: "differs".into(), hint: None, retry: false };
            vec![(key.clone(), Holding { lease, state: HeldState::Failed(report), at_work: false })]
        };
        dispatcher.take_stock(7, differs(ErrorKind::Unavailable), false, LATER);
        assert_eq!(dispatcher.writing_progress("job").expect("open").failed, None);
        dispatcher.take_stock(7, differs(ErrorKind::Internal), false, LATER);
        assert_eq!(dispatcher.writing_progress("job").expect("open").failed.expect("differs").message, "differs");
    }

    #[test]
    fn a_job_has_no_readers() {
        let mut dispatcher = dispatcher(&[]);
        let settings = crate::ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 0, world_size: 1 };
        let begin = crate::Origin { window: FIRST, window_offset: 0, offset: 0 };
        let limits = crate::ReceiveLimits::of_bytes(1_000);
        let mut trainer = crate::Trainer::<()>::new("job".into(), 1, settings, begin, limits);
        let refusal = dispatcher.reader_sync(&trainer.sync(LATER), LATER).expect_err("refused");
        assert_eq!((refusal.kind, refusal.retry), (ErrorKind::Invalid, false));
    }
}
