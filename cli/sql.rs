//! `forebay sql`: runs statements and prints their results.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use forebay_engine::{Output, SessionOptions};
use serde_json::{Map, Value, json};

use crate::options::Flags;
use crate::output::{self, Format};
use crate::script;

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
    let base = arguments.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
    let session = script::session(&arguments.session.0, base)?;
    let mut texts = Vec::new();
    if let Some(file) = &arguments.file {
        texts.push((file.display().to_string(), script::read(file)?));
    }
    texts.extend(arguments.command.map(|text| ("command".to_owned(), text)));
    for (name, text) in texts {
        for answer in session.execute(&name, &text).await? {
            print(&answer, arguments.output)?;
        }
    }
    Ok(())
}

fn print(answer: &Output, format: Format) -> Result<()> {
    match (answer, format) {
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
