//! A feed's spec: everything another process needs to open the same feed, without the script that created it.
//!
//! A worker does not search paths or resolve settings: the spec holds the pipeline's text, the ids of the pinned
//! snapshots, and the resolved settings. The feed's id shows whether the worker opened the same feed. The rest of the
//! spec serves to report the differences if it did not.
//!
//! A snapshot lists all files of a dataset, so it is sent separately, in pieces and only once: see
//! [`SnapshotSource`](super::SnapshotSource).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use base64::Engine;
use base64::prelude::BASE64_STANDARD as STANDARD;
use forebay_protocol::{CacheMode, FeedSettings};
use forebay_sql::{PipelineDefinition, Statement};
use forebay_storage::{Dataset, DatasetSpec, Snapshot, Stores};
use serde::{Deserialize, Serialize};

use super::Feed;
use super::id::feed_id;
use crate::batch::only_row;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{self, Pipeline, Refusal, StageResults};

/// The version of this build, recorded in every spec.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The description of a feed, which another process opens with [`Session::open_spec`](crate::Session::open_spec).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedSpec {
    /// The feed's id, which every process that opens it must reproduce.
    pub feed: String,
    /// The version of Forebay that created the spec.
    pub forebay: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The text of its `CREATE PIPELINE`.
    pub statement: String,
    /// The absolute base path of the statement's relative file paths.
    #[serde(default)]
    pub base: PathBuf,
    /// The driving table's name.
    pub table: String,
    /// The table's source, with an absolute location.
    pub dataset: DatasetSpec,
    /// The table's columns.
    #[serde(with = "forebay_storage::schema_text")]
    pub schema: SchemaRef,
    /// The id of the snapshot of its files.
    pub snapshot: String,
    /// The lookup tables of its joins.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<LookupSpec>,
    /// The tables that only its stages read. The stages have run, so their columns are enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stage_tables: Vec<TableColumns>,
    /// The values of its stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<StageValue>,
    /// The feed's settings, resolved.
    pub settings: FeedSettings,
    /// What its windows keep under the root.
    #[serde(default)]
    pub cache: CacheMode,
    /// A hash that identifies the query.
    pub fingerprint: String,
    /// The files named in its calls, with the digests of their contents.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// The operators that it calls, with their versions.
    pub operators: BTreeMap<String, u32>,
    /// URL or absolute path of the folder that Forebay writes to, for example quarantined rows.
    pub root: String,
}

/// A lookup table of a feed's joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupSpec {
    /// Its name.
    pub table: String,
    /// Its source, with an absolute location.
    pub dataset: DatasetSpec,
    /// Its columns.
    #[serde(with = "forebay_storage::schema_text")]
    pub schema: SchemaRef,
    /// The id of the snapshot of its files.
    pub snapshot: String,
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableColumns {
    /// Its name.
    pub table: String,
    /// Its columns.
    #[serde(with = "forebay_storage::schema_text")]
    pub schema: SchemaRef,
}

/// The value that a stage of a feed's query gives. A large one, such as a vocabulary, is read from its table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageValue {
    /// The stage.
    pub name: String,
    /// A column of one row: an Arrow IPC stream in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    /// The table with this row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    table: Option<LookupSpec>,
}

/// The most bytes of a value that are in the spec itself.
const VALUE_BYTES_MAX: usize = 64 << 10;

impl StageValue {
    fn new(name: &str, of_stage: &pipeline::StageValue) -> Result<Self> {
        let row = &of_stage.row;
        let written = || {
            let mut writer = StreamWriter::try_new(Vec::new(), row.schema_ref())?;
            writer.write(row)?;
            writer.into_inner()
        };
        let bytes = written().map_err(|error| Error::internal(format!("the value of {name} is not sent: {error}")))?;
        let name = name.to_owned();
        Ok(match &of_stage.table {
            Some(table) if bytes.len() > VALUE_BYTES_MAX => {
                Self { value: None, table: Some(LookupSpec::new(&name, table)), name }
            }
            _ => Self { name, value: Some(STANDARD.encode(bytes)), table: None },
        })
    }

    /// Its row, unless it is in a table.
    fn row(&self) -> Result<Option<RecordBatch>> {
        let Some(value) = &self.value else { return Ok(None) };
        let damaged = || Error::invalid(format!("the value of {} is damaged", self.name));
        let bytes = STANDARD.decode(value).map_err(|_| damaged())?;
        let mut rows = StreamReader::try_new(bytes.as_slice(), None).map_err(|_| damaged())?;
        let row = rows.next().and_then(std::result::Result::ok);
        row.filter(|row| row.num_rows() == 1 && row.num_columns() == 1).ok_or_else(damaged).map(Some)
    }
}

impl LookupSpec {
    fn new(table: &str, dataset: &Dataset) -> Self {
        Self {
            table: table.to_owned(),
            dataset: dataset.spec().clone(),
            schema: Arc::clone(dataset.schema()),
            snapshot: dataset.snapshot().id().to_owned(),
        }
    }
}

/// A table of a spec: the driving table or a joined table.
pub(crate) struct SpecTable<'a> {
    pub(crate) name: &'a str,
    pub(crate) dataset: &'a DatasetSpec,
    pub(crate) schema: &'a SchemaRef,
    /// The id of its snapshot.
    pub(crate) snapshot: &'a str,
}

impl Feed {
    /// The description from which another process opens this feed.
    pub fn spec(&self) -> FeedSpec {
        let (core, pipeline) = (self.core(), &self.pipeline);
        let mut lookups: Vec<LookupSpec> = Vec::new();
        for lookup in pipeline.stage.lookups() {
            // A table may be joined more than once, including with itself.
            if lookup.table != pipeline.table() && lookups.iter().all(|other| other.table != lookup.table) {
                lookups.push(LookupSpec::new(&lookup.table, &lookup.dataset));
            }
        }
        let is_sent = |name: &str| name == pipeline.table() || lookups.iter().any(|lookup| lookup.table == name);
        let stage_tables = pipeline.tables().iter().filter(|(name, _)| !is_sent(name));
        let stage_tables = stage_tables
            .map(|(table, dataset)| TableColumns { table: table.clone(), schema: Arc::clone(dataset.schema()) })
            .collect();
        let values = pipeline.values().map(|(name, value)| StageValue::new(name, value).expect("a row becomes IPC"));
        FeedSpec {
            feed: self.id().to_owned(),
            forebay: VERSION.to_owned(),
            pipeline: pipeline.name().to_owned(),
            statement: pipeline.statement().to_owned(),
            base: pipeline.base().to_owned(),
            table: pipeline.table().to_owned(),
            dataset: pipeline.dataset.spec().clone(),
            schema: Arc::clone(pipeline.dataset.schema()),
            snapshot: pipeline.dataset.snapshot().id().to_owned(),
            stage_tables,
            values: values.collect(),
            lookups,
            settings: core.settings.clone(),
            cache: core.cache,
            fingerprint: pipeline.fingerprint().to_owned(),
            files: pipeline.files().clone(),
            operators: pipeline.operators().clone(),
            root: core.root.clone(),
        }
    }
}

/// Every operator of this build, with its version.
pub fn operator_versions() -> &'static BTreeMap<String, u32> {
    static ALL: LazyLock<BTreeMap<String, u32>> = LazyLock::new(|| {
        forebay_operators::descriptors().map(|descriptor| (descriptor.name.to_owned(), descriptor.version)).collect()
    });
    &ALL
}

/// The differences between the operators of two builds, as messages; empty if there are none.
pub fn operator_differences(here: &BTreeMap<String, u32>, there: &BTreeMap<String, u32>) -> Vec<String> {
    if here == there {
        return Vec::new();
    }
    let mut names: Vec<&String> = here.keys().chain(there.keys()).collect();
    names.sort();
    names.dedup();
    let difference = |name: &String| match (here.get(name), there.get(name)) {
        (Some(here), Some(there)) if here == there => None,
        (Some(here), Some(there)) => Some(format!("operator \"{name}\" is version {here} here and {there} there")),
        (Some(_), None) => Some(format!("operator \"{name}\" is missing there")),
        (None, _) => Some(format!("operator \"{name}\" is missing here")),
    };
    names.into_iter().filter_map(difference).collect()
}

impl FeedSpec {
    /// Refuses a spec that is invalid for every build, or unsupported by this build.
    pub(crate) fn check(&self) -> Result<()> {
        self.settings.check()?;
        if !(self.root.starts_with('/') || self.root.contains("://")) {
            return Err(Error::invalid(format!("\"{}\" is not an absolute path or URL to write to", self.root)));
        }
        let is_used = |(name, _): &(&String, &u32)| self.operators.contains_key(*name);
        let here = operator_versions().iter().filter(is_used).map(|(name, version)| (name.clone(), *version)).collect();
        let differences = operator_differences(&here, &self.operators);
        if differences.is_empty() { Ok(()) } else { Err(self.refusal(differences)) }
    }

    /// All tables of the query.
    pub(crate) fn tables(&self) -> impl Iterator<Item = SpecTable<'_>> {
        let FeedSpec { table, dataset, schema, snapshot, lookups, values, .. } = self;
        let of_values = values.iter().filter_map(|value| value.table.as_ref());
        let lookups = lookups.iter().chain(of_values).map(|LookupSpec { table, dataset, schema, snapshot }| {
            SpecTable { name: table, dataset, schema, snapshot }
        });
        std::iter::once(SpecTable { name: table, dataset, schema, snapshot }).chain(lookups)
    }

    /// The results of its stages among its tables.
    pub(crate) async fn results(&self, tables: &BTreeMap<String, Dataset>) -> Result<StageResults> {
        let mut results = StageResults { tables: tables.clone(), ..StageResults::default() };
        for value in &self.values {
            let table = tables.get(&value.name).filter(|_| value.table.is_some()).cloned();
            let row = match (value.row()?, &table) {
                (Some(row), _) => row,
                (None, Some(table)) => only_row(table).await?,
                (None, None) => return Err(Error::invalid(format!("the value of {} is missing", value.name))),
            };
            results.add_value(value.name.clone(), row, table)?;
        }
        Ok(results)
    }

    /// Opens a table over its snapshot. Reads no file.
    pub(crate) fn open_dataset(&self, table: &SpecTable<'_>, snapshot: Snapshot, stores: &Stores) -> Result<Dataset> {
        let SpecTable { dataset, schema, .. } = *table;
        // This verifies the id.
        let opened = Dataset::pinned(stores, dataset, snapshot, Arc::clone(schema)).map_err(Error::from);
        opened.map_err(|error| self.unreadable_snapshot(error))
    }

    /// The error for a snapshot whose content does not match its id.
    pub(crate) fn unreadable_snapshot(&self, error: Error) -> Error {
        let refusal = self.refusal([error.message().to_owned()]);
        // A spec of another version may only look damaged.
        if self.forebay == VERSION { Error::new(error.kind(), refusal.message()) } else { refusal }
    }

    /// The one statement of the spec's text.
    pub(crate) fn definition(&self) -> Result<PipelineDefinition> {
        let mut statements = forebay_sql::parse(&self.statement).map_err(|error| self.unreadable(&error))?;
        match (statements.pop(), statements.is_empty()) {
            (Some(Statement::CreatePipeline(definition)), true) if definition.name == self.pipeline => Ok(definition),
            _ => Err(self.refusal([format!("its statement is not the CREATE PIPELINE of \"{}\"", self.pipeline)])),
        }
    }

    /// The error for a query that does not compile in this process.
    pub(crate) fn uncompiled(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Placed(error) => self.unreadable(&error),
            Refusal::Whole(error) => self.refusal([format!("its query does not compile: {}", error.message())]),
        }
    }

    fn unreadable(&self, error: &forebay_sql::Error) -> Error {
        if error.is_shortage() {
            return Error::new(ErrorKind::Exhausted, error.message());
        }
        let rendered = error.render(&self.pipeline, &self.statement);
        self.refusal([format!("its query does not compile: {}", rendered.trim_end())])
    }

    /// Checks that `pipeline` with the spec's settings is the feed that the spec describes. The error lists the
    /// differences.
    pub(crate) fn check_opened(&self, pipeline: &Pipeline) -> Result<()> {
        let id = feed_id(pipeline, &self.settings);
        if id == self.feed {
            return Ok(());
        }
        let mut differences = operator_differences(pipeline.operators(), &self.operators);
        if pipeline.fingerprint() != self.fingerprint {
            let is_changed = |path: &str, digest: &String| self.files.get(path).is_some_and(|there| there != digest);
            let files = pipeline.files().iter().filter(|(path, digest)| is_changed(path, digest));
            let changed: Vec<&str> = files.map(|(path, _)| path.as_str()).collect();
            differences.push(match changed.is_empty() {
                true => "its query differs from the one that the feed was opened with".to_owned(),
                false => format!("\"{}\" has different content here", changed.join("\", \"")),
            });
        }
        // The id verified the snapshot, so only the settings can differ.
        if differences.is_empty() && self.forebay == VERSION {
            let settings = serde_json::to_string(&self.settings).unwrap_or_default();
            differences
                .push(format!("its settings {settings} give feed {id}, so they differ from those it was opened with"));
        }
        Err(self.refusal(differences))
    }

    fn refusal(&self, differences: impl IntoIterator<Item = String>) -> Error {
        let version =
            (self.forebay != VERSION).then(|| format!("forebay is version {VERSION} here and {} there", self.forebay));
        let differences: Vec<String> = version.into_iter().chain(differences).collect();
        let message = format!("feed {} cannot be opened here: {}", self.feed, differences.join("; "));
        Error::new(ErrorKind::Conflict, message).with_hint(
            "give dispatcher and workers the same build and the same files; a worker tries again every ten seconds",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_operators_are_said_in_words() {
        let versions = |list: &[(&str, u32)]| list.iter().map(|(name, v)| ((*name).to_owned(), *v)).collect();
        let here = versions(&[("clamp", 1), ("resize", 2), ("x", 1)]);
        let there = versions(&[("clamp", 1), ("resize", 1), ("y", 1)]);
        let expected = [
            "operator \"resize\" is version 2 here and 1 there",
            "operator \"x\" is missing there",
            "operator \"y\" is missing here",
        ];
        assert_eq!(operator_differences(&here, &there), expected);
        assert!(operator_differences(&here, &here).is_empty());
        assert!(operator_versions().contains_key("resize"));
    }
}
