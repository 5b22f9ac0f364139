//! A trainer's side: follow routes, take each window's rows in order from whoever has them, cut exact batches.
//!
//! One rank of one reader, without I/O: whoever drives it opens the streams it asks for, hands it what they bring, and
//! tells the dispatcher what it says. The rules:
//!
//! - Of each window only the row that comes next is accepted, whoever sends it.
//! - A stream that breaks, or whose window moved, is opened again elsewhere from the row that comes next.
//! - A position counts what was handed to the loop, never what was received.
//! - An error of the data is raised where it lies: after the batches before it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::clock::Millis;
use crate::cutter::{Cut, Cutter};
use crate::messages::{Broken, ReaderReply, ReaderSync, Report, Route};
use crate::position::Token;
use crate::rules::{Rule, holds};
use crate::sequencer::{LeaseId, WorkerId};
use crate::settings::ReadSettings;
use crate::slice::Slice;
use crate::steps::Steps;
use crate::window::WindowId;

/// Windows that a trainer receives at a time.
const STREAMS_MAX: usize = 3;
/// The first wait before a stream that broke is opened again; it doubles up to the last.
const RETRY_MS: (Millis, Millis) = (50, 1_000);

/// Where a reader begins: resolved against a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// A window at or before the first offset.
    pub window: WindowId,
    /// That window's first offset.
    pub window_offset: u64,
    /// The first offset to read.
    pub offset: u64,
}

/// What a trainer may receive ahead of its loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// Windows that are received at a time.
    pub streams: usize,
    /// Bytes, about. The rows that the loop waits for are received whatever the limit says.
    pub buffered_bytes: u64,
}

impl ReceiveLimits {
    /// The limits of a rank's only trainer, which buffers about so many bytes.
    pub fn of_bytes(buffered_bytes: u64) -> Self {
        Self { streams: STREAMS_MAX, buffered_bytes }
    }
}

/// A stream to open, in place of any other of the same window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Which window.
    pub window: WindowId,
    /// The grant: what comes must name it.
    pub lease: LeaseId,
    /// Who holds it.
    pub worker: WorkerId,
    /// Where that is.
    pub address: String,
    /// What to take of it.
    pub slice: Slice,
    /// The row to begin at.
    pub from_row: u64,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself.
    Complete,
    /// The worker answered that it does not hold the window.
    Missing,
    /// The worker could not be reached, or the stream broke.
    Lost,
    /// The worker sent an error that no other worker would spare us.
    Failed(Report),
}

/// Rows that come from a window, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment<R> {
    /// Which rows of the window, those left out for being bad included.
    pub rows: Range<u64>,
    /// Bytes that they take.
    pub bytes: u64,
    /// What they are.
    pub records: R,
}

/// A batch, in pieces that are to be joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssembledBatch<R> {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step in the epoch, from 0.
    pub step: u64,
    /// Offsets that it covers.
    pub offsets: Range<u64>,
    /// Where to go on after its global step.
    pub token: Token,
    /// Its rows, in order.
    pub records: Vec<R>,
}

/// What is next for the loop.
#[derive(Clone, Debug, PartialEq)]
pub enum Next<R> {
    /// A batch.
    Deliver(Box<AssembledBatch<R>>),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    End,
    /// An error; nothing comes after it.
    Fail(Report),
}

#[derive(Debug)]
struct Stream<R> {
    slice: Slice,
    /// The next run of rows to come, what was received of it taken off; none when all is here.
    expected: Option<Range<u64>>,
    open: Option<LeaseId>,
    /// The grant that it was last opened from.
    tried: Option<LeaseId>,
    buffer: VecDeque<Fragment<R>>,
    failed: Option<Report>,
    failures: u32,
    retry_at: Millis,
}

impl<R> Stream<R> {
    /// Whether more can come of it.
    fn is_unread(&self) -> bool {
        self.expected.is_some() && self.failed.is_none()
    }
}

/// A window that comes next, and its first offset.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    window: WindowId,
    offset: u64,
}

/// The trainer's state.
#[derive(Debug)]
pub struct Trainer<R> {
    feed: Arc<str>,
    session: u64,
    settings: ReadSettings,
    begin: Origin,
    /// The offset in the first epoch before which to stop, if that is all to be read.
    until: Option<u64>,
    has_cut_all: bool,
    routes: BTreeMap<WindowId, Route>,
    failed: Option<(WindowId, Report)>,
    workers: usize,
    streams: BTreeMap<WindowId, Stream<R>>,
    /// The next window to receive.
    receive: Cursor,
    /// The next window to cut.
    cut: WindowId,
    cutter: Cutter<WindowId>,
    steps: Steps,
    /// The batch being put together: its parts that are still missing lie in `parts`.
    current: Option<CurrentBatch<R>>,
    buffered_bytes: u64,
    limits: ReceiveLimits,
    broken: Vec<Broken>,
    /// How many of these the newest message said.
    broken_said: usize,
    waiting_since: Option<Millis>,
    /// When streams to open were last asked for.
    asked: Millis,
    seq: u64,
    answered: u64,
    known: u64,
    samples: u64,
    bytes: u64,
    stalled_ms: Millis,
    /// Whether something is to be said that the dispatcher does not know.
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
    /// A rank that begins at `begin`. `session` should be drawn at random.
    pub fn new(feed: Arc<str>, session: u64, settings: ReadSettings, begin: Origin, limits: ReceiveLimits) -> Self {
        Self {
            session,
            settings,
            begin,
            until: None,
            has_cut_all: false,
            routes: BTreeMap::new(),
            failed: None,
            workers: 0,
            streams: BTreeMap::new(),
            receive: Cursor { window: begin.window, offset: begin.window_offset },
            cut: begin.window,
            cutter: Cutter::new(settings, begin.offset),
            steps: Steps::new(Arc::clone(&feed), begin.window.epoch),
            feed,
            current: None,
            buffered_bytes: 0,
            limits,
            broken: Vec::new(),
            broken_said: 0,
            waiting_since: None,
            asked: 0,
            seq: 0,
            answered: 0,
            known: 0,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            has_news: true,
        }
    }

    /// The same, but only up to the offset `until` of the epoch that it begins in.
    #[must_use]
    pub fn until(mut self, until: u64) -> Self {
        self.until = Some(until);
        self.settings.epochs = self.begin.window.epoch + 1;
        self
    }

    /// The feed's id.
    pub fn feed(&self) -> &Arc<str> {
        &self.feed
    }

    /// The first window that is not wholly received.
    fn at(&self) -> WindowId {
        let unread = self.streams.iter().find(|(_, stream)| stream.is_unread() && holds(Rule::PositionIsReceived));
        unread.map_or(self.receive.window, |(&window, _)| window)
    }

    /// The offset that the global steps of `epoch` are counted from.
    fn origin(&self, epoch: u64) -> u64 {
        if epoch == self.begin.window.epoch { self.begin.offset } else { 0 }
    }

    /// Whether the dispatcher should be told at once rather than in its own time.
    pub fn has_news(&self) -> bool {
        self.has_news
    }

    /// Workers that compute this feed, as far as the dispatcher last said.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes received that the loop has not been handed.
    pub fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes
    }

    /// The next message to the dispatcher.
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
            at: self.at(),
            until_epoch: self.settings.epochs,
            known: self.known,
            broken: self.broken.clone(),
            waiting: waiting.map(|waited| (self.needed(), waited)),
            leaving: false,
            samples: self.samples,
            bytes: self.bytes,
            stalled_ms: self.stalled_ms + waiting.unwrap_or(0),
        }
    }

    /// Takes the dispatcher's answer. An older answer than the last changes nothing: one to an older message, or of
    /// before something changed.
    pub fn reply(&mut self, reply: ReaderReply) {
        if (reply.seq, reply.version) < (self.answered, self.known) && holds(Rule::OnlyTheNewestAnswer) {
            return;
        }
        self.answered = reply.seq;
        self.known = reply.version;
        self.workers = reply.workers;
        // What broke after the message is still to be said.
        if reply.seq == self.seq {
            self.broken.drain(..std::mem::take(&mut self.broken_said));
        }
        self.failed = reply.failed;
        self.routes = reply.routes.into_iter().map(|route| (route.window, route)).collect();
    }

    /// The streams to open now, because their windows became known, moved, or broke.
    pub fn opens(&mut self, now: Millis) -> Vec<Open> {
        self.asked = now;
        while self.receiving() < self.limits.streams && self.wants(self.receive.window) {
            let Cursor { window, offset } = self.receive;
            if window.epoch >= self.settings.epochs || self.until.is_some_and(|until| offset >= until) {
                break;
            }
            let Some(route) = self.routes.get(&window) else { break };
            let (rows, last) = (route.rows, route.last);
            let end = self.until.unwrap_or(u64::MAX);
            let slice = Slice::new(&self.settings, self.origin(window.epoch), end, offset..offset + rows);
            let stream = Stream {
                slice,
                expected: slice.run(0),
                open: None,
                tried: None,
                buffer: VecDeque::new(),
                failed: None,
                failures: 0,
                retry_at: now,
            };
            self.streams.insert(window, stream);
            self.steps_ahead(window, offset, rows, last);
            self.has_news = true;
        }
        let mut opens = Vec::new();
        for (&window, stream) in &mut self.streams {
            let Some(expected) = stream.expected.clone().filter(|_| stream.failed.is_none()) else { continue };
            let Some(route) = self.routes.get(&window) else { continue };
            let has_moved = stream.open.is_some_and(|lease| lease != route.lease);
            // Only where it broke before is it worth a wait.
            let may_retry = stream.retry_at <= now || stream.tried != Some(route.lease);
            if has_moved || (stream.open.is_none() && may_retry) {
                stream.open = Some(route.lease);
                stream.tried = stream.open;
                opens.push(Open {
                    window,
                    lease: route.lease,
                    worker: route.worker,
                    address: route.address.clone(),
                    slice: stream.slice,
                    from_row: expected.start,
                });
            }
        }
        opens
    }

    fn steps_ahead(&mut self, window: WindowId, offset: u64, rows: u64, last: bool) {
        self.receive = match last {
            true => Cursor { window: WindowId { epoch: window.epoch + 1, index: 0 }, offset: 0 },
            false => Cursor { window: WindowId { index: window.index + 1, ..window }, offset: offset + rows },
        };
    }

    fn receiving(&self) -> usize {
        self.streams.values().filter(|stream| stream.is_unread()).count()
    }

    /// When [`opens`](Self::opens) will have a stream to open again, if nothing else happens.
    pub fn retry_at(&self) -> Option<Millis> {
        // Without a route there is nothing to open, whatever the time.
        let is_closed = |stream: &Stream<R>| stream.is_unread() && stream.open.is_none();
        let closed = self.streams.iter().filter(|(window, it)| is_closed(it) && self.routes.contains_key(window));
        closed.map(|(_, stream)| stream.retry_at).min()
    }

    /// Whether more of this window's stream should be received now: while there is room, and whatever the loop waits
    /// for.
    pub fn wants(&self, window: WindowId) -> bool {
        let is_awaited =
            || self.waiting_since.is_some() && window == self.needed() && holds(Rule::AwaitedComesOverTheLimit);
        self.buffered_bytes < self.limits.buffered_bytes || is_awaited()
    }

    /// The window that the loop needs rows of next.
    fn needed(&self) -> WindowId {
        let part = self.current.as_ref().and_then(|current| current.parts.front());
        part.map_or_else(|| self.at(), |(window, _)| *window)
    }

    /// Takes rows from a stream. `false` if they are not the ones that come next, or from a stream that was replaced:
    /// they are then forgotten, and the stream should be closed.
    pub fn received(&mut self, window: WindowId, lease: LeaseId, fragment: Fragment<R>) -> bool {
        let Some(stream) = self.streams.get_mut(&window).filter(|stream| stream.open == Some(lease)) else {
            return false;
        };
        let Some(expected) = &mut stream.expected else { return false };
        let rows = fragment.rows.clone();
        let is_next = rows.start == expected.start || !holds(Rule::OnlyTheNextRow);
        if !is_next || rows.end <= rows.start || rows.end > expected.end {
            // Whatever it is, it will not bring them any more.
            self.ended(window, lease, Ended::Lost, self.asked);
            return false;
        }
        expected.start = rows.end;
        if expected.is_empty() {
            stream.expected = stream.slice.run(rows.end);
        }
        stream.failures = 0;
        self.buffered_bytes += fragment.bytes;
        self.bytes += fragment.bytes;
        stream.buffer.push_back(fragment);
        if stream.expected.is_none() {
            stream.open = None;
            self.has_news = true;
        }
        true
    }

    /// A stream ended.
    pub fn ended(&mut self, window: WindowId, lease: LeaseId, how: Ended, now: Millis) {
        let Some(stream) = self.streams.get_mut(&window).filter(|stream| stream.open == Some(lease)) else { return };
        stream.open = None;
        if stream.expected.is_none() {
            return;
        }
        let missing = match how {
            Ended::Failed(report) => {
                stream.failed = Some(report);
                return;
            }
            // It ended early: what we still need is not there.
            Ended::Complete | Ended::Missing => true,
            Ended::Lost => false,
        };
        stream.retry_at = now + (RETRY_MS.0 << stream.failures.min(10)).min(RETRY_MS.1);
        stream.failures += 1;
        if let Some(route) = self.routes.get(&window).filter(|route| route.lease == lease) {
            let broken = Broken { window, lease, worker: route.worker, missing };
            if !self.broken.contains(&broken) {
                self.broken.push(broken);
            }
            self.has_news = true;
        }
    }

    /// What is next for the loop.
    pub fn next(&mut self, now: Millis) -> Next<R> {
        let next = self.advance();
        match next {
            Next::Wait => {
                self.waiting_since.get_or_insert(now);
            }
            _ => {
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
                // The batch needs this one, and the rest of those before it.
                let given_up = self.given_up(WindowId { epoch: 0, index: 0 }..=window);
                return given_up.cloned().map_or(Next::Wait, Next::Fail);
            };
            let slice = stream.slice;
            let end = self.until.unwrap_or(u64::MAX);
            let offsets = slice.first..(slice.first + slice.rows).min(end);
            // The next window to receive tells whether this one ends its epoch.
            let after = self.streams.range(window..).nth(1).map_or(self.receive.window, |(&after, _)| after);
            self.has_cut_all = offsets.end == end;
            let last = after.epoch > window.epoch || self.has_cut_all;
            if window.epoch != self.steps.epoch() {
                self.cutter = Cutter::new(self.settings, self.origin(window.epoch));
                // What an incomplete last step received is not handed out.
                let kept = self.streams.split_off(&window);
                for stream in std::mem::replace(&mut self.streams, kept).into_values() {
                    self.buffered_bytes -= stream.buffer.iter().map(|fragment| fragment.bytes).sum::<u64>();
                }
            }
            self.steps.push(window, offsets.start);
            self.cutter.push(window, offsets, last);
            self.cut = after;
        }
    }

    /// Why the rest of one of these windows will not come.
    fn given_up(&self, windows: RangeInclusive<WindowId>) -> Option<&Report> {
        let (window, report) = self.failed.as_ref().filter(|(window, _)| windows.contains(window))?;
        // What cannot be computed again may still come from whoever is sending it, or be here.
        let comes = |stream: &Stream<R>| stream.open.is_some() || stream.expected.is_none();
        (!self.streams.get(window).is_some_and(comes)).then_some(report)
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

    /// Moves what is here of the current batch into it.
    fn assemble(&mut self) -> Next<R> {
        let current = self.current.as_mut().expect("asked for by the caller");
        while let Some((window, rows)) = current.parts.front_mut() {
            let stream = self.streams.get_mut(window).expect("kept until its last row is cut");
            let Some(fragment) = stream.buffer.pop_front() else {
                let window = *window;
                let failed = self.streams.get(&window).and_then(|stream| stream.failed.as_ref());
                return failed.or(self.given_up(window..=window)).cloned().map_or(Next::Wait, Next::Fail);
            };
            debug_assert!(fragment.rows.start == rows.start && fragment.rows.end <= rows.end, "runs are parts");
            self.buffered_bytes -= fragment.bytes;
            current.records.push(fragment.records);
            rows.start = fragment.rows.end;
            if rows.is_empty() {
                current.parts.pop_front();
            }
        }
        let CurrentBatch { step, offsets, token, records, .. } = self.current.take().expect("looked at above");
        self.samples += offsets.end - offsets.start;
        let cut = self.cut;
        self.streams.retain(|&window, it| window >= cut || it.expected.is_some() || !it.buffer.is_empty());
        Next::Deliver(Box::new(AssembledBatch { epoch: token.epoch, step, offsets, token, records }))
    }

    /// The last message to the dispatcher.
    pub fn leave(&mut self, now: Millis) -> ReaderSync {
        ReaderSync { leaving: true, ..self.sync(now) }
    }
}

#[cfg(test)]
mod tests;
