//! `forebay serve`: the pipelines of a script over Arrow Flight, until it is told to stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, ReadOptions};
use forebay_flight_server::Server;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};

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
    /// Serve other machines although there is neither TLS nor a token: anyone who reaches the port can read the feeds.
    #[arg(long)]
    insecure: bool,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    if !arguments.host.is_loopback() && !arguments.insecure {
        anyhow::bail!(
            "{} is reachable from other machines, and this server has neither TLS nor tokens yet\n\
             hint: keep to --host 127.0.0.1 and a tunnel, or add --insecure on a network you trust",
            arguments.host
        );
    }
    // The port first: a script over a large dataset takes a while, and would be in vain.
    let server = Server::bind(SocketAddr::new(arguments.host, arguments.port)).await?;
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
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    match arguments.output {
        Format::Json => output::json(&json!({ "uri": uri, "pipelines": pipelines }))?,
        Format::Text => {
            output::line(&format!("serving {} on {uri}", pipelines.join(", ")))?;
            output::line(&format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"))?;
        }
    }
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    Ok(server.serve(Arc::new(session), stop).await?)
}
