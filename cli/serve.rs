//! `forebay serve`: serves the pipelines of a script over Arrow Flight until it is stopped.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, ReadOptions};
use forebay_flight_server::Roles;
use serde_json::json;

use crate::script::{self, ScriptArguments};
use crate::serving::{self, BoundServer, ServingArguments};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Port to listen on; 0 takes a free port.
    #[arg(long, default_value_t = 7070)]
    port: u16,
    /// Compute no windows in this process; lease all of them to other workers.
    #[arg(long)]
    no_worker: bool,
    #[command(flatten)]
    serving: ServingArguments,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let Arguments { script, port, no_worker, serving } = arguments;
    // Bind the port first. A script over a large dataset takes a while, which would be wasted if the port is taken.
    let listening = serving.listen(port, !no_worker).await?;
    let session = script.open().await?;
    let (uri, pipelines) = (listening.server.uri(), session.pipelines());
    if pipelines.is_empty() {
        return Err(script::no_pipeline());
    }
    // Open every pipeline now, so that the user who starts the server sees errors, and not the first trainer.
    for pipeline in &pipelines {
        session.open(pipeline, &FeedOptions::default())?.expected_samples(&ReadOptions::default())?;
    }
    // Install the signal handlers before announcing the server, because a user who knows of it may stop it.
    let stop = serving::stop()?;
    let text = [
        format!("serving {} on {uri}", pipelines.join(", ")),
        format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"),
    ];
    serving.say(&listening, json!({ "uri": uri, "pipelines": pipelines }), &text)?;
    let worker_memory_bytes = (!no_worker).then_some(serving.memory_limit);
    let BoundServer { server, connect, .. } = listening;
    let local_socket = !serving.no_local_socket;
    let roles =
        Roles { dispatchers: Vec::new(), worker_memory_bytes, advertise: serving.advertise, local_socket, connect };
    Ok(server.run(Arc::new(session), roles, stop).await?)
}
