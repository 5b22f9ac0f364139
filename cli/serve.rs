//! `forebay serve`: serves the pipelines of a script over Arrow Flight until it is stopped.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::{Error, ErrorKind, FeedOptions, ReadOptions, Session};
use forebay_flight_server::Roles;
use serde_json::json;

use crate::options::Flags;
use crate::script::{self, ScriptArguments};
use crate::serving::{BoundServer, ServingArguments};

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
    let (listening, signals) = serving.listen(port, !no_worker).await?;
    let (windows_bytes, options) = serving.memory(script.session.0.clone());
    let session = ScriptArguments { session: Flags(options), ..script }.open_what_opens().await?;
    let uri = listening.server.uri();
    let (pipelines, failed) = opened(&session)?;
    if pipelines.is_empty() {
        let first = failed.into_values().next();
        return Err(first.map_or_else(script::no_pipeline, anyhow::Error::from));
    }
    for (table, error) in &session.broken().tables {
        tracing::error!(%table, kind = ?error.kind(), %error, "table not opened");
    }
    for (pipeline, error) in &failed {
        tracing::error!(%pipeline, kind = ?error.kind(), %error, "pipeline not served; its readers get this error");
    }
    // Install the signal handlers before announcing the server, because a user who knows of it may stop it.
    let stop = signals.stop()?;
    let text = [
        format!("serving {} on {uri}", pipelines.join(", ")),
        format!("read with: forebay run --connect {uri} --pipeline NAME   (Ctrl-C stops)"),
    ];
    let mut json = json!({ "uri": uri, "pipelines": pipelines });
    if !failed.is_empty() {
        json["failed"] = failed.iter().map(|(pipeline, error)| (pipeline.clone(), json!(error.message()))).collect();
    }
    serving.say(&listening, json, &text)?;
    let worker_memory_bytes = (!no_worker).then_some(windows_bytes);
    let BoundServer { server, connect, .. } = listening;
    let local_socket = !serving.no_local_socket;
    let drain_timeout = serving.drain_timeout();
    let advertise = serving.advertise;
    let roles = Roles { dispatchers: Vec::new(), worker_memory_bytes, advertise, local_socket, drain_timeout, connect };
    Ok(server.run(Arc::new(session), roles, stop).await?)
}

/// Opens every pipeline now, so that the user who starts the server sees errors, and not the first trainer. Returns the
/// pipelines that can be read, and the errors of those over damaged files, which must not keep the others from
/// starting.
fn opened(session: &Session) -> Result<(Vec<String>, BTreeMap<String, Error>)> {
    let mut failed = session.broken().pipelines;
    let mut pipelines = Vec::new();
    for pipeline in session.pipelines() {
        let feed = session.open(&pipeline, &FeedOptions::default());
        match feed.and_then(|feed| feed.expected_samples(&ReadOptions::default())) {
            Ok(_) => pipelines.push(pipeline),
            Err(error) if error.kind() == ErrorKind::Data => {
                failed.insert(pipeline, error);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((pipelines, failed))
}
