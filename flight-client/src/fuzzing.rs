//! The decoder of streams, for `fuzz/`: a worker's bytes to batches, without a connection.

use arrow::array::RecordBatch;
use bytes::Bytes;

use crate::messages::MessageParser;
use crate::receive::{BrokenStream, Decoder};
use forebay_arrays::pool::Pool;

/// Decodes the body of an answer that arrives in pieces of `piece_bytes`, which must not be 0. Returns its batches, and
/// the reason if the body is not a stream.
pub fn batches(body: &[u8], piece_bytes: usize) -> (Vec<RecordBatch>, Option<String>) {
    let (mut messages, mut decoder, mut batches) = (MessageParser::new(Pool::new(0)), Decoder::default(), Vec::new());
    for piece in body.chunks(piece_bytes) {
        let mut piece = Bytes::copy_from_slice(piece);
        loop {
            let message = match messages.take(&mut piece) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(why) => return (batches, Some(why.to_owned())),
            };
            match decoder.decode(message) {
                Ok(received) => batches.extend(received.map(|received| received.records)),
                Err(BrokenStream::Unreadable(why)) => return (batches, Some(why)),
                Err(BrokenStream::Status(status)) => return (batches, Some(status.to_string())),
            }
        }
    }
    (batches, None)
}
