//! Hands events to Python's `logging`, as the logger `forebay`.
//!
//! Events come from threads that must never wait for the GIL: a thread that holds it may wait for them. So they are
//! queued, and logged whenever a call of Python waits for Rust.

use std::collections::VecDeque;
use std::fmt::{Debug, Write};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, registry};

/// The most events that wait to be logged. Later ones are counted only.
const QUEUED_MAX: usize = 256;
/// A forked child may find the queue locked for ever.
const PATIENCE: Duration = Duration::from_millis(100);

static QUEUE: Mutex<Queue> = Mutex::new(Queue { events: VecDeque::new(), lost: 0 });

struct Queue {
    events: VecDeque<(Level, String)>,
    lost: usize,
}

/// Queues events from now on: those that `FOREBAY_LOG` names, else warnings and errors.
pub(crate) fn begin() {
    let filter = std::env::var("FOREBAY_LOG").ok().and_then(|filter| EnvFilter::try_new(filter).ok());
    // The program that embeds Python may have a subscriber of its own.
    let _ = registry().with(filter.unwrap_or_else(|| EnvFilter::new("warn"))).with(ToQueue).try_init();
}

/// Logs what is queued. Errors of the user's handlers are not the caller's, and are only printed.
pub(crate) fn log(py: Python<'_>) {
    let (events, lost) = {
        let Some(mut queue) = QUEUE.try_lock_for(PATIENCE) else { return };
        if queue.events.is_empty() {
            return;
        }
        (std::mem::take(&mut queue.events), std::mem::take(&mut queue.lost))
    };
    if let Err(error) = log_all(py, events, lost) {
        error.write_unraisable(py, None);
    }
}

fn log_all(py: Python<'_>, events: VecDeque<(Level, String)>, lost: usize) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("forebay",))?;
    for (level, text) in events {
        // The numbers of Python's levels. It has none for traces.
        let number = match level {
            Level::ERROR => 40,
            Level::WARN => 30,
            Level::INFO => 20,
            _ => 10,
        };
        logger.call_method1("log", (number, "%s", text))?;
    }
    if lost > 0 {
        logger.call_method1("warning", ("%s", format!("{lost} more events were not logged: too many came at once")))?;
    }
    Ok(())
}

struct ToQueue;

impl<S: Subscriber> Layer<S> for ToQueue {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Some(mut queue) = QUEUE.try_lock_for(PATIENCE) else { return };
        match queue.events.len() < QUEUED_MAX {
            true => queue.events.push_back((*event.metadata().level(), text.message + &text.fields)),
            false => queue.lost += 1,
        }
    }
}

/// An event as text: its message, then its fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
