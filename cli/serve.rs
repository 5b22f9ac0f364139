//! `forebay serve`: the pipelines of a script over Arrow Flight, until it is told to stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, ReadOptions};
use forebay_flight_server::{Roles, Server};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::metrics::MetricsArguments;
use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};
use crate::security::ServerSecurity;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 7070)]
    port: u16,
    /// Lease windows to workers only, and compute none here.
    #[arg(long)]
    no_worker: bool,
    /// Where trainers reach this server, if not at the address it listens on: behind NAT or in a container.
    #[arg(long, value_name = "URI")]
    advertise: Option<String>,
    /// Memory for windows that are computed here for trainers, such as 4GiB: half for source rows, half for processed ones.
    #[arg(long, value_name = "SIZE", value_parser = script::memory, default_value = "1GiB")]
    memory_limit: u64,
    #[command(flatten)]
    metrics: MetricsArguments,
    #[command(flatten)]
    security: ServerSecurity,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let security = arguments.security.open(arguments.host)?;
    let connect = arguments.security.connect()?;
    if !arguments.no_worker {
        check_advertised(arguments.host, arguments.advertise.as_deref())?;
    }
    // The port first: a script over a large dataset takes a while, and would be in vain.
    let server = Server::bind(SocketAddr::new(arguments.host, arguments.port)).await?.secure(security);
    let (server, metrics) = arguments.metrics.of(server, arguments.host).await?;
    let session = arguments.script.open().await?;
    let (uri, pipelines) = (server.uri(), session.pipelines());
    if pipelines.is_empty() {
        return Err(script::no_pipeline());
    }
    // What cannot be opened is found by whoever starts the server, not by the first trainer.
    for pipeline in &pipelines {
        session.open(pipeline, &FeedOptions::default())?.check(&ReadOptions::default())?;
    }
    // Before anyone is told that the server runs, and so may stop it.
    let stop = stop()?;
    match arguments.output {
        Format::Json => {
            let mut ready = json!({ "uri": uri, "pipelines": pipelines });
            metrics.into_iter().for_each(|metrics| ready["metrics"] = metrics.into());
            output::json(&ready)?;
        }
        Format::Text => {
            output::line(&format!("serving {} on {uri}", pipelines.join(", ")))?;
            output::line(&format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"))?;
            metrics.map_or(Ok(()), |metrics| output::line(&format!("metrics on {metrics}")))?;
        }
    }
    let worker_memory_bytes = (!arguments.no_worker).then_some(arguments.memory_limit);
    let roles = Roles { dispatchers: Vec::new(), worker_memory_bytes, advertise: arguments.advertise, connect };
    Ok(server.run(Arc::new(session), roles, stop).await?)
}

/// Ends when the process is interrupted or told to terminate; it listens from here on.
pub(crate) fn stop() -> Result<impl Future<Output = ()> + Send + 'static> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A worker that advertises what nobody can connect to would be a silent loss.
pub(crate) fn check_advertised(host: IpAddr, uri: Option<&str>) -> Result<()> {
    if host.is_unspecified() && uri.is_none() {
        anyhow::bail!(
            "{host} listens everywhere, and is no address that trainers could connect to\n\
             hint: say where they reach this process with --advertise grpc://HOST:PORT"
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
        Some(uri) => anyhow::bail!(
            "--advertise is not an address that trainers could connect to: \"{uri}\"\nhint: write grpc://HOST:PORT, or grpc+tls://HOST:PORT"
        ),
        None => Ok(()),
    }
}
