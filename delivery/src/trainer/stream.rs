//! A stream of a trainer: the rows of one window, received in order from one worker after another.

use std::collections::VecDeque;
use std::ops::Range;

use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::{Report, Route};
use crate::rules::{Rule, holds};
use crate::sequencer::{LeaseId, WorkerId};
use crate::slice::Slice;
use crate::window::WindowId;

/// The first and the longest wait before a broken stream is opened again. The wait doubles with each failure.
pub(super) const RETRY_MS: (Millis, Millis) = (50, 1_000);

/// A stream to open. It replaces any other stream of the same window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The window.
    pub window: WindowId,
    /// The lease, which the stream's messages must name.
    pub lease: LeaseId,
    /// The worker.
    pub worker: WorkerId,
    /// The worker's address.
    pub address: String,
    /// The rows to take.
    pub slice: Slice,
    /// The row at which to begin.
    pub from_row: u64,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The worker sent all rows.
    Complete,
    /// The worker answered that it does not hold the window.
    Missing,
    /// The worker could not be reached, or the stream broke.
    Lost,
    /// The worker sent an error that every other worker would send, too.
    Failed(Report),
}

impl Ended {
    /// Returns what a worker's error says about the rows that the stream has not brought.
    pub fn of(report: Report) -> Self {
        match report.kind {
            ErrorKind::Data
            | ErrorKind::Invalid
            | ErrorKind::Conflict
            | ErrorKind::Unsupported
            | ErrorKind::Internal => Self::Failed(report),
            // Another worker may accept the reader's tokens, hold the window, or have what this one lacks.
            _ if !holds(Rule::ShortagesPass) => Self::Failed(report),
            ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::Exhausted => Self::Lost,
        }
    }
}

/// Consecutive rows of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment<R> {
    /// The rows of the window, including bad rows that were left out.
    pub rows: Range<u64>,
    /// Bytes that they take.
    pub bytes: u64,
    /// The rows' content.
    pub records: R,
}

/// The rows of one window: those that are received, and those to receive.
#[derive(Debug)]
pub(super) struct WindowReceiver<R> {
    pub(super) slice: Slice,
    /// The next run of rows to receive, without the rows already received; `None` when all are received.
    expected: Option<Range<u64>>,
    /// The lease from which the stream is open.
    open: Option<LeaseId>,
    /// The lease from which the stream was last opened.
    tried: Option<LeaseId>,
    /// When that was, and whether rows have come since.
    opened: Millis,
    has_begun: bool,
    buffer: VecDeque<Fragment<R>>,
    pub(super) failed: Option<Report>,
    failures: u32,
    retry_at: Millis,
}

impl<R> WindowReceiver<R> {
    /// Creates a stream that has not been opened.
    pub(super) fn new(slice: Slice, now: Millis) -> Self {
        Self {
            slice,
            expected: slice.run(0),
            open: None,
            tried: None,
            opened: now,
            has_begun: false,
            buffer: VecDeque::new(),
            failed: None,
            failures: 0,
            retry_at: now,
        }
    }

    /// Returns whether more rows may be received.
    pub(super) fn is_unread(&self) -> bool {
        self.expected.is_some() && self.failed.is_none()
    }

    /// Returns whether all rows are received, or a worker may still send the rest.
    pub(super) fn may_complete(&self) -> bool {
        self.open.is_some() || self.expected.is_none()
    }

    /// Returns whether all rows are received and taken.
    pub(super) fn is_taken(&self) -> bool {
        self.expected.is_none() && self.buffer.is_empty()
    }

    /// Returns whether the stream is open.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the lease from which the stream is open.
    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.open
    }

    /// Returns when the stream was last opened.
    pub(super) fn opened(&self) -> Millis {
        self.opened
    }

    /// Returns whether rows have come since the stream was last opened.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Returns whether the stream is open from this lease.
    pub(super) fn is_open_from(&self, lease: LeaseId) -> bool {
        self.open == Some(lease)
    }

    /// Returns when the stream may be opened again, if it is closed and rows are missing.
    pub(super) fn retry_at(&self) -> Option<Millis> {
        (self.is_unread() && self.open.is_none()).then_some(self.retry_at)
    }

    /// Returns the bytes that are received and not taken.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.buffer.iter().map(|fragment| fragment.bytes).sum()
    }

    /// Opens the stream if it is closed, or open at a worker that the window has left.
    pub(super) fn open(&mut self, route: &Route, now: Millis) -> Option<Open> {
        let from_row = self.expected.as_ref().filter(|_| self.failed.is_none())?.start;
        let has_moved = self.open.is_some_and(|lease| lease != route.lease);
        // A stream waits only before it is opened again from the lease that broke.
        let may_retry = self.retry_at <= now || self.tried != Some(route.lease);
        if !has_moved && (self.open.is_some() || !may_retry) {
            return None;
        }
        self.open = Some(route.lease);
        self.tried = self.open;
        (self.opened, self.has_begun) = (now, false);
        Some(Open {
            window: route.window,
            lease: route.lease,
            worker: route.worker,
            address: route.address.clone(),
            slice: self.slice,
            from_row,
        })
    }

    /// Takes received rows into the buffer. Returns `false` if they are not the next ones.
    pub(super) fn receive(&mut self, fragment: Fragment<R>) -> bool {
        let Some(expected) = &mut self.expected else { return false };
        let rows = fragment.rows.clone();
        let is_next = rows.start == expected.start || !holds(Rule::OnlyTheNextRow);
        if !is_next || rows.end <= rows.start || rows.end > expected.end {
            return false;
        }
        expected.start = rows.end;
        if expected.is_empty() {
            self.expected = self.slice.run(rows.end);
        }
        self.failures = 0;
        self.has_begun = true;
        self.buffer.push_back(fragment);
        if self.expected.is_none() {
            self.open = None;
        }
        true
    }

    /// Takes the next fragment from the buffer.
    pub(super) fn take(&mut self) -> Option<Fragment<R>> {
        self.buffer.pop_front()
    }

    /// Closes the stream. Returns `None` if it need not be opened again, else whether the worker lacked the window.
    pub(super) fn close(&mut self, how: Ended, now: Millis) -> Option<bool> {
        self.open = None;
        self.expected.as_ref()?;
        let missing = match how {
            Ended::Failed(report) => {
                self.failed = Some(report);
                return None;
            }
            // The stream ended early: the worker does not hold the missing rows.
            Ended::Complete | Ended::Missing => true,
            Ended::Lost => false,
        };
        self.retry_at = now + (RETRY_MS.0 << self.failures.min(10)).min(RETRY_MS.1);
        self.failures += 1;
        Some(missing)
    }
}
