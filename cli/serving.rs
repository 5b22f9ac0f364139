//! Options shared by `forebay serve` and `forebay worker`: addresses, memory, security.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use forebay_engine::{MemoryDefaults, SessionOptions};
use forebay_flight_client::ConnectOptions;
use forebay_flight_server::{Reload, Server};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Interrupted, refuse};
use crate::metrics::MetricsArguments;
use crate::options;
use crate::output::{self, Format};
use crate::scaling::{LocalWorkers, WorkerRange};
use crate::script;
use crate::security::ServerSecurity;

/// Options of a process that listens.
#[derive(Args)]
pub(crate) struct ServingArguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Address at which trainers reach this process, if it differs from the one it listens on: behind NAT or in a
    /// container.
    #[arg(long, value_name = "URI")]
    pub(crate) advertise: Option<String>,
    /// Make trainers on this machine read over the port too, and not over a local socket.
    #[arg(long)]
    pub(crate) no_local_socket: bool,
    /// Memory for windows that this process computes, such as 4GiB: half for source rows, half for processed rows
    /// [default: half of the container's or unit's limit, or 1GiB without one].
    #[arg(long, value_name = "SIZE", value_parser = script::memory)]
    memory_limit: Option<u64>,
    /// How long trainers may continue to read after SIGTERM or Ctrl-C; a process that nobody reads from ends at once
    /// [default: 30 for a worker, 5 for a server].
    #[arg(long, value_name = "SECONDS", value_parser = script::seconds)]
    drain_timeout: Option<f64>,
    #[command(flatten)]
    metrics: MetricsArguments,
    #[command(flatten)]
    security: ServerSecurity,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// A server whose ports are bound.
pub(crate) struct BoundServer {
    pub(crate) server: Server,
    /// How it connects to the other processes of its cluster.
    pub(crate) connect: ConnectOptions,
    /// The URI of its metrics.
    metrics: Option<String>,
}

impl ServingArguments {
    /// Checks the options and binds the ports.
    pub(crate) async fn listen(&self, port: u16, computes: bool) -> Result<(BoundServer, Signals)> {
        // Without a handler, the signal would end the process.
        let (hangup, reload) = (signal(SignalKind::hangup())?, Reload::default());
        let security = self.security.open(self.host, reload.clone())?;
        let connect = self.security.connect();
        if computes {
            check_advertised(self.host, self.advertise.as_deref())?;
        }
        let server = Server::bind(SocketAddr::new(self.host, port)).await?.secure(security);
        let (server, metrics) = self.metrics.of(server, self.host).await?;
        Ok((BoundServer { server, connect, metrics }, Signals { hangup, reload }))
    }

    /// The memory for windows, and the session's options with the default of the memory for joined tables: the given
    /// limits, or those that the process's control group leaves.
    pub(crate) fn memory(&self, options: SessionOptions) -> (u64, SessionOptions) {
        let defaults = MemoryDefaults::of_this_process();
        let windows_bytes = self.memory_limit.unwrap_or(defaults.windows_bytes);
        let lookup_bytes = options.lookup_memory_limit.unwrap_or(defaults.lookup_bytes);
        if let Some(group_bytes) = defaults.group_bytes {
            tracing::info!(group_bytes, windows_bytes, lookup_bytes, "memory limits");
            if windows_bytes >= group_bytes {
                let hint = "lower --memory-limit, or raise the limit of the container or unit";
                tracing::warn!(group_bytes, windows_bytes, hint, "the memory for windows exceeds the control group's");
            }
        }
        (windows_bytes, SessionOptions { lookup_memory_limit: Some(lookup_bytes), ..options })
    }

    /// Workers on this machine for the dispatcher `uri`, with its options, each with this memory for windows.
    pub(crate) fn workers(
        &self,
        uri: &str,
        options: &SessionOptions,
        memory_bytes: u64,
        range: WorkerRange,
    ) -> Result<LocalWorkers> {
        // Together they take what the server may take.
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = options.cpu_limit.map_or(cores, |most| cores.min(most));
        let (most, share) = (u64::from(range.max), usize::try_from(range.max).unwrap_or(usize::MAX));
        let options = &SessionOptions {
            threads: options.threads.or(Some((cores / share).max(1))),
            lookup_memory_limit: options.lookup_memory_limit.map(|bytes| (bytes / most).max(1)),
            ..options.clone()
        };
        let memory_bytes = (memory_bytes / most).max(1);
        if self.host.is_unspecified() {
            refuse!(
                "--workers starts workers that trainers reach at ports of their own, and {} stands for every address \
                 of this machine\nhint: give --host the address at which trainers reach it",
                self.host
            );
        }
        let mut arguments: Vec<OsString> = options::of_worker(options).into_iter().map(Into::into).collect();
        let host = self.host.to_string();
        for (flag, value) in [("--dispatcher", uri), ("--host", &host), ("--memory-limit", &memory_bytes.to_string())] {
            arguments.extend([flag.into(), value.into()]);
        }
        arguments.extend(self.drain_timeout.map(|seconds| format!("--drain-timeout={seconds}").into()));
        arguments.extend(self.no_local_socket.then(|| "--no-local-socket".into()));
        arguments.extend(self.security.insecure().then(|| "--insecure".into()));
        LocalWorkers::new(arguments, self.security.variables())
    }

    /// How long trainers may continue to read after the process was told to stop, if it was given.
    pub(crate) fn drain_timeout(&self) -> Option<Duration> {
        self.drain_timeout.map(Duration::from_secs_f64)
    }

    /// Announces that the server is ready: prints `json`, or `text` line by line.
    pub(crate) fn say(&self, listening: &BoundServer, mut json: Value, text: &[String]) -> Result<()> {
        match self.output {
            Format::Json => {
                listening.metrics.iter().for_each(|metrics| json["metrics"] = metrics.as_str().into());
                output::json(&json)
            }
            Format::Text => {
                let metrics = listening.metrics.iter().map(|metrics| format!("metrics on {metrics}"));
                text.iter().cloned().chain(metrics).try_for_each(|line| output::line(&line))
            }
        }
    }
}

/// The signals of a process that serves.
pub(crate) struct Signals {
    hangup: Signal,
    reload: Reload,
}

impl Signals {
    /// Installs the other handlers, and returns a future that completes when the process is interrupted or terminated.
    /// Until then, a hangup makes the server read its files again.
    pub(crate) fn stop(self) -> Result<impl Future<Output = ()> + Send + Unpin + 'static> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let Self { mut hangup, reload } = self;
        Ok(Box::pin(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => return,
                    _ = terminate.recv() => return,
                    Some(()) = hangup.recv() => reload.ask(),
                }
            }
        }))
    }
}

/// Runs a server to its end, unless the process is told to stop a second time.
pub(crate) async fn until_interrupted_again(serving: impl Future<Output = forebay_engine::Result<()>>) -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let again = async {
        for _ in 0..2 {
            tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
        }
    };
    tokio::select! {
        served = serving => Ok(served?),
        () = again => Err(Interrupted("interrupted while trainers were still reading".to_owned()).into()),
    }
}

/// Refuses an advertised address that no trainer can connect to. Trainers would silently lose such a worker.
fn check_advertised(host: IpAddr, uri: Option<&str>) -> Result<()> {
    if host.is_unspecified() && uri.is_none() {
        refuse!(
            "{host} stands for every address of this machine, and trainers cannot connect to it\n\
             hint: give the address at which they reach this process, with --advertise grpc://HOST:PORT"
        );
    }
    let is_reachable = |host: &str, port: &str| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_everywhere = host.parse::<IpAddr>().is_ok_and(|host| host.is_unspecified());
        !host.is_empty() && !is_everywhere && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    let is_uri = |uri: &str| {
        let (scheme, address) = uri.split_once("://")?;
        let (host, port) = address.rsplit_once(':')?;
        Some(["grpc", "grpc+tcp", "grpc+tls", "grpcs"].contains(&scheme) && is_reachable(host, port))
    };
    let is_uri = |uri: &str| is_uri(uri).unwrap_or(false);
    match uri.filter(|uri| !is_uri(uri)) {
        Some(uri) => refuse!(
            "--advertise is not an address that trainers can connect to: \"{uri}\"\n\
             hint: write grpc://HOST:PORT, or grpc+tls://HOST:PORT"
        ),
        None => Ok(()),
    }
}
