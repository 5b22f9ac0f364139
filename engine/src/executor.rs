//! The runtime that executes plans, separate from the runtime that serves clients.
//!
//! DataFusion computes inside `poll`. A runtime that also serves Flight would stall its connections while an image is
//! decoded. So every session has its own worker threads, and every task on them has an owner that aborts it on drop.

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use forebay_diagnostics::{is_thread_shortage, panic_text};
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{Error, ErrorKind, Result};

/// The session's worker threads.
pub(crate) struct Executor {
    runtime: Option<Runtime>,
    threads: usize,
    process: u32,
}

impl Executor {
    /// Starts the threads. With `yields`, they leave the processors to other threads that want them.
    pub(crate) fn new(threads: usize, yields: bool) -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("forebay-compute")
            .on_thread_start(move || {
                if yields {
                    yield_to_others();
                }
            })
            .enable_all()
            .build()
            .map_err(|error| Error::internal(format!("cannot start {threads} worker threads: {error}")))?;
        Ok(Self { runtime: Some(runtime), threads, process: std::process::id() })
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// The total busy time of all threads.
    pub(crate) fn busy(&self) -> Duration {
        let Some(runtime) = &self.runtime else { return Duration::ZERO };
        let metrics = runtime.metrics();
        (0..metrics.num_workers()).map(|worker| metrics.worker_total_busy_duration(worker)).sum()
    }

    /// Runs `task` on the worker threads. Dropping the handle aborts it.
    pub(crate) fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let runtime = self.runtime.as_ref().expect("the runtime is only taken on drop");
        Task(AbortOnDropHandle::new(runtime.spawn(task)))
    }
}

/// The priority of threads that yield: of two that want one processor, the other gets nine tenths.
const YIELDING_PRIORITY: i32 = 10;

/// Lowers the priority of this thread, unless it is as low already.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    // On Linux, a thread's number stands for the thread alone.
    let thread = Some(rustix::thread::gettid());
    let is_higher = |priority: i32| priority < YIELDING_PRIORITY;
    if rustix::process::getpriority_process(thread).is_ok_and(is_higher) {
        // A system that forbids it leaves the priority as it is.
        let _ = rustix::process::setpriority_process(thread, YIELDING_PRIORITY);
    }
}

/// Other systems have priorities of processes only.
#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}

impl Drop for Executor {
    fn drop(&mut self) {
        match self.runtime.take() {
            // A forked child process has none of these threads, and a lock that one of them held at the fork is never
            // released.
            runtime if self.process != std::process::id() => std::mem::forget(runtime),
            // Waiting for the threads would panic if the session is dropped inside another runtime.
            Some(runtime) => runtime.shutdown_background(),
            None => {}
        }
    }
}

/// The error of kind `kind` for a caught panic; of kind `Exhausted` if the process got no thread, which may pass.
pub(crate) fn panicked(kind: ErrorKind, what: &str, panic: &(dyn Any + Send)) -> Error {
    let text = panic_text(panic);
    let kind = if is_thread_shortage(text) { ErrorKind::Exhausted } else { kind };
    Error::new(kind, format!("{what}: {text}"))
}

/// A task that is aborted when its handle is dropped.
pub(crate) struct Task<T>(AbortOnDropHandle<T>);

impl<T> Task<T> {
    /// Waits for the result. Cancel-safe: the task keeps running and may be joined again.
    pub(crate) async fn join(&mut self) -> Result<T> {
        (&mut self.0).await.map_err(|error| match error.try_into_panic() {
            Ok(panic) => panicked(ErrorKind::Internal, "a compute task panicked", panic.as_ref()),
            Err(_) => Error::new(ErrorKind::Unavailable, "the session is shutting down"),
        })
    }
}
