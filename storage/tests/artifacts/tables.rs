//! A table over an artifact: the same dataset wherever it lies.

use std::sync::Arc;

use forebay_storage::{Dataset, DatasetSpec, ErrorKind, Snapshot, SnapshotReader, SnapshotText, Stores};

use super::folders;
use super::support::{copy, expected, read, run, run_as, schema, spec};

#[tokio::test]
async fn rows_come_from_the_manifest_in_every_format() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        for format in ["parquet", "csv", "jsonl"] {
            let url = format!("{root}/{format}");
            run_as(&stores, &root, &url, "job1", "p", format).await.unwrap();
            // It is no part of the artifact.
            stores.put(&format!("{url}/another.{format}"), "?".into()).await.unwrap();
            let dataset = Dataset::open(&stores, &spec(&url, format)).await.unwrap();
            assert_eq!(*dataset.schema(), schema());
            assert_eq!(read(&dataset).await.unwrap(), expected(), "{url}");
        }
        let error = Dataset::open(&stores, &spec(&format!("{root}/csv"), "parquet")).await.unwrap_err();
        assert!(error.to_string().contains("which is not a parquet file"), "{error}");
    }
}

#[tokio::test]
async fn a_copied_moved_or_rewritten_artifact_is_the_same_dataset() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    let mut ids = Vec::new();
    for root in &roots {
        for (name, job) in [("a", "job1"), ("b", "job1"), ("c", "another")] {
            let url = format!("{root}/{name}");
            run(&stores, root, &url, job, "p").await.unwrap();
            copy(&stores, &url, &format!("{root}/copies/{name}")).await;
            for url in [url.clone(), format!("{root}/copies/{name}")] {
                let dataset = Dataset::open(&stores, &spec(&url, "parquet")).await.unwrap();
                assert_eq!(read(&dataset).await.unwrap(), expected(), "{url}");
                ids.push(dataset.snapshot().id().to_owned());
            }
        }
    }
    assert_eq!(ids.len(), 12);
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    // The same files as a plain table are another dataset.
    let plain = format!("{}/plain", roots[0]);
    for file in stores.list(&format!("{}/a", roots[0])).await.unwrap() {
        if !file.name.starts_with('_') {
            let bytes = stores.get(&format!("{}/a/{}", roots[0], file.name)).await.unwrap();
            stores.put(&format!("{plain}/{}", file.name), bytes).await.unwrap();
        }
    }
    let dataset = Dataset::open(&stores, &spec(&plain, "parquet")).await.unwrap();
    assert_eq!(read(&dataset).await.unwrap(), expected());
    assert_ne!(dataset.snapshot().id(), ids[0]);
}

#[tokio::test]
async fn a_column_of_paths_is_part_of_the_identity() {
    let stores = Stores::new();
    let mut ids = Vec::new();
    for (url, job) in [("memory:///a", "job1"), ("memory:///b", "job1"), ("memory:///c", "job2")] {
        run(&stores, "memory:///root", url, job, "p").await.unwrap();
        let spec = DatasetSpec { path_column: Some("path".to_owned()), ..spec(url, "parquet") };
        ids.push(Dataset::open(&stores, &spec).await.unwrap().snapshot().id().to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2], "its files have other names");
}

#[tokio::test]
async fn another_process_reads_and_verifies_by_the_snapshot_alone() {
    let (_folder, roots) = folders();
    let stores = Stores::new();
    for root in roots {
        let url = format!("{root}/a");
        let artifact = run(&stores, &root, &url, "job1", "p").await.unwrap();
        let opened = Dataset::open(&stores, &spec(&url, "parquet")).await.unwrap();
        let mut text = SnapshotReader::default();
        SnapshotText::new(Arc::clone(opened.snapshot())).for_each(|piece| text.push(&piece).unwrap());
        let snapshot = text.finish().unwrap();
        assert_eq!(snapshot, **opened.snapshot());
        let pin = |snapshot: Snapshot| Dataset::pinned(&stores, opened.spec(), snapshot, opened.schema().clone());
        let pinned = pin(snapshot.clone()).unwrap();
        assert_eq!(read(&pinned).await.unwrap(), expected());

        let json = serde_json::to_string(&snapshot).unwrap();
        let digest = artifact.manifest().files[0].digest.to_string();
        let other = artifact.manifest().files[1].digest.to_string();
        let altered = serde_json::from_str(&json.replacen(&digest, &other, 1)).unwrap();
        assert_eq!(pin(altered).unwrap_err().kind(), ErrorKind::Conflict);

        let file = format!("{url}/{}", artifact.manifest().files[1].name);
        let mut bytes = stores.get(&file).await.unwrap().to_vec();
        bytes[10] ^= 1;
        stores.put(&file, bytes.clone().into()).await.unwrap();
        // What a dataset has read, it may keep.
        let read_again = async || read(&pin(snapshot.clone()).unwrap()).await;
        let error = read_again().await.unwrap_err();
        let damaged = format!("\"{file}\" is damaged in bytes 0..{}: ", bytes.len());
        assert!(error.to_string().starts_with(&damaged), "{error}");
        assert_eq!(error.kind(), ErrorKind::Data);
        bytes.push(0);
        stores.put(&file, bytes.into()).await.unwrap();
        assert_eq!(read_again().await.unwrap_err().kind(), ErrorKind::Conflict);
        stores.delete(&file).await.unwrap();
        assert_eq!(read_again().await.unwrap_err().kind(), ErrorKind::Conflict);
    }
}

#[tokio::test]
async fn folders_of_a_column_are_columns() {
    use std::collections::BTreeMap;

    use arrow::array::AsArray;
    use forebay_storage::artifact::Part;
    use serde_json::Value;

    use super::support::{ROWS, encoded, lineage};

    let stores = Stores::new();
    let mut ids = Vec::new();
    for (url, years) in [("memory:///a", [1, 2]), ("memory:///b", [1, 2]), ("memory:///c", [1, 3])] {
        let job = super::opened(&stores, url, "job1").await;
        let mut files = Vec::new();
        for (at, year) in years.into_iter().enumerate() {
            let mut file = job.create(&format!("year={year}/part-000000"), "parquet").unwrap();
            for piece in encoded(at as u64, "parquet") {
                file.write(piece).await.unwrap();
            }
            files.push(job.complete(0, file, ROWS).await.unwrap());
        }
        let (costs, facts, bad_reasons) = (Value::Null, Value::Null, BTreeMap::new());
        let part = Part { files, rows_in: 2 * ROWS, bad_rows: 0, bad_reasons, costs, facts };
        job.commit(job.manifest(&[(0, part)].into(), lineage()).unwrap(), Vec::new()).await.unwrap();
        let dataset = Dataset::open(&stores, &spec(url, "parquet")).await.unwrap();
        assert_eq!(dataset.schema().field(2).name(), "year");
        let last = dataset.row_ranges(1 << 20).pop().unwrap();
        let rows = dataset.read(&last, &[2]).await.unwrap();
        let year = rows.batch.column(0).as_primitive::<arrow::datatypes::Int64Type>().value(0);
        assert_eq!(year, years[1]);
        ids.push(dataset.snapshot().id().to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
}

#[tokio::test]
async fn what_opening_kept_is_not_used_for_other_content() {
    let (stores, url) = (Stores::new(), "memory:///a");
    run(&stores, "memory:///root", url, "job1", "p").await.unwrap();
    let keeping = forebay_storage::Keeping { root: "memory:///root", build: "1", after: std::time::Duration::ZERO };
    let first = Dataset::open_keeping(&stores, &spec(url, "parquet"), Some(keeping)).await.unwrap();
    let again = Dataset::open_keeping(&stores, &spec(url, "parquet"), Some(keeping)).await.unwrap();
    assert_eq!(first.snapshot(), again.snapshot());
    assert_eq!(read(&again).await.unwrap(), expected());
}
