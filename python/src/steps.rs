//! How long the steps of loops take: the time that a loop spends outside of its stream.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::policy::StepsSeen;
use parking_lot::Mutex;

/// The steps that say something together.
const STEPS_MIN: usize = 5;
/// The most steps of a stretch that are looked at.
const STEPS_MAX: usize = 4096;

/// Measures the steps of a loop.
pub(crate) struct Steps {
    times: Arc<StepTimes>,
    feed: String,
    /// When the loop got its last batch.
    since: Mutex<Option<Instant>>,
}

impl Steps {
    pub(crate) fn new(times: &Arc<StepTimes>, feed: &str) -> Self {
        Self { times: Arc::clone(times), feed: feed.to_owned(), since: Mutex::default() }
    }

    /// The loop asks for a batch.
    pub(crate) fn end(&self) {
        if let Some(since) = self.since.lock().take() {
            self.times.add(&self.feed, since.elapsed());
        }
    }

    /// The loop gets a batch.
    pub(crate) fn begin(&self) {
        *self.since.lock() = Some(Instant::now());
    }
}

/// The steps of loops, by feed, until they are taken.
#[derive(Default)]
pub(crate) struct StepTimes(Mutex<BTreeMap<String, Vec<Duration>>>);

impl StepTimes {
    /// Writes down a step of a loop over a feed.
    fn add(&self, feed: &str, step: Duration) {
        let mut feeds = self.0.lock();
        let steps = match feeds.get_mut(feed) {
            Some(steps) => steps,
            None => feeds.entry(feed.to_owned()).or_default(),
        };
        if steps.len() < STEPS_MAX {
            steps.push(step);
        }
    }

    /// The steps since they were last taken, if they are enough to say something.
    pub(crate) fn take(&self) -> Option<BTreeMap<String, StepsSeen>> {
        let mut feeds = self.0.lock();
        if feeds.values().all(|steps| steps.len() < STEPS_MIN) {
            return None;
        }
        let seen = std::mem::take(&mut *feeds).into_iter().map(|(feed, mut steps)| {
            steps.sort_unstable();
            let (count, sum) = (steps.len() as u64, steps.iter().sum::<Duration>());
            let median_seconds = steps.get(steps.len() / 2).map_or(0.0, Duration::as_secs_f64);
            (feed, StepsSeen { count, seconds: sum.as_secs_f64(), median_seconds })
        });
        Some(seen.collect())
    }
}
