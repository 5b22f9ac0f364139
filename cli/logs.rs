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
                let warning = format!("\"{filter}\" is not a log filter: {error}; see --log");
                self.log_format.say("WARN", &warning, None);
                EnvFilter::new("warn")
            }),
        };
        let stderr = std::io::stderr;
        // Errors of writing a log go to standard error too, which panics if it is closed. So switch them off.
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).log_internal_errors(false);
        match self.log_format {
            LogFormat::Text => logs.with_ansi(stderr().is_terminal()).init(),
            LogFormat::Json => {
                logs.json().flatten_event(true).init();
                std::panic::set_hook(Box::new(|panic| LogFormat::Json.say("ERROR", &panic.to_string(), None)));
            }
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
            Self::Json => self.say("ERROR", error.strip_prefix("error: ").unwrap_or(error), Some(code)),
        }
    }

    /// Writes a line that is no event: logging may not have begun, or may have ended.
    fn say(self, level: &str, text: &str, exit_code: Option<u8>) {
        if self == Self::Text {
            return output::note(&format!("{}: {text}", level.to_lowercase().replace("warn", "warning")));
        }
        let mut now = String::new();
        // A clock that cannot be read leaves the time empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut now));
        let (message, hint) = text.split_once("\nhint: ").unwrap_or((text, ""));
        let mut line = json!({ "timestamp": now, "level": level, "target": "forebay", "message": message.trim_end() });
        if !hint.is_empty() {
            line["hint"] = hint.into();
        }
        exit_code.into_iter().for_each(|code| line["exit_code"] = code.into());
        output::note(&line.to_string());
    }

    /// The format, before the flags are parsed: wrong flags are errors, too.
    pub(crate) fn before_parsing() -> Self {
        let mut arguments = std::env::args();
        let mut named = None;
        while let Some(argument) = arguments.next() {
            match argument.strip_prefix("--log-format") {
                Some("") => named = arguments.next(),
                Some(value) => named = value.strip_prefix('=').map(str::to_owned).or(named),
                None => {}
            }
        }
        let named = named.or_else(|| std::env::var("FOREBAY_LOG_FORMAT").ok());
        if named.as_deref() == Some("json") { Self::Json } else { Self::Text }
    }
}
