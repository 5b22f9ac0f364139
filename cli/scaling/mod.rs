//! `forebay serve --workers`: how many workers there should be, and who starts and drains them.

mod command;
mod local;
mod workers;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use clap::Args;
use forebay_engine::policy::{self, Decision, Observation, Prices, WorkerGoal, WorkerPolicy, WorkerSettings};
use forebay_flight_server::{Scaler, Scaling};

pub(crate) use self::local::LocalWorkers;
use self::local::Started;
use self::workers::Workers;
use crate::exit::refuse;
use crate::scaling::command::ScaleCommand;
use crate::script;

/// Windows that are usually computed ahead of the trainers, for each thread of a worker.
const WINDOWS_AHEAD: f64 = 2.0;

/// How many workers there should be.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScalingArguments {
    /// Start and drain worker processes on this machine, as many as trainers need: a range such as 0..8, or a number.
    /// This process then computes nothing itself.
    #[arg(long, value_name = "MIN..MAX")]
    workers: Option<WorkerRange>,
    /// Run this command when another number of workers is needed, in place of processes on this machine; {workers} in
    /// it becomes the number, as in 'kubectl scale deployment/workers --replicas={workers}'.
    #[arg(long, value_name = "COMMAND", requires = "workers")]
    scale_command: Option<String>,
    /// The part of their time that trainers may wait for samples, such as 1% or 0.01 [default: 1%].
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "price")]
    wait_at_most: Option<f64>,
    /// Choose the number of workers with which an epoch is cheapest, at these prices:
    /// worker=0.31/h,trainer=8/h.
    #[arg(long, value_name = "PRICES")]
    price: Option<Prices>,
    /// How long the number of workers stays after a change, while their rates are measured.
    #[arg(long, value_name = "SECONDS", value_parser = script::seconds, default_value_t = 15.0)]
    settle_for: f64,
    /// How long workers are kept for trainers that have stopped reading.
    #[arg(long, value_name = "SECONDS", value_parser = script::seconds, default_value_t = 600.0)]
    keep_idle_for: f64,
    /// Append what is seen and decided to this file, for `forebay policy replay`.
    #[arg(long, value_name = "FILE")]
    policy_trace: Option<PathBuf>,
}

/// The fewest and the most workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerRange {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl FromStr for WorkerRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let range = match text.split_once("..") {
            Some((min, max)) => number(min).zip(number(max)),
            None => number(text).map(|number| (number, number)),
        };
        match range.filter(|(min, max)| min <= max && *max > 0) {
            Some((min, max)) => Ok(Self { min, max }),
            None => Err("write a range such as 0..8, or a number such as 4".to_owned()),
        }
    }
}

/// Parses a share of time, as percent or as a fraction.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = match text.trim().strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.trim().parse(),
    };
    match share {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err("write a share of the time between 0 and 1, such as 1% or 0.01".to_owned()),
    }
}

impl ScalingArguments {
    /// Whether workers are started outside of this process.
    pub(crate) fn starts_workers(&self) -> bool {
        self.workers.is_some()
    }

    /// Starts acting on decisions. `local` starts processes on this machine.
    pub(crate) fn begin(&self, local: impl FnOnce(WorkerRange) -> Result<LocalWorkers>) -> Result<ScalingThread> {
        let goal = match (self.wait_at_most, self.price) {
            (Some(at_most), _) => WorkerGoal::Wait { at_most },
            (None, Some(prices)) => WorkerGoal::Money { prices },
            (None, None) => WorkerGoal::default(),
        };
        let mut settings = WorkerSettings {
            goal,
            windows_ahead: WINDOWS_AHEAD,
            settle_seconds: self.settle_for,
            idle_seconds: self.keep_idle_for,
            ..WorkerSettings::default()
        };
        let mut started = None;
        let workers: Option<Box<dyn Workers>> = match (self.workers, &self.scale_command) {
            (None, _) => {
                // The number is only shown, and nothing limits it.
                settings.max = 10_000;
                None
            }
            (Some(range), command) => {
                (settings.min, settings.max) = (range.min, range.max);
                Some(match command {
                    Some(command) => Box::new(ScaleCommand::new(command)?),
                    None => {
                        let local = local(range)?;
                        started = Some(local.started());
                        Box::new(local)
                    }
                })
            }
        };
        if let Err(error) = WorkerPolicy::new(settings) {
            refuse!("{error}");
        }
        let trace = self.policy_trace.as_ref().map(|path| match begin_trace(path, &settings) {
            Ok(file) => anyhow::Ok(file),
            Err(error) => refuse!("--policy-trace: cannot write \"{}\": {error}", path.display()),
        });
        let trace = trace.transpose()?;
        let (sender, decisions) = channel();
        let thread = std::thread::Builder::new()
            .name("scaling".to_owned())
            .spawn(move || act(&decisions, workers, trace))
            .context("cannot start a thread")?;
        let sender = Arc::new(Mutex::new(Some(sender)));
        Ok(ScalingThread { settings, sender, started, thread: Some(thread) })
    }
}

/// Appends the beginning of a trace to a file, whose last line may be torn.
fn begin_trace(path: &Path, settings: &WorkerSettings) -> std::io::Result<File> {
    let mut file = File::options().create(true).read(true).append(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    let line_feed = if last == [b'\n'] { "" } else { "\n" };
    writeln!(file, "{line_feed}{}", policy::trace::header(settings))?;
    Ok(file)
}

fn act(decisions: &Receiver<(Observation, Decision)>, mut workers: Option<Box<dyn Workers>>, mut trace: Option<File>) {
    while let Ok((seen, decision)) = decisions.recv() {
        if let Some(file) = &mut trace
            && let Err(error) = writeln!(file, "{}", policy::trace::lines(&seen, &decision))
        {
            tracing::warn!(%error, "the trace of the policy cannot be written; it ends here");
            trace = None;
        }
        if let Some(workers) = &mut workers {
            workers.scale(&decision);
        }
    }
    if let Some(workers) = workers {
        workers.end();
    }
}

/// Where decisions go, until the server has stopped.
type DecisionSender = Arc<Mutex<Option<Sender<(Observation, Decision)>>>>;

/// The thread that acts on decisions.
pub(crate) struct ScalingThread {
    settings: WorkerSettings,
    sender: DecisionSender,
    started: Option<Started>,
    thread: Option<JoinHandle<()>>,
}

impl ScalingThread {
    /// What the server needs to know.
    pub(crate) fn scaling(&self) -> Scaling {
        let scaler = Decisions { sender: Arc::clone(&self.sender), started: self.started.clone() };
        Scaling { settings: self.settings, scaler: Some(Arc::new(scaler)) }
    }
}

impl Drop for ScalingThread {
    /// Ends the workers that were started, and waits for them.
    fn drop(&mut self) {
        if let Ok(mut sender) = self.sender.lock() {
            *sender = None;
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Decisions {
    sender: DecisionSender,
    /// The workers that this process started. Without them, a program or an autoscaler starts all that come.
    started: Option<Started>,
}

impl Scaler for Decisions {
    fn decided(&self, seen: Observation, decision: Decision) {
        if let Ok(sender) = self.sender.lock()
            && let Some(sender) = &*sender
        {
            let _ = sender.send((seen, decision));
        }
    }

    fn controls(&self, address: &str) -> bool {
        let Some(started) = &self.started else { return true };
        started.lock().is_ok_and(|started| started.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_shares() {
        assert_eq!("0..8".parse(), Ok(WorkerRange { min: 0, max: 8 }));
        assert_eq!("4".parse(), Ok(WorkerRange { min: 4, max: 4 }));
        for wrong in ["", "0", "8..2", "0..0", "-1..2", "1..", "many"] {
            assert!(wrong.parse::<WorkerRange>().is_err(), "{wrong}");
        }
        assert_eq!((share("1%"), share("0.05")), (Ok(0.01), Ok(0.05)));
        for wrong in ["0", "100%", "1.5", "NaN", "-1%", "little"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
