//! A command of the user's that sets the number of workers.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_flight_server::policy::Decision;

use super::Workers;
use crate::exit::refuse;

/// What stands for the number in the command.
const PLACE: &str = "{workers}";
/// A command that runs for longer is ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a command that failed is run again, doubled each time.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

pub(super) struct ScaleCommand {
    command: String,
    /// The number that was set last.
    set: Option<u32>,
    running: Option<Running>,
    /// When to run again after a failure, and the pause before that.
    retry: Option<(Instant, Duration)>,
}

struct Running {
    child: Child,
    workers: u32,
    began: Instant,
}

impl ScaleCommand {
    pub(super) fn new(command: &str) -> Result<Self> {
        if !command.contains(PLACE) {
            refuse!(
                "--scale-command does not say where the number of workers goes: \"{command}\"\n\
                 hint: write {PLACE}, as in 'kubectl scale deployment/workers --replicas={PLACE}'"
            );
        }
        Ok(Self { command: command.to_owned(), set: None, running: None, retry: None })
    }

    fn begin(&mut self, workers: u32) {
        let text = self.command.replace(PLACE, &workers.to_string());
        let began = Instant::now();
        match Command::new("sh").arg("-c").arg(text).stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
            Ok(child) => self.running = Some(Running { child, workers, began }),
            Err(error) => self.failed(workers, &error.to_string()),
        }
    }

    /// Looks whether the command has ended, and ends it if it takes too long.
    fn look(&mut self) {
        let Some(running) = &mut self.running else { return };
        let workers = running.workers;
        match running.child.try_wait() {
            Ok(None) if running.began.elapsed() < PATIENCE => {}
            Ok(None) => {
                let _ = running.child.kill();
                let _ = running.child.wait();
                self.failed(workers, &format!("it has not ended within {} s", PATIENCE.as_secs()));
            }
            Ok(Some(status)) if status.success() => {
                (self.set, self.running, self.retry) = (Some(workers), None, None);
                tracing::info!(workers, "the scale command has set the number of workers");
            }
            Ok(Some(status)) => self.failed(workers, &format!("it ended with {status}")),
            Err(error) => self.failed(workers, &error.to_string()),
        }
    }

    fn failed(&mut self, workers: u32, error: &str) {
        let pause = self.retry.map_or(PAUSE, |(_, pause)| (pause * 2).min(PAUSE_MAX));
        let retry_seconds = pause.as_secs();
        tracing::warn!(workers, error, retry_seconds, command = self.command, "the scale command failed; retrying");
        (self.running, self.retry) = (None, Some((Instant::now() + pause, pause)));
    }
}

impl Workers for ScaleCommand {
    fn scale(&mut self, decision: &Decision) {
        self.look();
        let may_run = self.running.is_none() && self.retry.is_none_or(|(at, _)| Instant::now() >= at);
        if may_run && self.set != Some(decision.workers) {
            self.begin(decision.workers);
        }
    }

    /// Leaves the workers: they may serve another dispatcher.
    fn end(mut self: Box<Self>) {
        if let Some(mut running) = self.running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}
