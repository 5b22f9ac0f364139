//! Stores, datasets, formats, snapshots and row ranges: the source of a training job's rows.
//!
//! [`Stores`] finds the object store of a path or URL. [`Dataset::open`] lists the files of a [`DatasetSpec`],
//! determines their columns and row groups through their [format](formats), and pins the result as a [`Snapshot`]: each
//! file with its version and its rows. Each row then has a fixed number, its `sample_id`. [`Dataset::row_ranges`] cuts
//! the rows into [`RowRange`]s. [`Dataset::read`] reads one range as [`RangeRows`]: an Arrow batch, the ids of its
//! rows, and the bad rows with the reasons. Reading a file that changed since the snapshot is an
//! [`ErrorKind::Conflict`], and never returns other rows under the same ids. A spec and a snapshot can be sent as JSON;
//! [`Dataset::pinned`] opens them in another process without listing or opening any file. Each format is one file in
//! [`formats`], and the [`conformance`] suite checks all of them.
//!
//! ```
//! use forebay_storage::{Dataset, DatasetSpec, PathColumns, Stores, TableFormat};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> forebay_storage::Result<()> {
//! let stores = Stores::new();
//! stores.put("memory:///people/a.csv", "name,age\nAda,36\nBob,old\n".into()).await?;
//! stores.put("memory:///people/b.csv", "name,age\nEve,\n".into()).await?;
//!
//! let spec = DatasetSpec {
//!     location: "memory:///people".to_owned(),
//!     format: TableFormat::named("csv")?,
//!     schema: None,
//!     path_columns: PathColumns::Inferred,
//!     path_column: None,
//! };
//! let dataset = Dataset::open(&stores, &spec).await?;
//! assert_eq!(dataset.snapshot().rows(), 3);
//! assert_eq!(dataset.snapshot().locate(2), (1, 0)); // file b.csv, its first row
//!
//! for range in dataset.row_ranges(1 << 20) {
//!     let rows = dataset.read(&range, &[1, 0]).await?;
//!     println!("{:?} {:?} {:?}", rows.sample_ids, rows.batch, rows.bad);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! This crate does not know pipelines, feeds, operators or DataFusion. It does not decode media, and determines neither
//! order nor batches. It starts no tasks: it decodes on the caller's task.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod artifact;
pub mod conformance;
mod content_id;
mod dataset;
mod dataset_spec;
mod detection;
mod dictionary;
mod durable;
mod error;
mod extension;
pub mod faults;
pub mod formats;
mod keeping;
mod lake;
mod listing;
mod local_disk;
mod objects;
mod path_columns;
mod piece_cache;
mod pinned;
mod range_cache;
mod schema;
mod snapshot;
mod snapshot_text;
mod source_file;
mod statistics;
mod store_rates;
mod stores;
mod text_types;
mod visible;
mod waits;
mod widening;
pub mod writers;

pub use dataset::{BadRead, Dataset, RangeBatches, RangeRows};
pub use dataset_spec::DatasetSpec;
pub use detection::format_at;
pub use dictionary::{dictionary_of_texts, retyped};
pub use error::{Error, ErrorKind, Result};
pub use formats::parquet::write_parquet;
pub use formats::table_format::TableFormat;
pub use keeping::Keeping;
pub use objects::{Object, Upload};
pub use path_columns::{PathColumns, folder_of};
pub use piece_cache::{PieceCache, PieceCacheUsage};
pub use pinned::{PinnedFile, for_all};
pub use range_cache::{FoundRange, RangeCache, RangeCacheUsage};
pub use schema::schema_text;
pub use snapshot::Snapshot;
pub use snapshot_text::{SnapshotReader, SnapshotText};
pub use source_file::{Cuts, FileContent, RowGroup, RowRange, SourceFile};
pub use statistics::{ColumnStatistics, Of, RangeStatistics};
pub use store_rates::{StoreRates, store_rates};
pub use stores::Stores;
pub use waits::StoreWait;
