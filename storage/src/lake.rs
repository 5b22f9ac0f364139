//! Recognises tables of Delta Lake, Iceberg and Hudi, whose files are not their rows.
//!
//! Such a table keeps a log beside its files. The log says which files, and which of their rows, are of the current
//! version. A reader that only lists the files brings deleted rows back, and reads rewritten rows twice. The names in a
//! listing show the log, so folders cost no further request. Folders above a location are looked at once.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::join_all;
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::ObjectStore;
use object_store::path::Path;

use crate::pinned::PinnedFile;
use crate::stores::StoreLocation;
use crate::{Error, Result};

/// Bounds the search for Iceberg's metadata in a folder of any size: a hundred requests. A table that streams are
/// written to has many thousands of manifests beside it, which local folders list in no order.
const NAMES_MAX: usize = 100_000;

/// A table format of lakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lake {
    Delta,
    Iceberg,
    Hudi,
}

impl Lake {
    const ALL: [Self; 3] = [Self::Delta, Self::Iceberg, Self::Hudi];

    /// The folder of the log, in the table's folder.
    fn log_folder(self) -> &'static str {
        match self {
            Self::Delta => "_delta_log",
            Self::Iceberg => "metadata",
            Self::Hudi => ".hoodie",
        }
    }

    /// Whether a file with this name directly in the folder shows that the folder is a log.
    fn is_log(self, name: &str) -> bool {
        match self {
            // Many plain folders have a subfolder "metadata".
            Self::Iceberg => name == "version-hint.text" || is_iceberg_metadata(name),
            Self::Delta | Self::Hudi => true,
        }
    }

    fn refusal(self, table: &str) -> Error {
        let (name, export) = match self {
            Self::Delta => ("a Delta Lake", "DuckDB's COPY (FROM delta_scan('…')) TO '…', or Python's deltalake"),
            Self::Iceberg => ("an Iceberg", "DuckDB's COPY (FROM iceberg_scan('…')) TO '…', or Python's pyiceberg"),
            Self::Hudi => ("a Hudi", "Spark"),
        };
        Error::invalid(format!(
            "\"{table}\" is {name} table: its log in \"{}\" says which rows are current, and reading all of its files \
             would bring deleted rows back and give rewritten rows twice",
            self.log_folder()
        ))
        .with_hint(format!(
            "write the current version to plain Parquet files, for example with {export}; or, if it has no deleted \
             rows inside files, name its current files one by one"
        ))
    }
}

/// Whether a file is the metadata of a version of an Iceberg table: `v3.metadata.json`, or a number and a UUID. Other
/// tools write files such as `img1.metadata.json`.
fn is_iceberg_metadata(name: &str) -> bool {
    let name = name.strip_suffix(".gz").unwrap_or(name);
    let Some(version) = name.strip_suffix(".metadata.json") else { return false };
    let version = version.strip_suffix(".gz").unwrap_or(version);
    let version = version.strip_prefix('v').unwrap_or(version);
    let (number, id) = version.split_once('-').map_or((version, None), |(number, id)| (number, Some(id)));
    let is_uuid = |id: &str| {
        let digit = |(at, byte): (usize, u8)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        };
        id.len() == 36 && id.bytes().enumerate().all(digit)
    };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) && id.is_none_or(is_uuid)
}

/// The tables that a listing shows, by folder.
#[derive(Debug, Default)]
pub(crate) struct LakeTables(HashMap<String, Lake>);

impl LakeTables {
    /// Looks at the name of a file in the listing of `folder`. A log that is read for itself is not seen.
    pub(crate) fn see(&mut self, folder: &Path, file: &Path) {
        let path = file.as_ref();
        let from = folder.as_ref().len();
        for lake in Lake::ALL {
            let log = lake.log_folder();
            // The name is searched as a text first, because this runs for each of a hundred thousand files.
            let found = path.match_indices(log).find(|(at, _)| {
                let begins = *at >= from && (*at == 0 || path.as_bytes()[at - 1] == b'/');
                let inside = path[at + log.len()..].strip_prefix('/');
                begins && inside.is_some_and(|name| lake.is_log(name))
            });
            if let Some((at, _)) = found {
                self.0.insert(path[..at].trim_end_matches('/').to_owned(), lake);
            }
        }
    }

    /// Refuses files that lie in one of the tables.
    pub(crate) fn check(&self, place: &StoreLocation, files: &[PinnedFile]) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let tables = files.iter().flat_map(|file| {
            let path = file.location.as_ref();
            let folders = std::iter::once("").chain(path.match_indices('/').map(|(at, _)| &path[..at]));
            folders.filter_map(|folder| Some((folder, self.0.get(folder)?)))
        });
        // Local folders are listed in no order, and the error names the same table each time.
        match tables.min_by_key(|(folder, _)| *folder) {
            // The beginning of a path that parsed as a whole.
            Some((folder, lake)) => Err(lake.refusal(&place.display_of(&Path::parse(folder).unwrap_or_default()))),
            None => Ok(()),
        }
    }
}

/// Refuses a folder that lies inside a table. A log itself may be read.
pub(crate) async fn check_above(place: &StoreLocation, folder: &Path) -> Result<()> {
    check_path_above(place, folder).await?;
    match target(place, folder).filter(|target| target != folder) {
        Some(target) => check_path_above(place, &target).await,
        None => Ok(()),
    }
}

/// The folder that a local path with symbolic links leads to.
fn target(place: &StoreLocation, folder: &Path) -> Option<Path> {
    let shown = place.display_of(folder);
    let target = shown.starts_with('/').then(|| std::fs::canonicalize(&shown).ok())??;
    place.path_of(target.to_str()?)
}

async fn check_path_above(place: &StoreLocation, folder: &Path) -> Result<()> {
    let path = folder.as_ref();
    let above = path.match_indices('/').map(|(at, _)| &path[..at]);
    let above: Vec<&str> = std::iter::once("").chain(above).filter(|above| *above != path).collect();
    let is_outside = |lake: Lake, above: &str| {
        let below = path[above.len()..].trim_start_matches('/');
        below.split('/').next() != Some(lake.log_folder())
    };
    let mut looks = Vec::new();
    for (lake, above) in above.iter().flat_map(|above| Lake::ALL.map(|lake| (lake, *above))) {
        let Ok(folder) = Path::parse(above) else { continue };
        if is_outside(lake, above) {
            let log = folder.clone().join(lake.log_folder());
            looks.push(has_log(Arc::clone(&place.store), log, lake).map(move |found| found.then_some((lake, folder))));
        }
    }
    match join_all(looks).await.into_iter().flatten().next() {
        Some((lake, folder)) => Err(lake.refusal(&place.display_of(&folder))),
        None => Ok(()),
    }
}

/// Whether `log` is the folder of a log. A folder that may not be listed counts as another: the location itself may be
/// all that the reader may see.
async fn has_log(store: Arc<dyn ObjectStore>, log: Path, lake: Lake) -> bool {
    // Most manifests stand before a "v" in an ordered listing, and most metadata after it.
    let starts: &[&str] = if lake == Lake::Iceberg { &["v", "0"] } else { &["0"] };
    for start in starts {
        let mut files = match lake {
            Lake::Iceberg => store.list_with_offset(Some(&log), &log.clone().join(*start)),
            Lake::Delta | Lake::Hudi => store.list(Some(&log)),
        }
        .take(NAMES_MAX);
        while let Ok(Some(meta)) = files.try_next().await {
            let below = meta.location.as_ref().strip_prefix(log.as_ref()).and_then(|name| name.strip_prefix('/'));
            if below.is_some_and(|name| lake.is_log(name)) {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_of_iceberg_has_a_version() {
        let id = "1b4e28ba-2fa1-11d2-883f-0016d3cca427";
        for name in ["v1", "v12.gz", "00003", &format!("00003-{id}"), &format!("00003-{id}.gz")] {
            assert!(is_iceberg_metadata(&format!("{name}.metadata.json")), "{name}");
        }
        assert!(is_iceberg_metadata("v1.metadata.json.gz"));
        for name in ["img1", "v", "", "v1-", "00003-x", &format!("a-{id}"), "old/v1", "v1x"] {
            assert!(!is_iceberg_metadata(&format!("{name}.metadata.json")), "{name}");
        }
        assert!(!is_iceberg_metadata("v1.json"));
    }
}
