//! What is computed ahead, and what is let go for it.

use forebay_delivery::Slice;
use futures::TryStreamExt;

use super::*;
use crate::{FeedOptions, Session};

const ROWS: u64 = 1000;

/// Waits until a window is ready.
async fn ready(store: &WindowStore, key: &WindowKey) {
    loop {
        match store.states().into_iter().find(|(at, _)| at == key).unwrap().1 {
            StoredState::Ready { .. } => return,
            StoredState::Failed(error) => panic!("{error}"),
            _ => store.changed().await,
        }
    }
}

#[tokio::test]
async fn chunks_that_were_let_go_are_computed_again_only_for_whoever_asks() {
    let folder = tempfile::tempdir().unwrap();
    for window in 0..2 {
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
    // Room for the chunk of one window, of eight bytes a row.
    let store = WindowStore::new(&session, 12 * ROWS);
    let keys = [0, 1].map(|index| (Arc::from(feed.id()), WindowId { epoch: 0, index }));
    let [near, far] = &keys;
    let stored = |key| store.get(key).unwrap();
    let is_there = |key| {
        let stored = stored(key);
        let prepared = stored.prepared.get().unwrap().as_ref().unwrap();
        let chunks = prepared.chunks.lock();
        assert_eq!(chunks.all.len(), 1);
        matches!(chunks.all[0].state, ChunkState::Done(_))
    };
    let read = async |key| {
        let slice = Slice { first: 0, rows: ROWS, origin: 0, end: u64::MAX, batch_size: 10, rank: 0, world_size: 1 };
        let read: Vec<_> = stored(key).read(slice, 0).await.unwrap().try_collect().await.unwrap();
        assert_eq!(read.iter().map(|rows| rows.rows.end - rows.rows.start).sum::<u64>(), ROWS);
    };

    store.start(&feed, far.1);
    store.prioritise(&[(far.clone(), 1.0)]);
    ready(&store, far).await;
    assert!(is_there(far));
    store.start(&feed, near.1);
    store.prioritise(&[(near.clone(), 2.0), (far.clone(), 1.0)]);
    // It did not fit beside what is there, and takes its room now.
    ready(&store, near).await;
    read(near).await;
    assert_eq!((is_there(near), is_there(far)), (true, false));
    store.drop_window(near);
    let is_absent = {
        let far = stored(far);
        let chunks = far.prepared.get().unwrap().as_ref().unwrap().chunks.lock();
        matches!(chunks.all[0].state, ChunkState::Absent)
    };
    assert!(is_absent, "there is room, and yet it waits");
    ready(&store, far).await;
    read(far).await;
    let usage = store.usage();
    assert_eq!((usage.chunks_computed, usage.chunks_recomputed), (3, 1));
}
