//! Batches as Flight messages: one message per batch, with the batch's position in the log as `app_metadata`.
//!
//! arrow-flight's own encoder splits batches by size and puts metadata on the first message only; a trainer's batch
//! must arrive as it was cut.
//!
//! A window's pieces bypass tonic's encoder: `layout` lays out a piece without copying it, `frames` cuts it into pieces
//! of an HTTP body, and `body` sends those.

mod body;
mod frames;
mod layout;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, SchemaRef};
use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use forebay_engine::arrays::joined;
use forebay_engine::{Batch, Error, ErrorKind, Result, WindowRows};
use forebay_flight_client::BatchMetadata;
use forebay_flight_client::wire::PieceMetadata;
use serde::Serialize;

pub(crate) use self::body::{RawBody, RawBodyService};
pub(crate) use self::frames::OutgoingMessage;
use self::layout::Layout;

/// Protobuf's limit, minus room for headers.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize - (1 << 20);

/// The first message of a stream.
pub(crate) fn schema(schema: &arrow::datatypes::Schema) -> FlightData {
    FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()))
}

/// The message of a batch.
pub(crate) fn batch(batch: &Batch) -> Result<FlightData> {
    message(&batch.records, &BatchMetadata::from(batch))
}

/// The message of a window's rows that belong to one batch.
///
/// # Errors
/// `Exhausted` for rows that do not fit in a message.
pub(crate) async fn piece(piece: WindowRows, schema: &SchemaRef) -> Result<OutgoingMessage> {
    let metadata = PieceMetadata { rows: (piece.rows.start, piece.rows.end), gaps: piece.gaps };
    let records = match piece.records.is_empty() {
        // All of the rows may have been bad.
        true => vec![RecordBatch::new_empty(schema.clone())],
        false => piece.records,
    };
    if let Some(layout) = Layout::new(&records) {
        check_size(layout.bytes)?;
        return Ok(OutgoingMessage::of_layout(layout, &as_json(&metadata)));
    }
    let schema = SchemaRef::clone(schema);
    // Copying a batch into a message takes longer than a serving thread may block.
    let encoded = tokio::task::spawn_blocking(move || {
        let records = joined(&schema, &records).map_err(|error| {
            Error::new(ErrorKind::Exhausted, format!("cannot put a batch together: {error}"))
                .with_hint("lower the batch size")
        })?;
        message(&records, &metadata).map(OutgoingMessage::from)
    });
    encoded.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the server is shutting down")))
}

fn as_json(metadata: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(metadata).expect("plain data becomes JSON")
}

/// Checks that a batch of so many samples fits in a message, as far as the types of its columns say.
///
/// # Errors
/// `Invalid` if it does not.
pub(crate) fn check_batch(schema: &SchemaRef, samples: u64) -> Result<()> {
    let row = schema.fields().iter().map(|field| fixed_bytes(field.data_type())).fold(0, u64::saturating_add);
    let most = MESSAGE_BYTES_MAX as u64 / row.max(1);
    if samples <= most {
        return Ok(());
    }
    let message =
        format!("a batch of {samples} samples of {row} bytes each is more than one Flight message holds (2 GiB)");
    Err(Error::invalid(message).with_hint(format!("give \"batch_size\" at most {most}")))
}

/// The bytes that every value of this type has at least.
fn fixed_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeBinary(bytes) => u64::try_from(*bytes).unwrap_or(0),
        DataType::FixedSizeList(item, length) => {
            fixed_bytes(item.data_type()).saturating_mul(u64::try_from(*length).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().map(|field| fixed_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

fn check_size(bytes: usize) -> Result<()> {
    if bytes <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let message = format!("a batch of {bytes} bytes is more than one Flight message holds (2 GiB)");
    Err(Error::new(ErrorKind::Exhausted, message).with_hint("lower the batch size"))
}

fn message(records: &RecordBatch, metadata: &impl Serialize) -> Result<FlightData> {
    let failed = |error| Error::new(ErrorKind::Internal, format!("cannot encode a batch: {error}"));
    let options = IpcWriteOptions::default();
    // Feeds have no dictionary columns (they are unpacked when a pipeline is compiled), so there is nothing to track.
    let (_, data) = IpcDataGenerator::default()
        .encode(records, &mut DictionaryTracker::new(true), &options, &mut IpcWriteContext::default())
        .map_err(failed)?;
    check_size(data.arrow_data.len())?;
    Ok(FlightData::from(data).with_app_metadata(as_json(metadata)))
}
