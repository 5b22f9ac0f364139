//! Functions that take hostile bytes: one for each place where Forebay reads what others wrote.
//!
//! Each target takes any bytes, and panics if a promise is broken: a text that is read back differently, a message that
//! stops a dispatcher. `fuzz/run` gives them to libFuzzer, and `tests/replay.rs` replays the corpora with every run of
//! the tests. See `README.md`.
//!
//! The crate has no code that another crate may use.

#[cfg(feature = "request")]
mod engine;
#[cfg(feature = "jpeg")]
mod jpeg_file;
#[cfg(feature = "message")]
mod messages;
mod panics;
#[cfg(feature = "footer")]
mod parquet_file;
#[cfg(any(feature = "footer", feature = "request"))]
mod runtime;
#[cfg(feature = "sql")]
mod sql_text;
#[cfg(feature = "stream")]
mod streams;
#[cfg(feature = "ticket")]
mod tickets;
#[cfg(feature = "token")]
mod tokens;

#[cfg(feature = "request")]
pub use engine::request;
#[cfg(feature = "jpeg")]
pub use jpeg_file::jpeg;
#[cfg(feature = "message")]
pub use messages::message;
pub use panics::{catch_panics, run};
#[cfg(feature = "footer")]
pub use parquet_file::footer;
#[cfg(feature = "sql")]
pub use sql_text::sql;
#[cfg(feature = "stream")]
pub use streams::stream;
#[cfg(feature = "ticket")]
pub use tickets::ticket;
#[cfg(feature = "token")]
pub use tokens::token;

/// A function that takes hostile bytes, with what a replay needs to know.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The function's name, and that of its corpus.
    pub name: &'static str,
    /// The function. Returns whether it accepts the input, so that a corpus that no longer reaches its code is noticed.
    pub run: fn(&[u8]) -> bool,
    /// The bound of an input's length, in bytes.
    pub bytes_max: usize,
    /// The number of mutated inputs of a replay: a few seconds' worth.
    pub mutations: usize,
}

/// All targets. `fuzz/run` reads this table.
pub const TARGETS: &[Target] = &[
    #[cfg(feature = "token")]
    Target { name: "token", run: token, bytes_max: 4096, mutations: 12000 },
    #[cfg(feature = "message")]
    Target { name: "message", run: message, bytes_max: 16384, mutations: 12000 },
    #[cfg(feature = "jpeg")]
    Target { name: "jpeg", run: jpeg, bytes_max: 16384, mutations: 6000 },
    #[cfg(feature = "stream")]
    Target { name: "stream", run: stream, bytes_max: 16384, mutations: 12000 },
    #[cfg(feature = "request")]
    Target { name: "request", run: request, bytes_max: 4096, mutations: 6000 },
    #[cfg(feature = "ticket")]
    Target { name: "ticket", run: ticket, bytes_max: 4096, mutations: 6000 },
    #[cfg(feature = "footer")]
    Target { name: "footer", run: footer, bytes_max: 32768, mutations: 6000 },
    #[cfg(feature = "sql")]
    Target { name: "sql", run: sql, bytes_max: 2048, mutations: 3000 },
];
