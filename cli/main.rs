//! The `forebay` command: one file per subcommand.

mod demo;
mod explain;
mod flags;
mod formats;
mod metrics;
mod operators;
mod output;
mod preview;
mod run;
mod script;
mod security;
mod serve;
mod serving;
mod sql;
mod status;
mod usage;
mod worker;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use forebay_engine::Error;
use tracing_subscriber::EnvFilter;

/// Feeds training jobs: SQL preprocessing pipelines as Arrow dataflow, each sample exactly once per epoch.
#[derive(Parser)]
#[command(name = "forebay", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch the whole chain work: sample photographs, a server, two trainer ranks, two epochs, a resume.
    Demo(demo::Arguments),
    /// Read a pipeline as one rank, in process or from a server, and report each batch.
    Run(Box<run::Arguments>),
    /// Show the first processed rows of a pipeline, in the terminal or as a web page with its images.
    Preview(preview::Arguments),
    /// Show how a pipeline will run: snapshot, windows, plan.
    Explain(explain::Arguments),
    /// Serve the pipelines of a script over Arrow Flight.
    Serve(Box<serve::Arguments>),
    /// Compute windows for a dispatcher, beside other workers.
    Worker(Box<worker::Arguments>),
    /// Show what goes on at a dispatcher: feeds, windows, workers, readers.
    Status(status::Arguments),
    /// List the preprocessing operators, or describe one.
    Operators(operators::Arguments),
    /// List the formats of files that tables are made of.
    Formats(formats::Arguments),
    /// Run SQL statements and print what they answer.
    Sql(sql::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    log();
    let threads = if matches!(arguments.command, Command::Serve(_) | Command::Worker(_)) { 2 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match arguments.command {
                Command::Demo(arguments) => demo::execute(arguments).await,
                Command::Run(arguments) => run::execute(*arguments).await,
                Command::Preview(arguments) => preview::execute(arguments).await,
                Command::Explain(arguments) => explain::execute(arguments).await,
                Command::Serve(arguments) => serve::execute(*arguments).await,
                Command::Worker(arguments) => worker::execute(*arguments).await,
                Command::Status(arguments) => status::execute(arguments).await,
                Command::Operators(arguments) => operators::execute(&arguments),
                Command::Formats(arguments) => formats::execute(&arguments),
                Command::Sql(arguments) => sql::execute(arguments).await,
            }
        })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Logs to standard error what `FOREBAY_LOG` lets through, such as `info` or `forebay_engine=debug`.
fn log() {
    let filter = std::env::var("FOREBAY_LOG").unwrap_or_default();
    let filter = match filter.as_str() {
        "" => EnvFilter::new("warn"),
        filter => EnvFilter::try_new(filter).unwrap_or_else(|error| {
            // A slip in a setting that only logs should not keep a job from training.
            output::note(&format!("warning: FOREBAY_LOG=\"{filter}\" is not a log filter: {error}"));
            EnvFilter::new("warn")
        }),
    };
    let stderr = std::io::stderr;
    // That a log cannot be written is told to stderr, which panics where nobody reads that any more.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(stderr().is_terminal())
        .with_writer(stderr)
        .log_internal_errors(false)
        .init();
}

fn report(error: &anyhow::Error) {
    let text = match error.downcast_ref::<Error>() {
        Some(error) => error.to_string(),
        None => format!("{error:#}"),
    };
    let text = flags::spell(&text, &Arguments::command());
    // A SQL error says "error: " itself, where it shows the place.
    let prefix = if text.starts_with("error: ") { "" } else { "error: " };
    output::note(&format!("{prefix}{text}"));
}
