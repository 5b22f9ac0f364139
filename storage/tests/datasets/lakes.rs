//! Folders of other systems: tables with a log, and folders that name values.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use arrow::util::display::array_value_to_string;
use forebay_storage::{Dataset, DatasetSpec, ErrorKind, PathColumns, Result, TableFormat, dictionary_of_texts};

use crate::support::{TestFolder, all_formats, csv, csv_table, parquet_bytes, read_all, stored_as};

/// Opens a location of Parquet files, and expects their number of rows or a part of the refusal.
async fn check(place: &TestFolder, location: &str, expect: Result<u64, &str>) {
    let opened = place.open(location, stored_as("parquet")).await;
    match (opened, expect) {
        (Ok(dataset), Ok(rows)) => assert_eq!(dataset.snapshot().rows(), rows, "{location}"),
        (Err(error), Err(text)) => {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{location}: {error}");
            assert!(error.to_string().contains(text), "{location}: {error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("write the current version")), "{location}");
        }
        (opened, expect) => panic!("{location}: {opened:?} where {expect:?} is expected"),
    }
}

async fn open_all(place: &TestFolder, locations: &[String], format: TableFormat) -> Result<Dataset> {
    Dataset::open_all(&place.stores(), locations, &format, PathColumns::Inferred, None, None).await
}

#[tokio::test]
async fn files_of_a_table_with_a_log_are_refused() {
    for place in TestFolder::all() {
        // The second file replaced rows of the first.
        for name in ["delta/part-0.parquet", "delta/eu/part-1.parquet", "ice/data/0.parquet", "hudi/eu/0.parquet"] {
            place.put(name, parquet_bytes(0..10)).await;
        }
        place.put("delta/_delta_log/00000000000000000000.json", "{}").await;
        place.put("ice/metadata/v1.metadata.json", "{}").await;
        place.put("ice/metadata/snap-1.avro", "").await;
        place.put("hudi/.hoodie/hoodie.properties", "").await;
        let refused = async |location: &str, folder: &str, name: &str| {
            let text = format!("\"{}\" is {name} table: its log", place.display(folder));
            check(&place, location, Err(&text)).await;
        };
        for location in ["delta", "delta/", "delta/*.parquet", "delta/eu", "delta/e*/*", "d*/**/*.parquet"] {
            refused(location, "delta", "a Delta Lake").await;
        }
        for location in ["ice", "ice/data", "ice/data/*", "ice/**/*.parquet", "ice/data/?.parquet"] {
            refused(location, "ice", "an Iceberg").await;
        }
        for location in ["hudi", "hudi/eu", "hudi/*/*.parquet"] {
            refused(location, "hudi", "a Hudi").await;
        }
        refused("", "delta", "a Delta Lake").await;
        // Named files are taken: the reader knows which ones are current.
        check(&place, "delta/part-0.parquet", Ok(10)).await;
        check(&place, "delta/{part-0,eu/part-1}.parquet", Ok(20)).await;
        let named = ["ice/data/0.parquet", "delta/part-0.parquet"].map(|name| place.display(name));
        let both = open_all(&place, &named, stored_as("parquet")).await.unwrap();
        assert_eq!(both.snapshot().rows(), 20);
        let folders = ["ice/data", "delta/part-0.parquet"].map(|name| place.display(name));
        let error = open_all(&place, &folders, stored_as("parquet")).await.unwrap_err();
        assert!(error.to_string().contains("an Iceberg table"), "{error}");
        // The log itself is a plain folder of JSON lines.
        let log = place.open("delta/_delta_log", stored_as("jsonl")).await.unwrap();
        assert_eq!(log.snapshot().rows(), 1);
    }
}

#[tokio::test]
async fn tables_are_found_beside_many_files_and_through_links() {
    for place in TestFolder::all() {
        place.put("ice/data/0.parquet", parquet_bytes(0..1)).await;
        for at in 0..1500 {
            place.put(&format!("ice/metadata/snap-{at}.avro"), "").await;
        }
        place.put("ice/metadata/00007-1b4e28ba-2fa1-11d2-883f-0016d3cca427.metadata.json", "{}").await;
        check(&place, "ice/data", Err("is an Iceberg table")).await;
        place.put("hint/data/0.parquet", parquet_bytes(0..1)).await;
        place.put("hint/metadata/version-hint.text", "7").await;
        check(&place, "hint/data", Err("is an Iceberg table")).await;
    }
    #[cfg(unix)]
    {
        let place = TestFolder::file();
        place.put("delta/_delta_log/0.json", "{}").await;
        place.put("delta/eu/0.parquet", parquet_bytes(0..1)).await;
        place.put("plain/0.parquet", parquet_bytes(0..1)).await;
        std::os::unix::fs::symlink(place.path("delta/eu"), place.path("europe")).unwrap();
        std::os::unix::fs::symlink(place.path("plain"), place.path("link")).unwrap();
        let text = format!("\"{}\" is a Delta Lake table", place.display("delta"));
        check(&place, "europe", Err(&text)).await;
        check(&place, "link", Ok(1)).await;
    }
}

#[tokio::test]
async fn plain_folders_with_such_names_are_read() {
    for place in TestFolder::all() {
        place.put("photos/a.parquet", parquet_bytes(0..3)).await;
        place.put("photos/metadata/b.parquet", parquet_bytes(3..5)).await;
        place.put("photos/metadata/notes.json", "{}").await;
        place.put("photos/metadata/img1.metadata.json", "{}").await;
        place.put("photos/metadata/old/v1.metadata.json", "{}").await;
        place.put("photos/x_delta_log/c.parquet", parquet_bytes(5..6)).await;
        check(&place, "photos", Ok(6)).await;
        check(&place, "photos/metadata", Ok(2)).await;
        check(&place, "photos/**/*.parquet", Ok(6)).await;
        // Other files beside a table.
        place.put("mixed/delta/_delta_log/0.json", "{}").await;
        place.put("mixed/delta/a.parquet", parquet_bytes(0..3)).await;
        place.put("mixed/rows.csv", csv(0..2)).await;
        assert_eq!(place.open("mixed", stored_as("csv")).await.unwrap().snapshot().rows(), 2);
        check(&place, "mixed", Err("is a Delta Lake table")).await;
    }
}

/// The columns of a dataset as `name type`, and the rows of its first read as text.
async fn everything(dataset: &Dataset) -> (Vec<String>, Vec<String>) {
    let columns = dataset.schema().fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
    let all: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let mut rows = Vec::new();
    for range in dataset.row_ranges(u64::MAX) {
        let read = dataset.read(&range, &all).await.unwrap();
        assert_eq!(read.bad, []);
        let cell = |column: &arrow::array::ArrayRef, row| {
            if column.is_null(row) { "null".to_owned() } else { array_value_to_string(column, row).unwrap() }
        };
        rows.extend((0..read.batch.num_rows()).map(|row| {
            let cells: Vec<String> = read.batch.columns().iter().map(|column| cell(column, row)).collect();
            format!("{}: {}", read.sample_ids.value(row), cells.join(" "))
        }));
    }
    (columns.collect(), rows)
}

#[tokio::test]
async fn folders_that_name_values_are_columns() {
    for place in TestFolder::all() {
        let folders = [
            "dt=2026-01-02/country=ch/n=7",
            "dt=2026-01-01/country=__HIVE_DEFAULT_PARTITION__/n=-3",
            "dt=2026-01-02/country=a%2Fb%20c/n=1",
        ];
        for (at, folder) in folders.iter().enumerate() {
            place.put(&format!("t/{folder}/x.csv"), format!("x\n{at}\n")).await;
        }
        // In the order of the paths.
        let rows = ["0: 1 2026-01-01 null -3", "1: 2 2026-01-02 a/b c 1", "2: 0 2026-01-02 ch 7"];
        for location in ["t", "t/dt=*/*/*/x.csv", "t/**"] {
            let dataset = place.open(location, csv_table()).await.unwrap();
            let expect = ["x Int64", "dt Date32", "country Utf8", "n Int64"];
            assert_eq!(everything(&dataset).await, (expect.map(String::from).into(), rows.map(String::from).into()));
            // As a worker opens it.
            let (spec, snapshot) = (dataset.spec().clone(), dataset.snapshot().clone());
            let pinned = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, dataset.schema().clone()).unwrap();
            assert_eq!(everything(&pinned).await.1, rows);
            // Some columns, in another order, and no columns of the file.
            let range = dataset.row_ranges(1)[1];
            let read = pinned.read(&range, &[2, 0, 1, 2]).await.unwrap();
            assert_eq!(
                read.batch.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(),
                ["country", "x", "dt", "country"]
            );
            assert_eq!(pinned.read(&range, &[3]).await.unwrap().batch.num_rows(), 1);
        }
        // A location inside a partition has its columns too.
        let inside = place.open("t/dt=2026-01-02/country=ch", csv_table()).await.unwrap();
        assert_eq!(everything(&inside).await.1, ["0: 0 2026-01-02 ch 7"]);
        let file = place.open(&format!("t/{}/x.csv", folders[0]), csv_table()).await.unwrap();
        assert_eq!(everything(&file).await.1, ["0: 0 2026-01-02 ch 7"]);
    }
}

#[tokio::test]
async fn every_format_has_columns_of_folders() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let extension = format.descriptor().extensions[0];
            let name = format.descriptor().name;
            for day in [2, 1] {
                let file = format!("{name}/day={day}/cat/0.{extension}");
                place.put(&file, format.format().sample(&file, 0..1, format.options()).bytes).await;
            }
            let dataset = place.open(name, format.clone()).await.unwrap();
            let last = dataset.schema().fields().len() - 1;
            assert_eq!(read_all(&dataset, 1, last).await, [1, 2], "{name}");
            if name == "media" {
                assert_eq!(
                    everything(&dataset).await.1[0].split(' ').skip(2).collect::<Vec<_>>(),
                    ["day=1/cat/0.jpg", &dataset.snapshot().files()[0].size.to_string(), "cat", "1"]
                );
            }
        }
    }
}

#[tokio::test]
async fn texts_of_folders_are_read_as_dictionaries_like_others() {
    let place = TestFolder::memory();
    for folder in ["country=ch", "country=__HIVE_DEFAULT_PARTITION__"] {
        place.put(&format!("t/{folder}/a.parquet"), parquet_bytes(0..3)).await;
    }
    let dataset = place.open("t", stored_as("parquet")).await.unwrap();
    let last = dataset.schema().fields().len() - 1;
    let mut texts = Vec::new();
    for range in dataset.row_ranges(u64::MAX) {
        let read = dataset.read_with_dictionaries(&range, &[last, 0], &[0, last]).await.unwrap().batch;
        assert_eq!(*read.column(0).data_type(), dictionary_of_texts());
        let plain = cast(read.column(0), &DataType::Utf8).unwrap();
        texts.extend(plain.as_string::<i32>().iter().map(|text| text.map(str::to_owned)));
    }
    let ch = || Some("ch".to_owned());
    assert_eq!(texts, [None, None, None, ch(), ch(), ch()]);
}

#[tokio::test]
async fn a_column_of_paths_is_part_of_the_snapshot() {
    let place = TestFolder::memory();
    place.put("t/2026/x.csv", "x\n1\n").await;
    let id = async |location: &str, path_column: Option<&str>| {
        let spec = DatasetSpec {
            location: place.display(location),
            format: csv_table(),
            schema: None,
            path_columns: PathColumns::Inferred,
            path_column: path_column.map(str::to_owned),
        };
        Dataset::open(&place.stores(), &spec).await.unwrap().snapshot().id().to_owned()
    };
    // The same file is "2026/x.csv" below one folder, and "x.csv" below the other.
    assert_eq!(id("t", None).await, id("t/2026", None).await);
    assert_ne!(id("t", Some("file")).await, id("t/2026", Some("file")).await);
}

#[tokio::test]
async fn columns_of_folders_are_declared_or_ignored() {
    let place = TestFolder::memory();
    place.put("t/dt=2026-01-01/n=01/x.csv", "x\n1\n").await;
    place.put("t/dt=none/n=02/x.csv", "x\n2\n").await;
    let open = async |path_columns: PathColumns| {
        let spec = DatasetSpec {
            location: place.display("t"),
            format: csv_table(),
            schema: None,
            path_columns,
            path_column: None,
        };
        Dataset::open(&place.stores(), &spec).await
    };
    let declared = |columns: &[(&str, DataType)]| {
        let fields = columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
        PathColumns::Declared(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
    };
    let rows = async |columns| everything(&open(columns).await.unwrap()).await.1;
    assert_eq!(rows(PathColumns::Inferred).await, ["0: 1 2026-01-01 01", "1: 2 none 02"]);
    assert_eq!(rows(PathColumns::Ignored).await, ["0: 1", "1: 2"]);
    let texts = declared(&[("n", DataType::Utf8), ("dt", DataType::Null)]);
    assert_eq!(rows(texts.clone()).await, ["0: 1 01 2026-01-01", "1: 2 02 none"]);
    let dataset = open(texts).await.unwrap();
    let spec = serde_json::from_str(&serde_json::to_string(dataset.spec()).unwrap()).unwrap();
    assert_eq!(*dataset.spec(), spec);
    let refused = async |columns, expect: &str| {
        let error = open(columns).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, expect));
    };
    let root = "memory:///root/t";
    refused(
        declared(&[("dt", DataType::Date32)]),
        &format!(
            "\"{root}/dt=none/n=02/x.csv\": the value \"none\" of column \"dt\" in its path is not of type Date32"
        ),
    )
    .await;
    refused(
        declared(&[("m", DataType::Null)]),
        &format!("the path of \"{root}/dt=2026-01-01/n=01/x.csv\" has no folder \"m=…\""),
    )
    .await;
    place.put("t/dt=none/x.csv", "x\n3\n").await;
    refused(
        PathColumns::Inferred,
        &format!(
            "the path of \"{root}/dt=none/x.csv\" has dt=…, but that of \"{root}/dt=2026-01-01/n=01/x.csv\" has \
             dt=…/n=…"
        ),
    )
    .await;
    assert_eq!(rows(declared(&[("dt", DataType::Utf8)])).await.len(), 3);
    place.put("u/x=1/a.csv", "x\n3\n").await;
    let error = place.open("u", csv_table()).await.unwrap_err();
    assert!(error.to_string().contains("has a column \"x\" in the file and another in its path"), "{error}");
    place.put("u/x=1/x=2/a.csv", "y\n3\n").await;
    let error = place.open("u/x=1/x=2", csv_table()).await.unwrap_err();
    assert!(error.to_string().contains("has two folders \"x=…\""), "{error}");
    place.put("w/X=1/a.csv", "x\n3\n").await;
    let error = place.open("w", csv_table()).await.unwrap_err();
    assert!(error.to_string().contains("has a column \"x\" in the file and \"X\" in its path"), "{error}");
    assert!(error.hint().unwrap().contains("hive_partitioning=False in Python"), "{error}");
}

#[tokio::test]
async fn declared_columns_of_folders_keep_their_values() {
    let place = TestFolder::memory();
    let declare = async |value: &str, data_type: &DataType, nullable: bool| {
        place.put("t/V=z/a.csv", "x\n1\n").await;
        let folder = format!("one/v={value}");
        place.put(&format!("{folder}/a.csv"), "x\n1\n").await;
        let columns = Schema::new(vec![Field::new("v", data_type.clone(), nullable)]);
        let path_columns = PathColumns::Declared(Arc::new(columns));
        let spec = DatasetSpec {
            location: place.display(&folder),
            format: csv_table(),
            schema: None,
            path_columns,
            path_column: None,
        };
        Dataset::open(&place.stores(), &spec).await
    };
    let time = |unit| DataType::Timestamp(unit, None);
    for (value, data_type, expect) in [
        ("2.5", DataType::Decimal128(3, 1), Some("2.5")),
        ("2.500", DataType::Decimal128(3, 1), Some("2.5")),
        ("2.5", DataType::Decimal128(3, 0), None),
        ("25e-1", DataType::Decimal128(3, 0), None),
        ("2.5", DataType::Int64, None),
        ("007", DataType::Int64, Some("7")),
        ("2026-01-01", DataType::Date32, Some("2026-01-01")),
        ("2026-01-01T23%3A00%3A00", DataType::Date32, None),
        ("2026-01-01T23%3A00%3A00.250Z", time(TimeUnit::Millisecond), Some("2026-01-01T23:00:00.250")),
        ("2026-01-01T23%3A00%3A00.2505Z", time(TimeUnit::Millisecond), None),
        ("2026-01-01", time(TimeUnit::Second), Some("2026-01-01T00:00:00")),
        ("0.1", DataType::Float64, Some("0.1")),
        ("9007199254740993", DataType::Float64, None),
        ("00501", DataType::Utf8, Some("00501")),
    ] {
        match (declare(value, &data_type, true).await, expect) {
            (Ok(dataset), Some(expect)) => {
                assert_eq!(everything(&dataset).await.1, [format!("0: 1 {expect}")], "{value} as {data_type}");
            }
            (Err(error), None) => assert!(error.to_string().contains(" is not of type "), "{value}: {error}"),
            (other, _) => panic!("{value} as {data_type}: {other:?}"),
        }
    }
    let error = declare("__HIVE_DEFAULT_PARTITION__", &DataType::Utf8, false).await.unwrap_err();
    assert!(error.to_string().contains("column \"v\" of its path is null"), "{error}");
    let dataset = declare("x", &DataType::Utf8, false).await.unwrap();
    assert!(!dataset.schema().field(1).is_nullable());
    let columns = PathColumns::Declared(Arc::new(Schema::new(vec![Field::new("v", DataType::Utf8, true)])));
    let spec = DatasetSpec {
        location: place.display("t"),
        format: csv_table(),
        schema: None,
        path_columns: columns,
        path_column: None,
    };
    let error = Dataset::open(&place.stores(), &spec).await.unwrap_err();
    assert!(error.hint().is_some_and(|hint| hint.starts_with("write \"V\"")), "{error}");
}

#[tokio::test]
async fn integers_with_leading_zeros_are_texts() {
    let place = TestFolder::memory();
    place.put("t/zip=00501/n=-7/m=1/x.csv", "x\n1\n").await;
    place.put("t/zip=10001/n=8/m=-0/x.csv", "x\n2\n").await;
    let expect = ["x Int64", "zip Utf8", "n Int64", "m Utf8"].map(String::from).to_vec();
    let rows = ["0: 1 00501 -7 1", "1: 2 10001 8 -0"].map(String::from).to_vec();
    assert_eq!(everything(&place.open("t", csv_table()).await.unwrap()).await, (expect, rows));
}

/// Media files hold their paths, and lists name their files. Neither needs the columns.
#[tokio::test]
async fn columns_of_folders_yield_where_tables_do_not_need_them() {
    let place = TestFolder::memory();
    let bytes = "bytes Binary";
    let open = async |location: &str| {
        let opened = place.open(location, stored_as("media")).await.unwrap();
        let (spec, snapshot) = (opened.spec().clone(), opened.snapshot().clone());
        let pinned = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, opened.schema().clone()).unwrap();
        let found = everything(&opened).await;
        assert_eq!(everything(&pinned).await, found);
        found
    };
    place.put("med/label=cat/size=256/a.jpg", "x").await;
    let (columns, rows) = open("med").await;
    assert_eq!(columns, [bytes, "path Utf8", "label Utf8", "size Int64"]);
    assert_eq!(rows, ["0: 78 label=cat/size=256/a.jpg cat 256"]);
    place.put("med/dog/b.jpg", "y").await;
    let (columns, rows) = open("med").await;
    assert_eq!(columns, [bytes, "path Utf8", "size Int64", "label Utf8"]);
    assert_eq!(rows, ["0: 79 dog/b.jpg 1 dog", "1: 78 label=cat/size=256/a.jpg 1 size=256"]);
    place.put("l/k=v/a.csv", "x\n1\n").await;
    place.put("l/k=w/b.csv", "x\n2\n").await;
    place.put("l/c.csv", "x\n3\n").await;
    let list = async |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| place.display(name)).collect();
        Ok::<_, forebay_storage::Error>(everything(&open_all(&place, &names, csv_table()).await?).await.1)
    };
    assert_eq!(list(&["l/k=v/a.csv", "l/c.csv"]).await.unwrap(), ["0: 3", "1: 1"]);
    assert_eq!(list(&["l/k=v/a.csv", "l/k=w/b.csv"]).await.unwrap(), ["0: 1 v", "1: 2 w"]);
    // A folder is one table.
    let error = list(&["l/k=v", "l/c.csv"]).await.unwrap_err().to_string();
    assert!(error.contains("l/c.csv\" has no folder of a column"), "{error}");
}

/// A column of the files' paths, on request.
#[tokio::test]
async fn every_format_has_a_column_of_paths_on_request() {
    for place in TestFolder::all() {
        for format in all_formats() {
            let (extension, name) = (format.descriptor().extensions[0], format.descriptor().name);
            for file in ["day=1/b", "day=1/a", "day=2/c"] {
                let file = format!("{name}/{file}.{extension}");
                place.put(&file, format.format().sample(&file, 0..2, format.options()).bytes).await;
            }
            for path_columns in [
                PathColumns::Inferred,
                PathColumns::Ignored,
                PathColumns::Declared(Arc::new(Schema::new(vec![Field::new("day", DataType::Utf8, false)]))),
            ] {
                let spec = DatasetSpec {
                    location: place.display(name),
                    format: format.clone(),
                    schema: None,
                    path_columns: path_columns.clone(),
                    path_column: Some("from".to_owned()),
                };
                let dataset = Dataset::open(&place.stores(), &spec).await.unwrap();
                let last = dataset.schema().fields().len() - 1;
                assert_eq!(*dataset.schema().field(last), Field::new("from", DataType::Utf8, false));
                assert!(dataset.is_path_column(last));
                // As a worker opens it, from the spec as text.
                let spec: DatasetSpec = serde_json::from_str(&serde_json::to_string(dataset.spec()).unwrap()).unwrap();
                let snapshot = dataset.snapshot().clone();
                let elsewhere = place.stores_elsewhere();
                let pinned = Dataset::pinned(&elsewhere, &spec, snapshot, dataset.schema().clone()).unwrap();
                let mut paths = Vec::new();
                for range in pinned.row_ranges(u64::MAX) {
                    let here = dataset.read(&range, &[last, 0]).await.unwrap().batch;
                    let there = pinned.read_with_dictionaries(&range, &[last, 0], &[last]).await.unwrap().batch;
                    let column = cast(there.column(0), &DataType::Utf8).unwrap();
                    assert_eq!(here.column(0), &column);
                    assert!(here.num_rows() > 0);
                    let texts = column.as_string::<i32>();
                    paths.push(texts.value(0).to_owned());
                    assert!(texts.iter().all(|text| text == Some(texts.value(0))));
                }
                paths.dedup();
                let expect = ["day=1/a", "day=1/b", "day=2/c"].map(|file| format!("{file}.{extension}"));
                assert_eq!(paths, expect, "{name} with {path_columns:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_column_of_paths_needs_a_name_of_its_own() {
    let place = TestFolder::memory();
    place.put("t/day=1/x.csv", "n\n1\n").await;
    place.put("m/dog/b.jpg", "y").await;
    let open = async |location: &str, format: &str, name: &str| {
        let (location, path_column) = (place.display(location), Some(name.to_owned()));
        let (format, path_columns) = (stored_as(format), PathColumns::Inferred);
        let spec = DatasetSpec { location, format, schema: None, path_columns, path_column };
        Dataset::open(&place.stores(), &spec).await
    };
    let refused = async |location: &str, format: &str, name: &str, expect: &str| {
        let error = open(location, format, name).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Invalid, expect));
        assert!(name.is_empty() || error.hint().unwrap().contains("in the option \"path_column\""), "{error:?}");
    };
    let called = |name: &str| format!("the column of the files' paths is called \"{name}\", and \"memory:///root");
    refused("t", "csv", "N", &format!("{}/t/day=1/x.csv\" has a column \"n\"", called("N"))).await;
    refused("t", "csv", "Day", &format!("{}/t/day=1/x.csv\" has a folder \"day=…\" in its path", called("Day"))).await;
    refused("t", "csv", "", "\"path_column\" must be the name of a column, got ''").await;
    for name in ["path", "label", "bytes"] {
        refused("m", "media", name, &format!("{}/m/dog/b.jpg\" has a column \"{name}\"", called(name))).await;
    }
    let rows = everything(&open("m", "media", "file").await.unwrap()).await.1;
    assert_eq!(rows, ["0: 79 dog/b.jpg 1 dog dog/b.jpg"]);
    // One file, and files that are named one by one.
    assert_eq!(everything(&open("t/day=1/x.csv", "csv", "file").await.unwrap()).await.1, ["0: 1 1 x.csv"]);
    place.put("t/y.csv", "n\n2\n").await;
    let names = ["t/day=1/x.csv", "t/y.csv"].map(|name| place.display(name));
    let (stores, format, file) = (place.stores(), csv_table(), Some("file".to_owned()));
    let listed = Dataset::open_all(&stores, &names, &format, PathColumns::Inferred, file, None).await.unwrap();
    assert_eq!(everything(&listed).await.1, ["0: 1 day=1/x.csv", "1: 2 y.csv"]);
}

#[tokio::test]
async fn the_bounds_of_a_path_are_the_path() {
    let place = TestFolder::memory();
    place.put("t/a.parquet", parquet_bytes(0..3)).await;
    place.put("t/b.parquet", parquet_bytes(3..6)).await;
    let (location, path_column) = (place.display("t"), Some("file".to_owned()));
    let (format, path_columns) = (stored_as("parquet"), PathColumns::Inferred);
    let spec = DatasetSpec { location, format, schema: None, path_columns, path_column };
    let dataset = Dataset::open(&place.stores(), &spec).await.unwrap();
    let column = dataset.schema().fields().len() - 1;
    // Bounds of paths need no file.
    place.delete("t/a.parquet").await;
    let range = dataset.row_ranges(u64::MAX)[0];
    let found = dataset.statistics(&range, &[column], forebay_storage::Of::Groups).await.unwrap();
    let bounds = &found.columns[0];
    assert_eq!(bounds.min.as_string::<i32>().value(0), "a.parquet");
    assert_eq!(bounds.max.as_string::<i32>().value(0), "a.parquet");
}
