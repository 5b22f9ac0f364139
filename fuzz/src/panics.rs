//! What a fuzzer does about panics.
//!
//! libFuzzer's crate ends the process at any panic, also at those that the code catches: arrow's decoders panic on some
//! malformed messages. Here only a panic that reaches the caller is a finding.

use std::panic::{catch_unwind, set_hook};
use std::process::abort;
use std::sync::Mutex;

static LAST: Mutex<String> = Mutex::new(String::new());

/// Lets code catch its panics. A fuzzer's program calls this once.
pub fn catch_panics() {
    set_hook(Box::new(|info| {
        if let Ok(mut last) = LAST.lock() {
            *last = format!("{info}\n{}", std::backtrace::Backtrace::capture());
        }
    }));
}

/// Runs a target. Ends the process if it panics.
#[allow(clippy::print_stderr)]
pub fn run(target: fn(&[u8]) -> bool, data: &[u8]) {
    if catch_unwind(|| target(data)).is_err() {
        eprintln!("{}", LAST.lock().map(|last| last.clone()).unwrap_or_default());
        abort();
    }
}
