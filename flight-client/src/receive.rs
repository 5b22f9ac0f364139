//! A window's stream: requested and read without tonic's decoder, which would copy each message twice.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::{FlightData, Ticket};
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::RecordBatchDecoder;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::{Code, Status};

use crate::connect::Carrier;
use crate::messages::{MessageParser, ReceivedMessage};
use forebay_arrays::pool::Pool;

const DO_GET: &str = "/arrow.flight.protocol.FlightService/DoGet";
/// The field of `Ticket`, as protobuf's tag for bytes.
const TICKET: u8 = 1 << 3 | 2;

/// The stream that a server returns for a ticket.
pub(crate) struct Receiving {
    answer: http::StatusCode,
    body: tonic::service::interceptor::ResponseBody<Body>,
    /// Received bytes that have not been parsed.
    piece: Bytes,
    messages: MessageParser,
    decoder: Decoder,
}

/// State from earlier messages that later ones need.
#[derive(Default)]
pub(crate) struct Decoder {
    schema: Option<SchemaRef>,
}

/// Rows and their metadata.
pub(crate) struct Received {
    pub(crate) records: RecordBatch,
    pub(crate) metadata: Vec<u8>,
    /// Bytes of the message's body.
    pub(crate) bytes: u64,
}

/// Why a stream ended early.
#[derive(Debug)]
pub(crate) enum BrokenStream {
    /// The server's status, or the state of the connection.
    Status(Box<Status>),
    /// The bytes are not a Flight stream.
    Unreadable(String),
}

impl From<Status> for BrokenStream {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

fn unreadable(what: impl fmt::Display) -> BrokenStream {
    BrokenStream::Unreadable(what.to_string())
}

impl Receiving {
    /// Requests the stream of `ticket`. Messages are received into memory of `pool`.
    pub(crate) async fn open(mut carrier: Carrier, ticket: Ticket, pool: Arc<Pool>) -> Result<Self, Status> {
        let request = http::Request::post(DO_GET)
            .version(http::Version::HTTP_2)
            .header(http::header::TE, "trailers")
            .header(http::header::CONTENT_TYPE, "application/grpc")
            .body(Body::new(Full::new(framed(&ticket.ticket))))
            .expect("all parts are constants");
        poll_fn(|context| carrier.poll_ready(context)).await.map_err(|error| Status::from_error(error.into()))?;
        let answer = carrier.call(request).await.map_err(|error| Status::from_error(error.into()))?;
        let (head, body) = answer.into_parts();
        // A server that refuses sends its status at once.
        if let Some(status) = Status::from_header_map(&head.headers).filter(|status| status.code() != Code::Ok) {
            return Err(status);
        }
        let (messages, decoder) = (MessageParser::new(pool), Decoder::default());
        Ok(Self { answer: head.status, body, piece: Bytes::new(), messages, decoder })
    }

    /// The next rows; `None` at the regular end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Received>, BrokenStream> {
        loop {
            let Some(message) = self.message().await? else { return Ok(None) };
            if let Some(received) = self.decoder.decode(message)? {
                return Ok(Some(received));
            }
        }
    }

    async fn message(&mut self) -> Result<Option<ReceivedMessage>, BrokenStream> {
        loop {
            if let Some(message) = self.messages.take(&mut self.piece).map_err(unreadable)? {
                return Ok(Some(message));
            }
            let Some(frame) = self.body.frame().await.transpose()? else {
                return Err(ended(self.answer).into());
            };
            let trailers = match frame.into_data() {
                Ok(piece) => {
                    self.piece = piece;
                    continue;
                }
                Err(frame) => frame.into_trailers().unwrap_or_default(),
            };
            return match Status::from_header_map(&trailers) {
                Some(status) if status.code() == Code::Ok && self.messages.is_between() => Ok(None),
                Some(status) if status.code() == Code::Ok => Err(unreadable("an incomplete message")),
                Some(status) => Err(status.into()),
                None => Err(ended(self.answer).into()),
            };
        }
    }
}

impl Decoder {
    pub(crate) fn decode(&mut self, message: ReceivedMessage) -> Result<Option<Received>, BrokenStream> {
        // arrow's readers panic on some malformed input.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.try_decode(message)));
        decoded.unwrap_or_else(|_| Err(unreadable("arrow cannot decode it")))
    }

    fn try_decode(&mut self, message: ReceivedMessage) -> Result<Option<Received>, BrokenStream> {
        let header = arrow_ipc::root_as_message(&message.header).map_err(unreadable)?;
        match header.header_type() {
            MessageHeader::NONE => return Ok(None),
            MessageHeader::Schema => {
                let data = FlightData { data_header: message.header.into(), ..FlightData::default() };
                self.schema = Some(Arc::new(Schema::try_from(&data).map_err(unreadable)?));
                return Ok(None);
            }
            MessageHeader::RecordBatch => {}
            other => return Err(unreadable(format_args!("a message of type {other:?}"))),
        }
        let schema = Arc::clone(self.schema.as_ref().ok_or_else(|| unreadable("rows before their schema"))?);
        let batch = header.header_as_record_batch().ok_or_else(|| unreadable("rows without a header"))?;
        let body = message.body.map_or_else(|| Buffer::from(&[]), |body| body.freeze());
        check(&batch, body.len())?;
        let version = header.version();
        let records = RecordBatchDecoder::try_new(&body, batch, schema, &HashMap::new(), &version)
            .and_then(RecordBatchDecoder::read_record_batch)
            .map_err(unreadable)?;
        Ok(Some(Received { records, metadata: message.metadata, bytes: body.len() as u64 }))
    }
}

/// Checks what arrow's reader assumes.
fn check(batch: &arrow_ipc::RecordBatch<'_>, bytes: usize) -> Result<(), BrokenStream> {
    // Compressed buffers state their own uncompressed size, so they could exhaust memory.
    if batch.compression().is_some() {
        return Err(unreadable("compressed rows that were not requested"));
    }
    let is_inside = |buffer: &arrow_ipc::Buffer| {
        let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        offset.checked_add(length).filter(|&end| end <= bytes)
    };
    if !batch.buffers().into_iter().flatten().all(|buffer| is_inside(buffer).is_some()) {
        return Err(unreadable("a buffer beyond its message"));
    }
    let is_length = |length: i64| (0..1 << 35).contains(&length);
    let nodes = batch.nodes().into_iter().flatten();
    let mut lengths = nodes.flat_map(|node| [node.length(), node.null_count()]).chain([batch.length()]);
    match lengths.all(is_length) {
        true => Ok(()),
        false => Err(unreadable("an array of an impossible length")),
    }
}

/// A gRPC message of a ticket.
fn framed(ticket: &[u8]) -> Bytes {
    let mut field = BytesMut::with_capacity(ticket.len() + 16);
    field.put_u8(TICKET);
    let mut length = ticket.len();
    while length >= 0x80 {
        field.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    field.put_u8(length as u8);
    field.put_slice(ticket);
    let mut message = BytesMut::with_capacity(field.len() + 5);
    message.put_u8(0);
    message.put_u32(u32::try_from(field.len()).expect("a ticket is small"));
    message.put(field);
    message.freeze()
}

/// The status of a stream that ended without one, by gRPC's map from HTTP statuses.
fn ended(answer: http::StatusCode) -> Status {
    let code = match answer.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("the stream ended without a status, HTTP status {answer}"))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, BooleanArray, FixedSizeListArray, ListArray, StringArray, StructArray, UInt8Array};
    use arrow::datatypes::{DataType, Field, Int32Type};
    use arrow_flight::SchemaAsIpc;
    use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
    use forebay_arrays::digest;

    use super::*;

    fn batch() -> RecordBatch {
        let list =
            ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None]), None, Some([Some(3), None])]);
        let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values(0..6));
        let tensors = FixedSizeListArray::new(Arc::new(Field::new("item", DataType::UInt8, true)), 2, bytes, None);
        let strings: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("ä")]));
        let structs = StructArray::from(vec![(Arc::new(Field::new("s", DataType::Utf8, true)), Arc::clone(&strings))]);
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
        let columns: [(_, ArrayRef); 5] = [
            ("list", Arc::new(list)),
            ("tensors", Arc::new(tensors)),
            ("strings", strings),
            ("structs", Arc::new(structs)),
            ("flags", flags),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
    }

    fn message(header: &[u8], body: &[u8]) -> ReceivedMessage {
        let mut filling = Pool::new(0).take(body.len());
        filling.extend(body);
        ReceivedMessage { header: header.to_vec(), metadata: b"m".to_vec(), body: Some(filling) }
    }

    /// The header of the schema, and the header and body of the rows.
    fn sent() -> (Vec<u8>, Vec<u8>, Vec<u8>) {
        let options = IpcWriteOptions::default();
        let schema = FlightData::from(SchemaAsIpc::new(&batch().schema(), &options));
        let (_, rows) = IpcDataGenerator::default()
            .encode(&batch(), &mut DictionaryTracker::new(true), &options, &mut IpcWriteContext::default())
            .unwrap();
        (schema.data_header.to_vec(), rows.ipc_message, rows.arrow_data)
    }

    #[test]
    fn rows_come_after_their_schema() {
        let (schema, header, body) = sent();
        let mut decoder = Decoder::default();
        assert!(matches!(decoder.decode(message(&header, &body)), Err(BrokenStream::Unreadable(_))));
        assert!(decoder.decode(message(&schema, &[])).unwrap().is_none());
        let received = decoder.decode(message(&header, &body)).unwrap().unwrap();
        assert_eq!((received.records, &received.metadata[..], received.bytes), (batch(), &b"m"[..], body.len() as u64));
    }

    #[test]
    fn hostile_bytes_break_a_stream_and_nothing_else() {
        let (schema, header, body) = sent();
        let decode = |schema: &[u8], header: &[u8], body: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.decode(message(schema, &[]))?;
            let received = decoder.decode(message(header, body))?;
            // Accepted rows can be read.
            received.iter().for_each(|received| assert!(!digest(&received.records).is_empty()));
            Ok::<_, BrokenStream>(received.is_some())
        };
        assert!(decode(&schema, &header, &body).unwrap());
        let changed = |bytes: &[u8], at: usize, by: u8| {
            let mut changed = bytes.to_vec();
            changed[at] ^= by;
            changed
        };
        for by in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            for at in 0..header.len() {
                let _ = decode(&schema, &changed(&header, at, by), &body);
            }
            for at in 0..body.len() {
                let _ = decode(&schema, &header, &changed(&body, at, by));
            }
            for at in 0..schema.len() {
                let _ = decode(&changed(&schema, at, by), &header, &body);
            }
        }
        for length in 0..header.len() {
            let _ = decode(&schema, &header[..length], &body);
        }
        assert!(decode(&schema, &header, &body[..body.len() - 64]).is_err());
    }

    #[test]
    fn a_ticket_is_a_message_of_protobuf() {
        for length in [0, 1, 127, 128, 300, 70_000] {
            let ticket = Ticket::new(vec![7; length]);
            let sent = framed(&ticket.ticket);
            assert_eq!(u32::from_be_bytes(sent[1..5].try_into().unwrap()) as usize, sent.len() - 5);
            assert_eq!(<Ticket as prost::Message>::decode(&sent[5..]).unwrap(), ticket);
        }
    }
}
