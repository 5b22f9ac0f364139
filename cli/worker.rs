//! `forebay worker`: computes windows for a dispatcher, until it is told to stop.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_flight_server::{Roles, Server};
use serde_json::json;

use crate::metrics::MetricsArguments;
use crate::output::{self, Format};
use crate::script::{self, SessionArguments};
use crate::security::ServerSecurity;
use crate::serve;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The dispatcher to compute for, such as grpc://feeds:7070; several are separated by commas, and the first that answers is taken.
    #[arg(long, value_name = "URI", env = "FOREBAY_DISPATCHER")]
    dispatcher: String,
    /// Address to listen on for trainers.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Where trainers reach this worker, if not at the address it listens on: behind NAT or in a container.
    #[arg(long, value_name = "URI")]
    advertise: Option<String>,
    /// Memory for windows, such as 4GiB: half for source rows, half for processed ones.
    #[arg(long, value_name = "SIZE", value_parser = script::memory, default_value = "1GiB")]
    memory_limit: u64,
    /// Memory for the tables that one feed joins, such as 4GiB; a feed that needs more is refused.
    #[arg(long, value_name = "SIZE", value_parser = script::memory, default_value = "1GiB")]
    lookup_memory_limit: u64,
    /// Threads that compute; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    #[command(flatten)]
    metrics: MetricsArguments,
    #[command(flatten)]
    security: ServerSecurity,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// The addresses in a list; a typing error would else look like a dispatcher that never answers.
fn dispatchers(list: &str) -> Result<Vec<String>> {
    let addresses = forebay_flight_client::addresses(list);
    let is_uri = |uri: &str| {
        let (scheme, address) = uri.split_once("://")?;
        let (host, port) = address.rsplit_once(':')?;
        let is_scheme = ["grpc", "grpc+tcp", "grpc+tls", "grpcs", "http", "https"].contains(&scheme);
        Some(is_scheme && !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    match addresses.iter().find(|address| !is_uri(address).unwrap_or(false)) {
        Some(wrong) => anyhow::bail!(
            "--dispatcher is not a list of addresses: \"{wrong}\" in \"{list}\"\n\
             hint: write grpc://HOST:PORT, or grpc+tls://HOST:PORT; several are separated by commas"
        ),
        None => Ok(addresses),
    }
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let security = arguments.security.open(arguments.host)?;
    let connect = arguments.security.connect()?;
    let dispatchers = dispatchers(&arguments.dispatcher)?;
    serve::check_advertised(arguments.host, arguments.advertise.as_deref())?;
    let server = Server::bind(SocketAddr::new(arguments.host, arguments.port)).await?.secure(security);
    let (server, metrics) = arguments.metrics.of(server, arguments.host).await?;
    let (threads, lookup_memory_limit) = (arguments.threads, arguments.lookup_memory_limit);
    // Where to write comes with each feed.
    let root = ".forebay".to_owned();
    let session = SessionArguments { threads, window_memory_limit: 0, lookup_memory_limit, root };
    let session = session.open(Path::new(""))?;
    let uri = arguments.advertise.clone().unwrap_or_else(|| server.uri());
    let stop = serve::stop()?;
    match arguments.output {
        Format::Json => {
            let mut ready = json!({ "uri": uri, "dispatchers": dispatchers });
            metrics.into_iter().for_each(|metrics| ready["metrics"] = metrics.into());
            output::json(&ready)?;
        }
        Format::Text => {
            output::line(&format!("computing for {} on {uri}   (Ctrl-C drains and stops)", dispatchers.join(", ")))?;
            metrics.map_or(Ok(()), |metrics| output::line(&format!("metrics on {metrics}")))?;
        }
    }
    let roles = Roles {
        dispatchers,
        worker_memory_bytes: Some(arguments.memory_limit),
        advertise: arguments.advertise,
        connect,
    };
    Ok(server.run(Arc::new(session), roles, stop).await?)
}
