//! Parses Flight messages from the pieces of an HTTP body and copies their values once.
//!
//! tonic's decoder collects a message in one buffer, from which arrow's decoder copies unaligned values again. This
//! parser copies `data_body` from the received piece into its final, aligned memory. The bytes are untrusted: a length
//! in a message never makes the parser allocate more than a bound.

use std::mem::take;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use forebay_arrays::pool::{Filling, Pool};

/// Upper bound (exclusive) of a message's size.
const MESSAGE_LIMIT: u64 = 1 << 31;
/// Upper bound of a header's and of metadata's size: a schema of a hundred thousand columns is smaller.
const SMALL_FIELD_LIMIT: u64 = 64 << 20;

/// Fields of `FlightData`.
const DATA_HEADER: u64 = 2;
const APP_METADATA: u64 = 3;
const DATA_BODY: u64 = 1000;

/// A complete message.
#[derive(Default)]
pub(crate) struct ReceivedMessage {
    pub(crate) header: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
    pub(crate) body: Option<Filling>,
}

/// Splits pieces, cut at any byte, into messages.
pub(crate) struct MessageParser {
    pool: Arc<Pool>,
    at: NextByte,
    message: ReceivedMessage,
    /// Bytes of the message that have not arrived.
    left: u64,
}

/// The meaning of the next byte.
enum NextByte {
    /// Part of gRPC's prefix: a flag for compression, and the length.
    Prefix { bytes: [u8; 5], have: usize },
    /// Part of a number.
    Varint { value: u64, shift: u32, of: Number },
    /// Part of a field's value, with `left` bytes to come.
    Value { field: Field, left: u64 },
}

#[derive(Clone, Copy)]
enum Number {
    /// A field's number and type.
    Tag,
    Length(Field),
    /// The value of an unknown field.
    Ignored,
}

#[derive(Clone, Copy)]
enum Field {
    Header,
    Metadata,
    Body,
    Ignored,
}

const PREFIX: NextByte = NextByte::Prefix { bytes: [0; 5], have: 0 };
const TAG: NextByte = NextByte::Varint { value: 0, shift: 0, of: Number::Tag };

impl MessageParser {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, at: PREFIX, message: ReceivedMessage::default(), left: 0 }
    }

    /// Whether no message is partly received.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.at, NextByte::Prefix { have: 0, .. })
    }

    /// Consumes `piece` up to the end of a message, or all of it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub(crate) fn take(&mut self, piece: &mut Bytes) -> Result<Option<ReceivedMessage>, &'static str> {
        while !piece.is_empty() {
            match &mut self.at {
                NextByte::Prefix { bytes, have } => {
                    let count = piece.len().min(bytes.len() - *have);
                    piece.copy_to_slice(&mut bytes[*have..*have + count]);
                    *have += count;
                    if *have < bytes.len() {
                        continue;
                    }
                    let [flag, length @ ..] = *bytes;
                    if flag != 0 {
                        return Err("a compressed message that was not requested");
                    }
                    self.left = u32::from_be_bytes(length).into();
                    if self.left >= MESSAGE_LIMIT {
                        return Err("a message of more than 2 GiB");
                    }
                    self.at = TAG;
                }
                NextByte::Varint { value, shift, of } => {
                    if self.left == 0 {
                        return Err("a message that ends inside a number");
                    }
                    self.left -= 1;
                    let byte = piece.get_u8();
                    if *shift == 63 && byte > 1 {
                        return Err("a number of more than 64 bits");
                    }
                    *value |= u64::from(byte & 0x7f) << *shift;
                    *shift += 7;
                    if byte < 0x80 {
                        let (of, value) = (*of, *value);
                        self.number(of, value)?;
                    }
                }
                NextByte::Value { field, left } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(piece.len());
                    let bytes = &piece[..count];
                    match (field, &mut self.message.body) {
                        (Field::Header, _) => self.message.header.extend_from_slice(bytes),
                        (Field::Metadata, _) => self.message.metadata.extend_from_slice(bytes),
                        (Field::Body, Some(body)) => body.extend(bytes),
                        (Field::Body, None) | (Field::Ignored, _) => {}
                    }
                    piece.advance(count);
                    *left -= count as u64;
                    self.left -= count as u64;
                    if *left == 0 {
                        self.at = TAG;
                    }
                }
            }
            if self.left == 0 && matches!(self.at, NextByte::Varint { of: Number::Tag, shift: 0, .. }) {
                self.at = PREFIX;
                return Ok(Some(take(&mut self.message)));
            }
        }
        Ok(None)
    }

    /// Handles a complete number.
    fn number(&mut self, of: Number, value: u64) -> Result<(), &'static str> {
        self.at = match of {
            Number::Ignored => TAG,
            Number::Length(field) => self.value(field, value)?,
            Number::Tag => {
                let field = match (value >> 3, value & 7) {
                    (0, _) => return Err("a field without a number"),
                    (DATA_HEADER, 2) => Field::Header,
                    (APP_METADATA, 2) => Field::Metadata,
                    (DATA_BODY, 2) => Field::Body,
                    (DATA_HEADER | APP_METADATA | DATA_BODY, _) => return Err("a field of the wrong type"),
                    _ => Field::Ignored,
                };
                match value & 7 {
                    0 => NextByte::Varint { value: 0, shift: 0, of: Number::Ignored },
                    1 => self.value(field, 8)?,
                    2 => NextByte::Varint { value: 0, shift: 0, of: Number::Length(field) },
                    5 => self.value(field, 4)?,
                    _ => return Err("a field of an unknown type"),
                }
            }
        };
        Ok(())
    }

    fn value(&mut self, field: Field, length: u64) -> Result<NextByte, &'static str> {
        if length > self.left {
            return Err("a field that is longer than its message");
        }
        // The last occurrence of a repeated field wins.
        match field {
            Field::Header | Field::Metadata if length > SMALL_FIELD_LIMIT => {
                return Err("a header of more than 64 MiB");
            }
            Field::Header => self.message.header.clear(),
            Field::Metadata => self.message.metadata.clear(),
            Field::Body => self.message.body = Some(self.pool.take(length as usize)),
            Field::Ignored => {}
        }
        Ok(if length == 0 { TAG } else { NextByte::Value { field, left: length } })
    }
}

#[cfg(test)]
mod tests {
    use arrow_flight::FlightData;
    use prost::Message as _;

    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0];
        bytes.extend((message.len() as u32).to_be_bytes());
        bytes.extend(message);
        bytes
    }

    /// All messages in `bytes`, received in pieces of `size`.
    fn decode(bytes: &[u8], size: usize) -> Result<Vec<ReceivedMessage>, &'static str> {
        let mut messages = MessageParser::new(Pool::new(0));
        let mut found = Vec::new();
        for piece in bytes.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            while !piece.is_empty() {
                found.extend(messages.take(&mut piece)?);
            }
        }
        if messages.is_between() { Ok(found) } else { Err("more to come") }
    }

    fn body(message: &ReceivedMessage) -> &[u8] {
        message.body.as_ref().map_or(&[], AsRef::as_ref)
    }

    #[test]
    fn pieces_may_be_cut_anywhere() {
        let data = |n: usize| FlightData {
            flight_descriptor: Some(arrow_flight::FlightDescriptor::new_path(vec!["x".into()])),
            data_header: vec![1; n].into(),
            app_metadata: vec![2; n / 2].into(),
            data_body: vec![3; 3 * n].into(),
        };
        let sent: Vec<_> = [0, 1, 5, 0, 300].map(data).into();
        let bytes: Vec<u8> = sent.iter().flat_map(|data| framed(&data.encode_to_vec())).collect();
        for size in [1, 2, 3, 7, 64, 1000, bytes.len()] {
            let found = decode(&bytes, size).unwrap();
            assert_eq!(found.len(), sent.len());
            for (found, sent) in found.iter().zip(&sent) {
                assert_eq!((&found.header[..], &found.metadata[..]), (&sent.data_header[..], &sent.app_metadata[..]));
                assert_eq!(body(found), &sent.data_body[..]);
            }
            assert!(decode(&bytes[..bytes.len() - 1], size).is_err());
        }
    }

    #[test]
    fn fields_come_in_any_order_and_the_last_counts() {
        // A body, a number, eight bytes, four bytes, a body, metadata, a header, and an empty one of these.
        let bytes = b"\xc2\x3e\x01x\x20\xff\x01\x29abcdefgh\x35abcd\xc2\x3e\x02yz\x1a\x01m\x12\x01h\x12\x00";
        for size in [1, 4, 100] {
            let found = decode(&framed(bytes), size).unwrap();
            assert_eq!(
                (&found[0].header[..], &found[0].metadata[..], body(&found[0])),
                (&b""[..], &b"m"[..], &b"yz"[..])
            );
        }
        assert!(decode(&framed(b""), 1).unwrap()[0].body.is_none());
    }

    #[test]
    fn hostile_bytes_are_refused() {
        for (bytes, phrase) in [
            (b"\x01\0\0\0\0".to_vec(), "compressed"),
            (b"\0\x80\0\0\0".to_vec(), "2 GiB"),
            (framed(b"\x12\x05abcd"), "longer than its message"),
            (framed(b"\xc2\x3e\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "longer than its message"),
            (framed(b"\xc2\x3e\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"), "64 bits"),
            (framed(b"\xc2\x3e\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), "64 bits"),
            (framed(b"\xc2\x3e\x80"), "ends inside a number"),
            (framed(b"\xc2\x3e"), "ends inside a number"),
            (framed(b"\x10\x01"), "wrong type"),
            (framed(b"\x13"), "wrong type"),
            (framed(b"\x23"), "unknown type"),
            (framed(b"\x02\x00"), "without a number"),
            ([&b"\0\x7f\xff\xff\xff\x12\xff\xff\xff\x3f"[..], &[0]].concat(), "64 MiB"),
        ] {
            // A byte after the message shows where the message ends.
            let bytes = [&bytes[..], &[0]].concat();
            for size in [1, 100] {
                let error = decode(&bytes, size).err().unwrap_or("nothing");
                assert!(error.contains(phrase), "{error}, not {phrase}");
            }
        }
        let mut seed = 7u64;
        for length in 0..2000usize {
            let noise: Vec<u8> = (0..length % 100)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 33) as u8 & if length % 2 == 0 { 0x3f } else { 0xff }
                })
                .collect();
            let _ = decode(&framed(&noise), 1 + length % 9);
        }
    }
}
