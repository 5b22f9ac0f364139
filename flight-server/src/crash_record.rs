//! The windows that a serving process is computing, in a file, so that its successor learns which may have ended it.
//!
//! A row may end the process that computes it, by a crash or for lack of memory. A dispatcher counts lost workers
//! against the windows that they were computing. A dispatcher that computes in its own process ends with its worker,
//! and so leaves this record. A process that stops as it is told leaves none.

use std::path::{Path, PathBuf};

use forebay_delivery::{WindowId, WindowKey};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// The most ended processes to remember.
const ENDED_MAX: usize = 64;
/// The number of leased windows that the process may have begun to compute since the record was written.
const UNWRITTEN_MAX: usize = 2;

/// The record of one serving process.
pub(crate) struct CrashRecord {
    path: PathBuf,
    content: Mutex<Content>,
}

#[derive(Default, Serialize, Deserialize)]
struct Content {
    /// The windows that each earlier process was computing when it ended.
    ended: Vec<Vec<WindowKey>>,
    /// The windows that this process is computing.
    computing: Vec<WindowKey>,
}

impl CrashRecord {
    /// Opens the record of the processes that serve at `port` with this root. Returns `None` if the root is no local
    /// folder, or if each process has another port.
    pub(crate) fn open(root: &str, port: u16) -> Option<Self> {
        if root.contains("://") || port == 0 {
            return None;
        }
        let path = Path::new(root).join(format!("serving-{port}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        // The process may have ended while it wrote.
        let mut content: Content = serde_json::from_str(&text).unwrap_or_default();
        let computing = std::mem::take(&mut content.computing);
        if !computing.is_empty() {
            tracing::warn!(windows = computing.len(), "an earlier process ended while it computed windows");
            content.ended.push(computing);
        }
        let forgotten = content.ended.len().saturating_sub(ENDED_MAX);
        content.ended.drain(..forgotten);
        Some(Self { path, content: Mutex::new(content) })
    }

    /// Returns the windows of a feed that each earlier process was computing, and whether it computed nothing else.
    pub(crate) fn ended(&self, feed: &str) -> Vec<(Vec<WindowId>, bool)> {
        let content = self.content.lock();
        let of_feed = |keys: &Vec<WindowKey>| {
            let windows = keys.iter().filter(|(of, _)| **of == *feed).map(|(_, window)| *window).collect();
            (windows, keys.len() == 1)
        };
        content.ended.iter().map(of_feed).collect()
    }

    /// Writes which windows the process is computing, and those that it will compute next, in order.
    pub(crate) fn write(&self, at_work: Vec<WindowKey>, next: Vec<WindowKey>) {
        let computing: Vec<_> = at_work.into_iter().chain(next.into_iter().take(UNWRITTEN_MAX)).collect();
        let mut content = self.content.lock();
        if content.computing == computing {
            return;
        }
        content.computing = computing;
        let text = serde_json::to_string(&*content).expect("plain data becomes JSON");
        let folder = self.path.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = folder.and_then(|()| std::fs::write(&self.path, text)) {
            tracing::debug!(path = %self.path.display(), %error, "the crash record cannot be written");
        }
    }

    /// Removes the record: the process stops as it was told.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_process_learns_what_an_ended_one_computed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let open = || CrashRecord::open(root.to_str().unwrap(), 7070).unwrap();
        let key = |feed: &str, index| (feed.into(), WindowId { epoch: 1, index });
        let window = |index| WindowId { epoch: 1, index };
        assert!(open().ended("f").is_empty());
        open().write(vec![key("f", 3), key("g", 4)], vec![key("f", 5), key("f", 6), key("f", 7)]);
        let second = open();
        assert_eq!(second.ended("f"), [(vec![window(3), window(5), window(6)], false)]);
        second.write(vec![key("f", 3)], Vec::new());
        let third = open();
        assert_eq!(third.ended("f")[1..], [(vec![window(3)], true)]);
        assert_eq!(third.ended("g"), [(vec![window(4)], false), (vec![], true)]);
        // It ends while it writes, or is told to stop.
        std::fs::write(root.join("serving-7070.json"), "{\"ended\":[[").unwrap();
        assert!(open().ended("f").is_empty());
        third.remove();
        assert!(open().ended("f").is_empty());
        assert!(CrashRecord::open("s3://bucket/root", 7070).is_none());
        assert!(CrashRecord::open(root.to_str().unwrap(), 0).is_none());
    }
}
