//! `forebay status`: shows the state of a dispatcher.

use anyhow::Result;
use clap::Args;
use forebay_flight_client::{Client, ClusterStatus, JobStatus, StoreWait};

use crate::output::{self, Format};
use crate::security::ClientSecurity;

/// Maximum number of ranks that one line names.
const RANKS_NAMED: usize = 16;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Dispatcher, such as grpc://127.0.0.1:7070.
    #[arg(long, value_name = "URI", env = "FOREBAY_URI", default_value = "grpc://127.0.0.1:7070")]
    connect: String,
    #[command(flatten)]
    security: ClientSecurity,
    /// Output format.
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

/// Describes a job with dynamic delivery in one line.
fn describe(job: &JobStatus) -> String {
    let JobStatus { job: name, world_size, awaited, awaiting_ms, claims_held, epoch, claims_granted } = job;
    let granted = format!("{claims_granted} claims of epoch {epoch} granted, {claims_held} held");
    if awaited.is_empty() {
        return format!("job \"{name}\", dynamic: all {world_size} ranks are present; {granted}");
    }
    let here = world_size - awaited.len() as u64;
    let mut ranks: Vec<_> = awaited.iter().take(RANKS_NAMED).map(u64::to_string).collect();
    ranks.extend((awaited.len() > RANKS_NAMED).then(|| "…".to_owned()));
    let ranks = ranks.join(", ");
    match awaiting_ms {
        0 => {
            format!("job \"{name}\", dynamic: {here} of {world_size} ranks are present, and none is waiting; {granted}")
        }
        ms => format!(
            "job \"{name}\", dynamic: {here} of {world_size} ranks are present, \
             waiting for rank {ranks} for {:.1} s; {granted}",
            *ms as f64 / 1e3
        ),
    }
}

fn waits(wait: &StoreWait) -> String {
    let StoreWait { requests, oldest_ms, object } = wait;
    format!("waits for a store: {requests} requests, the oldest for {:.0} s: {object}", *oldest_ms as f64 / 1e3)
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
            match (&worker.refused[..], &worker.store_wait) {
                ([], _) if worker.draining => "draining".to_owned(),
                ([], Some(wait)) => waits(wait),
                ([], None) if worker.beside_trainer => "computing beside a trainer".to_owned(),
                ([], None) => "computing".to_owned(),
                (refused, _) => format!("refuses {} feeds: {}", refused.len(), refused[0].1.message),
            },
        ]);
    }
    match &status.workers[..] {
        [] => output::line("no worker is in contact: start one with `forebay worker --dispatcher URI`")?,
        _ => output::table(&workers)?,
    }
    if let Some(scaling) = &status.scaling {
        output::line(&format!("\nwanted: {}", scaling.reason))?;
    }
    if let Some(wait) = &status.store_wait {
        output::line(&format!("\nthe dispatcher {}", waits(wait)))?;
    }
    for (script, error) in &status.scripts_failed {
        output::line(&format!("\nthe script {script} could not be opened again: {error}"))?;
    }
    for feed in &status.feeds {
        if let Some(writing) = &feed.writing {
            output::line(&format!(
                "\n{}: {} of {} files stored, {} being written by {} workers",
                feed.feed, writing.stored, writing.files, writing.being_written, writing.workers
            ))?;
            continue;
        }
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
        if let Some(keeps) = &feed.keeps {
            output::line(keeps)?;
        }
        let header = ["reader", "rank", "epoch", "window", "samples", "received", "waited", "now"];
        let mut readers = vec![header.map(str::to_owned).to_vec()];
        for reader in &feed.readers {
            readers.push(vec![
                // The server hides sessions from readers.
                if reader.session == 0 { "-".to_owned() } else { format!("{:016x}", reader.session) },
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
        if feed.readers.is_empty() {
            output::line("no readers")?;
        } else {
            output::table(&readers)?;
        }
        feed.jobs.iter().try_for_each(|job| output::line(&describe(job)))?;
    }
    if status.feeds.is_empty() {
        output::line("\nno feed is open")?;
    }
    Ok(())
}
