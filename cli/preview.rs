//! `forebay preview`: shows the first processed rows, in the terminal or as a web page.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use forebay_engine::FeedOptions;

use crate::exit::interruptible;
use crate::options::Flags;
use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};
use crate::stages;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Pipeline to preview; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    /// How many rows to show.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rows: u64,
    /// Also write a web page with the rows and their images.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let session = arguments.script.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    let preview = interruptible(async {
        stages::prepare(&session, &pipeline).await?;
        Ok(session.preview(&pipeline, &arguments.feed.0, arguments.rows).await?)
    });
    let preview = preview.await?;
    let bad = preview.bad_rows();
    if bad > 0 {
        output::note(&format!("note: left out {bad} rows that cannot be processed; --on-error raise names the first"));
    }
    match arguments.output {
        Format::Text => output::table(&preview.table()?)?,
        Format::Json => preview.json()?.iter().try_for_each(output::json)?,
    }
    if let Some(file) = &arguments.html {
        std::fs::write(file, preview.page()?).with_context(|| format!("cannot write \"{}\"", file.display()))?;
        output::note(&format!("wrote {}", file.display()));
    }
    Ok(())
}
