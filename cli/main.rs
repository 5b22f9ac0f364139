//! The `forebay` command: one file per subcommand.

mod advise;
mod config;
mod demo;
mod environment;
mod exit;
mod explain;
mod flags;
mod formats;
mod gc;
mod logs;
mod materialize;
mod metrics;
mod operators;
mod options;
mod output;
mod plan;
mod policy;
mod preview;
mod reload;
mod remote;
mod run;
mod scaling;
mod script;
mod scripts;
mod security;
mod serve;
mod serving;
mod sql;
mod stages;
mod status;
mod usage;
mod worker;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_engine::Error;

use crate::config::ConfigArguments;
use crate::logs::{LogArguments, LogFormat};

/// Feeds training jobs: SQL preprocessing pipelines as Arrow dataflow, each sample exactly once per epoch.
#[derive(Parser)]
#[command(name = "forebay", version, arg_required_else_help = true, after_help = exit::HELP)]
struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    #[command(flatten)]
    log: LogArguments,
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
    /// Measure what keeping samples at each place of a pipeline would cost and save.
    Advise(Box<advise::Arguments>),
    /// Decide how a job should run before it runs: workers, local cores and what is kept, together.
    Plan(Box<plan::Arguments>),
    /// Write the samples of one epoch of a pipeline to files, once: an interrupted run resumes.
    Materialize(Box<materialize::Arguments>),
    /// Remove what stored samples leave behind under the root: unfinished jobs, and artifacts that nothing names.
    Gc(gc::Arguments),
    /// Serve the pipelines of scripts over Arrow Flight.
    Serve(Box<serve::Arguments>),
    /// Compute windows for a dispatcher, together with other workers.
    Worker(Box<worker::Arguments>),
    /// Show the state of a dispatcher: feeds, windows, workers, readers.
    Status(status::Arguments),
    /// Decide again what a server has decided about its workers, from the trace that it wrote.
    Policy(policy::Arguments),
    /// Let a server open its scripts again: those that changed, were added or were removed.
    Reload(reload::Arguments),
    /// List the preprocessing operators, or describe one.
    Operators(operators::Arguments),
    /// List the file formats of tables.
    Formats(formats::Arguments),
    /// Run SQL statements and print their results.
    Sql(sql::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::read();
    arguments.log.begin();
    let log_format = arguments.log.log_format;
    let threads = if matches!(arguments.command, Command::Serve(_) | Command::Worker(_)) { 2 } else { 1 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match arguments.command {
                Command::Demo(arguments) => demo::execute(arguments).await,
                Command::Run(arguments) => run::execute(*arguments).await,
                Command::Preview(arguments) => preview::execute(arguments).await,
                Command::Explain(arguments) => explain::execute(arguments).await,
                Command::Advise(arguments) => advise::execute(*arguments).await,
                Command::Plan(arguments) => plan::execute(*arguments).await,
                Command::Materialize(arguments) => materialize::execute(*arguments).await,
                Command::Gc(arguments) => gc::execute(arguments).await,
                Command::Serve(arguments) => serve::execute(*arguments).await,
                Command::Worker(arguments) => worker::execute(*arguments).await,
                Command::Status(arguments) => status::execute(arguments).await,
                Command::Policy(arguments) => policy::execute(&arguments),
                Command::Reload(arguments) => reload::execute(arguments).await,
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
            let code = exit::code(&error);
            log_format.end(&text(&error), code);
            ExitCode::from(code)
        }
    }
}

impl Arguments {
    /// Reads flags, the environment and the configuration file, in this order of precedence. Ends the process if they
    /// are wrong, or if help was asked for.
    fn read() -> Self {
        let mut command = environment::add(Self::command());
        let given = config::insert(&command, std::env::args_os().collect()).unwrap_or_else(|error| {
            LogFormat::before_parsing().end(&text(&error), exit::code(&error));
            std::process::exit(exit::code(&error).into())
        });
        let matches = command.try_get_matches_from_mut(given.arguments());
        let read = matches.and_then(|matches| Self::from_arg_matches(&matches));
        read.unwrap_or_else(|error| {
            let error = error.format(&mut command);
            let place = given.place_of(&error);
            match LogFormat::before_parsing() {
                LogFormat::Json if error.use_stderr() => {
                    let text = format!("{error}{}", place.unwrap_or_default());
                    LogFormat::Json.end(text.trim(), error.exit_code().try_into().unwrap_or(2));
                }
                _ => {
                    let _ = error.print();
                    place.into_iter().for_each(|place| output::note(&format!("\n{place}")));
                }
            }
            std::process::exit(error.exit_code())
        })
    }
}

/// The text of an error, with flags in its hints.
fn text(error: &anyhow::Error) -> String {
    let text = match error.downcast_ref::<Error>() {
        Some(error) => error.to_string(),
        None => format!("{error:#}"),
    };
    flags::spell(&text, &Arguments::command())
}
