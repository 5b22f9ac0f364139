//! The metrics of a process, in the text format of OpenMetrics, which Prometheus reads.
//!
//! A scrape reads the current state of the dispatcher and the worker, so the metrics cannot disagree with it. Only
//! values that this state forgets have counters of their own: in the [journal](crate::journal) for the dispatcher, in
//! [`worker_counts`] for the worker, in [`streams`] for rows and bytes sent. `docs/metrics.md` describes every metric.

#[cfg(test)]
mod check;
mod dispatcher;
mod endpoint;
pub(crate) mod health;
mod page;
mod process;
mod security;
pub(crate) mod streams;
mod worker;
pub(crate) mod worker_counts;

use std::fmt;
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind, Result};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::dispatcher::DispatcherService;
use crate::worker::WorkerService;
pub use endpoint::MetricsEndpoint;
use forebay_flight_client::wall_clock::now_unix_seconds;
use page::Page;
pub(crate) use security::SecurityState;
use streams::StreamCounts;

/// The metrics of a process.
pub(crate) struct Metrics {
    registry: Registry,
    /// Whose dispatcher may be another process.
    worker_only: Option<Arc<WorkerService>>,
}

impl Metrics {
    pub(crate) fn new(
        dispatcher: Option<Arc<DispatcherService>>,
        worker: Option<Arc<WorkerService>>,
        streams: Arc<StreamCounts>,
        security: SecurityState,
    ) -> Self {
        let worker_only = worker.clone().filter(|_| dispatcher.is_none());
        let all = Everything { dispatcher, worker, streams, security, started: now_unix_seconds() };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(all));
        Self { registry, worker_only }
    }

    /// All metrics as text.
    pub(crate) fn text(&self) -> Result<String> {
        let mut text = String::new();
        encode(&mut text, &self.registry)
            .map_err(|_| Error::new(ErrorKind::Internal, "the metrics cannot be written as text"))?;
        Ok(text)
    }

    /// Whether this process is a dispatcher, or a worker that has reached one.
    pub(super) fn has_dispatcher(&self) -> bool {
        self.worker_only.as_ref().is_none_or(|worker| worker.metrics().was_reachable())
    }
}

struct Everything {
    dispatcher: Option<Arc<DispatcherService>>,
    worker: Option<Arc<WorkerService>>,
    streams: Arc<StreamCounts>,
    security: SecurityState,
    started: u64,
}

impl fmt::Debug for Everything {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Everything")
    }
}

impl Collector for Everything {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        page.gauge("forebay_build_info", "1, with the version of this build", [(version, 1.0)])?;
        if let Some(dispatcher) = &self.dispatcher {
            dispatcher::write(&mut page, dispatcher)?;
            streams::write(&mut page, &self.streams)?;
        }
        if let Some(worker) = &self.worker {
            worker::write(&mut page, worker)?;
        }
        security::write(&mut page, &self.security)?;
        process::write(&mut page, self.started)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, RecordBatch};
    use forebay_delivery::messages::{ReaderSync, WorkerSync};
    use forebay_delivery::{Changes, Known, WindowId, WorkerId, session_of};
    use std::time::Duration;

    use forebay_engine::{FeedOptions, ReadOptions, Session, StoredState};
    use forebay_flight_client::StreamRequest;
    use forebay_flight_client::wire::{ReaderCall, WorkerCall};

    use super::check::check;
    use super::*;

    /// A dispatcher and a worker over `train`, a pipeline of three rows, and its feed's id.
    async fn process(folder: &std::path::Path) -> (Arc<DispatcherService>, Arc<WorkerService>, Arc<str>) {
        std::fs::write(folder.join("clicks.csv"), "price\n1\n2\n3\n").unwrap();
        let session = Session::builder().base(folder).root(folder.to_str().unwrap()).build().unwrap();
        let script = "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
                      CREATE PIPELINE train AS SELECT log1p(price) AS price FROM clicks;";
        session.execute("test.sql", script).await.unwrap();
        let session = Arc::new(session);
        let feed = session.open("train", &FeedOptions::default()).unwrap().id().into();
        let dispatcher = Arc::new(DispatcherService::new(Arc::clone(&session)).unwrap());
        let worker = Arc::new(WorkerService::new(session, "grpc://a:1".to_owned(), 1 << 20, Duration::ZERO).unwrap());
        (dispatcher, worker, feed)
    }

    fn text(dispatcher: &Arc<DispatcherService>, worker: &Arc<WorkerService>, streams: &Arc<StreamCounts>) -> String {
        let (dispatcher, worker) = (Some(Arc::clone(dispatcher)), Some(Arc::clone(worker)));
        Metrics::new(dispatcher, worker, Arc::clone(streams), SecurityState::default()).text().unwrap()
    }

    fn worker_call(worker: WorkerId, address: &str) -> WorkerCall {
        let sync = WorkerSync {
            worker,
            seq: 1,
            address: address.to_owned(),
            memory_bytes: 1 << 20,
            computing: 2,
            draining: false,
            leaving: false,
            known: 0,
            leases: Known::default(),
            windows: 0,
            held: Changes { known: Default::default(), is_all: true, changed: Vec::new() },
            refused: Vec::new(),
            store_wait: None,
        };
        let operators = forebay_engine::operator_versions().clone();
        WorkerCall {
            build: forebay_engine::build().unwrap().clone(),
            operators,
            sync,
            work: Default::default(),
            threads: 1,
            beside_trainer: false,
        }
    }

    fn reader_call(feed: &Arc<str>, seq: u64, samples: u64) -> ReaderCall {
        let sync = ReaderSync {
            session: session_of(&"0".repeat(64)),
            seq,
            feed: Arc::clone(feed),
            rank: 0,
            world_size: 1,
            member: None,
            at: WindowId { epoch: 0, index: 0 },
            until_epoch: 1,
            known: 0,
            broken: Vec::new(),
            waiting: None,
            leaving: false,
            is_later_claim: false,
            samples,
            bytes: samples * 8,
            stalled_ms: samples * 250,
            elapsed_ms: samples * 500,
        };
        let request = StreamRequest::new("train", &FeedOptions::default(), &ReadOptions::default());
        ReaderCall { request, secret_key: "0".repeat(64), sync }
    }

    #[tokio::test]
    async fn a_process_that_does_nothing_has_a_valid_page() {
        let folder = tempfile::tempdir().unwrap();
        let (dispatcher, worker, _) = process(folder.path()).await;
        let all = check(&text(&dispatcher, &worker, &Arc::default()));
        assert_eq!(all.value("forebay_dispatcher_feeds", &[]), Some(0.0));
        assert_eq!(all.value("forebay_worker_dispatcher_reachable", &[]), Some(0.0));
        assert_eq!(all.value("forebay_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), Some(1.0));
        assert!(all.value("process_cpu_seconds_total", &[]).is_some());
        let worker = check(&Metrics::new(None, Some(worker), Arc::default(), SecurityState::default()).text().unwrap());
        assert!(worker.families().all(|name| !name.starts_with("forebay_dispatcher")), "a worker dispatches nothing");
    }

    #[tokio::test]
    async fn a_dispatcher_shows_feeds_workers_and_readers() {
        let folder = tempfile::tempdir().unwrap();
        let (dispatcher, worker, feed) = process(folder.path()).await;
        dispatcher.worker_sync(worker_call(1, "grpc://a:1")).await.unwrap();
        dispatcher.worker_sync(worker_call(2, "grpc://b\"\\\n:2")).await.unwrap();
        dispatcher.reader_sync(reader_call(&feed, 1, 0)).await.unwrap();
        dispatcher.reader_sync(reader_call(&feed, 2, 3)).await.unwrap();
        let all = check(&text(&dispatcher, &worker, &Arc::default()));
        let of_feed = [("feed", &*feed), ("pipeline", "train")];
        for (name, value) in [
            ("forebay_dispatcher_received_samples_total", 3.0),
            ("forebay_dispatcher_received_bytes_total", 24.0),
            ("forebay_dispatcher_readers", 1.0),
            ("forebay_dispatcher_leases_granted_total", 1.0),
            ("forebay_dispatcher_leases_recomputed_total", 0.0),
        ] {
            assert_eq!(all.value(name, &of_feed), Some(value), "{name}");
        }
        let labels = [("feed", &*feed), ("pipeline", "train"), ("rank", "0")];
        assert_eq!(all.value("forebay_dispatcher_reader_stall_seconds_total", &labels), Some(0.75));
        let labels = [("feed", &*feed), ("pipeline", "train"), ("state", "leased")];
        assert_eq!(all.value("forebay_dispatcher_windows", &labels), Some(1.0));
        assert_eq!(all.value("forebay_dispatcher_workers", &[]), Some(2.0));
        let limit = all.value("forebay_dispatcher_worker_memory_limit_bytes", &[("worker", "grpc://b\"\\\n:2")]);
        assert_eq!(limit, Some((1 << 20) as f64), "odd labels are escaped");
    }

    #[tokio::test]
    async fn a_worker_shows_windows_and_what_it_sent() {
        let folder = tempfile::tempdir().unwrap();
        let (dispatcher, worker, feed) = process(folder.path()).await;
        let metrics = worker.metrics();
        metrics.opened(&feed, "train");
        for index in 0..3 {
            metrics.leased(&(Arc::clone(&feed), WindowId { epoch: 0, index }));
        }
        let window = |index| (Arc::clone(&feed), WindowId { epoch: 0, index });
        for state in [StoredState::Counted { rows: 3, bytes: 9 }, StoredState::Ready { rows: 3, bytes: 9 }] {
            // Reported twice, counted once.
            metrics.reached(&window(0), &state);
            metrics.reached(&window(0), &state);
        }
        metrics.reached(&window(1), &StoredState::Failed(Error::new(ErrorKind::Data, "a bad file")));
        metrics.dropped(&window(2));
        metrics.reached(&window(2), &StoredState::Counted { rows: 3, bytes: 9 });
        let stream = metrics.stream(&feed);
        let prices: ArrayRef = Arc::new(Float64Array::from_iter_values([0.0, 1.0, 2.0, 3.0, 4.0]));
        let records = RecordBatch::try_from_iter([("price", prices)]).unwrap();
        stream.sent(&[records.slice(1, 3)]);
        let streams = Arc::default();
        let all = check(&text(&dispatcher, &worker, &streams));
        let of_feed = [("feed", &*feed), ("pipeline", "train")];
        for (name, value) in [
            ("forebay_worker_windows_prepared_total", 1.0),
            ("forebay_worker_windows_failed_total", 1.0),
            ("forebay_worker_window_counted_seconds_count", 1.0),
            ("forebay_worker_window_ready_seconds_count", 1.0),
            ("forebay_worker_sent_rows_total", 3.0),
            ("forebay_worker_sent_bytes_total", 24.0),
        ] {
            assert_eq!(all.value(name, &of_feed), Some(value), "{name}");
        }
        assert_eq!(all.value("forebay_worker_streams", &[]), Some(1.0));
        drop(stream);
        assert_eq!(check(&text(&dispatcher, &worker, &streams)).value("forebay_worker_streams", &[]), Some(0.0));
    }

    #[test]
    fn the_check_finds_what_is_wrong() {
        let good = "# HELP forebay_a x\n# TYPE forebay_a counter\nforebay_a_total{b=\"c\"} 1\n# EOF\n";
        check(good);
        for (from, to) in [
            ("a_total{", "a{"),
            ("# EOF\n", "# HELP forebay_a x\n# TYPE forebay_a counter\n# EOF\n"),
            ("# EOF\n", "forebay_a_total{b=\"c\"} 2\n# EOF\n"),
            ("# EOF\n", ""),
            ("# HELP forebay_a x\n", ""),
            ("b=", "0b="),
            ("} 1", "} one"),
            ("} 1", "} -1"),
            ("\"c\"", "\"c"),
            ("a_total{", "b_total{"),
        ] {
            let bad = good.replace(from, to);
            assert!(std::panic::catch_unwind(|| drop(check(&bad))).is_err(), "passes:\n{bad}");
        }
    }
}
