//! A runtime for targets whose code is asynchronous.

use tokio::runtime::{Builder, Runtime};

/// A runtime without threads of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: Runtime = Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
