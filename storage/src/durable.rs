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

/// Removes local files below a folder that the store began to write under names of its own, if `is_over` says so of
/// their final names below it. Then removes folders without files, if `prune`.
pub(crate) async fn tidy(
    place: &StoreLocation,
    is_over: impl Fn(&str) -> bool + Send + Sync + 'static,
    prune: bool,
) -> Result<()> {
    on_disk(place, move |path| match tidy_folder(path, "", &is_over, prune) {
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

/// Tidies a folder, whose name is `below` with a slash at its end. Returns whether it is empty then.
fn tidy_folder(folder: &Path, below: &str, is_over: &impl Fn(&str) -> bool, prune: bool) -> io::Result<bool> {
    let mut is_empty = true;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let name = format!("{below}{}", entry.file_name().to_string_lossy());
        let is_gone = match entry.file_type()?.is_dir() {
            true => {
                tidy_folder(&path, &format!("{name}/"), is_over, prune)? && prune && std::fs::remove_dir(&path).is_ok()
            }
            false => final_name(&name).is_some_and(is_over) && std::fs::remove_file(&path).is_ok(),
        };
        is_empty &= is_gone;
    }
    Ok(is_empty)
}

/// The name that a file will get, if object_store gave this one to it before.
fn final_name(name: &str) -> Option<&str> {
    let (name, number) = name.rsplit_once('#')?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}
