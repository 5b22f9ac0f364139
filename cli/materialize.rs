//! `forebay materialize`: writes a pipeline's samples to files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, Job, JobOptions, JobProgress, Materialized};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Interrupted;
use crate::options::Flags;
use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};
use crate::usage;

/// Time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Pipeline to write; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    /// Folder or URL to write to.
    #[arg(long, value_name = "URL")]
    to: String,
    #[command(flatten)]
    job: Flags<JobOptions>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    /// Show what would be written, estimated from a sample, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Serialize)]
struct Summary<'a> {
    url: &'a str,
    job: &'a str,
    found: bool,
    files: usize,
    source_rows: u64,
    rows: u64,
    bad_rows: u64,
    bytes: u64,
    seconds: f64,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<&'a str>,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let started = Instant::now();
    let (Flags(options), Flags(feed)) = (&arguments.job, &arguments.feed);
    let session = arguments.script.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    let job = session.job(&pipeline, feed, &arguments.to, options).await?;
    if arguments.dry_run {
        return show_plan(&job, arguments.output).await;
    }
    let progress = Arc::new(JobProgress::default());
    let bar = bar(&job, arguments.output);
    // Install the handlers before the job begins, so that no signal is lost.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut running = std::pin::pin!(job.run(&progress));
    let done = loop {
        tokio::select! {
            biased;
            _ = async { tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} } } => {
                bar.finish_and_clear();
                let (files, of) = (progress.files(), job.files());
                let text = format!("interrupted: {files} of {of} files are written\nhint: run the command again to resume");
                return Err(Interrupted(text).into());
            }
            done = &mut running => {
                bar.finish_and_clear();
                break done?;
            }
            () = tokio::time::sleep(TICK) => update(&bar, &progress),
        }
    };
    summarize(&done, started.elapsed(), arguments.output)
}

async fn show_plan(job: &Job, format: Format) -> Result<()> {
    let estimate = job.estimate().await?;
    match format {
        Format::Json => output::json(&estimate),
        Format::Text => output::line(&estimate.to_string()),
    }
}

/// Returns a progress bar over source rows. It shows only on a terminal, and not with JSON output.
fn bar(job: &Job, format: Format) -> ProgressBar {
    if format == Format::Json {
        return ProgressBar::hidden();
    }
    let template = "{msg} {bar:32} {pos}/{len} source rows  {per_sec}  eta {eta}";
    let style = ProgressStyle::with_template(template).expect("a fixed template that is known to parse");
    ProgressBar::new(job.source_rows()).with_style(style)
}

fn update(bar: &ProgressBar, progress: &JobProgress) {
    bar.set_position(progress.source_rows());
    bar.set_message(format!("{} in {} files", HumanBytes(progress.bytes()), progress.files()));
}

fn summarize(done: &Materialized, elapsed: Duration, format: Format) -> Result<()> {
    let (cpu, peak_rss_bytes) = usage::of_this_process();
    let summary = Summary {
        url: done.url(),
        job: done.job(),
        found: done.found(),
        files: done.files().len(),
        source_rows: done.source_rows(),
        rows: done.rows(),
        bad_rows: done.bad_rows(),
        bytes: done.bytes(),
        seconds: elapsed.as_secs_f64(),
        cpu_seconds: cpu.as_secs_f64(),
        peak_rss_bytes,
        quarantine: done.quarantine(),
    };
    if format == Format::Json {
        return output::json(&summary);
    }
    let what = format!(
        "{} samples in {} files, {}, at {}",
        HumanCount(summary.rows),
        summary.files,
        HumanBytes(summary.bytes),
        summary.url
    );
    if summary.found {
        return output::line(&format!("{what}: an earlier run wrote them"));
    }
    output::line(&what)?;
    output::line(&format!(
        "{:.2} s, {:.0} samples/s, {:.2} CPU seconds, {:.0} MB of memory at most",
        summary.seconds,
        summary.rows as f64 / summary.seconds,
        summary.cpu_seconds,
        summary.peak_rss_bytes as f64 / 1e6,
    ))?;
    match (summary.bad_rows, summary.quarantine) {
        (0, _) => Ok(()),
        (bad, Some(url)) => output::line(&format!("{bad} bad rows left out; see {url}/*.parquet")),
        (bad, None) => output::line(&format!("{bad} bad rows left out")),
    }
}
