//! Bad rows are raised with file and row, skipped, or quarantined, and always keep their offsets.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{Batch, Folder, Running, Server, forebay, repository, run, succeed, text, wrong};

/// Ids by offset: one list of samples per batch.
fn ids(batches: &[Batch]) -> BTreeMap<u64, Vec<String>> {
    batches.iter().map(|batch| (batch.offset, batch.ids.clone())).collect()
}

/// Returns the records of quarantined rows under `root`, as `file|row|reason`, with paths relative to `folder`.
fn quarantined(root: &Path, folder: &Path) -> Vec<String> {
    let reader = Folder::new();
    let script = reader.script(&format!(
        "CREATE EXTERNAL TABLE q STORED AS PARQUET LOCATION '{}/quarantine';
         CREATE PIPELINE q AS SELECT concat(file, '|', CAST(row AS VARCHAR), '|', reason) AS record
         FROM q WHERE feed <> '' AND epoch = 0;",
        root.display()
    ));
    let folder = format!("{}/", folder.display());
    let (batches, _) = run([&script, "--ids", "record"]);
    let mut records: Vec<_> =
        batches.iter().flat_map(|batch| &batch.ids).map(|record| record.replace(&folder, "")).collect();
    records.sort();
    records
}

fn photo() -> Vec<u8> {
    std::fs::read(repository().join("examples/photos/cat/000.jpg")).expect("a sample photograph")
}

/// Writes six media files, three of them bad, in the order of their paths.
fn photos() -> (Folder, String) {
    let folder = Folder::new();
    folder.write("photos/a.jpg", photo());
    folder.write("photos/b_empty.jpg", "");
    folder.write("photos/c.jpg", photo());
    folder.write("photos/d_text.jpg", "this is not a picture");
    folder.write("photos/e_cut.jpg", &photo()[..photo().len() / 2]);
    folder.write("photos/f.jpg", photo());
    let script = folder.script(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
         CREATE PIPELINE p AS SELECT path, resize(decode_image(bytes), height => 8, width => 8) AS image FROM photos;",
    );
    (folder, script)
}

const BAD_PHOTOS: [(&str, &str); 3] = [
    ("b_empty.jpg", "decode_image: not an image of a known format (no bytes)"),
    ("d_text.jpg", "decode_image: not an image of a known format (starts with \"this is"),
    ("e_cut.jpg", "decode_image: damaged JPEG"),
];

#[test]
fn a_bad_picture_is_an_error_that_names_file_and_row() {
    for (name, reason) in BAD_PHOTOS {
        let (folder, script) = photos();
        for (other, _) in BAD_PHOTOS.iter().filter(|(other, _)| *other != name) {
            std::fs::remove_file(folder.path().join("photos").join(other)).expect("it was written");
        }
        let place = format!("\"{}/photos/{name}\", row 0: ", folder.path().display());
        let phrases = [place.as_str(), reason, "hint: fix the file", "'skip' or 'quarantine'"];
        wrong(&["run", &script], &phrases);
        wrong(&["preview", &script, "--on-error", "raise"], &phrases);
        let server = Server::start(&script, &[]);
        wrong(&["run", "--connect", &server.uri], &phrases);
    }
}

/// Each of these files of 33 bytes would take 800 MB, and four of them more than one array can hold.
#[test]
fn image_bombs_are_bad_rows() {
    let (folder, script) = photos();
    let bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x40\0\0\0\x40\0\x08\x02\0\0\0\x12\xf0\x9b\xd7";
    (0..4).for_each(|number| _ = folder.write(&format!("photos/b_bomb_{number}.png"), bomb));
    let (batches, summary) = run([script.as_str(), "--on-error", "skip", "--ids", "path", "--batch-size", "10"]);
    let good = ["a.jpg", "c.jpg", "f.jpg"].map(str::to_owned).to_vec();
    assert_eq!(ids(&batches), BTreeMap::from([(0, good)]));
    assert_eq!(summary["bad_rows"], 7);
    std::fs::remove_file(folder.path().join("photos/b_empty.jpg")).expect("it was written");
    let limit = "an image of 16384 x 16384 is over the limit of 67108864 pixels; set max_pixels => 268435456";
    wrong(&["run", &script], &["b_bomb_0.png", limit]);
}

#[test]
fn a_bad_picture_that_is_left_out_keeps_its_offset() {
    let (_folder, script) = photos();
    let skip = |source: &[&str], more: &[&str]| {
        run([source, &["--on-error", "skip", "--ids", "path", "--batch-size"], more].concat())
    };
    let local = [script.as_str()];
    let (batches, summary) = skip(&local, &["2"]);
    let expected =
        BTreeMap::from([(0, vec!["a.jpg".to_owned()]), (2, vec!["c.jpg".to_owned()]), (4, vec!["f.jpg".to_owned()])]);
    assert_eq!(ids(&batches), expected);
    assert_eq!((&summary["samples"], &summary["bad_rows"]), (&3.into(), &3.into()));
    let server = Server::start(&script, &[]);
    let (remote, _) = skip(&["--connect", &server.uri], &["2"]);
    assert_eq!(remote, batches);
    // The same rows are left out for any order and batch size.
    let whole = ids(&skip(&local, &["6", "--shuffle"]).0);
    let (ones, _) = skip(&local, &["1", "--shuffle"]);
    assert_eq!(ones.iter().filter(|batch| batch.rows == 0).count(), 3);
    assert_eq!(ids(&ones).into_values().flatten().collect::<Vec<_>>(), whole[&0]);
}

#[test]
fn quarantine_records_file_row_and_reason_in_parquet() {
    let (folder, script) = photos();
    let root = folder.path().join("root");
    let quarantine = |more: &[&str]| {
        run([&[script.as_str(), "--on-error", "quarantine", "--root", text(&root), "--batch-size"], more].concat())
    };
    let (batches, summary) = quarantine(&["2"]);
    assert_eq!(batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), [1, 1, 1]);
    let place = summary["quarantine"].as_str().expect("the summary says where");
    assert!(place.starts_with(text(&root)), "{place}");
    let records = quarantined(&root, folder.path());
    assert_eq!(records.len(), 3, "{records:?}");
    for (record, (name, reason)) in records.iter().zip(BAD_PHOTOS) {
        assert!(record.starts_with(&format!("photos/{name}|0|{reason}")), "{record}");
    }
    // Reading again writes the same files again. A second epoch has its own files.
    quarantine(&["2", "--epochs", "2"]);
    assert_eq!(quarantined(&root, folder.path()), records);
    // Another batch size has its own files too, but the same records of rows.
    for rank in ["0", "1"] {
        quarantine(&["1", "--rank", rank, "--world-size", "2"]);
    }
    let mut again = quarantined(&root, folder.path());
    again.dedup();
    assert_eq!(again, records);
    let blocked = text(&folder.write("file", "")).to_owned();
    wrong(
        &["run", &script, "--on-error", "quarantine", "--root", &blocked],
        &["cannot write quarantined rows", &blocked, "hint: choose a writable folder or URL with --root"],
    );
}

#[test]
fn the_default_root_is_in_the_current_folder() {
    let (folder, script) = photos();
    let here = Folder::new();
    let output = succeed(forebay(["run", &script, "--on-error", "quarantine"]).current_dir(here.path()));
    let root = here.path().canonicalize().expect("it exists").join(".forebay");
    assert!(output.contains(text(&root)), "{output}");
    assert_eq!(quarantined(&root, folder.path()).len(), 3);
}

/// Checks all three modes over `bad`, written as `name`. `good` has the same size, and its row `n` has id `n`.
fn check_bad_rows(format: &str, name: &str, good: &str, bad: &str, expected: &[(u64, &str)]) {
    assert_eq!(good.len(), bad.len(), "windows are cut by bytes");
    let folder = Folder::new();
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE t (id BIGINT, price DOUBLE) STORED AS {format} LOCATION '{name}';
         CREATE PIPELINE p WITH (shuffle = true, seed = 3, batch_size = 3) AS SELECT id, log1p(price) AS price FROM t;"
    ));
    let read = |text: &str, more: &[&str]| {
        folder.write(name, text);
        run([&[script.as_str(), "--ids", "id"], more].concat())
    };
    let (all, _) = read(good, &[]);
    let is_bad = |id: &String| expected.iter().any(|(row, _)| row.to_string() == *id);
    let left: BTreeMap<_, Vec<_>> = ids(&all)
        .into_iter()
        .map(|(offset, ids)| (offset, ids.into_iter().filter(|id| !is_bad(id)).collect()))
        .collect();
    let (skipped, summary) = read(bad, &["--on-error", "skip"]);
    assert_eq!(ids(&skipped), left, "the others are where they were");
    assert_eq!(summary["bad_rows"], expected.len());
    let root = folder.path().join("root");
    let (quarantine, _) = read(bad, &["--on-error", "quarantine", "--root", text(&root)]);
    assert_eq!(ids(&quarantine), left);
    let records = quarantined(&root, folder.path());
    let reasons: Vec<_> = expected.iter().map(|(row, reason)| format!("{name}|{row}|{reason}")).collect();
    assert_eq!(records, reasons);
    let (row, reason) = expected[0];
    let place = format!("\"{}/{name}\", row {row}: {reason}", folder.path().display());
    let raise = ["run", &script, "--shuffle", "false", "--batch-size", "1", "--output", "json"];
    wrong(&raise, &[&place, "hint: fix the file", "'skip' or 'quarantine'"]);
    let (before, status, _) = Running::start(&mut forebay(raise)).end();
    assert_eq!((before.len() as u64, status.code()), (row, Some(4)), "batches before a bad row are delivered");
}

#[test]
fn bad_csv_rows_are_raised_skipped_and_quarantined() {
    check_bad_rows(
        "CSV",
        "rows.csv",
        "id,price\n0,1.5\n1,2.5\n2,3.5\n3,4.5\n4,5.5\n5,6.5\n6,7.5\n7,8.5\n",
        "id,price\n0,1.5\n1,x.5\n2,3.5\n3_4.5\n4,5.5\n5,6,5\n6,7.5\n7,8.5\n",
        &[
            (1, "column \"price\": cannot read \"x.5\" as Float64"),
            (3, "1 fields where 2 are expected"),
            (5, "3 fields where 2 are expected"),
        ],
    );
}

#[test]
fn bad_json_lines_are_raised_skipped_and_quarantined() {
    let row = |id: u64| format!("{{\"id\": {id}, \"price\": {id}.5}}");
    let good: Vec<String> = (0..8).map(row).collect();
    let mut bad = good.clone();
    bad[2] = good[2].replace("2.5", "\"x\"");
    bad[5] = good[5].replace('}', "]");
    bad[7] = format!("{:<1$}", "7 and 8", good[7].len());
    check_bad_rows(
        "JSONL",
        "rows.jsonl",
        &good.join("\n"),
        &bad.join("\n"),
        &[
            (2, "column \"price\": cannot read \"x\" as Float64"),
            (5, "not a JSON object: Encountered unexpected ']' whilst parsing object"),
            (7, "not a JSON object: Encountered unexpected 'a' whilst parsing value"),
        ],
    );
}

#[test]
fn a_row_that_an_expression_fails_on_is_bad_also_in_where() {
    let folder = Folder::new();
    folder.write("rows.csv", "id,by\n0,1\n1,0\n2,1\n3,1\n");
    for select in ["SELECT id, 6 / by AS n FROM t", "SELECT id FROM t WHERE 6 / by > 1"] {
        let script = folder.script(&format!(
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv'; CREATE PIPELINE p AS {select};"
        ));
        wrong(&["run", &script], &["rows.csv\", row 1: ", "ivide by zero", "'skip' or 'quarantine'"]);
        let (batches, _) = run([&script, "--on-error", "skip", "--batch-size", "1", "--ids", "id"]);
        let expected = [(0, vec!["0"]), (1, vec![]), (2, vec!["2"]), (3, vec!["3"])];
        let expected = expected.map(|(offset, ids)| (offset, ids.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        assert_eq!(ids(&batches), BTreeMap::from(expected));
    }
}

#[test]
fn a_preview_shows_nulls_inside_of_structs_and_lists() {
    let folder = Folder::new();
    folder.write(
        "rows.jsonl",
        concat!(
            "{\"place\": {\"x\": 1, \"name\": null}, \"days\": [1, null]}\n",
            "{\"place\": null, \"days\": null}\n",
            "{\"place\": {\"x\": null, \"name\": \"\"}, \"days\": []}\n",
        ),
    );
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS JSONL LOCATION 'rows.jsonl'; CREATE PIPELINE p AS SELECT place, days FROM t;",
    );
    let shown = succeed(&mut forebay(["preview", &script, "--output", "json"]));
    let rows: Vec<serde_json::Value> = shown.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let expect = [
        serde_json::json!({ "place": { "name": null, "x": 1 }, "days": [1, null] }),
        serde_json::json!({ "place": null, "days": null }),
        serde_json::json!({ "place": { "name": "", "x": null }, "days": [] }),
    ];
    assert_eq!(rows, expect);
    let table = succeed(&mut forebay(["preview", &script]));
    assert!(table.contains("{name: null, x: 1}") && table.contains("[1, null]"), "{table}");
}

#[test]
fn a_preview_shows_good_rows_and_writes_nothing_about_bad_ones() {
    let folder = Folder::new();
    folder.write("rows.csv", "a\nx\n1\ny\n2\n3\n");
    let script = folder.script(
        "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS CSV LOCATION 'rows.csv';
         CREATE PIPELINE p WITH (on_error = 'quarantine') AS SELECT a FROM t;",
    );
    let root = folder.path().join("root").display().to_string();
    let shown = succeed(&mut forebay(["preview", &script, "--rows", "2", "--root", &root, "--output", "json"]));
    assert_eq!(shown, "{\"a\":1}\n{\"a\":2}\n");
    assert!(!std::path::Path::new(&root).exists());
}
