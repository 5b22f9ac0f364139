//! How slices of windows go to trainers: the seam between a worker and a transport.
//!
//! A worker opens a slice for whoever has a ticket for it, and a [`SliceSender`] sends the rows. [`flight`] sends them
//! as Flight messages, whether a trainer came over TCP or a local socket. A trainer's side of the seam is
//! `SliceTransport` in `flight-client/src/transport/`; a new transport implements both. `memory` does so without any
//! socket, for tests.

pub(crate) mod flight;
#[cfg(test)]
mod memory;

use arrow::datatypes::SchemaRef;
use forebay_engine::{Error, Result, WindowRows};
use futures::stream::BoxStream;

/// A slice of a window, opened.
pub(crate) struct WindowSlice {
    pub(crate) schema: SchemaRef,
    /// The slice's rows in order, in pieces that belong to one batch each. They are computed as they are taken.
    pub(crate) pieces: BoxStream<'static, Result<WindowRows>>,
}

/// Sends slices by one transport.
pub(crate) trait SliceSender {
    /// What the transport answers a request with.
    type Answer;

    /// Sends the rows of a slice as they come, and no faster than the trainer takes them.
    fn send(&self, slice: WindowSlice) -> Self::Answer;

    /// Says why there is no slice. `Denied` is about the ticket, and `NotFound` about the window.
    fn refuse(&self, why: &Error) -> Self::Answer;
}
