//! Flight messages as pieces of an HTTP body.
//!
//! tonic's encoder copies each message into one buffer. Here a message consists of a small head and the body's own
//! buffers, so large values go from where they were computed to the socket without a copy.

use std::collections::VecDeque;
use std::mem::take;

use arrow::buffer::Buffer;
use arrow_flight::FlightData;
use bytes::{BufMut, Bytes, BytesMut};

use super::layout::{Layout, Segment};

/// Smaller segments are copied and sent together: a frame of their own would cost more than the copy.
const COPIED_BELOW: usize = 16 << 10;
/// Approximate size of a frame of small segments and messages.
const JOINED: usize = 64 << 10;

/// Fields of `FlightData`, as protobuf's tags for bytes.
const DATA_HEADER: u8 = 2 << 3 | 2;
const APP_METADATA: u8 = 3 << 3 | 2;
const DATA_BODY: [u8; 2] = [0xc2, 0x3e];

/// A message that is ready to be sent.
pub(crate) struct OutgoingMessage {
    /// The bytes before the value of `data_body`.
    head: Vec<u8>,
    body: Vec<Segment>,
}

impl OutgoingMessage {
    pub(super) fn of_layout(layout: Layout, app_metadata: &[u8]) -> Self {
        Self { head: head(&layout.header(), app_metadata, layout.bytes), body: layout.segments }
    }
}

impl From<FlightData> for OutgoingMessage {
    fn from(data: FlightData) -> Self {
        Self {
            head: head(&data.data_header, &data.app_metadata, data.data_body.len()),
            body: vec![Segment::Values(Buffer::from(data.data_body))],
        }
    }
}

fn head(data_header: &[u8], app_metadata: &[u8], body_bytes: usize) -> Vec<u8> {
    let mut fields = Vec::with_capacity(data_header.len() + app_metadata.len() + 32);
    // gRPC's prefix: not compressed, and the length, which is filled in below.
    fields.put_bytes(0, 5);
    for (tag, value) in [(DATA_HEADER, data_header), (APP_METADATA, app_metadata)] {
        if !value.is_empty() {
            fields.put_u8(tag);
            varint(&mut fields, value.len());
            fields.put_slice(value);
        }
    }
    if body_bytes > 0 {
        fields.put_slice(&DATA_BODY);
        varint(&mut fields, body_bytes);
    }
    let length = u32::try_from(fields.len() - 5 + body_bytes).expect("callers refuse bodies above 2 GiB");
    fields[1..5].copy_from_slice(&length.to_be_bytes());
    fields
}

fn varint(into: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        into.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    into.put_u8(value as u8);
}

/// Splits messages into HTTP frames.
#[derive(Default)]
pub(super) struct Frames {
    ready: VecDeque<Bytes>,
    /// Small segments collected for the next frame.
    joined: BytesMut,
}

impl Frames {
    pub(super) fn push(&mut self, message: OutgoingMessage) {
        self.copy(&message.head);
        for segment in message.body {
            match segment {
                Segment::Padding(bytes) => self.joined.put_bytes(0, bytes),
                Segment::Values(values) if values.len() < COPIED_BELOW => self.copy(&values),
                Segment::Values(values) => {
                    self.flush();
                    self.ready.push_back(Bytes::from_owner(Values(values)));
                }
            }
        }
    }

    /// The next piece, if one is full.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        self.ready.pop_front()
    }

    /// Finishes the frame of small segments.
    pub(super) fn flush(&mut self) {
        if !self.joined.is_empty() {
            self.ready.push_back(take(&mut self.joined).freeze());
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.joined.len() + bytes.len() > JOINED {
            self.flush();
        }
        if self.joined.is_empty() {
            // The allocator reuses these pages; most messages need few of them.
            self.joined.reserve(bytes.len().max(4 << 10));
        }
        self.joined.put_slice(bytes);
    }
}

struct Values(Buffer);

impl AsRef<[u8]> for Values {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
