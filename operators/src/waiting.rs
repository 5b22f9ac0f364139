//! Calls that may wait for something else than a processor.

use std::cell::Cell;

use tokio::runtime::{Handle, RuntimeFlavor};

thread_local! {
    static IS_REPLACED: Cell<bool> = const { Cell::new(false) };
}

/// From now on, another thread of its runtime takes over what this thread has to do besides, while a call on it
/// [waits](waiting).
pub fn replace_while_waiting() {
    IS_REPLACED.set(true);
}

/// Runs a call that may wait.
pub fn waiting<T>(call: impl FnOnce() -> T) -> T {
    let flavor = || Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match IS_REPLACED.get() && matches!(flavor(), Ok(RuntimeFlavor::MultiThread)) {
        true => tokio::task::block_in_place(call),
        false => call(),
    }
}
