//! Index files, such as MDS' `index.json`.

use std::collections::BTreeMap;

use forebay_storage::artifact::{Artifact, Catalog, Job, JobState, gc};
use forebay_storage::faults::{FaultRates, Faults};
use forebay_storage::{Dataset, ErrorKind, Stores};

use super::support::{self, PARTS, at_once, lineage, run, write_part};
use super::{folders, opened};

#[tokio::test]
async fn an_index_is_there_once_the_artifact_is_committed() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let url = format!("{root}/a");
        let place = format!("{url}/index.json");
        stores.put(&place, "theirs".into()).await.unwrap();
        let error = Job::open(&stores, &url, "job1").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert_eq!(error.to_string(), format!("\"{url}\" holds \"index.json\", which the job job1 has not written"));
        stores.delete(&place).await.unwrap();
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
