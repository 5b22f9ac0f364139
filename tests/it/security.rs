//! Access: tokens, TLS, client certificates, and the requests that are refused without them.

use std::path::{Path, PathBuf};

use forebay_engine::ErrorKind;
use forebay_flight_client::wire::actions;
use forebay_flight_client::{ClientTls, ConnectOptions, DispatcherClient};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use serde_json::Value;

use crate::support::{Folder, Running, Server, fail, forebay, run, succeed, text, wrong};

const TOKEN: &str = "a-token-for-these-tests";

/// A new CA, whose certificates are in the test's folder.
pub(crate) struct Authority<'a> {
    folder: &'a Folder,
    name: &'a str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl<'a> Authority<'a> {
    pub(crate) fn new(folder: &'a Folder, name: &'a str) -> Self {
        let mut parameters = CertificateParams::new([]).expect("no names");
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(parameters, key).expect("a CA");
        folder.write(&format!("{name}.pem"), issuer.pem());
        Self { folder, name, issuer }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(format!("{}.pem", self.name))
    }

    /// Makes a certificate for a host, and its key.
    pub(crate) fn sign(&self, host: &str) -> (PathBuf, PathBuf) {
        self.sign_with(host, &[])
    }

    /// Makes a certificate for a host with these URIs, and its key.
    fn sign_with(&self, host: &str, uris: &[&str]) -> (PathBuf, PathBuf) {
        let mut parameters = CertificateParams::new([host.to_owned()]).expect("a name");
        let uris_of = uris.iter().map(|&uri| SanType::URI(uri.try_into().expect("a URI")));
        parameters.subject_alt_names.extend(uris_of);
        let name = format!("{}-{host}{}", self.name, uris.concat().replace('/', "_"));
        self.write(&name, &parameters)
    }

    /// Makes a certificate that is valid from one day (year, month, day) to another, and its key.
    pub(crate) fn sign_for(&self, name: &str, from: (i32, u8, u8), to: (i32, u8, u8)) -> (PathBuf, PathBuf) {
        let date = |(year, month, day)| rcgen::date_time_ymd(year, month, day);
        let mut parameters = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        (parameters.not_before, parameters.not_after) = (date(from), date(to));
        self.write(name, &parameters)
    }

    fn write(&self, name: &str, parameters: &CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().expect("a key");
        let certificate = parameters.signed_by(&key, &self.issuer).expect("a certificate");
        (
            self.folder.write(&format!("{name}.cert.pem"), certificate.pem()),
            self.folder.write(&format!("{name}.key.pem"), key.serialize_pem()),
        )
    }
}

/// Expects an error as the last line, possibly after a warning.
fn ended(arguments: &[&str], phrases: &[&str]) {
    let message = fail(&mut forebay(arguments));
    assert!(
        phrases.iter().all(|phrase| message.contains(phrase)),
        "{arguments:?} lacks one of {phrases:?}:\n{message}"
    );
}

/// Reads the pipeline from the server, and expects all of its rows.
fn read(server: &Server, more: &[&str]) {
    let (batches, _) = run(["--connect", &server.uri, "--pipeline", "train"].iter().chain(more));
    assert_eq!(batches.iter().map(|batch| batch.rows).sum::<u64>(), 20);
}

/// Expects one error with these phrases, whether the pipeline is named or looked up.
fn refused(server: &Server, more: &[&str], phrases: &[&str]) {
    wrong(&[&["run", "--connect", &server.uri], more].concat(), phrases);
    wrong(&[&["run", "--connect", &server.uri, "--pipeline", "train"], more].concat(), phrases);
}

#[test]
fn a_token_is_asked_for() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let tokens = folder.write("tokens", format!("# the new one\n{TOKEN}\n\nthe-old-token-of-these-tests\n"));
    let server = Server::start(&script, &["--token-file", text(&tokens)]);
    assert!(server.uri.starts_with("grpc://"));

    read(&server, &["--token", TOKEN]);
    read(&server, &["--token", "the-old-token-of-these-tests"]);
    refused(&server, &[], &["no token was sent", "hint: set FOREBAY_TOKEN"]);
    refused(&server, &["--token", ""], &["no token was sent"]);
    let unknown = ["the token is not one that this server knows", "hint: "];
    refused(&server, &["--token", "a-token-for-these-testz"], &unknown);
    refused(&server, &["--token", "# the new one"], &["the token has characters that a header cannot hold"]);

    let mut environment = forebay(["run", "--connect", &server.uri, "--steps", "1"]);
    succeed(environment.env("FOREBAY_TOKEN", TOKEN));
    let mut environment = forebay(["run", "--connect", &server.uri, "--steps", "1"]);
    let message = fail(environment.env("FOREBAY_TOKEN", "another-token-of-someone"));
    assert!(message.contains(unknown[0]) && !message.contains("another-token"), "{message}");
    // Help shows values of environment variables, but not of this one.
    let help = succeed(forebay(["run", "--help"]).env("FOREBAY_TOKEN", TOKEN));
    assert!(help.contains("FOREBAY_TOKEN") && !help.contains(TOKEN));
}

const WORKERS: &str = "the-token-of-our-workers";

#[test]
fn a_trainer_s_token_makes_no_worker() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let (readers, workers) = (folder.write("readers", TOKEN), folder.write("workers", WORKERS));
    let both = ["--token-file", text(&readers), "--worker-token-file", text(&workers)];
    let dispatcher = Server::start(&script, &[&["--no-worker"], &both[..]].concat());
    let worker = ["worker", "--dispatcher", &dispatcher.uri];

    // A worker that got only the trainers' file would call these.
    let phrases =
        ["needs a worker's token, and got", "hint: give the worker the dispatcher's tokens", "--worker-token-file"];
    wrong(&[&worker[..], &["--token-file", text(&readers)]].concat(), &phrases);
    wrong(&worker, &["no token was sent", "hint: ", "a worker needs --worker-token-file"]);
    let other = folder.write("other", "a-token-of-another-cluster");
    let unknown = ["the token is not one that this server knows", "hint: ", "a worker needs --worker-token-file"];
    wrong(&[&worker[..], &["--worker-token-file", text(&other)]].concat(), &unknown);
    // The dispatcher also refuses such tokens the spec of a feed.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let ask = |token: &str, action: &'static str| {
        let options = ConnectOptions { token: Some(token.to_owned()), ..ConnectOptions::default() };
        let dispatcher = DispatcherClient::new(vec![dispatcher.uri.clone()], options);
        runtime.block_on(dispatcher.call::<serde_json::Value>(action, &"0123456789abcdef")).expect_err("no such feed")
    };
    for action in [actions::FEED_SPEC, actions::WORKER_SYNC] {
        let refused = ask(TOKEN, action);
        assert_eq!((refused.kind(), refused.message().contains("trainer's")), (ErrorKind::Denied, true), "{refused}");
    }
    assert_eq!(ask(WORKERS, actions::FEED_SPEC).kind(), ErrorKind::NotFound);

    let _worker = Server::launch(forebay(worker).args(both).args(["--output", "json"]));
    read(&dispatcher, &["--token", TOKEN]);
    read(&dispatcher, &["--token", WORKERS]);
    // The dispatcher relays with the cluster's own token. Every token may ask for a status.
    let status = succeed(&mut forebay(["status", "--connect", &dispatcher.uri, "--token", TOKEN]));
    assert!(status.contains("grpc://127.0.0.1:"), "{status}");
}

#[test]
fn a_reader_sees_neither_other_pipelines_nor_the_jobs_and_sessions_of_others() {
    let folder = Folder::new();
    folder.clicks(20);
    let script = folder.script(
        "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks';
         CREATE PIPELINE train WITH (batch_size = 10) AS SELECT id FROM clicks;
         CREATE PIPELINE eval WITH (batch_size = 10) AS SELECT price FROM clicks;",
    );
    let (a, b, both, operator) =
        ("the-token-of-reader-a-1", "the-token-of-reader-b-2", "the-token-of-reader-c-3", "the-token-of-operators");
    let tokens = folder.write("tokens", format!("{a} reader train\n{b} reader eval\n{both}\n{operator} operator\n"));
    let workers = folder.write("workers", WORKERS);
    let secured = ["--token-file", text(&tokens), "--worker-token-file", text(&workers)];
    let (secured, plain) = (Server::start(&script, &secured), Server::start(&script, &[]));
    let read = |server: &Server, more: &[&str]| {
        // The pipe fills up, so it reads as long as the test lasts.
        let command = ["run", "--connect", &server.uri, "--output", "json", "--epochs", "1000000"];
        let running = Running::start(forebay(command).args(more));
        assert!(running.line().is_some());
        running
    };
    let dynamic = |job| ["--delivery", "dynamic", "--job", job];
    let of_train = ["--pipeline", "train", "--token", a];
    let of_eval = ["--pipeline", "eval", "--token", b];
    let mut reading = [
        read(&secured, &of_train),
        read(&secured, &[&of_train[..], &dynamic("job-of-a")].concat()),
        read(&secured, &[&of_eval[..], &dynamic("job-of-b")].concat()),
        read(&plain, &[&["--pipeline", "train"][..], &dynamic("job-of-the-user")].concat()),
    ];
    let status = |server: &Server, more: &[&str]| -> (Vec<Value>, String) {
        let command = ["status", "--connect", &server.uri, "--output", "json"];
        let text = succeed(forebay(command).args(more));
        let status: Value = serde_json::from_str(&text).expect("JSON");
        (status["feeds"].as_array().expect("a list").clone(), text)
    };
    let sessions = |feeds: &[Value]| -> Vec<String> {
        let readers = feeds.iter().flat_map(|feed| feed["readers"].as_array().expect("a list"));
        readers.map(|reader| reader["session"].as_str().expect("text").to_owned()).collect()
    };
    let hidden = "0000000000000000";
    for (token, feeds) in [(a, 1), (b, 1), (both, 2)] {
        let (seen, text) = status(&secured, &["--token", token]);
        assert_eq!(seen.len(), feeds, "{text}");
        assert!(!text.contains("job-of-"), "{text}");
        assert!(sessions(&seen).iter().all(|session| session == hidden), "{text}");
        assert!(seen.iter().any(|feed| !feed["jobs"].as_array().expect("a list").is_empty()), "{text}");
    }
    assert!(!sessions(&status(&secured, &["--token", a]).0).is_empty());
    for token in [operator, WORKERS] {
        let (seen, text) = status(&secured, &["--token", token]);
        assert!(seen.len() == 2 && text.contains("job-of-a") && text.contains("job-of-b"), "{text}");
        assert!(!sessions(&seen).is_empty() && sessions(&seen).iter().all(|session| session != hidden), "{text}");
    }
    // The user whose server it is sees all.
    assert!(status(&plain, &[]).1.contains("job-of-the-user"));
    reading.iter_mut().for_each(|reader| reader.process.kill().expect("a child process"));
}

#[test]
fn one_token_file_serves_all() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let tokens = folder.write("tokens", TOKEN);
    for option in ["--token-file", "--worker-token-file"] {
        let file = [option, text(&tokens)];
        let dispatcher = Server::start(&script, &[&["--no-worker"], &file[..]].concat());
        refused(&dispatcher, &[], &["no token was sent"]);
        for workers in ["--token-file", "--worker-token-file"] {
            let worker = ["worker", "--dispatcher", &dispatcher.uri, "--output", "json", workers, text(&tokens)];
            let _worker = Server::launch(&mut forebay(worker));
            read(&dispatcher, &["--token", TOKEN]);
        }
    }
}

#[test]
fn unusable_token_files_are_named() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    for (content, phrase) in [("# none\n", "has no token"), ("short\n", "shorter than 16 characters")] {
        let file = folder.write("tokens", content);
        wrong(&["serve", &script, "--token-file", text(&file)], &[text(&file), phrase, "hint: "]);
    }
    let missing = folder.path().join("nowhere");
    wrong(&["serve", &script, "--token-file", text(&missing)], &[text(&missing), "does not exist"]);
}

#[test]
fn tls_is_for_those_who_trust_its_ca() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let (ours, other) = (Authority::new(&folder, "ours"), Authority::new(&folder, "other"));
    let (ours_path, other_path) = (ours.path(), other.path());
    let (ca, other_ca) = (text(&ours_path), text(&other_path));
    let (certificate, key) = ours.sign("127.0.0.1");
    let server = Server::start(&script, &["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    assert!(server.uri.starts_with("grpc+tls://127.0.0.1:"), "{}", server.uri);

    read(&server, &["--tls-ca", ca]);
    // A token that the server does not require is harmless.
    read(&server, &["--tls-ca", ca, "--token", TOKEN]);
    refused(&server, &["--tls-ca", other_ca], &["no secure connection to", "not signed by a CA", "hint: ", "--tls-ca"]);
    refused(
        &server,
        &["--tls-ca", ca, "--tls-server-name", "elsewhere.example"],
        &["its certificate is for another name", "--tls-server-name"],
    );
    let plain = server.uri.replace("grpc+tls://", "grpc://");
    wrong(&["run", "--connect", &plain, "--tls-ca", ca], &["is plain text", "hint: write grpc+tls://"]);
    wrong(&["run", "--connect", &plain], &["does not answer as a Forebay server does", "write grpc+tls://"]);

    let (certificate, key) = ours.sign("elsewhere.example");
    let elsewhere = Server::start(&script, &["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    refused(&elsewhere, &["--tls-ca", ca], &["its certificate is for another name", "--tls-server-name"]);
    read(&elsewhere, &["--tls-ca", ca, "--tls-server-name", "elsewhere.example"]);

    let plain = Server::start(&script, &[]);
    let uri = plain.uri.replace("grpc://", "grpc+tls://");
    wrong(&["run", "--connect", &uri, "--tls-ca", ca], &["it does not speak TLS", "hint: write grpc://"]);
}

#[test]
fn mutual_tls_is_for_those_with_a_certificate() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let (ours, other) = (Authority::new(&folder, "ours"), Authority::new(&folder, "other"));
    let ca = ours.path();
    let (certificate, key) = ours.sign("127.0.0.1");
    let server = ["--tls-cert", text(&certificate), "--tls-key", text(&key), "--tls-client-ca", text(&ca)];
    let server = Server::start(&script, &server);

    let (certificate, key) = ours.sign("trainer");
    read(&server, &["--tls-ca", text(&ca), "--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    refused(&server, &["--tls-ca", text(&ca)], &["it asks for a client certificate", "hint: ", "--tls-cert"]);
    let (foreign, foreign_key) = other.sign("trainer");
    refused(
        &server,
        &["--tls-ca", text(&ca), "--tls-cert", text(&foreign), "--tls-key", text(&foreign_key)],
        &["it refused the TLS connection", "hint: ", "--tls-client-ca"],
    );
    refused(
        &server,
        &["--tls-ca", text(&ca), "--tls-cert", text(&certificate), "--tls-key", text(&foreign_key)],
        &["does not belong to the client certificate", text(&certificate)],
    );
}

/// The URI of workers' certificates.
const WORKER_URI: &str = "forebay://role/worker";

/// The options of a process that shows this certificate and trusts the CA.
fn shows(certificate: &(PathBuf, PathBuf), ca: &Path) -> Vec<String> {
    let (certificate, key) = certificate;
    ["--tls-cert", text(certificate), "--tls-key", text(key), "--tls-ca", text(ca)].map(str::to_owned).to_vec()
}

/// Expects the dispatcher to refuse calls of workers to a client with these options.
fn makes_no_worker(dispatcher: &Server, options: &ConnectOptions, phrase: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for action in [actions::FEED_SPEC, actions::WORKER_SYNC, actions::SNAPSHOT] {
        let client = DispatcherClient::new(vec![dispatcher.uri.clone()], options.clone());
        let refused = runtime.block_on(client.call::<serde_json::Value>(action, &"0123456789abcdef"));
        let refused = refused.expect_err("a refusal");
        assert_eq!((refused.kind(), refused.message().contains(phrase)), (ErrorKind::Denied, true), "{refused}");
    }
}

#[test]
fn a_trainer_s_certificate_makes_no_worker() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ours = Authority::new(&folder, "ours");
    let ca = ours.path();
    let client_ca = ["--tls-client-ca", text(&ca)];
    let (plain, worker_s) = (ours.sign("127.0.0.1"), ours.sign_with("127.0.0.1", &[WORKER_URI]));
    let start = |more: &[&str]| {
        let serve = ["serve", &script, "--port", "0", "--output", "json", "--no-worker"];
        Server::launch(forebay(serve).args(shows(&plain, &ca)).args(client_ca).args(more))
    };
    let dispatcher = start(&[]);
    let join = |dispatcher: &Server, certificate: &(PathBuf, PathBuf)| {
        let mut worker = forebay(["worker", "--dispatcher", &dispatcher.uri, "--output", "json"]);
        worker.args(shows(certificate, &ca)).args(client_ca);
        worker
    };
    let trainer = ours.sign_with("trainer", &["forebay://role/reader"]);
    for reader in [&plain, &trainer] {
        let message = fail(&mut join(&dispatcher, reader));
        for phrase in ["needs a worker's certificate, and got a trainer's", "hint: ", WORKER_URI, "--tls-client-roles"]
        {
            assert!(message.contains(phrase), "{message}");
        }
    }
    let (certificate, key) = trainer.clone();
    let tls = ClientTls { ca: Some(ca.clone()), certificate: Some(certificate), key: Some(key), server_name: None };
    let options = ConnectOptions { tls, ..ConnectOptions::default() };
    makes_no_worker(&dispatcher, &options, "trainer's");

    let _worker = Server::launch(&mut join(&dispatcher, &worker_s));
    let trainer = shows(&trainer, &ca);
    let trainer: Vec<&str> = trainer.iter().map(String::as_str).collect();
    read(&dispatcher, &trainer);
    // Reading is all that it may do: quarantine writes files on the server.
    let quarantine = ["run", "--connect", &dispatcher.uri, "--pipeline", "train", "--on-error", "quarantine"];
    wrong(&[&quarantine[..], &trainer].concat(), &["which a trainer may not do"]);

    // With token files, the tokens decide, for those with a certificate.
    let (readers, workers) = (folder.write("readers", TOKEN), folder.write("workers", WORKERS));
    let both = ["--token-file", text(&readers), "--worker-token-file", text(&workers)];
    let dispatcher = start(&both);
    let message = fail(join(&dispatcher, &worker_s).args(["--token-file", text(&readers)]));
    assert!(message.contains("needs a worker's token, and got a trainer's"), "{message}");
    let _worker = Server::launch(join(&dispatcher, &plain).args(both));
    read(&dispatcher, &[&trainer[..], &["--token", TOKEN]].concat());
    wrong(&["run", "--connect", &dispatcher.uri, "--tls-ca", text(&ca), "--token", TOKEN], &["--tls-cert"]);
}

#[test]
fn a_file_lists_the_certificates_of_workers() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ours = Authority::new(&folder, "ours");
    let ca = ours.path();
    let roles = folder.write("roles", "# SPIFFE\nspiffe://example.org/ns/feeds/sa/worker  worker\nnode-7 worker\n");
    let (certificate, key) = ours.sign("127.0.0.1");
    let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key), "--tls-client-ca", text(&ca)];
    let serve = ["serve", &script, "--port", "0", "--output", "json", "--no-worker", "--tls-ca", text(&ca)];
    let dispatcher = Server::launch(forebay(serve).args(tls).args(["--tls-client-roles", text(&roles)]));
    let worker = |host: &str, uris: &[&str]| {
        let mut worker = forebay(["worker", "--dispatcher", &dispatcher.uri, "--output", "json"]);
        worker.args(shows(&ours.sign_with(host, uris), &ca)).args(["--tls-client-ca", text(&ca)]);
        worker
    };
    for uri in [WORKER_URI, "spiffe://example.org/ns/feeds/sa/trainer"] {
        let message = fail(&mut worker("127.0.0.1", &[uri]));
        assert!(message.contains("needs a worker's certificate"), "{message}");
    }
    drop(Server::launch(&mut worker("node-7", &[])));
    let _worker = Server::launch(&mut worker("127.0.0.1", &["spiffe://example.org/ns/feeds/sa/worker"]));
    let trainer = shows(&ours.sign("trainer"), &ca);
    read(&dispatcher, &trainer.iter().map(String::as_str).collect::<Vec<_>>());

    let wrong_roles = folder.write("roles", "node-7 admin\n");
    let arguments = [&["serve", &script][..], &tls, &["--tls-client-roles", text(&wrong_roles)]].concat();
    wrong(&arguments, &[text(&wrong_roles), "line 1", "\"admin\"", "hint: "]);
    let tokens = folder.write("tokens", TOKEN);
    wrong(&[&arguments[..], &["--token-file", text(&tokens)]].concat(), &["--tls-client-roles", "cannot be used with"]);
}

#[test]
fn on_loopback_the_own_user_s_processes_need_no_configuration_and_others_are_no_workers() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    // Only processes with this variable find the secret.
    let session = folder.path().join("session");
    std::fs::create_dir(&session).expect("a folder");
    let with_secret = |arguments: &[&str]| {
        let mut command = forebay(arguments);
        command.args(["--output", "json"]).env("XDG_RUNTIME_DIR", &session);
        command
    };
    let dispatcher = Server::launch(&mut with_secret(&["serve", &script, "--port", "0", "--no-worker"]));
    let worker = ["worker", "--dispatcher", &dispatcher.uri];
    let needs = "needs the secret of the user who runs the dispatcher";
    wrong(&worker, &[needs, "hint: ", "--token-file"]);
    makes_no_worker(&dispatcher, &ConnectOptions::default(), needs);

    let mut joined = Server::launch(&mut with_secret(&worker));
    // Reading needs no secret: the system says whose process a reader is.
    read(&dispatcher, &[]);
    read(&dispatcher, &["--token", TOKEN]);
    let by_name = dispatcher.uri.replace("127.0.0.1", "localhost");
    succeed(&mut with_secret(&["status", "--connect", &by_name]));
    let name = |server: &Server| session.join("forebay").join(format!("127.0.0.1:{}", server.port()));
    assert!(name(&dispatcher).is_file() && name(&joined).is_file());
    // By name too, a worker finds the secret.
    let second = Server::launch(&mut with_secret(&["worker", "--dispatcher", &by_name]));
    assert_eq!(second.stop("TERM"), Some(0));

    // The file of a server that was killed is removed by the next one.
    joined.kill();
    let (killed, stopped) = (name(&joined), name(&dispatcher));
    assert_eq!(dispatcher.stop("TERM"), Some(0));
    assert!(killed.is_file() && !stopped.exists());
    let _next = Server::launch(&mut with_secret(&["serve", &script, "--port", "0"]));
    assert!(!killed.exists());

    let open = Server::launch(&mut with_secret(&["serve", &script, "--port", "0", "--no-worker", "--insecure"]));
    assert!(!name(&open).exists());
    let _worker = Server::launch(&mut forebay(["worker", "--dispatcher", &open.uri, "--output", "json"]));
    read(&open, &[]);
}

#[test]
fn a_cluster_speaks_mutual_tls() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let (ours, other) = (Authority::new(&folder, "ours"), Authority::new(&folder, "other"));
    let ca = ours.path();
    let (certificate, key) = ours.sign_with("127.0.0.1", &[WORKER_URI]);
    let of = |certificate: &Path, key: &Path| {
        ["--tls-cert", text(certificate), "--tls-key", text(key), "--tls-ca", text(&ca)].map(str::to_owned)
    };
    let ours_only = ["--tls-client-ca", text(&ca)];
    let tls = of(&certificate, &key);
    let start = |script: &str, more: &[&str]| {
        Server::launch(
            forebay(["serve", script, "--port", "0", "--output", "json"]).args(&tls).args(ours_only).args(more),
        )
    };
    let dispatcher = start(&script, &["--no-worker"]);
    let worker = ["worker", "--dispatcher", &dispatcher.uri];
    ended(&[&worker[..], &["--tls-ca", text(&ca)]].concat(), &["it asks for a client certificate", "--tls-cert"]);
    let (foreign, foreign_key) = other.sign("127.0.0.1");
    let message = fail(forebay(worker).args(of(&foreign, &foreign_key)));
    assert!(message.contains("it refused the TLS connection") && message.contains("hint: "), "{message}");

    let _worker = Server::launch(forebay(worker).args(&tls).args(ours_only).args(["--output", "json"]));
    let (certificate, key) = ours.sign("trainer");
    let trainer = of(&certificate, &key);
    read(&dispatcher, &trainer.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_worker_is_told_what_it_was_pointed_at() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ca = Authority::new(&folder, "ours");
    let (certificate, key) = ca.sign("127.0.0.1");
    let secure = Server::start(&script, &["--tls-cert", text(&certificate), "--tls-key", text(&key)]);
    let plain = Server::start(&script, &["--no-worker", "--metrics-port", "0"]);

    let as_plain = secure.uri.replace("grpc+tls://", "grpc://");
    ended(
        &["worker", "--dispatcher", &as_plain],
        &["does not answer as a Forebay server does", "TLS", "write grpc+tls://"],
    );
    wrong(&["status", "--connect", &as_plain], &["does not answer as a Forebay server does", "write grpc+tls://"]);
    let as_secure = plain.uri.replace("grpc://", "grpc+tls://");
    let ca_path = ca.path();
    let worker = ["worker", "--dispatcher", &as_secure, "--tls-ca", text(&ca_path)];
    ended(&worker, &["no secure connection to", "hint: write grpc://"]);
    // An entirely different protocol: HTTP/1.
    let metrics = plain.ready["metrics"].as_str().expect("a URI").replace("http://", "grpc://").replace("/metrics", "");
    ended(&["worker", "--dispatcher", &metrics], &["does not answer as a Forebay server does", "check host and port"]);

    let worker = Server::launch(&mut forebay(["worker", "--dispatcher", &plain.uri, "--output", "json"]));
    let phrases =
        [&format!("{} is the address of a worker", worker.uri), "hint: connect to its dispatcher: ", &plain.uri];
    wrong(&["worker", "--dispatcher", &worker.uri], &phrases);
    wrong(&["run", "--connect", &worker.uri], &phrases);
    wrong(&["run", "--connect", &worker.uri, "--pipeline", "train"], &phrases);
    wrong(&["status", "--connect", &worker.uri], &phrases);
    // A worker that advertises the dispatcher's address.
    let posing = ["worker", "--dispatcher", &plain.uri, "--advertise", &plain.uri];
    wrong(&posing, &["the dispatcher itself serves at", "hint: --advertise is the worker's address for trainers"]);
}

#[test]
fn unusable_tls_files_are_named() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ca = Authority::new(&folder, "ours");
    let (certificate, key) = ca.sign("127.0.0.1");
    let (_, other_key) = ca.sign("elsewhere.example");
    let junk = folder.write("junk.pem", "not PEM at all\n");
    let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let locked = folder.write("locked.pem", locked);
    let missing = folder.path().join("missing.pem");
    for (certificate, key, phrases) in [
        (&missing, &key, [text(&missing), "does not exist"]),
        (&certificate, &missing, [text(&missing), "does not exist"]),
        (&junk, &key, [text(&junk), "holds no certificate in PEM form"]),
        (&key, &key, [text(&key), "holds no certificate in PEM form"]),
        (&certificate, &junk, [text(&junk), "holds no private key in PEM form"]),
        (&certificate, &locked, [text(&locked), "that is not encrypted"]),
        (&certificate, &other_key, [text(&other_key), "does not belong to the TLS certificate"]),
    ] {
        let phrases = [&phrases[..], &["hint: "]].concat();
        wrong(&["serve", &script, "--tls-cert", text(certificate), "--tls-key", text(key)], &phrases);
    }
    let arguments = ["serve", &script, "--tls-cert", text(&certificate), "--tls-key", text(&key)];
    wrong(&[&arguments[..], &["--tls-client-ca", text(&junk)]].concat(), &[text(&junk), "holds no certificate"]);
    let arguments = ["run", "--connect", "grpc+tls://127.0.0.1:1", "--tls-ca", text(&junk)];
    wrong(&arguments, &[text(&junk), "holds no certificate in PEM form"]);
    wrong(&["serve", &script, "--tls-cert", text(&certificate)], &["--tls-key"]);
}

#[test]
fn other_machines_are_served_only_securely() {
    let folder = Folder::new();
    let script = folder.clicks(20);
    let ca = Authority::new(&folder, "ours");
    let ca_path = ca.path();
    let (certificate, key) = ca.sign("127.0.0.1");
    let tokens = folder.write("tokens", TOKEN);
    let tls = ["--tls-cert", text(&certificate), "--tls-key", text(&key)];
    let token = ["--token-file", text(&tokens)];
    for (more, lacks) in [
        (&[][..], "neither TLS nor tokens"),
        (&token[..], "tokens but no TLS"),
        (&tls[..], "TLS but neither tokens nor client certificates"),
    ] {
        let arguments = [&["serve", &script, "--host", "0.0.0.0", "--port", "0"], more].concat();
        wrong(&arguments, &["0.0.0.0 is reachable from other machines", lacks, "hint: ", "--tls-cert", "--insecure"]);
        let host = ["serve", &script, "--host", "::", "--port", "0"];
        wrong(&[&host[..], more].concat(), &["reachable from other machines", lacks]);
    }
    let nowhere = ["serve", &script, "--host", "0.0.0.0", "--port", "0", "--insecure"];
    wrong(&nowhere, &["0.0.0.0 stands for every address of this machine", "hint: ", "--advertise grpc://HOST:PORT"]);
    // Every address of this machine includes loopback, which suffices for reading.
    let everywhere = ["--host", "0.0.0.0", "--advertise", "grpc://127.0.0.1:1"];
    let start = |more: &[&str]| Server::start(&script, &[&everywhere[..], more].concat());
    let secure = start(&[&tls[..], &token].concat());
    assert!(secure.uri.starts_with("grpc+tls://0.0.0.0:"), "{}", secure.uri);
    drop(start(&[&tls[..], &["--tls-client-ca", text(&ca_path)]].concat()));
    drop(start(&["--insecure"]));
}

#[test]
fn a_token_is_not_sent_to_other_machines_as_plain_text() {
    // An address reserved for documentation. Nothing may be sent there, so the test must not wait for a timeout.
    let arguments = ["run", "--connect", "grpc://192.0.2.1:7070", "--token", TOKEN];
    let started = std::time::Instant::now();
    wrong(&arguments, &["the token would go to grpc://192.0.2.1:7070 as plain text", "hint: ", "--insecure"]);
    assert!(started.elapsed().as_secs() < 4);
    wrong(&["run", "--connect", "ftp://127.0.0.1:1"], &["unknown scheme \"ftp\"", "grpc+tls://"]);
}
