//! Flow control between readers and workers, as in HTTP/2.
//!
//! All streams between a rank's process and a worker's process share one connection. A stream has a window of bytes
//! that are sent and not taken, and so has the connection. A stream that its reader does not take from keeps its part
//! of the connection's window.

use std::collections::BTreeMap;

use super::world::Process;
use crate::STREAMS_OF_A_RANK_MAX;
use crate::rules::{Rule, holds};

/// Reader and worker.
type Connection = (Process, Process);

struct Flight {
    connection: Connection,
    /// Bytes that are sent and not taken.
    bytes: u64,
}

/// The bytes in flight of all streams.
pub(super) struct FlowControl {
    stream_window: u64,
    flights: BTreeMap<u64, Flight>,
}

impl FlowControl {
    pub(super) fn new(stream_window: u64) -> Self {
        Self { stream_window, flights: BTreeMap::new() }
    }

    /// Returns the most bytes of a fragment.
    pub(super) fn fragment_max(&self) -> u64 {
        self.stream_window
    }

    fn connection_window(&self) -> u64 {
        let streams = if holds(Rule::ConnectionsFitAllStreams) { STREAMS_OF_A_RANK_MAX } else { 4 };
        streams as u64 * self.stream_window
    }

    pub(super) fn open(&mut self, stream: u64, reader: Process, worker: Process) {
        self.flights.insert(stream, Flight { connection: (reader, worker), bytes: 0 });
    }

    /// Returns the bytes that may be sent now.
    pub(super) fn room(&self, stream: u64) -> u64 {
        let Some(own) = self.flights.get(&stream) else { return 0 };
        let shared = self.flights.values().filter(|it| it.connection == own.connection).map(|it| it.bytes).sum();
        self.stream_window.saturating_sub(own.bytes).min(self.connection_window().saturating_sub(shared))
    }

    pub(super) fn sent(&mut self, stream: u64, bytes: u64) {
        if let Some(flight) = self.flights.get_mut(&stream) {
            flight.bytes += bytes;
        }
    }

    pub(super) fn taken(&mut self, stream: u64, bytes: u64) {
        if let Some(flight) = self.flights.get_mut(&stream) {
            flight.bytes = flight.bytes.saturating_sub(bytes);
        }
    }

    /// Frees the stream's part of the connection's window.
    pub(super) fn closed(&mut self, stream: u64) {
        self.flights.remove(&stream);
    }

    /// Returns whether two streams share a connection.
    pub(super) fn is_shared(&self, stream: u64, connection: Connection) -> bool {
        self.flights.get(&stream).is_some_and(|it| it.connection == connection)
    }
}
