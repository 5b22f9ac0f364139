//! The runtime that plans run on, apart from the one that serves clients.
//!
//! DataFusion computes inside `poll`: a runtime that also serves Flight would stall its connections for as long as a
//! picture takes to decode. So every session owns worker threads of its own, and tasks on them have an owner that
//! aborts them when it is dropped.

use std::future::Future;
use std::time::Duration;

use forebay_diagnostics::panic_text;
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, Result};

/// The session's worker threads.
pub(crate) struct Executor {
    runtime: Option<Runtime>,
    threads: usize,
    process: u32,
}

impl Executor {
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("forebay-compute")
            .enable_all()
            .build()
            .map_err(|error| Error::internal(format!("cannot start {threads} worker threads: {error}")))?;
        Ok(Self { runtime: Some(runtime), threads, process: std::process::id() })
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The busy time of all threads together.
    pub(crate) fn busy(&self) -> Duration {
        let Some(runtime) = &self.runtime else { return Duration::ZERO };
        let metrics = runtime.metrics();
        (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
    }

    /// Runs `task` on the worker threads; dropping the handle aborts it.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let runtime = self.runtime.as_ref().expect("the runtime is only taken on drop");
        Task(AbortOnDropHandle::new(runtime.spawn(task)))
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        match self.runtime.take() {
            // A forked child has none of the threads. A lock that one of them held at the fork is never released.
            runtime if self.process != std::process::id() => std::mem::forget(runtime),
            // A session may be dropped inside another runtime, where waiting for the threads would panic.
            Some(runtime) => runtime.shutdown_background(),
            None => {}
        }
    }
}

/// A task that is aborted when its owner drops it.
pub(crate) struct Task<T>(AbortOnDropHandle<T>);

impl<T> Task<T> {
    /// Waits for the result. Cancel-safe: the task keeps running and may be joined again.
    pub(crate) async fn join(&mut self) -> Result<T> {
        (&mut self.0).await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => Error::internal(format!("a compute task panicked: {}", panic_text(panic.as_ref()))),
            Err(_) => Error::new(crate::ErrorKind::Unavailable, "the session is shutting down"),
        })
    }
}
