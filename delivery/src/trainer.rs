//! A trainer: follows routes, receives each window's rows in order from any worker, and cuts exact batches.
//!
//! A trainer is one rank of one reader, without I/O. The caller opens the streams that it asks for, passes it the
//! received rows, and sends its messages to the dispatcher. The rules:
//!
//! - Only the next row of each window is accepted, from any worker.
//! - A stream that breaks, or whose window moved, is opened again elsewhere at the next row.
//! - A position counts delivered batches, not received ones.
//! - A stream that the loop waits for, and that brings nothing for too long, is closed and asked for again. A wait that
//!   lasts although the window is computed becomes an error.
//! - An error in the data is raised after the batches before it.

mod stream;

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use stream::WindowReceiver;
pub use stream::{Ended, Fragment, Open};

use crate::clock::Millis;
use crate::cutter::{Cut, Cutter};
use crate::empty_epoch::EmptyEpoch;
use crate::error::ErrorKind;
use crate::messages::{BrokenLease, Membership, ReaderReply, ReaderSync, Report, Route};
use crate::position::Token;
use crate::rules::{Rule, holds};
use crate::sequencer::LeaseId;
use crate::settings::{PATIENCE_MS, ReadSettings, SILENCE_MS};
use crate::slice::Slice;
use crate::steps::Steps;
use crate::window::WindowId;

/// The number of windows that a trainer receives at a time.
pub(crate) const STREAMS_MAX: usize = 3;

/// The position at which a reader begins, resolved against a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A window at or before the first offset.
    pub window: WindowId,
    /// The window's first offset.
    pub window_offset: u64,
    /// The first offset to read.
    pub offset: u64,
}

/// Limits of receiving ahead of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// The number of windows that are received at a time.
    pub streams: usize,
    /// Approximate bytes in the buffer. The rows that the loop waits for are received whatever this limit.
    pub buffered_bytes: u64,
    /// The time after which a stream that the loop waits for, and that brings nothing, is closed and asked for again.
    pub silence_ms: Millis,
    /// The time from then on after which the wait becomes an error.
    pub patience_ms: Millis,
}

impl ReceiveLimits {
    /// Returns the limits of a rank's only trainer, which buffers about `buffered_bytes`.
    pub fn of_bytes(buffered_bytes: u64) -> Self {
        Self { streams: STREAMS_MAX, buffered_bytes, silence_ms: SILENCE_MS, patience_ms: PATIENCE_MS }
    }

    /// Sets how long to wait for rows that do not come, after the stream was first closed.
    #[must_use]
    pub fn patient_for(self, patience_ms: Millis) -> Self {
        Self { patience_ms, ..self }
    }
}

/// A batch, in pieces to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembledBatch<R> {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step in the epoch, from 0.
    pub step: u64,
    /// The batch's offsets.
    pub offsets: Range<u64>,
    /// The position after its global step.
    pub token: Token,
    /// The batch's rows, in order.
    pub records: Vec<R>,
}

/// The next result for the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<R> {
    /// A batch.
    Deliver(Box<AssembledBatch<R>>),
    /// No batch yet.
    Wait,
    /// The end of the feed.
    End,
    /// An error, after which nothing follows.
    Fail(Report),
}

/// A window, and its first offset.
#[derive(Clone, Copy, Debug)]
struct WindowStart {
    window: WindowId,
    offset: u64,
}

/// The window that the loop waits for, and since when nothing of it has come.
#[derive(Debug)]
struct Awaited {
    window: WindowId,
    since: Millis,
    /// The worker of the first stream that was closed because it was silent, and when. Patience counts from then, so
    /// that a pause of this process is no silence of a worker.
    silent: Option<(String, Millis)>,
}

/// A trainer: one rank of one reader.
#[derive(Debug)]
pub struct Trainer<R> {
    feed: Arc<str>,
    session: u64,
    settings: ReadSettings,
    /// The job's name, and the number of this reader, which is greater than those of the rank's earlier ones.
    member: Option<(String, u64)>,
    /// Whether a dispatcher has admitted this process to its job, or an earlier reader of it came before.
    is_admitted: bool,
    begin: Origin,
    /// The offset in the first epoch before which to stop, if only a part is read.
    until: Option<u64>,
    is_later_claim: bool,
    has_cut_all: bool,
    routes: BTreeMap<WindowId, Route>,
    failed: Option<(WindowId, Report)>,
    workers: usize,
    streams: BTreeMap<WindowId, WindowReceiver<R>>,
    /// The next window to receive.
    receive: WindowStart,
    /// The next window to cut.
    cut: WindowId,
    cutter: Cutter<WindowId>,
    empty: EmptyEpoch,
    steps: Steps,
    /// The batch that is being assembled. Its missing parts are in `parts`.
    current: Option<CurrentBatch<R>>,
    buffered_bytes: u64,
    limits: ReceiveLimits,
    broken: Vec<BrokenLease>,
    /// The number of entries of `broken` in the newest message.
    broken_said: usize,
    waiting_since: Option<Millis>,
    awaited: Option<Awaited>,
    seq: u64,
    answered: u64,
    known: u64,
    samples: u64,
    bytes: u64,
    stalled_ms: Millis,
    /// When it made its first message.
    began: Option<Millis>,
    /// Whether to tell the dispatcher at once, instead of with the next message.
    has_news: bool,
}

#[derive(Debug)]
struct CurrentBatch<R> {
    step: u64,
    offsets: Range<u64>,
    token: Token,
    parts: VecDeque<(WindowId, Range<u64>)>,
    records: Vec<R>,
}

impl<R> Trainer<R> {
    /// Creates a rank that begins at `begin`. Draw `session` at random.
    pub fn new(feed: Arc<str>, session: u64, settings: ReadSettings, begin: Origin, limits: ReceiveLimits) -> Self {
        Self {
            session,
            settings,
            member: None,
            is_admitted: false,
            begin,
            until: None,
            is_later_claim: false,
            has_cut_all: false,
            routes: BTreeMap::new(),
            failed: None,
            workers: 0,
            streams: BTreeMap::new(),
            receive: WindowStart { window: begin.window, offset: begin.window_offset },
            cut: begin.window,
            cutter: Cutter::new(settings, begin.offset),
            empty: EmptyEpoch::new(&settings, &begin),
            steps: Steps::new(Arc::clone(&feed), begin.window.epoch),
            feed,
            current: None,
            buffered_bytes: 0,
            limits,
            broken: Vec::new(),
            broken_said: 0,
            waiting_since: None,
            awaited: None,
            seq: 0,
            answered: 0,
            known: 0,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            began: None,
            has_news: true,
        }
    }

    /// Makes the trainer a rank of the job with this name. Draw `process` greater than for earlier readers of the rank.
    /// `is_first` is whether this process has had no reader of the job's rank before.
    #[must_use]
    pub fn in_job(self, job: String, process: u64, is_first: bool) -> Self {
        Self { member: Some((job, process)), is_admitted: !is_first, ..self }
    }

    /// Makes the trainer that of a claim, which ends before the offset `end` of the epoch in which it begins.
    /// `is_first` is whether its process has read no claim before.
    #[must_use]
    pub fn of_claim(mut self, end: u64, is_first: bool) -> Self {
        (self.until, self.is_later_claim) = (Some(end), !is_first);
        self.settings.epochs = self.begin.window.epoch + 1;
        self
    }

    /// Returns the feed's id.
    pub fn feed(&self) -> &Arc<str> {
        &self.feed
    }

    /// Returns the first window that is not wholly received.
    fn at(&self) -> WindowId {
        let unread = self.streams.iter().find(|(_, stream)| stream.is_unread() && holds(Rule::PositionIsReceived));
        unread.map_or(self.receive.window, |(&window, _)| window)
    }

    /// Returns the offset from which the global steps of `epoch` are counted.
    fn origin(&self, epoch: u64) -> u64 {
        if epoch == self.begin.window.epoch { self.begin.offset } else { 0 }
    }

    /// Returns whether to tell the dispatcher at once, instead of with the next regular message.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Returns the number of workers that compute this feed, by the newest answer.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the bytes that are received and not delivered.
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    /// Returns the next message to the dispatcher.
    pub fn sync(&mut self, now: Millis) -> ReaderSync {
        self.seq += 1;
        self.has_news = false;
        self.broken_said = self.broken.len();
        let waiting = self.waiting_since.map(|since| now.saturating_sub(since));
        ReaderSync {
            session: self.session,
            seq: self.seq,
            feed: Arc::clone(&self.feed),
            rank: self.settings.rank,
            world_size: self.settings.world_size,
            member: self.membership(),
            at: self.at(),
            until_epoch: self.settings.epochs,
            known: self.known,
            broken: self.broken.clone(),
            waiting: waiting.map(|waited| (self.needed(), waited)),
            leaving: false,
            is_later_claim: self.is_later_claim,
            samples: self.samples,
            bytes: self.bytes,
            stalled_ms: self.stalled_ms + waiting.unwrap_or(0),
            elapsed_ms: now.saturating_sub(*self.began.get_or_insert(now)),
        }
    }

    fn membership(&self) -> Option<Membership> {
        let (job, process) = self.member.as_ref()?;
        Some(Membership {
            job: job.clone(),
            process: *process,
            begin: (self.begin.window.epoch, self.begin.offset),
            step_rows: self.settings.batch_size.saturating_mul(self.settings.world_size),
            is_admitted: self.is_admitted,
        })
    }

    /// Takes the dispatcher's answer. Ignores an answer that is older than the newest.
    pub fn reply(&mut self, reply: ReaderReply) {
        if (reply.seq, reply.version) < (self.answered, self.known) && holds(Rule::OnlyTheNewestAnswer) {
            return;
        }
        self.is_admitted = true;
        self.answered = reply.seq;
        self.known = reply.version;
        self.workers = reply.workers;
        // Streams that broke after the message was sent are not reported yet.
        if reply.seq == self.seq {
            self.broken.drain(..std::mem::take(&mut self.broken_said));
        }
        self.failed = reply.failed;
        self.routes = reply.routes.into_iter().map(|route| (route.window, route)).collect();
    }

    /// Returns the streams to open now, because their windows became known, moved, or broke.
    pub fn opens(&mut self, now: Millis) -> Vec<Open> {
        self.close_silent(now);
        while self.receiving() < self.limits.streams && self.wants(self.receive.window) {
            let WindowStart { window, offset } = self.receive;
            if window.epoch >= self.settings.epochs || self.until.is_some_and(|until| offset >= until) {
                break;
            }
            let Some(route) = self.routes.get(&window) else { break };
            let (rows, last) = (route.rows, route.last);
            let end = self.until.unwrap_or(u64::MAX);
            let slice = Slice::new(&self.settings, self.origin(window.epoch), end, offset..offset + rows);
            self.streams.insert(window, WindowReceiver::new(slice, now));
            debug_assert!(self.receiving() <= self.limits.streams, "each unread window may have a stream");
            self.steps_ahead(window, offset, rows, last);
            self.has_news = true;
        }
        let streams = self.streams.iter_mut();
        streams.filter_map(|(window, stream)| stream.open(self.routes.get(window)?, now)).collect()
    }

    /// Returns the address of the worker that holds a window or computes it, if the trainer knows one.
    pub fn worker_of(&self, window: WindowId) -> Option<&str> {
        self.routes.get(&window).map(|route| &*route.address)
    }

    /// Closes the stream that the loop waits for if it has brought nothing for too long, and reports it as broken.
    fn close_silent(&mut self, now: Millis) {
        let is_due = self.silent_at().is_some_and(|at| at <= now) && holds(Rule::SilentStreamsAreClosed);
        let Some(awaited) = self.awaited.as_mut().filter(|_| is_due) else { return };
        let window = awaited.window;
        let Some(lease) = self.streams.get(&window).and_then(WindowReceiver::lease) else { return };
        if let Some(route) = self.routes.get(&window).filter(|_| awaited.silent.is_none()) {
            awaited.silent = Some((route.address.clone(), now));
        }
        self.ended(window, lease, Ended::Lost, now);
    }

    /// Returns when the stream that the loop waits for has been silent for too long. A window that is still being
    /// computed may take any time until its first rows.
    fn silent_at(&self) -> Option<Millis> {
        let Awaited { window, since, .. } = self.awaited.as_ref()?;
        let stream = self.streams.get(window)?;
        let lease = stream.lease()?;
        let is_ready = self.routes.get(window).is_some_and(|route| route.lease == lease && route.ready);
        // A window that cannot be computed again comes from this stream or never.
        let has_failed = self.failed.as_ref().is_some_and(|(failed, _)| failed == window);
        (is_ready || has_failed || stream.has_begun()).then(|| stream.opened().max(*since) + self.limits.silence_ms)
    }

    /// Returns when [`next`](Self::next) fails because rows of a computed window do not come, if nothing else happens.
    pub fn gives_up_at(&self) -> Option<Millis> {
        let Awaited { window, silent, .. } = self.awaited.as_ref()?;
        let (_, closed) = silent.as_ref()?;
        let is_ready = self.routes.get(window).is_some_and(|route| route.ready);
        is_ready.then(|| closed + self.limits.patience_ms)
    }

    /// Returns the error of a wait for rows that do not come.
    fn silence(&self, now: Millis) -> Option<Report> {
        let Awaited { window, since, silent } = self.awaited.as_ref()?;
        let (worker, _) = silent.as_ref().filter(|_| self.gives_up_at().is_some_and(|at| at <= now))?;
        let last = self.routes.get(window).map(|route| &route.address).filter(|last| *last != worker);
        let others = last.map_or(String::new(), |last| format!(", nor from the worker at {last}"));
        Some(Report {
            kind: ErrorKind::Unavailable,
            message: format!(
                "no rows of window {} of epoch {} came from the worker at {worker}{others} for {} s, although the window \
                 is computed",
                window.index,
                window.epoch,
                now.saturating_sub(*since) / 1_000
            ),
            hint: Some(
                "look at that worker's log, and at the network between this machine and the worker's".to_owned(),
            ),
            retry: true,
        })
    }

    /// Remembers the window that the loop waits for, and since when.
    fn await_window(&mut self, now: Millis) {
        let window = self.needed();
        if self.awaited.as_ref().is_none_or(|awaited| awaited.window != window) {
            self.awaited = Some(Awaited { window, since: now, silent: None });
        }
    }

    fn steps_ahead(&mut self, window: WindowId, offset: u64, rows: u64, last: bool) {
        self.receive = match last {
            true => WindowStart { window: WindowId { epoch: window.epoch + 1, index: 0 }, offset: 0 },
            false => WindowStart { window: WindowId { index: window.index + 1, ..window }, offset: offset + rows },
        };
    }

    /// Returns the number of streams that are open and have rows to bring.
    pub(crate) fn streams(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_open()).count()
    }

    fn receiving(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_unread()).count()
    }

    /// Returns when [`opens`](Self::opens) will have a stream to open again or to close, if nothing else happens.
    pub fn retry_at(&self) -> Option<Millis> {
        // Without a route, no stream can be opened.
        let routed = self.streams.iter().filter(|(window, _)| self.routes.contains_key(window));
        routed.filter_map(|(_, stream)| stream.retry_at()).chain(self.silent_at()).min()
    }

    /// Returns whether to receive more of this window's stream: while there is room, or if the loop waits for it.
    pub fn wants(&self, window: WindowId) -> bool {
        // The current batch takes what has come before it waits for more. Before a batch begins, all known rows are
        // fewer than a batch, and the windows that follow are opened only when these have come.
        let is_taken = || self.streams.get(&window).is_none_or(|stream| stream.buffered_bytes() == 0);
        let is_awaited = || {
            let is_needed = self.waiting_since.is_some() && window == self.needed();
            is_needed && (self.current.is_none() || is_taken()) && holds(Rule::AwaitedComesOverTheLimit)
        };
        self.buffered_bytes < self.limits.buffered_bytes || is_awaited()
    }

    /// Returns the window that the loop needs next.
    fn needed(&self) -> WindowId {
        let part = self.current.as_ref().and_then(|current| current.parts.front());
        part.map_or_else(|| self.at(), |(window, _)| *window)
    }

    /// Takes rows from a stream. Returns `false` if they are not the next ones, or come from a replaced stream. The
    /// rows are then ignored, and the caller should close the stream.
    pub fn received(&mut self, window: WindowId, lease: LeaseId, fragment: Fragment<R>, now: Millis) -> bool {
        let Some(stream) = self.streams.get_mut(&window).filter(|stream| stream.is_open_from(lease)) else {
            return false;
        };
        let bytes = fragment.bytes;
        if !stream.receive(fragment) {
            // This stream will not bring the missing rows any more.
            self.ended(window, lease, Ended::Lost, now);
            return false;
        }
        self.has_news |= !stream.is_unread();
        if let Some(awaited) = self.awaited.as_mut().filter(|awaited| awaited.window == window) {
            (awaited.since, awaited.silent) = (now, None);
        }
        self.buffered_bytes += bytes;
        self.bytes += bytes;
        true
    }

    /// Records that a stream ended.
    pub fn ended(&mut self, window: WindowId, lease: LeaseId, how: Ended, now: Millis) {
        let stream = self.streams.get_mut(&window).filter(|stream| stream.is_open_from(lease));
        let Some(missing) = stream.and_then(|stream| stream.close(how, now)) else { return };
        if let Some(route) = self.routes.get(&window).filter(|route| route.lease == lease) {
            let broken = BrokenLease { window, lease, worker: route.worker, missing };
            if !self.broken.contains(&broken) {
                self.broken.push(broken);
            }
            self.has_news = true;
        }
    }

    /// Returns whether the first epoch has no batch for any rank, although others follow.
    pub fn met_empty_epoch(&self) -> bool {
        self.empty.was_met()
    }

    /// Returns the next result for the loop.
    pub fn next(&mut self, now: Millis) -> Next<R> {
        let next = self.advance();
        match next {
            Next::Wait => {
                self.waiting_since.get_or_insert(now);
                self.await_window(now);
                if let Some(report) = self.silence(now) {
                    return Next::Fail(report);
                }
            }
            _ => {
                self.awaited = None;
                if let Some(since) = self.waiting_since.take() {
                    self.stalled_ms += now.saturating_sub(since);
                }
            }
        }
        next
    }

    fn advance(&mut self) -> Next<R> {
        loop {
            if self.current.is_some() {
                return self.assemble();
            }
            if let Some(cut) = self.cutter.next() {
                self.begin_batch(cut);
                continue;
            }
            let window = self.cut;
            if window.epoch >= self.settings.epochs || self.has_cut_all {
                return Next::End;
            }
            let Some(stream) = self.streams.get(&window) else {
                // The batch needs rows of this window, or of the windows before it.
                let given_up = self.given_up(WindowId { epoch: 0, index: 0 }..=window);
                return given_up.cloned().map_or(Next::Wait, Next::Fail);
            };
            let slice = stream.slice;
            let end = self.until.unwrap_or(u64::MAX);
            let offsets = slice.first..(slice.first + slice.rows).min(end);
            // The window after this one tells whether this one ends its epoch.
            let after = self.streams.range(window..).nth(1).map_or(self.receive.window, |(&after, _)| after);
            self.has_cut_all = offsets.end == end;
            let last = after.epoch > window.epoch || self.has_cut_all;
            if window.epoch != self.steps.epoch() {
                self.cutter = Cutter::new(self.settings, self.origin(window.epoch));
                // Rows of an incomplete last step are not delivered.
                let kept = self.streams.split_off(&window);
                for stream in std::mem::replace(&mut self.streams, kept).into_values() {
                    self.buffered_bytes -= stream.buffered_bytes();
                }
            }
            self.steps.push(window, offsets.start);
            self.empty.push(&self.settings, window.epoch, offsets.end, last);
            self.cutter.push(window, offsets, last);
            self.cut = after;
        }
    }

    /// Returns the reason if the rest of one of these windows will not come.
    fn given_up(&self, windows: RangeInclusive<WindowId>) -> Option<&Report> {
        let (window, report) = self.failed.as_ref().filter(|(window, _)| windows.contains(window))?;
        // Rows of a failed window may have been received, or may still come from an open stream.
        (!self.streams.get(window).is_some_and(WindowReceiver::may_complete)).then_some(report)
    }

    fn begin_batch(&mut self, cut: Cut<WindowId>) {
        let step_at = cut.next_step_at - self.settings.batch_size * self.settings.world_size;
        let token = self.steps.token(step_at, cut.next_step_at);
        self.current = Some(CurrentBatch {
            step: cut.step,
            offsets: cut.offsets,
            token,
            parts: cut.parts.into(),
            records: Vec::new(),
        });
    }

    /// Moves received rows into the current batch, and returns it when it is complete.
    fn assemble(&mut self) -> Next<R> {
        let current = self.current.as_mut().expect("the caller found a batch");
        while let Some((window, rows)) = current.parts.front_mut() {
            let stream = self.streams.get_mut(window).expect("kept until its last row is delivered");
            let Some(fragment) = stream.take() else {
                let window = *window;
                let failed = self.streams.get(&window).and_then(|stream| stream.failed.as_ref());
                return failed.or(self.given_up(window..=window)).cloned().map_or(Next::Wait, Next::Fail);
            };
            debug_assert!(
                fragment.rows.start == rows.start && fragment.rows.end <= rows.end,
                "a fragment belongs to one part"
            );
            self.buffered_bytes -= fragment.bytes;
            current.records.push(fragment.records);
            rows.start = fragment.rows.end;
            if rows.is_empty() {
                current.parts.pop_front();
            }
        }
        let CurrentBatch { step, offsets, token, records, .. } = self.current.take().expect("the batch is complete");
        self.samples += offsets.end - offsets.start;
        let cut = self.cut;
        self.streams.retain(|&window, stream| window >= cut || !stream.is_taken());
        Next::Deliver(Box::new(AssembledBatch { epoch: token.epoch, step, offsets, token, records }))
    }

    /// Returns the last message to the dispatcher.
    pub fn leave(&mut self, now: Millis) -> ReaderSync {
        ReaderSync { leaving: true, ..self.sync(now) }
    }
}

#[cfg(test)]
mod tests;
