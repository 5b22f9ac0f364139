//! `forebay explain`: shows how a pipeline will run.

use anyhow::Result;
use clap::Args;
use forebay_engine::{Explanation, FeedOptions, Measurement};
use serde::Serialize;

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
    /// Compute this many windows, and show what reading, each step and each call cost.
    #[arg(long, value_name = "WINDOWS", num_args = 0..=1, default_missing_value = "1")]
    measure: Option<u32>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// An explanation with a measurement.
#[derive(Serialize)]
struct Measured {
    #[serde(flatten)]
    explanation: Explanation,
    measured: Measurement,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let session = arguments.script.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    let explanation = session.explain(&pipeline, &arguments.feed.0).await?;
    let measured = match arguments.measure {
        Some(windows) => Some(session.measure(&pipeline, &arguments.feed.0, windows.max(1)).await?),
        None => None,
    };
    match (arguments.output, measured) {
        (Format::Text, None) => output::line(explanation.to_string().trim_end()),
        (Format::Text, Some(measured)) => output::line(format!("{explanation}{measured}").trim_end()),
        (Format::Json, None) => output::json(&explanation),
        (Format::Json, Some(measured)) => output::json(&Measured { explanation, measured }),
    }
}
