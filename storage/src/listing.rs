//! Lists the files at a location.
//!
//! A location is one file, a folder or a glob. A folder contains the files below it with one of the format's
//! extensions. A glob contains the files that it matches, with any extension, unless only the extension distinguishes
//! the format. Below the folder, names that begin with `.` or `_` are skipped, as in Spark and Hive: `_SUCCESS`,
//! `.crc`, unfinished output. Several locations of one store together are shown as a glob. Files of a [table with a
//! log](crate::lake) are refused unless each is named.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_diagnostics::nearest;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use globset::{GlobBuilder, GlobMatcher};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::artifact::{ArtifactColumns, KeptBlocks, Verifier, artifact_files};
use crate::extension::has_extension;
use crate::formats::format::FormatDescriptor;
use crate::lake::{LakeTables, check_above};
use crate::pinned::PinnedFile;
use crate::source_file::SourceFile;
use crate::stores::StoreLocation;
use crate::visible::is_visible_name;
use crate::{Error, ErrorKind, Result, Stores};

/// Folders of a store to list at a time.
const FOLDERS_AT_ONCE: usize = 32;
/// Maximum number of folders that are listed one by one.
const LISTED_FOLDERS_MAX: usize = 4096;
/// What a glob has and a name has not.
const WILDCARDS: [char; 4] = ['*', '?', '[', '{'];
/// The wildcards among them. Braces list names.
const UNNAMED: [char; 3] = ['*', '?', '['];

/// The files at `location`, in the order of their paths. For an [artifact](crate::artifact), also its columns.
pub(crate) async fn list(
    stores: &Stores,
    location: &str,
    format: &FormatDescriptor,
) -> Result<(Vec<PinnedFile>, Option<ArtifactColumns>)> {
    let place = stores.locate(location)?;
    let mut columns = None;
    let mut files = match head(&place).await? {
        Some(meta) => {
            let name = meta.location.filename().unwrap_or_default().to_owned();
            vec![pin(&place, meta, &name)]
        }
        None => match split_glob(&place.path) {
            Some((folder, pattern)) => list_glob(&place, &folder, &pattern, format).await?,
            None => match artifact_files(stores, &place, format).await? {
                Some((files, of_artifact)) => {
                    columns = Some(of_artifact);
                    files
                }
                None => list_folder(&place, format).await?,
            },
        },
    };
    files.sort_by(|a, b| a.display.cmp(&b.display));
    Ok((files, columns))
}

/// The files at all of these locations, in the order of their paths, and one glob that names the locations.
pub(crate) async fn list_all(
    stores: &Stores,
    locations: &[String],
    format: &FormatDescriptor,
) -> Result<(String, Vec<PinnedFile>)> {
    let mut places: Vec<StoreLocation> = Vec::new();
    let mut files: Vec<PinnedFile> = Vec::new();
    for location in locations {
        let place = stores.locate(location)?;
        if let Some(first) = places.first().filter(|first| !first.is_of_store(&place)) {
            return Err(Error::invalid(format!(
                "the locations of a table must be in one store, and \"{}\" and \"{}\" are not",
                first.display(),
                place.display()
            )));
        }
        files.append(&mut list(stores, location, format).await?.0);
        places.push(place);
    }
    files.sort_by(|a, b| a.display.cmp(&b.display));
    if let Some(pair) = files.windows(2).find(|pair| pair[0].display == pair[1].display) {
        return Err(Error::invalid(format!("the file \"{}\" is at two of the locations", pair[0].display)));
    }
    let Some(first) = places.first() else { return Err(Error::invalid("a table needs at least one location")) };
    let folder = common_folder(files.iter().map(|file| &file.location));
    for file in &mut files {
        file.relative = visible_below(&folder, &file.location).map(Into::into).ok_or_else(|| {
            Error::invalid(format!("\"{}\" has a name that begins with . or _ on its way", file.display))
        })?;
    }
    let below = |place: &StoreLocation| -> String {
        place
            .path
            .prefix_match(&folder)
            .map_or_else(String::new, |parts| parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/"))
    };
    let named = places.iter().map(below).collect::<Vec<_>>().join(",");
    let glob = format!("{{{named}}}");
    let glob = if folder.as_ref().is_empty() { glob } else { format!("{folder}/{glob}") };
    let glob = Path::parse(glob).map_err(|error| Error::invalid(error.to_string()))?;
    Ok((first.display_of(&glob), files))
}

/// The folder that holds all files, above any name that would be a glob.
fn common_folder<'a>(mut files: impl Iterator<Item = &'a Path>) -> Path {
    let folders = |path: &Path| -> Vec<String> {
        let mut names: Vec<String> = path.as_ref().split('/').map(str::to_owned).collect();
        names.pop();
        names
    };
    let first = files.next().map(folders).unwrap_or_default();
    let is_plain = |name: &&String| !name.contains(WILDCARDS);
    let plain: Vec<String> = first.iter().take_while(is_plain).cloned().collect();
    let shared = files.fold(plain, |shared, file| {
        let other = folders(file);
        shared.iter().zip(&other).take_while(|(a, b)| a == b).map(|(name, _)| name.clone()).collect()
    });
    // The beginning of a path that parsed as a whole.
    Path::parse(shared.join("/")).unwrap_or_default()
}

/// The files of a snapshot of `location`. Does not access them.
pub(crate) fn pinned(stores: &Stores, location: &str, files: &[SourceFile]) -> Result<Vec<PinnedFile>> {
    let place = stores.locate(location)?;
    if place.display() != location {
        return Err(Error::invalid(format!(
            "\"{location}\" is not an absolute path or URL, such as \"{}\"",
            place.display()
        )));
    }
    let glob = split_glob(&place.path);
    let folder = glob.as_ref().map_or(&place.path, |(folder, _)| folder);
    let kept = KeptBlocks::default();
    let pin = |file: &SourceFile| {
        let path = place.path_of(&file.path)?;
        let verifier = match file.content {
            Some(content) => Some(Verifier::of(&path, content, kept.clone())?),
            None => None,
        };
        // As in the listing: if the location is a file, there is no folder, and the path is its name.
        let relative = match path == place.path {
            true => path.filename().map(str::to_owned),
            false => visible_below(folder, &path),
        };
        Some(PinnedFile {
            store: Arc::clone(&place.store),
            display: file.path.as_str().into(),
            relative: relative?.into(),
            location: path,
            size: file.size,
            etag: file.lasting_etag().cloned(),
            modified_ms: file.modified_ms,
            verifier,
            pieces: None,
        })
    };
    let pin_or_refuse = |file| {
        pin(file)
            .ok_or_else(|| Error::invalid(format!("\"{}\" of the snapshot is not under \"{location}\"", file.path)))
    };
    files.iter().map(pin_or_refuse).collect()
}

pub(crate) async fn head(place: &StoreLocation) -> Result<Option<ObjectMeta>> {
    if place.path.as_ref().is_empty() {
        return Ok(None);
    }
    if place.is_pipe_or_device() {
        // Opening a pipe would wait for a writer, and its bytes could be read only once.
        return Err(Error::invalid(format!(
            "\"{}\" is a pipe or device; write its bytes to a file and name that",
            place.display()
        )));
    }
    match place.store.head(&place.path).await {
        Ok(meta) => Ok(Some(meta)),
        Err(e) => match Error::from_store(&place.display(), e) {
            e if e.kind() == ErrorKind::NotFound => Ok(None),
            e => Err(e),
        },
    }
}

async fn list_folder(place: &StoreLocation, format: &FormatDescriptor) -> Result<Vec<PinnedFile>> {
    let mut files = Vec::new();
    let mut others = BTreeSet::new();
    let mut found = false;
    let mut lakes = LakeTables::default();
    let mut listing = objects(place, &place.path).await?;
    while let Some(meta) = listing.try_next().await.map_err(|e| Error::from_store(&place.display(), e))? {
        found = true;
        lakes.see(&place.path, &meta.location);
        let Some(relative) = visible_below(&place.path, &meta.location) else {
            continue;
        };
        if has_extension(&relative, format.extensions) {
            files.push(pin(place, meta, &relative));
        } else {
            others.insert(format!("\"{relative}\""));
            if others.len() > 3 {
                others.pop_last();
            }
        }
    }
    if !files.is_empty() {
        lakes.check(place, &files)?;
        check_above(place, &place.path).await?;
        return Ok(files);
    }
    if !found {
        check_folder_exists(place).await?;
    }
    let there = match others.is_empty() {
        true => String::new(),
        false => {
            let others: Vec<String> = others.into_iter().collect();
            format!("; there are others, such as {}", others.join(", "))
        }
    };
    let name = format.name;
    Err(Error::invalid(format!(
        "no {name} files under \"{}\"{there}; {name} files end in {}",
        place.display(),
        endings(format)
    )))
}

/// All objects below `folder`, in any order. A store lists a page of a thousand after the other, so its folders are
/// listed at the same time.
async fn objects(place: &StoreLocation, folder: &Path) -> Result<BoxStream<'static, object_store::Result<ObjectMeta>>> {
    if place.is_local() {
        return Ok(place.store.list(Some(folder)));
    }
    let top = place.store.list_with_delimiter(Some(folder)).await;
    let ListResult { common_prefixes, objects } = top.map_err(|e| Error::from_store(&place.display(), e))?;
    if common_prefixes.len() > LISTED_FOLDERS_MAX {
        return Ok(place.store.list(Some(folder)));
    }
    let store = Arc::clone(&place.store);
    let below = stream::iter(common_prefixes).map(move |folder| store.list(Some(&folder)));
    let below = below.flatten_unordered(FOLDERS_AT_ONCE);
    Ok(stream::iter(objects.into_iter().map(Ok)).chain(below).boxed())
}

/// The first of the format's extensions.
fn endings(format: &FormatDescriptor) -> String {
    let all = format.extensions;
    let shown: Vec<String> = all.iter().take(4).map(|e| format!(".{e}")).collect();
    let more = if all.len() > shown.len() { " …" } else { "" };
    shown.join(", ") + more
}

async fn list_glob(
    place: &StoreLocation,
    folder: &Path,
    pattern: &str,
    format: &FormatDescriptor,
) -> Result<Vec<PinnedFile>> {
    let matcher = compile_glob(&place.display(), pattern)?;
    let mut files = Vec::new();
    let mut lakes = LakeTables::default();
    let mut listing = objects(place, folder).await?;
    while let Some(meta) = listing.try_next().await.map_err(|e| Error::from_store(&place.display(), e))? {
        lakes.see(folder, &meta.location);
        let Some(relative) = visible_below(folder, &meta.location) else {
            continue;
        };
        let fits = !format.told_by_extension || has_extension(&relative, format.extensions);
        if fits && matcher.is_match(&relative) {
            files.push(pin(place, meta, &relative));
        }
    }
    if files.is_empty() {
        return Err(Error::invalid(format!(
            "no {} files match \"{}\"; check the folder and the pattern",
            format.name,
            place.display()
        )));
    }
    if pattern.contains(UNNAMED) {
        lakes.check(place, &files)?;
        check_above(place, folder).await?;
    }
    Ok(files)
}

pub(crate) fn compile_glob(display: &str, pattern: &str) -> Result<GlobMatcher> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .build()
        .map_err(|e| Error::invalid(format!("\"{display}\" is not a valid glob: {}", e.kind())))?;
    Ok(glob.compile_matcher())
}

/// Splits a path before its first segment with a wildcard, so that only possible matches are listed.
pub(crate) fn split_glob(path: &Path) -> Option<(Path, String)> {
    let segments: Vec<&str> = path.as_ref().split('/').collect();
    let first = segments.iter().position(|s| s.contains(WILDCARDS))?;
    // The path parsed as a whole, so its beginning parses too.
    let folder = Path::parse(segments[..first].join("/")).ok()?;
    Some((folder, segments[first..].join("/")))
}

/// The path of `file` below `folder`, unless the file or a folder on the way is hidden.
pub(crate) fn visible_below(folder: &Path, file: &Path) -> Option<String> {
    let parts: Vec<_> = file.prefix_match(folder)?.collect();
    let names: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    (!names.is_empty() && names.iter().all(|name| is_visible_name(name))).then(|| names.join("/"))
}

fn pin(place: &StoreLocation, meta: ObjectMeta, relative: &str) -> PinnedFile {
    PinnedFile {
        store: Arc::clone(&place.store),
        display: place.display_of(&meta.location).into(),
        relative: relative.into(),
        location: meta.location,
        size: meta.size,
        etag: meta.e_tag,
        modified_ms: meta.last_modified.timestamp_millis(),
        verifier: None,
        pieces: None,
    }
}

/// A local folder can exist without files. In other stores a folder is only a prefix of names.
pub(crate) async fn check_folder_exists(place: &StoreLocation) -> Result<()> {
    let path = place.path.as_ref();
    if path.is_empty() {
        return Ok(());
    }
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let missing = |near: &str| {
        let missing = Error::not_found(format!("\"{}\" does not exist{near}", place.display()));
        match place.is_local() {
            true => missing,
            false => missing.with_hint(format!(
                "check the key, in which case counts; \"{}\" is not the beginning of any key",
                place.path
            )),
        }
    };
    let Ok(parent) = Path::parse(parent) else {
        return Err(missing(""));
    };
    // This listing only affects the hint, so its own failure is not reported.
    let Ok(siblings) = place.store.list_with_delimiter(Some(&parent)).await else {
        return Err(missing(""));
    };
    if siblings.common_prefixes.contains(&place.path) {
        return Ok(());
    }
    let files = siblings.objects.iter().map(|o| &o.location);
    let names = siblings.common_prefixes.iter().chain(files).filter_map(Path::filename);
    match nearest(name, names) {
        Some(near) => Err(missing(&format!("; did you mean \"{near}\"?"))),
        None => Err(missing("")),
    }
}

/// The name with the smallest edit distance, if the distance is small.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_lists_from_its_literal_prefix() {
        let check = |path: &str, expect: Option<(&str, &str)>| {
            let split = split_glob(&Path::parse(path).unwrap());
            let split = split.as_ref().map(|(folder, pattern)| (folder.as_ref(), pattern.as_str()));
            assert_eq!(split, expect, "{path}");
        };
        check("a/b/c.csv", None);
        check("a/b/*.csv", Some(("a/b", "*.csv")));
        check("a/{b,c}/d?.csv", Some(("a", "{b,c}/d?.csv")));
        check("**/x[12].csv", Some(("", "**/x[12].csv")));
    }
}
