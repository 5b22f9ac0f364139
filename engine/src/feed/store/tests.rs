//! Tests of computing ahead and of eviction.

use forebay_delivery::Slice;
use futures::TryStreamExt;

use super::*;
use crate::{FeedOptions, Session};

const ROWS: u64 = 1000;

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

#[tokio::test]
async fn chunks_that_were_let_go_wait_until_they_are_asked_for_or_first() {
    let folder = tempfile::tempdir().unwrap();
    for window in 0..3 {
        let rows: String = (0..ROWS).map(|id| format!("{id}\n")).collect();
        std::fs::write(folder.path().join(format!("{window}.csv")), format!("id\n{rows}")).unwrap();
    }
    let session = Session::builder().base(folder.path()).root("memory:///root").threads(1).build().unwrap();
    let script = format!(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '.';
        CREATE PIPELINE p WITH (window_rows = {ROWS}) AS SELECT sleep(id, milliseconds => 0) AS id FROM t;"
    );
    session.execute("script.sql", &script).await.unwrap();
    let feed = session.open("p", &FeedOptions::default()).unwrap();
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
