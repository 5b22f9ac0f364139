//! How slices of windows come from workers: the seam between reading a feed and a transport.
//!
//! A reader decides which slice to read from which worker, and a [`SliceTransport`] opens it. [`FlightTransport`] does
//! so over TCP, and over a local socket for a worker on the same machine. A worker's side of the seam is `SliceSender`
//! in `flight-server/src/transport/`; a new transport implements both.

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
    /// Asks a worker, which serves at `address`, for a slice. Dropping the future or the stream closes the slice.
    async fn open(&self, worker: WorkerId, address: &str, request: WindowRequest) -> Result<SliceStream, SliceError>;
}

/// The rows of a slice in order. The stream ends after the last row, or after an error.
///
/// A transport receives rows only as fast as the stream is polled, up to a bound of its own: a reader that has no room
/// does not poll.
pub type SliceStream = BoxStream<'static, Result<SliceRows, SliceError>>;

/// Rows that came together.
#[derive(Debug)]
pub struct SliceRows {
    /// The rows.
    pub records: RecordBatch,
    /// Which rows of the window they are.
    pub metadata: PieceMetadata,
    /// Bytes that they take.
    pub bytes: u64,
}

/// Why a slice cannot be opened, or ended early.
#[derive(Clone, Debug)]
pub enum SliceError {
    /// The worker does not hold the window.
    Missing,
    /// No worker can be reached at its address. Another worker's address may be right.
    Unreachable(Error),
    /// The worker refuses the ticket. The dispatcher's next answer brings a new one.
    TicketRefused(Error),
    /// The worker failed, or the stream broke. The error's kind says whether another worker may fare better.
    Failed(Error),
}
