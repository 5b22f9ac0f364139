//! `forebay worker`: computes windows for a dispatcher until it is stopped.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use forebay_engine::SessionOptions;
use forebay_flight_server::Roles;
use serde_json::json;

use crate::exit::refuse;
use crate::options::{SessionFlags, Works};
use crate::script;
use crate::serving::{BoundServer, ServingArguments, until_interrupted_again};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Dispatcher to compute for, such as grpc://feeds:7070; separate several by commas, and the first that answers is
    /// used.
    #[arg(long, value_name = "URI", env = "FOREBAY_DISPATCHER")]
    dispatcher: String,
    /// Port to listen on for trainers; 0 takes a free port.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Drain and stop at the end of standard input, as the server wants that started this worker.
    #[arg(long, hide = true)]
    end_with_stdin: bool,
    #[command(flatten)]
    session: SessionFlags<Works>,
    #[command(flatten)]
    serving: ServingArguments,
}

/// Parses a list of addresses. Without the check a typing error would look like a dispatcher that never answers.
fn dispatchers(list: &str) -> Result<Vec<String>> {
    let addresses = forebay_flight_client::addresses(list);
    let is_uri = |uri: &str| {
        let (scheme, address) = uri.split_once("://")?;
        let (host, port) = address.rsplit_once(':')?;
        let is_scheme = ["grpc", "grpc+tcp", "grpc+tls", "grpcs", "http", "https"].contains(&scheme);
        Some(is_scheme && !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0))
    };
    match addresses.iter().find(|address| !is_uri(address).unwrap_or(false)) {
        Some(wrong) => refuse!(
            "--dispatcher is not a list of addresses: \"{wrong}\" in \"{list}\"\n\
             hint: write grpc://HOST:PORT, or grpc+tls://HOST:PORT; several are separated by commas"
        ),
        None => Ok(addresses),
    }
}

/// Completes at the end of standard input; never, if that is not to be read.
fn end_of_stdin(is_read: bool) -> Result<impl Future<Output = ()> + Send + 'static> {
    let (ended, end) = tokio::sync::oneshot::channel();
    if is_read {
        // A thread of its own: the runtime would wait for one of its own when it ends.
        std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = ended.send(());
        })?;
    }
    Ok(async move {
        if !is_read || end.await.is_err() {
            std::future::pending().await
        }
    })
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let Arguments { dispatcher, port, end_with_stdin, session, serving } = arguments;
    let dispatchers = dispatchers(&dispatcher)?;
    let (listening, signals) = serving.listen(port, true).await?;
    // Windows have the memory of `serving`.
    let (windows_bytes, options) = serving.memory(session.0);
    let options = SessionOptions { window_memory_limit: Some(0), ..options };
    let session = script::session(&options, Path::new(""))?;
    let uri = serving.advertise.clone().unwrap_or_else(|| listening.server.uri());
    let (stop, parent) = (signals.stop()?, end_of_stdin(end_with_stdin)?);
    let stop = async move {
        tokio::select! { () = stop => {}, () = parent => {} }
    };
    let text = format!("computing for {} on {uri}   (Ctrl-C drains and stops)", dispatchers.join(", "));
    serving.say(&listening, json!({ "uri": uri, "dispatchers": dispatchers }), &[text])?;
    let BoundServer { server, connect, .. } = listening;
    let worker_memory_bytes = Some(windows_bytes);
    let local_socket = !serving.no_local_socket;
    let drain_timeout = serving.drain_timeout();
    let advertise = serving.advertise;
    let roles =
        Roles { dispatchers, worker_memory_bytes, advertise, local_socket, drain_timeout, connect, ..Roles::default() };
    until_interrupted_again(server.run(Arc::new(session), roles, stop)).await
}
