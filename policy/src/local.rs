//! How many threads a worker in a trainer's process may compute with: a state machine over stretches of training.
//!
//! The trainer comes first. What its steps need is measured in core seconds per second of a step, so that a trainer
//! that waits for samples does not look as if it needed little; the rest of the cores is offered to the worker. Then
//! the steps are watched: the time that the training loop spends outside of its loader. If they take more than 3 %
//! longer than before, threads are given back: first as many as a machine whose cores are shared fairly would need,
//! then twice as many, and so on. If steps are as before, one is tried again, then two more.
//!
//! What keeps the number still:
//!
//! - One change at a time, by the median of several stretches; the first after a change does not count.
//! - What was too much is remembered, until the trainer needs fewer cores than it did then. Each trial leaves less
//!   between the most that was fine and the least that was too much, and so they end.
//! - Between the room for one thread less and for one more is a band in which nothing changes, and it widens when the
//!   trainer has needed a thread back.
//! - Steps that are as long without the worker as they were with it are not its fault: it gets its threads back, and
//!   the next doubt needs twice as many stretches.

use std::collections::{BTreeMap, VecDeque};

/// Steps may take this much longer than without the worker.
const TOLERANCE: f64 = 0.03;
/// Stretches whose median decides, at least, and at most where the trainer changes by itself.
const STRETCHES: usize = 3;
const STRETCHES_MAX: usize = 24;
/// Stretches whose median says what the trainer needs.
const NEEDS: usize = 5;
/// A longer stretch counts for nothing: the trainer was away, or the clock jumped.
const STRETCH_SECONDS_MAX: f64 = 600.0;
/// Fewer steps than these say nothing.
const STEPS_MIN: u64 = 3;
/// The part of a stretch that steps take at least, for a trainer that does nothing but read.
const STEPPING_MIN: f64 = 0.1;
/// The part of a core that a trainer may lack to keep a thread beside it, unless that is less than what is tolerated,
/// and to get one.
const LACK_TO_KEEP: f64 = 0.25;
const LACK_TO_GET: f64 = 0.05;
/// How much more room a thread needs after one was given back for lack of it, each time and at most.
const RELUCTANCE: f64 = 0.25;
const RELUCTANCE_MAX: f64 = 1.0;
/// When the trainer needs so many cores less, what was too much is tried again.
const RELIEF: f64 = 0.75;

/// What is seen of a trainer in a stretch of training. The default is a stretch in which nothing was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerSeen {
    /// How long the stretch was.
    pub seconds: f64,
    /// The cores that trainer and worker may use together.
    pub cores: f64,
    /// Core seconds that the trainer used, with others of its kind on the same cores, and without the worker.
    pub core_seconds: f64,
    /// The steps that ended, by feed.
    pub steps: BTreeMap<String, StepsSeen>,
    /// Whether other workers compute, so that this one need not.
    pub has_others: bool,
}

/// The steps of a loop over a feed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepsSeen {
    /// Their number.
    pub count: u64,
    /// Seconds that they took together.
    pub seconds: f64,
    /// What the usual one took.
    pub median_seconds: f64,
}

/// Decides the number of threads. It has no clock: time is what is seen.
///
/// ```
/// use forebay_policy::{LocalPolicy, StepsSeen, TrainerSeen};
///
/// // A trainer of one core on eight.
/// let steps = StepsSeen { count: 20, seconds: 2.0, median_seconds: 0.1 };
/// let steps = [("train".to_owned(), steps)].into();
/// let seen = TrainerSeen { seconds: 2.0, cores: 8.0, core_seconds: 2.0, steps, has_others: true };
/// let mut policy = LocalPolicy::default();
/// let threads: Vec<u32> = (0..5).map(|_| policy.observe(&seen)).collect();
/// assert_eq!(threads, [0, 0, 0, 7, 7]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LocalPolicy {
    threads: u32,
    /// The cores that the trainer needed in the last stretches.
    needs: VecDeque<f64>,
    /// The usual steps of the stretches since the last change.
    recent: VecDeque<Steps>,
    /// Whether a stretch has passed since the last change.
    has_settled: bool,
    /// Steps beside the fewest threads.
    base: Steps,
    /// The most threads that were fine.
    fine: u32,
    too_many: Option<TooMany>,
    /// How much more room than a thread takes must be left to get one.
    reluctance: f64,
    /// How many threads more are tried next, and how many times as many are given back as equal shares would need.
    boldness: u32,
    doubt: Option<Doubt>,
    /// How often a doubt was wrong.
    wrong_doubts: u32,
}

#[derive(Clone, Copy, Debug)]
struct TooMany {
    /// The fewest threads that were too many.
    threads: u32,
    /// The cores that the trainer left then.
    room: f64,
}

/// Steps that were too long, perhaps not because of the worker.
#[derive(Clone, Debug)]
struct Doubt {
    threads: u32,
    steps: Steps,
    /// What was known before.
    too_many: Option<TooMany>,
}

/// Seconds of a usual step, by feed.
type Steps = BTreeMap<String, f64>;

impl LocalPolicy {
    /// Learns from a stretch of training, and returns how many threads there should be from now on.
    pub fn observe(&mut self, seen: &TrainerSeen) -> u32 {
        let least = u32::from(!seen.has_others);
        if self.threads < least {
            self.change(least);
        }
        if self.learn(seen) && self.recent.len() >= self.stretches() {
            let wanted = self.choose(seen.cores, least);
            if wanted != self.threads {
                self.change(wanted);
            }
        }
        self.threads
    }

    fn change(&mut self, threads: u32) {
        self.threads = threads;
        self.recent.clear();
        self.has_settled = false;
    }

    /// How many stretches decide.
    fn stretches(&self) -> usize {
        STRETCHES.saturating_mul(1 << self.wrong_doubts.min(8)).min(STRETCHES_MAX)
    }

    /// Takes note of a stretch. Returns whether it says anything.
    fn learn(&mut self, seen: &TrainerSeen) -> bool {
        let is_number = |number: f64| number.is_finite() && number >= 0.0;
        let counted = seen.steps.iter().filter(|(_, steps)| {
            steps.count >= STEPS_MIN && is_number(steps.seconds) && is_number(steps.median_seconds)
        });
        let steps: Steps = counted.clone().map(|(feed, steps)| (feed.clone(), steps.median_seconds)).collect();
        let is_stretch = seen.seconds > 0.0 && seen.seconds <= STRETCH_SECONDS_MAX;
        if !is_stretch || steps.is_empty() || !is_number(seen.core_seconds) || !is_number(seen.cores) {
            return false;
        }
        let stepping: f64 = counted.map(|(_, steps)| steps.seconds).sum();
        let stepping = stepping.clamp(STEPPING_MIN * seen.seconds, seen.seconds);
        keep(&mut self.needs, NEEDS, (seen.core_seconds / stepping).min(seen.cores));
        if !std::mem::replace(&mut self.has_settled, true) {
            return false;
        }
        keep(&mut self.recent, STRETCHES_MAX, steps);
        true
    }

    /// The wanted number.
    fn choose(&mut self, cores: f64, least: u32) -> u32 {
        let room = cores - median(self.needs.iter().copied()).unwrap_or(cores);
        let fits = |lack: f64| ((room + lack).floor() as u32).max(least);
        let (kept, got) = (fits(LACK_TO_KEEP.max(TOLERANCE * cores)), fits(LACK_TO_GET - self.reluctance));
        if self.too_many.is_some_and(|then| room >= then.room + RELIEF) {
            (self.too_many, self.doubt) = (None, None);
        }
        let steps = self.usual_steps();
        if self.threads <= least {
            return self.choose_from_least(steps, got);
        }
        // What appears beside the worker is compared with itself.
        steps.iter().for_each(|(feed, seconds)| _ = self.base.entry(feed.clone()).or_insert(*seconds));
        let growth = growth(&self.base, &steps);
        if growth > TOLERANCE {
            return self.fewer(growth, cores, room, least, steps);
        }
        if growth < -TOLERANCE {
            self.base.extend(steps);
        }
        if self.threads > self.fine {
            self.fine = self.threads;
            self.boldness = self.boldness.saturating_mul(2);
        }
        if self.threads > kept {
            self.reluctance = (self.reluctance + RELUCTANCE).min(RELUCTANCE_MAX);
            return kept;
        }
        self.more(got)
    }

    /// The wanted number beside the fewest threads, where the steps show what the trainer takes by itself.
    fn choose_from_least(&mut self, steps: Steps, fits: u32) -> u32 {
        self.base = steps;
        self.fine = self.threads;
        if let Some(doubt) = self.doubt.take()
            && growth(&self.base, &doubt.steps) <= TOLERANCE
        {
            self.too_many = doubt.too_many;
            self.wrong_doubts += 1;
            return doubt.threads.min(fits).max(self.threads);
        }
        self.more(fits)
    }

    /// More threads, up to what fits: all of it, or up to half of what is in doubt.
    fn more(&self, fits: u32) -> u32 {
        let most = match self.too_many {
            Some(too_many) => {
                let in_doubt = too_many.threads.saturating_sub(self.threads) / 2;
                fits.min(self.threads + self.boldness.min(in_doubt))
            }
            None => fits,
        };
        most.max(self.threads)
    }

    /// Fewer threads, because steps take longer by `growth`.
    fn fewer(&mut self, growth: f64, cores: f64, room: f64, least: u32, steps: Steps) -> u32 {
        let was_fine = self.fine >= self.threads;
        self.boldness = match was_fine || self.too_many.is_none() {
            true => 1,
            false => self.boldness.saturating_mul(2),
        };
        if was_fine {
            self.fine = least;
        }
        self.doubt.get_or_insert(Doubt { threads: self.threads, steps, too_many: self.too_many });
        let threads = self.too_many.map_or(self.threads, |known| known.threads.min(self.threads));
        self.too_many = Some(TooMany { threads, room });
        // Where all threads get equal shares of the cores, as many are too many.
        let surplus = (cores * (growth - TOLERANCE)).ceil() as u32;
        let fewer = self.threads.saturating_sub(surplus.saturating_mul(self.boldness));
        fewer.clamp(self.fine.max(least), self.threads - 1)
    }

    /// The median of the recent stretches, feed by feed.
    fn usual_steps(&self) -> Steps {
        let feeds: BTreeMap<&String, ()> = self.recent.iter().flatten().map(|(feed, _)| (feed, ())).collect();
        let newest = || self.recent.iter().rev().take(self.stretches());
        let usual = |feed: &String| median(newest().filter_map(|steps| steps.get(feed).copied()));
        feeds.into_keys().filter_map(|feed| Some((feed.clone(), usual(feed)?))).collect()
    }
}

/// By how much steps take longer than `base`, over the feeds that both have.
fn growth(base: &Steps, steps: &Steps) -> f64 {
    let both = steps.iter().filter_map(|(feed, seconds)| Some((*base.get(feed)?, *seconds)));
    let (before, now) = both.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    if before > 0.0 { now / before - 1.0 } else { 0.0 }
}

fn keep<T>(all: &mut VecDeque<T>, most: usize, newest: T) {
    all.push_back(newest);
    if all.len() > most {
        all.pop_front();
    }
}

fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stretch of two seconds of a trainer that needs `need` cores of eight in steps of 100 ms, times `slower`.
    fn seen(need: f64, slower: f64) -> TrainerSeen {
        let seconds = 0.1 * slower;
        let count = (2.0 / seconds) as u64;
        let steps = StepsSeen { count, seconds: count as f64 * seconds, median_seconds: seconds };
        let steps = [("train".to_owned(), steps)].into();
        TrainerSeen { seconds: 2.0, cores: 8.0, core_seconds: 2.0 * need, steps, has_others: true }
    }

    /// A policy that has started beside a trainer that needs `need` cores.
    fn started(need: f64) -> LocalPolicy {
        let mut policy = LocalPolicy::default();
        let threads = run(&mut policy, &seen(need, 1.0), 4);
        assert_eq!(threads, (8.0 - need).floor() as u32);
        policy
    }

    fn run(policy: &mut LocalPolicy, seen: &TrainerSeen, stretches: u32) -> u32 {
        (0..stretches).map(|_| policy.observe(seen)).last().unwrap_or_default()
    }

    #[test]
    fn it_starts_with_what_fits() {
        for (need, threads) in [(0.0, 8), (1.0, 7), (1.04, 7), (1.2, 6), (7.5, 0), (8.0, 0), (20.0, 0)] {
            assert_eq!(run(&mut LocalPolicy::default(), &seen(need, 1.0), 10), threads, "{need}");
        }
    }

    #[test]
    fn a_trainer_that_waits_does_not_look_as_if_it_needed_little() {
        let waits = |seen: TrainerSeen| TrainerSeen { seconds: 8.0, ..seen };
        assert_eq!(run(&mut LocalPolicy::default(), &waits(seen(4.0, 1.0)), 10), 4);
    }

    #[test]
    fn where_no_other_computes_it_computes_at_once_and_always() {
        let mut policy = LocalPolicy::default();
        assert_eq!(policy.observe(&TrainerSeen::default()), 1, "nothing is known yet");
        let alone = TrainerSeen { has_others: false, ..seen(8.0, 1.0) };
        assert_eq!(run(&mut policy, &alone, 20), 1);
        assert_eq!(run(&mut policy, &seen(8.0, 1.0), 20), 0);
    }

    #[test]
    fn a_need_between_two_numbers_does_not_make_it_change() {
        let mut policy = started(1.0);
        for stretch in 0..1_000_u32 {
            let need = if stretch.is_multiple_of(2) { 0.98 } else { 1.2 };
            assert_eq!(policy.observe(&seen(need, 1.0)), 7);
        }
        assert_eq!(run(&mut policy, &seen(2.5, 1.0), 20), 5, "a need that has grown");
        assert_eq!(run(&mut policy, &seen(1.0, 1.0), 20), 6, "which may grow again");
        assert_eq!(run(&mut policy, &seen(0.7, 1.0), 20), 7);
    }

    #[test]
    fn stretches_that_cannot_be_are_left_out() {
        let mut policy = started(2.0);
        let usual = seen(2.0, 1.0);
        for wrong in [
            TrainerSeen::default(),
            TrainerSeen { seconds: -3.0, ..seen(2.0, 9.0) },
            TrainerSeen { seconds: f64::NAN, ..seen(2.0, 9.0) },
            TrainerSeen { seconds: 3_600.0, ..seen(2.0, 9.0) },
            TrainerSeen { core_seconds: f64::NAN, ..seen(2.0, 9.0) },
            TrainerSeen { core_seconds: -1.0, ..seen(2.0, 9.0) },
            TrainerSeen {
                steps: [("train".to_owned(), StepsSeen { count: 1, ..StepsSeen::default() })].into(),
                ..usual
            },
        ] {
            assert_eq!(run(&mut policy, &TrainerSeen { has_others: true, ..wrong }, 50), 6);
        }
    }

    #[test]
    fn steps_that_are_longer_by_themselves_cost_the_worker_nothing_for_long() {
        let mut policy = started(1.9);
        let longer = seen(1.9, 1.5);
        let seen_threads: Vec<u32> = (0..60).map(|_| policy.observe(&longer)).collect();
        assert!(seen_threads.contains(&0), "without it, they are as long: {seen_threads:?}");
        assert_eq!(seen_threads.last(), Some(&6));
        assert_eq!(run(&mut policy, &longer, 1_000), 6);
    }

    #[test]
    fn another_loop_beside_the_first_changes_nothing() {
        let mut policy = started(2.0);
        let both = |train: f64| {
            let mut both = seen(2.0, train);
            both.steps.insert("eval".to_owned(), StepsSeen { count: 50, seconds: 0.5, median_seconds: 0.01 });
            both
        };
        assert_eq!(run(&mut policy, &both(1.0), 20), 6);
        let mut eval = TrainerSeen { core_seconds: 1.0, ..both(1.0) };
        eval.steps.remove("train");
        assert_eq!(run(&mut policy, &eval, 20), 6, "only the other loop");
        assert_eq!(run(&mut policy, &both(1.0), 20), 6);
    }
}
