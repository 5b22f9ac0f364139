//! Room for what a feed keeps, within a limit for all that feeds keep under one root.
//!
//! If there is not enough, what saves least time per byte is deleted. That may take rows from a feed that is being
//! read, which then computes them. What was never measured stays.

use std::collections::BTreeMap;

use forebay_storage::Stores;
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The worth of a folder of kept rows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Worth {
    /// The name of the folder below `cache/`.
    pub(super) folder: String,
    /// Seconds of a thread that a byte saves in each epoch.
    pub(super) seconds_per_byte: f64,
}

/// Makes room for `wanted` bytes of `mine` below `cache/` under the root, which has `limit` bytes for all folders, some
/// of them with known `worths`, which are asked for if there
/// is not enough. Returns the bytes that `mine` may have.
///
/// # Errors
/// Those of listing and deleting.
pub(super) async fn make_room(
    stores: &Stores,
    root: &str,
    mine: &Worth,
    wanted: u64,
    limit: u64,
    worths: impl AsyncFnOnce() -> Result<Vec<Worth>>,
) -> Result<u64> {
    let caches = format!("{root}/cache");
    let mut folders: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
    for object in stores.list(&caches).await? {
        let Some((folder, _)) = object.name.split_once('/').filter(|(folder, _)| *folder != mine.folder) else {
            continue;
        };
        let (bytes, objects) = folders.entry(folder.to_owned()).or_default();
        *bytes += object.bytes;
        objects.push(object.name);
    }
    let mut others: u64 = folders.values().map(|(bytes, _)| bytes).sum();
    if others.saturating_add(wanted) <= limit {
        return Ok(limit - others);
    }
    let worths = worths().await?;
    let worth = |folder: &str| worths.iter().find(|worth| worth.folder == folder).map(|worth| worth.seconds_per_byte);
    let mut victims: Vec<(f64, &String)> = folders.keys().filter_map(|folder| Some((worth(folder)?, folder))).collect();
    victims.retain(|(worth, _)| *worth < mine.seconds_per_byte);
    victims.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (_, folder) in victims {
        if others.saturating_add(wanted) <= limit {
            break;
        }
        let (bytes, objects) = &folders[folder];
        tracing::info!(folder, bytes, "kept rows are deleted: others save more time per byte");
        let urls: Vec<String> = objects.iter().map(|object| format!("{caches}/{object}")).collect();
        let deletes = urls.iter().map(|url| stores.delete(url));
        // What belongs to another user may stay.
        match futures::future::try_join_all(deletes).await {
            Ok(_) => others -= bytes,
            Err(error) => tracing::warn!(folder, %error, "kept rows cannot be deleted"),
        }
    }
    Ok(limit.saturating_sub(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "memory:///root";

    fn worth(folder: &str, seconds_per_byte: f64) -> Worth {
        Worth { folder: folder.to_owned(), seconds_per_byte }
    }

    async fn kept(stores: &Stores) -> Vec<String> {
        stores.list(&format!("{ROOT}/cache")).await.unwrap().into_iter().map(|object| object.name).collect()
    }

    #[tokio::test]
    async fn what_saves_least_per_byte_makes_room() {
        let stores = Stores::new();
        for (name, bytes) in [("poor/1", 40), ("poor/2", 40), ("fair/1", 50), ("rich/1", 30), ("unknown/1", 20)] {
            stores.put(&format!("{ROOT}/cache/{name}"), vec![0; bytes].into()).await.unwrap();
        }
        let worths = [worth("poor", 1.0), worth("fair", 2.0), worth("rich", 9.0)];
        let mine = worth("mine", 5.0);
        let room = |wanted, limit| make_room(&stores, ROOT, &mine, wanted, limit, async || Ok(worths.to_vec()));
        assert_eq!(room(20, 200).await.unwrap(), 20);
        assert_eq!(kept(&stores).await.len(), 5, "there was room");
        assert_eq!(room(60, 200).await.unwrap(), 100);
        assert_eq!(kept(&stores).await, ["fair/1", "rich/1", "unknown/1"]);
        assert_eq!(room(900, 200).await.unwrap(), 150, "the rest is worth more, or unknown");
        assert_eq!(kept(&stores).await, ["rich/1", "unknown/1"]);
        assert_eq!(room(1, 10).await.unwrap(), 0);
    }
}
