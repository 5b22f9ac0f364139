//! A command of the user's that sets the number of workers.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use forebay_engine::policy::Decision;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::workers::Workers;
use crate::exit::refuse;

/// What stands for the number in the command.
const PLACE: &str = "{workers}";
/// A command that runs for longer is ended.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time from the server's start to the first command.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
/// Pause before a command that failed is run again, doubled each time.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);

pub(super) struct ScaleCommand {
    command: String,
    began: Instant,
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

impl Running {
    fn end(&mut self) {
        if let Ok(group) = i32::try_from(self.child.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl ScaleCommand {
    pub(super) fn new(command: &str) -> Result<Self> {
        if !command.contains(PLACE) {
            refuse!(
                "--scale-command does not say where the number of workers goes: \"{command}\"\n\
                 hint: write {PLACE}, as in 'kubectl scale deployment/workers --replicas={PLACE}'"
            );
        }
        Ok(Self { command: command.to_owned(), began: Instant::now(), set: None, running: None, retry: None })
    }

    fn begin(&mut self, workers: u32) {
        let text = self.command.replace(PLACE, &workers.to_string());
        let began = Instant::now();
        let mut command = Command::new("sh");
        command.arg("-c").arg(text).stdin(Stdio::null()).stdout(Stdio::null());
        // A group of its own, so that what the shell started ends with it.
        match command.process_group(0).spawn() {
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
                running.end();
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
        // Workers that are there may need a moment to find a server that has just started.
        if self.began.elapsed() < FIRST_PAUSE {
            return;
        }
        let may_run = self.running.is_none() && self.retry.is_none_or(|(at, _)| Instant::now() >= at);
        if may_run && self.set != Some(decision.workers) {
            self.begin(decision.workers);
        }
    }

    /// Leaves the workers: they may serve another dispatcher.
    fn end(mut self: Box<Self>) {
        if let Some(running) = &mut self.running {
            running.end();
        }
    }
}
