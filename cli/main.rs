//! The `forebay` command: one file per subcommand.

mod demo;
mod explain;
mod flags;
mod formats;
mod metrics;
mod operators;
mod options;
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
    /// Run and check a whole example: sample photographs, a server, two trainer ranks, two epochs, a resume.
    Demo(demo::Arguments),
    /// Read a pipeline as one rank, in process or from a server, and report each batch.
    Run(Box<run::Arguments>),
    /// Show the first processed rows of a pipeline, in the terminal or as a web page with its images.
    Preview(preview::Arguments),
    /// Show how a pipeline will run: snapshot, windows, plan.
    Explain(explain::Arguments),
    /// Serve the pipelines of a script over Arrow Flight.
    Serve(Box<serve::Arguments>),
    /// Compute windows for a dispatcher, together with other workers.
    Worker(Box<worker::Arguments>),
    /// Show the state of a dispatcher: feeds, windows, workers, readers.
    Status(status::Arguments),
    /// List the preprocessing operators, or describe one.
    Operators(operators::Arguments),
    /// List the file formats of tables.
    Formats(formats::Arguments),
    /// Run SQL statements and print their results.
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
        // The reader of our output closed it, for example `head`. That is not an error.
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::FAILURE
        }
    }
}

/// Sends logs to standard error, filtered by `FOREBAY_LOG`, such as `info` or `forebay_engine=debug`.
fn log() {
    let filter = std::env::var("FOREBAY_LOG").unwrap_or_default();
    let filter = match filter.as_str() {
        "" => EnvFilter::new("warn"),
        filter => EnvFilter::try_new(filter).unwrap_or_else(|error| {
            // A typing error in a log filter should not keep a job from training.
            output::note(&format!("warning: FOREBAY_LOG=\"{filter}\" is not a log filter: {error}"));
            EnvFilter::new("warn")
        }),
    };
    let stderr = std::io::stderr;
    // Errors of writing a log go to standard error too, which panics if standard error is closed. So switch them off.
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
    // The text of a SQL error with a place begins with "error: " already.
    let prefix = if text.starts_with("error: ") { "" } else { "error: " };
    output::note(&format!("{prefix}{text}"));
}
