//! `forebay sql`: runs statements and prints their results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use arrow::compute::concat_batches;
use clap::Args;
use forebay_engine::{Output, Preview, Query, SessionOptions};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Interrupted;
use crate::options::Flags;
use crate::output::{self, Format};
use crate::script;

/// The most rows that are shown as a table.
const TEXT_ROWS_MAX: usize = 10_000;

#[derive(Args)]
pub(crate) struct Arguments {
    /// SQL file; relative locations in it are relative to its folder.
    #[arg(required_unless_present = "command")]
    file: Option<PathBuf>,
    /// Statements to run after the file's, such as "EXPLAIN PIPELINE train".
    #[arg(long, short)]
    command: Option<String>,
    #[command(flatten)]
    session: Flags<SessionOptions>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    // Dropping a query removes what it has spilled.
    tokio::select! {
        run = run(arguments) => run,
        told = interrupted() => told.and_then(|()| Err(Interrupted("interrupted".to_owned()).into())),
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let base = arguments.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let session = script::session(&arguments.session.0, base)?;
    let mut texts = Vec::new();
    if let Some(file) = &arguments.file {
        texts.push((file.display().to_string(), script::read(file)?));
    }
    texts.extend(arguments.command.map(|text| ("command".to_owned(), text)));
    for (name, text) in texts {
        for answer in session.execute(&name, &text).await? {
            print(&answer, arguments.output).await?;
        }
    }
    Ok(())
}

/// Runs a query, and prints its rows.
async fn print_rows(query: &Query, format: Format) -> Result<()> {
    let mut rows = query.rows()?;
    let (mut batches, mut left) = (Vec::new(), TEXT_ROWS_MAX);
    while let Some(batch) = rows.next().await.transpose()? {
        match format {
            Format::Json => Preview::of(batch).json()?.iter().try_for_each(output::json)?,
            // The width of a column is known after the last row.
            Format::Text => {
                let shown = batch.slice(0, left.min(batch.num_rows()));
                left -= shown.num_rows();
                let is_cut = shown.num_rows() < batch.num_rows();
                batches.push(shown);
                if is_cut {
                    output::note(&format!("note: the first {TEXT_ROWS_MAX} rows are shown; --output json prints all"));
                    break;
                }
            }
        }
    }
    match format {
        Format::Json => Ok(()),
        Format::Text => output::table(&Preview::of(concat_batches(&query.schema(), &batches)?).table()?),
    }
}

/// Completes when the process is interrupted or terminated.
async fn interrupted() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    Ok(())
}

async fn print(answer: &Output, format: Format) -> Result<()> {
    match (answer, format) {
        (Output::Query(query), _) => print_rows(query, format).await,
        (Output::Done(text) | Output::CreatedPipeline { done: text, .. } | Output::Text(text), Format::Text) => {
            output::line(text.trim_end())
        }
        (Output::Rows(rows), Format::Text) => output::table(rows),
        (Output::Done(text) | Output::CreatedPipeline { done: text, .. }, Format::Json) => {
            output::json(&json!({ "done": text }))
        }
        (Output::Text(text), Format::Json) => output::json(&json!({ "text": text })),
        (Output::Rows(rows), Format::Json) => {
            let (header, rows) = rows.split_first().context("a table has a header")?;
            for row in rows {
                let fields = header.iter().zip(row).map(|(name, cell)| (name.clone(), Value::from(cell.clone())));
                output::json(&Value::Object(Map::from_iter(fields)))?;
            }
            Ok(())
        }
    }
}
