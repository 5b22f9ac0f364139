//! The list of all formats. To add a format, add one line here.

use super::format::Format;
use super::memory::InMemoryRows;
use crate::extension::has_extension;
use crate::{Error, Result};

/// Every file format, in the order of displayed lists.
#[rustfmt::skip] // One line for each.
pub static FORMATS: &[&dyn Format] = &[
    &super::parquet::Parquet,
    &super::csv::Csv,
    &super::jsonl::Jsonl,
    &super::media::Media,
];

/// The format with this name, ignoring case.
///
/// # Errors
/// `Invalid`, with the available names.
pub fn find(name: &str) -> Result<&'static dyn Format> {
    let is_it = |format: &&&dyn Format| {
        let descriptor = format.descriptor();
        std::iter::once(&descriptor.name).chain(descriptor.aliases).any(|known| known.eq_ignore_ascii_case(name))
    };
    FORMATS.iter().find(is_it).copied().ok_or_else(|| {
        let names: Vec<&str> = names().collect();
        Error::invalid(format!("there is no format \"{name}\"")).with_hint(format!("formats: {}", names.join(", ")))
    })
}

/// The names of all formats.
pub fn names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.descriptor().name)
}

/// The format of the extension of `location`, if any.
pub fn find_by_extension(location: &str) -> Option<&'static dyn Format> {
    FORMATS.iter().find(|format| has_extension(location, format.descriptor().extensions)).copied()
}

/// The format with this name in a stored spec, including tables in memory.
pub(crate) fn find_stored(name: &str) -> Result<&'static dyn Format> {
    let known = FORMATS.iter().copied().chain([&InMemoryRows as &dyn Format]);
    known.into_iter().find(|format| format.descriptor().name == name).map_or_else(|| find(name), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_found_by_its_names() {
        for (name, expect) in [("PARQUET", "parquet"), ("Csv", "csv"), ("NDJSON", "jsonl"), ("json", "jsonl")] {
            assert_eq!(find(name).unwrap().descriptor().name, expect);
        }
        let error = find("orc").unwrap_err();
        assert_eq!(error.to_string(), "there is no format \"orc\"");
        assert!(error.hint().unwrap().starts_with("formats: parquet, csv, "), "{error:?}");
        assert!(find("memory").is_err(), "tables in memory have no files");
    }

    #[test]
    fn a_format_is_found_by_the_extension() {
        let check = |location: &str, expect: Option<&str>| {
            assert_eq!(find_by_extension(location).map(|format| format.descriptor().name), expect, "{location}");
        };
        check("s3://bucket/a.b/x.PARQUET", Some("parquet"));
        check("x.tsv", Some("csv"));
        check("data/*.json", Some("jsonl"));
        check("sounds/bell.flac", Some("media"));
        check("data.csv/x", None);
        check("x.txt", None);
        check("csv", None);
    }
}
