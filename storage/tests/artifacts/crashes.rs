//! A process is killed with every single request of a job: there is a complete artifact or none, the next run completes
//! it, and garbage collection leaves nothing behind.

use forebay_storage::Stores;
use forebay_storage::artifact::{Artifact, Catalog, gc};
use forebay_storage::faults::{FaultRates, Faults};

use super::folders;
use super::support::{FINGERPRINT, at_once, expected, no_orphans, open_and_read, run};

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
