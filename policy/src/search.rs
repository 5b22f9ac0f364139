//! The search for the best configuration: every order, cut, place to finish and number of local cores, with shares on a
//! grid that is then refined, and the number of workers by halving.
//!
//! Configurations of one *kind* have the same order, the same cut, and local cores or none. Within a kind the best
//! wins. Between kinds, those within 3 % of the best count as equal, and the simplest wins: estimates are no better.

use std::cmp::Ordering;

use crate::Place;
use crate::cache::NEAR_TIE;
use crate::choice::{Candidate, Kept, Space};
use crate::costs::share_within;
use crate::placement::Work;

/// Shares that are tried of what fits the limit.
const SHARES: u32 = 16;
/// Between two shares, how many more are tried around the best, and how often.
const FINER: (u32, u32) = (8, 3);

/// The best candidate of each kind, in the order in which they are simple: the exact order first, and nothing kept.
pub(crate) struct Kinds {
    /// With whether it does what the goal asks for.
    best: Vec<(Candidate, bool)>,
    goal: Goal,
    near_tie: f64,
}

/// What decides between two candidates.
#[derive(Clone, Copy)]
enum Goal {
    /// The least money.
    Money,
    /// The fewest workers, of those that keep trainers from waiting within these seconds.
    Resources { seconds_at_most: f64 },
    /// The least time, where trainers wait in every configuration.
    Time,
}

impl Kinds {
    pub(crate) fn search(space: &Space) -> Self {
        let near_tie = space.job.sureness.map_or(NEAR_TIE, |sureness| sureness.error.min(NEAR_TIE));
        let kinds: Vec<Vec<Candidate>> = kinds(space);
        let holding = |candidate: &Candidate| candidate.waited(space.job) <= space.job.wait_at_most * (1.0 + 1e-9);
        let all = || kinds.iter().flatten();
        let least = all().filter(|one| holding(one)).map(|one| one.seconds).fold(f64::INFINITY, f64::min);
        let goal = match space.prices {
            Some(_) => Goal::Money,
            // Filling a cache may take a while, but not for the sake of a worker.
            None if least.is_finite() => Goal::Resources { seconds_at_most: least * (1.0 + NEAR_TIE) },
            None => Goal::Time,
        };
        let is_allowed = |candidate: &Candidate| match goal {
            Goal::Resources { seconds_at_most } => candidate.seconds <= seconds_at_most && holding(candidate),
            Goal::Money | Goal::Time => true,
        };
        let best = |candidates: Vec<Candidate>| {
            let is_able = candidates.iter().any(is_allowed);
            let goal = if is_able { goal } else { Goal::Time };
            let is_open = |candidate: &Candidate| !is_able || is_allowed(candidate);
            let mut best = candidates.into_iter().filter(is_open).min_by(|a, b| goal.compare(a, b))?;
            let mut step = most_share(space, &best.kept) / f64::from(SHARES);
            for _ in 0..FINER.1 {
                step /= f64::from(FINER.0);
                let near = finer(space, &best, step).into_iter().filter(is_open).chain([best]);
                best = near.min_by(|a, b| goal.compare(a, b)).unwrap_or(best);
            }
            Some((best, is_able))
        };
        Self { best: kinds.into_iter().filter_map(best).collect(), goal, near_tie }
    }

    /// The chosen one, and the best of another kind: of those that do what the goal asks for, if there are any.
    pub(crate) fn chosen(&self) -> Option<(Candidate, Option<Candidate>)> {
        let chosen = self.choose(self.goal, |at| self.best[at].1)?;
        let other = self.choose(self.goal, |at| at != chosen && self.best[at].1);
        let other = other.or_else(|| self.choose(Goal::Time, |at| at != chosen));
        Some((self.best[chosen].0, other.map(|at| self.best[at].0)))
    }

    fn choose(&self, goal: Goal, is_open: impl Fn(usize) -> bool) -> Option<usize> {
        let open = || (0..self.best.len()).filter(|at| is_open(*at));
        let value = |at: usize| goal.value(&self.best[at].0);
        let least = open().map(value).fold(f64::INFINITY, f64::min);
        open().filter(|at| value(*at) <= least * (1.0 + self.near_tie)).min_by(|a, b| {
            let (a, b) = (&self.best[*a].0, &self.best[*b].0);
            simpler(a, b).then_with(|| goal.compare(a, b))
        })
    }
}

impl Goal {
    fn value(&self, candidate: &Candidate) -> f64 {
        match self {
            Self::Money => candidate.money.unwrap_or(f64::INFINITY),
            // Workers in the mean over all passes: a cache needs them for the first only.
            Self::Resources { .. } => candidate.worker_seconds / candidate.seconds,
            Self::Time => candidate.seconds,
        }
    }

    fn compare(&self, a: &Candidate, b: &Candidate) -> Ordering {
        let (left, right) = (self.value(a), self.value(b));
        // Sums in another order differ by less.
        let differ = (left - right).abs() > 1e-9 * left.abs().max(right.abs());
        let by_value = if differ { left.total_cmp(&right) } else { Ordering::Equal };
        by_value
            .then_with(|| a.kept_bytes.total_cmp(&b.kept_bytes))
            .then(a.local_cores.cmp(&b.local_cores))
            .then(a.later.workers.cmp(&b.later.workers))
            .then_with(|| a.seconds.total_cmp(&b.seconds))
            .then(a.kept.finish_at.cmp(&b.kept.finish_at))
    }
}

/// The least kept comes first, then the exact order, then no local cores.
fn simpler(a: &Candidate, b: &Candidate) -> Ordering {
    a.kept_bytes
        .total_cmp(&b.kept_bytes)
        .then(a.kept.order.cmp(&b.kept.order))
        .then((a.local_cores > 0).cmp(&(b.local_cores > 0)))
}

/// All candidates, by kind.
fn kinds(space: &Space) -> Vec<Vec<Candidate>> {
    let job = space.job;
    let places: &[Place] = if job.finish.is_some() { &[Place::Worker, Place::Trainer] } else { &[Place::Worker] };
    let mut kinds = Vec::new();
    for (order, cuts) in job.orders.iter().map(|order| &order.cuts).enumerate() {
        // What is kept helps later passes only.
        let cuts = cuts.iter().enumerate().filter(|(_, cut)| !cut.never_kept && space.passes > 1.0);
        for cut in std::iter::once(None).chain(cuts.map(|(at, _)| Some(at))) {
            let kept = places.iter().map(|place| Kept { order, cut, share: 0.0, finish_at: *place });
            let kept: Vec<Kept> = kept.flat_map(|kept| shares(space, kept)).collect();
            let with = |local_cores: u32| {
                kept.iter().filter_map(|kept| space.best_workers(*kept, local_cores)).collect::<Vec<_>>()
            };
            kinds.push(with(0));
            kinds.push((1..=local_cores_most(space, order)).flat_map(with).collect());
        }
    }
    kinds
}

/// The most local cores that are tried: twice as many as compute all that trainers take are never all busy.
fn local_cores_most(space: &Space, order: usize) -> u32 {
    let job = space.job;
    let whole = job.orders[order].cuts.last().map_or(0.0, |cut| cut.compute_seconds_per_sample);
    let demand = job.workload.trainers_samples_per_second / f64::from(job.workload.trainers);
    job.local_cores_most().min(((2.0 * demand * whole).ceil() as u32).saturating_add(1))
}

fn most_share(space: &Space, kept: &Kept) -> f64 {
    let cut = kept.cut.map(|at| &space.job.orders[kept.order].cuts[at]);
    cut.map_or(0.0, |cut| share_within(space.job.limit_bytes, space.job.workload.samples, cut))
}

fn shares(space: &Space, kept: Kept) -> impl Iterator<Item = Kept> {
    let most = most_share(space, &kept);
    let of = move |part: u32| Kept { share: most * f64::from(part) / f64::from(SHARES), ..kept };
    let parts = match kept.cut {
        Some(_) => 1..=if most > 0.0 { SHARES } else { 0 },
        None => 0..=0,
    };
    parts.map(of)
}

/// Candidates with shares around that of one.
fn finer(space: &Space, around: &Candidate, step: f64) -> Vec<Candidate> {
    let most = most_share(space, &around.kept);
    let steps = (1..FINER.0).flat_map(|by| [f64::from(by), -f64::from(by)]);
    let shares = steps.map(|by| around.kept.share + by * step).filter(|share| *share > 0.0 && *share <= most);
    shares.filter_map(|share| space.best_workers(Kept { share, ..around.kept }, around.local_cores)).collect()
}

impl Space<'_> {
    /// The candidate with the best numbers of workers, unless nothing could compute.
    pub(crate) fn best_workers(&self, kept: Kept, local_cores: u32) -> Option<Candidate> {
        let job = self.job;
        if local_cores == 0 && job.workers.most == 0 {
            return None;
        }
        let workers = |work: &Work| match &self.prices {
            Some(paid) => work.cheapest(job, local_cores, self.standing(paid, &kept), paid.worker),
            None => {
                let most = work.fewest(job, local_cores, f64::INFINITY).rate;
                work.fewest(job, local_cores, most * (1.0 - job.wait_at_most))
            }
        };
        let (first, later) = self.works(&kept);
        Some(self.candidate(kept, local_cores, (workers(&first), workers(&later))))
    }
}
