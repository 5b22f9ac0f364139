//! A feed's spec: all that another process needs to open the same feed, without the script that made it.
//!
//! A worker gets no paths to look for and no settings to resolve: the spec holds the pipeline's text, the files as they
//! were pinned, and the settings as they were resolved. Whether it came to the same feed shows in the id; the rest of
//! the spec is there to say what differs when it did not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_protocol::FeedSettings;
use forebay_sql::{PipelineDefinition, Statement};
use forebay_storage::{Dataset, DatasetSpec, Snapshot, Stores};
use serde::{Deserialize, Serialize};

use super::{Feed, feed_id};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{Pipeline, Refusal};

/// The version of this build, which a spec is stamped with.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What a feed is made of, to be opened by [`Session::open_spec`](crate::Session::open_spec) in another process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FeedSpec {
    /// The feed's id: what it must come to wherever it is opened.
    pub feed: String,
    /// The version of Forebay that made the spec.
    pub forebay: String,
    /// The pipeline's name.
    pub pipeline: String,
    /// The text of its `CREATE PIPELINE`.
    pub statement: String,
    /// Where relative paths of files in it begin: an absolute path.
    #[serde(default)]
    pub base: PathBuf,
    /// The driving table's name.
    pub table: String,
    /// What the table was made from, with an absolute location.
    pub dataset: DatasetSpec,
    /// The table's columns.
    #[serde(with = "forebay_storage::schema_text")]
    pub schema: SchemaRef,
    /// Its files as they were pinned.
    #[serde(with = "shared")]
    pub snapshot: Arc<Snapshot>,
    /// The tables that its joins look rows up in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<LookupSpec>,
    /// The feed's settings, resolved.
    pub settings: FeedSettings,
    /// What identifies the query.
    pub fingerprint: String,
    /// The operators that it calls, with their versions.
    pub operators: BTreeMap<String, u32>,
    /// URL or absolute path of the folder for what Forebay writes, such as quarantined rows.
    pub root: String,
}

/// A table that joins of a feed look rows up in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LookupSpec {
    /// Its name.
    pub table: String,
    /// What it was made from, with an absolute location.
    pub dataset: DatasetSpec,
    /// Its columns.
    #[serde(with = "forebay_storage::schema_text")]
    pub schema: SchemaRef,
    /// Its files as they were pinned.
    #[serde(with = "shared")]
    pub snapshot: Arc<Snapshot>,
}

/// A table of a spec: the driving one, or one that is joined.
pub(crate) struct SpecTable<'a> {
    pub(crate) name: &'a str,
    dataset: &'a DatasetSpec,
    schema: &'a SchemaRef,
    pub(crate) snapshot: &'a Arc<Snapshot>,
}

/// Serde for what several may hold.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

impl Feed {
    /// What another process needs to open this feed.
    pub fn spec(&self) -> FeedSpec {
        let (core, pipeline) = (self.core(), &self.pipeline);
        let mut lookups: Vec<LookupSpec> = Vec::new();
        for lookup in pipeline.stage.lookups() {
            // A table may be joined more than once, also with itself.
            if lookup.table != pipeline.table() && lookups.iter().all(|other| other.table != lookup.table) {
                lookups.push(LookupSpec {
                    table: lookup.table.clone(),
                    dataset: lookup.dataset.spec().clone(),
                    schema: Arc::clone(lookup.dataset.schema()),
                    snapshot: Arc::clone(lookup.dataset.snapshot()),
                });
            }
        }
        FeedSpec {
            feed: self.id().to_owned(),
            forebay: VERSION.to_owned(),
            pipeline: pipeline.name().to_owned(),
            statement: pipeline.statement().to_owned(),
            base: pipeline.base().to_owned(),
            table: pipeline.table().to_owned(),
            dataset: pipeline.dataset.spec().clone(),
            schema: Arc::clone(pipeline.dataset.schema()),
            snapshot: Arc::clone(pipeline.dataset.snapshot()),
            lookups,
            settings: core.settings.clone(),
            fingerprint: pipeline.fingerprint().to_owned(),
            operators: pipeline.operators().clone(),
            root: core.root.clone(),
        }
    }
}

/// Every operator of this build, with its version.
pub fn operator_versions() -> BTreeMap<String, u32> {
    forebay_operators::descriptors().map(|descriptor| (descriptor.name.to_owned(), descriptor.version)).collect()
}

/// How the operators of two builds differ, in words; empty where they do not.
pub fn operator_differences(here: &BTreeMap<String, u32>, there: &BTreeMap<String, u32>) -> Vec<String> {
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

/// The files that a query names, with the digests of their contents: in its plan as text, `Utf8("path#digest")`.
fn files(fingerprint: &str) -> BTreeMap<&str, &str> {
    let literals = fingerprint.split("Utf8(\\\"").skip(1).filter_map(|rest| rest.split("\\\")").next());
    let is_digest = |text: &str| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    literals.filter_map(|text| text.rsplit_once('#')).filter(|(_, digest)| is_digest(digest)).collect()
}

impl FeedSpec {
    /// Refuses what no build could open, or this one could not.
    pub(crate) fn check(&self) -> Result<()> {
        self.settings.check()?;
        if !(self.root.starts_with('/') || self.root.contains("://")) {
            return Err(Error::invalid(format!("\"{}\" is not an absolute path or URL to write to", self.root)));
        }
        let here = operator_versions().into_iter().filter(|(name, _)| self.operators.contains_key(name)).collect();
        let differences = operator_differences(&here, &self.operators);
        if differences.is_empty() { Ok(()) } else { Err(self.refusal(differences)) }
    }

    /// All tables of the query.
    pub(crate) fn tables(&self) -> impl Iterator<Item = SpecTable<'_>> {
        let FeedSpec { table, dataset, schema, snapshot, lookups, .. } = self;
        let lookups = lookups.iter().map(|LookupSpec { table, dataset, schema, snapshot }| SpecTable {
            name: table,
            dataset,
            schema,
            snapshot,
        });
        std::iter::once(SpecTable { name: table, dataset, schema, snapshot }).chain(lookups)
    }

    /// A table, without a look at its files.
    pub(crate) fn open_dataset(&self, table: &SpecTable<'_>, stores: &Stores) -> Result<Dataset> {
        let SpecTable { dataset, schema, snapshot, .. } = *table;
        Dataset::pinned(stores, dataset, Arc::clone(snapshot), Arc::clone(schema)).map_err(|error| {
            let error = Error::from(error);
            let refusal = self.refusal([error.message().to_owned()]);
            // A spec of another version need not be damaged to look it.
            if self.forebay == VERSION { Error::new(error.kind(), refusal.message()) } else { refusal }
        })
    }

    /// The one statement of the spec's text.
    pub(crate) fn definition(&self) -> Result<PipelineDefinition> {
        let mut statements = forebay_sql::parse(&self.statement).map_err(|error| self.unreadable(&error))?;
        match (statements.pop(), statements.is_empty()) {
            (Some(Statement::CreatePipeline(definition)), true) if definition.name == self.pipeline => Ok(definition),
            _ => Err(self.refusal([format!("its statement is not the CREATE PIPELINE of \"{}\"", self.pipeline)])),
        }
    }

    /// Why its query did not compile here.
    pub(crate) fn uncompiled(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Placed(error) => self.unreadable(&error),
            Refusal::Whole(error) => self.refusal([format!("its query does not compile: {}", error.message())]),
        }
    }

    fn unreadable(&self, error: &forebay_sql::Error) -> Error {
        let rendered = error.render(&self.pipeline, &self.statement);
        self.refusal([format!("its query does not compile: {}", rendered.trim_end())])
    }

    /// Refuses unless `pipeline` with the spec's settings is the feed that it describes; says what differs.
    pub(crate) fn check_opened(&self, pipeline: &Pipeline) -> Result<()> {
        let id = feed_id(pipeline, &self.settings);
        if id == self.feed {
            return Ok(());
        }
        let mut differences = operator_differences(pipeline.operators(), &self.operators);
        if pipeline.fingerprint() != self.fingerprint {
            let (here, there) = (files(pipeline.fingerprint()), files(&self.fingerprint));
            let changed: Vec<&str> = here
                .iter()
                .filter(|(path, digest)| there.get(*path).is_some_and(|it| it != *digest))
                .map(|it| *it.0)
                .collect();
            differences.push(match changed.is_empty() {
                true => "its query is not the one that the feed was opened with".to_owned(),
                false => format!("\"{}\" has another content here", changed.join("\", \"")),
            });
        }
        // The snapshot vouches for itself, and of the settings nothing else is known.
        if differences.is_empty() && self.forebay == VERSION {
            let settings = serde_json::to_string(&self.settings).unwrap_or_default();
            differences
                .push(format!("its settings {settings} make feed {id}, so they are not those it was opened with"));
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
