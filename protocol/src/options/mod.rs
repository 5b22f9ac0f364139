//! The options of feeds, of reading them and of sessions: one table, and what is made of it.
//!
//! [`table`] declares each option once. The macro in [`declare`] makes the options' structs and the request of it, and
//! the descriptions that the parser of `WITH`, the command line, Python and the guides read. [`spec`] says what a
//! description is, and reads values from text. [`settings`] combines options of several sources.

mod choices;
mod declare;
mod settings;
mod spec;
mod table;

pub use choices::{DeliveryMode, OnError};
pub use settings::{EPOCHS_MAX, FeedSettings, OFFSET_MAX};
pub use spec::{OptionKind, OptionSet, OptionSpec, Scope};
pub use table::{FeedOptions, ReadDefaults, ReadOptions, SessionOptions, StreamRequest};
