//! The interface between a worker and the transport that carries slices of windows to trainers.
//!
//! A worker opens a slice for the holder of a valid ticket, and a [`SliceSender`] sends the rows. [`flight`] sends them
//! as Flight messages, over TCP or a local socket. The trainer's counterpart is `SliceTransport` in
//! `flight-client/src/transport/`; a new transport implements both. `memory` implements both without sockets, for
//! tests.

pub(crate) mod flight;
#[cfg(test)]
mod memory;

use arrow::datatypes::SchemaRef;
use forebay_engine::{Error, Result, WindowRows};
use futures::stream::BoxStream;

/// An open slice of a window.
pub(crate) struct WindowSlice {
    pub(crate) schema: SchemaRef,
    /// The slice's rows in order, in pieces that belong to one batch each. A piece is computed when it is polled.
    pub(crate) pieces: BoxStream<'static, Result<WindowRows>>,
}

/// Sends slices over one transport.
pub(crate) trait SliceSender {
    /// The transport's answer to a request.
    type Answer;

    /// Sends the rows of a slice as they are computed, and no faster than the trainer takes them.
    fn send(&self, slice: WindowSlice) -> Self::Answer;

    /// Refuses a slice. `Denied` is about the ticket, `NotFound` about the window.
    fn refuse(&self, why: &Error) -> Self::Answer;
}
