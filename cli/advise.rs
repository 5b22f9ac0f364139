//! `forebay advise`: what keeping samples at each place of a pipeline would cost and save.

use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use forebay_engine::policy::{Advice, Bytes, Estimate, Measured, Prices, Weights, advise};
use forebay_engine::{Error, FeedOptions, Trial, Work};
use indicatif::HumanCount;
use serde::Serialize;

use crate::exit::interruptible;
use crate::options::Flags;
use crate::output::{self, Format};
use crate::script::{self, ScriptArguments};
use crate::stages;

/// Characters of the longest bar.
const BAR_CHARS: usize = 40;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    measured: TrialArguments,
    /// How much each counts in the score: the time that filling the cache takes, bytes kept, and samples per second.
    #[arg(long, value_name = "WEIGHTS", default_value = "time=1,storage=1,rate=1")]
    weights: WeightsArgument,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// A pipeline to measure, and the job that will read it.
#[derive(Args)]
pub(crate) struct TrialArguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Pipeline to measure; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    #[command(flatten)]
    feed: Flags<FeedOptions>,
    #[command(flatten)]
    pub(crate) work: WorkArguments,
}

/// What was measured of a pipeline.
pub(crate) struct Measurement {
    pub(crate) pipeline: String,
    pub(crate) trial: Trial,
    pub(crate) measured: Measured,
}

impl TrialArguments {
    /// Measures the pipeline on this machine.
    pub(crate) async fn measure(&self) -> Result<Measurement> {
        let session = self.script.open().await?;
        let pipeline = script::pipeline(&session, self.pipeline.as_deref())?;
        let trial = interruptible(async {
            stages::prepare(&session, &pipeline).await?;
            Ok(session.trial(&pipeline, &self.feed.0, self.work.measure_for).await?)
        });
        let trial = trial.await?;
        let measured = trial.measured(&self.work.work(session.threads(), session.cache_limit()));
        Ok(Measurement { pipeline, trial, measured })
    }
}

/// The work that is to come.
#[derive(Args)]
pub(crate) struct WorkArguments {
    /// Epochs that the job will read.
    #[arg(long, value_name = "EPOCHS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epochs_to_come: u32,
    /// Other jobs that will read the same samples as often.
    #[arg(long, value_name = "JOBS", default_value_t = 0)]
    pub(crate) other_jobs: u32,
    /// Time of a training step without waiting, such as 120ms; without it, trainers take all that is computed.
    #[arg(long, value_name = "TIME", value_parser = step_time)]
    pub(crate) step_time: Option<f64>,
    /// Samples per step of one trainer.
    #[arg(long, value_name = "SAMPLES", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_size: u32,
    /// Trainers that step together.
    #[arg(
        long,
        value_name = "TRAINERS",
        env = "WORLD_SIZE",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub(crate) world_size: u32,
    /// Most bytes to keep; those of --cache-limit by default.
    #[arg(long, value_name = "BYTES", value_parser = script::bytes)]
    pub(crate) keep_at_most: Option<u64>,
    /// What things cost: worker=0.31/h,trainer=8/h,storage=0.02/GB-month. The choice is then the cheapest.
    #[arg(long, value_name = "PRICES")]
    pub(crate) price: Option<Prices>,
    /// About how long to measure; at most 5 % of the rows are measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = script::seconds)]
    pub(crate) measure_for: f64,
}

impl WorkArguments {
    /// The work of this process with so many threads, which may keep `limit` bytes.
    fn work(&self, threads: usize, limit: u64) -> Work {
        let samples = f64::from(self.batch_size) * f64::from(self.world_size);
        Work {
            epochs_to_come: self.epochs_to_come,
            other_jobs: self.other_jobs,
            demand: self.step_time.map(|seconds| samples / seconds),
            trainers: self.world_size,
            cores: threads as f64,
            limit_bytes: self.keep_at_most.unwrap_or(limit) as f64,
        }
    }
}

/// Weights as `time=1,storage=0.5,rate=2`. One that is left out is 0.
#[derive(Clone, Copy, Debug)]
struct WeightsArgument(Weights);

impl FromStr for WeightsArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut weights = Weights { time: 0.0, storage: 0.0, rate: 0.0 };
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').ok_or("write weights such as time=1,storage=0.5,rate=2")?;
            let slot = match name.trim() {
                "time" => &mut weights.time,
                "storage" => &mut weights.storage,
                "rate" => &mut weights.rate,
                other => return Err(format!("\"{other}\" is none of time, storage and rate")),
            };
            let weight = weight.trim().parse().ok().filter(|weight| (0.0..=1e6).contains(weight));
            *slot = weight.ok_or_else(|| format!("\"{}\" must be a number, 0 or more", name.trim()))?;
        }
        Ok(Self(weights))
    }
}

/// Parses a time such as `120ms` or `0.2s`, in seconds. A number without a unit might be meant as either.
fn step_time(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("ms").map(|number| (number, 1e-3));
    let number = number.or_else(|| text.strip_suffix('s').map(|number| (number, 1.0)));
    let seconds = number.and_then(|(number, unit)| Some(number.trim().parse::<f64>().ok()? * unit));
    seconds.filter(|seconds| (1e-6..=1e6).contains(seconds)).ok_or_else(|| "write a time such as 120ms or 0.2s".into())
}

/// What was measured, and what follows from it.
#[derive(Serialize)]
struct Report<'a> {
    pipeline: &'a str,
    trial: &'a Trial,
    measured: Measured,
    #[serde(flatten)]
    advice: Advice,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let Measurement { pipeline, trial, measured } = arguments.measured.measure().await?;
    let prices = arguments.measured.work.price.as_ref();
    let advice = advise(&measured, prices, &arguments.weights.0)
        .map_err(|error| Error::invalid(error.message).with_hint(error.hint))?;
    match arguments.output {
        Format::Json => output::json(&Report { pipeline: &pipeline, trial: &trial, measured, advice }),
        Format::Text => show(&trial, &measured, &advice),
    }
}

fn show(trial: &Trial, measured: &Measured, advice: &Advice) -> Result<()> {
    output::line(&measured_line(trial))?;
    output::line(&format!(
        "the source is read at {}/s, the root is read at {}/s and written at {}/s\n",
        Bytes(measured.source.bytes_per_second),
        Bytes(measured.cache.bytes_per_second),
        Bytes(measured.cache.written_bytes_per_second),
    ))?;
    output::table(&rows(advice))?;
    output::line("\nsamples/s from epoch 2")?;
    for line in bars(advice) {
        output::line(&line)?;
    }
    output::line("")?;
    output::line(&format!("keep {}: {}", named(advice.choice()), why(advice)))
}

/// How much was measured.
pub(crate) fn measured_line(trial: &Trial) -> String {
    format!(
        "measured {} of {} rows ({:.1} %), {} of a thread for each sample",
        HumanCount(trial.rows),
        HumanCount(trial.rows_of_epoch),
        trial.rows as f64 / trial.rows_of_epoch.max(1) as f64 * 100.0,
        per_sample(trial)
    )
}

/// The time that a thread needs for a sample.
pub(crate) fn per_sample(trial: &Trial) -> String {
    match trial.seconds_per_sample() {
        seconds if seconds < 1e-3 => format!("{:.1} \u{b5}s", seconds * 1e6),
        seconds => format!("{:.2} ms", seconds * 1e3),
    }
}

/// What may be kept: nothing, or something of any place but the end of the query.
fn places(advice: &Advice) -> impl Iterator<Item = &Estimate> {
    let places = advice.estimates.len().saturating_sub(1);
    advice.estimates.iter().take(places)
}

fn rows(advice: &Advice) -> Vec<Vec<String>> {
    let has_money = advice.estimates.iter().any(|estimate| estimate.money.is_some());
    let mut header =
        ["keep", "bytes", "share", "samples/s", "CPU s/epoch", "first epoch", "epoch", "pays off", "score"].to_vec();
    if has_money {
        header.push("money");
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for (at, estimate) in places(advice).enumerate() {
        let chosen = if at == advice.chosen { " <" } else { "" };
        let mut row = vec![
            format!("{}{chosen}", named(estimate)),
            Bytes(estimate.kept_bytes).to_string(),
            format!("{:.0} %", estimate.share * 100.0),
            HumanCount(estimate.samples_per_second as u64).to_string(),
            format!("{:.1}", estimate.cpu_seconds),
            format!("{:.1} s", estimate.first_epoch_seconds),
            format!("{:.1} s", estimate.epoch_seconds),
            pays_off(at, estimate),
            format!("{:.2}", estimate.score),
        ];
        if let (true, Some(money)) = (has_money, estimate.money) {
            row.push(format!("{money:.4}"));
        }
        rows.push(row);
    }
    rows
}

fn named(estimate: &Estimate) -> String {
    match estimate.cut.as_deref() {
        None => "nothing".to_owned(),
        Some("source") => "source".to_owned(),
        Some(cut) if estimate.never_kept => cut.to_owned(),
        Some(cut) => format!("after {cut}"),
    }
}

fn pays_off(at: usize, estimate: &Estimate) -> String {
    match estimate.break_even_epoch {
        _ if at == 0 => String::new(),
        _ if estimate.cut.as_deref() == Some("source") && estimate.never_kept => "is local".to_owned(),
        _ if estimate.never_kept => "repeats epochs".to_owned(),
        Some(epoch) => format!("in epoch {epoch}"),
        None => "never".to_owned(),
    }
}

fn bars(advice: &Advice) -> Vec<String> {
    let most = places(advice).map(|estimate| estimate.samples_per_second).fold(0.0, f64::max);
    let width = places(advice).map(|estimate| named(estimate).chars().count()).max().unwrap_or(0);
    let bar = |estimate: &Estimate| {
        let chars = (estimate.samples_per_second / most * BAR_CHARS as f64).round().max(1.0) as usize;
        format!(
            "{:width$}  {:BAR_CHARS$}  {}",
            named(estimate),
            "\u{2588}".repeat(chars),
            HumanCount(estimate.samples_per_second as u64)
        )
    };
    places(advice).map(bar).collect()
}

fn why(advice: &Advice) -> String {
    let (chosen, nothing) = (advice.choice(), &advice.estimates[0]);
    let verb = if nothing.money.is_some() { "cost" } else { "take" };
    let totals = |estimate: &Estimate| match estimate.money {
        Some(money) => format!("{money:.4}"),
        None => format!("{:.1} s", estimate.total_seconds),
    };
    match chosen.cut {
        Some(_) => format!("all epochs {verb} {} instead of {}", totals(chosen), totals(nothing)),
        None => format!("all epochs {verb} {}, and nothing that may be kept saves more than it costs", totals(nothing)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_weights_are_parsed() {
        for (text, seconds) in [("120ms", 0.12), ("0.2s", 0.2), ("1.5 s", 1.5)] {
            assert!((step_time(text).unwrap() - seconds).abs() < 1e-12, "{text}");
        }
        for text in ["", "0s", "120", "-1s", "fast", "1m", "NaN", "infs"] {
            step_time(text).unwrap_err();
        }
        let weights = "time=1, rate=0.5".parse::<WeightsArgument>().unwrap().0;
        assert_eq!(weights, Weights { time: 1.0, storage: 0.0, rate: 0.5 });
        for text in ["", "speed=1", "time", "time=-1", "time=x"] {
            text.parse::<WeightsArgument>().unwrap_err();
        }
    }
}
