//! The engine's error, which both sides of a feed share.

pub use forebay_protocol::{Error, ErrorKind, Result};
