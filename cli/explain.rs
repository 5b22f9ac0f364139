//! `forebay explain`: shows how a pipeline will run.

use anyhow::Result;
use clap::Args;
use forebay_engine::FeedOptions;

use crate::options::Flags;
use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Pipeline to explain; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let session = arguments.script.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    let explanation = session.explain(&pipeline, &arguments.feed.0).await?;
    match arguments.output {
        Format::Text => output::line(explanation.to_string().trim_end()),
        Format::Json => output::json(&explanation),
    }
}
