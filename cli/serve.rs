//! `forebay serve`: the pipelines of a script over Arrow Flight, until it is told to stop.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, ReadOptions};
use forebay_flight_server::Roles;
use serde_json::json;

use crate::script::{self, ScriptArguments};
use crate::serving::{self, Listening, ServingArguments};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 7070)]
    port: u16,
    /// Lease windows to workers only, and compute none here.
    #[arg(long)]
    no_worker: bool,
    #[command(flatten)]
    serving: ServingArguments,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let Arguments { script, port, no_worker, serving } = arguments;
    // The port first: a script over a large dataset takes a while, and would be in vain.
    let listening = serving.listen(port, !no_worker).await?;
    let session = script.open().await?;
    let (uri, pipelines) = (listening.server.uri(), session.pipelines());
    if pipelines.is_empty() {
        return Err(script::no_pipeline());
    }
    // What cannot be opened is found by whoever starts the server, not by the first trainer.
    for pipeline in &pipelines {
        session.open(pipeline, &FeedOptions::default())?.check(&ReadOptions::default())?;
    }
    // Before anyone is told that the server runs, and so may stop it.
    let stop = serving::stop()?;
    let text = [
        format!("serving {} on {uri}", pipelines.join(", ")),
        format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"),
    ];
    serving.say(&listening, json!({ "uri": uri, "pipelines": pipelines }), &text)?;
    let worker_memory_bytes = (!no_worker).then_some(serving.memory_limit);
    let Listening { server, connect, .. } = listening;
    let local_socket = !serving.no_local_socket;
    let roles =
        Roles { dispatchers: Vec::new(), worker_memory_bytes, advertise: serving.advertise, local_socket, connect };
    Ok(server.run(Arc::new(session), roles, stop).await?)
}
