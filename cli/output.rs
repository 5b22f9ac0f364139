//! Output: text for people, JSON for programs.

use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde::Serialize;

/// How a command prints its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For programs: one JSON value per line.
    Json,
}

/// Writes a line to standard output.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush());
    written.context("cannot write to standard output")
}

/// Writes `value` as one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Writes a line to standard error. Ignores errors, because there is nowhere left to report them.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether an error only means that the reader of our output has closed it.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Writes rows as an aligned table; the first is the header.
pub(crate) fn table(rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if index == 0 {
            line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>().join("  "))?;
        }
    }
    Ok(())
}
