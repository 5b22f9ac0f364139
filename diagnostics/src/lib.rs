//! Parts of error messages that every crate words alike.
//!
//! - [`nearest`] finds the known name that a misspelt one means.
//! - [`plain_message`] gives our form to an error of a library.
//! - [`panic_text`] is the message of a caught panic.
//! - [`shortened`] bounds a text, such as the value of a cell.
//!
//! ```
//! assert_eq!(forebay_diagnostics::nearest("tesnor", ["tensor", "token"]), Some("tensor"));
//! ```
//!
//! The crate depends on no other crate of Forebay, so that all of them can use it.

mod library;
mod nearest;
mod panic;
mod shortened;

pub use library::{lower_first, plain_message, requoted, unwrapped};
pub use nearest::nearest;
pub use panic::{is_thread_shortage, panic_text};
pub use shortened::shortened;
