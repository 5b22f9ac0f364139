//! Streams of batches, as a trainer receives them from a worker.

use forebay_flight_client::fuzzing::batches;

/// Decodes the body of an answer, of which the first byte is the size of the pieces in which it arrives. Batches that
/// are accepted must be whole: each value can be read, and another cut of the same bytes gives the same batches.
pub fn stream(data: &[u8]) -> bool {
    let Some((&pieces, body)) = data.split_first() else { return false };
    let (found, error) = batches(body, usize::from(pieces) * 16 + 1);
    for batch in &found {
        for column in batch.columns() {
            column.to_data().validate_full().expect("an accepted column is valid");
        }
        forebay_arrays::digest(batch);
    }
    let whole = batches(body, body.len().max(1));
    assert!(whole.1.is_none() == error.is_none(), "{error:?} in pieces, {:?} as a whole", whole.1);
    assert_eq!(whole.0.len(), found.len());
    error.is_none() && !found.is_empty()
}
