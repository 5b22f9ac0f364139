//! How fast trainers would take samples, and how fast workers compute them, from successive observations.
//!
//! Demand is what a feed's trainers would take if they never waited. The step of a trainer takes
//! (reading − waited) / taken seconds, which stays measurable when it waits nearly all of the time, as at a cold start
//! with one worker where 500 are needed. The supply is the samples of finished windows by the seconds that slots spent
//! on them, so that idle slots do not look slow.

use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Evidence, Rate};
use crate::{FeedSeen, Observation, WorkerSeen};

/// A longer time between two observations counts for nothing: the observer was away, or the clock jumped.
const GAP_SECONDS: f64 = 600.0;
/// The part of an interval that trainers compute at least, for trainers that do nothing but read: demand is measured up
/// to 10,000 times what they get now.
const OWN_TIME_MIN: f64 = 1e-4;
/// How many feeds are remembered after they ended, to start from their rates when they return.
const REMEMBERED_FEEDS_MAX: usize = 64;
/// What is known of a worker's speed weighs as much as the assumption that it is a usual one with so many pieces.
const USUAL_PIECES: f64 = 4.0;

/// What happened between two observations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    pub(crate) seconds: f64,
    /// Of all readers.
    pub(crate) waited_seconds: f64,
    /// Of all readers.
    pub(crate) reading_seconds: f64,
}

/// The rates of feeds and workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    last: Option<Observation>,
    /// The sum of the intervals that count: a clock that never jumps.
    now: f64,
    feeds: BTreeMap<String, Feed>,
    /// By worker and feed.
    workers: BTreeMap<String, BTreeMap<String, Evidence>>,
}

/// What is known of a feed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed {
    pub(crate) readers: u32,
    pub(crate) samples_per_window: f64,
    /// When its readers last took samples or waited for them, by the clock that never jumps.
    pub(crate) active_at: f64,
    /// Samples that one reader takes per second of its own.
    taking: Evidence,
    /// Samples that one slot computes per second, over all workers.
    computing: Evidence,
}

impl Feed {
    /// What all readers would take if they never waited.
    pub(crate) fn demand(&self) -> Option<Rate> {
        let rate = self.taking.rate()?;
        Some(Rate { per_second: rate.per_second * f64::from(self.readers), ..rate })
    }

    /// What one slot of a usual worker computes.
    pub(crate) fn supply(&self) -> Option<Rate> {
        self.computing.rate()
    }
}

impl Rates {
    /// Learns from an observation. Returns nothing for the first one, and where the clock jumped.
    pub(crate) fn observe(&mut self, seen: &Observation) -> Option<Interval> {
        let last = self.last.replace(seen.clone()).unwrap_or_default();
        let seconds = seen.seconds - last.seconds;
        let counts = seconds > 0.0 && seconds <= GAP_SECONDS && !(last.feeds.is_empty() && last.workers.is_empty());
        let mut interval = Interval { seconds: if counts { seconds } else { 0.0 }, ..Interval::default() };
        self.now += interval.seconds;
        for feed in &seen.feeds {
            let before = last.feeds.iter().find(|before| before.feed == feed.feed);
            self.observe_feed(feed, before.filter(|_| counts), &mut interval);
        }
        let mut computed = BTreeMap::new();
        let before: BTreeMap<&str, &WorkerSeen> =
            last.workers.iter().filter(|_| counts).map(|worker| (worker.worker.as_str(), worker)).collect();
        for worker in &seen.workers {
            if let Some(before) = before.get(worker.worker.as_str()) {
                self.observe_worker(worker, before, &mut computed);
            }
        }
        for (feed, (samples, seconds)) in computed {
            self.feeds.entry(feed.to_owned()).or_default().computing.add(samples, seconds, 0.0);
        }
        let names: BTreeSet<&str> = seen.workers.iter().map(|worker| worker.worker.as_str()).collect();
        self.workers.retain(|name, _| names.contains(name.as_str()));
        self.forget_feeds(seen);
        counts.then_some(interval)
    }

    fn observe_feed(&mut self, seen: &FeedSeen, before: Option<&FeedSeen>, interval: &mut Interval) {
        let now = self.now;
        let is_new = !self.feeds.contains_key(&seen.feed);
        let feed = self.feeds.entry(seen.feed.clone()).or_default();
        if seen.readers > 0 {
            feed.readers = seen.readers;
        }
        feed.samples_per_window = seen.samples_per_window.clamp(1.0, 1e12);
        if is_new && seen.readers > 0 {
            feed.active_at = now;
        }
        let Some((taken, waited, reading)) = before.and_then(|before| between(seen, before)) else {
            feed.taking.interrupt();
            return;
        };
        if taken > 0.0 || waited > 0.0 {
            feed.active_at = now;
            interval.waited_seconds += waited;
            interval.reading_seconds += reading;
        }
        feed.taking.add(taken, reading - waited, OWN_TIME_MIN * reading);
    }

    fn observe_worker<'a>(
        &mut self,
        seen: &'a WorkerSeen,
        before: &WorkerSeen,
        computed: &mut BTreeMap<&'a str, (f64, f64)>,
    ) {
        for (feed, samples) in &seen.computed_samples {
            let of = |worker: &WorkerSeen| worker.busy_seconds.get(feed).copied().unwrap_or_default();
            let samples = samples.checked_sub(before.computed_samples.get(feed).copied().unwrap_or_default());
            let seconds = of(seen) - of(before);
            let Some(samples) = samples.map(|samples| samples as f64).filter(|_| is_duration(seconds)) else {
                continue;
            };
            // Windows are read and filtered before their samples are computed.
            if samples > 0.0 || seconds > 0.0 {
                let worker = self.workers.entry(seen.worker.clone()).or_default();
                worker.entry(feed.clone()).or_default().add(samples, seconds, 0.0);
                let all = computed.entry(feed.as_str()).or_default();
                *all = (all.0 + samples, all.1 + seconds);
            }
        }
    }

    fn forget_feeds(&mut self, seen: &Observation) {
        while self.feeds.len() > REMEMBERED_FEEDS_MAX.max(seen.feeds.len()) {
            let gone = self.feeds.iter().filter(|(name, _)| seen.feeds.iter().all(|feed| feed.feed != **name));
            let oldest = gone.min_by(|a, b| a.1.active_at.total_cmp(&b.1.active_at)).map(|(name, _)| name.clone());
            let Some(oldest) = oldest else { return };
            self.feeds.remove(&oldest);
            self.workers.values_mut().for_each(|feeds| drop(feeds.remove(&oldest)));
        }
    }

    /// The sum of the intervals that count.
    pub(crate) fn now(&self) -> f64 {
        self.now
    }

    /// Feeds whose readers have taken samples, or waited for them, within the last `idle_seconds`.
    pub(crate) fn active(&self, idle_seconds: f64) -> impl Iterator<Item = &Feed> {
        let since = self.now - idle_seconds;
        self.feeds.values().filter(move |feed| feed.readers > 0 && feed.active_at >= since)
    }

    /// What a worker computes relative to a usual one, slot for slot: 0.1 is ten times slower. A worker of which little
    /// is known counts as nearly usual.
    pub(crate) fn speed(&self, worker: &str) -> f64 {
        let known = self.workers.get(worker).into_iter().flatten().filter_map(|(feed, own)| {
            let (own, usual) = (own.rate()?, self.feeds.get(feed)?.supply()?);
            Some((own.pieces, own.per_second / usual.per_second))
        });
        let (pieces, speeds) = known.fold((USUAL_PIECES, USUAL_PIECES), |(pieces, speeds), (more, speed)| {
            (pieces + more, speeds + more * speed)
        });
        speeds / pieces
    }
}

/// What a feed's readers took, waited and read between two observations, unless a counter began again.
fn between(seen: &FeedSeen, before: &FeedSeen) -> Option<(f64, f64, f64)> {
    let taken = seen.samples_taken.checked_sub(before.samples_taken)? as f64;
    let waited = seen.waited_seconds - before.waited_seconds;
    let reading = seen.reading_seconds - before.reading_seconds;
    (is_duration(waited) && is_duration(reading)).then_some((taken, waited, reading))
}

/// Whether a counter of seconds grew by a number that can be. It did not if its process began again.
fn is_duration(seconds: f64) -> bool {
    seconds.is_finite() && seconds >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(seconds: f64, taken: u64, waited: f64, reading: f64) -> Observation {
        let feed = FeedSeen {
            feed: "a".to_owned(),
            readers: 2,
            samples_taken: taken,
            waited_seconds: waited,
            reading_seconds: reading,
            samples_per_window: 10.0,
        };
        let worker = |name: &str, speed: u64| WorkerSeen {
            worker: name.to_owned(),
            slots: 1,
            computed_samples: BTreeMap::from([("a".to_owned(), taken * speed)]),
            busy_seconds: BTreeMap::from([("a".to_owned(), seconds)]),
            ..WorkerSeen::default()
        };
        Observation { seconds, feeds: vec![feed], workers: vec![worker("fast", 10), worker("slow", 1)], files_left: 0 }
    }

    #[test]
    fn demand_is_what_trainers_take_in_their_own_time() {
        let mut rates = Rates::default();
        for i in 0..10_u32 {
            // Two readers that wait for 90 % of the time: 100 samples in 10 seconds, of which 1 is their own.
            let t = f64::from(i) * 10.0;
            rates.observe(&seen(t, u64::from(i) * 100, t * 1.8, t * 2.0));
        }
        let feed = rates.active(60.0).next().unwrap();
        assert!((feed.demand().unwrap().per_second - 100.0).abs() < 1e-6, "{:?}", feed.demand());
        assert!(
            rates.speed("fast") > 1.5 && rates.speed("slow") < 0.5,
            "{} {}",
            rates.speed("fast"),
            rates.speed("slow")
        );
        assert_eq!(rates.speed("unknown"), 1.0);
    }

    #[test]
    fn jumps_and_restarts_count_for_nothing() {
        let mut rates = Rates::default();
        assert_eq!(rates.observe(&seen(0.0, 0, 0.0, 0.0)), None);
        assert!(rates.observe(&seen(10.0, 100, 10.0, 20.0)).is_some());
        let demand = |rates: &Rates| rates.active(60.0).next().unwrap().demand().unwrap().per_second;
        let before = demand(&rates);
        assert_eq!(rates.observe(&seen(5.0, 200, 20.0, 40.0)), None, "backwards");
        assert_eq!(rates.observe(&seen(5.0 + 7200.0, 300, 30.0, 60.0)), None, "two hours forwards");
        assert_eq!(rates.observe(&seen(f64::NAN, 300, 30.0, 60.0)), None);
        assert_eq!(rates.observe(&seen(7300.0, 400, 40.0, 80.0)), None, "after no number");
        assert!(rates.observe(&seen(7310.0, 3, 1.0, 2.0)).is_some(), "a restart");
        assert_eq!(demand(&rates), before);
        assert_eq!(rates.now(), 20.0);
    }
}
