//! Invalid requests. Each gives one clear error that says what is wrong, where, and what to do. None panics, hangs or
//! succeeds.

use forebay_engine::{ErrorKind, FeedOptions, Session};

use crate::support::{
    Folder, Running, Server, clicks_csv, everything, fail, forebay, run, signal, succeed, text, wrong,
};

/// Runs `sql` as the script of `folder` and expects an error.
fn refused(folder: &Folder, sql: &str, phrases: &[&str]) {
    wrong(&["run", &folder.script(sql)], phrases);
}

#[test]
fn what_does_not_exist_is_named() {
    wrong(
        &["run", "no/such.sql"],
        &["\"no/such.sql\" does not exist", "hint: check the path; relative paths begin at"],
    );
    wrong(&["run", "/"], &["cannot read the script \"/\"", "directory"]);
    let folder = clicks_csv();
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
    let folder = clicks_csv();
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
    refused(&folder, option, &["no option \"format.delimter\"", ":1:70", "has_header, delimiter"]);
}

#[test]
fn sql_that_a_feed_cannot_run_is_refused_with_its_place() {
    let folder = clicks_csv();
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
        ("SELECT id FROM clicks FETCH FIRST 3 ROWS ONLY", "3:23", "FETCH is not supported", "LIMIT"),
        ("SELECT id FROM clicks TABLESAMPLE SYSTEM (10)", "3:23", "a sample selects each row", "BERNOULLI"),
        ("SELECT avg(random_uniform()) AS x FROM clicks", "3:12", "\"random_uniform\" runs in a feed", "outermost"),
        ("SELECT array_agg(id) AS x FROM clicks", "3:1", "array_agg() without ORDER BY", "array_agg(x ORDER BY x)"),
        (
            "SELECT a.id FROM clicks a JOIN clicks b",
            "3:27",
            "a join without a condition returns every pair of rows",
            "CROSS JOIN",
        ),
        (
            "SELECT random() AS x FROM clicks",
            "3:8",
            "\"random\" returns new random values on every run",
            "random_hflip",
        ),
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
    wrong(&["sql", "-c", "SELECT a"], &["column \"a\" not found", "command:1:8"]);
    wrong(&["sql", "-c", "CREAT PIPELINE p"], &["\"CREAT\"", "did you mean CREATE?"]);
    std::fs::write(folder.path().join("latin.sql"), b"-- caf\xe9\n").expect("a file");
    wrong(&["run", text(&folder.path().join("latin.sql"))], &["latin.sql", "UTF-8"]);
}

#[test]
fn options_of_a_pipeline_are_checked_when_it_is_created() {
    let folder = clicks_csv();
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
            "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';\n\
             CREATE PIPELINE p WITH ({option}) AS SELECT * FROM clicks;"
        );
        refused(&folder, &sql, &[what, &format!("script.sql:2:{column}\n")]);
        if option.starts_with("batchsize") {
            refused(&folder, &sql, &["hint: did you mean \"batch_size\"?"]);
        }
    }
}

#[test]
fn windows_of_which_a_table_has_millions_are_refused() {
    let folder = Folder::new();
    folder.write("clicks.csv", format!("id\n{}", "12345678\n".repeat(500_000)));
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let server = Server::start(&script, &[]);
    let phrases = [
        "\"window_bytes\" of 1 divides 4500000 bytes into about 4500000 parts",
        "hint: give \"window_bytes\" at least 32, or leave it out",
    ];
    wrong(&["run", &script, "--window-bytes", "1"], &phrases);
    wrong(&["run", "--connect", &server.uri, "--window-bytes", "1"], &phrases);
}

#[test]
fn options_of_reading_are_checked_in_process_and_by_the_server() {
    let folder = clicks_csv();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let server = Server::start(&script, &[]);
    let (other, _) = run([&script, "--seed", "9", "--steps", "1"]);
    let token = other[0].token.as_str();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--batch-size", "0"], &["\"batch_size\" must be a positive integer, got 0"]),
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
    let many = ["--batch-size", "99999999999"];
    let phrases = ["\"batch_size\" times \"world_size\" must be at most"];
    wrong(&[&["run", &script], &many[..]].concat(), &phrases);
    let phrases = ["a client of this server may set \"batch_size\" to at most 16777216, got 99999999999"];
    wrong(&[&["run", "--connect", &server.uri], &many[..]].concat(), &phrases);
    let ranks = fail(forebay(["run", &script]).envs([("RANK", "3"), ("WORLD_SIZE", "2")]));
    assert!(ranks.contains("\"rank\" must be below the world size of 2, got 3"), "{ranks}");
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let folder = clicks_csv();
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
fn json_whose_columns_cannot_be_told_is_refused_not_dropped() {
    let folder = Folder::new();
    for line in [r#"{"id":1,"extra":[1,{"q":2}]}"#, r#"{"id":1,"k":[1,[2]]}"#] {
        folder.write("rows.jsonl", format!("{line}\n{{\"id\":2}}\n"));
        let script = folder.script("CREATE EXTERNAL TABLE t STORED AS JSONL LOCATION 'rows.jsonl';");
        let message = fail(&mut forebay(["sql", &script]));
        assert!(message.contains("columns cannot be inferred") && message.contains("rows.jsonl"), "{message}");
    }
}

#[test]
fn files_that_are_not_rows_are_refused() {
    let folder = Folder::new();
    folder.write("delta/x.csv", "a\n1\n");
    folder.write("delta/_delta_log/00000000000000000000.json", "{}");
    folder.write("pretty.json", "[\n  {\n    \"a\": 1\n  }\n]\n");
    refused(&folder, &everything("CSV", "delta"), &["is a Delta Lake table", "hint: write the current version"]);
    refused(&folder, &everything("JSON", "pretty.json"), &["holds one JSON array", "hint: write one object per line"]);
}

#[test]
fn columns_of_folders_are_declared_in_sql() {
    let folder = Folder::new();
    folder.write("t/dt=2026-01-01/n=1/x.csv", "a\n1\n");
    folder.write("t/dt=none/n=2/x.csv", "a\n2\n");
    let columns = |clauses: &str| {
        let table =
            format!("CREATE EXTERNAL TABLE t {clauses} LOCATION 't'; DESCRIBE t;").replace("%", "STORED AS CSV");
        succeed(&mut forebay(["sql", &folder.script(&table)]))
    };
    let check = |clauses: &str, expect: &[&str], not: &str| {
        let shown = columns(clauses);
        assert!(expect.iter().all(|part| shown.contains(part)) && !shown.contains(not), "{clauses}: {shown}");
    };
    check("%", &["dt", "Utf8", "n ", "Int64"], "Date32");
    check("% PARTITIONED BY (n VARCHAR)", &["n ", "Utf8"], "dt");
    check("(a DOUBLE) % PARTITIONED BY (n)", &["Float64", "n ", "Int64"], "dt");
    check("% PARTITIONED BY (N INT)", &["a ", "n ", "Int32"], "N ");
    check("% OPTIONS ('hive_partitioning' 'FALSE')", &["a ", "Int64"], "dt");
    let both = "% OPTIONS ('hive_partitioning' 'false', 'path_column' 'file')";
    check(both, &["a ", "Int64", "file", "Utf8"], "dt");
    check("% PARTITIONED BY (n) OPTIONS ('path_column' 'File')", &["n ", "File"], "dt");
    let table = |clauses: &str| format!("CREATE EXTERNAL TABLE t STORED AS CSV {clauses} LOCATION 't';");
    let date = ["the value \"none\" of column \"dt\" in its path is not of type Date32", "dt=none/n=2/x.csv", "hint: "];
    refused(&folder, &table("PARTITIONED BY (dt DATE)"), &date);
    refused(&folder, &table("PARTITIONED BY (m INT)"), &["has no folder \"m=…\""]);
    refused(&folder, &table("OPTIONS ('hive_partitioning' 'no')"), &["must be true or false, got 'no'"]);
    let clash = ["the column of the files' paths is called \"A\"", "has a column \"a\"", "option \"path_column\""];
    refused(&folder, &table("PARTITIONED BY (n) OPTIONS ('path_column' 'A')"), &clash);
}

#[test]
fn an_offset_past_the_epoch_is_refused() {
    let folder = Folder::new();
    let script = folder.clicks(50);
    let message = fail(&mut forebay(["run", &script, "--epochs", "3", "--from", "51"]));
    assert!(message.contains("offset 51") && message.contains("50 samples"), "{message}");
    // The end of an epoch is a valid position: the next epoch begins there.
    assert_eq!(run([script.as_str(), "--epochs", "2", "--from", "50"]).1["samples"], 50);
}

#[test]
fn a_worker_that_could_never_work_is_refused_at_the_start() {
    for list in ["127.0.0.1:17070", "", "grpc://127.0.0.1:17070,", "grpc://127.0.0.1:0", "grpc://:7070", "grpc//h:1"] {
        let phrases = ["--dispatcher is not a list of addresses", "hint: write grpc://HOST:PORT"];
        wrong(&["worker", "--dispatcher", list], &phrases);
    }
    let worker = ["worker", "--dispatcher", "grpc://127.0.0.1:1"];
    for uri in ["grpc://0.0.0.0:0", "grpc://10.0.0.1:0", "grpc://[::]:7070", "grpc://:7070", "10.0.0.1:7070"] {
        let phrases = ["--advertise is not an address that trainers can connect to", "hint: write grpc://HOST:PORT"];
        wrong(&[&worker[..], &["--advertise", uri]].concat(), &phrases);
    }
    wrong(&[&worker[..], &["--memory-limit", "0"]].concat(), &["must be greater than 0"]);
}

#[test]
fn a_run_waits_for_a_server_that_is_not_there_yet() {
    let folder = Folder::new();
    let script = folder.clicks(40);
    let mut server = Server::start(&script, &[]);
    let port = server.port();
    server.kill();
    let arguments = ["run", "--connect", &server.uri, "--output", "json", "--retry-for", "60"];
    let waiting = Running::start(&mut forebay(arguments));
    let _server = Server::launch(&mut forebay(["serve", &script, "--port", &port, "--output", "json"]));
    let (_, status, error) = waiting.end();
    assert!(status.success(), "{error}");
    wrong(
        &["run", "--connect", "grpc://127.0.0.1:1", "--retry-for", "0.1"],
        &["no server answers at grpc://127.0.0.1:1"],
    );
}

/// A script with a sound table and a damaged one, and pipelines over each of them and over both.
fn half_damaged() -> (Folder, String) {
    let folder = clicks_csv();
    folder.write("damaged/a.parquet", b"PAR1 not a footer \x40\0\0\0PAR1");
    let script = folder.script(
        "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
         CREATE EXTERNAL TABLE damaged STORED AS PARQUET LOCATION 'damaged';
         CREATE PIPELINE good AS SELECT id FROM clicks;
         CREATE PIPELINE bad AS SELECT id FROM damaged;
         CREATE PIPELINE joined AS SELECT c.id FROM clicks c JOIN \"damaged\" d ON c.id = d.id;
         CREATE PIPELINE mixed AS SELECT * FROM cutmix(damaged, num_classes => 10);
         DESCRIBE PIPELINE bad;",
    );
    (folder, script)
}

#[test]
fn a_damaged_table_fails_only_the_pipelines_that_read_it() {
    let (folder, script) = half_damaged();
    let damage = format!("\"{}/damaged/a.parquet\" is not a readable parquet file: ", folder.path().display());
    let server = Running::start(&mut forebay(["serve", &script, "--port", "0", "--output", "json"]));
    let ready: serde_json::Value = serde_json::from_str(&server.line().expect("a line")).expect("JSON");
    let uri = ready["uri"].as_str().expect("a URI");
    assert_eq!(ready["pipelines"], serde_json::json!(["good"]));
    let failed = ready["failed"].as_object().expect("the others");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["bad", "joined", "mixed"]);
    let (batches, _) = run(["--connect", uri, "--pipeline", "good"]);
    assert!(!batches.is_empty());
    for pipeline in ["bad", "joined", "mixed"] {
        assert!(failed[pipeline].as_str().expect("a message").starts_with(&damage), "{failed:?}");
        wrong(&["run", "--connect", uri, "--pipeline", pipeline], &[&damage]);
    }
    signal(server.process.id(), "TERM");
    let (_, status, log) = server.end();
    assert!(status.success(), "{log}");
    assert_eq!(log.matches("pipeline not served").count(), 3, "{log}");
    assert!(log.contains("ERROR") && log.contains(&damage), "{log}");
    // A single reader has no use for the rest of the script.
    wrong(&["run", &script, "--pipeline", "good"], &[&damage, "script.sql:2:"]);
}

#[test]
fn a_pipeline_over_a_damaged_table_has_the_tables_error() {
    let (folder, script) = half_damaged();
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let session = Session::builder().base(folder.path()).build().expect("a session");
    let text = std::fs::read_to_string(&script).expect("it was written");
    let of = |session: &Session, name: &str| match session.open(name, &FeedOptions::default()) {
        Ok(_) => None,
        Err(error) => Some((error.kind(), error.message().contains("damaged/a.parquet"))),
    };
    runtime.block_on(session.execute_what_opens("script", &text)).expect("one table opens");
    assert_eq!(session.pipelines(), ["good"]);
    assert_eq!(session.broken().tables.keys().collect::<Vec<_>>(), ["damaged"]);
    assert_eq!(of(&session, "bad"), Some((ErrorKind::Data, true)));
    assert_eq!(of(&session, "nothing"), Some((ErrorKind::NotFound, false)));
    // Other mistakes end the script.
    let wrong = runtime.block_on(session.execute_what_opens("script", "CREATE PIPELINE p AS SELECT x FROM clicks;"));
    assert_eq!(wrong.expect_err("no such column").kind(), ErrorKind::Invalid);
    // So do mistakes in pipelines over the damaged table, and a column may have the table's name.
    let mistakes = [
        ("CREATE PIPELINE p AS SELECT resize(id, hight => 3) FROM damaged;", "hight"),
        ("CREATE PIPELINE p WITH (batch_size = 0) AS SELECT id FROM damaged;", "batch_size"),
        ("CREATE PIPELINE bad2 AS SELECT id FROM damaged; CREATE PIPELINE p AS SELECT damaged FROM clicks;", "damaged"),
        ("CREATE PIPELINE p AS SELECT c.id FROM nothing c JOIN damaged d ON c.id = d.id;", "\"nothing\" not found"),
    ];
    for (text, expect) in mistakes {
        let wrong = runtime.block_on(session.execute_what_opens("script", text)).expect_err(text);
        assert_eq!(wrong.kind(), ErrorKind::Invalid, "{text}");
        assert!(wrong.message().contains(expect), "{text}: {wrong}");
        assert_eq!(of(&session, "p"), Some((ErrorKind::NotFound, false)), "{text}");
    }
    // Only damage breaks a table.
    let missing = "CREATE EXTERNAL TABLE missing STORED AS PARQUET LOCATION 'nothing';";
    let missing = runtime.block_on(session.execute_what_opens("script", missing)).expect_err("there are no files");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(session.broken().tables.keys().collect::<Vec<_>>(), ["damaged"]);
    // The table is created again, now over sound files.
    let again = "CREATE EXTERNAL TABLE damaged STORED AS CSV LOCATION 'clicks.csv';
                 CREATE PIPELINE bad AS SELECT id FROM damaged;";
    runtime.block_on(session.execute_what_opens("script", again)).expect("both open");
    assert_eq!(of(&session, "bad"), None);
    assert!(session.broken().tables.is_empty());
}

#[test]
fn a_script_whose_tables_are_all_damaged_is_not_served() {
    let folder = Folder::new();
    folder.write("a.parquet", b"PAR1");
    let script = folder.script(&everything("PARQUET", "a.parquet"));
    wrong(&["serve", &script, "--port", "0"], &["a.parquet\" is not a readable parquet file", "script.sql:1:"]);
}
