//! Folders of other systems: tables with a log.

use forebay_storage::{Dataset, ErrorKind};

use crate::support::{TestFolder, csv, parquet_bytes, stored_as};

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

#[tokio::test]
async fn files_of_a_table_with_a_log_are_refused() {
    for place in TestFolder::all() {
        // The second file replaced rows of the first.
        for name in ["delta/part-0.parquet", "delta/dt=2026/part-1.parquet", "ice/data/0.parquet", "hudi/eu/0.parquet"]
        {
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
        for location in ["delta", "delta/", "delta/*.parquet", "delta/dt=2026", "delta/dt=*/*", "d*/**/*.parquet"] {
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
        check(&place, "delta/{part-0,dt=2026/part-1}.parquet", Ok(20)).await;
        let named = ["ice/data/0.parquet", "delta/part-0.parquet"].map(|name| place.display(name));
        let both = Dataset::open_all(&place.stores(), &named, &stored_as("parquet")).await.unwrap();
        assert_eq!(both.snapshot().rows(), 20);
        let folders = ["ice/data", "delta/part-0.parquet"].map(|name| place.display(name));
        let error = Dataset::open_all(&place.stores(), &folders, &stored_as("parquet")).await.unwrap_err();
        assert!(error.to_string().contains("an Iceberg table"), "{error}");
        // The log itself is a plain folder of JSON lines.
        let log = place.open("delta/_delta_log", stored_as("jsonl")).await.unwrap();
        assert_eq!(log.snapshot().rows(), 1);
    }
}

#[tokio::test]
async fn plain_folders_with_such_names_are_read() {
    for place in TestFolder::all() {
        place.put("photos/a.parquet", parquet_bytes(0..3)).await;
        place.put("photos/metadata/b.parquet", parquet_bytes(3..5)).await;
        place.put("photos/metadata/notes.json", "{}").await;
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
