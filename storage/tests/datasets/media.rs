//! Tests specific to media files.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;

use crate::support::{TestFolder, stored_as};

#[tokio::test]
async fn media_is_one_row_per_file() {
    for place in TestFolder::all() {
        for (name, bytes) in [
            ("root.pdf", "0"),
            ("train/cat/1.jpg", "one"),
            ("train/dog/2.JPEG", "two"),
            ("train/dog/empty.png", ""),
            ("train/labels.csv", "n\n1\n"),
            ("train/_tmp.jpg", "x"),
        ] {
            place.put(name, bytes).await;
        }
        let dataset = place.open("", stored_as("media")).await.unwrap();
        let names: Vec<&str> = dataset.schema().fields().iter().map(|f| f.name().as_str()).collect();
        assert_eq!(names, ["bytes", "path", "size", "label"]);
        let mut found = Vec::new();
        for range in dataset.row_ranges(1 << 20) {
            let rows = dataset.read(&range, &[0, 1, 2, 3]).await.unwrap();
            let column = |i: usize| rows.batch.column(i);
            let bytes = column(0).as_binary::<i32>().value(0).to_vec();
            let path = column(1).as_string::<i32>().value(0).to_owned();
            let label = column(3).as_string::<i32>().iter().next().unwrap().map(str::to_owned);
            assert_eq!(column(2).as_primitive::<Int64Type>().value(0), bytes.len() as i64);
            found.push((path, String::from_utf8(bytes).unwrap(), label));
        }
        let row = |path: &str, bytes: &str, label: Option<&str>| (path.into(), bytes.into(), label.map(str::to_owned));
        let expect: [(String, String, Option<String>); 4] = [
            row("root.pdf", "0", None),
            row("train/cat/1.jpg", "one", Some("cat")),
            row("train/dog/2.JPEG", "two", Some("dog")),
            row("train/dog/empty.png", "", Some("dog")),
        ];
        assert_eq!(found, expect);
        let glob = place.open("train/**", stored_as("media")).await.unwrap();
        assert_eq!(glob.snapshot().rows(), 3);
    }
}

#[tokio::test]
async fn media_is_fetched_only_for_its_bytes() {
    for place in TestFolder::all() {
        place.put("a/1.jpg", "one").await;
        let dataset = place.open("", stored_as("media")).await.unwrap();
        place.delete("a/1.jpg").await;
        let range = dataset.row_ranges(1)[0];
        assert!(dataset.read(&range, &[3, 1, 2]).await.is_ok());
        assert!(dataset.read(&range, &[0]).await.is_err());
    }
}
