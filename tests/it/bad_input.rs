//! Wrong input: each gives one clear error with what, where and what to do; nothing panics, hangs or goes unnoticed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::support::{Batch, Folder, Running, Server, fail, forebay, repository, run, signal, succeed};

/// Runs and expects one error, which has all of `phrases`.
fn wrong(arguments: &[&str], phrases: &[&str]) {
    let message = fail(&mut forebay(arguments));
    let errors = message.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(errors == 1 && message.starts_with("error: "), "{arguments:?} gives one error:\n{message}");
    for phrase in phrases {
        assert!(message.contains(phrase), "{arguments:?} lacks {phrase:?}:\n{message}");
    }
}

/// A folder with `clicks.csv`: `id` and `price`, three good rows.
fn clicks() -> Folder {
    let folder = Folder::new();
    folder.write("clicks.csv", "id,price\n0,1.5\n1,2.5\n2,3.5\n");
    folder
}

/// Runs `sql` as the script of `folder` and expects an error.
fn refused(folder: &Folder, sql: &str, phrases: &[&str]) {
    wrong(&["run", &folder.script(sql)], phrases);
}

/// A pipeline `p` of all columns of a table of this format over `location`.
fn everything(format: &str, location: &str) -> String {
    format!("CREATE EXTERNAL TABLE t STORED AS {format} LOCATION '{location}'; CREATE PIPELINE p AS SELECT * FROM t;")
}

/// Ids by offset: one list of samples a batch.
fn ids(batches: &[Batch]) -> BTreeMap<u64, Vec<String>> {
    batches.iter().map(|batch| (batch.offset, batch.ids.clone())).collect()
}

/// The records of rows that were quarantined under `root`, as `file|row|reason`, with paths below `folder`.
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

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

#[test]
fn what_does_not_exist_is_named() {
    wrong(
        &["run", "no/such.sql"],
        &["\"no/such.sql\" does not exist", "hint: check the path; a relative one begins at"],
    );
    wrong(&["run", "/"], &["cannot read the script \"/\"", "directory"]);
    let folder = clicks();
    let file = |name: &str| format!("\"{}/{name}\"", folder.path().display());
    let missing = |location: &str, phrases: &[&str]| refused(&folder, &everything("CSV", location), phrases);
    let placed = "script.sql:1:48";
    missing("gone.csv", &[&file("gone.csv"), "does not exist", placed, "hint: check the path"]);
    missing("clicks.cvs", &[&file("clicks.cvs"), "did you mean \"clicks.csv\"?", placed]);
    missing("gone/*.csv", &["no csv files match", &file("gone/*.csv"), placed, "check the folder and the pattern"]);
    missing("ftp://host/x.csv", &["unknown scheme \"ftp\"", placed, "use a path, file://, memory:// or s3://"]);
    missing("", &["LOCATION is empty", placed]);
    missing("a[.csv", &["is not a valid glob", placed]);
}

#[test]
fn a_dataset_without_rows_is_an_error_that_names_it() {
    let folder = Folder::new();
    std::fs::create_dir(folder.path().join("nothing")).expect("a folder");
    folder.write("others/readme.txt", "no data");
    folder.write("empty.csv", "");
    folder.write("header.csv", "id,price\n");
    folder.write("blank.jsonl", "\n\n");
    let empty = |format: &str, location: &str, phrases: &[&str]| {
        refused(&folder, &everything(format, location), phrases);
        let script = text(&folder.path().join("script.sql")).to_owned();
        for command in [&["preview", &script][..], &["explain", &script], &["serve", &script, "--port", "0"]] {
            wrong(command, phrases);
        }
    };
    let file = |name: &str| format!("\"{}/{name}\"", folder.path().display());
    let none = ["pipeline \"p\" reads a dataset without rows", "hint: fill the files, or check the LOCATION"];
    empty("CSV", "empty.csv", &[none[0], none[1], &file("empty.csv")]);
    empty("CSV", "header.csv", &[none[0], none[1], &file("header.csv")]);
    empty("JSONL", "blank.jsonl", &[none[0], none[1], &file("blank.jsonl")]);
    empty("CSV", "nothing", &["no csv files under", &file("nothing"), "csv files end in .csv, .tsv"]);
    empty("MEDIA", "others", &["no media files under", "such as \"readme.txt\"", "media files end in .jpg"]);
    wrong(&["run", &folder.script("")], &["the script creates no pipeline", "hint: add CREATE PIPELINE"]);
    wrong(&["serve", &folder.script("-- nothing"), "--port", "0"], &["the script creates no pipeline"]);
}

#[test]
fn a_file_that_is_not_what_its_table_says_is_named() {
    let folder = clicks();
    let path = |name: &str| format!("\"{}/{name}\"", folder.path().display());
    let not = |format: &str, name: &str, bytes: &[u8], phrases: &[&str]| {
        folder.write(name, bytes);
        let file = path(name);
        refused(&folder, &everything(format, name), &[&[file.as_str(), "script.sql:1:"], phrases].concat());
    };
    not("PARQUET", "text.parquet", b"id,price\n0,1\n", &["not a readable parquet file"]);
    not("PARQUET", "cut.parquet", b"PAR1\x15\x04", &["not a readable parquet file"]);
    not(
        "CSV",
        "open.csv",
        b"id,price\n0,1\n1,\"2\n2,3\n",
        &["record at byte 13", "quote that is never closed", "close it"],
    );
    not("CSV", "wide.csv", b"\xff\xfei\0d\0\n\0", &["not UTF-8", "convert the file to UTF-8"]);
    not("CSV", "twice.csv", b"id,id\n1,2\n", &["two columns named \"id\"", "rename one"]);
    not("CSV", "packed.csv.gz", b"\x1f\x8b", &["compressed text is not read yet", "decompress it"]);
    folder.write("two/a.csv", "id,price\n1,2\n");
    folder.write("two/b.csv", "id,prise\n1,2\n");
    refused(&folder, &everything("CSV", "two"), &[&path("two/b.csv"), "column \"prise\" where \"price\" is expected"]);
    refused(
        &folder,
        &everything("CSV", "/dev/zero"),
        &["\"/dev/zero\" is a pipe or device", "write its bytes to a file"],
    );
    refused(
        &folder,
        &everything("PARQUTE", "clicks.csv"),
        &["unknown file type \"PARQUTE\"", "1:35", "hint: STORED AS PARQUET"],
    );
    let option = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'clicks.csv' OPTIONS ('format.delimter' ';');";
    refused(&folder, option, &["no option \"format.delimter\"", "format.delimiter"]);
}

/// Six media files, of which three are bad, in the order of their paths.
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
    ("b_empty.jpg", "decode_image: not a JPEG or PNG image (no bytes)"),
    ("d_text.jpg", "decode_image: not a JPEG or PNG image (starts with \"this is"),
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
        let phrases = [place.as_str(), reason, "hint: mend the file", "'skip' or 'quarantine'"];
        wrong(&["run", &script], &phrases);
        wrong(&["preview", &script, "--on-error", "raise"], &phrases);
        let server = Server::start(&script, &[]);
        wrong(&["run", "--connect", &server.uri], &phrases);
    }
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
    // The same rows are left out, wherever they come in the order and however they are cut.
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
    // Reading again writes the same files again; a second epoch has files of its own.
    quarantine(&["2", "--epochs", "2"]);
    assert_eq!(quarantined(&root, folder.path()), records);
    // So has another way to cut batches, but never another record of a row.
    for rank in ["0", "1"] {
        quarantine(&["1", "--rank", rank, "--world-size", "2"]);
    }
    let mut again = quarantined(&root, folder.path());
    again.dedup();
    assert_eq!(again, records);
    let blocked = text(&folder.write("file", "")).to_owned();
    wrong(
        &["run", &script, "--on-error", "quarantine", "--root", &blocked],
        &["cannot write quarantined rows", &blocked, "hint: give a folder or URL that can be written to (--root)"],
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

/// Checks all three modes over `bad`, written as `name`, against `good` of the same size, where each row `n` has id `n`.
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
    wrong(&raise, &[&place, "hint: mend the file", "'skip' or 'quarantine'"]);
    let (before, status, _) = Running::start(&mut forebay(raise)).end();
    assert_eq!((before.len() as u64, status.code()), (row, Some(1)), "what comes before a bad row is handed out");
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
fn sql_that_a_feed_cannot_run_is_refused_with_its_place() {
    let folder = clicks();
    let table = "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';\nCREATE PIPELINE p AS\n";
    for (query, place, what, hint) in [
        ("SELECT prise FROM clicks", "3:8", "column \"prise\" not found", "did you mean \"price\"?"),
        ("SELECT id FROM clikcs", "3:16", "table \"clikcs\" not found", "did you mean \"clicks\"?"),
        ("SELECT log2p(price) AS x FROM clicks", "3:8", "function \"log2p\" not found", "did you mean"),
        ("SELECT log1p('a') AS x FROM clicks", "3:14", "log1p: \"x\" must be a number, got Utf8", ""),
        ("SELECT log1p(price, 2) AS x FROM clicks", "3:21", "takes 1 argument (x), got 2", ""),
        (
            "SELECT hash_bucket(id, buckets => 0) AS x FROM clicks",
            "3:35",
            "must be a positive integer, got 0",
            "buckets =>",
        ),
        ("SELECT resize(price, 2, 2) AS x FROM clicks", "3:15", "\"image\" must be an image", ""),
        ("SELECT id FROM clicks ORDER BY price", "3:23", "ORDER BY needs the whole dataset", "shuffle"),
        ("SELECT id FROM clicks LIMIT 3", "3:23", "LIMIT needs the whole dataset", "fewer files"),
        ("SELECT id FROM clicks TABLESAMPLE BERNOULLI (10)", "3:23", "TABLESAMPLE", "hash_bucket"),
        ("SELECT avg(price) AS x FROM clicks", "3:8", "the aggregate \"avg\" needs the whole dataset", "beforehand"),
        (
            "SELECT a.id FROM clicks a JOIN clicks b ON a.id = b.id",
            "3:27",
            "JOIN needs a second table",
            "join beforehand",
        ),
        ("SELECT random() AS x FROM clicks", "3:8", "\"random\" draws anew on every run", "random_hflip"),
        ("SELECT now() AS x FROM clicks", "3:8", "\"now\" reads the clock", "literal"),
        ("SELECT id,, price FROM clicks", "3:11", "expected", ""),
        ("SELECT id FROM clicks WHERE 'a", "3:29", "unterminated string literal", ""),
        ("SELCT id FROM clicks", "3:1", "\"SELCT\"", ""),
    ] {
        let place = format!("script.sql:{place}\n");
        let begins = if hint.is_empty() { "" } else { "\nhint: " };
        refused(&folder, &format!("{table}{query};"), &[what, &place, query, begins, hint]);
    }
    let both = format!("{table}SELECT id FROM clicks; CREATE PIPELINE q AS SELECT id FROM clicks;");
    refused(&folder, &both, &["the script creates 2 pipelines", "hint: choose one with --pipeline: p, q"]);
    let twice = format!("{table}SELECT id FROM clicks;\nCREATE PIPELINE p AS SELECT 1;");
    refused(
        &folder,
        &twice,
        &["pipeline \"p\" exists already", "script.sql:4:17", "hint: write CREATE OR REPLACE PIPELINE"],
    );
    wrong(&["sql", "-c", "SELECT 1"], &["a bare SELECT", "command:1:1", "hint: wrap it"]);
    wrong(&["sql", "-c", "CREAT PIPELINE p"], &["\"CREAT\"", "did you mean CREATE?"]);
    std::fs::write(folder.path().join("latin.sql"), b"-- caf\xe9\n").expect("a file");
    wrong(&["run", text(&folder.path().join("latin.sql"))], &["latin.sql", "UTF-8"]);
}

#[test]
fn options_of_a_pipeline_are_checked_when_it_is_created() {
    let folder = clicks();
    for (option, column, what) in [
        ("batch_size = 0", 38, "\"batch_size\" must be a positive integer, got 0"),
        ("batch_size = 'x'", 38, "\"batch_size\" must be a positive integer, got x"),
        ("batchsize = 8", 25, "unknown pipeline option \"batchsize\""),
        ("epochs = 0", 34, "\"epochs\" must be a positive integer, got 0"),
        ("seed = -1", 32, "\"seed\" must be an integer from 0 to 2^64 - 1, got -1"),
        ("shuffle = 1", 35, "\"shuffle\" must be true or false"),
        ("window_bytes = 'big'", 40, "\"window_bytes\" must be a size such as '64MiB', got big"),
        ("window_rows = 0", 39, "\"window_rows\" must be a positive integer, got 0"),
        ("on_error = 'ignore'", 36, "\"on_error\" must be 'raise', 'skip' or 'quarantine', got 'ignore'"),
    ] {
        let sql = format!(
            "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';\nCREATE PIPELINE p WITH ({option}) AS SELECT * FROM clicks;"
        );
        refused(&folder, &sql, &[what, &format!("script.sql:2:{column}\n")]);
        if option.starts_with("batchsize") {
            refused(&folder, &sql, &["hint: did you mean \"batch_size\"?"]);
        }
    }
}

#[test]
fn options_of_reading_are_checked_in_process_and_by_the_server() {
    let folder = clicks();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let server = Server::start(&script, &[]);
    let (other, _) = run([&script, "--seed", "9", "--steps", "1"]);
    let token = other[0].token.as_str();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--batch-size", "0"], &["\"batch_size\" must be a positive integer, got 0"]),
        (&["--batch-size", "99999999999"], &["\"batch_size\" times \"world_size\" must be at most"]),
        (&["--world-size", "0"], &["\"world_size\" must be a positive integer, got 0"]),
        (
            &["--rank", "2", "--world-size", "2"],
            &["\"rank\" must be below the world size of 2, got 2", "hint: ranks count from 0"],
        ),
        (&["--epochs", "0"], &["\"epochs\" must be between 1 and"]),
        (&["--epochs", "18446744073709551615"], &["\"epochs\" must be between 1 and"]),
        (&["--window-rows", "0"], &["\"window_rows\" must be positive, got 0"]),
        (&["--window-bytes", "0"], &["\"window_bytes\" must be positive, got 0"]),
        (&["--from", "18446744073709551615"], &["\"from\" must be below", "0:18446744073709551615"]),
        (&["--from", "18446744073709551615:0"], &["\"from\" must be below", "18446744073709551615:0"]),
        (
            &["--from", token],
            &["the resume token is of feed", "pipeline \"p\" opens as feed", "hint: a feed is its query"],
        ),
        (&["--ids", "prise"], &["no column \"prise\"", "hint: columns: id, price"]),
        (&["--pipeline", "P"], &["there is no pipeline \"P\"", "hint: did you mean \"p\"?"]),
        (&["--pipeline", "train"], &["there is no pipeline \"train\"", "hint: pipelines: p"]),
    ];
    for (arguments, phrases) in cases {
        wrong(&[&["run", &script], *arguments].concat(), phrases);
        wrong(&[&["run", "--connect", &server.uri], *arguments].concat(), phrases);
    }
    let ranks = fail(forebay(["run", &script]).envs([("RANK", "3"), ("WORLD_SIZE", "2")]));
    assert!(ranks.contains("\"rank\" must be below the world size of 2, got 3"), "{ranks}");
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let folder = clicks();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let cut = &run([&script, "--steps", "1"]).0[0].token[4..];
    let cases: &[(&[&str], &[&str])] = &[
        (&["--batch-size", "-1"], &["'-1'", "--batch-size", "must be a whole number"]),
        (&["--batch-size", "many"], &["'many'", "--batch-size", "must be a whole number"]),
        (&["--from", "start"], &["--from", "OFFSET, EPOCH:OFFSET or a resume token, got \"start\""]),
        (&["--from", "-1"], &["--from", "OFFSET, EPOCH:OFFSET or a resume token, got \"-1\""]),
        (&["--from", &format!("fb1.0{cut}")], &["is not a whole resume token", "hint: copy the \"token\" of a batch"]),
        (&["--window-bytes", "5 parsecs"], &["\"5 parsecs\" is not a size", "hint: write a number and a unit"]),
        (&["--on-error", "ignore"], &["'raise', 'skip' or 'quarantine', got 'ignore'"]),
        (&["--shuffle", "maybe"], &["'maybe'", "true, false"]),
        (&["--batchsize", "3"], &["'--batchsize'", "'--batch-size'"]),
        (&["--threads", "0"], &["\"threads\" must be between 1 and"]),
        (&["--threads", "1000000"], &["\"threads\" must be between 1 and", "got 1000000"]),
    ];
    for (arguments, phrases) in cases {
        wrong(&[&["run", &script], *arguments].concat(), phrases);
    }
    wrong(&["run"], &["nothing to read", "hint: give a SQL script, or a server with --connect"]);
    wrong(&["runn"], &["'runn'", "'run'"]);
    wrong(&["preview", &script, "--rows", "0"], &["'0'", "--rows"]);
    let page = folder.path().join("no/such/page.html");
    wrong(&["preview", &script, "--html", text(&page)], &["cannot write", text(&page)]);
    wrong(&["operators", "resise"], &["there is no operator \"resise\"", "hint: did you mean \"resize\"?"]);
    wrong(&["serve", &script, "--host", "0.0.0.0"], &["reachable from other machines", "hint:", "--insecure"]);
}

#[test]
fn a_port_in_use_is_named() {
    let folder = clicks();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it listens").port().to_string();
    let what = format!("port {port} of 127.0.0.1 is in use");
    wrong(&["serve", &script, "--port", &port], &[&what, "hint: stop the process that has it, or give another --port"]);
    drop(taken);
    let mut server = Running::start(&mut forebay(["serve", &script, "--port", &port, "--output", "json"]));
    assert!(server.line().expect("the port is free again").contains(&port));
    server.process.kill().expect("it runs");
    server.end();
}

#[test]
fn a_server_that_cannot_be_reached_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it listened");
    let closed = format!("grpc://{free}");
    let refused = ["no server answers at", closed.as_str(), "hint: start one with `forebay serve"];
    wrong(&["run", "--connect", &closed], &refused);
    wrong(&["run", "--connect", &closed, "--pipeline", "p"], &refused);
    for uri in ["ftp://127.0.0.1:7070", "https://127.0.0.1:7070"] {
        wrong(&["run", "--connect", uri], &[uri, "unknown scheme", "hint: write grpc://HOST:PORT"]);
    }
    for uri in ["", "grpc://", "grpc://a b"] {
        wrong(&["run", "--connect", uri], &[uri, "is not an address", "hint: write grpc://HOST:PORT"]);
    }
}

#[test]
fn a_port_of_something_else_is_named() {
    let answers: [&[u8]; 3] =
        [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n", b""];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let uri = format!("grpc://{}", listener.local_addr().expect("it listens"));
        // Ends with the test's process, if nobody connects any more.
        std::thread::spawn(move || {
            for mut connection in listener.incoming().map_while(Result::ok) {
                let _ = connection.read(&mut [0; 1024]);
                let _ = connection.write_all(answer);
            }
        });
        for more in [&[][..], &["--pipeline", "p"]] {
            let phrases = [uri.as_str(), "hint: ", "host and port"];
            wrong(&[&["run", "--connect", &uri], more].concat(), &phrases);
        }
    }
}

/// Files of one row each, with much text, read without looking ahead: `id` is the file's number.
fn many_files(count: u64) -> (Folder, String, impl Fn(u64) -> PathBuf) {
    let folder = Folder::new();
    let path = |id: u64| format!("rows/{id:03}.csv");
    for id in 0..count {
        folder.write(&path(id), format!("id,text\n{id},{}\n", "x".repeat(8000)));
    }
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';
         CREATE PIPELINE p WITH (batch_size = 1, window_rows = 1) AS SELECT * FROM t;",
    );
    let root = folder.path().to_owned();
    (folder, script, move |id| root.join(path(id)))
}

#[test]
fn a_file_that_changes_under_a_running_feed_is_an_error() {
    let (_folder, script, path) = many_files(40);
    // Lines of eight kilobytes fill the pipe long before the last file is read.
    let arguments =
        ["run", &script, "--ids", "text", "--output", "json", "--threads", "2", "--window-memory-limit", "0"];
    let reading = Running::start(&mut forebay(arguments));
    assert!(reading.line().is_some());
    let name = format!("\"{}\"", path(39).display());
    std::fs::write(path(39), "id,text\n39,other\n").expect("a file");
    let (lines, status, error) = reading.end();
    assert_eq!((lines.len(), status.code()), (38, Some(1)), "{error}");
    for phrase in [&name, "changed since the feed's snapshot was taken", "size", "restart"] {
        assert!(error.contains(phrase), "{error}");
    }
}

#[test]
fn a_file_that_changes_under_a_server_is_an_error_until_it_restarts() {
    let (_folder, script, path) = many_files(4);
    let server = Server::start(&script, &["--window-memory-limit", "0"]);
    let connect = ["run", "--connect", &server.uri, "--ids", "id"];
    succeed(&mut forebay(connect));
    let name = format!("\"{}\"", path(2).display());
    let old = std::fs::read_to_string(path(2)).expect("it was written");
    std::fs::write(path(2), old.replace("xx", "yy")).expect("a file");
    wrong(&connect, &[&name, "changed since the feed's snapshot was taken", "same size", "restart the run or server"]);
    // It is no bad row, so none that may be skipped.
    wrong(&[&connect[..], &["--on-error", "skip"]].concat(), &[&name, "changed since"]);
    std::fs::remove_file(path(2)).expect("it was written");
    wrong(&connect, &[&name, "was removed since the feed's snapshot was taken", "put it back"]);
    std::fs::write(path(2), old.replace("xx", "zz")).expect("a file");
    let fresh = Server::start(&script, &[]);
    succeed(&mut forebay(["run", "--connect", &fresh.uri]));
}

/// Two thousand batches of ten kilobytes: more than connection and pipe hold together.
fn long() -> (Folder, String) {
    let folder = Folder::new();
    let rows: String = (0..2000).map(|id| format!("{id}\n")).collect();
    folder.write("rows.csv", format!("id\n{rows}"));
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';
         CREATE PIPELINE p WITH (shuffle = true, batch_size = 1) AS SELECT id, repeat('x', 10000) AS text FROM t;",
    );
    (folder, script)
}

#[test]
fn a_killed_server_is_an_error_with_the_token_that_goes_on_at_another() {
    let (_folder, script) = long();
    let mut server = Server::start(&script, &[]);
    let arguments = |uri: &str| ["--connect", uri, "--ids", "id"].map(str::to_owned);
    let reading = Running::start(forebay(["run", "--output", "json"]).args(arguments(&server.uri)));
    let first = reading.line().expect("a first batch");
    server.process.kill().expect("it runs");
    let (lines, status, error) = reading.end();
    assert_eq!(status.code(), Some(1), "{error}");
    let parse = |line: &String| serde_json::from_str::<Batch>(line).expect("a batch line");
    let mut batches: Vec<_> = std::iter::once(&first).chain(&lines).map(parse).collect();
    assert!(batches.len() < 2000, "the kill came too late");
    assert!(error.contains(&format!("lost the server at {}", server.uri)), "{error}");
    let token = &batches.last().expect("the first").token;
    assert!(error.contains(&format!("hint: when it is back, go on with --from {token}")), "{error}");
    let another = Server::start(&script, &[]);
    let rest = run(arguments(&another.uri).iter().map(String::as_str).chain(["--from", token])).0;
    batches.extend(rest);
    assert_eq!(batches.iter().map(|batch| batch.offset).collect::<Vec<_>>(), (0..2000).collect::<Vec<_>>());
    let mut ids: Vec<u64> =
        batches.iter().flat_map(|batch| &batch.ids).map(|id| id.parse().expect("a number")).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..2000).collect::<Vec<_>>());
    drop(another);
    wrong(&["run", "--connect", &server.uri], &["no server answers at", &server.uri]);
}

#[test]
fn a_run_whose_reader_leaves_ends_quietly() {
    let (_folder, script) = long();
    let server = Server::start(&script, &[]);
    for from in [&[script.as_str()][..], &["--connect", &server.uri]] {
        let reading = Running::start(forebay(["run", "--output", "json"]).args(from));
        assert!(reading.line().is_some());
        let (status, error) = reading.hang_up();
        assert_eq!((status.code(), error.as_str()), (Some(0), ""), "{from:?}");
    }
}

#[test]
fn a_server_stops_when_told_to() {
    let folder = clicks();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    for name in ["TERM", "INT"] {
        assert_eq!(Server::start(&script, &[]).stop(name), Some(0), "SIG{name}");
    }
}

#[test]
fn a_server_stops_when_told_to_while_a_stream_is_open() {
    let (_folder, script) = long();
    let server = Server::start(&script, &[]);
    let uri = server.uri.clone();
    let reading = Running::start(&mut forebay(["run", "--output", "json", "--connect", &uri]));
    assert!(reading.line().is_some());
    assert_eq!(server.stop("TERM"), Some(0));
    let (_, status, error) = reading.end();
    assert_eq!(status.code(), Some(1), "{error}");
    assert!(error.contains("lost the server at") && error.contains("go on with --from"), "{error}");
}

#[test]
fn a_server_goes_on_when_a_client_is_killed() {
    let (_folder, script) = long();
    let server = Server::start(&script, &[]);
    let reading = Running::start(&mut forebay(["run", "--output", "json", "--connect", &server.uri]));
    assert!(reading.line().is_some());
    signal(reading.process.id(), "KILL");
    reading.end();
    assert_eq!(run(["--connect", &server.uri, "--steps", "3"]).0.len(), 3);
}

#[test]
fn json_whose_columns_cannot_be_told_is_refused_not_dropped() {
    let folder = Folder::new();
    for line in [r#"{"id":1,"extra":[1,{"q":2}]}"#, r#"{"id":1,"k":[1,[2]]}"#] {
        folder.write("rows.jsonl", format!("{line}\n{{\"id\":2}}\n"));
        let script = folder.script("CREATE EXTERNAL TABLE t STORED AS JSONL LOCATION 'rows.jsonl';");
        let message = fail(&mut forebay(["sql", &script]));
        assert!(message.contains("columns cannot be told") && message.contains("rows.jsonl"), "{message}");
    }
}

#[test]
fn an_offset_past_the_epoch_is_refused() {
    let folder = Folder::new();
    let script = folder.clicks(50);
    let message = fail(&mut forebay(["run", &script, "--epochs", "3", "--from", "51"]));
    assert!(message.contains("offset 51") && message.contains("50 samples"), "{message}");
    // The end itself is where the next epoch begins.
    assert_eq!(run([script.as_str(), "--epochs", "2", "--from", "50"]).1["samples"], 50);
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
