//! The reasons that a stage is not kept: what differs from the nearest artifact.
//!
//! A manifest records the stage's plan, its operators, and its tables with their files. Of the artifacts under the root
//! with the same plan, or else over the same tables, the one that differs least is the nearest.

use std::collections::{BTreeMap, BTreeSet};

use forebay_storage::Stores;
use forebay_storage::artifact::{Artifact, Catalog};

use super::stage::TableStage;
use crate::compile;
use crate::error::Result;

/// The artifacts that are compared.
const COMPARED_MAX: usize = 256;
/// Files of a table that are recorded by name.
const FILES_MAX: usize = 1000;
/// Differences that are told.
const TOLD_MAX: usize = 4;

const PLAN: &str = "plan";
const VERSIONS: &str = "version ";
const TABLE: &str = "table ";
const FILES: &str = "files ";
const ON_ERROR: &str = "on_error";

/// The record of where the rows of `stage` come from.
pub(super) fn sources(stage: &TableStage) -> BTreeMap<String, String> {
    let mut sources = BTreeMap::from([
        ("stage".to_owned(), stage.name.clone()),
        (PLAN.to_owned(), stage.plan.clone()),
        (format!("{VERSIONS}forebay"), env!("CARGO_PKG_VERSION").to_owned()),
        (format!("{VERSIONS}queries"), compile::IDENTITY_VERSION.to_owned()),
    ]);
    sources.extend(stage.versions.iter().map(|(name, version)| (format!("{VERSIONS}{name}"), version.clone())));
    sources.extend(stage.left_out.iter().map(|left_out| (ON_ERROR.to_owned(), left_out.on_error.to_string())));
    for (name, dataset) in &stage.tables {
        let snapshot = dataset.snapshot();
        let (rows, files, id) = (snapshot.rows(), snapshot.files(), snapshot.id());
        sources.insert(format!("{TABLE}{name}"), format!("{rows} rows in {} files, snapshot {id}", files.len()));
        if files.len() <= FILES_MAX {
            let paths: Vec<&str> = files.iter().map(|file| file.path.as_ref()).collect();
            sources.insert(format!("{FILES}{name}"), paths.join("\n"));
        }
    }
    sources
}

/// What differs between a stage and the nearest artifact; `None` without one.
pub(crate) async fn differences(stores: &Stores, root: &str, stage: &TableStage) -> Result<Option<Vec<String>>> {
    let catalog = Catalog::new(stores, root)?;
    let now = sources(stage);
    let mut nearest: Option<Vec<String>> = None;
    for entry in catalog.entries().await?.into_iter().take(COMPARED_MAX) {
        let Ok(Some(artifact)) = Artifact::find(stores, &entry.url).await else { continue };
        let before = &artifact.manifest().lineage;
        let tables = |of: &BTreeMap<String, String>| -> BTreeSet<String> {
            of.keys().filter(|key| key.starts_with(TABLE)).cloned().collect()
        };
        let is_related = before.get(PLAN) == now.get(PLAN) || tables(before) == tables(&now);
        if !before.contains_key(PLAN) || !is_related {
            continue;
        }
        let told = told(before, &now);
        if !told.is_empty() && nearest.as_ref().is_none_or(|nearest| told.len() < nearest.len()) {
            nearest = Some(told);
        }
    }
    Ok(nearest.map(|mut told| {
        told.truncate(TOLD_MAX);
        told
    }))
}

/// The differences of two records, in words.
fn told(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Vec<String> {
    let mut told = Vec::new();
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    for key in keys {
        let (old, new) = (before.get(key).map_or("", String::as_str), now.get(key).map_or("", String::as_str));
        if old == new {
            continue;
        }
        if key == ON_ERROR {
            let shown = |value: &str| if value.is_empty() { "raise" } else { value }.to_owned();
            told.push(format!("on_error is {}, was {}", shown(new), shown(old)));
        } else if key == PLAN {
            told.extend(lines(old, new));
        } else if let Some(name) = key.strip_prefix(VERSIONS) {
            told.push(match (old, new) {
                ("", _) => format!("{name} is called now"),
                (_, "") => format!("{name} is called no more"),
                _ => format!("{name} is version {new}, was {old}"),
            });
        } else if let Some(name) = key.strip_prefix(TABLE) {
            let files = |of: &BTreeMap<String, String>| -> Option<BTreeSet<String>> {
                Some(of.get(&format!("{FILES}{name}"))?.lines().map(str::to_owned).collect())
            };
            let changed = files(before).zip(files(now)).and_then(|(old, new)| file_change(name, &old, &new));
            told.push(changed.unwrap_or_else(|| format!("{name} changed: it has {new}, and had {old}")));
        }
    }
    told
}

/// The files that were added or removed, or that a file has other content.
fn file_change(table: &str, old: &BTreeSet<String>, new: &BTreeSet<String>) -> Option<String> {
    let counted = |word: &str, files: Vec<&String>| match &files[..] {
        [] => None,
        [file] => Some(format!("1 file {word} ({file})")),
        [file, ..] => Some(format!("{} files {word}, such as {file}", files.len())),
    };
    let added = counted("added", new.difference(old).collect());
    let removed = counted("removed", old.difference(new).collect());
    let changes: Vec<String> = [added, removed].into_iter().flatten().collect();
    let changes = if changes.is_empty() { "a file changed".to_owned() } else { changes.join(", ") };
    Some(format!("{table}: {changes}"))
}

/// The first lines of the plans that differ.
fn lines(old: &str, new: &str) -> Option<String> {
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.lines().map(str::trim).collect(), new.lines().map(str::trim).collect());
    let at = (0..old.len().max(new.len())).find(|&line| old.get(line) != new.get(line))?;
    Some(match (old.get(at), new.get(at)) {
        (Some(old), Some(new)) => format!("`{old}` became `{new}`"),
        (Some(old), None) => format!("`{old}` is no more"),
        (_, new) => format!("`{}` is new", new.unwrap_or(&"")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn differences_are_told_in_words() {
        let before = record(&[
            ("plan", "Sort: t.x\n  Filter: t.x > 1000\n    TableScan: t"),
            ("version tokenize", "2"),
            ("table t", "3 rows in 1 files, snapshot a"),
            ("files t", "2026-03.parquet"),
        ]);
        assert!(told(&before, &before).is_empty());
        let changed = |key: &str, value: &str| {
            let mut now = before.clone();
            now.insert(key.to_owned(), value.to_owned());
            now
        };
        let literal = changed("plan", "Sort: t.x\n  Filter: t.x > 2000\n    TableScan: t");
        assert_eq!(told(&before, &literal), ["`Filter: t.x > 1000` became `Filter: t.x > 2000`"]);
        assert_eq!(told(&before, &changed("version tokenize", "3")), ["tokenize is version 3, was 2"]);
        let mut added = changed("table t", "4 rows in 2 files, snapshot b");
        assert_eq!(told(&before, &added), ["t: a file changed"]);
        added.insert("files t".to_owned(), "2026-03.parquet\n2026-04.parquet".to_owned());
        assert_eq!(told(&before, &added), ["t: 1 file added (2026-04.parquet)"]);
        assert_eq!(told(&added, &before), ["t: 1 file removed (2026-04.parquet)"]);
    }
}
