//! Windows that are the same in every epoch, kept for the next epoch.
//!
//! Without shuffling and random calls, window k has the same rows in each epoch. Once all of them have been transformed
//! they are kept, so that later epochs and readers only pay for sending. Windows are kept in order of arrival up to a
//! limit. Epochs repeat, so the most recently used window is needed last, and a dataset above the limit still reuses
//! its first part.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_delivery::WindowKey;
use forebay_protocol::OnError;
use parking_lot::Mutex;

use super::super::Feed;
use super::super::window::Window;
use super::chunk::ChunkRows;
use super::prepared::{Chunk, ChunkState, Chunks, Prepared};

/// Whether a window of this feed has the same rows in every epoch, and computing it has no side effects.
pub(super) fn repeats(feed: &Feed) -> bool {
    let settings = feed.settings();
    // Quarantined rows are recorded once per epoch.
    !settings.shuffle && settings.on_error != OnError::Quarantine && feed.uncacheable_calls().is_empty()
}

/// Kept windows, and the bytes of the chunks that will be kept when their window is dropped.
#[derive(Default)]
pub(super) struct Kept {
    /// By feed and index in the epoch.
    windows: HashMap<(Arc<str>, u32), KeptWindow>,
    bytes: u64,
}

struct KeptWindow {
    /// The window without its source rows. Its size is that of its chunks, which also determines how far ahead such
    /// windows are leased.
    window: Window,
    chunk_rows: u64,
    chunks: Vec<Arc<ChunkRows>>,
}

impl Kept {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A window that was kept in an earlier epoch.
    pub(super) fn get(&self, (feed, window): &WindowKey) -> Option<Prepared> {
        let kept = self.windows.get(&(Arc::clone(feed), window.index))?;
        let chunk = |rows: &Arc<ChunkRows>| Chunk { kept: Some(Arc::clone(rows)), is_spent: true, ..Chunk::default() };
        let all = kept.chunks.iter().map(chunk).collect();
        let chunks = Mutex::new(Chunks { all, bytes_max: 0 });
        let window = kept.window.without_sources(sample_bytes(&kept.chunks));
        Some(Prepared { window, chunk_rows: kept.chunk_rows, chunks, was_kept: true })
    }

    /// Reserves memory for a chunk of a repeating window, if keeping it is useful and memory is available.
    pub(super) fn reserve(
        &mut self,
        (feed, window): &WindowKey,
        rows: &Arc<ChunkRows>,
        limit: u64,
    ) -> Option<Arc<ChunkRows>> {
        let is_new = !self.windows.contains_key(&(Arc::clone(feed), window.index));
        (is_new && self.bytes + rows.bytes <= limit).then(|| {
            self.bytes += rows.bytes;
            Arc::clone(rows)
        })
    }

    /// Keeps a repeating window that is being dropped, if all of its chunks are present.
    pub(super) fn retire(&mut self, (feed, id): &WindowKey, prepared: &Prepared, limit: u64) {
        if prepared.was_kept {
            return;
        }
        let chunks = prepared.chunks.lock();
        self.bytes -= chunks.all.iter().filter_map(|chunk| chunk.kept.as_ref()).map(|rows| rows.bytes).sum::<u64>();
        let done = |chunk: &Chunk| match (&chunk.kept, &chunk.state) {
            (Some(rows), _) | (None, ChunkState::Done(Ok(rows))) => Some(Arc::clone(rows)),
            _ => None,
        };
        let Some(chunks) = chunks.all.iter().map(done).collect::<Option<Vec<_>>>() else { return };
        let (window, chunk_rows) = (prepared.window.without_sources(sample_bytes(&chunks)), prepared.chunk_rows);
        let (bytes, key) = (window.bytes(), (Arc::clone(feed), id.index));
        if self.bytes + bytes <= limit && !self.windows.contains_key(&key) {
            self.bytes += bytes;
            self.windows.insert(key, KeptWindow { window, chunk_rows, chunks });
        }
    }

    /// Drops the windows of a feed.
    pub(super) fn close(&mut self, feed: &str) {
        let closed = self.windows.extract_if(|(id, _), _| &**id == feed);
        self.bytes -= closed.map(|(_, kept)| kept.window.bytes()).sum::<u64>();
    }
}

fn sample_bytes(chunks: &[Arc<ChunkRows>]) -> u64 {
    chunks.iter().map(|rows| rows.bytes).sum()
}

#[cfg(test)]
mod tests {
    use arrow::compute::concat_batches;
    use forebay_delivery::{Slice, WindowId};
    use futures::TryStreamExt;

    use super::super::{StoreUsage, WindowStore};
    use super::*;
    use crate::{FeedOptions, Session, digest};

    const ROWS: u64 = 1000;

    /// A session with pipelines over numbers, each with two windows.
    async fn session(folder: &tempfile::TempDir) -> Session {
        for (name, from) in [("a", 0), ("b", ROWS)] {
            let rows: String = (from..from + ROWS).map(|id| format!("{id},{}\n", "x".repeat(100))).collect();
            std::fs::write(folder.path().join(format!("{name}.csv")), format!("id,text\n{rows}")).unwrap();
        }
        let photos = std::fs::read_dir("../examples/photos/cat").unwrap();
        std::fs::create_dir(folder.path().join("photos")).unwrap();
        for photo in photos.take(4) {
            let photo = photo.unwrap();
            std::fs::copy(photo.path(), folder.path().join("photos").join(photo.file_name())).unwrap();
        }
        let session = Session::builder().base(folder.path()).root("memory:///root").threads(2).build().unwrap();
        let with = |name: &str, options: &str, select: &str| {
            format!("CREATE PIPELINE {name} WITH (window_rows = {ROWS}{options}) AS SELECT {select} AS x, id FROM t;")
        };
        let script = [
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '*.csv';".to_owned(),
            with("same", "", "text"),
            with("upper", "", "upper(text)"),
            with("shuffled", ", shuffle = true", "text"),
            "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';".to_owned(),
            "CREATE PIPELINE random WITH (window_rows = 2) AS SELECT random_hflip(decode_image(bytes)) FROM photos;"
                .to_owned(),
            with("quarantined", ", on_error = 'quarantine'", "text"),
        ];
        session.execute("script.sql", &script.concat()).await.unwrap();
        session
    }

    /// Computes a window for one reader and drops it. Returns the digest of its rows.
    async fn pass(store: &WindowStore, feed: &Feed, epoch: u64, index: u32) -> String {
        let window = WindowId { epoch, index };
        let key: WindowKey = (feed.id().into(), window);
        store.start(feed, window);
        let stored = store.get(&key).unwrap();
        let rows = stored.wait().await.unwrap().window.len();
        store.prioritise(&[(key.clone(), 1.0)]);
        let slice = Slice { first: 0, rows, origin: 0, end: u64::MAX, batch_size: 10, rank: 0, world_size: 1 };
        let read: Vec<_> = Arc::clone(&stored).read(slice, 0).await.unwrap().try_collect().await.unwrap();
        store.drop_window(&key);
        let records: Vec<_> = read.into_iter().flat_map(|rows| rows.records).collect();
        digest(&concat_batches(&stored.schema(), &records).unwrap())
    }

    /// Reads both windows in two epochs. Returns the chunks computed in the second, and the usage after it.
    async fn two_epochs(store: &WindowStore, feed: &Feed, is_same: bool) -> (u64, StoreUsage) {
        let mut digests = Vec::new();
        let mut computed = Vec::new();
        for epoch in 0..2 {
            for index in 0..2 {
                digests.push(pass(store, feed, epoch, index).await);
            }
            computed.push(store.usage().chunks_computed);
        }
        assert_eq!(digests[..2] == digests[2..], is_same, "{}", feed.pipeline());
        (computed[1] - computed[0], store.usage())
    }

    #[tokio::test]
    async fn what_repeats_is_computed_once() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(&folder).await;
        let open = |name: &str| session.open(name, &FeedOptions::default()).unwrap();
        for (name, repeats) in
            [("same", true), ("upper", true), ("shuffled", false), ("random", false), ("quarantined", false)]
        {
            let store = session.window_store(4 << 20);
            let (again, usage) = two_epochs(&store, &open(name), !["shuffled", "random"].contains(&name)).await;
            assert_eq!((again == 0, usage.chunk_bytes > 0), (repeats, repeats), "{name}");
            // Approximately the text, its offsets, the numbers and the row positions.
            assert!(usage.chunk_bytes < 2 * ROWS * 150, "{name}: {usage:?}");
            store.close_feed(open(name).id());
            assert_eq!(store.usage().chunk_bytes, 0, "{name}");
        }
    }

    #[tokio::test]
    async fn an_epoch_that_is_read_ahead_shares_rows_with_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(&folder).await;
        for (name, is_shared) in [("same", true), ("shuffled", false)] {
            let feed = session.open(name, &FeedOptions::default()).unwrap();
            let store = session.window_store(4 << 20);
            let stored = [0, 1, 2].map(|epoch| {
                let window = WindowId { epoch, index: 0 };
                store.start(&feed, window);
                store.get(&(feed.id().into(), window)).unwrap()
            });
            let mut windows = Vec::new();
            for stored in &stored {
                windows.push(&stored.wait().await.unwrap().window);
            }
            let shares = |one: usize, other: usize| windows[one].shares_sources(windows[other]);
            assert_eq!([shares(0, 1), shares(0, 2)], [is_shared; 2], "{name}");
        }
    }

    #[tokio::test]
    async fn half_of_the_memory_is_for_what_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(&folder).await;
        let feed = session.open("same", &FeedOptions::default()).unwrap();
        // Memory for one of the two windows.
        let store = session.window_store(2 * 200 * ROWS);
        let (again, usage) = two_epochs(&store, &feed, true).await;
        assert!(again > 0 && again < usage.chunks_computed - again, "{again} of {usage:?}");
        assert!(usage.chunk_bytes > 0 && usage.chunk_bytes <= 200 * ROWS, "{usage:?}");
        // Memory for no window.
        let store = session.window_store(1);
        assert_eq!(two_epochs(&store, &feed, true).await.1.chunk_bytes, 0);
    }
}
