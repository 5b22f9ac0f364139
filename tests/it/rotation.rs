//! Certificates and tokens that are replaced while processes run, and logins that fail.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::metrics::{scrape, until};
use crate::security::Authority;
use crate::support::{Batch, Folder, Running, Server, fail, forebay, log, signal, succeed, text, wrong};

const OLD: &str = "the-old-token-of-the-tests";
const NEW: &str = "the-new-token-of-the-tests";
const RELOADS: &str = "forebay_security_reloads_total";
const FAILED: &str = "forebay_failed_logins_total";

/// Sends a hangup, and waits until the files have been read again.
fn reload(server: &Server) {
    let reloads = || scrape(server).value(RELOADS, &[("result", "succeeded")]).expect("a metric");
    let before = reloads();
    signal(server.process.id(), "HUP");
    until(server, |page| page.value(RELOADS, &[("result", "succeeded")]) > Some(before));
}

/// Writes a file beside `path` and renames it, so that no reader sees a part of it.
fn replace(path: &Path, bytes: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).expect("a file");
    std::fs::rename(&new, path).expect("a file in its place");
}

fn copy((certificate, key): &(PathBuf, PathBuf), to: &(PathBuf, PathBuf)) {
    replace(&to.1, std::fs::read(key).expect("a key"));
    replace(&to.0, std::fs::read(certificate).expect("a certificate"));
}

#[test]
fn everything_is_replaced_under_a_reader_that_loses_nothing() {
    const EPOCHS: u64 = 60;
    let folder = Folder::new();
    let script = folder.clicks(200);
    let (old, new) = (Authority::new(&folder, "old"), Authority::new(&folder, "new"));
    let (of_old, of_new) = (old.sign("127.0.0.1"), new.sign("127.0.0.1"));
    let [old_ca, new_ca] = [&old, &new].map(|authority| std::fs::read_to_string(authority.path()).expect("a CA"));
    let served = (folder.write("tls.crt", ""), folder.write("tls.key", ""));
    copy(&of_old, &served);
    let [ca, readers, workers, mine] = [("ca", &*old_ca), ("readers", OLD), ("workers", OLD), ("mine", OLD)]
        .map(|(name, content)| folder.write(name, content));
    let serves = ["--tls-cert", text(&served.0), "--tls-key", text(&served.1), "--tls-ca", text(&ca)];
    let tokens = ["--token-file", text(&readers), "--worker-token-file", text(&workers)];
    let more = [&serves[..], &tokens, &["--metrics-port", "0"]].concat();
    let dispatcher = Server::start(&script, &[&["--no-worker"], &more[..]].concat());
    let join = || Server::launch(forebay(["worker", "--dispatcher", &dispatcher.uri, "--output", "json"]).args(&more));
    let worker = join();

    let reads = ["run", "--connect", &dispatcher.uri, "--pipeline", "train", "--tls-ca", text(&ca), "--output", "json"];
    let reader = [&reads[..], &["--token-file", text(&mine), "--buffer-limit", "4KiB"]].concat();
    let reader = Running::start(forebay(reader).args(["--epochs", &EPOCHS.to_string()]));
    let mut lines: Vec<String> = (0..5).map(|_| reader.line().expect("a batch")).collect();
    let both = |first: &str, second: &str| format!("{first}\n{second}\n");

    // First everyone accepts both.
    replace(&ca, both(&old_ca, &new_ca));
    [&readers, &workers].into_iter().for_each(|file| replace(file, both(OLD, NEW)));
    [&dispatcher, &worker].into_iter().for_each(reload);
    lines.extend((0..5).map(|_| reader.line().expect("a batch")));
    // Then everyone shows the new ones.
    copy(&of_new, &served);
    replace(&mine, NEW);
    [&readers, &workers].into_iter().for_each(|file| replace(file, both(NEW, OLD)));
    [&dispatcher, &worker].into_iter().for_each(reload);
    lines.extend((0..5).map(|_| reader.line().expect("a batch")));
    // At last the old ones are gone.
    replace(&ca, &new_ca);
    [&readers, &workers].into_iter().for_each(|file| replace(file, NEW));
    [&dispatcher, &worker].into_iter().for_each(reload);
    // The reader connects to a worker that never had the old ones, and whose predecessor leaves.
    let successor = join();
    assert_eq!(worker.stop("TERM"), Some(0));
    until(&successor, |page| page.sum("forebay_worker_sent_rows_total") > 0.0);

    let new_ca = new.path();
    let once = ["run", "--connect", &dispatcher.uri, "--pipeline", "train", "--steps", "1", "--tls-ca"];
    succeed(&mut forebay([&once[..], &[text(&new_ca), "--token", NEW]].concat()));
    wrong(&[&once[..], &[text(&new_ca), "--token", OLD]].concat(), &["is not one that this server knows"]);
    let message = fail(forebay(once).args([text(&old.path()), "--token", NEW]));
    assert!(message.contains("certificate"), "{message}");

    let (rest, status, errors) = reader.end();
    assert!(status.success(), "{errors}");
    lines.extend(rest);
    let summary = lines.pop().expect("a summary");
    let batches = lines.iter().map(|line| serde_json::from_str::<Batch>(line).expect("a batch"));
    let rows: u64 = log(batches).values().map(|(rows, _)| rows).sum();
    assert_eq!(rows, EPOCHS * 200, "{summary}");
}

#[test]
fn files_that_cannot_be_used_change_nothing() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let (ours, others) = (Authority::new(&folder, "ours"), Authority::new(&folder, "others"));
    let served = (folder.write("tls.crt", ""), folder.write("tls.key", ""));
    copy(&ours.sign("127.0.0.1"), &served);
    let tokens = folder.write("tokens", OLD);
    let serve = ["serve", &script, "--port", "0", "--output", "json", "--metrics-port", "0"];
    let tls = ["--tls-cert", text(&served.0), "--tls-key", text(&served.1), "--token-file", text(&tokens)];
    let mut server = Server::launch(forebay(serve).args(tls).stderr(Stdio::piped()));
    let read = |server: &Server, ca: &Path| {
        let read = ["run", "--connect", &server.uri, "--steps", "1", "--token", OLD, "--tls-ca", text(ca)];
        succeed(&mut forebay(read));
    };
    let failing = |count| move |page: &crate::metrics::Scrape| page.sum("forebay_security_files_failing") == count;
    read(&server, &ours.path());

    // Without a signal: each look finds it. The key of the new certificate is not there yet.
    let next = others.sign("127.0.0.1");
    replace(&served.0, std::fs::read(&next.0).expect("a certificate"));
    replace(&tokens, "too-short");
    until(&server, failing(2.0));
    assert_eq!(scrape(&server).value(RELOADS, &[("result", "failed")]), Some(2.0));
    read(&server, &ours.path());
    replace(&served.1, std::fs::read(&next.1).expect("a key"));
    std::fs::remove_file(&tokens).expect("a file");
    until(&server, failing(1.0));
    read(&server, &others.path());
    replace(&tokens, OLD);
    until(&server, failing(0.0));
    read(&server, &others.path());

    let mut stderr = server.process.stderr.take().expect("piped");
    assert_eq!(server.stop("TERM"), Some(0));
    let mut log = String::new();
    stderr.read_to_string(&mut log).expect("a log");
    for phrase in ["what was read before stays in use", "does not belong to", "tokens", "line 1: the token is shorter"]
    {
        assert!(log.contains(phrase), "{log}");
    }
    assert!(!log.contains("too-short"), "{log}");
}

#[test]
fn certificates_are_refused_outside_their_dates() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ours = Authority::new(&folder, "ours");
    let (expired, early, good) = (
        ours.sign_for("expired", (2020, 1, 1), (2021, 2, 3)),
        ours.sign_for("early", (2990, 4, 5), (3000, 1, 1)),
        ours.sign_for("good", (2020, 1, 1), (3000, 1, 1)),
    );
    let tokens = folder.write("tokens", OLD);
    let serve = ["serve", &script, "--port", "0", "--output", "json", "--token-file", text(&tokens)];
    let with = |(certificate, key): &(PathBuf, PathBuf), more: &[&str]| {
        let tls = ["--tls-cert", text(certificate), "--tls-key", text(key)].map(str::to_owned);
        serve.iter().chain(more).map(|&word| word.to_owned()).chain(tls).collect::<Vec<_>>()
    };
    let refused = |arguments: Vec<String>, phrases: &[&str]| {
        wrong(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), phrases);
    };
    refused(with(&expired, &[]), &[text(&expired.0), "expired at 2021-02-03 00:00:00 UTC", "hint: give a certificate"]);
    refused(with(&early, &[]), &[text(&early.0), "is not valid before 2990-04-05 00:00:00 UTC"]);
    let client_ca = ["--tls-client-ca", text(&expired.0)];
    refused(with(&good, &client_ca), &["CA certificate", text(&expired.0), "expired at 2021-02-03"]);

    // The end of a good one is a metric; 32503680000 is the year 3000.
    let ca = ours.path();
    let server = forebay(with(&good, &["--metrics-port", "0", "--tls-ca", text(&ca)]));
    let server = Server::launch(&mut { server });
    let end = |file| scrape(&server).value("forebay_tls_certificate_expiry_timestamp_seconds", &[("file", file)]);
    until(&server, |page| page.sum("forebay_tls_certificate_expiry_timestamp_seconds") > 0.0);
    assert_eq!(end("certificate"), Some(32_503_680_000.0));
    assert!(end("ca").is_some());
    // A client refuses its own, too.
    let connect = ["run", "--connect", &server.uri, "--token", OLD, "--tls-ca", text(&ca)];
    let own = ["--tls-cert", text(&expired.0), "--tls-key", text(&expired.1)];
    wrong(&[&connect[..], &own].concat(), &["client certificate", text(&expired.0), "expired at 2021-02-03"]);
}

#[test]
fn failed_logins_are_counted_and_logged() {
    let folder = Folder::new();
    let tokens = folder.write("tokens", OLD);
    let serve = ["serve", &folder.clicks(20), "--port", "0", "--output", "json", "--metrics-port", "0"];
    let mut server = Server::launch(forebay(serve).args(["--token-file", text(&tokens)]).stderr(Stdio::piped()));
    assert_eq!(scrape(&server).sum(FAILED), 0.0);
    for _ in 0..12 {
        wrong(&["status", "--connect", &server.uri, "--token", NEW], &["is not one that this server knows"]);
    }
    wrong(&["status", "--connect", &server.uri], &["no token was sent"]);
    let page = scrape(&server);
    assert_eq!(page.value(FAILED, &[("reason", "unknown_token")]), Some(12.0));
    assert_eq!(page.value(FAILED, &[("reason", "no_token")]), Some(1.0));

    let mut stderr = server.process.stderr.take().expect("piped");
    assert_eq!(server.stop("TERM"), Some(0));
    let mut log = String::new();
    stderr.read_to_string(&mut log).expect("a log");
    let lines = log.lines().filter(|line| line.contains("a login failed")).collect::<Vec<_>>();
    assert_eq!(lines.len(), 10, "a limit: {log}");
    assert!(lines[0].contains("127.0.0.1:") && lines[0].contains("unknown_token"), "{log}");
    assert!(!log.contains(NEW), "{log}");
}
