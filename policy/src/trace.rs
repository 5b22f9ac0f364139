//! Traces of what a policy saw and decided: JSON lines that can be run again.
//!
//! The first line names the version and the settings. Then each observation is a line, and so is the decision that
//! followed. Numbers survive being written to the last bit or the one before, so a replay compares what acts: the
//! number of workers and the names of those to drain.

use std::fmt;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::{Decision, Error, Observation, WorkerPolicy, WorkerSettings};

/// The version of the form that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;

/// How a header begins.
const BEGINNING: &str = r#"{"forebay_policy_trace""#;

#[derive(Serialize, Deserialize)]
struct Header {
    forebay_policy_trace: u32,
    settings: WorkerSettings,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Observation(Observation),
    Decision(Decision),
}

/// The first line of a trace, without the line feed.
#[must_use]
pub fn header(settings: &WorkerSettings) -> String {
    to_json(&Header { forebay_policy_trace: VERSION, settings: *settings })
}

/// The two lines of an observation and the decision that followed it, without the last line feed.
#[must_use]
pub fn lines(seen: &Observation, decision: &Decision) -> String {
    let (seen, decision) = (Line::Observation(seen.clone()), Line::Decision(decision.clone()));
    format!("{}\n{}", to_json(&seen), to_json(&decision))
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data with names as keys is JSON")
}

/// A decision of a trace, and what the policy decides today.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The line of the recorded decision, from 1.
    pub line: usize,
    /// When it was observed.
    pub seconds: f64,
    /// What was decided then.
    pub recorded: Decision,
    /// What is decided now, from the same observations.
    pub replayed: Decision,
}

impl Replayed {
    /// Whether both act alike.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        (self.recorded.workers, &self.recorded.drain) == (self.replayed.workers, &self.replayed.drain)
    }
}

/// A trace that cannot be replayed.
#[derive(Debug)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub error: Error,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the trace: {}", self.line, self.error)
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Runs the policy of this build over the observations of a trace. A torn line at the end of what a process wrote is
/// left out.
///
/// # Errors
///
/// The trace cannot be read, is of another version, or a line of it is damaged.
pub fn replay(reader: impl BufRead) -> Result<Vec<Replayed>, TraceError> {
    let mut policy: Option<WorkerPolicy> = None;
    let mut decided: Option<(f64, Decision)> = None;
    let mut replayed = Vec::new();
    let mut lines = reader.lines().enumerate().peekable();
    while let Some((at, text)) = lines.next() {
        let line = at + 1;
        let is_last = lines.peek().is_none_or(|(_, next)| next.as_ref().is_ok_and(|next| next.starts_with(BEGINNING)));
        let wrong = |message: String, hint: &str| TraceError { line, error: Error::new(message, hint) };
        let damaged = |error: &dyn fmt::Display| {
            let hint = "remove this line and those after it, and replay what is before";
            wrong(format!("the line is damaged: {error}"), hint)
        };
        let text = text.map_err(|error| damaged(&error))?;
        // A process that is started again begins anew, in the same file.
        let Some(running) = policy.as_mut().filter(|_| !text.starts_with(BEGINNING)) else {
            policy = Some(start(&text).map_err(|error| TraceError { line, error })?);
            continue;
        };
        let read = match serde_json::from_str(&text) {
            Err(_) if is_last => continue,
            read => read.map_err(|error| damaged(&error))?,
        };
        match read {
            Line::Observation(seen) => decided = Some((seen.seconds, running.observe(&seen))),
            Line::Decision(recorded) => {
                let (seconds, now) = decided.take().ok_or_else(|| damaged(&"a decision without its observation"))?;
                replayed.push(Replayed { line, seconds, recorded, replayed: now });
            }
        }
    }
    match policy {
        Some(_) => Ok(replayed),
        None => Err(TraceError { line: 1, error: no_trace("the file is empty") }),
    }
}

/// The policy that the header asks for.
fn start(text: &str) -> Result<WorkerPolicy, Error> {
    #[derive(Deserialize)]
    struct Version {
        forebay_policy_trace: u32,
    }
    let version =
        serde_json::from_str(text).map_err(|error| no_trace(&format!("no trace begins like this: {error}")))?;
    let Version { forebay_policy_trace: version } = version;
    if version != VERSION {
        return Err(Error::new(
            format!("the trace has version {version}, this build reads version {VERSION}"),
            "replay it with the build that wrote it",
        ));
    }
    let header = serde_json::from_str(text).map_err(|error| no_trace(&format!("the settings are damaged: {error}")))?;
    let Header { settings, .. } = header;
    WorkerPolicy::new(settings)
}

fn no_trace(message: &str) -> Error {
    Error::new(message, "give a file that a policy wrote, whole from its first line")
}
