//! What travels beside Arrow: the request for a stream and each batch's place in the log. Both are JSON.
//!
//! JSON rather than protobuf, so that a client with nothing but `pyarrow` can write the one and read the other.

use forebay_engine::{Batch, FeedOptions, OnError, ReadOptions, Start};
use serde::{Deserialize, Serialize};

/// Asks for one rank's stream of a pipeline: the CMD of a descriptor, and the ticket made from it.
///
/// Only `pipeline` is needed; the rest has the defaults of the pipeline and of [`ReadOptions`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRequest {
    /// The pipeline's name.
    pub pipeline: String,
    /// The id that the feed must have: set in tickets, so that a stream is never of another feed than was planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feed: Option<String>,
    /// See [`FeedOptions::seed`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// See [`FeedOptions::shuffle`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<bool>,
    /// See [`FeedOptions::window_bytes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_bytes: Option<u64>,
    /// See [`FeedOptions::window_rows`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_rows: Option<u64>,
    /// See [`FeedOptions::on_error`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_error: Option<OnError>,
    /// See [`ReadOptions::batch_size`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<u64>,
    /// See [`ReadOptions::epochs`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// See [`ReadOptions::drop_last`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_last: Option<bool>,
    /// See [`ReadOptions::rank`].
    #[serde(default)]
    pub rank: u64,
    /// See [`ReadOptions::world_size`].
    #[serde(default = "one")]
    pub world_size: u64,
    /// See [`ReadOptions::from`].
    #[serde(default)]
    pub from: Start,
}

fn one() -> u64 {
    1
}

impl Default for StreamRequest {
    fn default() -> Self {
        Self::new("", &FeedOptions::default(), &ReadOptions::default())
    }
}

impl StreamRequest {
    /// The request for `pipeline` with these options.
    pub fn new(pipeline: &str, feed: &FeedOptions, read: &ReadOptions) -> Self {
        let FeedOptions { seed, shuffle, window_bytes, window_rows, on_error } = feed.clone();
        let ReadOptions { batch_size, epochs, drop_last, rank, world_size, from } = read.clone();
        Self {
            pipeline: pipeline.to_owned(),
            feed: None,
            seed,
            shuffle,
            window_bytes,
            window_rows,
            on_error,
            batch_size,
            epochs,
            drop_last,
            rank,
            world_size,
            from,
        }
    }

    /// The options of the feed.
    pub fn feed_options(&self) -> FeedOptions {
        FeedOptions {
            seed: self.seed,
            shuffle: self.shuffle,
            window_bytes: self.window_bytes,
            window_rows: self.window_rows,
            on_error: self.on_error,
        }
    }

    /// The options of reading it.
    pub fn read_options(&self) -> ReadOptions {
        ReadOptions {
            batch_size: self.batch_size,
            epochs: self.epochs,
            drop_last: self.drop_last,
            rank: self.rank,
            world_size: self.world_size,
            from: self.from.clone(),
        }
    }
}

/// The `app_metadata` of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchMetadata {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step in the epoch, from 0.
    pub step: u64,
    /// Offset of the first sample in the epoch.
    pub offset: u64,
    /// Rows in the batch.
    pub rows: u64,
    /// Offsets that the batch covers: `rows` and those left out for being bad.
    pub positions: u64,
    /// Where to go on after this batch's global step: a `from` of another request.
    pub token: String,
}

impl From<&Batch> for BatchMetadata {
    fn from(batch: &Batch) -> Self {
        Self {
            epoch: batch.epoch,
            step: batch.step,
            offset: batch.offset,
            rows: batch.records.num_rows() as u64,
            positions: batch.positions,
            token: batch.token.to_string(),
        }
    }
}

/// The `app_metadata` of a [`FlightInfo`](arrow_flight::FlightInfo).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedMetadata {
    /// The feed's id.
    pub feed: String,
    /// Samples per epoch over all ranks, where that is known before reading.
    pub samples_per_epoch: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_name_is_a_whole_request() {
        let request: StreamRequest = serde_json::from_str(r#"{"pipeline": "train"}"#).expect("defaults for the rest");
        assert_eq!(request, StreamRequest::new("train", &FeedOptions::default(), &ReadOptions::default()));
    }

    #[test]
    fn options_survive_the_wire() {
        let feed = FeedOptions { seed: Some(3), on_error: Some(OnError::Skip), ..FeedOptions::default() };
        let read = ReadOptions {
            rank: 1,
            world_size: 2,
            from: Start::Offset { epoch: 1, offset: 9 },
            ..ReadOptions::default()
        };
        let json = serde_json::to_string(&StreamRequest::new("p", &feed, &read)).expect("plain data");
        let request: StreamRequest = serde_json::from_str(&json).expect("own json");
        assert_eq!((request.feed_options(), request.read_options()), (feed, read));
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        let error = serde_json::from_str::<StreamRequest>(r#"{"pipeline": "p", "batchsize": 3}"#).expect_err("a typo");
        assert!(error.to_string().contains("batchsize"), "{error}");
    }
}
