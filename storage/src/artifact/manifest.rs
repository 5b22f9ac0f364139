//! What an artifact consists of and comes from.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digests::ContentDigest;
use super::layout::{Kind, is_data};

/// What an artifact consists of and comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The id of the job that wrote it.
    pub job: String,
    /// What the rows mean: the same for all artifacts that may stand for each other.
    pub fingerprint: String,
    /// The columns that a reader of the files finds in them.
    #[serde(with = "crate::schema::schema_text")]
    pub schema: SchemaRef,
    /// The columns whose values are the names of the files' folders, outermost first.
    #[serde(with = "crate::schema::schema_text", default = "no_columns", skip_serializing_if = "has_no_columns")]
    pub folders: SchemaRef,
    /// The data files, in the order of their names, which is that of the rows.
    pub files: Vec<ArtifactFile>,
    /// The index files, in the order of their names.
    pub index: Vec<ArtifactIndex>,
    /// The number of rows that the job read.
    pub rows_in: u64,
    /// The number of rows in all files.
    pub rows_out: u64,
    /// The number of rows that could not be read or computed.
    pub bad_rows: u64,
    /// How many rows were bad for which reason.
    pub bad_reasons: BTreeMap<String, u64>,
    /// Where the rows come from, such as the query, the versions of operators and the snapshots.
    pub lineage: BTreeMap<String, String>,
    /// What the job cost, in the terms of its crate.
    pub costs: Value,
}

/// One data file of an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactFile {
    /// The path below the artifact's folder.
    pub name: String,
    /// The number of rows.
    pub rows: u64,
    /// The size in bytes.
    pub bytes: u64,
    /// The digest of the content.
    pub digest: ContentDigest,
}

/// A file with no rows of its own, which other programs look for under its name, such as `index.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArtifactIndex {
    /// The path below the artifact's folder.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The digest of the content.
    pub digest: ContentDigest,
}

impl Manifest {
    /// The reason that this cannot be an artifact, or `None`.
    pub(super) fn misfit(&self) -> Option<String> {
        if let Some(file) = self.files.iter().find(|file| !is_data(&file.name)) {
            return Some(format!("\"{}\" is not a name for a data file", file.name));
        }
        if let Some(pair) = self.files.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            return Some(format!("\"{}\" comes twice or out of order", pair[1].name));
        }
        if let Some(file) = self.index.iter().find(|file| !is_data(&file.name) || Kind::of(&file.name) != Kind::Other) {
            return Some(format!("\"{}\" is not a name for an index", file.name));
        }
        if let Some(pair) = self.index.windows(2).find(|pair| pair[0].name >= pair[1].name) {
            return Some(format!("the index \"{}\" comes twice or out of order", pair[1].name));
        }
        let in_files = sum(self.files.iter().map(|file| file.rows));
        if in_files != Some(self.rows_out) {
            return Some(format!("its files do not have {} rows together", self.rows_out));
        }
        let for_reasons = sum(self.bad_reasons.values().copied());
        if for_reasons.is_none_or(|rows| rows > self.bad_rows) {
            return Some(format!("it gives reasons for more than {} bad rows", self.bad_rows));
        }
        match self.rows_out.checked_add(self.bad_rows) == Some(self.rows_in) {
            true => None,
            false => Some(format!(
                "{} rows were read, but {} were written and {} were bad",
                self.rows_in, self.rows_out, self.bad_rows
            )),
        }
    }
}

fn no_columns() -> SchemaRef {
    Arc::new(Schema::empty())
}

fn has_no_columns(schema: &SchemaRef) -> bool {
    schema.fields().is_empty()
}

/// The sum, unless it is too large.
fn sum(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut numbers = numbers;
    numbers.try_fold(0, u64::checked_add)
}
