//! How many workers a cluster should have, and what a feed should keep: a cost model of pure functions.
//!
//! A [`WorkerPolicy`] takes an [`Observation`] at a time and answers with a [`Decision`], whose [`Reason`] an operator
//! can read. A [`LocalPolicy`] says how many threads a trainer can spare for a worker in its process. [`advise`]
//! compares what a feed may keep of its epoch, by the [`Cut`]s of its query, the [`Store`]s that were measured, and the
//! [`Workload`] to come. [`plan`](plan()) decides both at once for a [`Job`] that has not begun, with the cores beside
//! its trainers, the order of its operators, and where the last of them runs. [`trace`] writes what was seen and
//! decided as JSON lines, and runs it again.
//!
//! ```
//! use forebay_policy::{FeedSeen, Observation, WorkerPolicy, WorkerSeen, WorkerSettings};
//!
//! // One worker computes 80 samples/s for a trainer that could take 320, and so waits for three quarters of its time.
//! let seen = |seconds: u32| {
//!     let (samples, seconds) = (u64::from(seconds) * 80, f64::from(seconds));
//!     Observation {
//!         seconds,
//!         feeds: vec![FeedSeen {
//!             feed: "train".to_owned(),
//!             readers: 1,
//!             samples_taken: samples,
//!             waited_seconds: seconds * 0.75,
//!             reading_seconds: seconds,
//!             samples_per_window: 64.0,
//!         }],
//!         workers: vec![WorkerSeen {
//!             worker: "a".to_owned(),
//!             draining: false,
//!             managed: true,
//!             slots: 1,
//!             computed_samples: [("train".to_owned(), samples)].into(),
//!             busy_seconds: [("train".to_owned(), seconds)].into(),
//!         }],
//!         files_left: 0,
//!     }
//! };
//! let mut policy = WorkerPolicy::new(WorkerSettings::default())?;
//! for seconds in [0, 10, 20] {
//!     assert_eq!(policy.observe(&seen(seconds)).workers, 1);
//! }
//! let decision = policy.observe(&seen(30));
//! assert_eq!(decision.workers, 4);
//! # Ok::<(), forebay_policy::Error>(())
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `prices.rs` | what things cost |
//! | `observation.rs` | what is seen at one moment |
//! | `evidence.rs` | a rate that is measured piece by piece, with how sure it is |
//! | `rates.rs` | demand of feeds and speed of workers |
//! | `queue.rs` | how long trainers wait, from rates and variances |
//! | `pool.rs` | what some number of workers would do, and which number a goal asks for |
//! | `correction.rs` | what waits say that rates do not |
//! | `workers.rs` | when the number changes |
//! | `decision.rs` | a decision and its reason |
//! | `local.rs` | how many threads a worker in a trainer's process may have |
//! | `stores.rs` | measured stores, cuts and work to come |
//! | `costs.rs` | what a pass asks of processors and stores |
//! | `cache.rs` | what each choice of a cache costs, and the best |
//! | `concurrency.rs` | work under way in one process |
//! | `job.rs` | a job before it runs, with what may be decided of it |
//! | `placement.rs` | how fast a pass goes with workers and local cores |
//! | `choice.rs` | one way to run a job, and what it would do |
//! | `search.rs` | the best way of each kind |
//! | `plan.rs` | the decision of all of it together |
//! | `sentence.rs` | that decision in plain English |
//! | `trace.rs` | JSON lines that can be replayed |
//!
//! The crate has no clock, no I/O, no threads, no state of its own and no randomness: equal observations give equal
//! decisions. It does not know Arrow, files, sockets or Flight, it does not start workers, and it measures nothing
//! itself. No decision changes a sample.

mod cache;
mod choice;
mod concurrency;
mod correction;
mod costs;
mod decision;
mod error;
mod evidence;
mod job;
mod local;
mod observation;
mod placement;
mod plan;
mod pool;
mod prices;
mod queue;
mod rates;
mod search;
mod sentence;
mod stores;
pub mod trace;
mod workers;

pub use cache::{Advice, Estimate, Weights, advise};
pub use choice::{Choice, Configuration};
pub use concurrency::{pieces_under_way, reads_under_way};
pub use decision::{Decision, Evidence, Grouped, Reason, Why};
pub use error::Error;
pub use job::{Finish, Job, Order, Sureness, TrainerHost, Wire, WorkerLimits};
pub use local::{LocalPolicy, StepsSeen, TrainerSeen};
pub use observation::{FeedSeen, Observation, WorkerSeen};
pub use placement::{Bottleneck, Place};
pub use plan::{Changes, Plan, plan};
pub use pool::WorkerGoal;
pub use prices::Prices;
pub use queue::wait_share;
pub use sentence::Bytes;
pub use stores::{Cut, Measured, Store, Workload};
pub use workers::{WorkerPolicy, WorkerSettings};
