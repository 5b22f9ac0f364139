//! Lets Python wait for Rust: without the GIL, interruptible by Ctrl-C, and never in a forked child.

use std::future::Future;
use std::pin::pin;
use std::process;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Error, ErrorKind};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle};

use crate::error::exception;
use crate::logs;

/// Maximum time until a Ctrl-C is noticed.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// Time between two calls of a function that shows progress.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
/// Number of threads that move batches. Computation has its own threads.
const THREADS: usize = 2;

/// A Tokio runtime that belongs to the process that made it. Clones share it, and dropping the last one ends its
/// threads.
#[derive(Clone)]
pub(crate) struct Runtime(Arc<Inner>);

struct Inner {
    /// `Some` until the drop.
    runtime: Option<tokio::runtime::Runtime>,
    process: u32,
}

impl Runtime {
    pub(crate) fn new() -> forebay_engine::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("forebay-io")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot start {THREADS} threads: {error}")))?;
        Ok(Self(Arc::new(Inner { runtime: Some(runtime), process: process::id() })))
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
        self.0.runtime.as_ref().expect("taken only on drop")
    }

    /// Waits for `future` without the GIL. An exception that Python raises for a signal, such as `KeyboardInterrupt`,
    /// ends the wait.
    pub(crate) fn wait<T: Send>(&self, py: Python<'_>, future: impl Future<Output = T> + Send) -> PyResult<T> {
        self.wait_showing(py, future, |_| Ok(()))
    }

    /// Waits for `future` as [`wait`](Self::wait) does, and calls `show` about every second meanwhile.
    pub(crate) fn wait_showing<T: Send>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = T> + Send,
        mut show: impl FnMut(Python<'_>) -> PyResult<()>,
    ) -> PyResult<T> {
        self.check_process(py)?;
        let mut shown = Instant::now();
        // What an interrupted future leaves, such as the claim of a job, is released by tasks of the runtime.
        let _entered = self.handle().enter();
        let mut future = pin!(future);
        loop {
            let done = py.detach(|| {
                self.runtime().block_on(async { tokio::time::timeout(SIGNALS_EVERY, future.as_mut()).await })
            });
            match done {
                Ok(done) => {
                    logs::log(py);
                    return Ok(done);
                }
                Err(_) => {
                    py.check_signals()?;
                    logs::log(py);
                    if shown.elapsed() >= SHOWN_EVERY {
                        shown = Instant::now();
                        show(py)?;
                    }
                }
            }
        }
    }

    /// Returns an error in a forked child, which has none of the threads and would wait forever.
    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.process == process::id() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Invalid, "a Forebay loader or session cannot be used in a forked process")
            .with_hint(
                "Forebay computes on its own threads: use DataLoader(num_workers=0), or make the loader in the child \
                 process (multiprocessing's \"spawn\")",
            );
        Err(exception(py, &error))
    }
}

/// A value that belongs to the process that made it, because it has threads. A forked child must not even drop it: the
/// threads do not exist there, and a lock that a thread held during the fork is never released.
pub(crate) struct OfProcess<T> {
    /// `Some` until the drop.
    value: Option<T>,
    process: u32,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.process != process::id()
    }
}

impl<T> std::ops::Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken only on drop")
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_forked() {
            std::mem::forget(self.value.take());
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        match self.runtime.take() {
            Some(runtime) if self.process == process::id() => runtime.shutdown_background(),
            // In a forked child the threads to end do not exist.
            runtime => std::mem::forget(runtime),
        }
    }
}
