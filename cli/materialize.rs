//! `forebay materialize`: writes a pipeline's samples to files, in this process or by the workers of a cluster.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use forebay_engine::{FeedOptions, JobEstimate, JobOptions, JobProgress, ReadOptions, SessionOptions};
use forebay_flight_client::wire::{JobAnswer, JobResult};
use forebay_flight_client::{Client, StreamRequest};
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::exit::{Interrupted, interruptible, interruption, refuse};
use crate::options::Flags;
use crate::output::{self, Format};
use crate::remote;
use crate::script::{self, ScriptArguments};
use crate::security::ClientSecurity;
use crate::stages;
use crate::usage;

/// Time between two updates of the progress bar.
const TICK: Duration = Duration::from_millis(100);
const ANOTHER_WRITES: &str = "another process writes the same files; waiting for it";
const NO_WORKER: &str = "no worker is in contact; waiting for one";

#[derive(Args)]
pub(crate) struct Arguments {
    /// SQL file that creates the pipeline; relative locations in it are relative to its folder.
    file: Option<PathBuf>,
    /// Pipeline to write; may be left out if there is only one.
    #[arg(long)]
    pipeline: Option<String>,
    /// Folder or URL to write to.
    #[arg(long, value_name = "URL")]
    to: String,
    /// Have the workers of a server write, such as grpc://127.0.0.1:7070, instead of this process; without a file,
    /// FOREBAY_URI works too.
    #[arg(long, value_name = "URI")]
    connect: Option<String>,
    #[command(flatten)]
    security: ClientSecurity,
    #[command(flatten)]
    job: Flags<JobOptions>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    #[command(flatten)]
    session: Flags<SessionOptions>,
    /// Show what would be written, estimated from a sample, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    result: JobResult,
    seconds: f64,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let started = Instant::now();
    if let Some(uri) = remote::uri(arguments.connect.as_deref(), arguments.file.is_some()) {
        return write_there(&arguments, &uri, started).await;
    }
    let (Flags(options), Flags(feed)) = (&arguments.job, &arguments.feed);
    let Some(file) = arguments.file.clone() else {
        refuse!("nothing to write\nhint: give a SQL script, or a server with --connect grpc://HOST:PORT")
    };
    let session = ScriptArguments { file, session: arguments.session.clone() }.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    let opened = interruptible(async {
        let job = stages::shown(&session, session.job(&pipeline, feed, &arguments.to, options)).await?;
        let estimate = if arguments.dry_run { Some(job.estimate().await?) } else { None };
        Ok((job, estimate))
    });
    let (job, estimate) = opened.await?;
    if let Some(estimate) = estimate {
        return show(&estimate, arguments.output);
    }
    let progress = Arc::new(JobProgress::default());
    let bar = bar(job.source_rows(), "source rows", arguments.output);
    let mut interrupted = interruption()?;
    let mut shown = Waiting::new(&bar);
    let mut running = std::pin::pin!(job.run(&progress));
    let done = loop {
        tokio::select! {
            biased;
            () = &mut interrupted => {
                bar.finish_and_clear();
                return Err(resumable(progress.files(), job.files()));
            }
            done = &mut running => {
                bar.finish_and_clear();
                break done?;
            }
            () = tokio::time::sleep(TICK) => {
                bar.set_position(progress.source_rows());
                bar.set_message(format!("{} in {} files", HumanBytes(progress.bytes()), progress.files()));
                shown.set(progress.waits().then_some(ANOTHER_WRITES));
            }
        }
    };
    summarize(done.result(), started.elapsed(), arguments.output)
}

/// Has the workers of a server write the files, and waits for the end.
async fn write_there(arguments: &Arguments, uri: &str, started: Instant) -> Result<()> {
    let (Flags(options), Flags(feed)) = (&arguments.job, &arguments.feed);
    if arguments.file.is_some() {
        refuse!("a server writes its own pipelines\nhint: leave out the script, or --connect")
    }
    if !arguments.to.contains("://") && !arguments.to.starts_with('/') {
        refuse!(
            "\"{}\" is relative, and the server has another folder\nhint: give an absolute path or a URL",
            arguments.to
        )
    }
    let mut client = Client::connect_with(uri, &arguments.security.options()).await?;
    let request = StreamRequest::new(
        &remote::pipeline(&mut client, uri, arguments.pipeline.as_deref()).await?,
        feed,
        &ReadOptions::default(),
    );
    if arguments.dry_run {
        return show(&client.estimate_job(request, &arguments.to, options).await?, arguments.output);
    }
    let bar = bar(0, "files", arguments.output);
    let (mut shown, written) = (Waiting::new(&bar), Cell::new((0, 0)));
    let mut interrupted = interruption()?;
    let show = |answer: &JobAnswer| match answer {
        JobAnswer::Waiting { for_another } => shown.set(for_another.then_some(ANOTHER_WRITES)),
        JobAnswer::Writing(progress) => {
            written.set((u64::from(progress.stored), progress.files));
            bar.set_length(u64::from(progress.files));
            bar.set_position(u64::from(progress.stored));
            bar.set_message(format!("{} by {} workers", HumanBytes(progress.bytes), progress.workers));
            shown.set((progress.workers == 0).then_some(NO_WORKER));
        }
        JobAnswer::Done(_) | JobAnswer::Failed(_) => {}
    };
    let done = tokio::select! {
        biased;
        () = &mut interrupted => {
            let (stored, files) = written.get();
            Err(resumable(stored, files))
        }
        done = client.materialize(request, &arguments.to, options, show) => done.map_err(Into::into),
    };
    bar.finish_and_clear();
    summarize(done?, started.elapsed(), arguments.output)
}

/// What a job waits for, on its progress bar; or on standard error, if that is no terminal.
struct Waiting<'a> {
    bar: &'a ProgressBar,
    shown: Option<&'static str>,
}

impl<'a> Waiting<'a> {
    fn new(bar: &'a ProgressBar) -> Self {
        Self { bar, shown: None }
    }

    fn set(&mut self, reason: Option<&'static str>) {
        if let Some(reason) = reason {
            self.bar.set_message(reason);
        }
        if reason != self.shown && self.bar.is_hidden() {
            reason.inspect(|reason| output::note(reason));
        }
        self.shown = reason;
    }
}

fn resumable(files: u64, of: u32) -> anyhow::Error {
    Interrupted(format!("interrupted: {files} of {of} files are written\nhint: run the command again to resume")).into()
}

fn show(estimate: &JobEstimate, format: Format) -> Result<()> {
    match format {
        Format::Json => output::json(estimate),
        Format::Text => output::line(&estimate.to_string()),
    }
}

/// Returns a progress bar over `length` of something. It shows only on a terminal, and not with JSON output.
fn bar(length: u64, unit: &str, format: Format) -> ProgressBar {
    if format == Format::Json {
        return ProgressBar::hidden();
    }
    let template = format!("{{msg}} {{bar:32}} {{pos}}/{{len}} {unit}  {{per_sec}}  eta {{eta}}");
    let style = ProgressStyle::with_template(&template).expect("a fixed template that is known to parse");
    ProgressBar::new(length).with_style(style)
}

fn summarize(result: JobResult, elapsed: Duration, format: Format) -> Result<()> {
    let (cpu, peak_rss_bytes) = usage::of_this_process();
    let summary = Summary { result, seconds: elapsed.as_secs_f64(), cpu_seconds: cpu.as_secs_f64(), peak_rss_bytes };
    let result = &summary.result;
    if format == Format::Json {
        return output::json(&summary);
    }
    let what = format!(
        "{} samples in {} files, {}, at {}",
        HumanCount(result.rows),
        result.files,
        HumanBytes(result.bytes),
        result.url
    );
    if result.found {
        return output::line(&format!("{what}: an earlier run wrote them"));
    }
    output::line(&what)?;
    output::line(&format!(
        "{:.2} s, {:.0} samples/s, {:.2} CPU seconds, {:.0} MB of memory at most",
        summary.seconds,
        result.rows as f64 / summary.seconds,
        summary.cpu_seconds,
        summary.peak_rss_bytes as f64 / 1e6,
    ))?;
    match (result.bad_rows, &result.quarantine) {
        (0, _) => Ok(()),
        (bad, Some(url)) => output::line(&format!("{bad} bad rows left out; see {url}/*.parquet")),
        (bad, None) => output::line(&format!("{bad} bad rows left out")),
    }
}
