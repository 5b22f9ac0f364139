//! A deterministic simulation: dispatchers, workers and trainers in one thread, with injected faults.
//!
//! A seed decides everything: the feeds, the nodes, the faults and their times. The code under test is the real one;
//! the network, the computing and the training loops are simulated. The [oracle](oracle) checks the batches that each
//! rank is delivered. Most seeds end after a few thousand events. A seed that fails prints its trace:
//!
//! ```sh
//! FOREBAY_SIMULATION_FIRST=17 FOREBAY_SIMULATION_SEEDS=1 cargo test -p forebay-delivery seeds -- --nocapture
//! ```

mod cluster;
mod contact;
mod content;
mod dispatcher;
mod faults;
mod job;
mod liar;
mod member;
mod oracle;
mod poison;
pub(crate) mod random;
mod reader;
mod tests;
mod tokens;
mod transport;
mod worker;
mod world;
mod writer;
