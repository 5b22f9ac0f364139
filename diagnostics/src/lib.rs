//! Parts of error messages that every crate words alike.
//!
//! - [`nearest`] finds the known name that a misspelt one means.
//! - [`panic_text`] is the message of a caught panic.
//!
//! ```
//! assert_eq!(forebay_diagnostics::nearest("tesnor", ["tensor", "token"]), Some("tensor"));
//! ```
//!
//! The crate depends on no other crate of Forebay, so that all of them can use it.

mod nearest;
mod panic;

pub use nearest::nearest;
pub use panic::panic_text;
