//! The windows that a serving process is computing, in a file, so that its successor learns which may have ended it.
//!
//! A row may end the process that computes it, by a crash or for lack of memory. A dispatcher counts lost workers
//! against the windows that they were computing. A dispatcher that computes in its own process ends with its worker,
//! and so leaves this record. A process that stops as it is told leaves none.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

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
    content: Arc<Mutex<Content>>,
    /// Locked while the file is written or removed.
    writes: Arc<Mutex<()>>,
    /// Tells the thread that writes that the content has changed. A folder on a network may be slow or hang.
    changed: Sender<()>,
    _writer: JoinHandle<()>,
    /// Locked until the process ends: another server must not take its record for that of an ended one.
    _lock: File,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Content {
    /// The windows that each earlier process was computing when it ended, and whether it computed nothing else.
    ended: Vec<(Vec<WindowKey>, bool)>,
    /// The windows that this process is computing.
    computing: Vec<WindowKey>,
    /// Whether the process stops as it was told.
    #[serde(skip)]
    is_removed: bool,
}

impl CrashRecord {
    /// Opens the record of the processes that serve at `address` with this root. Returns `None` if the root is no local
    /// folder, or if another process holds the record.
    pub(crate) fn open(root: &str, address: SocketAddr) -> Option<Self> {
        if root.contains("://") {
            return None;
        }
        let opened = Self::open_in(Path::new(root), address);
        opened.inspect_err(|error| tracing::debug!(root, %error, "no record of crashes")).ok()
    }

    fn open_in(root: &Path, address: SocketAddr) -> std::io::Result<Self> {
        std::fs::create_dir_all(root)?;
        // Machines may share the folder.
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let name = format!("serving-{}-{}-{}", host.trim(), address.ip(), address.port()).replace(['/', ':'], "_");
        let lock =
            OpenOptions::new().write(true).create(true).truncate(false).open(root.join(format!("{name}.lock")))?;
        lock.try_lock().map_err(std::io::Error::from)?;
        let path = root.join(format!("{name}.json"));
        let mut content: Content = match std::fs::read_to_string(&path) {
            Ok(text) => serde_json::from_str(&text).unwrap_or_default(),
            Err(_) => Content::default(),
        };
        let computing = std::mem::take(&mut content.computing);
        if !computing.is_empty() {
            tracing::warn!(windows = computing.len(), "an earlier process ended while it computed windows");
            let is_alone = computing.len() == 1;
            content.ended.push((computing, is_alone));
        }
        let forgotten = content.ended.len().saturating_sub(ENDED_MAX);
        content.ended.drain(..forgotten);
        let content = Arc::new(Mutex::new(content));
        let (changed, changes) = channel();
        let writes = Arc::new(Mutex::new(()));
        let (written, writing, to) = (Arc::clone(&content), Arc::clone(&writes), path.clone());
        let writer = std::thread::Builder::new().name("forebay-record".to_owned()).spawn(move || {
            while changes.recv().is_ok() {
                while changes.try_recv().is_ok() {}
                // `remove` must not come between reading and writing.
                let _alone = writing.lock();
                let content = written.lock().clone();
                if content.is_removed {
                    return;
                }
                if let Err(error) = write(&to, &content) {
                    tracing::debug!(path = %to.display(), %error, "the record of crashes cannot be written");
                }
            }
        })?;
        Ok(Self { path, content, writes, changed, _writer: writer, _lock: lock })
    }

    /// Returns the windows of a feed that each earlier process was computing, and whether it computed nothing else.
    pub(crate) fn ended(&self, feed: &str) -> Vec<(Vec<WindowId>, bool)> {
        let content = self.content.lock();
        let of_feed = |(keys, is_alone): &(Vec<WindowKey>, bool)| {
            (keys.iter().filter(|(of, _)| **of == *feed).map(|(_, window)| *window).collect(), *is_alone)
        };
        content.ended.iter().map(of_feed).collect()
    }

    /// Forgets what ended over a feed's windows from `from` on, because their reader begins again.
    pub(crate) fn forget(&self, feed: &str, from: WindowId) {
        let mut content = self.content.lock();
        content.ended.iter_mut().for_each(|(keys, _)| keys.retain(|(of, window)| **of != *feed || *window < from));
        content.ended.retain(|(keys, _)| !keys.is_empty());
    }

    /// Records which windows the process is computing, and those that it will compute next, in order.
    pub(crate) fn record(&self, at_work: Vec<WindowKey>, next: impl Iterator<Item = WindowKey>) {
        let mut computing = at_work;
        computing.sort_unstable();
        computing.extend(next.take(UNWRITTEN_MAX));
        let mut content = self.content.lock();
        if content.computing != computing {
            content.computing = computing;
            let _ = self.changed.send(());
        }
    }

    /// Removes the record: the process stops as it was told.
    pub(crate) fn remove(&self) {
        let _alone = self.writes.lock();
        self.content.lock().is_removed = true;
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Writes a file as a whole: the process may end at any moment.
fn write(path: &Path, content: &Content) -> std::io::Result<()> {
    let unfinished = path.with_extension("new");
    std::fs::write(&unfinished, serde_json::to_string(content).expect("plain data becomes JSON"))?;
    std::fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7070);

    #[test]
    fn the_next_process_learns_what_an_ended_one_computed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let root = root.to_str().unwrap();
        let open = || CrashRecord::open(root, ADDRESS.into()).unwrap();
        let key = |feed: &str, index| (feed.into(), WindowId { epoch: 1, index });
        let window = |index| WindowId { epoch: 1, index };
        // The end of the process, after its last write.
        let end = |CrashRecord { changed, _writer, .. }: CrashRecord| {
            drop(changed);
            _writer.join().unwrap();
        };
        let first = open();
        assert!(CrashRecord::open(root, ADDRESS.into()).is_none(), "another process holds it");
        assert!(first.ended("f").is_empty());
        first.record(vec![key("f", 3), key("g", 4)], [key("f", 5), key("f", 6), key("f", 7)].into_iter());
        end(first);
        let second = open();
        assert_eq!(second.ended("f"), [(vec![window(3), window(5), window(6)], false)]);
        second.record(vec![key("f", 3)], [].into_iter());
        end(second);
        let third = open();
        assert_eq!(third.ended("f")[1..], [(vec![window(3)], true)]);
        assert_eq!(third.ended("g"), [(vec![window(4)], false), (vec![], true)]);
        third.forget("f", window(4));
        assert_eq!(third.ended("f"), [(vec![window(3)], false), (vec![window(3)], true)]);
        third.forget("g", window(0));
        assert_eq!(third.ended("f"), [(vec![window(3)], false), (vec![window(3)], true)]);
        third.remove();
        end(third);
        assert!(open().ended("f").is_empty());
        assert!(CrashRecord::open("s3://bucket/root", ADDRESS.into()).is_none());
    }
}
