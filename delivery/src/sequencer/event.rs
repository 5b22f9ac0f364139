//! The events that a sequencer takes, and the ids in them.

use crate::window::WindowId;

/// Identifies a reader.
pub type ReaderId = u64;

/// Identifies a worker process. It is drawn at random when the process starts, so it changes with a restart.
pub type WorkerId = u64;

/// Identifies one grant of one window to one worker. Reports name it, so that a report about an earlier grant is
/// recognized.
pub type LeaseId = u64;

/// An event that the sequencer takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A worker is available, or its limits changed.
    WorkerJoined {
        /// The worker.
        worker: WorkerId,
        /// The worker's limits.
        limits: WorkerLimits,
    },
    /// A reader could not reach a worker. The worker is leased no new window until it joins again.
    WorkerSuspected {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker takes no more windows. The windows that it holds can be read until it leaves.
    WorkerDraining {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker computes a window of another feed alone, or does so no longer. Meanwhile it computes nothing of this
    /// feed. The windows that it has computed can be read.
    WorkerReserved {
        /// The worker.
        worker: WorkerId,
        /// Whether it is.
        is_reserved: bool,
    },
    /// A worker is gone, with its windows, because it wanted to.
    WorkerLeft {
        /// The worker.
        worker: WorkerId,
    },
    /// A worker is gone, with its windows. If its connection broke before, so that it is suspected, computing one of
    /// them may have ended it.
    WorkerLost {
        /// The worker.
        worker: WorkerId,
        /// Whether it was computing windows of other feeds as well.
        is_shared: bool,
    },
    /// A worker that was lost was heard again, although it does not join: no window ended it.
    WorkerLives {
        /// The worker.
        worker: WorkerId,
    },
    /// A reader joined.
    ReaderJoined {
        /// The reader.
        reader: ReaderId,
        /// The window in which it begins.
        at: WindowId,
        /// The epoch before which it stops.
        until_epoch: u64,
        /// The fraction of the samples that it takes: 1 over its world size.
        share: f64,
    },
    /// A reader joined, of a job that continues: the reader of a rank's next claim. Windows that were given up are not
    /// tried again, as they are for a reader that may have restarted.
    ReaderContinued {
        /// The reader.
        reader: ReaderId,
        /// The window in which it begins.
        at: WindowId,
        /// The epoch before which it stops.
        until_epoch: u64,
        /// The fraction of the samples that it takes: 1 over its world size.
        share: f64,
    },
    /// A reader has passed all windows before `to`.
    ReaderAdvanced {
        /// The reader.
        reader: ReaderId,
        /// Its current window.
        to: WindowId,
    },
    /// A reader has waited too long for this window.
    ReaderStalled {
        /// The window.
        window: WindowId,
    },
    /// A window takes its worker much longer than windows usually take, and another worker has nothing to do.
    WindowLate {
        /// The window.
        window: WindowId,
        /// The other worker.
        idle: WorkerId,
    },
    /// A reader is gone.
    ReaderLeft {
        /// The reader.
        reader: ReaderId,
    },
    /// A worker reports that it holds a leased window, and whether it is at work on it: it has begun to compute the
    /// window, and has not finished.
    WindowAtWork {
        /// The window.
        window: WindowId,
        /// The lease.
        lease: LeaseId,
        /// Whether it is.
        at_work: bool,
    },
    /// A leased window has been read and filtered: its rows are known, and it can be read.
    WindowCounted {
        /// The window.
        window: WindowId,
        /// The lease.
        lease: LeaseId,
        /// Samples in it.
        rows: u64,
        /// Bytes that it takes.
        bytes: u64,
    },
    /// A leased window is computed as far as memory allows.
    WindowReady {
        /// The window.
        window: WindowId,
        /// The lease.
        lease: LeaseId,
    },
    /// A window's samples are in a file: no worker needs to hold them.
    WindowStored {
        /// The window.
        window: WindowId,
    },
    /// A leased window could not be computed.
    WindowFailed {
        /// The window.
        window: WindowId,
        /// The lease.
        lease: LeaseId,
        /// Whether another worker may succeed.
        retry: bool,
    },
    /// A worker does not hold a window that is leased to it.
    WindowMissing {
        /// The window.
        window: WindowId,
        /// The lease.
        lease: LeaseId,
    },
}

/// A worker's limits for one feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerLimits {
    /// Bytes of windows.
    pub memory_bytes: u64,
    /// The number of windows that it computes at a time ahead of the readers.
    pub computing: usize,
    /// The number of windows that it may hold whatever their size, so that computing overlaps reading even if windows
    /// are large.
    pub windows_at_least: usize,
}
