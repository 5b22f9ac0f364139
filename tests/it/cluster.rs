//! Several processes, one feed: every rank gets the same batches, no matter which processes compute, join, leave or are
//! killed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use forebay_engine::operators::Draws;
use serde_json::Value;

use crate::support::{
    Batch, DEADLINE, Folder, Running, Server, fail, forebay, log, repository, run, signal, succeed, wrong,
};

/// Maps epoch and offset of several ranks' batches to rows and digest.
type Log = BTreeMap<(u64, u64), (u64, String)>;

/// A script over the sample photographs, filtered, shuffled and augmented, with two dozen windows per epoch: `train`,
/// and `slow`, the same with a wait of some milliseconds per row.
fn photos(milliseconds: u64) -> (Folder, String) {
    let folder = Folder::new();
    let location = repository().join("examples/photos");
    let pipeline = |name: &str, path: &str| {
        format!(
            "CREATE PIPELINE {name} WITH (shuffle = true, seed = 3, batch_size = 2, window_rows = 10) AS
             SELECT random_hflip(random_resized_crop(decode_image(bytes), height => 16, width => 16)) AS image, label,
                 {path} AS path
             FROM photos WHERE size % 3 <> 0;"
        )
    };
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION '{}'; {} {}",
        location.display(),
        pipeline("train", "path"),
        pipeline("slow", &format!("sleep(path, milliseconds => {milliseconds})")),
    ));
    (folder, script)
}

/// Returns the batches that one rank in one process reads of `train` without disturbance.
fn undisturbed(script: &str, epochs: u64) -> Vec<Batch> {
    run([script, "--pipeline", "train", "--epochs", &epochs.to_string(), "--ids", "path"]).0
}

/// Dispatchers and workers, each in its own process.
pub(crate) struct Cluster {
    script: String,
    dispatchers: Vec<Server>,
    workers: Vec<Server>,
    /// The number of workers started so far.
    started: Cell<usize>,
}

impl Cluster {
    pub(crate) fn start(script: &str, dispatchers: usize, workers: usize) -> Self {
        let dispatchers = (0..dispatchers).map(|_| Server::start(script, &["--no-worker"])).collect();
        let mut cluster = Self { script: script.to_owned(), dispatchers, workers: Vec::new(), started: Cell::new(0) };
        for _ in 0..workers {
            cluster.workers.push(cluster.worker("0"));
        }
        cluster
    }

    /// The dispatchers' addresses, as a list.
    pub(crate) fn uris(&self) -> String {
        self.dispatchers.iter().map(|server| server.uri.as_str()).collect::<Vec<_>>().join(",")
    }

    fn worker(&self, port: &str) -> Server {
        let uris = self.uris();
        let arguments = ["worker", "--dispatcher", &uris, "--port", port, "--threads", "1", "--output", "json"];
        let started = self.started.replace(self.started.get() + 1);
        // Some workers are read over their ports, as from another machine.
        let port_only = (started % 2 == 1).then_some("--no-local-socket");
        Server::launch(forebay(arguments).args(port_only).stderr(Stdio::null()))
    }

    /// Starts a dispatcher in place of a killed one.
    fn restart_dispatcher(&mut self, index: usize) {
        let port = self.dispatchers[index].port();
        let arguments = ["serve", &self.script, "--no-worker", "--port", &port, "--output", "json"];
        self.dispatchers[index] = Server::launch(&mut forebay(arguments));
    }
}

fn status(uri: &str) -> Value {
    let status = succeed(&mut forebay(["status", "--connect", uri, "--output", "json"]));
    serde_json::from_str(&status).expect("JSON")
}

/// Polls a dispatcher's status until `is_so` holds.
fn wait_for(uri: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let status = status(uri);
        if is_so(&status) {
            return status;
        }
        assert!(began.elapsed() < DEADLINE, "timed out waiting for {what}: {status}");
    }
}

fn workers(status: &Value) -> &Vec<Value> {
    status["workers"].as_array().expect("workers")
}

/// Returns the number of workers that hold windows.
fn busy(status: &Value) -> usize {
    workers(status).iter().filter(|worker| worker["windows"].as_u64() > Some(0)).count()
}

/// Ranks as processes. A killed rank is restarted from its last token.
struct Job {
    arguments: Vec<String>,
    ranks: Vec<Rank>,
    said: Receiver<(usize, Option<String>)>,
    sender: Sender<(usize, Option<String>)>,
}

struct Rank {
    process: Child,
    batches: Vec<Batch>,
    was_killed: bool,
    /// Whether it has printed its summary.
    has_ended: bool,
}

impl Job {
    fn start(world_size: usize, arguments: &[&str]) -> Self {
        let (sender, said) = mpsc::channel();
        let world = world_size.to_string();
        let arguments = arguments.iter().chain(&["--world-size", &world]).map(|&it| it.to_owned()).collect();
        let mut job = Self { arguments, ranks: Vec::new(), said, sender };
        for rank in 0..world_size {
            let process = job.spawn(rank, None);
            job.ranks.push(Rank { process, batches: Vec::new(), was_killed: false, has_ended: false });
        }
        job
    }

    fn spawn(&self, rank: usize, from: Option<&str>) -> Child {
        let mut command = forebay(["run", "--output", "json", "--ids", "path", "--rank", &rank.to_string()]);
        command.args(&self.arguments).args(from.into_iter().flat_map(|from| ["--from", from]));
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            let lines = stdout.lines().map_while(Result::ok).map(Some).chain([None]);
            // Sending fails after the test has ended.
            lines.map(|line| sender.send((rank, line))).take_while(Result::is_ok).for_each(drop);
        });
        process
    }

    fn received(&self) -> usize {
        self.ranks.iter().map(|rank| rank.batches.len()).sum()
    }

    fn is_done(&self) -> bool {
        self.ranks.iter().all(|rank| rank.has_ended)
    }

    fn kill(&mut self, rank: usize) {
        let rank = &mut self.ranks[rank];
        rank.process.kill().expect("a child process");
        rank.was_killed = true;
    }

    /// Reads the next line of a rank, if one comes in time.
    fn listen(&mut self, patience: Duration) -> bool {
        let Ok((index, line)) = self.said.recv_timeout(patience) else { return false };
        let rank = &mut self.ranks[index];
        match line.map(|line| serde_json::from_str::<Value>(&line)) {
            Some(Ok(line)) if line.get("samples").is_some() => rank.has_ended = true,
            Some(Ok(line)) => rank.batches.push(serde_json::from_value(line).expect("a batch line")),
            // The kill truncated its last line.
            Some(Err(error)) => assert!(rank.was_killed, "{error}"),
            None => {
                let status = rank.process.wait().expect("it can be waited for");
                if !rank.was_killed {
                    let mut error = String::new();
                    let stderr = rank.process.stderr.as_mut().expect("piped");
                    stderr.read_to_string(&mut error).expect("errors are UTF-8");
                    assert!(status.success() && rank.has_ended, "rank {index} ended with {status}: {error}");
                } else if !rank.has_ended {
                    let from = rank.batches.last().map(|batch| batch.token.clone());
                    let process = self.spawn(index, from.as_deref());
                    let rank = &mut self.ranks[index];
                    (rank.process, rank.was_killed) = (process, false);
                }
            }
        }
        true
    }

    fn listen_for(&mut self, duration: Duration) {
        let until = Instant::now() + duration;
        while self.listen(until.saturating_duration_since(Instant::now())) {}
    }

    /// Reads until `batches` batches have come, or all.
    fn listen_until(&mut self, batches: usize) {
        while !self.is_done() && self.received() < batches {
            assert!(self.listen(DEADLINE), "no rank said anything for {DEADLINE:?}");
        }
    }

    /// Reads to the end, and returns each rank's batches.
    fn finish(mut self) -> Vec<Vec<Batch>> {
        self.listen_until(usize::MAX);
        self.ranks.iter_mut().map(|rank| std::mem::take(&mut rank.batches)).collect()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Checks that each rank's batches are in order, that each batch came once, and that all equal the undisturbed ones.
fn assert_same(ranks: Vec<Vec<Batch>>, undisturbed: Vec<Batch>) {
    for (rank, batches) in ranks.iter().enumerate() {
        let places: Vec<_> = batches.iter().map(|batch| (batch.epoch, batch.offset)).collect();
        assert!(places.is_sorted(), "rank {rank} got its batches out of order");
        let is_its = |batch: &Batch| batch.offset / 2 % ranks.len() as u64 == rank as u64;
        assert!(batches.iter().all(is_its), "rank {rank} got another rank's batches");
    }
    let samples = |batches: &[Batch]| {
        let mut samples: Vec<_> =
            batches.iter().flat_map(|batch| batch.ids.iter().map(|id| (batch.epoch, id.clone()))).collect();
        samples.sort();
        samples
    };
    let all: Vec<Batch> = ranks.into_iter().flatten().collect();
    assert!(samples(&all) == samples(&undisturbed), "each sample once an epoch");
    let (got, expected): (Log, Log) = (log(all), log(undisturbed));
    assert!(got == expected, "the batches differ in {:?}", got.iter().find(|&(at, batch)| expected[at] != *batch));
}

#[test]
fn several_workers_give_several_ranks_what_one_process_reads() {
    let (_folder, script) = photos(0);
    let cluster = Cluster::start(&script, 1, 3);
    let uri = cluster.uris();
    wait_for(&uri, "three workers", |status| workers(status).len() == 3);
    let job = Job::start(4, &["--connect", &uri, "--pipeline", "train", "--epochs", "2"]);
    let expected = undisturbed(&script, 2);
    assert!(expected.iter().flat_map(|batch| &batch.ids).collect::<BTreeSet<_>>().len() > 100);
    assert_same(job.finish(), expected);
}

/// The number of kills, and the number of epochs that take about as long.
fn chaos() -> (usize, u64) {
    match std::env::var("FOREBAY_CHAOS_SECONDS").ok() {
        Some(seconds) => {
            let seconds: usize = seconds.parse().expect("FOREBAY_CHAOS_SECONDS is a number");
            (seconds / 2, seconds as u64)
        }
        None => (12, 8),
    }
}

fn random() -> Draws {
    let seed = match std::env::var("FOREBAY_SEED").ok() {
        Some(seed) => seed.parse().expect("FOREBAY_SEED is a number"),
        None => 1,
    };
    #[expect(clippy::print_stdout, reason = "a failure must be repeatable")]
    {
        println!("FOREBAY_SEED={seed}");
    }
    Draws::new(seed, 0)
}

/// Lets four ranks read `slow`, calls `kill` at even intervals, and checks that the batches do not change.
fn survive(
    cluster: &mut Cluster,
    (kills, epochs): (usize, u64),
    mut kill: impl FnMut(&mut Cluster, &mut Job, &mut Draws),
) {
    let mut draws = random();
    let expected = undisturbed(&cluster.script, epochs);
    let uris = cluster.uris();
    let mut job = Job::start(
        4,
        &["--connect", &uris, "--pipeline", "slow", "--epochs", &epochs.to_string(), "--retry-for", "60"],
    );
    let mut landed = 0;
    for number in 1..=kills {
        job.listen_until(number * expected.len() / (kills + 1));
        if job.is_done() {
            break;
        }
        kill(cluster, &mut job, &mut draws);
        landed += usize::from(job.received() < expected.len());
    }
    assert_eq!(landed, kills, "kills while batches were still to come");
    assert_same(job.finish(), expected);
}

#[test]
fn killed_workers_and_ranks_change_nothing() {
    let (_folder, script) = photos(10);
    let mut cluster = Cluster::start(&script, 1, 3);
    let mut gone: Option<usize> = None;
    survive(&mut cluster, chaos(), |cluster, job, draws| {
        if let Some(worker) = gone.take() {
            cluster.workers[worker] = cluster.worker("0");
        }
        let reading: Vec<_> = (0..4).filter(|&rank| !job.ranks[rank].has_ended).collect();
        match draws.below(3 + reading.len() as u64) as usize {
            worker @ 0..3 => {
                cluster.workers[worker].kill();
                match draws.below(3) {
                    // Restart at the same address, at another address, or not before the next kill.
                    0 => cluster.workers[worker] = cluster.worker(&cluster.workers[worker].port()),
                    1 => cluster.workers[worker] = cluster.worker("0"),
                    _ => gone = Some(worker),
                }
            }
            rank => job.kill(reading[rank - 3]),
        }
    });
}

#[test]
fn a_killed_dispatcher_changes_nothing() {
    let (_folder, script) = photos(6);
    let mut cluster = Cluster::start(&script, 1, 2);
    let (kills, epochs) = chaos();
    survive(&mut cluster, (kills / 2, epochs * 2 / 3), |cluster, job, draws| {
        cluster.dispatchers[0].kill();
        // Workers and ranks continue for a while with the windows that they know.
        job.listen_for(Duration::from_millis(draws.below(700)));
        cluster.restart_dispatcher(0);
    });
}

#[test]
fn another_dispatcher_takes_over() {
    let (_folder, script) = photos(6);
    let mut cluster = Cluster::start(&script, 2, 2);
    let (kills, epochs) = chaos();
    let mut last = 1;
    survive(&mut cluster, (kills / 3, epochs * 2 / 3), |cluster, _, _| {
        // The dispatcher that all processes switched to after the last kill.
        last = 1 - last;
        cluster.dispatchers[last].kill();
        cluster.restart_dispatcher(last);
    });
}

/// Returns the URI of a server that ends each connection at its first request, as a server does that is being killed.
fn resetting() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let uri = format!("grpc://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            // Closing a connection with unread bytes resets it.
            let _ = connection.and_then(|mut connection| connection.read(&mut [0; 16]));
        }
    });
    uri
}

#[test]
fn a_connection_that_is_reset_by_the_first_request_is_made_to_the_next_server() {
    let (_folder, script) = photos(0);
    let cluster = Cluster::start(&script, 1, 1);
    let (resetting, uris) = (resetting(), cluster.uris());
    let both = format!("{resetting},{uris}");
    let (batches, _) = run(["--connect", &both, "--pipeline", "train", "--epochs", "1", "--ids", "path"]);
    assert_same(vec![batches], undisturbed(&script, 1));
    succeed(&mut forebay(["status", "--connect", &both]));
    wrong(&["status", "--connect", &resetting], &[&resetting, "check host and port"]);
}

#[test]
fn a_rank_that_does_not_read_stops_no_other() {
    let folder = Folder::new();
    for file in 0..40 {
        let rows: String = (file * 50..file * 50 + 50).map(|id| format!("{id}\n")).collect();
        folder.write(&format!("rows/{file:02}.csv"), format!("id\n{rows}"));
    }
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';
         CREATE PIPELINE p WITH (shuffle = true, batch_size = 10, window_rows = 50) AS
             SELECT id, repeat('x', 2000) AS text FROM t;",
    );
    // This is less than the two readers need together, so windows are evicted and computed again.
    let dispatcher = Server::start(&script, &["--no-worker"]);
    let worker = ["worker", "--dispatcher", &dispatcher.uri, "--memory-limit", "400kB", "--output", "json"];
    let _worker = Server::launch(&mut forebay(worker));
    let arguments = ["--connect", &dispatcher.uri, "--epochs", "2", "--ids", "text", "--buffer-limit", "16KiB"];
    let stopped = Running::start(forebay(["run", "--output", "json"]).args(arguments));
    let first = stopped.line().expect("a first batch");
    let read = log(run(arguments).0);
    assert_eq!(read.values().map(|(rows, _)| rows).sum::<u64>(), 4000);
    let status = status(&dispatcher.uri);
    let at = &status["feeds"][0]["readers"][0]["at"];
    assert!(at[0] == 0 && at[1].as_u64() < Some(20), "it is still near its beginning: {status}");
    let (lines, ended, error) = stopped.end();
    assert!(ended.success(), "{error}");
    let batches = std::iter::once(&first).chain(&lines[..lines.len() - 1]);
    assert_eq!(log(batches.map(|line| serde_json::from_str(line).expect("a batch line"))), read);
    assert_eq!(log(run([&script, "--epochs", "2"].map(String::from)).0), read);
}

#[test]
fn a_worker_that_is_told_to_stop_lets_its_readers_go_on() {
    let (_folder, script) = photos(4);
    let mut cluster = Cluster::start(&script, 1, 2);
    let uri = cluster.uris();
    wait_for(&uri, "two workers", |status| workers(status).len() == 2);
    let mut job = Job::start(2, &["--connect", &uri, "--pipeline", "slow", "--epochs", "3", "--retry-for", "0"]);
    job.listen_until(1);
    wait_for(&uri, "windows at both workers", |status| busy(status) == 2);
    assert_eq!(cluster.workers.remove(0).stop("TERM"), Some(0));
    wait_for(&uri, "its farewell", |status| workers(status).len() == 1);
    assert_same(job.finish(), undisturbed(&script, 3));
}

#[test]
fn without_workers_readers_are_told() {
    let (_folder, script) = photos(0);
    let dispatcher = Server::start(&script, &["--no-worker"]);
    let uri = &dispatcher.uri;
    let message = fail(&mut forebay(["run", "--connect", uri, "--pipeline", "train", "--retry-for", "0.5"]));
    let error = format!(
        "error: the dispatcher at {uri} has no workers\nhint: start a worker with `forebay worker --dispatcher {uri}`"
    );
    assert!(message.contains(&error), "{message}");
    let status = succeed(&mut forebay(["status", "--connect", uri]));
    assert!(status.contains("no worker is in contact: start one with `forebay worker --dispatcher URI`"), "{status}");
    // A worker that joins while a reader waits is enough.
    let waiting = Running::start(&mut forebay(["run", "--output", "json", "--connect", uri, "--pipeline", "train"]));
    wait_for(uri, "a reader", |status| status["feeds"][0]["readers"].as_array().is_some_and(|all| !all.is_empty()));
    let _worker = Server::launch(&mut forebay(["worker", "--dispatcher", uri, "--output", "json"]));
    assert!(waiting.end().1.success());
}

#[test]
#[cfg(target_os = "linux")]
fn trainers_on_its_machine_read_over_a_worker_s_socket() {
    let (_folder, script) = photos(20);
    let cluster = Cluster::start(&script, 1, 2);
    let uri = &cluster.uris();
    let arguments = ["run", "--connect", uri, "--pipeline", "slow", "--epochs", "50", "--output", "json"];
    let reading = Running::start(&mut forebay(arguments));
    let status = wait_for(uri, "a window at each worker", |status| busy(status) == 2);
    let by_port = |port: String| {
        let worker =
            workers(&status).iter().find(|worker| worker["address"].as_str().is_some_and(|it| it.ends_with(&port)));
        worker.and_then(|worker| worker["worker"].as_str()).expect("an id").to_owned()
    };
    let sockets = |id: &str| {
        let all = std::fs::read_to_string("/proc/net/unix").expect("Linux has it");
        all.lines().filter(|line| line.ends_with(&format!("@forebay-worker-{id}"))).count()
    };
    let [local, port_only] = [0, 1].map(|worker: usize| by_port(cluster.workers[worker].port()));
    // One socket listens, and each connection has one.
    wait_for(uri, "a connection", |_| sockets(&local) == 2);
    assert_eq!(sockets(&port_only), 0);
    reading.hang_up();
}

#[test]
fn of_two_workers_at_one_address_the_older_is_sent_away() {
    let (_folder, script) = photos(0);
    let dispatcher = Server::start(&script, &["--no-worker"]);
    let uri = &dispatcher.uri;
    let older = Running::start(&mut forebay(["worker", "--dispatcher", uri, "--output", "json"]));
    let said: Value = serde_json::from_str(&older.line().expect("where it listens")).expect("JSON");
    let address = said["uri"].as_str().expect("a URI");
    wait_for(uri, "a worker", |status| workers(status).len() == 1);
    let newer = ["worker", "--dispatcher", uri, "--advertise", address, "--output", "json"];
    let _newer = Server::launch(&mut forebay(newer));
    let (_, ended, error) = older.end();
    assert_eq!(ended.code(), Some(5), "{error}");
    assert!(error.contains(&format!("another worker serves at {address} now")), "{error}");
    assert!(error.contains("hint: give each worker its own --port and --advertise"), "{error}");
    assert_eq!(workers(&status(uri)).len(), 1);
}

#[test]
fn a_worker_needs_the_dispatcher_s_token() {
    let (folder, script) = photos(0);
    let ours = folder.write("ours", "the-token-of-this-cluster");
    let other = folder.write("other", "a-token-of-another-cluster");
    let (ours, other) = (ours.to_str().expect("UTF-8"), other.to_str().expect("UTF-8"));
    let dispatcher = Server::start(&script, &["--no-worker", "--token-file", ours]);
    let worker = ["worker", "--dispatcher", &dispatcher.uri];
    wrong(&worker, &["no token was sent"]);
    let message = fail(forebay(worker).args(["--token-file", other]));
    assert!(message.contains("the token is not one that this server knows"), "{message}");
    assert!(!message.contains("a-token-of-another"), "{message}");
    let _worker = Server::launch(forebay(worker).args(["--token-file", ours, "--output", "json"]));
    let run = run(["--connect", &dispatcher.uri, "--token", "the-token-of-this-cluster", "--pipeline", "train"]);
    assert_eq!(log(run.0), log(undisturbed(&script, 1)));
}

#[test]
fn a_worker_without_a_dispatcher_waits_for_it() {
    let (_folder, script) = photos(0);
    let mut dispatcher = Server::start(&script, &["--no-worker"]);
    let port = dispatcher.port();
    dispatcher.kill();
    let worker = Running::start(&mut forebay(["worker", "--dispatcher", &dispatcher.uri, "--output", "json"]));
    assert!(worker.line().is_some());
    let dispatcher =
        Server::launch(&mut forebay(["serve", &script, "--no-worker", "--port", &port, "--output", "json"]));
    wait_for(&dispatcher.uri, "the worker", |status| workers(status).len() == 1);
    signal(worker.process.id(), "TERM");
    assert_eq!(worker.end().1.code(), Some(0));
}

#[test]
fn a_file_that_is_gone_is_an_error_at_its_place_for_every_reader() {
    let folder = Folder::new();
    for id in 0..40 {
        folder.write(&format!("rows/{id:03}.csv"), format!("id\n{id}\n"));
    }
    let script = folder.script(
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows';
         CREATE PIPELINE p WITH (batch_size = 1, window_rows = 1) AS SELECT id FROM t;",
    );
    let cluster = Cluster::start(&script, 1, 2);
    std::fs::remove_file(folder.path().join("rows/025.csv")).expect("it was written");
    let uri = cluster.uris();
    let readers = [("0", "1", 25), ("0", "2", 13), ("1", "2", 12)].map(|(rank, world_size, batches)| {
        let arguments = ["--connect", &uri, "--ids", "id", "--rank", rank, "--world-size", world_size];
        (Running::start(forebay(["run", "--output", "json"]).args(arguments)), batches)
    });
    for (reader, batches) in readers {
        let (lines, ended, error) = reader.end();
        assert_eq!((lines.len(), ended.code()), (batches, Some(5)), "{error}");
        assert!(error.contains("rows/025.csv\"") && error.contains("was removed since"), "{error}");
    }
}
