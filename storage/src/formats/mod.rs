//! File formats: each is one file or folder that implements the trait [`Format`], and one line in [`FORMATS`].
//!
//! # Adding a format
//!
//! 1. Write `formats/<name>.rs`: a `static` descriptor, a unit struct, `impl Format`. A text format with one record
//!    after the other also implements `RecordText` and leaves the rest to `text/`; `jsonl.rs` is a short example. Of
//!    the other formats, `media.rs` is the shortest.
//! 2. Add its line to `registry.rs`, and the `mod` line here.
//! 3. Generate its reference: `cargo run -- formats --output markdown > docs/formats.md`.
//!
//! The [conformance suite](crate::conformance) then tests it automatically, and SQL, the command line and the Python
//! package know its name, its extensions and its options.

pub(crate) mod csv;
pub(crate) mod format;
mod json_fields;
mod jsonl;
mod media;
pub(crate) mod memory;
pub(crate) mod options;
pub(crate) mod parquet;
pub mod reference;
pub(crate) mod registry;
mod sample_rows;
pub(crate) mod table_format;
mod text;

pub use self::format::{
    DamagedSample, Decoded, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest,
    SampleFile,
};
pub use self::options::{FormatOption, FormatOptionKind, FormatOptionValue, ImpliedOption, OptionValues};
pub use self::registry::{FORMATS, find, find_by_extension, names};
pub use self::table_format::TableFormat;
