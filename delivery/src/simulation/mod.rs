//! Dispatchers, workers and trainers in one thread, with every fault there is, by the million.
//!
//! A seed decides all: the feeds, the nodes, what goes wrong and when. The code under test is the real one; made up are
//! the network, the computing and the training loops. The [oracle](oracle) judges what each rank is handed. Most seeds end
//! in a few thousand events; one that fails is told with its trace:
//!
//! ```sh
//! FOREBAY_SIMULATION_FIRST=17 FOREBAY_SIMULATION_SEEDS=1 cargo test -p forebay-delivery seeds -- --nocapture
//! ```

mod cluster;
mod contact;
mod dispatcher;
mod faults;
mod job;
mod member;
mod oracle;
mod random;
mod reader;
mod tests;
mod worker;
mod world;
