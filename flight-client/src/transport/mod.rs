//! The interface between reading a feed and the transport that carries slices of windows from workers.
//!
//! A reader decides which slice to read from which worker, and a [`SliceTransport`] opens it. [`FlightTransport`] uses
//! TCP, or a local socket for a worker on the same machine. The worker's counterpart is `SliceSender` in
//! `flight-server/src/transport/`; a new transport implements both.

mod flight;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use forebay_delivery::WorkerId;
use forebay_protocol::Error;
use futures::stream::BoxStream;

pub(crate) use self::flight::FlightTransport;
use crate::wire::{PieceMetadata, WindowRequest};

/// Opens slices of windows at workers.
#[async_trait]
pub trait SliceTransport: Send + Sync {
    /// Requests a slice from the worker at `address`. Dropping the future or the stream closes the slice.
    async fn open(&self, worker: WorkerId, address: &str, request: WindowRequest) -> Result<SliceStream, SliceError>;
}

/// The rows of a slice in order. The stream ends after the last row, or after an error.
///
/// A transport receives rows only as fast as the stream is polled, up to a bound of its own. A reader without room does
/// not poll.
pub type SliceStream = BoxStream<'static, Result<SliceRows, SliceError>>;

/// Rows that were received together.
#[derive(Debug)]
pub struct SliceRows {
    /// The rows.
    pub records: RecordBatch,
    /// The rows' positions in the window.
    pub metadata: PieceMetadata,
    /// The rows' size in bytes.
    pub bytes: u64,
}

/// Why a slice cannot be opened, or why it ended early.
#[derive(Clone, Debug)]
pub enum SliceError {
    /// The worker does not hold the window.
    Missing,
    /// No worker can be reached at this address. Another worker's address may be right.
    Unreachable(Error),
    /// The worker refuses the ticket. The dispatcher's next answer brings a new one.
    TicketRefused(Error),
    /// The worker failed, or the stream broke. The error's kind says whether another worker may succeed.
    Failed(Error),
}
