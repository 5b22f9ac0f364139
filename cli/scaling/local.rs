//! Workers as processes on this machine.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use forebay_engine::policy::Decision;

use super::workers::Workers;

/// A worker that ends sooner than this has a reason to, and the next one waits.
const SOON: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(2);
/// How long workers may take to end with the server. Trainers have read to their end by then, or given up.
const FAREWELL: Duration = Duration::from_secs(2);

/// The addresses of the workers that were started and run.
pub(super) type Started = Arc<Mutex<HashSet<String>>>;

/// Workers as processes on this machine, which end with this process.
pub(crate) struct LocalWorkers {
    program: PathBuf,
    arguments: Vec<OsString>,
    variables: Vec<(&'static str, OsString)>,
    running: Vec<LocalWorker>,
    started: Started,
    /// No worker is started before, because the last ones ended at once.
    not_before: Option<Instant>,
}

struct LocalWorker {
    child: Child,
    began: Instant,
    /// The address under which the dispatcher knows it, once it has printed it.
    address: Arc<OnceLock<String>>,
    is_draining: bool,
}

impl LocalWorkers {
    /// Workers with these arguments of `forebay worker`, and these variables.
    pub(crate) fn new(arguments: Vec<OsString>, variables: Vec<(&'static str, OsString)>) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program, to start workers")?;
        Ok(Self { program, arguments, variables, running: Vec::new(), started: Started::default(), not_before: None })
    }

    /// The addresses of the workers that were started and run.
    pub(super) fn started(&self) -> Started {
        Arc::clone(&self.started)
    }

    fn start(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("worker").args(&self.arguments).args(["--port", "0", "--output", "json", "--end-with-stdin"]);
        // The server's own, such as its ports. What a worker shares with it is among the arguments and variables.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("FOREBAY_") && !text.starts_with("FOREBAY_LOG") {
                command.env_remove(name);
            }
        }
        command.envs(self.variables.iter().cloned()).stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ctrl-C is for the server, which then drains its workers.
        let mut child = command.process_group(0).spawn().context("cannot start a worker")?;
        let (output, address) = (child.stdout.take(), Arc::new(OnceLock::new()));
        let (printed, started) = (Arc::clone(&address), self.started());
        self.running.push(LocalWorker { child, began: Instant::now(), address, is_draining: false });
        if let Some(output) = output {
            std::thread::Builder::new().name("worker-output".to_owned()).spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let line: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
                    let Some(uri) = line["uri"].as_str() else { continue };
                    let _ = printed.set(uri.to_owned());
                    if let Ok(mut started) = started.lock() {
                        started.insert(uri.to_owned());
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Forgets the workers that have ended.
    fn reap(&mut self) {
        let mut not_before = self.not_before;
        self.running.retain_mut(|worker| {
            let Ok(Some(status)) = worker.child.try_wait() else { return true };
            if let (Some(address), Ok(mut started)) = (worker.address.get(), self.started.lock()) {
                started.remove(address);
            }
            if !worker.is_draining {
                let pid = worker.child.id();
                let address = worker.address.get().map_or("unknown", String::as_str);
                tracing::warn!(pid, address, %status, "a worker has ended by itself");
                if worker.began.elapsed() < SOON {
                    not_before = Some(Instant::now() + PAUSE);
                }
            }
            false
        });
        self.not_before = not_before;
    }
}

impl LocalWorker {
    /// Tells it to drain: nothing more comes from its standard input.
    fn drain(&mut self) {
        self.is_draining = true;
        self.child.stdin = None;
    }
}

impl Workers for LocalWorkers {
    fn scale(&mut self, decision: &Decision) {
        self.reap();
        let wanted = usize::try_from(decision.workers).unwrap_or(usize::MAX);
        let staying = self.running.iter().filter(|worker| !worker.is_draining).count();
        for _ in staying..wanted {
            if self.not_before.is_some_and(|at| Instant::now() < at) {
                break;
            }
            if let Err(error) = self.start() {
                tracing::warn!(error = format!("{error:#}"), "a worker cannot be started; retrying");
                self.not_before = Some(Instant::now() + PAUSE);
            }
        }
        let is_named = |worker: &LocalWorker| {
            worker.address.get().is_some_and(|address| decision.drain.iter().any(|named| named == address))
        };
        // Those that the decision names, then the newest: they have computed least ahead.
        let mut surplus: Vec<&mut LocalWorker> = self.running.iter_mut().filter(|worker| !worker.is_draining).collect();
        surplus.sort_by_key(|worker| (!is_named(worker), std::cmp::Reverse(worker.began)));
        surplus.into_iter().take(staying.saturating_sub(wanted)).for_each(LocalWorker::drain);
    }

    fn end(mut self: Box<Self>) {
        self.running.iter_mut().for_each(LocalWorker::drain);
        let until = Instant::now() + FAREWELL;
        while !self.running.is_empty() && Instant::now() < until {
            self.reap();
            std::thread::park_timeout(Duration::from_millis(20));
        }
        for mut worker in self.running {
            let _ = worker.child.kill();
            let _ = worker.child.wait();
        }
    }
}
