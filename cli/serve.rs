//! `forebay serve`: serves the pipelines of scripts over Arrow Flight until it is stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_flight_server::{Roles, Scripts};
use serde_json::json;

use crate::options::{Serves, SessionFlags};
use crate::scaling::ScalingArguments;
use crate::script;
use crate::scripts::ScriptFiles;
use crate::serving::{BoundServer, ServingArguments, until_interrupted_again};

#[derive(Args)]
pub(crate) struct Arguments {
    /// SQL files that create tables and pipelines, and folders of such files (*.sql); relative locations in a script
    /// are relative to its folder.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    session: SessionFlags<Serves>,
    /// Port to listen on; 0 takes a free port.
    #[arg(long, default_value_t = 7070)]
    port: u16,
    /// Folder or URL below which workers may write files for `forebay materialize --connect`; may be repeated, or a
    /// list separated by commas.
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    allow_write: Vec<String>,
    /// Compute no windows in this process; lease all of them to other workers.
    #[arg(long)]
    no_worker: bool,
    #[command(flatten)]
    scaling: ScalingArguments,
    #[command(flatten)]
    serving: ServingArguments,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let Arguments { files, session, port, allow_write, no_worker, scaling, serving } = arguments;
    let no_worker = no_worker || scaling.starts_workers();
    // Bind the port first. A script over a large dataset takes a while, which would be wasted if the port is taken.
    let (listening, signals) = serving.listen(port, !no_worker).await?;
    let (windows_bytes, options) = serving.memory(session.0);
    let session = Arc::new(script::session(&options, Path::new(""))?);
    let uri = listening.server.uri();
    // Before anything takes long or is announced, so that the process can be stopped in order from now on.
    let mut stop = signals.stop()?;
    let scripts = tokio::select! {
        opened = ScriptFiles::open(files, Arc::clone(&session)) => Arc::new(opened?),
        () = &mut stop => return Ok(()),
    };
    let pipelines = scripts.pipelines().await;
    let failed = scripts.broken_pipelines().await;
    let text = [
        format!("serving {} on {uri}", pipelines.join(", ")),
        format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"),
    ];
    let mut json = json!({ "uri": uri, "pipelines": pipelines });
    if !failed.is_empty() {
        json["failed"] = failed.iter().map(|(pipeline, error)| (pipeline.clone(), json!(error.message()))).collect();
    }
    let workers = scaling.begin(|range| serving.workers(&uri, &options, windows_bytes, range))?;
    serving.say(&listening, json, &text)?;
    let worker_memory_bytes = (!no_worker).then_some(windows_bytes);
    let BoundServer { server, connect, .. } = listening;
    let local_socket = !serving.no_local_socket;
    let drain_timeout = serving.drain_timeout();
    let advertise = serving.advertise;
    let scripts = Some(scripts as Arc<dyn Scripts>);
    let roles = Roles {
        dispatchers: Vec::new(),
        worker_memory_bytes,
        advertise,
        beside_trainer: false,
        local_socket,
        drain_timeout,
        connect,
        scripts,
        scaling: workers.scaling(),
        writable: allow_write,
    };
    let served = until_interrupted_again(server.run(session, roles, stop)).await;
    // Waits for the workers.
    drop(workers);
    served
}
