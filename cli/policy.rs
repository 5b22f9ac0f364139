//! `forebay policy`: what a server decides about its workers.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use forebay_engine::Error;
use forebay_engine::policy::trace;
use serde_json::json;

use crate::output::{self, Format};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decide again from what a server has seen, and show each decision that changes the number of workers.
    Replay {
        /// File that `forebay serve --policy-trace` wrote.
        file: PathBuf,
        /// Output format.
        #[arg(long, value_enum, default_value_t = Format::Text)]
        output: Format,
    },
}

pub(crate) fn execute(arguments: &Arguments) -> Result<()> {
    let Command::Replay { file, output } = &arguments.command;
    let opened = File::open(file).map_err(|error| {
        Error::invalid(format!("cannot read \"{}\": {error}", file.display()))
            .with_hint("give the file of `forebay serve --policy-trace`")
    })?;
    let replayed = trace::replay(BufReader::new(opened)).map_err(|wrong| {
        let message = format!("\"{}\", line {}: {}", file.display(), wrong.line, wrong.error.message);
        Error::invalid(message).with_hint(wrong.error.hint)
    })?;
    let (mut workers, mut different) = (None, 0);
    for step in &replayed {
        if !step.is_equal() {
            different += 1;
        }
        let decided = &step.replayed;
        if workers.replace(decided.workers) == Some(decided.workers) && step.is_equal() {
            continue;
        }
        match output {
            Format::Json => output::json(&json!({
                "seconds": step.seconds,
                "recorded": step.recorded,
                "replayed": decided,
                "equal": step.is_equal(),
            }))?,
            Format::Text => {
                let recorded = match step.is_equal() {
                    true => String::new(),
                    false => format!("   (recorded: {})", step.recorded.workers),
                };
                output::line(&format!("{:>8.0} s  {}{recorded}", step.seconds, decided.reason))?;
            }
        }
    }
    if *output == Format::Text {
        output::line(&format!("{} decisions, {different} of them different from the recorded ones", replayed.len()))?;
    }
    Ok(())
}
