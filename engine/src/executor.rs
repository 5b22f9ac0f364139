//! The runtime that executes plans, separate from the runtime that serves clients.
//!
//! DataFusion computes inside `poll`. A runtime that also serves Flight would stall its connections while an image is
//! decoded. So every session has its own worker threads, and every task on them has an owner that aborts it on drop.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_diagnostics::{is_thread_shortage, panic_text};
use forebay_operators::replace_while_waiting;
use forebay_policy::pieces_under_way;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio_util::task::AbortOnDropHandle;

use crate::blocked::{Moment, Spent};
use crate::cpu_time::CpuTime;
use crate::error::{Error, ErrorKind, Result};
use crate::turns::Turns;

/// The session's worker threads.
pub(crate) struct Executor {
    runtime: Option<Runtime>,
    threads: usize,
    turns: Arc<Turns>,
    cpu_time: Arc<CpuTime>,
    /// Pieces of work under way, if that follows from what they do.
    width: Option<Width>,
    process: u32,
}

/// The threads of an executor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Threads {
    pub(crate) number: usize,
    /// Whether more pieces than threads may be under way, because pieces that wait leave their thread to others.
    pub(crate) widens: bool,
    /// Whether they leave the processors to other threads that want them.
    pub(crate) yields: bool,
}

/// The number of pieces that keeps the threads busy: see [`pieces_under_way`].
struct Width {
    now: AtomicUsize,
    seen: Mutex<Seen>,
}

/// What the latest pieces did.
#[derive(Default)]
struct Seen {
    pieces: u32,
    seconds: f64,
    ready: f64,
}

/// Fewer pieces, or less time, say little.
const PIECES_LEAST: u32 = 8;
const SECONDS_LEAST: f64 = 0.25;
/// The weight of what was seen before, for each piece that is seen.
const MEMORY: f64 = 0.97;

impl Executor {
    /// Starts the threads.
    pub(crate) fn new(threads: Threads) -> Result<Self> {
        let Threads { number: threads, widens, yields } = threads;
        let cpu_time = Arc::<CpuTime>::default();
        let (begun, ended) = (Arc::clone(&cpu_time), Arc::clone(&cpu_time));
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("forebay-compute")
            .on_thread_start(move || {
                if yields {
                    yield_to_others();
                }
                if widens {
                    replace_while_waiting();
                }
                begun.begin();
            })
            .on_thread_stop(move || ended.end())
            .enable_all()
            .build()
            .map_err(|error| Error::internal(format!("cannot start {threads} worker threads: {error}")))?;
        let width = widens.then(|| Width { now: AtomicUsize::new(threads), seen: Mutex::default() });
        let process = std::process::id();
        Ok(Self { runtime: Some(runtime), threads, turns: Arc::default(), cpu_time, width, process })
    }

    /// The number of threads that compute.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Sets how many threads compute at a time, one at least.
    pub(crate) fn use_threads(&self, threads: usize) {
        self.turns.set_limit(if threads < self.threads { threads } else { usize::MAX });
    }

    /// The processors' time for all threads.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu_time.get()
    }

    /// The number of pieces of work that should be under way: the number of threads, or more if pieces wait, but no
    /// more than may compute at a time.
    pub(crate) fn width(&self) -> usize {
        let width = self.width.as_ref().map_or(self.threads, |width| width.now.load(Ordering::Relaxed));
        width.min(self.turns.limit())
    }

    /// Runs a piece of work, and learns how much of its time it is blocked.
    pub(crate) async fn piece<T>(&self, work: impl Future<Output = T>) -> T {
        let begun = self.width.as_ref().and_then(|width| Some((width, Moment::now()?)));
        let done = work.await;
        if let Some((width, spent)) = begun.and_then(|(width, begun)| Some((width, begun.spent()?))) {
            width.learn(self.threads, spent);
        }
        done
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
        Task(AbortOnDropHandle::new(runtime.spawn(self.turns.of(task))))
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

impl Width {
    fn learn(&self, threads: usize, spent: Spent) {
        let mut seen = self.seen.lock();
        seen.pieces = seen.pieces.saturating_add(1);
        seen.seconds = seen.seconds * MEMORY + spent.time.as_secs_f64();
        seen.ready = seen.ready * MEMORY + spent.ready.as_secs_f64();
        if seen.pieces >= PIECES_LEAST || seen.seconds >= SECONDS_LEAST {
            self.now.store(pieces_under_way(threads, 1.0 - seen.ready / seen.seconds), Ordering::Relaxed);
        }
    }
}

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
