//! The JSON of shards of mosaicml-streaming: in each shard, and in `index.json`.

use std::collections::BTreeMap;
use std::io::{Result as IoResult, Write};

use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, Serializer};

use super::format::DataFile;
use crate::{Error, Result};

/// The digest of files, one of those that mosaicml-streaming checks.
pub(super) const HASH: &str = "xxh3_64";
const VERSION: u32 = 2;

/// The columns of a shard, in its order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Columns {
    pub(super) names: Vec<String>,
    pub(super) encodings: Vec<String>,
    pub(super) sizes: Vec<Option<u64>>,
    pub(super) compression: Option<String>,
}

/// What the index says about a shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ShardFacts {
    pub(super) columns: Columns,
    pub(super) raw_data: FileInfo,
    pub(super) zip_data: Option<FileInfo>,
}

/// A file of a shard. Its fields have Python's order of keys.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileInfo {
    pub(super) basename: String,
    pub(super) bytes: u64,
    pub(super) hashes: BTreeMap<String, String>,
}

/// What a shard says about itself, in Python's order of keys.
#[derive(Serialize)]
struct Config<'a> {
    column_encodings: &'a [String],
    column_names: &'a [String],
    column_sizes: &'a [Option<u64>],
    compression: Option<&'a str>,
    format: &'static str,
    hashes: [&'static str; 1],
    /// The caller decides where shards end.
    size_limit: Option<u64>,
    version: u32,
}

#[derive(Serialize)]
struct Index<'a> {
    shards: Vec<Shard<'a>>,
    version: u32,
}

/// A shard in the index, in Python's order of keys.
#[derive(Serialize)]
struct Shard<'a> {
    column_encodings: &'a [String],
    column_names: &'a [String],
    column_sizes: &'a [Option<u64>],
    compression: Option<&'a str>,
    format: &'static str,
    hashes: [&'static str; 1],
    raw_data: FileInfo,
    samples: u64,
    size_limit: Option<u64>,
    version: u32,
    zip_data: Option<FileInfo>,
}

/// The text in a shard's head.
pub(super) fn config(columns: &Columns) -> Result<Vec<u8>> {
    python_json(&Config {
        column_encodings: &columns.encodings,
        column_names: &columns.names,
        column_sizes: &columns.sizes,
        compression: columns.compression.as_deref(),
        format: "mds",
        hashes: [HASH],
        size_limit: None,
        version: VERSION,
    })
}

/// `index.json`. Shards without samples are left out, as by their own writer.
pub(super) fn index(files: &[DataFile]) -> Result<Vec<u8>> {
    let facts = files.iter().filter(|file| file.rows > 0).map(|file| {
        serde_json::from_value::<ShardFacts>(file.facts.clone()).map(|facts| (file, facts)).map_err(|error| {
            Error::invalid(format!("\"{}\" is no shard of mds: {error}", file.name)).with_source(error)
        })
    });
    let facts = facts.collect::<Result<Vec<_>>>()?;
    let shards = facts.iter().map(|(file, facts)| {
        let columns = &facts.columns;
        let suffix = columns.compression.as_ref().map(|compression| format!(".{compression}")).unwrap_or_default();
        let raw_name = file.name.strip_suffix(&suffix).unwrap_or(&file.name).to_owned();
        Shard {
            column_encodings: &columns.encodings,
            column_names: &columns.names,
            column_sizes: &columns.sizes,
            compression: columns.compression.as_deref(),
            format: "mds",
            hashes: [HASH],
            raw_data: FileInfo { basename: raw_name, ..facts.raw_data.clone() },
            samples: file.rows,
            size_limit: None,
            version: VERSION,
            zip_data: facts.zip_data.clone().map(|info| FileInfo { basename: file.name.clone(), ..info }),
        }
    });
    python_json(&Index { shards: shards.collect(), version: VERSION })
}

/// JSON as Python's `json.dumps` writes it.
fn python_json(value: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    value
        .serialize(&mut Serializer::with_formatter(&mut text, Python))
        .map_err(|error| Error::internal(format!("plain data becomes JSON: {error}")).with_source(error))?;
    Ok(text)
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> IoResult<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> IoResult<()> {
        writer.write_all(b": ")
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> IoResult<()> {
        for character in fragment.chars() {
            // JSON's own escapes are not part of fragments.
            if matches!(character, ' '..='~') {
                writer.write_all(&[character as u8])?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
