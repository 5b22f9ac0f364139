//! The engine: turns a pipeline's text into batches, both in process and behind the server.
//!
//! A [`Session`] holds tables, pipelines and worker threads. [`Session::execute`] runs SQL. [`Session::open`] opens a
//! pipeline as a [`Feed`], a log of samples computed on demand. [`Feed::read`] returns a [`Reader`] for one rank. Its
//! [`Batch`]es have the same bytes on every machine and in every run.
//!
//! ```
//! use forebay_engine::{FeedOptions, ReadOptions, Session};
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let folder = tempfile::tempdir()?;
//! std::fs::write(folder.path().join("clicks.csv"), "price,label\n1.5,0\n20,1\n3,0\n")?;
//! let session = Session::builder().base(folder.path()).build()?;
//! session.execute("example.sql", "
//!     CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
//!     CREATE PIPELINE train WITH (shuffle = true, seed = 17) AS
//!         SELECT log1p(price) AS price, label FROM clicks;
//! ").await?;
//! let feed = session.open("train", &FeedOptions::default())?;
//! let mut reader = feed.read(&ReadOptions { batch_size: Some(2), ..ReadOptions::default() })?;
//! let mut rows = Vec::new();
//! while let Some(batch) = reader.next().await {
//!     rows.push(batch?.records.num_rows());
//! }
//! assert_eq!(rows, [2, 1]);
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! [`Feed::spec`] describes a feed, so that another process can open it with [`Session::open_spec`], without the
//! script. A [`SnapshotSource`] sends the snapshots that the spec names.
//!
//! The engine knows neither Flight nor the command line, and writes only through `forebay-storage`.

mod batch;
mod blocked;
mod build;
mod compile;
mod cpu_time;
mod error;
mod executor;
mod explain;
mod feed;
mod function;
mod job;
mod measure;
mod memory;
mod pipeline;
mod planner;
mod preview;
mod sealed;
mod session;
mod table_format;
mod table_pieces;
mod table_preview;
mod tables;
mod tensor_parameter;
mod turns;

pub use batch::RunningStage;
pub use batch::{Query, QueryRows};
pub use build::build;
pub use cpu_time::cpu_time;
pub use error::{Error, ErrorKind, Result};
pub use explain::{Explanation, FeedExplanation, KeptStage, StageState};
pub use feed::{
    CacheReport, CostMeter, Feed, FeedCosts, FeedSpec, LookupSpec, Reader, SnapshotPieces, SnapshotSource, SourceRow,
    StageValue, StoreUsage, StoredState, StoredWindow, TableColumns, Trial, WindowPlan, WindowRows, WindowStore, Work,
    operator_differences, operator_versions,
};
pub use forebay_arrays::type_name;
pub use forebay_protocol::{
    Batch, Boundaries, CacheMode, CallOrder, DeliveryMode, FeedOptions, FeedSettings, JobEstimate, JobOptions,
    LengthBuckets, OnError, OptionKind, OptionSet, OptionSpec, ReadOptions, SessionOptions, Start, Token, WindowKey,
    parse_bytes,
};
pub use function::{BatchFn, CallError, Function};
pub use job::{FilePlan, Job, JobProgress, JobSpec, Materialized, SharedJob};
pub use measure::Measurement;
pub use memory::MemoryDefaults;
pub use pipeline::Pipeline;
pub use preview::Preview;
pub use session::{Broken, Output, Session, SessionBuilder};
pub use table_preview::{TablePreview, TableRows};

/// DataFusion, in the version whose DataFrames and expressions a [`Session`] takes.
pub use datafusion;
/// The name closest to a misspelt one, for "did you mean" hints.
pub use forebay_diagnostics::nearest;

/// Facts about Arrow columns: tensor types, digests, deferred steps.
pub use forebay_arrays as arrays;
pub use forebay_arrays::digest;

/// The policies: what pays off, by what was measured.
pub use forebay_policy as policy;

/// The file formats of tables and of jobs: their descriptors and their reference.
pub use forebay_storage::artifact::Garbage;
pub use forebay_storage::{StoreWait, formats, writers};

pub use forebay_operators::CallCosts;

/// The preprocessing operators: their descriptors and their reference.
pub use forebay_operators as operators;
