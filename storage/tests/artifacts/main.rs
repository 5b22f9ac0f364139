//! Artifacts: what a job gives, whatever happens to it, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod claims;
mod crashes;
mod flips;
mod garbage;
mod index;
mod protocol;
mod support;
mod tables;

use forebay_storage::artifact::{Artifact, Job, JobState};
use forebay_storage::{ErrorKind, Stores};
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
    let place = format!("memory:///a/{}", part.files[0].name);
    let recorded = stores.get(&place).await.unwrap();
    let mut other = job.create("part-000000", "parquet").unwrap();
    other.write("other bytes".into()).await.unwrap();
    let files = vec![job.complete(0, other, ROWS).await.unwrap()];
    let error = job.record(0, forebay_storage::artifact::Part { files, ..part }).await.unwrap_err();
    assert!(error.to_string().contains("was written twice with different content"), "{error}");
    assert_eq!(stores.get(&place).await.unwrap(), recorded, "readers may have the recorded file");
}

#[tokio::test]
async fn a_folder_without_the_claim_is_another_machines() {
    let stores = Stores::new();
    let job = opened(&stores, "memory:///a", "job1").await;
    let error = Job::attach(&stores, "memory:///a", "job1", job.generation()).await.unwrap_err();
    assert!(error.to_string().contains("which left no claim here"), "{error}");
    job.claim("p", &at_once).await.unwrap().unwrap();
    Job::attach(&stores, "memory:///a", "job1", job.generation()).await.unwrap();
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
