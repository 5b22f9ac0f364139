//! The list of all formats of output files. To add a format, add one line here.

use super::format::WriteFormat;
use crate::{Error, Result};

/// Every format of output files, in the order of displayed lists.
#[rustfmt::skip] // One line for each.
pub static WRITE_FORMATS: &[&dyn WriteFormat] = &[
    &super::parquet::Parquet,
    &super::arrow::Arrow,
    &super::csv::Csv,
    &super::jsonl::Jsonl,
    &super::mds::Mds,
    &super::webdataset::WebDataset,
];

/// The format with this name, ignoring case.
///
/// # Errors
/// `Invalid`, with the available names.
pub fn find(name: &str) -> Result<&'static dyn WriteFormat> {
    let is_it = |format: &&&dyn WriteFormat| {
        let descriptor = format.descriptor();
        std::iter::once(&descriptor.name).chain(descriptor.aliases).any(|known| known.eq_ignore_ascii_case(name))
    };
    WRITE_FORMATS.iter().find(is_it).copied().ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        Error::invalid(format!("no format \"{name}\" can be written"))
            .with_hint(format!("formats to write: {}", names.join(", ")))
    })
}

/// The names of all formats of output files.
pub fn names() -> impl Iterator<Item = &'static str> {
    WRITE_FORMATS.iter().map(|format| format.descriptor().name)
}
