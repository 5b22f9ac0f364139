//! Tests of computing ahead and of eviction.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use forebay_delivery::Slice;
use futures::{StreamExt, TryStreamExt};

use super::*;
use crate::{FeedOptions, Session};

const ROWS: u64 = 1000;
/// A window of three chunks.
const LARGE_ROWS: u64 = 20_000;

/// Waits until a window is ready.
async fn ready(store: &WindowStore, key: &WindowKey) {
    loop {
        match store.states().into_iter().find(|(at, ..)| at == key).unwrap().1 {
            StoredState::Ready { .. } => return,
            StoredState::Failed(error) => panic!("{error}"),
            _ => store.changed().await,
        }
    }
}

/// Opens a feed of three windows with the ids from 0 to `rows`, in order.
async fn feed_of_three_windows(threads: usize, rows: u64) -> (tempfile::TempDir, Session, Feed) {
    let folder = tempfile::tempdir().unwrap();
    for window in 0..3 {
        let ids: String = (0..rows).map(|id| format!("{id}\n")).collect();
        std::fs::write(folder.path().join(format!("{window}.csv")), format!("id\n{ids}")).unwrap();
    }
    let session = Session::builder().base(folder.path()).root("memory:///root").threads(threads).build().unwrap();
    let script = format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '.';
        CREATE PIPELINE p WITH (window_rows = {rows}) AS SELECT sleep(id, milliseconds => 0) AS id FROM t;"
    );
    session.execute("script.sql", &script).await.unwrap();
    let feed = session.open("p", &FeedOptions::default()).unwrap();
    (folder, session, feed)
}

#[tokio::test]
async fn chunks_that_were_let_go_wait_until_they_are_asked_for_or_first() {
    let (_folder, session, feed) = feed_of_three_windows(1, ROWS).await;
    // Memory for the chunks of two windows, at eight bytes per row.
    let store = session.window_store(20 * ROWS);
    let keys = [0, 1, 2].map(|index| (Arc::from(feed.id()), WindowId { epoch: 0, index }));
    let [near, next, far] = &keys;
    let stored = |key| store.get(key).unwrap();
    let is_there = |key| {
        let stored = stored(key);
        let prepared = stored.prepared.get().unwrap().as_ref().unwrap();
        let chunks = prepared.chunks.lock();
        assert_eq!(chunks.all.len(), 1);
        match chunks.all[0].state {
            ChunkState::Absent => false,
            ChunkState::Done(_) => true,
            ChunkState::Computing { .. } => panic!("nobody waits for it"),
        }
    };
    let read = async |key| {
        let slice = Slice { first: 0, rows: ROWS, origin: 0, end: u64::MAX, batch_size: 10, rank: 0, world_size: 1 };
        let read: Vec<_> = stored(key).read(slice, 0).await.unwrap().try_collect().await.unwrap();
        assert_eq!(read.iter().map(|rows| rows.rows.end - rows.rows.start).sum::<u64>(), ROWS);
    };

    for key in [far, next] {
        store.start(&feed, key.1);
        store.prioritise(&[(next.clone(), 1.0), (far.clone(), 1.0)]);
        ready(&store, key).await;
    }
    assert_eq!((is_there(next), is_there(far)), (true, true));
    let order = keys.each_ref().map(|key| (key.clone(), if key == near { 2.0 } else { 1.0 }));
    store.prioritise(&order);
    store.start(&feed, near.1);
    // It does not fit beside the chunks in memory, and evicts others when it is read.
    ready(&store, near).await;
    read(near).await;
    assert_eq!((is_there(near), is_there(next), is_there(far)), (true, true, false));
    read(near).await;
    assert_eq!(
        (is_there(near), is_there(next), is_there(far)),
        (false, true, false),
        "there is room, and yet it waits"
    );
    store.drop_window(near);
    store.drop_window(next);
    // The first window to be read is computed ahead, even if it was evicted before.
    while store.usage().chunks_computed < 4 {
        store.changed().await;
    }
    assert!(is_there(far));
    let usage = store.usage();
    assert_eq!((usage.chunks_computed, usage.chunks_recomputed), (4, 1));
}

/// Numbers of a linear congruential generator.
struct Draws(u64);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn key(&mut self, feed: &Feed) -> WindowKey {
        (Arc::from(feed.id()), WindowId { epoch: self.below(3), index: self.below(3) as u32 })
    }
}

type Rows = futures::stream::BoxStream<'static, crate::Result<WindowRows>>;

/// A reader in the middle of a window, and its next row.
struct Reader {
    rows: Rows,
    next: u64,
}

impl Reader {
    async fn open(stored: Arc<StoredWindow>, from: u64) -> Self {
        let slice =
            Slice { first: 0, rows: LARGE_ROWS, origin: 0, end: u64::MAX, batch_size: 3000, rank: 0, world_size: 1 };
        Self { rows: stored.read(slice, from).await.unwrap().boxed(), next: from }
    }

    /// Reads the next rows, and returns whether there were any.
    async fn read(&mut self, seed: u64) -> bool {
        let waited = tokio::time::timeout(Duration::from_secs(60), self.rows.next()).await;
        let Some(rows) = waited.unwrap_or_else(|_| panic!("seed {seed}: row {} does not come", self.next)) else {
            assert_eq!(self.next, LARGE_ROWS, "seed {seed}");
            return false;
        };
        let rows = rows.unwrap();
        assert_eq!(rows.rows.start, self.next, "seed {seed}");
        let ids =
            rows.records.iter().flat_map(|records| records.column(0).as_primitive::<Int64Type>().values().to_vec());
        assert!(ids.eq((rows.rows.start..rows.rows.end).map(|id| id as i64)), "seed {seed}");
        self.next = rows.rows.end;
        true
    }
}

/// Whatever is leased, dropped, ordered and read when: every reader gets every row, and no memory is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_get_every_row_whatever_the_store_evicts() {
    let (_folder, session, feed) = feed_of_three_windows(2, LARGE_ROWS).await;
    for seed in 0..12 {
        let mut draws = Draws(seed);
        // From a part of a window to all that is held.
        let store = session.window_store((1 + draws.below(12)) * LARGE_ROWS * 8 / 3);
        let mut readers: Vec<Reader> = Vec::new();
        for _ in 0..60 {
            match draws.below(8) {
                0 | 1 => {
                    let key = draws.key(&feed);
                    if store.get(&key).is_none() {
                        store.start(&feed, key.1);
                    }
                }
                2 => store.drop_window(&draws.key(&feed)),
                3 => {
                    let order = (0..draws.below(6)).map(|_| (draws.key(&feed), draws.below(4) as f64 / 2.0));
                    store.prioritise(&order.collect::<Vec<_>>());
                }
                4 => {
                    if let Some(stored) = store.get(&draws.key(&feed)) {
                        readers.push(Reader::open(stored, draws.below(LARGE_ROWS)).await);
                    }
                }
                5 if !readers.is_empty() => drop(readers.swap_remove(draws.below(readers.len() as u64) as usize)),
                _ if !readers.is_empty() => {
                    let at = draws.below(readers.len() as u64) as usize;
                    if !readers[at].read(seed).await {
                        readers.swap_remove(at);
                    }
                }
                _ => {}
            }
        }
        for reader in &mut readers {
            while reader.read(seed).await {}
        }
        (0..9).for_each(|at| {
            store.drop_window(&(Arc::from(feed.id()), WindowId { epoch: at / 3, index: at as u32 % 3 }))
        });
        store.close_feed(feed.id());
        let usage = store.usage();
        assert_eq!((usage.chunk_bytes, usage.source_bytes), (0, 0), "seed {seed}");
    }
}
