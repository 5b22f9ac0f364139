//! One rank's batches: a task of the runtime reads ahead, and Python takes the batches one by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_arrays::batch_bytes;
use forebay_engine::Reader;
use forebay_flight_client::RemoteReader;
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::sync::mpsc::{self, error::TryRecvError};

use crate::batch::Batch;
use crate::error::OrRaise;
use crate::runtime::{OfProcess, Runtime};
use crate::steps::Steps;

/// The source of batches: this process or a cluster. Both deliver the same batches.
pub(crate) enum Source {
    Local(Box<Reader>),
    Remote(Box<RemoteReader>),
}

impl Source {
    async fn next(&mut self) -> Option<forebay_engine::Result<forebay_engine::Batch>> {
        match self {
            Self::Local(reader) => reader.next().await,
            Self::Remote(reader) => reader.next().await,
        }
    }

    async fn close(&mut self) {
        if let Self::Remote(reader) = self {
            reader.close().await;
        }
    }
}

type ReceivedBatch = forebay_engine::Result<forebay_engine::Batch>;

/// Batches of one rank. Dropping or closing the stream stops the work.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Stream {
    runtime: Runtime,
    /// `None` after the stream was closed, and after an error.
    batches: OfProcess<Mutex<Option<mpsc::Receiver<ReceivedBatch>>>>,
    ahead: usize,
    counts: Arc<Counts>,
    steps: Option<Steps>,
}

#[derive(Default)]
struct Counts {
    batches: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    bad_rows: AtomicU64,
    waited_nanos: AtomicU64,
    first_nanos: AtomicU64,
}

impl Stream {
    /// Starts reading, up to `ahead` batches before Python asks for them, and measures the loop's `steps`.
    pub(crate) fn start(runtime: &Runtime, source: Source, ahead: usize, steps: Option<Steps>) -> Self {
        let (send, receive) = mpsc::channel(ahead.max(1));
        runtime.handle().spawn(pump(source, send));
        Self {
            runtime: runtime.clone(),
            batches: OfProcess::new(Mutex::new(Some(receive))),
            ahead: ahead.max(1),
            counts: Arc::default(),
            steps,
        }
    }

    fn count(&self, received: &ReceivedBatch, waited: Duration) {
        let nanos = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.counts.waited_nanos.fetch_add(nanos, Ordering::Relaxed);
        if let Ok(batch) = received {
            if self.counts.batches.fetch_add(1, Ordering::Relaxed) == 0 {
                self.counts.first_nanos.store(nanos, Ordering::Relaxed);
            }
            self.counts.rows.fetch_add(batch.records.num_rows() as u64, Ordering::Relaxed);
            self.counts.bytes.fetch_add(batch_bytes(&batch.records), Ordering::Relaxed);
            self.counts.bad_rows.fetch_add(batch.bad_rows(), Ordering::Relaxed);
        }
    }
}

#[pymethods]
impl Stream {
    /// Returns the next batch, or `None` after the last one. Waits without the GIL.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        self.runtime.check_process(py)?;
        let Some(mut guard) = self.batches.try_lock() else {
            return Err(crate::error::invalid(py, "this loader is being read by another thread; give each its own"));
        };
        let Some(batches) = guard.as_mut() else { return Ok(None) };
        self.steps.iter().for_each(Steps::end);
        let began = Instant::now();
        let received = match batches.try_recv() {
            Ok(batch) => Some(batch),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => self.runtime.wait(py, batches.recv())?,
        };
        let Some(received) = received else {
            *guard = None;
            return Ok(None);
        };
        self.count(&received, began.elapsed());
        if received.is_err() {
            *guard = None;
        }
        drop(guard);
        self.steps.iter().for_each(Steps::begin);
        received.or_raise(py).map(|batch| Some(Batch::new(batch)))
    }

    /// Stops the work and drops batches that were read ahead.
    fn close(&self, py: Python<'_>) {
        if self.batches.is_forked() {
            return;
        }
        // Dropping may take long, and another thread may wait for the lock.
        py.detach(|| *self.batches.lock() = None);
    }

    /// Returns counts of delivered batches and samples, and the time that the loop waited.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let seconds = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed)).as_secs_f64();
        let ready = self.batches.try_lock().and_then(|batches| batches.as_ref().map(mpsc::Receiver::len));
        let stats = PyDict::new(py);
        for (name, count) in [
            ("batches", &self.counts.batches),
            ("samples", &self.counts.rows),
            ("bytes", &self.counts.bytes),
            ("bad_rows", &self.counts.bad_rows),
        ] {
            stats.set_item(name, count.load(Ordering::Relaxed))?;
        }
        stats.set_item("wait_seconds", seconds(&self.counts.waited_nanos))?;
        stats.set_item("first_batch_seconds", seconds(&self.counts.first_nanos))?;
        stats.set_item("queue", ready.unwrap_or(0))?;
        stats.set_item("queue_max", self.ahead)?;
        Ok(stats)
    }
}

/// Reads until the end, until an error, or until the receiver is dropped.
async fn pump(mut source: Source, send: mpsc::Sender<ReceivedBatch>) {
    // Reserve a slot of the queue first, so that no batch is started before there is room for it.
    while let Ok(place) = send.reserve().await {
        let next = tokio::select! {
            biased;
            () = send.closed() => break,
            next = source.next() => next,
        };
        let Some(next) = next else { break };
        let failed = next.is_err();
        place.send(next);
        if failed {
            break;
        }
    }
    source.close().await;
}
