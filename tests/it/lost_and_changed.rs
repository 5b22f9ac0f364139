//! Ports, servers, clients and files that disappear or change during a run.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;

use crate::support::{Batch, Folder, Running, Server, clicks_csv, everything, forebay, run, signal, succeed, wrong};

#[test]
fn a_port_in_use_is_named() {
    let folder = clicks_csv();
    let script = folder.script(&everything("CSV", "clicks.csv"));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it listens").port().to_string();
    let what = format!("port {port} of 127.0.0.1 is in use");
    wrong(
        &["serve", &script, "--port", &port],
        &[&what, "hint: stop the process that uses it, or give another port with --port"],
    );
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
    for uri in ["ftp://127.0.0.1:7070", "unix://127.0.0.1:7070"] {
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
        // The thread ends with the test's process if no client connects any more.
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

/// Writes files of one row each, with much text, and a pipeline that does not read ahead. `id` is the file's number.
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
    assert_eq!((lines.len(), status.code()), (38, Some(5)), "{error}");
    for phrase in [&name, "changed since the feed's snapshot was taken", "size", "restart"] {
        assert!(error.contains(phrase), "{error}");
    }
}

#[test]
fn a_file_that_changes_under_a_server_is_an_error_until_it_restarts() {
    let (_folder, script, path) = many_files(4);
    let server = Server::start(&script, &["--window-memory-limit", "0"]);
    let connect = ["run", "--connect", &server.uri, "--ids", "id"];
    let name = format!("\"{}\"", path(2).display());
    let old = std::fs::read_to_string(path(2)).expect("it was written");
    std::fs::write(path(2), old.replace("xx", "yy")).expect("a file");
    wrong(&connect, &[&name, "changed since the feed's snapshot was taken", "same size", "restart the run or server"]);
    // A changed file is not a bad row, so it cannot be skipped.
    wrong(&[&connect[..], &["--on-error", "skip"]].concat(), &[&name, "changed since"]);
    std::fs::remove_file(path(2)).expect("it was written");
    wrong(&connect, &[&name, "was removed since the feed's snapshot was taken", "put it back"]);
    std::fs::write(path(2), old.replace("xx", "zz")).expect("a file");
    let fresh = Server::start(&script, &[]);
    succeed(&mut forebay(["run", "--connect", &fresh.uri]));
}

/// Writes two thousand batches of ten kilobytes: more than connection and pipe hold together.
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
    let arguments = |uri: &str| {
        ["--connect", uri, "--ids", "id", "--buffer-limit", "64KiB", "--retry-for", "0.5"].map(str::to_owned)
    };
    let reading = Running::start(forebay(["run", "--output", "json"]).args(arguments(&server.uri)));
    let first = reading.line().expect("a first batch");
    server.process.kill().expect("it runs");
    let (lines, status, error) = reading.end();
    assert_eq!(status.code(), Some(6), "{error}");
    let parse = |line: &String| serde_json::from_str::<Batch>(line).expect("a batch line");
    let mut batches: Vec<_> = std::iter::once(&first).chain(&lines).map(parse).collect();
    assert!(batches.len() < 2000, "the kill came too late");
    assert!(error.contains(&format!("lost the server at {}", server.uri)), "{error}");
    let token = &batches.last().expect("the first").token;
    assert!(error.contains(&format!("hint: check that it runs, then read again; resume from {token}")), "{error}");
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
fn an_interrupted_run_says_how_to_go_on() {
    let (_folder, script) = long();
    let reading = Running::start(&mut forebay(["run", "--output", "json", &script]));
    let first = reading.line().expect("a batch line");
    signal(reading.process.id(), "INT");
    let (lines, status, error) = reading.end();
    assert_eq!(status.code(), Some(130), "{error}");
    // The signal may come before a second batch.
    let last: Batch = serde_json::from_str(lines.last().unwrap_or(&first)).expect("a batch line");
    assert!(error.contains("interrupted") && error.contains(&format!("--from {}", last.token)), "{error}");
}

#[test]
fn a_server_stops_when_told_to() {
    let folder = clicks_csv();
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
    let reading = Running::start(&mut forebay([
        "run",
        "--output",
        "json",
        "--connect",
        &uri,
        "--buffer-limit",
        "64KiB",
        "--retry-for",
        "0.5",
    ]));
    assert!(reading.line().is_some());
    assert_eq!(server.stop("TERM"), Some(0));
    let (_, status, error) = reading.end();
    assert_eq!(status.code(), Some(6), "{error}");
    assert!(error.contains("lost the server at") && error.contains("resume from fb1."), "{error}");
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
