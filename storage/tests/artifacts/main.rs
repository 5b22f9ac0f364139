//! Artifacts: what a job gives, whatever happens to it, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crashes;
mod flips;
mod garbage;
mod protocol;
mod support;
mod tables;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use forebay_storage::artifact::{Artifact, Catalog, Claim, Job, JobState, SILENCE, gc, holder};
use forebay_storage::faults::{FaultRates, Faults};
use forebay_storage::{Dataset, ErrorKind, Stores};
use support::{PARTS, ROWS, at_once, lineage, run, write_part};

/// A folder in memory and one on disk.
fn folders() -> (tempfile::TempDir, [String; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let url = folder.path().canonicalize().unwrap().join("root").to_str().unwrap().to_owned();
    (folder, [url, "memory:///root".to_owned()])
}

async fn opened(stores: &Stores, url: &str, id: &str) -> Job {
    match Job::open(stores, url, id).await.unwrap() {
        JobState::Open(job) => job,
        JobState::Committed(artifact) => panic!("{artifact:?}"),
    }
}

#[tokio::test]
async fn a_job_gives_an_artifact_once() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let url = format!("{root}/artifacts/a");
        let artifact = run(&stores, &root, &url, "job1", "p").await.unwrap();
        let manifest = artifact.manifest();
        let (rows_out, bad_rows) = (PARTS * ROWS, PARTS);
        assert_eq!((manifest.rows_in, manifest.rows_out, manifest.bad_rows), (rows_out + bad_rows, rows_out, bad_rows));
        assert_eq!(manifest.bad_reasons["not a number"], PARTS);
        assert_eq!(manifest.lineage, lineage().sources);
        assert_eq!((artifact.url(), artifact.generation()), (&*url, 1));
        let again = run(&stores, &root, &url, "job1", "q").await.unwrap();
        assert_eq!(again.manifest(), manifest);
        assert_eq!(Artifact::open(&stores, &url).await.unwrap().manifest(), manifest);
        support::no_orphans(&stores, &url).await.unwrap();
    }
}

#[tokio::test]
async fn a_folder_of_others_is_refused_by_name() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let check = async |url: &str, expected: &str| {
            let error = Job::open(&stores, url, "job2").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert_eq!(error.to_string(), format!("\"{url}\" {expected}"));
        };
        let url = format!("{root}/foreign");
        stores.put(&format!("{url}/sub/mine.csv"), "a\n1\n".into()).await.unwrap();
        check(&url, "holds \"sub/mine.csv\", which the job job2 has not written").await;

        let url = format!("{root}/other");
        let job = opened(&stores, &url, "job1").await;
        job.claim("p", &at_once).await.unwrap().unwrap();
        check(&url, "is being written by the job job1, or that job was never finished; this is job job2").await;

        run(&stores, &root, &url, "job1", "p").await.unwrap();
        check(&url, "holds the artifact of the job job1, and this is job job2").await;
    }
    let error = Job::open(&stores, "memory:///x", "../x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn of_two_jobs_in_one_folder_one_is_committed() {
    let stores = Stores::new();
    let url = "memory:///root/artifacts/a";
    let (one, other) = (opened(&stores, url, "job1").await, opened(&stores, url, "job2").await);
    for job in [&one, &other] {
        job.claim("p", &at_once).await.unwrap().unwrap();
        for number in 0..PARTS {
            job.record(number, write_part(job, number, "parquet").await.unwrap()).await.unwrap();
        }
    }
    let commit =
        async |job: &Job| job.commit(job.manifest(&job.parts().await.unwrap(), lineage()).unwrap(), Vec::new()).await;
    commit(&one).await.unwrap();
    let error = commit(&other).await.unwrap_err();
    assert_eq!(error.to_string(), format!("\"{url}\" holds the artifact of the job job1, and this is job job2"));
    support::no_orphans(&stores, url).await.unwrap();
}

#[tokio::test]
async fn the_first_record_of_a_part_counts() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    let part = write_part(&job, 0, "parquet").await.unwrap();
    let slower = forebay_storage::artifact::Part { costs: serde_json::json!({"seconds": 9}), ..part.clone() };
    assert_eq!(job.record(0, part.clone()).await.unwrap(), part);
    assert_eq!(job.record(0, slower).await.unwrap(), part);
    let mut other = job.create("part-000000", "parquet").unwrap();
    other.write("other bytes".into()).await.unwrap();
    let files = vec![other.finish(ROWS).await.unwrap()];
    let error = job.record(0, forebay_storage::artifact::Part { files, ..part }).await.unwrap_err();
    assert!(error.to_string().contains("was written twice with different content"), "{error}");
}

#[tokio::test]
async fn rows_must_add_up() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    let mut part = write_part(&job, 0, "parquet").await.unwrap();
    part.rows_in += 1;
    let error = job.manifest(&[(0, part)].into(), lineage()).unwrap_err();
    let expected = "the job job1 cannot be committed: 42 rows were read, but 40 were written and 1 were bad";
    assert_eq!((error.to_string().as_str(), error.kind()), (expected, ErrorKind::Internal));
}

#[tokio::test]
async fn a_claim_is_taken_from_a_silent_process_only() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    let mut claim = job.claim("p", &at_once).await.unwrap().unwrap();
    assert!(claim.beat().await.unwrap());
    // A sign comes while the other process watches.
    let watched = std::sync::Mutex::new(Some(claim));
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let (sender, receiver) = (std::sync::Mutex::new(Some(sender)), std::sync::Mutex::new(Some(receiver)));
    let wait = |_| {
        use futures::FutureExt;
        let receiver = receiver.lock().unwrap().take().unwrap();
        async move { receiver.await.unwrap() }.boxed()
    };
    let watching = job.claim("q", &wait);
    let beating = async {
        let mut claim = watched.lock().unwrap().take().unwrap();
        assert!(claim.beat().await.unwrap());
        sender.lock().unwrap().take().unwrap().send(()).unwrap();
        claim
    };
    let (taken, mut claim) = tokio::join!(watching, beating);
    assert!(taken.unwrap().is_none());
    let mut taken = job.claim("q", &at_once).await.unwrap().unwrap();
    assert!(!claim.beat().await.unwrap());
    assert!(taken.beat().await.unwrap());
}

/// The time that a claim waits.
async fn waited(job: &Job, holder: &str) -> (Option<Claim>, Duration) {
    let waited = Mutex::new(Duration::ZERO);
    let wait = |time| {
        *waited.lock().unwrap() += time;
        at_once(time)
    };
    let claim = job.claim(holder, &wait).await.unwrap();
    (claim, waited.into_inner().unwrap())
}

#[tokio::test]
async fn a_claim_that_was_released_is_not_waited_for() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let job = opened(&stores, &format!("{root}/a"), "job1").await;
        let (first, time) = waited(&job, "p").await;
        assert_eq!(time, Duration::ZERO);
        first.unwrap().release().await.unwrap();
        let (second, time) = waited(&job, "q").await;
        assert_eq!(time, Duration::ZERO);
        let mut second = second.unwrap();
        assert!(second.beat().await.unwrap());
        let (third, time) = waited(&job, "r").await;
        assert_eq!(time, SILENCE);
        // It is not the second's to release any more.
        second.release().await.unwrap();
        assert!(third.unwrap().beat().await.unwrap());
        assert_eq!(waited(&job, "s").await.1, SILENCE);
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_claim_of_a_process_that_ended_here_is_not_waited_for() {
    let stores = Stores::new();
    // This process, and an earlier one with its id.
    let living = holder().unwrap();
    let parts: Vec<&str> = living.split('/').collect();
    let (host, id, start) = (parts[0], parts[1], parts[2]);
    let ended = format!("{host}/{id}/{start}1/0");
    let elsewhere = format!("{host}x/{id}/{start}1/0");
    for (before, expected) in [(&living, SILENCE), (&ended, Duration::ZERO), (&elsewhere, SILENCE)] {
        let job = opened(&stores, &format!("memory:///{}", blake3::hash(before.as_bytes())), "job1").await;
        assert_eq!(waited(&job, before).await.1, Duration::ZERO);
        let (claim, time) = waited(&job, &holder().unwrap()).await;
        assert_eq!((claim.is_some(), time), (true, expected), "{before}");
    }
}

#[tokio::test]
async fn a_damaged_claim_is_watched() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    stores.put("memory:///a/_forebay/jobs/job1/1/claims/00000003", "".into()).await.unwrap();
    let (claim, time) = waited(&job, "p").await;
    assert_eq!(time, SILENCE);
    assert!(claim.unwrap().beat().await.unwrap());
}

#[tokio::test]
async fn an_index_is_there_once_the_artifact_is_committed() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let url = format!("{root}/a");
        let place = format!("{url}/index.json");
        let job = opened(&stores, &url, "job1").await;
        job.claim("p", &at_once).await.unwrap().unwrap();
        for number in 0..PARTS {
            job.record(number, write_part(&job, number, "jsonl").await.unwrap()).await.unwrap();
        }
        let parts = job.parts().await.unwrap();
        let commit = async |index| job.commit(job.manifest(&parts, lineage()).unwrap(), index).await;
        for (name, why) in [
            ("_index", "\"_index\" is not a name for an index"),
            ("../index", "\"../index\" is not a name for an index"),
            ("index-0123abcd.json", "\"index-0123abcd.json\" is not a name for an index"),
            ("index", "the index \"index\" comes twice or out of order"),
        ] {
            let error =
                commit(vec![("index".to_owned(), "x".into()), (name.to_owned(), "y".into())]).await.unwrap_err();
            assert_eq!(error.to_string(), format!("the job job1 cannot be committed: {why}"));
            assert_eq!(error.kind(), ErrorKind::Invalid);
        }
        assert_eq!(stores.get(&place).await.unwrap_err().kind(), ErrorKind::NotFound);

        let index = support::index(&parts);
        let artifact = commit(index.clone()).await.unwrap();
        assert_eq!(stores.get(&place).await.unwrap(), index[0].1);
        let [file] = &artifact.manifest().index[..] else { panic!("{artifact:?}") };
        assert_eq!((file.name.as_str(), file.bytes), ("index.json", index[0].1.len() as u64));
        // Another process commits the same.
        assert_eq!(commit(index.clone()).await.unwrap().manifest(), artifact.manifest());
        support::no_orphans(&stores, &url).await.unwrap();
        // Readers of the rows do not take it for data.
        let dataset = Dataset::open(&stores, &support::spec(&url, "jsonl")).await.unwrap();
        assert_eq!(support::read(&dataset).await.unwrap(), support::expected());

        // What is missing or another's is replaced when the job is run again.
        for damage in ["another", ""] {
            match damage {
                "" => stores.delete(&place).await.unwrap(),
                other => stores.put(&place, other.into()).await.unwrap(),
            }
            let JobState::Committed(_) = Job::open(&stores, &url, "job1").await.unwrap() else { panic!("{url}") };
            assert_eq!(stores.get(&place).await.unwrap(), index[0].1);
        }
    }
}

#[tokio::test]
async fn the_index_of_an_artifact_that_was_removed_is_not_the_next_ones() {
    let stores = Stores::new();
    let (root, url, place) = ("memory:///root", "memory:///root/artifacts/a", "memory:///root/artifacts/a/index.json");
    let first = run(&stores, root, url, "job1", "p").await.unwrap();
    let index = stores.get(place).await.unwrap();
    let catalog = Catalog::new(&stores, root).unwrap();
    for entry in catalog.entries().await.unwrap() {
        catalog.remove(&entry).await.unwrap();
    }
    gc(&stores, root, false, &at_once).await.unwrap();
    assert_eq!(stores.get(place).await.unwrap_err().kind(), ErrorKind::NotFound);
    // It arrives late. Another job replaces it by its own, or removes it if it has none.
    stores.put(place, index.clone()).await.unwrap();
    let second = run(&stores, root, url, "job2", "p").await.unwrap();
    assert_eq!((first.generation(), second.generation()), (1, 3));
    assert_ne!(stores.get(place).await.unwrap(), index);
    support::no_orphans(&stores, url).await.unwrap();

    for entry in catalog.entries().await.unwrap() {
        catalog.remove(&entry).await.unwrap();
    }
    gc(&stores, root, false, &at_once).await.unwrap();
    stores.put(place, index).await.unwrap();
    let job = opened(&stores, url, "job3").await;
    job.commit(job.manifest(&BTreeMap::new(), lineage()).unwrap(), Vec::new()).await.unwrap();
    support::no_orphans(&stores, url).await.unwrap();
    assert_eq!(stores.get(place).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_job_killed_before_or_after_its_commit_gives_its_index_when_it_is_run_again() {
    let (_folder, roots) = folders();
    for root in roots {
        let (counted, faults) = Faults::over(&Stores::new(), FaultRates::NONE, 0);
        run(&counted, &root, &format!("{root}/count"), "job1", "p").await.unwrap();
        let (mut before, mut between) = (0, 0);
        for request in 0..faults.requests() {
            for happens in [false, true] {
                let (stores, url) = (Stores::new(), format!("{root}/{request}-{happens}"));
                let (killed, _) = Faults::crash(&stores, request, happens);
                let is_done = run(&killed, &root, &url, "job1", "p").await.is_ok();
                let is_committed = matches!(Artifact::find(&stores, &url).await, Ok(Some(_)));
                let there = stores.get(&format!("{url}/index.json")).await;
                assert!(is_committed || there.is_err(), "{request}: an index of no artifact");
                assert!(!is_done || there.is_ok(), "{request}: a job without its index");
                let kept = stores.list(&format!("{url}/_forebay/jobs/job1/1/index")).await.unwrap();
                before += u64::from(!is_committed && !kept.is_empty());
                between += u64::from(is_committed && there.is_err());
                let artifact = run(&stores, &root, &url, "job1", "q").await.unwrap();
                let index = stores.get(&format!("{url}/index.json")).await.unwrap();
                assert_eq!(index.len() as u64, artifact.manifest().index[0].bytes);
                assert!(String::from_utf8_lossy(&index).contains(&artifact.manifest().files[0].name));
                support::no_orphans(&stores, &url).await.unwrap();
            }
        }
        assert!(before > 0 && between > 0, "{before} {between}");
    }
}

#[tokio::test]
async fn an_unfinished_folder_is_no_table_and_no_artifact() {
    let stores = Stores::new();
    let (root, url) = ("memory:///root", "memory:///root/artifacts/a");
    assert!(Artifact::find(&stores, url).await.unwrap().is_none());
    let job = opened(&stores, url, "job1").await;
    job.claim("p", &at_once).await.unwrap().unwrap();
    job.record(0, write_part(&job, 0, "parquet").await.unwrap()).await.unwrap();
    let opening = support::open_and_read(&stores, url).await.unwrap_err();
    for error in [Artifact::find(&stores, url).await.unwrap_err(), opening] {
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.to_string(), format!("\"{url}\" is being written by a job, or its job was never finished"));
        assert_eq!(error.hint(), Some("run the job again to finish it"));
    }
    run(&stores, root, url, "job1", "p").await.unwrap();
    assert_eq!(support::open_and_read(&stores, url).await.unwrap(), support::expected());
}
