//! `forebay status`: what goes on at a dispatcher.

use anyhow::Result;
use clap::Args;
use forebay_flight_client::{Client, ClusterStatus};

use crate::output::{self, Format};
use crate::security::ClientSecurity;

#[derive(Args)]
pub(crate) struct Arguments {
    /// The dispatcher, such as grpc://127.0.0.1:7070.
    #[arg(long, value_name = "URI", env = "FOREBAY_URI", default_value = "grpc://127.0.0.1:7070")]
    connect: String,
    #[command(flatten)]
    security: ClientSecurity,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let mut client = Client::connect_with(&arguments.connect, &arguments.security.options()).await?;
    let status = client.status().await?;
    match arguments.output {
        Format::Json => output::json(&status),
        Format::Text => print(&status),
    }
}

fn print(status: &ClusterStatus) -> Result<()> {
    let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
    let mut workers = vec![["worker", "windows", "held", "of", "silent", "state"].map(str::to_owned).to_vec()];
    for worker in &status.workers {
        workers.push(vec![
            worker.address.clone(),
            worker.windows.to_string(),
            megabytes(worker.held_bytes),
            megabytes(worker.memory_bytes),
            format!("{:.1} s", worker.silent_ms as f64 / 1e3),
            match &worker.refused[..] {
                [] if worker.draining => "draining".to_owned(),
                [] => "computing".to_owned(),
                refused => format!("refuses {} feeds: {}", refused.len(), refused[0].1.message),
            },
        ]);
    }
    match &status.workers[..] {
        [] => output::line("no worker is in contact: start one with `forebay worker --dispatcher URI`")?,
        _ => output::table(&workers)?,
    }
    for feed in &status.feeds {
        output::line(&format!(
            "\nfeed {}: windows {} leased, {} counted, {} ready, {} failed, {} computed again; {} ms each",
            feed.feed,
            feed.windows_leased,
            feed.windows_counted,
            feed.windows_ready,
            feed.windows_failed,
            feed.windows_recomputed,
            feed.window_ms
        ))?;
        let header = ["reader", "rank", "epoch", "window", "samples", "received", "waited", "now"];
        let mut readers = vec![header.map(str::to_owned).to_vec()];
        for reader in &feed.readers {
            readers.push(vec![
                format!("{:016x}", reader.session),
                format!("{} of {}", reader.rank, reader.world_size),
                reader.at.epoch.to_string(),
                reader.at.index.to_string(),
                reader.samples.to_string(),
                megabytes(reader.bytes),
                format!("{:.1} s", reader.stalled_ms as f64 / 1e3),
                match reader.waiting {
                    Some((window, waited)) => format!("waits {waited} ms for window {}", window.index),
                    None => "reads".to_owned(),
                },
            ]);
        }
        output::table(&readers)?;
    }
    if status.feeds.is_empty() {
        output::line("\nno feed is open")?;
    }
    Ok(())
}
