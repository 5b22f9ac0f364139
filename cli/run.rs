//! `forebay run`: reads a pipeline as one rank.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::util::display::array_value_to_string;
use clap::Args;
use forebay_engine::{Batch, FeedOptions, ReadOptions, Reader, SessionOptions, Token, digest};
use forebay_flight_client::{Client, RemoteReader, StreamRequest};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Interrupted, interruptible, refuse};
use crate::options::Flags;
use crate::output::{self, Format};
use crate::remote;
use crate::script::{self, ScriptArguments};
use crate::security::{ClientSecurity, ReadingArguments};
use crate::stages;
use crate::usage;

#[derive(Args)]
pub(crate) struct Arguments {
    /// SQL file that creates the pipeline; --connect ignores it.
    file: Option<PathBuf>,
    /// Pipeline to read; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    #[command(flatten)]
    read: Flags<ReadOptions>,
    /// Stop after this many batches.
    #[arg(long, value_name = "N", value_parser = script::whole_number, allow_negative_numbers = true)]
    steps: Option<u64>,
    /// Read from a server, such as grpc://127.0.0.1:7070, instead of in this process; without a file, FOREBAY_URI works
    /// too.
    #[arg(long, value_name = "URI")]
    connect: Option<String>,
    #[command(flatten)]
    security: ClientSecurity,
    #[command(flatten)]
    reading: ReadingArguments,
    /// Also print this column's values in each batch's line.
    #[arg(long, value_name = "COLUMN")]
    ids: Option<String>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    #[command(flatten)]
    session: Flags<SessionOptions>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Serialize)]
struct BatchLine {
    epoch: u64,
    step: u64,
    offset: u64,
    rows: u64,
    digest: String,
    token: String,
    #[serde(skip_serializing_if = "is_zero")]
    bad_rows: u64,
    #[serde(skip_serializing_if = "is_zero")]
    gaps: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<String>>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize)]
struct Summary {
    samples: u64,
    batches: u64,
    bad_rows: u64,
    seconds: f64,
    samples_per_second: f64,
    first_batch_seconds: Option<f64>,
    cpu_seconds: f64,
    peak_rss_bytes: u64,
    feed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<String>,
}

/// The source of batches: this process or a server. Both deliver the same batches.
enum BatchSource {
    Local(Box<Reader>),
    Remote(Box<RemoteReader>),
}

struct OpenedReader {
    source: BatchSource,
    feed: String,
    samples_per_epoch: Option<u64>,
    quarantine: Option<String>,
}

impl BatchSource {
    async fn next(&mut self) -> Option<forebay_engine::Result<Batch>> {
        match self {
            Self::Local(reader) => reader.next().await,
            Self::Remote(reader) => reader.next().await,
        }
    }

    /// Tells the dispatcher that this reader leaves, so that the dispatcher need not wait for its silence.
    async fn close(&mut self) {
        if let Self::Remote(reader) = self {
            reader.close().await;
        }
    }
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let started = Instant::now();
    let mut opened = open(&arguments).await?;
    let bar = progress(&arguments, opened.samples_per_epoch);
    let mut summary = Summary {
        samples: 0,
        batches: 0,
        bad_rows: 0,
        seconds: 0.0,
        samples_per_second: 0.0,
        first_batch_seconds: None,
        cpu_seconds: 0.0,
        peak_rss_bytes: 0,
        feed: opened.feed,
        quarantine: None,
    };
    let mut last = None;
    // Install the handler before the loop, so that a signal that arrives while a line is printed is not lost.
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    while arguments.steps.is_none_or(|steps| summary.batches < steps) {
        let batch = tokio::select! {
            // Poll the signal first: the next batch may always be ready.
            biased;
            _ = async { tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} } } => {
                bar.finish_and_clear();
                opened.source.close().await;
                return Err(interrupted(last.as_ref()));
            }
            batch = opened.source.next() => batch,
        };
        let Some(batch) = batch.transpose()? else { break };
        summary.first_batch_seconds.get_or_insert(started.elapsed().as_secs_f64());
        summary.samples += batch.records.num_rows() as u64;
        summary.bad_rows += batch.bad_rows();
        summary.batches += 1;
        bar.set_message(format!("epoch {} step {}", batch.epoch, batch.step));
        bar.inc(batch.positions - batch.gaps);
        last = Some(batch.token.clone());
        if arguments.output == Format::Json {
            output::json(&BatchLine {
                epoch: batch.epoch,
                step: batch.step,
                offset: batch.offset,
                rows: batch.records.num_rows() as u64,
                digest: digest(&batch.records),
                token: batch.token.to_string(),
                bad_rows: batch.bad_rows(),
                gaps: batch.gaps,
                ids: arguments.ids.as_deref().map(|column| values(&batch.records, column)).transpose()?,
            })?;
        }
    }
    opened.source.close().await;
    bar.finish_and_clear();
    if summary.batches == 0 {
        output::note("note: no samples to read: check --from, --epochs, --drop-last, and the pipeline's filters");
    }
    finish(&mut summary, started.elapsed());
    summary.quarantine = opened.quarantine.filter(|_| summary.bad_rows > 0);
    match arguments.output {
        Format::Json => output::json(&summary),
        Format::Text => print(&summary),
    }
}

fn interrupted(last: Option<&Token>) -> anyhow::Error {
    match last {
        Some(token) => Interrupted(format!("interrupted\nhint: resume with --from {token}")).into(),
        None => Interrupted("interrupted before the first batch".to_owned()).into(),
    }
}

async fn open(arguments: &Arguments) -> Result<OpenedReader> {
    let (Flags(read), Flags(options)) = (&arguments.read, &arguments.feed);
    if let Some(uri) = remote::uri(arguments.connect.as_deref(), arguments.file.is_some()) {
        let mut client = Client::connect_with(&uri, &arguments.reading.options(&arguments.security)).await?;
        let pipeline = remote::pipeline(&mut client, &uri, arguments.pipeline.as_deref()).await?;
        let remote = client.open(&StreamRequest::new(&pipeline, options, read)).await?;
        check_column(remote.schema(), arguments.ids.as_deref())?;
        return Ok(OpenedReader {
            feed: remote.id().to_owned(),
            samples_per_epoch: remote.samples_per_epoch(),
            quarantine: None,
            source: BatchSource::Remote(Box::new(remote.read()?)),
        });
    }
    let Some(file) = arguments.file.clone() else {
        refuse!("nothing to read\nhint: give a SQL script, or a server with --connect grpc://HOST:PORT")
    };
    let session = ScriptArguments { file, session: arguments.session.clone() }.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    interruptible(async { Ok(stages::prepare(&session, &pipeline).await?) }).await?;
    let feed = session.open(&pipeline, options)?;
    check_column(&feed.schema(), arguments.ids.as_deref())?;
    let quarantines = feed.settings().on_error == forebay_engine::OnError::Quarantine;
    Ok(OpenedReader {
        feed: feed.id().to_owned(),
        samples_per_epoch: feed.samples_per_epoch(),
        quarantine: quarantines.then(|| feed.quarantine_url().to_owned()),
        source: BatchSource::Local(Box::new(feed.read(read)?)),
    })
}

/// Returns a progress bar. It shows only on a terminal, and not with JSON output.
fn progress(arguments: &Arguments, samples_per_epoch: Option<u64>) -> ProgressBar {
    if arguments.output == Format::Json {
        return ProgressBar::hidden();
    }
    let template = match samples_per_epoch {
        Some(_) => "{msg:24} {bar:32} {pos}/{len} samples  {per_sec}  eta {eta}",
        None => "{msg:24} {spinner} {pos} samples  {per_sec}",
    };
    let Flags(read) = &arguments.read;
    let share = |samples: u64| samples.div_ceil(read.world_size.max(1)).saturating_mul(read.epochs.unwrap_or(1));
    let bar = match samples_per_epoch {
        Some(samples) => ProgressBar::new(share(samples)),
        None => ProgressBar::new_spinner(),
    };
    bar.set_style(ProgressStyle::with_template(template).expect("a fixed template that is known to parse"));
    bar
}

fn finish(summary: &mut Summary, elapsed: Duration) {
    let (cpu, rss) = usage::of_this_process();
    summary.seconds = elapsed.as_secs_f64();
    summary.samples_per_second = summary.samples as f64 / summary.seconds;
    summary.cpu_seconds = cpu.as_secs_f64();
    summary.peak_rss_bytes = rss;
}

fn print(summary: &Summary) -> Result<()> {
    output::line(&format!(
        "{} samples in {} batches, {:.2} s: {:.0} samples/s, first batch after {:.0} ms",
        summary.samples,
        summary.batches,
        summary.seconds,
        summary.samples_per_second,
        summary.first_batch_seconds.unwrap_or(0.0) * 1e3,
    ))?;
    output::line(&format!(
        "{:.2} CPU seconds, {:.0} MB of memory at most, feed {}",
        summary.cpu_seconds,
        summary.peak_rss_bytes as f64 / 1e6,
        summary.feed
    ))?;
    match (&summary.quarantine, summary.bad_rows) {
        (_, 0) => Ok(()),
        (Some(url), bad) => output::line(&format!("{bad} bad rows left out; see {url}/*.parquet")),
        (None, bad) => output::line(&format!("{bad} bad rows left out")),
    }
}

/// Reports a missing column before anything is read.
fn check_column(schema: &Schema, column: Option<&str>) -> Result<()> {
    let Some(column) = column.filter(|column| schema.index_of(column).is_err()) else { return Ok(()) };
    let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    refuse!("the samples have no column \"{column}\"\nhint: columns: {}", names.join(", "))
}

/// Returns the values of a column as text.
fn values(records: &RecordBatch, column: &str) -> Result<Vec<String>> {
    let array = records.column_by_name(column).context("looked up before reading")?;
    (0..array.len()).map(|row| Ok(array_value_to_string(array, row)?)).collect()
}
