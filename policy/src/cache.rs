//! What a feed should keep of its epoch: nothing, the source's bytes, or its rows at one of several cuts.
//!
//! Each choice is one configuration: a cut, and the share of samples that fits the limit. Reading the source, reading
//! the cache, computing, and training overlap, so an epoch takes as long as the slowest of the four. Cachew (ATC 2022)
//! adds reading and computing, leaves out the epoch that writes, and knows neither trainers nor other jobs; PRESTO
//! (SIGMOD 2022) runs each choice. With a limit, the share that is kept stays kept (CoorDL, VLDB 2021): an epoch reads
//! each row once, so that replacing rows would only lose them.

use serde::{Deserialize, Serialize};

use crate::costs::{Pass, share_within};
use crate::prices::SECONDS_PER_MONTH;
use crate::{Cut, Error, Measured, Prices, Store, Workload};

/// Choices within this of the best count as equal, and the one that keeps least wins: estimates are no better.
pub(crate) const NEAR_TIE: f64 = 0.03;

/// What a configuration costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The cut whose rows are kept. `None` keeps nothing.
    pub cut: Option<String>,
    /// The share of the samples that is kept.
    pub share: f64,
    /// Bytes kept.
    pub kept_bytes: f64,
    /// Seconds of the epoch that fills the cache.
    pub first_epoch_seconds: f64,
    /// Seconds of each later epoch.
    pub epoch_seconds: f64,
    /// Seconds of all passes of all jobs.
    pub total_seconds: f64,
    /// Samples per second in a later epoch.
    pub samples_per_second: f64,
    /// Core-seconds of a later epoch.
    pub cpu_seconds: f64,
    /// Bytes that a later epoch reads, of the source and of the cache.
    pub read_bytes: f64,
    /// Seconds that filling the cache adds to the first epoch.
    pub fill_seconds: f64,
    /// What all passes cost, if prices were given: trainers for as long as they last, workers for as long as they
    /// compute, and what is kept for as long as the passes last.
    pub money: Option<f64>,
    /// The first epoch at whose end keeping has paid for itself, in money if there are prices, else in time. `None` if
    /// it never does, and for what keeps nothing.
    pub break_even_epoch: Option<u32>,
    /// The weighted sum of normalised time, storage and rate: 1 is the best in all, 0 the worst (PRESTO).
    pub score: f64,
    /// Whether it is never chosen: see [`Cut::never_kept`].
    pub never_kept: bool,
}

/// How much each matters in [`Estimate::score`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Seconds that filling the cache takes.
    pub time: f64,
    /// Bytes kept.
    pub storage: f64,
    /// Samples per second.
    pub rate: f64,
}

impl Default for Weights {
    fn default() -> Self {
        Self { time: 1.0, storage: 1.0, rate: 1.0 }
    }
}

/// All configurations, and the best.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// Keeping nothing first, then each cut in the order of the query.
    pub estimates: Vec<Estimate>,
    /// The index of the chosen one: the least money if there are prices, else the least time, over all passes.
    pub chosen: usize,
    /// The index of the one with the best score by the weights.
    pub best_score: usize,
}

impl Advice {
    /// The chosen configuration.
    pub fn choice(&self) -> &Estimate {
        &self.estimates[self.chosen]
    }
}

/// Estimates every configuration that keeps at most the limit, and chooses.
///
/// Money counts only with `prices`, all three of them.
///
/// # Errors
///
/// A measurement is no finite number of its range, the cuts are out of order, or a price is missing.
pub fn advise(measured: &Measured, prices: Option<&Prices>, weights: &Weights) -> Result<Advice, Error> {
    measured.check()?;
    for (name, weight) in [("time", weights.time), ("storage", weights.storage), ("rate", weights.rate)] {
        crate::error::at_least(0.0, name, weight)?;
    }
    if let Some(prices) = prices {
        prices.worker().and(prices.trainer()).and(prices.storage())?;
    }
    let Measured { cuts, source, cache, workload, limit_bytes } = measured;
    let costs = Costs { cuts, source, cache, workload, prices };
    let nothing = costs.estimate(None, 0.0);
    let mut estimates: Vec<Estimate> =
        cuts.iter().map(|cut| costs.estimate(Some(cut), share_within(*limit_bytes, workload.samples, cut))).collect();
    for estimate in &mut estimates {
        estimate.break_even_epoch = costs.break_even(estimate, &nothing);
    }
    estimates.insert(0, nothing);
    score(&mut estimates, weights);
    let total = |estimate: &Estimate| estimate.money.unwrap_or(estimate.total_seconds);
    let allowed = || estimates.iter().enumerate().filter(|(_, estimate)| !estimate.never_kept);
    let least = allowed().map(|(_, estimate)| total(estimate)).fold(f64::INFINITY, f64::min);
    let chosen = allowed()
        .filter(|(_, estimate)| total(estimate) <= least * (1.0 + NEAR_TIE))
        .min_by(|a, b| a.1.kept_bytes.total_cmp(&b.1.kept_bytes).then(total(a.1).total_cmp(&total(b.1))));
    let best_score = allowed().max_by(|a, b| a.1.score.total_cmp(&b.1.score).then(b.0.cmp(&a.0)));
    // Keeping nothing is always allowed.
    let (chosen, best_score) = (chosen.map_or(0, |(at, _)| at), best_score.map_or(0, |(at, _)| at));
    Ok(Advice { estimates, chosen, best_score })
}

struct Costs<'a> {
    cuts: &'a [Cut],
    source: &'a Store,
    cache: &'a Store,
    workload: &'a Workload,
    prices: Option<&'a Prices>,
}

impl Costs<'_> {
    fn estimate(&self, cut: Option<&Cut>, share: f64) -> Estimate {
        let samples = self.workload.samples;
        let (first, later) = Pass::first_and_later(self.cuts, samples, cut, share);
        let (without, _) = Pass::first_and_later(self.cuts, samples, None, 0.0);
        let kept_bytes = first.written_bytes;
        let (first_seconds, seconds) = (self.seconds(&first), self.seconds(&later));
        let later_passes = self.workload.passes() - 1.0;
        let total_seconds = first_seconds + later_passes * seconds;
        Estimate {
            cut: cut.map(|cut| cut.name.clone()),
            share,
            kept_bytes,
            first_epoch_seconds: first_seconds,
            epoch_seconds: seconds,
            total_seconds,
            samples_per_second: samples / seconds,
            cpu_seconds: later.cpu_seconds,
            read_bytes: later.source_bytes + later.cache_bytes,
            fill_seconds: first_seconds - self.seconds(&without),
            money: self.money(total_seconds, first.cpu_seconds + later_passes * later.cpu_seconds, kept_bytes),
            break_even_epoch: None,
            score: 0.0,
            never_kept: cut.is_some_and(|cut| cut.never_kept),
        }
    }

    /// The seconds of an epoch: the four overlap, so the slowest decides.
    fn seconds(&self, pass: &Pass) -> f64 {
        let workload = self.workload;
        [
            pass.cpu_seconds / workload.cores,
            pass.source_seconds(self.source),
            pass.cache_seconds(self.cache),
            workload.samples / workload.trainers_samples_per_second,
        ]
        .into_iter()
        .fold(0.0, f64::max)
    }

    fn money(&self, seconds: f64, cpu_seconds: f64, kept_bytes: f64) -> Option<f64> {
        let prices = self.prices?;
        let trainers = prices.trainer_per_second? * f64::from(self.workload.trainers) * seconds;
        let workers = prices.worker_per_second? * cpu_seconds / self.workload.cores_per_worker;
        // Passes of several jobs run one after the other in the worst case, which keeps the rows longest.
        let storage = prices.storage_per_gb_month? * kept_bytes / 1e9 * seconds / SECONDS_PER_MONTH;
        Some(trainers + workers + storage)
    }

    /// The first epoch at whose end all that was paid is no more than what keeping nothing would have cost.
    fn break_even(&self, kept: &Estimate, nothing: &Estimate) -> Option<u32> {
        // After `epochs` epochs, of this job alone.
        let paid = |estimate: &Estimate, epochs: f64| {
            let seconds = estimate.first_epoch_seconds + (epochs - 1.0) * estimate.epoch_seconds;
            let cpu = nothing.cpu_seconds + (epochs - 1.0) * estimate.cpu_seconds;
            self.money(seconds, cpu, estimate.kept_bytes).unwrap_or(seconds)
        };
        // Both sums grow by the same amount with each epoch.
        let extra = paid(kept, 1.0) - paid(nothing, 1.0);
        let gain = (paid(nothing, 2.0) - paid(nothing, 1.0)) - (paid(kept, 2.0) - paid(kept, 1.0));
        (gain > 0.0)
            .then(|| 1.0 + (extra / gain).max(0.0).ceil())
            .filter(|epoch| *epoch < 1e6)
            .map(|epoch| epoch as u32)
    }
}

/// PRESTO's score: each of time, storage and rate goes from 0 for the worst to 1 for the best, and counts by its
/// weight.
fn score(estimates: &mut [Estimate], weights: &Weights) {
    let normalised = |of: &dyn Fn(&Estimate) -> f64, estimates: &[Estimate]| -> Vec<f64> {
        let allowed = estimates.iter().filter(|estimate| !estimate.never_kept).map(of);
        let (least, most) = allowed.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let scaled = |value: f64| if most > least { ((value - least) / (most - least)).clamp(0.0, 1.0) } else { 1.0 };
        estimates.iter().map(of).map(scaled).collect()
    };
    let sum = (weights.time + weights.storage + weights.rate).max(f64::MIN_POSITIVE);
    let time = normalised(&|estimate| -estimate.fill_seconds, estimates);
    let storage = normalised(&|estimate| -estimate.kept_bytes, estimates);
    let rate = normalised(&|estimate| estimate.samples_per_second, estimates);
    for (at, estimate) in estimates.iter_mut().enumerate() {
        let score = weights.time * time[at] + weights.storage * storage[at] + weights.rate * rate[at];
        estimate.score = score / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(bytes_per_second: f64) -> Store {
        Store {
            bytes_per_second,
            written_bytes_per_second: bytes_per_second,
            seconds_per_request: 0.0,
            bytes_per_request: 1e6,
        }
    }

    const WORKLOAD: Workload = Workload {
        samples: 1000.0,
        epochs_to_come: 10,
        other_jobs: 0,
        trainers_samples_per_second: 1000.0,
        trainers: 1,
        cores: 1.0,
        cores_per_worker: 1.0,
    };

    fn cut(name: &str, compute: f64, bytes: f64, never_kept: bool) -> Cut {
        Cut { name: name.to_owned(), compute_seconds_per_sample: compute, bytes_per_sample: bytes, never_kept }
    }

    fn cuts() -> [Cut; 3] {
        [cut("source", 0.0, 1000.0, false), cut("decode", 0.08, 4000.0, false), cut("augment", 0.1, 4000.0, true)]
    }

    fn advice(limit_bytes: f64, workload: &Workload, prices: Option<&Prices>) -> Advice {
        advise(&measured(limit_bytes, *workload), prices, &Weights::default()).unwrap()
    }

    fn measured(limit_bytes: f64, workload: Workload) -> Measured {
        Measured { cuts: cuts().into(), source: store(1e6), cache: store(1e8), workload, limit_bytes }
    }

    #[test]
    fn computing_is_saved_but_never_by_keeping_random_rows() {
        let advice = advice(1e12, &WORKLOAD, None);
        assert_eq!(advice.choice().cut.as_deref(), Some("decode"));
        assert!(advice.estimates[3].total_seconds < advice.choice().total_seconds, "random rows would be faster");
        assert_eq!(advice.choice().epoch_seconds.round(), 20.0);
        assert_eq!(advice.choice().break_even_epoch, Some(1), "writing hides behind computing");
    }

    #[test]
    fn a_limit_keeps_a_share() {
        let half = advice(2e6, &WORKLOAD, None);
        assert_eq!((half.choice().share, half.choice().kept_bytes), (0.5, 2e6));
        assert_eq!(half.choice().epoch_seconds.round(), 60.0);
        assert_eq!(advice(0.0, &WORKLOAD, None).chosen, 0);
    }

    #[test]
    fn nothing_is_kept_where_trainers_are_slower_or_the_job_ends() {
        let slow = Workload { trainers_samples_per_second: 9.0, ..WORKLOAD };
        assert_eq!(advice(1e12, &slow, None).chosen, 0);
        let last = Workload { epochs_to_come: 1, ..WORKLOAD };
        assert_eq!(advice(1e12, &last, None).chosen, 0);
        let shared = Workload { other_jobs: 1, ..last };
        assert_eq!(advice(1e12, &shared, None).choice().cut.as_deref(), Some("decode"));
    }

    #[test]
    fn money_weighs_storage() {
        let prices = |storage: &str| format!("worker=1/h,trainer=1/h,storage={storage}/GB-month").parse().unwrap();
        assert_ne!(advice(1e12, &WORKLOAD, Some(&prices("0.02"))).chosen, 0);
        assert_eq!(advice(1e12, &WORKLOAD, Some(&prices("1e9"))).chosen, 0);
        let missing: Prices = "worker=1/h".parse().unwrap();
        let error = advise(&measured(0.0, WORKLOAD), Some(&missing), &Weights::default()).unwrap_err();
        assert!(error.to_string().contains("write trainer=8/h"), "{error}");
    }

    #[test]
    fn weights_move_the_score() {
        let score = |weights| advise(&measured(1e12, WORKLOAD), None, &weights).unwrap().best_score;
        assert_eq!(score(Weights { time: 0.0, storage: 1.0, rate: 0.0 }), 0);
        assert_eq!(score(Weights { time: 0.0, storage: 0.0, rate: 1.0 }), 2);
    }

    #[test]
    fn wrong_measurements_are_refused() {
        let refused = |cuts: &[Cut], limit_bytes: f64| {
            let measured = Measured { cuts: cuts.into(), ..measured(limit_bytes, WORKLOAD) };
            advise(&measured, None, &Weights::default()).unwrap_err().to_string()
        };
        assert!(refused(&[], 0.0).contains("there are no cuts"));
        assert!(refused(&cuts(), f64::NAN).contains("\"limit_bytes\" must be a finite number"));
        let [source, decode, _] = cuts();
        assert!(refused(&[decode, source], 0.0).contains("cut \"source\" takes less time"));
    }
}
