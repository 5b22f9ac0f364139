//! Any number of ranks resumes where any other number stopped, with the same global batches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use forebay_engine::{FeedOptions, ReadOptions, Session};
use forebay_flight_client::{Client, StreamRequest};

use crate::cluster::Cluster;
use crate::support::Folder;

/// Reads a request's batches from a cluster.
async fn read(uri: &str, request: StreamRequest) -> Vec<forebay_engine::Batch> {
    let mut client = Client::connect(uri).await.expect("it listens");
    let mut reader = client.open(&request).await.expect("a feed").read().expect("a reader");
    let mut batches = Vec::new();
    while let Some(batch) = reader.next().await {
        batches.push(batch.expect("a batch"));
    }
    batches
}

/// Epoch, offset and rows of each global batch.
type Global = Vec<((u64, u64), RecordBatch)>;

/// Assembles the global batches from the batches of a job's ranks.
fn global(ranks: Vec<Vec<forebay_engine::Batch>>) -> Global {
    let mut steps = BTreeMap::<_, BTreeMap<u64, RecordBatch>>::new();
    for batch in ranks.into_iter().flatten() {
        steps.entry((batch.epoch, batch.step)).or_default().insert(batch.offset, batch.records);
    }
    let whole = |((epoch, _), parts): ((u64, u64), BTreeMap<u64, RecordBatch>)| {
        let schema = parts.values().next().expect("a part").schema();
        let rows = concat_batches(&schema, parts.values()).expect("one schema");
        ((epoch, *parts.keys().next().expect("a part")), rows)
    };
    steps.into_iter().map(whole).collect()
}

/// World sizes that divide the global batch.
const WORLDS: [u64; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96];
const GLOBAL: u64 = 96;

/// Filtered clicks in windows of sixty rows.
fn elastic(folder: &Folder, rows: u64) -> String {
    let script = folder.clicks(rows);
    let text = std::fs::read_to_string(&script).expect("the script");
    let text =
        text.replace("FROM clicks", "FROM clicks WHERE id % 5 <> 0").replace("WITH (", "WITH (window_rows = 60, ");
    std::fs::write(&script, text).expect("the script");
    script
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_number_of_ranks_goes_on_for_any_other() {
    let folder = Folder::new();
    let script = elastic(&folder, 500);
    let session = Session::builder().threads(2).base(folder.path()).root("memory:///root").build().expect("a session");
    let text = std::fs::read_to_string(&script).expect("the script");
    session.execute("script.sql", &text).await.expect("it runs");
    let feed = session.open("train", &FeedOptions::default()).expect("a feed");
    let job = async |world_size: u64, from: Option<&str>, steps: usize| {
        let read = (0..world_size).map(|rank| ReadOptions {
            batch_size: Some(GLOBAL / world_size),
            epochs: Some(1),
            rank,
            world_size,
            from: from.map(|from| from.parse().expect("a token")).unwrap_or_default(),
            ..ReadOptions::default()
        });
        // All readers open first and then read one after another, so windows are computed once for all.
        let readers: Vec<_> = read.map(|read| feed.read(&read).expect("a reader")).collect();
        let mut ranks = Vec::new();
        for mut reader in readers {
            let mut batches = Vec::new();
            while batches.len() < steps
                && let Some(batch) = reader.next().await
            {
                batches.push(batch.expect("a batch"));
            }
            ranks.push(batches);
        }
        ranks
    };
    let whole = global(job(1, None, usize::MAX).await);
    assert_eq!(whole.len(), 5);
    const SAVED: usize = 2;
    for before in WORLDS {
        let ranks = job(before, None, SAVED).await;
        let tokens: BTreeSet<_> = ranks.iter().map(|rank| rank[SAVED - 1].token.to_string()).collect();
        let token = tokens.first().expect("a rank").clone();
        assert_eq!(tokens.len(), 1, "every rank of {before} has the same token");
        assert!(global(ranks) == whole[..SAVED], "{before} ranks");
        for after in WORLDS {
            let resumed = global(job(after, Some(&token), usize::MAX).await);
            assert!(resumed == whole[SAVED..], "{before} ranks, then {after}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_step_of_an_epoch_is_a_place_to_go_on_from_and_again() {
    let folder = Folder::new();
    let cluster = Cluster::start(&elastic(&folder, 300), 1, 2);
    let uri = cluster.uris();
    let job = async |world_size: u64, global_batch: u64, from: Option<&str>| {
        let ranks = (0..world_size).map(|rank| StreamRequest {
            pipeline: "train".to_owned(),
            batch_size: Some(global_batch / world_size),
            epochs: Some(2),
            rank,
            world_size,
            from: from.map(|from| from.parse().expect("a token")).unwrap_or_default(),
            ..StreamRequest::default()
        });
        let mut tasks = tokio::task::JoinSet::new();
        let uri: Arc<str> = uri.as_str().into();
        for (rank, request) in ranks.enumerate() {
            let uri = Arc::clone(&uri);
            tasks.spawn(async move { (rank, read(&uri, request).await) });
        }
        let mut ranks: Vec<_> = tasks.join_all().await;
        ranks.sort_unstable_by_key(|(rank, _)| *rank);
        ranks.into_iter().map(|(_, batches)| batches).collect::<Vec<_>>()
    };
    let tokens = |ranks: &[Vec<forebay_engine::Batch>]| {
        ranks
            .iter()
            .flatten()
            .map(|batch| ((batch.epoch, batch.step), batch.token.to_string()))
            .collect::<BTreeMap<_, _>>()
    };
    let whole = job(1, 24, None).await;
    let (places, whole) = (tokens(&whole), global(whole));
    let steps = places.keys().filter(|(epoch, _)| *epoch == 0).count();
    assert!(steps > 8 && whole.len() == 2 * steps);
    for (step, token) in places.values().take(steps).enumerate() {
        let first = job([2, 3, 4][step % 3], 24, Some(token)).await;
        let again = tokens(&first);
        assert!(global(first) == whole[step + 1..], "after step {step}");
        // The resumed run saves a state too, after some steps.
        let more = (7 * step + 1) % again.len();
        let token = again.values().nth(more).expect("a step");
        assert!(global(job(1, 24, Some(token)).await) == whole[step + more + 2..], "after step {step} and {more} more");
    }
    // The maximum number of ranks, over the network.
    let whole = global(job(1, GLOBAL, None).await);
    for (before, after) in [(1, 96), (96, 1), (4, 6), (32, 3)] {
        let ranks = job(before, GLOBAL, None).await;
        let token = tokens(&ranks).into_values().nth(1).expect("two steps");
        assert!(global(ranks) == whole, "{before} ranks");
        assert!(global(job(after, GLOBAL, Some(&token)).await) == whole[2..], "{before} ranks, then {after}");
    }
}
