//! A process is killed with every single request of a job: there is a complete artifact or none, the next run completes
//! it, and garbage collection leaves nothing behind.

use std::collections::BTreeMap;

use bytes::Bytes;
use forebay_storage::artifact::{Artifact, Catalog, Job, JobState, Part, gc};
use forebay_storage::faults::{FaultRates, Faults};
use forebay_storage::{ErrorKind, Stores};
use serde_json::Value;

use super::support::{FINGERPRINT, PARTS, at_once, expected, lineage, no_orphans, open_and_read, run, write_part};
use super::{folders, opened};

#[tokio::test]
async fn a_job_killed_at_any_request_is_complete_or_nothing() {
    let (_folder, roots) = folders();
    for (place, root) in roots.iter().enumerate() {
        let (counted, faults) = Faults::over(&Stores::new(), FaultRates::NONE, 0);
        run(&counted, &format!("{root}/count"), &format!("{root}/count/artifacts/a"), "job1", "p").await.unwrap();
        let requests = faults.requests();
        assert!(requests > 20, "{requests}");
        let (mut unfinished, mut finished) = (0, 0);
        for request in 0..requests {
            for happens in [false, true] {
                let root = format!("{root}/{request}-{happens}");
                let url = format!("{root}/artifacts/a");
                let stores = Stores::new();
                let (killed, _) = Faults::crash(&stores, request, happens);
                // After its commit, a job only cleans up.
                let is_done = run(&killed, &root, &url, "job1", "p").await.is_ok();
                let at = format!("{place} {request} {happens}");
                let found = Artifact::find(&stores, &url).await;
                match found {
                    Ok(Some(_)) => {
                        finished += 1;
                        assert_eq!(open_and_read(&stores, &url).await.unwrap(), expected(), "{at}");
                    }
                    Ok(None) | Err(_) => {
                        unfinished += 1;
                        assert!(!is_done, "{at}");
                        open_and_read(&stores, &url).await.unwrap_err();
                    }
                }
                // Half of the jobs are run again at once, and the others are collected first.
                if request % 2 == 0 {
                    run(&stores, &root, &url, "job1", "q").await.unwrap();
                    gc(&stores, &root, false, &at_once).await.unwrap();
                } else {
                    gc(&stores, &root, false, &at_once).await.unwrap();
                    no_orphans(&stores, &url).await.unwrap();
                    run(&stores, &root, &url, "job1", "q").await.unwrap();
                    gc(&stores, &root, false, &at_once).await.unwrap();
                }
                assert_eq!(open_and_read(&stores, &url).await.unwrap(), expected(), "{at}");
                no_orphans(&stores, &url).await.unwrap_or_else(|why| panic!("{at}: {why}"));
                let catalog = Catalog::new(&stores, &root).unwrap();
                assert_eq!(catalog.find(FINGERPRINT).await.unwrap().unwrap().url(), url);
                // Without an entry, nothing of it stays.
                for entry in catalog.entries().await.unwrap() {
                    catalog.remove(&entry).await.unwrap();
                }
                gc(&stores, &root, false, &at_once).await.unwrap();
                no_orphans(&stores, &url).await.unwrap_or_else(|why| panic!("{at}: {why}"));
                let left = stores.list(&url).await.unwrap();
                assert!(left.iter().all(|object| object.name.starts_with("_forebay/generations/")), "{left:?}");
            }
        }
        assert!(unfinished > 30 && finished > 2, "{unfinished} {finished}");
    }
}

/// A file that is written in several requests is there as a whole, or not at all.
#[tokio::test]
async fn a_job_killed_in_a_large_file_is_complete_or_nothing() {
    let (_folder, roots) = folders();
    let piece = Bytes::from("0123456789abcde\n".repeat(1 << 16));
    let (pieces, rows) = (17, 17 << 16);
    let write = async |stores: &Stores, url: &str| {
        let job = match Job::open(stores, url, "job1").await? {
            JobState::Committed(artifact) => return Ok(artifact),
            JobState::Open(job) => job,
        };
        job.claim("p", &at_once).await?.expect("nobody else gives a sign");
        if job.parts().await?.is_empty() {
            let mut file = job.create("part-000000", "csv")?;
            for _ in 0..pieces {
                file.write(piece.clone()).await?;
            }
            let (costs, facts, bad_reasons) = (Value::Null, Value::Null, BTreeMap::new());
            let files = vec![job.complete(0, file, rows).await?];
            job.record(0, Part { files, rows_in: rows, bad_rows: 0, bad_reasons, costs, facts }).await?;
        }
        job.commit(job.manifest(&job.parts().await?, lineage())?, Vec::new()).await
    };
    for root in roots {
        let (counted, faults) = Faults::over(&Stores::new(), FaultRates::NONE, 0);
        write(&counted, &format!("{root}/count")).await.unwrap();
        for request in 0..faults.requests() {
            for happens in [false, true] {
                let (stores, root) = (Stores::new(), format!("{root}/{request}-{happens}"));
                let url = format!("{root}/artifacts/a");
                let (killed, _) = Faults::crash(&stores, request, happens);
                let is_done = write(&killed, &url).await.is_ok();
                let objects = stores.list(&url).await.unwrap();
                let mut data = objects.iter().filter(|object| object.name.starts_with("part-"));
                assert!(data.all(|object| object.bytes == pieces * piece.len() as u64), "{objects:?}");
                assert!(!is_done || Artifact::find(&stores, &url).await.unwrap().is_some());
                let artifact = write(&stores, &url).await.unwrap();
                assert_eq!(artifact.manifest().files[0].bytes, pieces * piece.len() as u64);
                no_orphans(&stores, &url).await.unwrap();
                gc(&stores, &root, false, &at_once).await.unwrap();
                no_orphans(&stores, &url).await.unwrap();
                let staged = std::fs::read_dir(&url).into_iter().flatten().map(|entry| entry.unwrap().file_name());
                let staged: Vec<_> = staged.filter(|name| name.to_string_lossy().contains('#')).collect();
                assert!(staged.is_empty(), "{request}: {staged:?}");
            }
        }
    }
}

/// The collector may be killed too.
#[tokio::test]
async fn a_collector_killed_at_any_request_leaves_what_the_next_one_removes() {
    for request in 0.. {
        let mut is_over = true;
        for happens in [false, true] {
            let (root, stores) = ("memory:///root", Stores::new());
            let url = |name: &str| format!("{root}/artifacts/{name}");
            for name in ["kept", "unnamed"] {
                run(&stores, root, &url(name), "job1", "p").await.unwrap();
            }
            let catalog = Catalog::new(&stores, root).unwrap();
            for entry in catalog.entries().await.unwrap().iter().filter(|entry| entry.url == url("unnamed")) {
                catalog.remove(entry).await.unwrap();
            }
            let (killed, _) = Faults::crash(&stores, 20, true);
            run(&killed, root, &url("unfinished"), "job1", "p").await.unwrap_err();
            let (killed, _) = Faults::crash(&stores, request, happens);
            is_over &= gc(&killed, root, false, &at_once).await.is_ok();
            gc(&stores, root, false, &at_once).await.unwrap();
            for name in ["kept", "unnamed", "unfinished"] {
                no_orphans(&stores, &url(name)).await.unwrap_or_else(|why| panic!("{request} {happens}: {why}"));
            }
            assert_eq!(open_and_read(&stores, &url("kept")).await.unwrap(), expected());
            open_and_read(&stores, &url("unnamed")).await.unwrap_err();
            run(&stores, root, &url("unfinished"), "job1", "p").await.unwrap();
            assert_eq!(open_and_read(&stores, &url("unfinished")).await.unwrap(), expected());
        }
        if is_over {
            assert!(request > 20, "{request}");
            return;
        }
    }
}

/// The store's answer to the commit is lost, and then the store is gone or answers again.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_read_back() {
    let (_, [_, root]) = folders();
    for is_read_back in [true, false] {
        for happens in [true, false] {
            let (stores, url) = (Stores::new(), format!("{root}/{is_read_back}-{happens}"));
            let job = opened(&stores, &url, "job1").await;
            job.claim("p", &at_once).await.unwrap().unwrap();
            for number in 0..PARTS {
                job.record(number, write_part(&job, number, "parquet").await.unwrap()).await.unwrap();
            }
            let manifest = job.manifest(&job.parts().await.unwrap(), lineage()).unwrap();
            let before = stores.list(&url).await.unwrap();
            // The commit is the first request after that of `attach`.
            let rates = match happens {
                true => FaultRates { lost: 1000, ..FaultRates::NONE },
                false => FaultRates { late: 1000, ..FaultRates::NONE },
            };
            let (faulty, faults) = match is_read_back {
                true => Faults::over(&stores, rates, 0),
                false => Faults::crash(&stores, 1, happens),
            };
            let job = Job::attach(&faulty, &url, "job1", job.generation()).await.unwrap();
            let committed = job.commit(manifest.clone(), Vec::new()).await;
            if is_read_back && happens {
                assert_eq!(*committed.unwrap().manifest(), manifest);
                continue;
            }
            let error = committed.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("was written is unknown"), "{error}");
            // Nothing is removed.
            let after = stores.list(&url).await.unwrap();
            assert!(before.iter().all(|object| after.contains(object)), "{after:?}");
            faults.settle().await;
            let artifact = run(&stores, &root, &url, "job1", "q").await.unwrap();
            assert_eq!(artifact.generation(), 1);
            assert_eq!(open_and_read(&stores, &url).await.unwrap(), expected());
        }
    }
}
