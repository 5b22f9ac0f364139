//! Threads beside simulated trainers, against the best number found by trying.

use forebay_policy::{LocalPolicy, StepsSeen, TrainerSeen};

use crate::random::Random;

/// What is tolerated of longer steps.
const TOLERANCE: f64 = 0.03;

/// A trainer on some cores, with what its machine does beside it.
#[derive(Clone, Copy, Debug)]
struct Trainer {
    cores: f64,
    /// Cores that its steps need.
    need: f64,
    /// Cores, or what is worth as much of memory's bandwidth, that is used unseen.
    hidden: f64,
    /// What a thread of the worker takes from a trainer that lacks it, relative to a thread of the trainer's.
    weight: f64,
    /// Coefficient of variation of a step.
    noise: f64,
}

impl Trainer {
    /// How many times as long a step takes beside these threads.
    fn slower(&self, threads: u32) -> f64 {
        let lacking = self.need + self.hidden + f64::from(threads) - self.cores;
        1.0 + (lacking / self.cores).max(0.0) * self.weight
    }

    /// The most threads that cost at most what is tolerated, of those that fit.
    fn best(&self) -> u32 {
        let fits = (self.cores - self.need + 0.05).floor() as u32;
        let base = self.slower(0);
        (0..=fits).rev().find(|threads| self.slower(*threads) / base - 1.0 <= TOLERANCE).unwrap_or(0)
    }

    fn stretch(&self, threads: u32, random: &mut Random) -> TrainerSeen {
        let mut steps: Vec<f64> = (0..25).map(|_| 0.08 * self.slower(threads) * random.noise(self.noise)).collect();
        steps.sort_by(f64::total_cmp);
        let seconds = steps.iter().sum::<f64>();
        let steps = StepsSeen { count: 25, seconds, median_seconds: steps[12] };
        TrainerSeen {
            seconds: seconds * 1.02,
            cores: self.cores,
            core_seconds: seconds * self.need * random.between(0.99, 1.01),
            steps: [("train".to_owned(), steps)].into(),
            has_others: true,
        }
    }
}

/// The numbers that a policy decided, one after another.
fn decisions(policy: &mut LocalPolicy, trainer: &Trainer, stretches: u32, random: &mut Random) -> Vec<u32> {
    let mut decided = Vec::new();
    let mut threads = policy.observe(&TrainerSeen { has_others: true, ..TrainerSeen::default() });
    for _ in 0..stretches {
        let now = policy.observe(&trainer.stretch(threads, random));
        if std::mem::replace(&mut threads, now) != now {
            decided.push(now);
        }
    }
    decided
}

#[test]
fn four_decisions_come_within_a_core_of_the_best() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let cores = random.between(2.0, 33.0).floor();
        let need = random.between(0.2, 0.9 * cores);
        let hidden = if random.unit() < 0.5 { 0.0 } else { random.between(0.0, cores - need) };
        let trainer = Trainer { cores, need, hidden, weight: 1.0, noise: random.between(0.0, 0.03) };
        let mut policy = LocalPolicy::default();
        let all = decisions(&mut policy, &trainer, 400, &mut random);
        let (best, after_four) = (trainer.best(), all.get(..4).unwrap_or(&all).last().copied().unwrap_or(0));
        assert!(after_four.abs_diff(best) <= 1, "seed {seed}: {best} are best, {all:?}, {trainer:?}");
        assert!(all.len() <= 8, "seed {seed}: {all:?}, {trainer:?}");
        assert!(all.last().copied().unwrap_or(0).abs_diff(best) <= 1, "seed {seed}: {best}, {all:?}, {trainer:?}");
    }
}

#[test]
fn a_trainer_that_yields_little_is_found_as_well() {
    // Threads of low priority take a part of what a trainer lacks.
    for seed in 0..200 {
        let mut random = Random::new(1_000 + seed);
        let cores = random.between(2.0, 17.0).floor();
        let need = random.between(0.2, 0.6 * cores);
        let hidden = random.between(0.0, cores - need);
        let (weight, noise) = (random.between(0.3, 3.0), random.between(0.0, 0.02));
        let trainer = Trainer { cores, need, hidden, weight, noise };
        let mut policy = LocalPolicy::default();
        let all = decisions(&mut policy, &trainer, 1_000, &mut random);
        let last = all.last().copied().unwrap_or(0);
        let growth = trainer.slower(last) / trainer.slower(0) - 1.0;
        assert!(growth <= TOLERANCE + 0.01, "seed {seed}: {growth}, {all:?}, {trainer:?}");
        assert!(last + 2 >= trainer.best(), "seed {seed}: {} are best, {all:?}, {trainer:?}", trainer.best());
        assert!(all.len() <= 10, "seed {seed}: {all:?}, {trainer:?}");
    }
}

#[test]
fn a_trainer_that_stops_for_an_hour_finds_its_threads_again() {
    let trainer = Trainer { cores: 8.0, need: 3.0, hidden: 1.0, weight: 1.0, noise: 0.01 };
    let mut random = Random::new(7);
    let mut policy = LocalPolicy::default();
    let before = decisions(&mut policy, &trainer, 200, &mut random);
    let mut hour = trainer.stretch(*before.last().expect("a decision"), &mut random);
    hour.seconds = 3_600.0;
    policy.observe(&hour);
    // Nothing is seen while it does something else.
    for _ in 0..1_800 {
        let idle = TrainerSeen { seconds: 2.0, cores: 8.0, core_seconds: 8.0, has_others: true, ..hour.clone() };
        policy.observe(&TrainerSeen { steps: Default::default(), ..idle });
    }
    let after = decisions(&mut policy, &trainer, 200, &mut random);
    assert!(after.is_empty(), "{before:?}, then {after:?}");
}

#[test]
fn a_trainer_that_changes_its_need_gets_another_number() {
    let mut random = Random::new(8);
    let mut policy = LocalPolicy::default();
    let trainer = Trainer { cores: 16.0, need: 4.0, hidden: 2.0, weight: 1.0, noise: 0.01 };
    for (need, most) in [(4.0, 6), (10.0, 6), (4.0, 6), (1.0, 6)] {
        let trainer = Trainer { need, ..trainer };
        let all = decisions(&mut policy, &trainer, 200, &mut random);
        let last = *all.last().expect("a decision");
        assert!(last.abs_diff(trainer.best()) <= 1, "{}: {all:?}", trainer.best());
        assert!(all.len() <= most, "{all:?}");
    }
}
