//! The engine: from a pipeline's text to batches, in process and behind the server alike.
//!
//! A [`Session`] holds tables, pipelines and worker threads. [`Session::execute`] runs SQL; [`Session::open`] opens a
//! pipeline as a [`Feed`], which is a log of samples computed on demand; [`Feed::read`] gives one rank's [`Reader`],
//! whose [`Batch`]es are the same bytes wherever and however often they are computed.
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
//! [`Feed::spec`] is all that another process needs to open the same feed with [`Session::open_spec`], without the
//! script, beside the snapshots that the spec names, which a [`SnapshotSource`] sends.
//!
//! The engine knows neither Flight nor the command line, and writes nothing but through `forebay-storage`.

mod compile;
mod error;
mod executor;
mod explain;
mod feed;
mod function;
mod pipeline;
mod preview;
mod session;
mod table_format;
mod table_preview;
mod tables;

pub use error::{Error, ErrorKind, Result};
pub use explain::{Explanation, type_name};
pub use feed::{
    Feed, FeedSpec, LookupSpec, Materialized, Reader, SnapshotPieces, SnapshotSource, SourceRow, StoreUsage,
    StoredState, StoredWindow, WindowPlan, WindowRows, WindowStore, operator_differences, operator_versions,
};
pub use forebay_protocol::{
    Batch, Boundaries, DeliveryMode, FeedOptions, FeedSettings, LengthBuckets, OnError, OptionKind, OptionSet,
    OptionSpec, ReadOptions, SessionOptions, Start, Token, WindowKey, parse_bytes,
};
pub use function::{BatchFn, CallError, Function};
pub use pipeline::Pipeline;
pub use preview::Preview;
pub use session::{Output, Session, SessionBuilder};
pub use table_preview::TablePreview;

/// The nearest of some names to a misspelt one, for "did you mean".
pub use forebay_diagnostics::nearest;

/// Facts about Arrow columns: tensor types, digests, deferred steps.
pub use forebay_arrays as arrays;
pub use forebay_arrays::digest;

/// The formats of files that tables are made of: their descriptors and their reference.
pub use forebay_storage::formats;

/// The preprocessing operators: their descriptors and their reference.
pub use forebay_operators as operators;
