//! Formats of output files: each is one file that implements the trait [`WriteFormat`], and one line in
//! [`WRITE_FORMATS`].
//!
//! An [`OutputFormat`] checks the columns of a job once, and gives a [`FileWriter`] for each of its files. A writer
//! turns batches into the bytes of one file, and its caller stores these ([decision
//! 61](https://github.com/forebay/forebay/blob/main/docs/decisions/0061-writers-of-data-files.md)).
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Int64Array, RecordBatch};
//! use forebay_storage::writers::OutputFormat;
//!
//! # fn main() -> forebay_storage::Result<()> {
//! let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
//! let rows = RecordBatch::try_from_iter([("n", numbers)]).expect("one column");
//!
//! let format = OutputFormat::new("jsonl", &[])?;
//! let mut writer = format.writer(&rows.schema(), "")?;
//! let mut file = Vec::new();
//! writer.write(&rows)?;
//! while let Some(bytes) = writer.take()? {
//!     file.extend(bytes);
//! }
//! writer.finish()?;
//! while let Some(bytes) = writer.take()? {
//!     file.extend(bytes);
//! }
//! assert_eq!(file, b"{\"n\":1}\n{\"n\":null}\n");
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//!
//! - The same rows give the same bytes, however batches divide them. What depends on several rows, such as pages and
//!   record batches, is cut by rows and by the bytes of their values (`chunks.rs`); arrays that are stored as they lie
//!   in memory have one layout (`canonical.rs`); and nothing stores a time.
//! - Memory is bounded by a row group, or by a batch. Shards of MDS, whose first bytes depend on all rows, wait in a
//!   temporary file.
//! - A value that a format cannot hold is refused, never changed. CSV alone has values that are read as others; see its
//!   [`WriteDescriptor::nulls`].
//!
//! # Adding a format
//!
//! 1. Write `writers/<name>.rs`: a `static` descriptor, a unit struct, `impl WriteFormat`, and a writer. A format of
//!    rows builds on `cells.rs`; `jsonl.rs` is the shortest.
//! 2. Add its line to `registry.rs`, and the `mod` line here.
//! 3. Add its rows to `storage/tests/writers/`.
//! 4. Generate the reference: `cargo run -- formats --output markdown > docs/formats.md`.

mod arrow;
mod canonical;
mod cells;
mod chunks;
mod compressed;
mod csv;
mod format;
mod jsonl;
mod leaves;
mod list_pages;
mod mds;
mod mds_index;
mod npy;
mod output_format;
mod parquet;
mod pieces;
mod plain;
mod refusals;
mod registry;
mod tar;
mod value_bytes;
mod webdataset;

pub use self::format::{DataFile, FileWriter, IndexFile, NewFile, WriteDescriptor, WriteFormat};
pub use self::output_format::OutputFormat;
pub use self::registry::{WRITE_FORMATS, find, names};
