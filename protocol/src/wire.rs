//! JSON messages sent beside Arrow data: the request for a stream, each batch's position in the log, and the messages
//! between the parts of a cluster.
//!
//! JSON rather than protobuf, so that a client with only `pyarrow` can write requests and read metadata.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_delivery::messages::{ReaderReply, ReaderSync, Report, WorkerReply, WorkerSync};
use forebay_delivery::{ClaimMessage, Slice, WindowId};
use serde::{Deserialize, Serialize};

use crate::batch::Batch;
use crate::build::Build;
use crate::options::JobOptions;
pub use crate::options::StreamRequest;
pub use forebay_delivery::WritingProgress;

fn is_zero(number: &u64) -> bool {
    *number == 0
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
    /// Offsets that the batch covers: `rows`, `gaps` and bad rows.
    pub positions: u64,
    /// Offsets without a row, see [`Batch::gaps`]; omitted if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gaps: u64,
    /// Resumes after this batch's global step: the `from` of another request.
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
            gaps: batch.gaps,
            token: batch.token.to_string(),
        }
    }
}

/// The `app_metadata` of a `FlightInfo`: the resolved request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedMetadata {
    /// The feed's id.
    pub feed: String,
    /// Samples per epoch over all ranks, if known before reading.
    pub samples_per_epoch: Option<u64>,
    /// Samples that the request returns, for its rank from its start to its last epoch, if known before reading.
    #[serde(default)]
    pub samples: Option<u64>,
    /// The inputs of the hash in the feed's id, to show how two feeds differ.
    #[serde(default)]
    pub identity: serde_json::Value,
    /// Samples per batch of one rank.
    pub batch_size: u64,
    /// The epoch to stop before.
    pub epochs: u64,
    /// Whether an incomplete global batch at an epoch's end is omitted.
    pub drop_last: bool,
    /// A window at or before the start of reading, as `[epoch, index]`.
    pub window: WindowId,
    /// That window's first offset.
    pub window_offset: u64,
    /// The offset in that epoch where reading begins.
    pub offset: u64,
}

/// The actions between the parts of a cluster, each with a JSON body and one JSON answer.
pub mod actions {
    /// [`WorkerCall`](super::WorkerCall) to [`WorkerAnswer`](super::WorkerAnswer).
    pub const WORKER_SYNC: &str = "worker.sync";
    /// [`ReaderCall`](super::ReaderCall) to [`ReaderAnswer`](super::ReaderAnswer).
    pub const READER_SYNC: &str = "reader.sync";
    /// [`ClaimCall`](super::ClaimCall) to [`ClaimAnswer`](forebay_delivery::ClaimAnswer).
    pub const CLAIM_SYNC: &str = "claim.sync";
    /// A [`JobCall`](super::JobCall) to a [`JobAnswer`](super::JobAnswer).
    pub const JOB_SYNC: &str = "job.sync";
    /// A [`JobCall`](super::JobCall) to the job's [`JobEstimate`](crate::JobEstimate). Writes nothing.
    pub const JOB_ESTIMATE: &str = "job.estimate";
    /// A feed's id to what a worker needs to compute it, or a job's to what a worker needs to write its files.
    pub const FEED_SPEC: &str = "feed.spec";
    /// A [`SnapshotCall`](super::SnapshotCall) to the text of a snapshot, with one answer per piece.
    pub const SNAPSHOT: &str = "snapshot";
    /// A [`TraceCall`](super::TraceCall) to the samples' files and rows (from 0), in order.
    pub const FEED_TRACE: &str = "feed.trace";
    /// Nothing to a [`Status`](forebay_delivery::Status).
    pub const STATUS: &str = "status";
    /// A [`ReloadCall`](super::ReloadCall) to the [`ScriptReport`](super::ScriptReport) of each script.
    pub const RELOAD: &str = "reload";
}

/// Requests a snapshot that a feed reads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SnapshotCall {
    /// The feed's id.
    pub feed: String,
    /// The snapshot's id.
    pub snapshot: String,
}

/// Requests the source rows of samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceCall {
    /// The feed, and how it is read.
    pub request: StreamRequest,
    /// The epoch.
    pub epoch: u64,
    /// The samples of the epoch.
    pub of: Traced,
}

/// Samples of an epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Traced {
    /// The rank's batch of a global step.
    Step(u64),
    /// The samples with these offsets.
    Offsets(Range<u64>),
}

/// Asks for a job that writes the samples of a pipeline to files. It continues for as long as clients ask for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobCall {
    /// The pipeline, and the options of its feed.
    pub request: StreamRequest,
    /// The folder or URL to write to, as the server sees it.
    pub to: String,
    /// How the files are written.
    pub options: JobOptions,
    /// Whether the client begins: files that ended earlier processes are tried again then. Otherwise it has had an
    /// answer before.
    pub begins: bool,
}

/// How far a job is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobAnswer {
    /// Nothing is written yet.
    Waiting {
        /// Whether another process works on the job. Otherwise the feed is being opened.
        for_another: bool,
    },
    /// Workers write its files.
    Writing(WritingProgress),
    /// It is committed.
    Done(JobResult),
    /// It has ended without a result. The next call begins it again.
    Failed(Report),
}

/// The result of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// The folder, as an absolute path or URL.
    pub url: String,
    /// The job's id.
    pub job: String,
    /// Whether an earlier run wrote the files.
    pub found: bool,
    /// The number of files.
    pub files: usize,
    /// Source rows that were read, including those that the query's filters left out.
    pub source_rows: u64,
    /// Samples in all files.
    pub rows: u64,
    /// Rows that could not be computed, and are left out.
    pub bad_rows: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// The folder of the record of bad rows, if there are any and the feed keeps one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<String>,
}

/// Asks a server to open its scripts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadCall {
    /// Also those that did not change, to see new files in their tables.
    pub all: bool,
}

/// What became of a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptReport {
    /// Its path on the server.
    pub script: String,
    /// What was done.
    pub change: ScriptChange,
    /// Its pipelines that are served now.
    pub pipelines: Vec<String>,
    /// Why it could not be opened. Its earlier version is served, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a server did with a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptChange {
    /// It is as it was.
    Unchanged,
    /// It is served for the first time.
    Added,
    /// New readers get the new version.
    Changed,
    /// It is gone. New readers of its pipelines are refused.
    Removed,
    /// It has an error.
    Failed,
}

/// A worker's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerCall {
    /// Its build.
    #[serde(default)]
    pub build: Build,
    /// Its operators, with their versions.
    pub operators: BTreeMap<String, u32>,
    /// Its state.
    pub sync: WorkerSync,
    /// What it has done for each feed since it opened it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, WorkDone>,
    /// The number of its threads.
    #[serde(default)]
    pub threads: u32,
    /// Whether it computes beside a trainer, on what that leaves.
    #[serde(default)]
    pub beside_trainer: bool,
}

/// What a worker has done for a feed since it opened it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkDone {
    /// Windows that it has read and filtered.
    pub windows: u64,
    /// Samples that it has computed.
    pub samples: u64,
    /// Seconds of its threads that this took.
    pub thread_seconds: f64,
    /// What it has chosen to keep of the feed, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeps: Option<String>,
}

/// The answer to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerAnswer {
    /// The windows that it should hold.
    pub reply: WorkerReply,
    /// The key that trainers' tickets are signed with.
    pub ticket_key: String,
    /// The dispatcher's clock, in seconds since 1970. Tickets expire by this clock, because the worker's may be wrong.
    pub now_unix_seconds: u64,
}

/// A trainer's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderCall {
    /// The stream's request, so that any dispatcher can open it.
    pub request: StreamRequest,
    /// The part of its secret that its tickets contain, as hexadecimal digits: see [`secret_key`].
    pub secret_key: String,
    /// Its state.
    pub sync: ReaderSync,
}

/// A rank's message about dynamic delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimCall {
    /// The stream's request, so that any dispatcher can open it.
    pub request: StreamRequest,
    /// Its claims.
    pub message: ClaimMessage,
}

/// The answer to a trainer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReaderAnswer {
    /// Its next assignment.
    pub reply: ReaderReply,
    /// Permits it to read this feed from any worker for a limited time.
    pub ticket: String,
}

/// Requests a slice of a window from a worker: a Flight ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowRequest {
    /// The ticket that the dispatcher signed.
    pub ticket: String,
    /// Proves that the ticket is the caller's.
    pub secret: String,
    /// The feed's id.
    pub feed: Arc<str>,
    /// The window.
    pub window: WindowId,
    /// The slice of the window.
    pub slice: Slice,
    /// The row to begin at.
    pub from_row: u64,
}

/// The `app_metadata` of a piece of a window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceMetadata {
    /// The window's rows that the piece covers, end exclusive. They include bad rows and gaps.
    pub rows: (u64, u64),
    /// The number of gaps among them; omitted if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gaps: u64,
}

/// The part of a trainer's secret that its tickets contain.
pub fn secret_key(secret: &str) -> String {
    blake3::hash(secret.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use forebay_delivery::Start;

    use super::*;
    use crate::options::{FeedOptions, OnError, ReadOptions};

    #[test]
    fn a_pipeline_name_is_a_whole_request() {
        let request: StreamRequest = serde_json::from_str(r#"{"pipeline": "train"}"#).expect("defaults for the rest");
        assert_eq!(request, StreamRequest::new("train", &FeedOptions::default(), &ReadOptions::default()));
    }

    #[test]
    fn options_survive_the_wire() {
        let feed = FeedOptions {
            seed: Some(3),
            on_error: Some(OnError::Skip),
            bucket_by_length: Some("tokens".to_owned()),
            bucket_boundaries: Some("64,128".parse().expect("boundaries")),
            global_batch_size: Some(96),
            ..FeedOptions::default()
        };
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
