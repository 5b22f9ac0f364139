//! A feed is a function: samples and bytes do not depend on ranks, threads, limits, machines and restarts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Batch, Folder, Server, forebay, log, photos_sql, run, succeed};

/// Reads two epochs of the photographs in batches of ten as one rank, with `more` arguments.
fn photos(more: &[&str]) -> Vec<Batch> {
    epochs_of_photos("2", more)
}

fn epochs_of_photos(epochs: &str, more: &[&str]) -> Vec<Batch> {
    let script = photos_sql();
    let script = script.to_str().expect("a UTF-8 path");
    run([&[script, "--batch-size", "10", "--epochs", epochs, "--ids", "path"], more].concat()).0
}

fn ranks(world_size: u64, more: &[&str]) -> Vec<Batch> {
    let all = (0..world_size).flat_map(|rank| {
        photos(&[&["--rank", &rank.to_string(), "--world-size", &world_size.to_string()], more].concat())
    });
    all.collect()
}

#[test]
fn every_photograph_comes_once_an_epoch_in_another_order_and_crop() {
    let batches = photos(&[]);
    let mut orders = Vec::new();
    for epoch in 0..2 {
        let order: Vec<_> = batches.iter().filter(|b| b.epoch == epoch).flat_map(|b| b.ids.clone()).collect();
        let mut sorted = order.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!((order.len(), sorted.len()), (240, 240));
        orders.push(order);
    }
    assert_ne!(orders[0], orders[1]);
    assert_ne!(log(photos(&["--seed", "1"])), log(batches));
}

#[test]
fn ranks_threads_and_memory_do_not_change_a_byte() {
    let whole = log(photos(&[]));
    assert_eq!(whole.len(), 48);
    for world_size in [2, 4] {
        assert_eq!(log(ranks(world_size, &[])), whole, "{world_size} ranks");
    }
    for more in
        [["--threads", "1"], ["--threads", "2"], ["--window-memory-limit", "0"], ["--window-memory-limit", "1.5MiB"]]
    {
        assert_eq!(log(photos(&more)), whole, "{more:?}");
    }
}

#[test]
fn the_server_gives_the_same_bytes_as_the_process() {
    let script = photos_sql();
    let server = Server::start(script.to_str().expect("a UTF-8 path"), &["--threads", "2"]);
    let whole = log(photos(&[]));
    for world_size in [1, 2, 4] {
        assert_eq!(
            log(ranks(world_size, &["--connect", &server.uri, "--pipeline", "photos"])),
            whole,
            "{world_size} ranks"
        );
    }
}

#[test]
fn a_resume_at_every_tenth_offset_gives_the_same_tail() {
    let server = Server::start(photos_sql().to_str().expect("a UTF-8 path"), &[]);
    let whole = log(epochs_of_photos("1", &[]));
    let connect = ["--connect", server.uri.as_str()];
    for offset in (0..=240).step_by(10) {
        // A read takes a second, so the server is asked at every fifth of these offsets.
        for more in [&[][..], &connect].into_iter().take(if offset % 50 == 0 { 2 } else { 1 }) {
            let from = offset.to_string();
            let tail = log(epochs_of_photos("1", &[&["--from", &from], more].concat()));
            let expected: BTreeMap<_, _> = whole.clone().split_off(&(0, offset));
            assert_eq!(tail, expected, "from {offset} {more:?}");
        }
    }
}

#[test]
fn a_token_of_every_step_resumes_on_other_ranks_and_again_from_there() {
    let folder = Folder::new();
    let script = folder.clicks(500);
    // The filter makes offsets depend on the data, so the token must hold more than a number.
    let filtered =
        std::fs::read_to_string(&script).expect("the script").replace("FROM clicks", "FROM clicks WHERE id % 3 <> 0");
    std::fs::write(&script, filtered).expect("the script");
    let read = |world_size: u64, batch_size: u64, from: Option<&str>| {
        let mut batches = Vec::new();
        for rank in 0..world_size {
            let (rank, world_size, batch_size) = (rank.to_string(), world_size.to_string(), batch_size.to_string());
            let mut arguments = vec![script.as_str(), "--window-rows", "60", "--epochs", "2", "--ids", "id"];
            arguments.extend(["--rank", &rank, "--world-size", &world_size, "--batch-size", &batch_size]);
            arguments.extend(from.into_iter().flat_map(|from| ["--from", from]));
            batches.push(run(arguments).0);
        }
        batches
    };
    let samples = |ranks: &[Vec<Batch>]| {
        let log: BTreeMap<_, _> = ranks.iter().flatten().map(|b| ((b.epoch, b.offset), b.ids.clone())).collect();
        log.into_values().flatten().collect::<Vec<_>>()
    };
    let explained =
        succeed(forebay(["explain", &script, "--window-rows", "60", "--output", "json"]).stdin(Stdio::null()));
    assert!(explained.contains("\"windows\":9"), "the test is about feeds of several windows: {explained}");
    let whole = read(1, 12, None);
    let all = samples(&whole);
    assert_eq!(all.len(), 2 * 333);
    let mut done = 0;
    // Each check starts a dozen processes, so it runs at every fifth step and around the ends of the epochs.
    let checked = |step: u64| step.is_multiple_of(5) || step >= 26;
    for batch in &whole[0] {
        done += batch.ids.len();
        if !checked(batch.step) {
            continue;
        }
        for (world_size, batch_size) in [(2, 6), (4, 3)] {
            let resumed = read(world_size, batch_size, Some(&batch.token));
            assert_eq!(samples(&resumed), all[done..], "after step {} of epoch {}", batch.step, batch.epoch);
            let tokens: BTreeMap<_, _> =
                resumed.iter().flatten().map(|batch| ((batch.epoch, batch.step), &batch.token)).collect();
            let same = |batch: &Batch| tokens[&(batch.epoch, batch.step)] == &batch.token;
            assert!(resumed.iter().flatten().all(same), "ranks make the same token at the same step");
            if let Some(token) = tokens.into_values().next() {
                let at = resumed.iter().filter_map(|rank| rank.first()).map(|batch| (batch.epoch, batch.step)).min();
                let step = resumed.iter().flatten().filter(|batch| Some((batch.epoch, batch.step)) == at);
                let rows: usize = step.map(|batch| batch.ids.len()).sum();
                assert_eq!(samples(&read(1, 12, Some(token))), all[done + rows..], "the second resume");
            }
        }
    }
}

#[test]
fn a_killed_run_goes_on_where_its_last_line_says() {
    let whole = photos(&[]);
    let script = photos_sql();
    for kill_after in [1, 7, 24] {
        let mut command = forebay(["run", "--output", "json", "--batch-size", "10", "--epochs", "2"]);
        let mut process = command.arg(&script).stdout(Stdio::piped()).spawn().expect("the binary starts");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let before: Vec<Batch> = lines
            .take(kill_after)
            .map(|line| serde_json::from_str(&line.expect("a line")).expect("a batch line"))
            .collect();
        process.kill().expect("it runs");
        process.wait().expect("it ends");
        let token = &before.last().expect("a batch").token;
        let after = photos(&["--from", token]);
        let both = log(before.into_iter().chain(after));
        assert_eq!(both, log(whole.clone()), "killed after {kill_after} batches");
    }
}

#[test]
fn without_shuffle_samples_come_in_file_order() {
    let folder = Folder::new();
    let script = folder.clicks(100);
    let (batches, summary) = run([&script, "--shuffle", "false", "--window-rows", "20", "--ids", "id"]);
    let ids: Vec<u64> = batches.iter().flat_map(|batch| &batch.ids).map(|id| id.parse().expect("a number")).collect();
    assert_eq!(ids, (0..100).collect::<Vec<_>>());
    assert_eq!(summary["samples"], 100);
}

#[test]
fn drop_last_leaves_out_the_incomplete_global_batch() {
    let folder = Folder::new();
    let script = folder.clicks(105);
    for rank in ["0", "1"] {
        let arguments = [script.as_str(), "--drop-last", "--rank", rank, "--world-size", "2", "--epochs", "2"];
        let (batches, _) = run(arguments);
        assert_eq!(batches.iter().map(|batch| batch.rows).collect::<Vec<_>>(), vec![10; 10]);
    }
}

#[test]
fn queries_that_look_alike_are_different_feeds() {
    let folder = Folder::new();
    folder.write("rows.csv", "a,b,a + t.b,s\n1,2,9,a\n");
    let pairs = [
        ("array_has(['a, b'], s)", "array_has(['a', 'b'], s)"),
        (r#"s = 'a") AND t.s != Utf8("b'"#, "s = 'a' AND s <> 'b'"),
        (r#""a + t.b""#, "t.a + t.b"),
        ("a", "b"),
        ("concat(s, '1')", "concat(s, '2')"),
    ];
    for (one, other) in pairs {
        let feed = |expression: &str| {
            let script = folder.script(&format!(
                "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';
                 CREATE PIPELINE p AS SELECT {expression} AS x FROM t;"
            ));
            let explained = succeed(&mut forebay(["explain", &script, "--output", "json"]));
            serde_json::from_str::<serde_json::Value>(&explained).expect("JSON")["feed"].clone()
        };
        assert_eq!(feed(one), feed(one));
        assert_ne!(feed(one), feed(other), "{one} and {other}");
    }
}

#[test]
fn a_row_that_one_condition_excludes_is_not_bad_because_another_fails_on_it() {
    let folder = Folder::new();
    folder.write("rows.csv", "s\nx1\n5\nx2\n1\n7\n");
    let queries = [
        "SELECT CAST(s AS INT) AS x FROM t WHERE s NOT LIKE 'x%' AND CAST(s AS INT) > 3",
        "SELECT CAST(s AS INT) AS x FROM t WHERE CAST(s AS INT) > 3 AND s NOT LIKE 'x%'",
        "SELECT x FROM (SELECT CAST(s AS INT) AS x FROM t WHERE s NOT LIKE 'x%') y WHERE x > 3",
    ];
    for query in queries {
        let script = folder.script(&format!(
            "CREATE EXTERNAL TABLE t (s VARCHAR) STORED AS CSV LOCATION 'rows.csv';
             CREATE PIPELINE p AS {query};"
        ));
        let (batches, summary) = run([&script, "--ids", "x"]);
        assert_eq!(batches.iter().flat_map(|batch| &batch.ids).collect::<Vec<_>>(), ["5", "7"], "{query}");
        assert_eq!(summary["bad_rows"], 0, "{query}");
    }
}

#[test]
fn whatever_a_function_calls_its_failure_is_the_row_s() {
    let folder = Folder::new();
    let csv: String = (0..20).map(|a| format!("{a}\n")).collect();
    folder.write("rows.csv", format!("a\n{csv}"));
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';
         CREATE PIPELINE p AS SELECT a, array_resize([1, 2], a - 5) AS x FROM t;",
    );
    let (batches, summary) = run([&script, "--on-error", "skip", "--ids", "a", "--batch-size", "4"]);
    assert_eq!(summary["bad_rows"], 5);
    assert_eq!(
        batches.iter().flat_map(|batch| batch.ids.clone()).collect::<Vec<_>>(),
        (5..20).map(|a| a.to_string()).collect::<Vec<_>>()
    );
    assert_eq!(
        batches.iter().map(|batch| (batch.offset, batch.rows)).collect::<Vec<_>>(),
        [(0, 0), (4, 3), (8, 4), (12, 4), (16, 4)]
    );
}

#[test]
fn json_rows_are_lines_whatever_the_decoder_would_join() {
    let folder = Folder::new();
    folder.write("rows.jsonl", "{\"a\":4}\n{\"a\":\n1}\n{\"a\":2}{\"a\":3}\n");
    let script = folder.script(
        "CREATE EXTERNAL TABLE t (a BIGINT) STORED AS JSONL LOCATION 'rows.jsonl';
         CREATE PIPELINE p AS SELECT a FROM t;",
    );
    let (batches, summary) = run([&script, "--on-error", "skip", "--ids", "a"]);
    assert_eq!((&batches[0].ids, &summary["bad_rows"]), (&vec!["4".to_owned()], &serde_json::json!(3)));
}
