//! A server's pipelines on the command line.

use anyhow::Result;
use forebay_flight_client::Client;

use crate::exit::refuse;

/// The server of a command that names no script, from the flag or the variable.
pub(crate) fn uri(connect: Option<&str>, has_script: bool) -> Option<String> {
    let from_environment = || std::env::var("FOREBAY_URI").ok().filter(|uri| !has_script && !uri.is_empty());
    connect.map(str::to_owned).or_else(from_environment)
}

/// Returns the pipeline called `named`, or the server's only pipeline.
pub(crate) async fn pipeline(client: &mut Client, uri: &str, named: Option<&str>) -> Result<String> {
    if let Some(name) = named {
        return Ok(name.to_owned());
    }
    match &client.pipelines().await?[..] {
        [only] => Ok(only.name.clone()),
        pipelines => {
            let names: Vec<_> = pipelines.iter().map(|pipeline| pipeline.name.as_str()).collect();
            refuse!("{uri} serves {} pipelines\nhint: choose one with --pipeline: {}", names.len(), names.join(", "))
        }
    }
}
