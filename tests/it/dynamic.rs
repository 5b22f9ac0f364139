//! Dynamic delivery: each rank takes the next batch, and each sample still comes exactly once.

use std::collections::BTreeMap;

use crate::support::{Batch, Folder, Running, Server, forebay, run, signal, succeed, wrong};

/// Writes a filtered and shuffled pipeline of a few dozen windows.
fn script() -> (Folder, String) {
    let folder = Folder::new();
    let rows: String = (0..3000).map(|id| format!("{id},{}\n", id * 7 % 31)).collect();
    folder.write("rows.csv", format!("id,x\n{rows}"));
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';
         CREATE PIPELINE p WITH (shuffle = true, seed = 5, batch_size = 7, window_rows = 200) AS
             SELECT id, log1p(x) AS x FROM t WHERE x <> 3;",
    );
    (folder, script)
}

fn arguments(uri: &str, rank: u64, world_size: u64, more: &[&str]) -> Vec<String> {
    let (rank, world_size) = (rank.to_string(), world_size.to_string());
    let job = ["--delivery", "dynamic", "--job", "test", "--rank", &rank, "--world-size", &world_size];
    let all = ["run", "--connect", uri, "--epochs", "2", "--ids", "id", "--output", "json"];
    all.iter().chain(&job).chain(more).map(|&it| it.to_owned()).collect()
}

fn batches(lines: &[String]) -> Vec<Batch> {
    // The last line is the summary.
    lines
        .iter()
        .filter(|line| line.contains("\"digest\""))
        .map(|line| serde_json::from_str(line).expect("a batch"))
        .collect()
}

/// Returns each batch of both epochs by its place, as a single ordered reader gets it.
fn expected(script: &str) -> BTreeMap<(u64, u64), String> {
    let all = run([script, "--epochs", "2", "--ids", "id"]).0;
    all.into_iter().map(|batch| ((batch.epoch, batch.offset), batch.digest)).collect()
}

/// Returns the batches of several ranks by their place. No batch may come twice.
fn together(ranks: &[Vec<Batch>]) -> BTreeMap<(u64, u64), String> {
    let mut all = BTreeMap::new();
    for batch in ranks.iter().flatten() {
        let before = all.insert((batch.epoch, batch.offset), batch.digest.clone());
        assert!(before.is_none(), "the batch at {}:{} came twice", batch.epoch, batch.offset);
    }
    all
}

/// Reads to the end with all ranks of a job concurrently.
fn read(uri: &str, from: &[Option<String>]) -> Vec<Vec<Batch>> {
    let world_size = from.len() as u64;
    let running: Vec<Running> = (0..world_size)
        .zip(from)
        .map(|(rank, from)| {
            let more: Vec<&str> = from.iter().flat_map(|token| ["--from", token]).collect();
            Running::start(&mut forebay(arguments(uri, rank, world_size, &more)))
        })
        .collect();
    let ended = running.into_iter().map(|rank| {
        let (lines, status, error) = rank.end();
        assert!(status.success(), "{error}");
        batches(&lines)
    });
    ended.collect()
}

#[test]
fn ranks_share_each_epoch_and_no_batch_comes_twice() {
    let (_folder, script) = script();
    let server = Server::start(&script, &[]);
    let ranks = read(&server.uri, &[None, None, None]);
    assert_eq!(together(&ranks), expected(&script));
}

#[test]
fn a_rank_that_was_killed_finds_its_claims_when_it_comes_back() {
    let (_folder, script) = script();
    let server = Server::start(&script, &[]);
    let start = |rank, more: &[&str]| Running::start(&mut forebay(arguments(&server.uri, rank, 2, more)));
    let (other, first) = (start(0, &[]), start(1, &[]));
    let mut before = vec![first.line().expect("a batch"), first.line().expect("a batch")];
    signal(first.process.id(), "KILL");
    // The rank's checkpoint is its second batch. Batches printed after it are lost with the process.
    first.end();
    let token = batches(&before).last().expect("two").token.clone();
    let (after, status, error) = start(1, &["--from", &token]).end();
    assert!(status.success(), "{error}");
    before.extend(after);
    let (lines, status, error) = other.end();
    assert!(status.success(), "{error}");
    assert_eq!(together(&[batches(&before), batches(&lines)]), expected(&script));
}

#[test]
fn a_job_goes_on_with_other_ranks_from_all_its_tokens() {
    let (_folder, script) = script();
    for to in [1, 2, 3] {
        let server = Server::start(&script, &[]);
        let running = [0, 1].map(|rank| {
            Running::start(&mut forebay(arguments(&server.uri, rank, 2, &["--steps", &(5 + 20 * rank).to_string()])))
        });
        let first = running.map(|rank| batches(&rank.end().0));
        let tokens = first.each_ref().map(|batches| batches.last().expect("five at least").token.clone());
        // The new server knows nothing about the job.
        drop(server);
        let server = Server::start(&script, &[]);
        let from: Vec<_> = match to {
            2 => tokens.into_iter().map(Some).collect(),
            to => vec![Some(tokens.join(",")); to],
        };
        let rest = read(&server.uri, &from);
        let all: Vec<_> = first.into_iter().chain(rest).collect();
        assert_eq!(together(&all), expected(&script), "from 2 ranks to {to}");
    }
}

#[test]
fn of_two_processes_of_a_rank_the_older_ends_with_an_error_and_the_newer_has_all() {
    let (_folder, script) = script();
    let server = Server::start(&script, &[]);
    let start = |more: &[&str]| Running::start(&mut forebay(arguments(&server.uri, 0, 1, more)));
    let old = start(&[]);
    let first = batches(&[old.line().expect("a batch")]).remove(0);
    // The new process resumes after the first batch, while the old process lives.
    let new = start(&["--from", &first.token]);
    let second = new.line().expect("a batch");
    let (lines, status, error) = old.end();
    assert_eq!(status.code(), Some(5), "{error}");
    assert!(error.contains("error: a newer process reads as rank 0 of job \"test\""), "{error}");
    assert!(batches(&lines).len() < 100, "it was ended early");
    let (rest, status, error) = new.end();
    assert!(status.success(), "{error}");
    let new: Vec<_> = batches(&[second]).into_iter().chain(batches(&rest)).collect();
    assert_eq!(together(&[vec![first], new]), expected(&script));
}

#[test]
fn a_rank_that_is_missing_is_named() {
    let (_folder, script) = script();
    let server = Server::start(&script, &[]);
    let waiting = Running::start(&mut forebay(arguments(&server.uri, 0, 2, &["--retry-for", "4"])));
    let status = loop {
        let status = succeed(&mut forebay(["status", "--connect", &server.uri]));
        if status.contains("waiting for rank 1 for") {
            break status;
        }
    };
    assert!(status.contains("job \"test\", dynamic: 1 of 2 ranks are present"), "{status}");
    let (_, ended, error) = waiting.end();
    assert_eq!(ended.code(), Some(6));
    assert_eq!(error.matches("until rank 1 joins").count(), 2, "a log line, an error: {error}");
}

#[test]
fn what_dynamic_delivery_cannot_do_is_refused() {
    let (_folder, script) = script();
    let server = Server::start(&script, &[]);
    let dynamic = |more: &[&str], phrases: &[&str]| {
        wrong(&[&["run", "--connect", &server.uri, "--delivery", "dynamic"], more].concat(), phrases);
    };
    dynamic(&["--world-size", "2"], &["needs a \"job\" name", "use the same name for all ranks of the job"]);
    dynamic(&["--from", "5"], &["cannot begin at offset 5", "a multiple of 28"]);
    wrong(&["run", &script, "--delivery", "dynamic", "--job", "j", "--world-size", "2"], &["needs a dispatcher"]);
    wrong(&["run", &script, "--delivery", "eager"], &["must be 'ordered' or 'dynamic'"]);
    let ordered = run(["--connect", &server.uri, "--steps", "1"]).0.remove(0).token;
    dynamic(&["--from", &ordered], &["belongs to ordered delivery"]);
    let alone = run(["--connect", &server.uri, "--steps", "1", "--delivery", "dynamic"]).0.remove(0).token;
    wrong(&["run", "--connect", &server.uri, "--from", &alone], &["belongs to dynamic delivery"]);
    // The other rank is missing.
    dynamic(
        &["--world-size", "2", "--job", "lonely", "--retry-for", "0.3"],
        &["until rank 1 joins", "start all ranks of the job, with the same name for --job"],
    );
}
