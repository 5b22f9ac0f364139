//! What stores in the cloud do by themselves, on a local disk: keep a finished write through a power failure, and leave
//! nothing of an unfinished one.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use object_store::Error as StoreError;

use crate::stores::StoreLocation;
use crate::{Error, Result};

/// Waits until a local file, and the names of the folders on the way to it, would survive a power failure.
pub(crate) async fn sync(place: &StoreLocation) -> Result<()> {
    on_disk(place, |path| {
        File::open(path)?.sync_all()?;
        // Which of the folders are new is not known. To sync an unchanged one costs little.
        path.ancestors().skip(1).try_for_each(sync_folder)
    })
    .await
}

/// Removes local files that the store began to write under names of its own: those with `part` in their names, or all
/// and also folders without files.
pub(crate) async fn tidy(place: &StoreLocation, part: Option<&str>) -> Result<()> {
    let part = part.map(str::to_owned);
    on_disk(place, move |path| match tidy_folder(path, part.as_deref()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.map(|_| ()),
    })
    .await
}

/// Runs `work` on a local path where it may block. Does nothing for other stores.
async fn on_disk(place: &StoreLocation, work: impl Fn(&Path) -> io::Result<()> + Send + 'static) -> Result<()> {
    if !place.is_local() {
        return Ok(());
    }
    let path = PathBuf::from(place.display());
    let done = match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(move || work(&path)).await.unwrap_or_else(|e| Err(io::Error::other(e))),
        Err(_) => work(&path),
    };
    done.map_err(|error| {
        Error::from_store(&place.display(), StoreError::Generic { store: "local disk", source: error.into() })
    })
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    match synced {
        // Folders that this process may not read are not its own. Some file systems have no sync of folders.
        Err(error) if error.kind() == ErrorKind::PermissionDenied || error.kind() == ErrorKind::InvalidInput => Ok(()),
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        synced => synced,
    }
}

/// Tidies a folder. Returns whether it is empty then.
fn tidy_folder(folder: &Path, part: Option<&str>) -> io::Result<bool> {
    let mut is_empty = true;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_gone = match entry.file_type()?.is_dir() {
            true => tidy_folder(&path, part)? && part.is_none() && std::fs::remove_dir(&path).is_ok(),
            false => is_unfinished(&path, part) && std::fs::remove_file(&path).is_ok(),
        };
        is_empty &= is_gone;
    }
    Ok(is_empty)
}

/// Whether object_store gave this name to a file before its own, and its own has `part` in it.
fn is_unfinished(path: &Path, part: Option<&str>) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let Some((name, number)) = name.split_once('#') else { return false };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number && part.is_none_or(|part| name.contains(part))
}
