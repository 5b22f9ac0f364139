//! The catalog and garbage collection.

use forebay_storage::artifact::{Artifact, Catalog, gc};
use forebay_storage::faults::{FaultRates, Faults};
use forebay_storage::{ErrorKind, Stores};

use super::support::{FINGERPRINT, PARTS, at_once, copy, expected, no_orphans, open_and_read, run, write_part};
use super::{folders, opened};

#[tokio::test]
async fn artifacts_are_found_by_what_they_mean() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let catalog = Catalog::new(&stores, &root).unwrap();
        assert!(catalog.find(FINGERPRINT).await.unwrap().is_none());
        let elsewhere = format!("{root}-elsewhere");
        run(&stores, &root, &elsewhere, "job1", "p").await.unwrap();
        let found = catalog.find(FINGERPRINT).await.unwrap().unwrap();
        assert_eq!(found.manifest(), Artifact::open(&stores, &elsewhere).await.unwrap().manifest());
        assert!(catalog.find("00ff").await.unwrap().is_none());
        assert_eq!(catalog.find("../x").await.unwrap_err().kind(), ErrorKind::Internal);
        // An entry is no proof.
        catalog.record("00ff", &elsewhere).await.unwrap();
        assert!(catalog.find("00ff").await.unwrap().is_none());
        assert_eq!(catalog.entries().await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_root_that_was_moved_keeps_its_artifacts() {
    let stores = Stores::new();
    run(&stores, "memory:///old", "memory:///old/artifacts/a", "job1", "p").await.unwrap();
    copy(&stores, "memory:///old", "memory:///new").await;
    let garbage = gc(&stores, "memory:///new", false, &at_once).await.unwrap();
    assert_eq!((garbage.kept, garbage.objects), (1, 0));
    let catalog = Catalog::new(&stores, "memory:///new").unwrap();
    assert_eq!(catalog.find(FINGERPRINT).await.unwrap().unwrap().url(), "memory:///new/artifacts/a");
}

#[tokio::test]
async fn only_what_no_entry_names_is_removed() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let kept = |name: &str| format!("{root}/artifacts/{name}");
        let outside = format!("{root}/target");
        run(&stores, &root, &outside, "job1", "p").await.unwrap();
        for name in ["named", "unnamed", "gone"] {
            run(&stores, &root, &kept(name), "job1", "p").await.unwrap();
        }
        let catalog = Catalog::new(&stores, &root).unwrap();
        for entry in catalog.entries().await.unwrap() {
            if [kept("unnamed"), outside.clone()].contains(&entry.url) {
                catalog.remove(&entry).await.unwrap();
            }
        }
        for object in stores.list(&kept("gone")).await.unwrap() {
            stores.delete(&format!("{}/{}", kept("gone"), object.name)).await.unwrap();
        }
        let job = opened(&stores, &kept("unfinished"), "job1").await;
        job.claim("p", &at_once).await.unwrap().unwrap();
        let part = write_part(&job, 0, "parquet").await.unwrap();

        let before = stores.list(&root).await.unwrap();
        let planned = gc(&stores, &root, true, &at_once).await.unwrap();
        assert_eq!(stores.list(&root).await.unwrap(), before, "a dry run changes nothing");
        let garbage = gc(&stores, &root, false, &at_once).await.unwrap();
        assert_eq!(garbage, planned);
        assert_eq!(garbage.artifacts, [kept("unnamed")]);
        assert_eq!(garbage.jobs, [kept("unfinished")]);
        assert_eq!(garbage.entries, [kept("gone")]);
        assert_eq!((garbage.kept, garbage.problems.len()), (1, 0));

        for url in [&outside, &kept("named")] {
            assert_eq!(open_and_read(&stores, url).await.unwrap(), expected());
        }
        let error = open_and_read(&stores, &kept("unnamed")).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the artifact in \"{}\" was removed", kept("unnamed")));
        // The job that was given up continues unsuspecting.
        job.record(0, part).await.unwrap();
        for number in 1..PARTS {
            job.record(number, write_part(&job, number, "parquet").await.unwrap()).await.unwrap();
        }
        let manifest = job.manifest(&job.parts().await.unwrap(), super::lineage()).unwrap();
        let error = job.commit(manifest, Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().starts_with("the job job1 was given up before it was committed"), "{error}");
        assert!(no_orphans(&stores, &kept("unfinished")).await.is_err());
        let garbage = gc(&stores, &root, false, &at_once).await.unwrap();
        // The file of the first part and its digests were removed before.
        assert_eq!(garbage.objects, 3 * PARTS - 2, "{garbage:?}");
        no_orphans(&stores, &kept("unfinished")).await.unwrap();
        // Run again, it is committed as the next generation.
        let artifact = run(&stores, &root, &kept("unfinished"), "job1", "q").await.unwrap();
        assert_eq!(artifact.generation(), 2);
        assert_eq!(gc(&stores, &root, false, &at_once).await.unwrap().objects, 0);
        assert_eq!(open_and_read(&stores, &kept("unfinished")).await.unwrap(), expected());
    }
}

#[tokio::test]
async fn a_job_that_gives_signs_is_left_alone() {
    use futures::FutureExt;

    let stores = Stores::new();
    let (root, url) = ("memory:///root", "memory:///root/artifacts/a");
    let job = opened(&stores, url, "job1").await;
    let claim = job.claim("p", &at_once).await.unwrap().unwrap();
    let part = write_part(&job, 0, "parquet").await.unwrap();
    job.record(0, part).await.unwrap();
    // What an attempt before it wrote late.
    stores.put(&format!("{url}/part-000009-0123abcd.parquet"), "late".into()).await.unwrap();
    let claim = std::sync::Arc::new(tokio::sync::Mutex::new(claim));
    let wait = |_| {
        let claim = claim.clone();
        async move { assert!(claim.lock().await.beat().await.unwrap()) }.boxed()
    };
    let garbage = gc(&stores, root, false, &wait).await.unwrap();
    assert_eq!((garbage.kept, garbage.objects, garbage.jobs.len()), (1, 1, 0));
    run(&stores, root, url, "job1", "p").await.unwrap();
    no_orphans(&stores, url).await.unwrap();
    assert_eq!(open_and_read(&stores, url).await.unwrap(), expected());
}

#[tokio::test]
async fn what_a_killed_measurement_left_is_removed() {
    use futures::FutureExt;

    let stores = Stores::new();
    let put = |name: &'static str| {
        let stores = stores.clone();
        async move { stores.put(&format!("memory:///root/trial/{name}"), "bytes".into()).await.unwrap() }
    };
    put("0123456789abcdef-0-0").await;
    put("0123456789abcdef-0-1").await;
    // What others write there stays.
    put("report.csv").await;
    put("2026/0123456789abcdef-0-0").await;
    let wait = |_| put("fedcba9876543210-2-0").boxed();
    let planned = gc(&stores, "memory:///root", true, &at_once).await.unwrap();
    let garbage = gc(&stores, "memory:///root/", false, &wait).await.unwrap();
    let trials = ["0123456789abcdef-0-0", "0123456789abcdef-0-1"].map(|name| format!("memory:///root/trial/{name}"));
    assert_eq!((&planned.trials[..], planned.objects, planned.bytes), (&trials[..], 2, 10));
    assert_eq!(garbage, planned);
    let left = stores.list("memory:///root/trial").await.unwrap();
    let left: Vec<_> = left.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(left, ["2026/0123456789abcdef-0-0", "fedcba9876543210-2-0", "report.csv"]);
}

#[tokio::test]
async fn what_killed_uploads_left_on_disk_is_removed() {
    let (folder, [root, _]) = folders();
    let stores = Stores::new();
    let url = format!("{root}/artifacts/a");
    let (killed, _) = Faults::crash(&stores, 15, false);
    run(&killed, &root, &url, "job1", "p").await.unwrap_err();
    let mut names = stores.list(&url).await.unwrap().into_iter().map(|object| object.name);
    let file = names.find(|name| name.starts_with("part-000000-")).unwrap();
    let staged = folder.path().join(format!("root/artifacts/a/{}#1", file.replacen("000000", "000001", 1)));
    let others = folder.path().join("root/artifacts/a/part-000001-0123abcd.parquet#1");
    for path in [&staged, &others] {
        std::fs::write(path, "half of it").unwrap();
    }
    gc(&stores, &root, false, &at_once).await.unwrap();
    assert!(!staged.exists() && others.exists());
    let left: Vec<_> = std::fs::read_dir(folder.path().join("root/artifacts/a/_forebay")).unwrap().collect();
    assert_eq!(left.len(), 1, "the generations: {left:?}");
}

#[tokio::test]
async fn a_damaged_or_later_manifest_is_a_problem_and_stays() {
    let stores = Stores::new();
    let (root, url) = ("memory:///root", "memory:///root/artifacts/a");
    run(&stores, root, url, "job1", "p").await.unwrap();
    let place = format!("{url}/_forebay/generations/00000001");
    let manifest = stores.get(&place).await.unwrap();
    let body = String::from_utf8(manifest.to_vec()).unwrap();
    let body = body.split_once("\"body\":").unwrap().1.trim_end().strip_suffix('}').unwrap();
    let body = body.replacen("\"version\":1", "\"version\":2", 1);
    let later = format!("{{\"digest\":\"{}\",\"body\":{body}}}\n", blake3::hash(body.as_bytes()).to_hex());
    let damaged = [&manifest[..200], b"x", &manifest[201..]].concat();
    for (bytes, kind, what) in [
        (later.into_bytes(), ErrorKind::Invalid, "is of version 2, and this build of Forebay reads versions up to 1"),
        (damaged, ErrorKind::Data, "is damaged: its content is not what its digest says"),
    ] {
        stores.put(&place, bytes.into()).await.unwrap();
        let error = open_and_read(&stores, url).await.unwrap_err();
        assert_eq!((error.to_string(), error.kind()), (format!("\"{place}\" {what}"), kind));
        let before = stores.list(root).await.unwrap();
        let garbage = gc(&stores, root, false, &at_once).await.unwrap();
        assert_eq!(garbage.problems, [format!("\"{place}\" {what}")]);
        assert_eq!(stores.list(root).await.unwrap(), before);
    }
}

/// Files of others under a root are not Forebay's to remove.
#[tokio::test]
async fn what_forebay_has_not_written_stays() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let kept = |name: &str| format!("{root}/artifacts/{name}");
        run(&stores, &root, &kept("unnamed"), "job1", "p").await.unwrap();
        let (killed, _) = Faults::crash(&stores, 15, false);
        run(&killed, &root, &kept("unfinished"), "job1", "p").await.unwrap_err();
        let catalog = Catalog::new(&stores, &root).unwrap();
        for entry in catalog.entries().await.unwrap() {
            catalog.remove(&entry).await.unwrap();
        }
        // The last one is named as if an attempt had written it.
        let foreign = ["foreign/x.csv", "unnamed/x.csv", "unfinished/notes.txt", "foreign/part-0-0123abcd.parquet"];
        for name in foreign {
            stores.put(&kept(name), "theirs".into()).await.unwrap();
        }
        let planned = gc(&stores, &root, true, &at_once).await.unwrap();
        assert_eq!(gc(&stores, &root, false, &at_once).await.unwrap(), planned);
        assert_eq!((planned.artifacts.len(), planned.jobs.len()), (1, 1));
        for _ in 0..2 {
            for name in foreign {
                assert_eq!(stores.get(&kept(name)).await.unwrap(), "theirs");
            }
            let left = stores.list(&root).await.unwrap().into_iter().map(|object| object.name);
            let left: Vec<String> = left.filter(|name| !name.contains("/generations/")).collect();
            assert_eq!(left.len(), foreign.len(), "{left:?}");
            assert_eq!(gc(&stores, &root, false, &at_once).await.unwrap(), Default::default());
        }
    }
}

/// A job that begins and ends while the collector removes the entry of its folder keeps its entry.
#[tokio::test]
async fn an_entry_that_is_written_again_while_it_is_removed_stays() {
    let (clean, root, url) = (Stores::new(), "memory:///root", "memory:///root/artifacts/a");
    Catalog::new(&clean, root).unwrap().record(FINGERPRINT, url).await.unwrap();
    let (counted, faults) = Faults::over(&clean, FaultRates::NONE, 0);
    gc(&counted, root, true, &at_once).await.unwrap();
    for at in 0..4 * (faults.requests() + 1) {
        let (request, seed) = (at / 4, at);
        let stores = Stores::new();
        let catalog = Catalog::new(&stores, root).unwrap();
        catalog.record(FINGERPRINT, url).await.unwrap();
        let (watched, faults) = Faults::over(&stores, FaultRates { delay_max: 8, ..FaultRates::NONE }, seed);
        let job = async {
            while faults.requests() < request {
                tokio::task::yield_now().await;
            }
            run(&stores, root, url, "job1", "p").await.unwrap()
        };
        let (garbage, _) = tokio::join!(gc(&watched, root, false, &at_once), job);
        garbage.unwrap();
        assert_eq!(catalog.find(FINGERPRINT).await.unwrap().unwrap().url(), url, "{request}");
        assert_eq!(gc(&stores, root, false, &at_once).await.unwrap().kept, 1, "{request}");
    }
}
