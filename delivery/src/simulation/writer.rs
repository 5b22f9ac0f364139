//! A job that writes files: its target, its client, and the part of a dispatcher's process that opens and commits it.
//!
//! The client asks one dispatcher at a time, and may be silent for a while. The oracle: nothing is committed before
//! every file is stored, and no worker is told to write a file that its dispatcher knows to be stored.

use std::collections::BTreeSet;

use super::contact::Contact;
use super::faults::Fault;
use super::random::{SeededRandom, hash};
use super::world::{NodeMessage, Process, SimulatedPlan, Timer, WRITER, World};
use crate::{Dispatcher, Millis, Plan, WindowId, WindowKey, WorkerId};

/// The job's id.
const JOB: &str = "job";
/// The client turns to another dispatcher after this time without workers: longer than workers take to visit all.
const PATIENCE_MS: Millis = 17_000;

/// The folder that the job writes to.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub(super) stored: BTreeSet<u32>,
    is_committed: bool,
    /// The index of the job among the feeds, if one of its files ends its workers.
    pub(super) poisoned: Option<usize>,
}

/// What a dispatcher says of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WritingState {
    Begun { has_workers: bool },
    Committed,
    Failed,
}

impl World {
    /// Gives some seeds a job that writes files. The other seeds are as they would be without such jobs.
    pub(super) fn write(&mut self, seed: u64) {
        let mut random = SeededRandom::new(hash(&[seed, 19]));
        if !random.chance(250) {
            return;
        }
        self.plans.push(SimulatedPlan {
            seed: random.next(),
            windows_max: random.pick(&[1, 3, 8, 40]),
            rows_max: random.pick(&[1, 20]),
            empty: 1,
            bad: 0,
        });
        let poisoned = random.chance(300).then_some(self.feeds.len());
        self.feeds.push(JOB.into());
        self.target = Some(Target { poisoned, ..Target::default() });
    }

    /// Returns whether a window is a file of the job.
    pub(super) fn is_written(&self, key: &WindowKey) -> bool {
        self.target.is_some() && *key.0 == *JOB
    }

    /// Stores a file.
    pub(super) fn store(&mut self, window: WindowId) {
        self.target.as_mut().expect("a job").stored.insert(window.index);
    }

    fn job_plan(&self) -> SimulatedPlan {
        *self.plans.last().expect("a job")
    }
}

/// The job at a dispatcher.
pub(super) struct OpenWriting {
    /// The files that were stored when it was opened.
    stored_before: BTreeSet<u32>,
    /// The most files that the dispatcher knew to be stored.
    stored: u32,
}

impl OpenWriting {
    /// Opens the job, unless the dispatcher has it open, and asks for it.
    pub(super) fn ask(writing: &mut Option<Self>, world: &mut World, dispatcher: &mut Dispatcher<SimulatedPlan>) {
        let Some(target) = &world.target else { return };
        if !dispatcher.has_feed(JOB) {
            let stored = target.stored.clone();
            if !stored.is_empty() {
                world.faults.fired(Fault::WritingResumed);
            }
            dispatcher.open_writing(&JOB.into(), world.job_plan(), stored.iter().copied(), world.now);
            *writing = Some(Self { stored_before: stored, stored: 0 });
        }
        dispatcher.ask_for_writing(JOB, world.now);
    }

    /// Answers the client. Commits the job when it is whole, and closes it when it has failed.
    pub(super) fn answer(
        writing: &mut Option<Self>,
        world: &mut World,
        dispatcher: &mut Dispatcher<SimulatedPlan>,
    ) -> WritingState {
        let Some(progress) = dispatcher.writing_progress(JOB) else {
            return WritingState::Begun { has_workers: false };
        };
        if let Some(writing) = writing {
            if progress.stored < writing.stored {
                world.violated(|| format!("{} files were stored, and now {progress:?}", writing.stored));
            }
            writing.stored = progress.stored;
        }
        if let Some(report) = progress.failed {
            world.judge_given_up(&report);
            dispatcher.close_writing(JOB);
            *writing = None;
            return WritingState::Failed;
        }
        if !progress.is_whole() {
            return WritingState::Begun { has_workers: progress.workers > 0 };
        }
        let files = world.job_plan().windows(0);
        let target = world.target.as_mut().expect("a job");
        let is_new = !std::mem::replace(&mut target.is_committed, true);
        if target.stored.len() != files as usize {
            let stored = target.stored.clone();
            world.violated(|| format!("committed with the files {stored:?} of {files}"));
        }
        if is_new {
            world.faults.fired(Fault::Committed);
        }
        WritingState::Committed
    }

    /// Checks the files that a worker is told to write.
    pub(super) fn check(&self, world: &mut World, dispatcher: &Dispatcher<SimulatedPlan>, worker: WorkerId) {
        if !dispatcher.has_feed(JOB) {
            return;
        }
        let leases = dispatcher.leases(worker);
        let files: Vec<WindowId> = leases.into_iter().filter(|key| world.is_written(key)).map(|key| key.1).collect();
        let is_stored =
            |file: &&WindowId| self.stored_before.contains(&file.index) || dispatcher.stored_files(JOB).contains(file);
        if let Some(file) = files.iter().find(is_stored) {
            world.violated(|| format!("worker {worker} shall write {file:?}, which is stored"));
        }
    }
}

/// The job's client.
pub(super) struct Writer {
    process: Process,
    contact: Contact,
    seq: u64,
    /// When it is silent.
    silent: std::ops::Range<Millis>,
    pub(super) is_done: bool,
}

impl Writer {
    pub(super) fn draw(world: &mut World) -> Self {
        let process = Process { node: WRITER, generation: 1 };
        let from = world.random.between(100, 3_000);
        let silent_ms = world.random.pick(&[0, 0, 500, 5_000, 45_000]);
        let begins = world.random.between(0, 2_000);
        world.timer(begins, process, Timer::Pump);
        Self { process, contact: Contact::new(world), seq: 0, silent: from..from + silent_ms, is_done: false }
    }

    pub(super) fn handle(&mut self, world: &mut World, from: Process, message: &NodeMessage) {
        match message {
            NodeMessage::WritingReply { call, how } => {
                self.contact.answered(world, *call);
                let has_workers = !matches!(how, WritingState::Begun { has_workers: false });
                self.contact.judge(world, has_workers, PATIENCE_MS);
                match how {
                    WritingState::Begun { .. } => {}
                    WritingState::Committed => self.is_done = true,
                    WritingState::Failed => world.faults.fired(Fault::WritingFailed),
                }
            }
            NodeMessage::Unreachable => _ = self.contact.unreachable(world, from.node),
            _ => return,
        }
        world.timer(world.now + 100, self.process, Timer::Pump);
    }

    pub(super) fn timer(&mut self, world: &mut World, timer: &Timer) {
        if let Timer::Unanswered(seq) = timer
            && !self.contact.unanswered(world, *seq)
        {
            return;
        }
        if self.is_done || !self.contact.may_call(false) {
            return;
        }
        if self.silent.contains(&world.now) {
            world.faults.fired(Fault::WritingForgotten);
            return world.timer(self.silent.end, self.process, Timer::Pump);
        }
        self.seq += 1;
        self.contact.sent(world, self.process, self.seq);
        let message = NodeMessage::WritingSync { call: self.seq };
        world.send(self.process, self.contact.dispatcher(), None, message);
    }
}
