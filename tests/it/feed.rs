//! The promise: a feed is a function. The same samples and bytes for any ranks, threads, limits, places and restarts.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::support::{Batch, Folder, Server, forebay, log, photos_sql, run};

/// The photographs in batches of ten, two epochs, as the whole log; with `more` arguments.
fn photos(more: &[&str]) -> Vec<Batch> {
    let script = photos_sql();
    let script = script.to_str().expect("a UTF-8 path");
    run([&[script, "--batch-size", "10", "--epochs", "2", "--ids", "path"], more].concat()).0
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
    let whole = log(photos(&[]));
    for offset in (0..=240).step_by(10) {
        for connect in [&[][..], &["--connect", &server.uri]] {
            let from = offset.to_string();
            let tail = log(photos(&[&["--from", &from], connect].concat()));
            let expected: BTreeMap<_, _> = whole.clone().split_off(&(0, offset));
            assert_eq!(tail, expected, "from {offset} {connect:?}");
        }
    }
}

#[test]
fn a_token_of_every_step_resumes_on_other_ranks_and_again_from_there() {
    let folder = Folder::new();
    let script = folder.clicks(500);
    // A filter, so that offsets depend on the data and the token must say more than a number.
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
    let whole = read(1, 12, None);
    let all = samples(&whole);
    assert_eq!(all.len(), 2 * 333);
    let mut done = 0;
    // Each check is a dozen processes, so every fifth step, and those around the ends of the epochs.
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
    let (batches, summary) = run([&script, "--shuffle", "false", "--window-rows", "7", "--ids", "id"]);
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
