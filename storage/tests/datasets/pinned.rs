//! Datasets sent elsewhere: opened in one place, and opened again in another from JSON, without accessing the files.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_storage::{Dataset, DatasetSpec, ErrorKind, PathColumns, Result, Snapshot, Stores};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{TestFolder, all_formats, csv_table, stored_as};
use crate::two_files;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Travelling {
    spec: DatasetSpec,
    #[serde(with = "forebay_storage::schema_text")]
    schema: SchemaRef,
    snapshot: Snapshot,
}

impl Travelling {
    fn of(dataset: &Dataset) -> Self {
        let (spec, schema) = (dataset.spec().clone(), Arc::clone(dataset.schema()));
        Self { spec, schema, snapshot: Snapshot::clone(dataset.snapshot()) }
    }

    fn open(&self, stores: &Stores) -> Result<Dataset> {
        Dataset::pinned(stores, &self.spec, self.snapshot.clone(), Arc::clone(&self.schema))
    }
}

async fn everything(dataset: &Dataset, range_bytes_target: u64) -> Result<Vec<(RecordBatch, Vec<u64>)>> {
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let mut all = Vec::new();
    for range in dataset.row_ranges(range_bytes_target) {
        let rows = dataset.read(&range, &columns).await?;
        all.push((rows.batch, rows.sample_ids.values().to_vec()));
    }
    Ok(all)
}

#[tokio::test]
async fn a_dataset_opens_elsewhere_from_json_with_the_same_rows() {
    for place in TestFolder::all() {
        for format in all_formats() {
            for (name, bytes, _) in two_files(&format) {
                place.put(&name, bytes).await;
            }
            let dataset = place.open("", format.clone()).await.unwrap();
            let text = serde_json::to_string(&Travelling::of(&dataset)).unwrap();
            assert_eq!(text, serde_json::to_string(&Travelling::of(&dataset)).unwrap());
            let travelled: Travelling = serde_json::from_str(&text).unwrap();
            assert_eq!(travelled.snapshot, **dataset.snapshot(), "{format:?}");
            // A later file is not part of the snapshot.
            place.put(&format!("later.{}", two_files(&format)[0].0.rsplit('.').next().unwrap()), "?").await;
            let pinned = travelled.open(&place.stores_elsewhere()).unwrap();
            assert_eq!((pinned.spec(), pinned.schema()), (dataset.spec(), dataset.schema()));
            for target in [1, 20_000, u64::MAX] {
                assert_eq!(pinned.row_ranges(target), dataset.row_ranges(target));
                let (here, there) = (everything(&dataset, target).await, everything(&pinned, target).await);
                assert_eq!(here.unwrap(), there.unwrap(), "{format:?}");
            }
            let again = serde_json::to_string(&Travelling::of(&pinned)).unwrap();
            assert_eq!(again, text);
        }
    }
}

#[tokio::test]
async fn odd_names_and_every_kind_of_location_travel() {
    for place in TestFolder::all() {
        for name in ["x/a b.csv", "x/50%.csv", "x/x%20y.csv", "x/#1+2.csv", "x/caf\u{e9}.csv", "_hidden.csv", "[1].csv"]
        {
            place.put(name, "n\n7\n").await;
        }
        for location in ["", "x", "x/*.csv", "**/*.csv", "_hidden.csv", "[1].csv"] {
            let dataset = place.open(location, csv_table()).await.unwrap();
            let pinned = Travelling::of(&dataset).open(&place.stores_elsewhere()).unwrap();
            let (here, there) = (everything(&dataset, 1).await, everything(&pinned, 1).await);
            assert_eq!(here.unwrap(), there.unwrap(), "{location}");
        }
    }
}

#[tokio::test]
async fn the_location_that_travels_is_absolute() {
    let place = TestFolder::file();
    place.put("x/a.csv", "n\n7\n").await;
    let stores = Stores::new().with_base(&place.path("x"));
    for location in ["a.csv", "./*.csv", "../x", &format!("file://{}", place.display("x/?.csv"))] {
        let spec = DatasetSpec {
            location: location.to_owned(),
            format: csv_table(),
            schema: None,
            path_columns: PathColumns::Inferred,
            path_column: None,
        };
        let dataset = Dataset::open(&stores, &spec).await.unwrap();
        assert!(Path::new(&dataset.spec().location).is_absolute(), "{:?}", dataset.spec());
        let mut travelling = Travelling::of(&dataset);
        travelling.open(&Stores::new()).unwrap();
        travelling.spec.location = location.to_owned();
        let error = travelling.open(&Stores::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("is not an absolute path or URL, such as"), "{error}");
    }
}

#[tokio::test]
async fn declared_columns_and_metadata_travel() {
    let place = TestFolder::memory();
    place.put("a.csv", "n\n7\n").await;
    let metadata = [("b", "2"), ("a", "1")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    let field = Field::new("n", DataType::UInt8, true).with_metadata(metadata.into());
    let schema = Arc::new(Schema::new(vec![field]));
    let dataset = place.open_with("", csv_table(), Some(Arc::clone(&schema))).await.unwrap();
    let text = serde_json::to_string(&Travelling::of(&dataset)).unwrap();
    let mut travelled: Travelling = serde_json::from_str(&text).unwrap();
    assert_eq!(travelled.spec.schema, Some(schema));
    assert_eq!(travelled.spec, *dataset.spec());
    travelled.open(&place.stores_elsewhere()).unwrap();
    travelled.spec.schema = Some(Arc::new(Schema::empty()));
    assert_eq!(travelled.open(&place.stores_elsewhere()).unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_file_that_changed_since_is_a_conflict_when_it_is_read() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let [(name, bytes, _), _] = two_files(&format);
            place.put(&name, bytes.clone()).await;
            place.age(&name);
            let travelling = Travelling::of(&place.open(&name, format.clone()).await.unwrap());
            let range = travelling.open(&place.stores_elsewhere()).unwrap().row_ranges(u64::MAX)[0];
            let conflict = async |expect: &str| {
                let pinned = travelling.open(&place.stores_elsewhere()).unwrap();
                let error = pinned.read(&range, &[0]).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                for part in [&place.display(&name), expect] {
                    assert!(error.to_string().contains(part), "{error}");
                }
            };
            place.put(&name, bytes.clone()).await;
            conflict("same size, other version").await;
            place.put(&name, "something else").await;
            conflict("changed since the feed's snapshot was taken (size").await;
            place.delete(&name).await;
            conflict("was removed since").await;
        }
    }
}

#[tokio::test]
async fn a_copy_that_keeps_its_time_is_the_same_file() {
    let place = TestFolder::file();
    for format in all_formats() {
        let [(name, bytes, _), _] = two_files(&format);
        place.put(&name, bytes.clone()).await;
        let dataset = place.open(&name, format.clone()).await.unwrap();
        let modified = std::fs::metadata(place.path(&name)).unwrap().modified().unwrap();
        std::fs::write(place.path("copy"), &bytes).unwrap();
        std::fs::File::options().append(true).open(place.path("copy")).unwrap().set_modified(modified).unwrap();
        std::fs::rename(place.path("copy"), place.path(&name)).unwrap();
        let pinned = Travelling::of(&dataset).open(&place.stores_elsewhere()).unwrap();
        assert!(everything(&pinned, 1).await.is_ok(), "{format:?}");
    }
}

#[tokio::test]
async fn the_same_media_under_other_names_is_another_snapshot() {
    let place = TestFolder::memory();
    place.put("train/cat/1.jpg", "x").await;
    let id = async |location: &str| place.open(location, stored_as("media")).await.unwrap().snapshot().id().to_owned();
    assert_ne!(id("").await, id("train").await);
    assert_eq!(id("train").await, id("train/**").await);
}

/// The path of each value inside `value`, from its root.
fn places(value: &Value) -> Vec<Vec<Value>> {
    let inner: Vec<(Value, &Value)> = match value {
        Value::Array(items) => items.iter().enumerate().map(|(at, item)| (json!(at), item)).collect(),
        Value::Object(items) => items.iter().map(|(key, item)| (json!(key), item)).collect(),
        _ => Vec::new(),
    };
    let below = inner.into_iter().flat_map(|(step, item)| {
        places(item).into_iter().map(move |rest| std::iter::once(step.clone()).chain(rest).collect())
    });
    std::iter::once(Vec::new()).chain(below).collect()
}

fn at<'a>(value: &'a mut Value, path: &[Value]) -> &'a mut Value {
    path.iter().fold(value, |value, step| match step {
        Value::String(key) => &mut value[key.as_str()],
        step => &mut value[step.as_u64().unwrap() as usize],
    })
}

/// Replacing any value of the JSON must give an error or a dataset, readable or not, and never a panic. Changes that
/// the id would reveal are tried again with the correct id of the altered snapshot.
#[tokio::test]
async fn altered_json_is_an_error() {
    let place = TestFolder::memory();
    let (mut altered, mut refused) = (0, 0);
    for format in all_formats() {
        for (name, bytes, _) in two_files(&format) {
            place.put(&name, bytes).await;
        }
        let dataset = place.open("", format).await.unwrap();
        let whole = serde_json::to_value(Travelling::of(&dataset)).unwrap();
        for path in places(&whole) {
            let old = at(&mut whole.clone(), &path).clone();
            let more = [old.as_u64().map(|n| json!(n + 1)), old.as_str().map(|text| json!(format!("{text}x")))];
            let others = [
                json!(null),
                json!(true),
                json!(false),
                json!(0),
                json!(1),
                json!(-1),
                json!(0.5),
                json!(1u64 << 31),
                json!(1u64 << 40),
                json!((1u64 << 62) - 1),
                json!(u64::MAX),
                json!(""),
                json!("/"),
                json!("\u{e9}"),
                json!("memory:///elsewhere"),
                json!([]),
                json!([0]),
                json!({}),
                json!([[1, 1, 0, 1, true]]),
            ];
            for other in others.into_iter().chain(more.into_iter().flatten()).filter(|other| *other != old) {
                let mut changed = whole.clone();
                *at(&mut changed, &path) = other.clone();
                altered += 1;
                let Ok(mut travelled) = serde_json::from_value::<Travelling>(changed.clone()) else {
                    refused += 1;
                    continue;
                };
                let mut opened = travelled.open(&place.stores_elsewhere());
                if let Err(error) = &opened {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                    if let Some((_, id)) = error.to_string().split_once("columns and files make ") {
                        assert_eq!(error.kind(), ErrorKind::Conflict);
                        changed["snapshot"]["id"] = json!(id);
                        travelled = serde_json::from_value(changed).unwrap();
                        opened = travelled.open(&place.stores_elsewhere());
                    }
                }
                let Ok(dataset) = opened else { continue };
                let ranges = dataset.row_ranges(u64::MAX);
                for range in ranges.iter().take(1).chain(ranges.last()) {
                    let _ = dataset.read(range, &[0, 1]).await;
                }
            }
        }
    }
    assert!(altered > 1000 && refused * 10 > altered * 9, "{refused} of {altered} refused");
}

#[test]
fn damaged_json_is_an_error() {
    let files = json!([["a.csv", 4, 0, null, [[1, 2, 2, 2, false]]], ["b.csv", 4, 0, null, []]]);
    let check = |path: &str, value: Value, expect: &str| {
        let mut snapshot = json!({"id": "x", "folder": "/x/", "files": files});
        *snapshot.pointer_mut(path).unwrap() = value;
        let error = serde_json::from_value::<Snapshot>(snapshot).unwrap_err();
        assert!(error.to_string().contains(expect), "{error}");
    };
    check("/files/1/0", json!("a.csv"), "the snapshot is damaged: \"/x/a.csv\" is out of order");
    check("/files/0/4/0/0", json!(u64::MAX), "the snapshot is damaged: its files are too large");
    check("/files/0/4/0/1", json!(1u64 << 62), "the snapshot is damaged: its files are too large");
    check("/files/0/4/0", json!([1, 2, 3]), "tuple struct WrittenGroup");
    check("/files/0/1", json!(-1), "u64");
    check("", json!({"id": "x", "folder": "", "files": [], "more": 1}), "unknown field `more`");
}

/// Nothing exists at `/x`, so opening would fail if it accessed a file.
#[test]
fn a_hundred_thousand_files_open_without_a_look_at_them() {
    let files: Vec<Value> = (0..100_000)
        .map(|i| json!([format!("n{:04}/{i:08}.jpg", i / 100), 1000, 0, "\"etag\"", [[1, 1000, 0, 1000, false]]]))
        .collect();
    let snapshot = json!({"id": "x", "folder": "/x/", "files": files}).to_string();
    assert!(snapshot.len() < 7_000_000, "{} bytes", snapshot.len());
    let snapshot: Snapshot = serde_json::from_str(&snapshot).unwrap();
    let spec = DatasetSpec {
        location: "/x".to_owned(),
        format: stored_as("media"),
        schema: None,
        path_columns: PathColumns::Inferred,
        path_column: None,
    };
    let schema = Schema::new(vec![
        Field::new("bytes", DataType::Binary, false),
        Field::new("path", DataType::Utf8, false),
        Field::new("size", DataType::Int64, false),
        Field::new("label", DataType::Utf8, true),
    ]);
    let open = |snapshot| Dataset::pinned(&Stores::new(), &spec, snapshot, Arc::new(schema.clone()));
    let id = open(snapshot.clone()).unwrap_err().to_string().rsplit_once(' ').unwrap().1.to_owned();
    let mut whole = serde_json::to_value(&snapshot).unwrap();
    whole["id"] = json!(id);
    let snapshot: Snapshot = serde_json::from_value(whole).unwrap();
    assert_eq!(open(snapshot).unwrap().snapshot().rows(), 100_000);
}
