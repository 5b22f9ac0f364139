//! The options of feeds, of reading them, of jobs and of sessions: one table, and the code generated from it.
//!
//! [`table`] declares each option once. From this table, the macro in [`declare`] generates the options' structs, the
//! request, and the descriptions. The parser of `WITH`, the command line, Python and the guides read the descriptions.
//! [`spec`] defines descriptions, and parses values from text. [`settings`] combines options from several sources.

mod choices;
mod declare;
mod settings;
mod spec;
mod table;

pub use choices::{CacheMode, CallOrder, DeliveryMode, OnError};
pub use settings::{EPOCHS_MAX, FeedSettings, OFFSET_MAX};
pub use spec::{OptionKind, OptionSet, OptionSpec, Scope};
pub use table::{FeedOptions, JobOptions, ReadDefaults, ReadOptions, SessionOptions, StreamRequest};
