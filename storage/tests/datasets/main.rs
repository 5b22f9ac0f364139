//! Tests of what every format guarantees, in a local folder and in memory. The server's tests cover the S3 client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod lakes;
mod media;
mod parquet;
mod pinned;
mod support;
mod text;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use forebay_storage::{Dataset, ErrorKind, PathColumns, RowRange, Snapshot, TableFormat};
use support::{TestFolder, all_formats, csv_table, ids_of, parquet_bytes, read_all, stored_as};

/// Two files of a format's samples, with their numbers of rows.
fn two_files(format: &TableFormat) -> [(String, Vec<u8>, u64); 2] {
    [("a", 0..3000), ("sub/b", 3000..3500)].map(|(stem, numbers)| {
        let name = format!("{stem}.{}", format.descriptor().extensions[0]);
        let sample = format.format().sample(&name, numbers, format.options());
        (name, sample.bytes, sample.rows.num_rows() as u64)
    })
}

#[tokio::test]
async fn rows_in_memory_are_read_as_those_of_files() {
    let batch = |numbers: std::ops::Range<i64>| {
        let n: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.clone()));
        let twice: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers.map(|n| 2 * n)));
        RecordBatch::try_from_iter([("n", n), ("twice", twice)]).unwrap()
    };
    let batches = vec![batch(0..1000), batch(1000..1003)];
    let schema = batches[0].schema();
    let dataset = Dataset::in_memory("numbers", schema.clone(), batches.clone(), "one").unwrap();
    assert_eq!(dataset.snapshot().rows(), 1003);
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    for range in dataset.row_ranges(1024) {
        let rows = dataset.read(&range, &[1]).await.unwrap();
        ids.extend(rows.sample_ids.values().iter().copied());
        values.extend(rows.batch.column(0).as_primitive::<Int64Type>().values().iter().copied());
    }
    assert_eq!(ids, (0..1003).collect::<Vec<u64>>());
    assert_eq!(values, (0..1003).map(|n| 2 * n).collect::<Vec<i64>>());
    let other = Dataset::in_memory("numbers", schema, batches, "other").unwrap();
    assert_ne!(dataset.snapshot().id(), other.snapshot().id());
    let stores = forebay_storage::Stores::new();
    let (snapshot, schema) = (dataset.snapshot().clone(), dataset.schema().clone());
    let error = Dataset::pinned(&stores, dataset.spec(), snapshot, schema).unwrap_err();
    assert!(error.to_string().contains("in the memory of the process that made it"), "{error}");
}

#[tokio::test]
async fn every_row_is_read_once_under_its_own_id() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let files = two_files(&format);
            for (name, bytes, _) in &files {
                place.put(name, bytes.clone()).await;
            }
            let dataset = place.open("", format.clone()).await.unwrap();
            let snapshot = dataset.snapshot();
            let rows: Vec<u64> = snapshot.files().iter().map(|f| f.rows).collect();
            assert_eq!(rows, [files[0].2, files[1].2], "{format:?}");
            assert_eq!(snapshot.rows(), files[0].2 + files[1].2);
            assert_eq!(snapshot.locate(0), (0, 0));
            assert_eq!(snapshot.locate(files[0].2), (1, 0));
            let mut counts = Vec::new();
            for target in [1, 10_000, 1 << 20, u64::MAX] {
                let ranges = dataset.row_ranges(target);
                assert_eq!(ranges, dataset.row_ranges(target));
                counts.push(ranges.len());
                let ids: Vec<u64> = ranges
                    .iter()
                    .flat_map(|r| {
                        let first = snapshot.files()[r.file as usize].first_sample_id + r.first_row;
                        first..first + r.rows
                    })
                    .collect();
                assert_eq!(ids, (0..snapshot.rows()).collect::<Vec<_>>(), "{format:?} target {target}");
            }
            assert!(counts.is_sorted_by(|a, b| a >= b), "{format:?} {counts:?}");
            // Media files do not have this column.
            if let Ok(column) = dataset.schema().index_of("n") {
                for target in [20_000, u64::MAX] {
                    let numbers = read_all(&dataset, target, column).await;
                    assert_eq!(numbers, (0..snapshot.rows() as i64).collect::<Vec<_>>(), "{format:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn only_the_columns_asked_for_come_back_in_that_order() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let files = two_files(&format);
            place.put(&files[0].0, files[0].1.clone()).await;
            let dataset = place.open("", format.clone()).await.unwrap();
            let range = dataset.row_ranges(u64::MAX)[0];
            for columns in [vec![], vec![1], vec![1, 0], vec![0, 1]] {
                let rows = dataset.read(&range, &columns).await.unwrap();
                assert_eq!(*rows.batch.schema(), dataset.schema().project(&columns).unwrap());
                assert_eq!(rows.batch.num_rows() as u64, range.rows, "{format:?} {columns:?}");
                assert_eq!(rows.sample_ids.len() as u64, range.rows);
            }
            let error = dataset.read(&range, &[99]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Internal);
        }
    }
}

#[tokio::test]
async fn a_changed_or_removed_file_is_a_conflict() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let [(name, bytes, _), _] = two_files(&format);
            place.put(&name, bytes.clone()).await;
            let dataset = place.open("", format.clone()).await.unwrap();
            let range = dataset.row_ranges(u64::MAX)[0];
            let mut longer = bytes.clone();
            longer.extend_from_slice(b"\n");
            place.put(&name, longer).await;
            let error = dataset.read(&range, &[0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let expect = format!(
                "\"{}\" changed since the feed's snapshot was taken (size {} -> {}); create its table again (restart \
                 the run or server) to read the new file",
                place.display(&name),
                bytes.len(),
                bytes.len() + 1
            );
            assert_eq!(error.to_string(), expect);
            place.delete(&name).await;
            let error = dataset.read(&range, &[0]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            assert!(error.to_string().contains("was removed since"), "{error}");
        }
    }
}

#[tokio::test]
async fn the_snapshot_is_a_value_that_names_its_content() {
    for place in TestFolder::all() {
        place.put("a.csv", "n\n1\n").await;
        let first = place.open("", csv_table()).await.unwrap();
        let again = place.open("", csv_table()).await.unwrap();
        assert_eq!(first.snapshot(), again.snapshot());
        assert_eq!(first.snapshot().id().len(), 64);
        let text = serde_json::to_string(&**first.snapshot()).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), **first.snapshot());
        place.put("a.csv", "n\n2\n3\n").await;
        let changed = place.open("", csv_table()).await.unwrap();
        assert_ne!(first.snapshot().id(), changed.snapshot().id());
    }
}

#[tokio::test]
async fn a_location_is_a_file_a_folder_or_a_glob() {
    for place in TestFolder::all() {
        for name in ["a.csv", "b.csv", "x/c.csv", "x/y/d.csv", "x/_tmp/e.csv", ".f.csv", "_g.csv", "notes.txt"] {
            place.put(name, "n\n1\n").await;
        }
        let check = async |location: &str, expect: &[&str]| {
            let dataset = place.open(location, csv_table()).await.unwrap();
            let paths: Vec<&str> = dataset.snapshot().files().iter().map(|f| f.path.as_str()).collect();
            let expect: Vec<String> = expect.iter().map(|name| place.display(name)).collect();
            assert_eq!(paths, expect, "{location}");
        };
        check("", &["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]).await;
        check("a.csv", &["a.csv"]).await;
        check("_g.csv", &["_g.csv"]).await;
        check("notes.txt", &["notes.txt"]).await;
        check("x/", &["x/c.csv", "x/y/d.csv"]).await;
        check("*.csv", &["a.csv", "b.csv"]).await;
        check("**/*.csv", &["a.csv", "b.csv", "x/c.csv", "x/y/d.csv"]).await;
        check("x/**", &["x/c.csv", "x/y/d.csv"]).await;
        check("?.csv", &["a.csv", "b.csv"]).await;
        check("[b-z].csv", &["b.csv"]).await;
        check("{a,x/c}.csv", &["a.csv", "x/c.csv"]).await;
        check("*/*/d.csv", &["x/y/d.csv"]).await;
        check("notes.*", &["notes.txt"]).await;
    }
}

#[tokio::test]
async fn several_locations_are_one_dataset() {
    for place in TestFolder::all() {
        for (number, name) in ["a.csv", "x/c.csv", "x/[y]/d.csv", "x/_tmp/e.csv", "z/f.csv"].iter().enumerate() {
            place.put(name, format!("n\n{number}\n")).await;
        }
        let open = async |names: &[&str]| {
            let locations: Vec<String> = names.iter().map(|name| place.display(name)).collect();
            Dataset::open_all(&place.stores(), &locations, &csv_table(), PathColumns::Inferred, None, None).await
        };
        let check = async |names: &[&str], location: &str, expect: &[i64]| {
            let dataset = open(names).await.unwrap();
            assert_eq!(read_all(&dataset, 1, 0).await, expect, "{names:?}");
            let (spec, snapshot) = (dataset.spec().clone(), dataset.snapshot().clone());
            assert_eq!(spec.location, place.display(location), "{names:?}");
            // As a worker opens it.
            let pinned = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, dataset.schema().clone()).unwrap();
            assert_eq!(read_all(&pinned, 1, 0).await, expect, "{names:?}");
        };
        check(&["z/", "a.csv"], "{z,a.csv}", &[0, 4]).await;
        check(&["x"], "x/{}", &[2, 1]).await;
        check(&["x/*.csv", "x/[y]/d.csv"], "x/{*.csv,[y]/d.csv}", &[2, 1]).await;
        check(&["x/[y]/d.csv"], "x/{[y]/d.csv}", &[2]).await;
        let refused = async |names: &[&str], expect: &str| {
            let error = open(names).await.unwrap_err();
            assert!(error.to_string().contains(expect), "{names:?}: {error}");
        };
        refused(&["x/", "x/c.csv"], "is at two of the locations").await;
        refused(&["x/", "y/"], "does not exist").await;
        refused(&["a.csv", "x/_tmp/e.csv"], "has a name that begins with . or _").await;
        refused(&[], "at least one location").await;
        let elsewhere = [place.display("a.csv"), "s3://bucket/b.csv".to_owned()];
        let error = Dataset::open_all(&place.stores(), &elsewhere, &csv_table(), PathColumns::Inferred, None, None)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("must be in one store"), "{error}");
    }
}

#[tokio::test]
async fn odd_names_are_names() {
    for place in TestFolder::all() {
        for name in ["a b.csv", "50%.csv", "x%20y.csv", "#1+2.csv", "caf\u{e9}.csv"] {
            place.put(name, "n\n7\n").await;
            let dataset = place.open(name, csv_table()).await.unwrap();
            assert_eq!(dataset.snapshot().files()[0].path, place.display(name));
            assert_eq!(read_all(&dataset, 1, 0).await, [7]);
        }
        assert_eq!(place.open("", csv_table()).await.unwrap().snapshot().rows(), 5);
    }
}

#[tokio::test]
async fn a_location_without_files_says_what_is_there() {
    for place in TestFolder::all() {
        place.put("photos/a.csv", "n\n1\n").await;
        place.put("photos/b.csv.gz", "x").await;
        let check = async |location: &str, format: TableFormat, kind: ErrorKind, expect: &str| {
            let error = place.open(location, format).await.unwrap_err();
            let expect = expect.replace("ROOT", place.display("").trim_end_matches('/'));
            assert_eq!((error.kind(), error.to_string()), (kind, expect), "{location}");
        };
        let (missing, invalid) = (ErrorKind::NotFound, ErrorKind::Invalid);
        check("photso", csv_table(), missing, "\"ROOT/photso\" does not exist; did you mean \"photos\"?").await;
        check("photos/b.csv", csv_table(), missing, "\"ROOT/photos/b.csv\" does not exist; did you mean \"a.csv\"?")
            .await;
        check("nowhere/at/all", csv_table(), missing, "\"ROOT/nowhere/at/all\" does not exist").await;
        check("photos/a.csv/x", csv_table(), missing, "\"ROOT/photos/a.csv/x\" does not exist").await;
        let others = "no parquet files under \"ROOT/photos\"; there are others, such as \"a.csv\", \"b.csv.gz\"; \
                      parquet files end in .parquet, .parq, .pq";
        check("photos", stored_as("parquet"), invalid, others).await;
        check(
            "photos/*.pq",
            stored_as("parquet"),
            invalid,
            "no parquet files match \"ROOT/photos/*.pq\"; check the folder and the pattern",
        )
        .await;
        let compressed =
            "\"ROOT/photos/b.csv.gz\": compressed text is not read yet; decompress it or write it as parquet";
        check("photos/b.csv.gz", csv_table(), invalid, compressed).await;
        check(
            "photos/a[",
            csv_table(),
            invalid,
            "\"ROOT/photos/a[\" is not a valid glob: unclosed character class; missing ']'",
        )
        .await;
    }
}

#[tokio::test]
async fn an_empty_folder_is_not_a_missing_one() {
    let place = TestFolder::file();
    std::fs::create_dir(place.path("empty")).unwrap();
    let error = place.open("empty", csv_table()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        format!("no csv files under \"{}\"; csv files end in .csv, .tsv", place.display("empty"))
    );
}

#[tokio::test]
async fn a_dataset_may_have_no_rows() {
    for place in TestFolder::all() {
        place.put("a.csv", "n,text\n").await;
        place.put("b.csv", "").await;
        place.put("c.jsonl", "\n").await;
        place.put("d.parquet", parquet_bytes(0..0)).await;
        for format in ["csv", "jsonl", "parquet"].map(stored_as) {
            let dataset = place.open("", format.clone()).await.unwrap();
            assert_eq!(dataset.snapshot().rows(), 0, "{format:?}");
            assert_eq!(dataset.row_ranges(1), []);
        }
    }
}

#[tokio::test]
async fn ranges_come_from_their_own_snapshot() {
    let place = TestFolder::memory();
    place.put("a.csv", "n\n1\n2\n").await;
    let dataset = place.open("", csv_table()).await.unwrap();
    let good = dataset.row_ranges(1)[0];
    let rows = dataset.read(&good, &[0]).await.unwrap();
    assert_eq!(ids_of(&rows), [0, 1]);
    assert_eq!(rows.batch.column(0).as_ref(), &Int64Array::from(vec![1, 2]));
    let changes: [fn(&mut RowRange); 4] = [|r| r.file = 1, |r| r.group = 1, |r| r.first_row = 1, |r| r.rows = 1];
    for change in changes {
        let mut range = good;
        change(&mut range);
        assert_eq!(dataset.read(&range, &[0]).await.unwrap_err().kind(), ErrorKind::Internal);
    }
}

#[tokio::test]
async fn the_format_of_a_location_is_told_by_extensions() {
    for place in TestFolder::all() {
        for name in [
            "sounds/_tmp.csv",
            "sounds/notes.txt",
            "sounds/a/1.flac",
            "sounds/b/1.csv",
            "rows/b.txt",
            "rows/b.JSON",
            "rows/a/1.csv",
            "other/x.txt",
        ] {
            place.put(name, "").await;
        }
        let check = async |location: &str, expect: Option<&str>| {
            let found = forebay_storage::format_at(&place.stores(), &place.display(location)).await;
            assert_eq!(found.as_ref().ok().map(|format| format.descriptor().name), expect, "{location}");
            if let Err(error) = found {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                let expect = format!("\"{}\" does not indicate the format of its files", place.display(location));
                assert_eq!(error.to_string(), expect);
            }
        };
        check("sounds", Some("media")).await;
        check("sounds/", Some("media")).await;
        check("sounds/*/*", Some("media")).await;
        check("sounds/b*", None).await;
        check("sounds/b", Some("csv")).await;
        // Files in a folder come before its subfolders.
        check("rows", Some("jsonl")).await;
        check("**/*.parquet", Some("parquet")).await;
        check("nowhere/x.pq", Some("parquet")).await;
        check("other", None).await;
        check("other/x.txt", None).await;
        let nowhere = forebay_storage::format_at(&place.stores(), &place.display("nowhere")).await;
        let error = nowhere.map(|format| format.descriptor().name).expect_err("no such folder");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}

/// Engines open and read on their own tasks.
#[test]
fn opening_and_reading_can_move_between_threads() {
    fn is_send<T: Send>(_: impl FnOnce(&'static Dataset, &'static RowRange) -> T) {}
    is_send(|dataset, range| dataset.read(range, &[]));
    fn opening_is_send<T: Send>(_: impl FnOnce(&'static TestFolder) -> T) {}
    opening_is_send(|place| place.open("", csv_table()));
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_whose_name_is_not_unicode_is_named() {
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"n\xe9.jpg")), "x").unwrap();
    let spec = forebay_storage::DatasetSpec {
        location: folder.path().to_str().unwrap().to_owned(),
        format: stored_as("media"),
        schema: None,
        path_columns: PathColumns::Inferred,
        path_column: None,
    };
    let error = Dataset::open(&forebay_storage::Stores::new(), &spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("n%E9.jpg") && error.to_string().contains("rename"), "{error}");
}
