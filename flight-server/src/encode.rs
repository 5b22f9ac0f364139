//! Batches as Flight messages: one message a batch, with its place in the log as `app_metadata`.
//!
//! arrow-flight's own encoder splits batches by size and puts metadata on the first message only; a trainer's batch must
//! arrive as it was cut.

use arrow_flight::{FlightData, SchemaAsIpc};
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use forebay_engine::{Batch, Error, ErrorKind, Result};
use forebay_flight_client::BatchMetadata;

/// Protobuf's limit, less room for headers.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize - (1 << 20);

/// The message that opens a stream.
pub(crate) fn schema(schema: &arrow::datatypes::Schema) -> FlightData {
    FlightData::from(SchemaAsIpc::new(schema, &IpcWriteOptions::default()))
}

/// The message of one batch.
pub(crate) fn batch(batch: &Batch) -> Result<FlightData> {
    let failed = |error| Error::new(ErrorKind::Internal, format!("cannot encode a batch: {error}"));
    let options = IpcWriteOptions::default();
    // Feeds hold no dictionaries (they are unpacked when a pipeline is compiled), so there is nothing to track.
    let (_, data) = IpcDataGenerator::default()
        .encode(&batch.records, &mut DictionaryTracker::new(true), &options, &mut IpcWriteContext::default())
        .map_err(failed)?;
    if data.arrow_data.len() > MESSAGE_BYTES_MAX {
        let message =
            format!("a batch of {} bytes is more than one Flight message holds (2 GiB)", data.arrow_data.len());
        return Err(Error::new(ErrorKind::Exhausted, message).with_hint("lower the batch size"));
    }
    let metadata = serde_json::to_vec(&BatchMetadata::from(batch)).expect("plain data becomes JSON");
    Ok(FlightData::from(data).with_app_metadata(metadata))
}
