//! What is seen of feeds and workers at one moment.
//!
//! All counters are sums since their process began, so that an observation that gets lost loses nothing. A counter that
//! shrinks belongs to a process that was restarted: its interval counts for nothing, and the next one is measured from
//! there.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What is seen at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// The moment, in seconds of any clock that does not run backwards.
    pub seconds: f64,
    /// Feeds with readers. A feed that is missing has ended, or its readers have gone.
    pub feeds: Vec<FeedSeen>,
    /// Workers that can be reached.
    pub workers: Vec<WorkerSeen>,
    /// Files that jobs have left to write. A job has no trainer: it ends the sooner the more workers write.
    #[serde(default)]
    pub files_left: u32,
}

/// What is seen of a feed and its readers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FeedSeen {
    /// The feed's name.
    pub feed: String,
    /// Readers that are connected: the trainers, each with its own price.
    pub readers: u32,
    /// Samples that the readers' loops have taken so far.
    pub samples_taken: u64,
    /// Seconds that the readers' loops have waited for samples so far, summed over readers, waits under way included.
    pub waited_seconds: f64,
    /// Seconds that readers were connected and running so far, summed over readers, waiting included.
    pub reading_seconds: f64,
    /// The mean number of samples of a window: the unit in which workers compute ahead.
    pub samples_per_window: f64,
}

/// What is seen of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSeen {
    /// The worker's name.
    pub worker: String,
    /// Whether it takes no more windows: it was told to leave, or its machine gave notice.
    pub draining: bool,
    /// Whether it is one of those whose number is decided. A worker beside a trainer, or one that another program
    /// started, comes and goes by itself, and what it computes the others need not compute.
    #[serde(default = "yes")]
    pub managed: bool,
    /// Windows that it computes at a time.
    pub slots: u32,
    /// Samples of finished windows so far, by feed.
    pub computed_samples: BTreeMap<String, u64>,
    /// Seconds that its slots have spent on windows so far, by feed. Seconds without samples count together with the
    /// samples that come next.
    pub busy_seconds: BTreeMap<String, f64>,
}

impl Default for WorkerSeen {
    fn default() -> Self {
        Self {
            worker: String::new(),
            draining: false,
            managed: true,
            slots: 0,
            computed_samples: BTreeMap::new(),
            busy_seconds: BTreeMap::new(),
        }
    }
}

/// Traces of earlier builds do not tell workers apart.
fn yes() -> bool {
    true
}
