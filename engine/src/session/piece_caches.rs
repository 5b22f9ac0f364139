//! Where a session keeps pieces of remote files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_storage::PieceCache;
use parking_lot::Mutex;

use crate::error::{Error, Result};

/// The caches of a session, by folder. Feeds with the same folder share one.
#[derive(Debug)]
pub(super) struct PieceCaches {
    folder: Option<String>,
    limit: u64,
    open: Mutex<HashMap<PathBuf, Arc<PieceCache>>>,
}

impl PieceCaches {
    /// Caches in `folder`, or else below the root of each feed, of `limit` bytes.
    pub(super) fn new(folder: Option<String>, limit: u64) -> Self {
        Self { folder, limit, open: Mutex::default() }
    }

    /// The most bytes of each.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// The cache of a feed with this root.
    ///
    /// # Errors
    /// `Invalid` if the folder is not on the local disk.
    pub(super) fn of_root(&self, root: &str) -> Result<Arc<PieceCache>> {
        let folder = match &self.folder {
            Some(folder) if folder.contains("://") => {
                let message = format!("\"cache_folder\" must be on the local disk, got \"{folder}\"");
                return Err(Error::invalid(message).with_hint("give a path"));
            }
            Some(folder) => std::path::absolute(folder)
                .map_err(|error| Error::invalid(format!("\"cache_folder\" cannot be \"{folder}\": {error}")))?,
            None => {
                let root = root.strip_prefix("file://").unwrap_or(root);
                if root.contains("://") {
                    let message = format!(
                        "\"cache\" 'source' keeps pieces of files on the local disk, where the root \"{root}\" is not"
                    );
                    return Err(Error::invalid(message).with_hint("set \"cache_folder\" to a folder of the local disk"));
                }
                Path::new(root).join("source")
            }
        };
        let mut open = self.open.lock();
        let cache = open.entry(folder.clone()).or_insert_with(|| Arc::new(PieceCache::new(&folder, self.limit)));
        Ok(Arc::clone(cache))
    }
}
