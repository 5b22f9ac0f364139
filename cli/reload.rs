//! `forebay reload`: lets a server open its scripts again.

use anyhow::Result;
use clap::Args;
use forebay_engine::{Error, ErrorKind};
use forebay_flight_client::Client;
use forebay_flight_client::wire::ScriptChange;

use crate::output::{self, Format};
use crate::security::ClientSecurity;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Server, such as grpc://127.0.0.1:7070.
    #[arg(long, value_name = "URI", env = "FOREBAY_URI", default_value = "grpc://127.0.0.1:7070")]
    connect: String,
    /// Also open scripts again that did not change, to see new files in their tables.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    security: ClientSecurity,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let mut client = Client::connect_with(&arguments.connect, &arguments.security.options()).await?;
    let reports = client.reload(arguments.all).await?;
    match arguments.output {
        Format::Json => output::json(&reports)?,
        Format::Text => {
            for report in &reports {
                let change = match report.change {
                    ScriptChange::Unchanged => "unchanged",
                    ScriptChange::Added => "added",
                    ScriptChange::Changed => "changed",
                    ScriptChange::Removed => "removed",
                    ScriptChange::Failed => "failed",
                };
                let served = match &report.pipelines[..] {
                    [] => String::new(),
                    pipelines => format!(", serves {}", pipelines.join(", ")),
                };
                output::line(&format!("{}: {change}{served}", report.script))?;
            }
        }
    }
    let failures: Vec<_> = reports.iter().filter_map(|report| report.error.as_deref()).collect();
    match &failures[..] {
        [] => Ok(()),
        failures => {
            let message = format!("{} of {} scripts failed:\n{}", failures.len(), reports.len(), failures.join("\n"));
            Err(Error::new(ErrorKind::Invalid, message).into())
        }
    }
}
