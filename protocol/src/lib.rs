//! The protocol of a feed: the vocabulary shared by the processes that compute a feed and those that read it.
//!
//! - [`FeedOptions`] and [`ReadOptions`] request a feed and a rank's part of it.
//! - A [`Batch`] is the answer, with the token that resumes after it.
//! - An [`Error`] has an [`ErrorKind`] that tells the caller what to do.
//! - [`wire`] holds the messages sent beside Arrow data.
//!
//! ```
//! use forebay_protocol::{FeedOptions, ReadOptions, wire::StreamRequest};
//!
//! let read = ReadOptions { rank: 1, world_size: 2, ..ReadOptions::default() };
//! let request = StreamRequest::new("train", &FeedOptions::default(), &read);
//! let json = serde_json::to_string(&request)?;
//! assert_eq!(json, r#"{"pipeline":"train","rank":1,"world_size":2,"from":"0:0"}"#);
//! # Ok::<_, serde_json::Error>(())
//! ```
//!
//! The crate plans and computes nothing, and opens no connections. Without its features, which the engine enables, it
//! depends neither on DataFusion nor on storage.

mod batch;
mod build;
mod error;
#[cfg(feature = "datafusion")]
mod from_datafusion;
#[cfg(feature = "storage")]
mod from_storage;
mod job_estimate;
mod length_buckets;
mod options;
mod random;
mod size;
pub mod wire;

pub use batch::Batch;
pub use build::{Build, VERSION_HEADER, version};
pub use error::{Error, ErrorKind, Result};
pub use forebay_delivery::{Start, Token, WindowKey};
pub use job_estimate::JobEstimate;
pub use length_buckets::{Boundaries, LengthBuckets, check_global_batch_size};
pub use options::{
    CacheMode, CallOrder, DeliveryMode, EPOCHS_MAX, FeedOptions, FeedSettings, JobOptions, OFFSET_MAX, OnError,
    OptionKind, OptionSet, OptionSpec, ReadDefaults, ReadOptions, Scope, SessionOptions,
};
pub use random::{random_bytes, random_id};
pub use size::parse_bytes;
