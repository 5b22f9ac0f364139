//! Rows as they are read from a dataset: within the feed's limit, and with their random keys.

use arrow::array::{Array, UInt64Array};
use arrow::compute::{concat, concat_batches};
use forebay_operators::random_key;
use forebay_storage::RangeRows;

use crate::compile::SourceRows;
use crate::error::{Error, Result};

/// Joins rows of a dataset, or rows made of them one by one, and gives each its random key in `epoch`.
pub(super) fn with_keys(group: &[RangeRows], seed: u64, epoch: u64) -> Result<Option<SourceRows>> {
    let cannot = |error| Error::internal(format!("cannot join rows read from one dataset: {error}"));
    let (batch, sample_ids) = match group {
        [] => return Ok(None),
        [one] => (one.batch.clone(), one.sample_ids.clone()),
        [first, ..] => {
            let batch = concat_batches(&first.batch.schema(), group.iter().map(|rows| &rows.batch)).map_err(cannot)?;
            let ids: Vec<&dyn Array> = group.iter().map(|rows| &rows.sample_ids as &dyn Array).collect();
            (batch, concat(&ids).map_err(cannot)?.to_data().into())
        }
    };
    let key = |&id: &u64| random_key(seed, epoch, id);
    let random_keys = UInt64Array::from_iter_values(sample_ids.values().iter().map(key));
    let rows = SourceRows { batch, sample_ids, random_keys, origins: None, step_lengths: None };
    Ok((rows.batch.num_rows() > 0).then_some(rows))
}

/// Only the rows before `limit`. The ids must ascend.
pub(super) fn limited(mut read: RangeRows, limit: u64) -> RangeRows {
    let kept = read.sample_ids.values().partition_point(|&id| id < limit);
    if kept < read.sample_ids.len() {
        read.batch = read.batch.slice(0, kept);
        read.sample_ids = read.sample_ids.slice(0, kept);
    }
    read.bad.retain(|bad| bad.sample_id < limit);
    read
}
