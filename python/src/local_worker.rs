//! A worker beside the trainer: in its process, on cores that it does not need.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forebay_engine::policy::{LocalPolicy, TrainerSeen};
use forebay_engine::{Error, ErrorKind, Result, cpu_time};
use forebay_flight_client::wire::actions;
use forebay_flight_client::{ConnectOptions, DispatcherClient, addresses};
use forebay_flight_server::{Access, AccessTokens, Roles, Security, Server, ServerTls};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::client::Client;
use crate::error::{OrRaise, invalid};
use crate::runtime::{OfProcess, Runtime};
use crate::steps::StepTimes;

/// How long trainers may read on from a worker that drains. Without readers it ends at once.
const DRAIN: Duration = Duration::from_secs(10);
/// The least length of a stretch of training that the policy is told of.
const STRETCH: Duration = Duration::from_secs(2);

/// A worker in this process that computes for a dispatcher until it is stopped or dropped.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct LocalWorker {
    runtime: Runtime,
    steps: Arc<StepTimes>,
    threads: Arc<AtomicU32>,
    running: OfProcess<Mutex<Option<Running>>>,
}

/// What stops the worker, and what ends when it has drained.
struct Running {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

#[pymethods]
impl LocalWorker {
    /// Starts a worker for the dispatcher of `client`, which trainers reach at the IP address `host`. Without
    /// `threads`, it computes with what `processes` trainers on this machine leave.
    #[new]
    #[pyo3(signature = (client, *, threads, memory_bytes, host, processes))]
    fn new(
        py: Python<'_>,
        client: &Client,
        threads: Option<u32>,
        memory_bytes: u64,
        host: &str,
        processes: u32,
    ) -> PyResult<Self> {
        let host: IpAddr = host
            .parse()
            .map_err(|_| invalid(py, format!("\"local_worker_address\" must be an IP address, got \"{host}\"")))?;
        let runtime = Runtime::new().or_raise(py)?;
        let (uri, connect) = (client.uri().to_owned(), client.options().clone());
        let security = security(host, &connect).or_raise(py)?;
        let begun = async {
            check(&uri, &connect).await?;
            // So that an address that cannot be used is an error here, and not a line in the log.
            Server::bind(SocketAddr::new(host, 0)).await.map(drop)
        };
        runtime.wait(py, begun)?.or_raise(py)?;
        let session = forebay_engine::Session::builder()
            .threads(threads.map_or_else(cores, |threads| usize::try_from(threads).unwrap_or(usize::MAX)))
            .lookup_memory_bytes(memory_bytes)
            .yields(true);
        let session = Arc::new(session.build().or_raise(py)?);
        let shown = Arc::new(AtomicU32::new(0));
        let worker = Worker {
            dispatchers: addresses(&uri),
            connect,
            security,
            host,
            memory_bytes,
            session,
            shown: Arc::clone(&shown),
            serving: None,
            all: JoinSet::new(),
        };
        let steps = Arc::<StepTimes>::default();
        let (stop, stopped) = oneshot::channel();
        let (keep, watched) = (runtime.clone(), Arc::clone(&steps));
        let task = runtime.handle().spawn(async move {
            worker.run(threads, watched, processes, stopped).await;
            // What drains outlives the object.
            drop(keep);
        });
        let running = OfProcess::new(Mutex::new(Some(Running { stop: Some(stop), task })));
        Ok(Self { runtime, steps, threads: shown, running })
    }

    /// The threads that compute now.
    #[getter]
    fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// Whether it has drained, or ended by itself.
    #[getter]
    fn is_done(&self) -> bool {
        self.running.is_forked() || self.running.lock().as_ref().is_none_or(|running| running.task.is_finished())
    }

    /// Takes no more windows. Trainers read on for some seconds.
    fn drain(&self) {
        if !self.running.is_forked()
            && let Some(running) = &mut *self.running.lock()
        {
            running.stop = None;
        }
    }

    /// Drains, and waits until no trainer reads any more. Does nothing in a forked process.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        if self.running.is_forked() {
            return Ok(());
        }
        let running = self.running.lock().take();
        let Some(Running { stop, task }) = running else { return Ok(()) };
        drop(stop);
        self.runtime.wait(py, task)?.map_err(|error| internal(&error)).or_raise(py)
    }
}

impl LocalWorker {
    /// Where loops over its feeds write down their steps.
    pub(crate) fn steps(&self) -> &Arc<StepTimes> {
        &self.steps
    }
}

fn internal(error: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

/// The cores that this process may use, by its affinity and its control group.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Fails if this process may not compute for the dispatcher.
async fn check(uri: &str, connect: &ConnectOptions) -> Result<()> {
    let dispatcher = DispatcherClient::new(addresses(uri), connect.clone());
    // There is no such feed, which only a worker gets to hear.
    match dispatcher.call::<()>(actions::FEED_SPEC, &"").await {
        Err(error) if error.kind() == ErrorKind::Denied => {
            let message = format!("this process may read, and a local worker must also compute: {}", error.message());
            Err(Error::new(ErrorKind::Denied, message).with_hint(
                "connect with a token or a certificate of a worker, or without \"local_worker\"; workers get the \
                 specs of all feeds",
            ))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        answer => answer,
    }
}

/// Whom the worker serves: trainers that show what this process shows.
fn security(host: IpAddr, connect: &ConnectOptions) -> Result<Security> {
    let invalid = |message: &str, hint: &str| Error::new(ErrorKind::Invalid, message).with_hint(hint);
    let ConnectOptions { tls, token_file, insecure, .. } = connect;
    let uses_tls = tls.ca.is_some() || tls.certificate.is_some() || tls.server_name.is_some();
    let served = match (&tls.certificate, &tls.key) {
        (Some(certificate), Some(key)) => {
            let client_ca = tls.ca.as_deref().filter(|_| token_file.is_none());
            Some(ServerTls::read(certificate, key, client_ca)?)
        }
        _ if uses_tls => {
            return Err(invalid(
                "a local worker serves trainers over TLS too, and has no certificate",
                "give \"tls\" also \"cert\" and \"key\": a certificate for \"local_worker_address\"",
            ));
        }
        _ => None,
    };
    let readers = token_file.as_deref().map(AccessTokens::read).transpose()?;
    let is_guarded = served.is_some() && (readers.is_some() || tls.ca.is_some());
    if !(host.to_canonical().is_loopback() || is_guarded || *insecure) {
        return Err(invalid(
            "other machines reach this local worker, and it has no TLS, or neither tokens nor a CA of its clients",
            "give \"tls\" with \"ca\", \"cert\" and \"key\", or connect with insecure=True on a network you trust",
        ));
    }
    let access = Access { readers, workers: None };
    Ok(Security { access, tls: served, insecure: *insecure, ..Security::default() })
}

/// The worker as a server, which runs while there are threads for it.
struct Worker {
    dispatchers: Vec<String>,
    connect: ConnectOptions,
    security: Security,
    host: IpAddr,
    memory_bytes: u64,
    session: Arc<forebay_engine::Session>,
    shown: Arc<AtomicU32>,
    /// Stops the server.
    serving: Option<oneshot::Sender<()>>,
    /// The server, and earlier ones that still drain.
    all: JoinSet<Result<()>>,
}

impl Worker {
    /// Runs until it is stopped, or the dispatcher refuses it.
    async fn run(
        mut self,
        threads: Option<u32>,
        steps: Arc<StepTimes>,
        processes: u32,
        mut stopped: oneshot::Receiver<()>,
    ) {
        let ended = tokio::select! {
            _ = &mut stopped => Ok(()),
            ended = self.compute(threads, &steps, processes) => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "the local worker has ended; others compute");
        }
        self.shown.store(0, Ordering::Relaxed);
        self.serving = None;
        while self.all.join_next().await.is_some() {}
    }

    async fn compute(&mut self, threads: Option<u32>, steps: &StepTimes, processes: u32) -> Result<()> {
        if let Some(threads) = threads {
            self.set_threads(threads).await?;
            return self.ended().await;
        }
        let mut policy = LocalPolicy::default();
        let status = DispatcherClient::new(self.dispatchers.clone(), self.connect.clone());
        let (mut began, mut own) = (Instant::now(), self.own_time());
        loop {
            let mut seen = TrainerSeen { has_others: has_others(&status).await, ..TrainerSeen::default() };
            if let Some(steps) = steps.take() {
                let (now, own_now) = (Instant::now(), self.own_time());
                seen.seconds = (now - began).as_secs_f64();
                seen.core_seconds = own_now.saturating_sub(own).as_secs_f64() * f64::from(processes);
                (seen.cores, seen.steps) = (cores() as f64, steps);
                (began, own) = (now, own_now);
            }
            self.set_threads(policy.observe(&seen)).await?;
            tokio::select! {
                ended = self.ended() => return ended,
                () = tokio::time::sleep(STRETCH) => {}
            }
        }
    }

    /// The processors' time for the trainer's own threads.
    fn own_time(&self) -> Duration {
        cpu_time().unwrap_or_default().saturating_sub(self.session.cpu_time())
    }

    /// Computes with this number of threads from now on. Without threads, it drains: other workers take over.
    async fn set_threads(&mut self, threads: u32) -> Result<()> {
        if self.shown.swap(threads, Ordering::Relaxed) == threads {
            return Ok(());
        }
        tracing::info!(threads, "threads of the local worker");
        if threads == 0 {
            self.serving = None;
            return Ok(());
        }
        self.session.use_threads(usize::try_from(threads).unwrap_or(usize::MAX));
        if self.serving.is_none() {
            let server = Server::bind(SocketAddr::new(self.host, 0)).await?.secure(self.security.clone());
            let roles = Roles {
                dispatchers: self.dispatchers.clone(),
                worker_memory_bytes: Some(self.memory_bytes),
                beside_trainer: true,
                drain_timeout: Some(DRAIN),
                connect: self.connect.clone(),
                ..Roles::default()
            };
            let (stop, stopped) = oneshot::channel::<()>();
            self.serving = Some(stop);
            self.all.spawn(server.run(Arc::clone(&self.session), roles, async move { _ = stopped.await }));
        }
        Ok(())
    }

    /// Waits until a server has ended by itself.
    async fn ended(&mut self) -> Result<()> {
        loop {
            match self.all.join_next().await {
                // An earlier one has drained.
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(error))) => return Err(error),
                Some(Err(error)) => return Err(internal(&error)),
                None => std::future::pending().await,
            }
        }
    }
}

/// Whether the dispatcher has workers that are not beside trainers. A dispatcher that does not answer has.
async fn has_others(dispatcher: &DispatcherClient) -> bool {
    let status = dispatcher.call::<forebay_flight_client::ClusterStatus>(actions::STATUS, &"").await;
    status.map_or(true, |status| status.workers.iter().any(|worker| !worker.beside_trainer && !worker.draining))
}
