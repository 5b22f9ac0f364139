//! `forebay plan`: how a job should run, decided before it runs.

use anyhow::Result;
use clap::Args;
use forebay_engine::policy::{
    Bytes, Choice, Job, Measured, Order, Place, Plan, Prices, Sureness, TrainerHost, Wire, WorkerLimits, Workload, plan,
};
use forebay_engine::{Error, Trial};
use indicatif::HumanCount;
use serde::Serialize;

use crate::advise::{Measurement, TrialArguments, measured_line, per_sample};
use crate::exit::refuse;
use crate::output::{self, Format};
use crate::scaling::{WorkerRange, share};
use crate::script;

/// Core-seconds for each byte that a worker sends and that a trainer receives: those of `benches/serving_peers.py`.
const SENDING_SECONDS_PER_BYTE: f64 = 0.35e-9;
const RECEIVING_SECONDS_PER_BYTE: f64 = 0.30e-9;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    measured: TrialArguments,
    /// How many workers there may be: a range such as 0..32, or a number.
    #[arg(long, value_name = "MIN..MAX", default_value = "0..32", value_parser = workers)]
    workers: WorkerRange,
    /// Cores of each worker, as fast as those of this machine.
    #[arg(long, value_name = "CORES", default_value_t = 4.0, value_parser = cores)]
    worker_cores: f64,
    /// Cores beside each trainer, those that it needs itself included. Without this, nothing is computed there.
    #[arg(long, value_name = "CORES", value_parser = cores)]
    trainer_host_cores: Option<f64>,
    /// Cores that each trainer needs for itself.
    #[arg(long, value_name = "CORES", default_value_t = 1.0, value_parser = cores)]
    trainer_cores: f64,
    /// Bytes per second that reach each trainer.
    #[arg(long, value_name = "BYTES", default_value = "1.25GB", value_parser = script::memory)]
    network: u64,
    /// The part of their time that trainers may wait for samples, such as 1% or 0.01 [default: 1%].
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "price")]
    wait_at_most: Option<f64>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

fn cores(text: &str) -> Result<f64, String> {
    let cores = text.parse().ok().filter(|cores| (0.01..=100_000.0).contains(cores));
    cores.ok_or_else(|| "must be a number of cores, such as 4".to_owned())
}

/// Parses how many workers there may be. None, if trainers' hosts compute everything.
fn workers(text: &str) -> Result<WorkerRange, String> {
    match text.trim() {
        "0" => Ok(WorkerRange { min: 0, max: 0 }),
        text => text.parse(),
    }
}

/// Writes the names of a job's fields in a hint as flags.
fn with_flags(hint: &str) -> String {
    hint.replace("\"host_cores\"", "--trainer-host-cores").replace("\"most\"", "--workers")
}

/// What was measured, and what follows from it.
#[derive(Serialize)]
struct Report<'a> {
    pipeline: &'a str,
    trial: &'a Trial,
    job: &'a Job,
    plan: &'a Plan,
    sentence: String,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let work = &arguments.measured.work;
    if work.step_time.is_none() {
        refuse!(
            "a plan needs the time of a training step\nhint: add --step-time 120ms, with --batch-size and --world-size"
        )
    }
    let Measurement { pipeline, trial, measured } = arguments.measured.measure().await?;
    let job = arguments.job(&trial, measured);
    let planned = plan(&job, work.price.as_ref())
        .map_err(|error| Error::invalid(error.message).with_hint(with_flags(&error.hint)))?;
    match arguments.output {
        Format::Json => output::json(&Report {
            pipeline: &pipeline,
            trial: &trial,
            job: &job,
            plan: &planned,
            sentence: planned.to_string(),
        }),
        Format::Text => show(&trial, &planned, work.price.as_ref()),
    }
}

impl Arguments {
    /// The job that was measured on this machine.
    fn job(&self, trial: &Trial, measured: Measured) -> Job {
        let work = &self.measured.work;
        let workload = Workload { cores_per_worker: self.worker_cores, ..measured.workload };
        Job {
            orders: vec![Order { name: "exact".to_owned(), cuts: measured.cuts }],
            source: measured.source,
            cache: measured.cache,
            workload,
            samples_per_step: f64::from(work.batch_size) * f64::from(work.world_size),
            limit_bytes: measured.limit_bytes,
            host: match self.trainer_host_cores {
                Some(host_cores) => TrainerHost { host_cores, trainer_cores: self.trainer_cores },
                // Enough to receive samples, and too little to compute any.
                None => TrainerHost { host_cores: 0.99, trainer_cores: 0.0 },
            },
            wire: Wire {
                bytes_per_second: self.network as f64,
                sending_seconds_per_byte: SENDING_SECONDS_PER_BYTE,
                receiving_seconds_per_byte: RECEIVING_SECONDS_PER_BYTE,
            },
            finish: trial.finish,
            workers: WorkerLimits { least: self.workers.min, most: self.workers.max },
            wait_at_most: self.wait_at_most.unwrap_or(0.01),
            sureness: Some(Sureness { samples: trial.samples as f64, error: trial.error }),
        }
    }
}

fn show(trial: &Trial, planned: &Plan, prices: Option<&Prices>) -> Result<()> {
    output::line(&measured_line(trial))?;
    output::line("")?;
    let mut header = vec![String::new(), "plan".to_owned()];
    header.extend(planned.runner_up.iter().map(|_| "runner-up".to_owned()));
    let choices: Vec<&Choice> = [Some(&planned.chosen), planned.runner_up.as_ref()].into_iter().flatten().collect();
    let mut rows = vec![header];
    let mut row = |name: &str, of: &dyn Fn(&Choice) -> String| {
        rows.push(std::iter::once(name.to_owned()).chain(choices.iter().map(|choice| of(choice))).collect());
    };
    row("workers", &|choice| match (choice.configuration.first_workers, choice.configuration.workers) {
        (first, later) if first == later => later.to_string(),
        (first, later) => format!("{first}, {later} from epoch 2"),
    });
    row("local cores beside each trainer", &|choice| choice.configuration.local_cores.to_string());
    row("keep", &|choice| match &choice.configuration.cut {
        None => "nothing".to_owned(),
        Some(cut) => {
            let share = choice.configuration.share * 100.0;
            format!("{} after {cut} ({share:.0} %)", Bytes(choice.kept_bytes))
        }
    });
    if trial.finish.is_some() {
        row("last step at", &|choice| match choice.configuration.finish_at {
            Place::Worker => "workers".to_owned(),
            Place::Trainer => "trainers".to_owned(),
        });
    }
    row("step", &|choice| format!("{:.1} ms", choice.seconds_per_step * 1e3));
    row("trainers wait", &|choice| format!("{:.1} % for {}", choice.waited * 100.0, choice.bottleneck));
    row("first epoch", &|choice| format!("{:.1} s", choice.first_epoch_seconds));
    row("later epochs", &|choice| format!("{:.1} s", choice.epoch_seconds));
    row("all epochs", &|choice| format!("{:.0} s", choice.total_seconds));
    row("CPU of an epoch", &|choice| {
        format!("{:.1} s of workers, {:.1} s of trainers' hosts", choice.worker_cpu_seconds, choice.host_cpu_seconds)
    });
    row("read in an epoch", &|choice| {
        format!("{} of the source, {} of the cache", Bytes(choice.source_bytes), Bytes(choice.cache_bytes))
    });
    row("sent in an epoch", &|choice| Bytes(choice.wire_bytes).to_string());
    if prices.is_some() {
        row("money", &|choice| choice.money.map_or_else(String::new, |money| format!("{money:.4}")));
    }
    output::table(&rows)?;
    output::line("")?;
    output::line(&planned.to_string())?;
    output::line(&format!(
        "a sample takes {} of a core, within {:.0} % by {} samples",
        per_sample(trial),
        trial.error * 100.0,
        HumanCount(trial.samples)
    ))
}
