//! Logs on standard error, as text for people or as one JSON object per line.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::output;

/// Which events are logged, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct LogArguments {
    /// Which events to log on standard error, such as info or forebay_engine=debug [default: warn].
    #[arg(long, global = true, value_name = "FILTER")]
    log: Option<String>,
    /// How to write logs, and the error that ends the command.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For programs: one JSON object per line.
    Json,
}

impl LogArguments {
    /// Sends logs to standard error from now on.
    pub(crate) fn begin(&self) {
        let filter = match self.log.as_deref() {
            None | Some("") => EnvFilter::new("warn"),
            Some(filter) => EnvFilter::try_new(filter).unwrap_or_else(|error| {
                // A typing error in a log filter should not keep a job from training.
                output::note(&format!("warning: FOREBAY_LOG=\"{filter}\" is not a log filter: {error}"));
                EnvFilter::new("warn")
            }),
        };
        let stderr = std::io::stderr;
        // Errors of writing a log go to standard error too, which panics if it is closed. So switch them off.
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => logs.with_ansi(stderr().is_terminal()).init(),
            LogFormat::Json => logs.json().flatten_event(true).init(),
        }
    }
}

impl LogFormat {
    /// Writes the error that ends the command.
    pub(crate) fn end(self, error: &str, code: u8) {
        match self {
            Self::Text => {
                // The text of a SQL error with a place begins with "error: " already.
                let prefix = if error.starts_with("error: ") { "" } else { "error: " };
                output::note(&format!("{prefix}{error}"));
            }
            Self::Json => {
                let mut now = String::new();
                // A clock that cannot be read leaves the time empty.
                let _ = SystemTime.format_time(&mut Writer::new(&mut now));
                let (message, hint) = error.split_once("\nhint: ").unwrap_or((error, ""));
                let message = message.strip_prefix("error: ").unwrap_or(message);
                let mut line = json!({ "timestamp": now, "level": "ERROR", "message": message, "exit_code": code });
                if !hint.is_empty() {
                    line["hint"] = hint.into();
                }
                output::note(&line.to_string());
            }
        }
    }
}
