//! The metrics at `--metrics-port`, of a dispatcher and of a worker.

#[path = "../../flight-server/src/metrics/check.rs"]
mod check;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Instant;

use crate::support::{DEADLINE, Folder, Server, forebay, repository, run, succeed, wrong};
pub(crate) use check::Scrape;
use check::check;

/// Returns host and port of a server's metrics.
fn address(server: &Server) -> &str {
    let uri = server.ready["metrics"].as_str().expect("the output names the metrics");
    uri.strip_prefix("http://").and_then(|uri| uri.strip_suffix("/metrics")).expect("http://HOST:PORT/metrics")
}

/// Requests a path, and returns status line, headers and body.
fn get(address: &str, path: &str) -> (String, String, String) {
    let mut tcp = TcpStream::connect(address).expect("a listener");
    tcp.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    write!(tcp, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("a request");
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).expect("an answer, and the end");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let (status, headers) = head.split_once("\r\n").expect("a status and headers");
    (status.to_owned(), headers.to_lowercase(), body.to_owned())
}

pub(crate) fn scrape(server: &Server) -> Scrape {
    let (status, headers, body) = get(address(server), "/metrics");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(headers.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{headers}");
    check(&body)
}

/// Scrapes until `is_so` holds.
pub(crate) fn until(server: &Server, is_so: impl Fn(&Scrape) -> bool) {
    let began = Instant::now();
    while !is_so(&scrape(server)) {
        assert!(began.elapsed() < DEADLINE, "timed out waiting for the metrics");
    }
}

#[test]
fn what_was_read_is_counted() {
    let folder = Folder::new();
    let dispatcher = Server::start(&folder.clicks(600), &["--no-worker", "--metrics-port", "0"]);
    let arguments = ["worker", "--dispatcher", &dispatcher.uri, "--metrics-port", "0", "--output", "json"];
    let worker = Server::launch(forebay(arguments).stderr(Stdio::null()));
    let (at_dispatcher, at_worker) = (scrape(&dispatcher), scrape(&worker));
    assert_eq!(at_dispatcher.sum("forebay_dispatcher_received_samples_total"), 0.0);
    assert_eq!(at_worker.sum("forebay_worker_sent_rows_total"), 0.0);

    for rank in ["0", "1"] {
        let connect = ["--connect", &dispatcher.uri, "--pipeline", "train", "--epochs", "2"];
        run(connect.into_iter().chain(["--rank", rank, "--world-size", "2"]));
    }
    let (at_dispatcher, at_worker) = (scrape(&dispatcher), scrape(&worker));
    // Two epochs of two ranks. The readers have left, but their counters remain.
    assert_eq!(at_dispatcher.sum("forebay_dispatcher_received_samples_total"), 1200.0);
    assert_eq!(at_dispatcher.sum("forebay_dispatcher_readers"), 0.0);
    let received = at_dispatcher.sum("forebay_dispatcher_received_bytes_total");
    assert!(received >= 1200.0 * 16.0, "two columns of eight bytes are received: {received}");
    assert!(at_worker.sum("forebay_worker_sent_rows_total") >= 1200.0, "rows that are asked for twice count twice");
    assert!(at_worker.sum("forebay_worker_sent_bytes_total") >= 1200.0 * 16.0);
    assert_eq!(at_worker.sum("forebay_worker_dispatcher_reachable"), 1.0);
    // The server closes a stream shortly after it was read to its end.
    until(&worker, |all| all.sum("forebay_worker_streams") == 0.0);

    let prepared = at_worker.sum("forebay_worker_windows_prepared_total");
    let granted = at_dispatcher.sum("forebay_dispatcher_leases_granted_total");
    assert!(prepared > 0.0 && prepared <= granted, "{prepared} windows of {granted} leases");
    assert_eq!(at_worker.sum("forebay_worker_window_counted_seconds_count"), prepared);
    assert!(at_worker.sum("forebay_worker_chunks_computed_total") >= 1.0);
    assert_eq!(at_worker.sum("forebay_worker_windows_failed_total"), 0.0);
    assert!(at_worker.sum("process_resident_memory_bytes") > 1e6 && at_worker.sum("process_cpu_seconds_total") > 0.0);
}

#[test]
fn a_worker_that_is_lost_is_counted() {
    let folder = Folder::new();
    let dispatcher = Server::start(&folder.clicks(40), &["--no-worker", "--metrics-port", "0"]);
    let arguments = ["worker", "--dispatcher", &dispatcher.uri, "--output", "json"];
    let mut worker = Server::launch(forebay(arguments).stderr(Stdio::null()));
    run(["--connect", &dispatcher.uri, "--pipeline", "train"]);
    assert_eq!(scrape(&dispatcher).sum("forebay_dispatcher_workers"), 1.0);
    worker.kill();
    until(&dispatcher, |all| {
        let (here, lost) = (all.sum("forebay_dispatcher_workers"), all.sum("forebay_dispatcher_workers_lost_total"));
        assert!([(1.0, 0.0), (0.0, 1.0)].contains(&(here, lost)), "{here} here, {lost} lost");
        here == 0.0
    });
}

#[test]
fn other_paths_and_health() {
    let folder = Folder::new();
    let server = Server::start(&folder.clicks(20), &["--metrics-port", "0"]);
    let (status, headers, body) = get(address(&server), "/healthz");
    assert_eq!((status.as_str(), body.as_str()), ("HTTP/1.1 200 OK", "ok\n"));
    assert!(headers.contains("content-type: text/plain"), "{headers}");
    assert_eq!(get(address(&server), "/").0, "HTTP/1.1 404 Not Found");
    assert_eq!(get(address(&server), "/metrics/more").0, "HTTP/1.1 404 Not Found");
    assert_eq!(server.stop("TERM"), Some(0));
}

#[test]
fn there_are_none_unless_asked_for() {
    let folder = Folder::new();
    let server = Server::start(&folder.clicks(20), &[]);
    assert!(server.ready.get("metrics").is_none(), "{}", server.ready);
}

#[test]
fn a_port_in_use_is_an_error_at_the_start() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let server = Server::start(&script, &["--metrics-port", "0"]);
    let port = address(&server).rsplit(':').next().expect("a port").to_owned();
    let phrases = [&format!("port {port} of 127.0.0.1 is in use"), "give another port with --metrics-port"];
    wrong(&["serve", &script, "--port", "0", "--metrics-port", &port], &phrases);
    wrong(&["worker", "--dispatcher", &server.uri, "--metrics-port", &port], &phrases);
}

#[test]
fn help_says_it() {
    for command in ["serve", "worker"] {
        assert!(succeed(&mut forebay([command, "--help"])).contains("--metrics-port <PORT>"), "{command}");
    }
}

/// Returns the metrics of `docs/metrics.md`: their names, as in a query, with type and labels.
fn documented() -> BTreeMap<String, (String, String)> {
    let page = std::fs::read_to_string(repository().join("docs/metrics.md")).expect("docs/metrics.md exists");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut documented = BTreeMap::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[0].trim_end_matches('`').to_owned();
        let before = documented.insert(name, (cells[1].to_owned(), cells[2].replace(['`', ' '], "")));
        assert!(before.is_none(), "once each: {row}");
    }
    documented
}

#[test]
fn the_page_lists_exactly_what_there_is() {
    let folder = Folder::new();
    // This server is dispatcher and worker in one process.
    let server = Server::start(&folder.clicks(20), &["--metrics-port", "0"]);
    run(["--connect", &server.uri, "--pipeline", "train"]);
    run(["--connect", &server.uri, "--pipeline", "train", "--delivery", "dynamic", "--job", "j"]);
    let all = scrape(&server);
    let documented = documented();
    let name = |family: &str| match all.kind(family) {
        "counter" => format!("{family}_total"),
        _ => family.to_owned(),
    };
    let there: Vec<String> = all.families().map(name).collect();
    assert_eq!(documented.keys().collect::<Vec<_>>(), there.iter().collect::<Vec<_>>());
    for family in all.families() {
        let (kind, labels) = &documented[&name(family)];
        assert_eq!(kind, all.kind(family), "{family}");
        let shown = all.labels(family).into_iter().collect::<Vec<_>>().join(",");
        // A plain Flight client has read nothing here, and there are no certificates.
        if !["forebay_stream_", "forebay_tls_"].iter().any(|prefix| family.starts_with(prefix)) {
            assert_eq!(labels, &shown, "{family}");
        }
    }
}
