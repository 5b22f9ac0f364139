//! The worker's side of the cluster: carries out the actions of the [`Worker`] of `forebay-delivery`, and serves
//! windows.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_delivery::messages::{HeldState, StoreWait, WorkerSync};
use forebay_delivery::{WindowKey, Worker, WorkerAction, WorkerId, WorkerProfile};
use forebay_engine::{
    CostMeter, Error, ErrorKind, Feed, Result, Session, SharedJob, SnapshotPieces, SnapshotSource, StoreUsage,
    StoredState, StoredWindow, WindowStore, build, operator_versions,
};
use forebay_flight_client::DispatcherClient;
use forebay_flight_client::wire::{SnapshotCall, WindowRequest, WorkerAnswer, WorkerCall, actions};
use forebay_protocol::{Build, random_id};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::crash_record::CrashRecord;
use crate::dispatcher::{DispatcherService, WorkSpec};
use crate::file_tasks::FileTasks;
use crate::metrics::worker_counts::WorkerMetrics;
use crate::ticket::{PublicKey, Verifier};
use crate::transport::{SliceSender, WindowSlice};

/// Concurrent messages to the dispatcher: one that waits for news, and one that reports some.
const CALLS_MAX: usize = 2;
/// Pause after a dispatcher did not answer.
const PAUSE: Duration = Duration::from_millis(200);
/// A worker without work tries the next of several dispatchers after this time: the readers may be there.
const IDLE: Duration = Duration::from_secs(10);
const FAREWELL: Duration = Duration::from_secs(1);
/// Retry interval for a feed that cannot be computed here. A missing file may exist by then.
const REFUSAL: Duration = Duration::from_secs(10);
/// How long a feed and its caches stay open after its last window: as long as the dispatcher keeps it.
const FEED_KEPT: Duration = Duration::from_secs(60);
/// Windows being read and filtered at a time ahead of the readers.
const COMPUTING: usize = 2;

/// A worker's connection to its dispatcher.
pub(crate) enum Link {
    /// The dispatcher in this process.
    Here(Arc<DispatcherService>),
    /// One of several, over the network.
    There(Box<DispatcherClient>),
}

impl Link {
    async fn sync(&self, call: WorkerCall) -> Result<WorkerAnswer> {
        match self {
            Self::Here(dispatcher) => dispatcher.worker_sync(call).await,
            Self::There(dispatcher) => dispatcher.call(actions::WORKER_SYNC, &call).await,
        }
    }

    async fn spec(&self, feed: &str) -> Result<WorkSpec> {
        match self {
            Self::Here(dispatcher) => dispatcher.spec(feed),
            Self::There(dispatcher) => dispatcher.call(actions::FEED_SPEC, &feed).await,
        }
    }

    fn rotate(&self, from: &str) {
        if let Self::There(dispatcher) = self {
            dispatcher.rotate(from);
        }
    }

    fn has_others(&self) -> bool {
        matches!(self, Self::There(dispatcher) if dispatcher.addresses() > 1)
    }

    fn name(&self) -> String {
        match self {
            Self::Here(_) => "this process".to_owned(),
            Self::There(dispatcher) => dispatcher.uri(),
        }
    }
}

/// A worker: its windows, and the keys that verify its readers' tickets.
pub(crate) struct WorkerService {
    id: WorkerId,
    build: &'static Build,
    session: Arc<Session>,
    store: WindowStore,
    machine: Mutex<Worker>,
    trust: Mutex<Trust>,
    draining: Notify,
    /// How long trainers may continue to read after it was told to stop.
    drain_timeout: Duration,
    /// Whether it computes beside a trainer, on what that leaves.
    beside_trainer: bool,
    metrics: WorkerMetrics,
    /// Where to write which windows it computes, if the dispatcher ends with it.
    crashes: OnceLock<Arc<CrashRecord>>,
}

struct Trust {
    verifier: Verifier,
    /// The dispatcher's wall clock at a local instant.
    clock: (Instant, u64),
}

impl WorkerService {
    /// A worker that trainers reach at `address`. Half of `memory_bytes` is for windows before transforming, half for
    /// windows after it.
    pub(crate) fn new(
        session: Arc<Session>,
        address: String,
        memory_bytes: u64,
        drain_timeout: Duration,
    ) -> Result<Self> {
        let id = random_id()?;
        let profile = WorkerProfile { worker: id, address, memory_bytes: memory_bytes / 2, computing: COMPUTING };
        Ok(Self {
            id,
            build: build()?,
            store: session.window_store(memory_bytes / 2),
            session,
            machine: Mutex::new(Worker::new(profile)),
            trust: Mutex::new(Trust { verifier: Verifier::new(), clock: (Instant::now(), 0) }),
            draining: Notify::new(),
            drain_timeout,
            beside_trainer: false,
            metrics: WorkerMetrics::default(),
            crashes: OnceLock::new(),
        })
    }

    /// The same worker, beside a trainer or not.
    pub(crate) fn beside_trainer(self, beside_trainer: bool) -> Self {
        Self { beside_trainer, ..self }
    }

    pub(crate) fn id(&self) -> WorkerId {
        self.id
    }

    /// Sets where to write which windows it computes.
    pub(crate) fn set_crashes(&self, crashes: Arc<CrashRecord>) {
        let _ = self.crashes.set(crashes);
    }

    pub(crate) fn metrics(&self) -> &WorkerMetrics {
        &self.metrics
    }

    /// The memory use of its windows.
    pub(crate) fn usage(&self) -> StoreUsage {
        self.store.usage()
    }

    /// What it waits for from object stores, if it has waited for long.
    pub(crate) fn store_wait(&self) -> Option<StoreWait> {
        store_wait(&self.session)
    }

    /// The state of each of its windows.
    pub(crate) fn states(&self) -> Vec<(WindowKey, StoredState, bool)> {
        self.store.states()
    }

    /// Accepts no new windows from now on. [`run`](Self::run) ends when no trainer reads any more.
    pub(crate) fn drain(&self) {
        self.machine.lock().drain();
        self.draining.notify_one();
    }

    /// Sends a trainer the requested slice, or refuses it.
    pub(crate) async fn serve<S: SliceSender>(&self, request: &WindowRequest, sender: &S) -> S::Answer {
        match self.slice(request).await {
            Ok(slice) => sender.send(slice),
            Err(error) => sender.refuse(&error),
        }
    }

    async fn slice(&self, request: &WindowRequest) -> Result<WindowSlice> {
        let window = self.window(request)?;
        let counted = self.metrics.stream(&request.feed);
        let pieces = Arc::clone(&window).read(request.slice, request.from_row).await?;
        let schema = window.schema();
        let pieces = pieces.inspect_ok(move |piece| counted.sent(&piece.records));
        Ok(WindowSlice { schema, pieces: pieces.boxed() })
    }

    /// The requested window, if the ticket is valid.
    ///
    /// # Errors
    /// `Denied` for an invalid ticket, `NotFound` for a window that is not leased to this worker.
    fn window(&self, request: &WindowRequest) -> Result<Arc<StoredWindow>> {
        {
            let trust = self.trust.lock();
            let now = trust.clock.1 + trust.clock.0.elapsed().as_secs();
            let verified = trust.verifier.verify(&request.ticket, &request.feed, request.secret.as_bytes(), now);
            verified.inspect_err(|_| self.metrics.ticket_refused())?;
        }
        let key: WindowKey = (Arc::clone(&request.feed), request.window);
        self.store.get(&key).ok_or_else(|| {
            let (feed, window) = (&request.feed, request.window);
            let message = format!("window {} of epoch {} of feed {feed} is not here", window.index, window.epoch);
            Error::new(ErrorKind::NotFound, message).with_hint("ask the dispatcher which worker holds it")
        })
    }

    /// Computes leased windows until the worker is drained. Retries while no dispatcher answers.
    ///
    /// # Errors
    /// Permanent refusals by the dispatcher: another build, another worker at the same address, a wrong token.
    pub(crate) async fn run(&self, link: Arc<Link>) -> Result<()> {
        let mut feeds = Feeds {
            session: Arc::clone(&self.session),
            link: Arc::clone(&link),
            all: HashMap::new(),
            opening: JoinSet::new(),
            refused: Vec::new(),
            files: FileTasks::default(),
        };
        let mut calls = FuturesUnordered::new();
        let (mut pause, mut busy, mut drain_until) = (Instant::now(), Instant::now(), None);
        let (mut has_news, mut is_reachable) = (false, None);
        loop {
            has_news |= self.take_stock(&feeds.files);
            feeds.retry();
            if drain_until.is_some_and(|until| Instant::now() >= until || self.machine.lock().is_empty()) {
                return self.leave(&link).await;
            }
            let is_paused = Instant::now() < pause;
            let may_add = has_news && calls.len() < CALLS_MAX && !self.machine.lock().is_in_pass();
            if !is_paused && (calls.is_empty() || may_add) {
                has_news = false;
                let (link, call) = (Arc::clone(&link), self.call(false));
                calls.push(async move { (link.name(), link.sync(call).await) }.boxed());
            }
            let wake = [is_paused.then_some(pause), drain_until].into_iter().flatten().min();
            tokio::select! {
                Some((asked, answer)) = calls.next() => match answer {
                    Ok(answer) => {
                        if is_reachable != Some(true) {
                            tracing::info!(dispatcher = asked, "a dispatcher answers");
                            is_reachable = Some(true);
                            self.metrics.reachable(true);
                        }
                        let has_leases = self.obey(&answer, &mut feeds);
                        has_news |= self.machine.lock().has_more();
                        if has_leases || answer.reply.has_waiting_ranks {
                            busy = Instant::now();
                        } else if link.has_others() && busy.elapsed() >= IDLE {
                            busy = Instant::now();
                            link.rotate(&asked);
                        }
                    }
                    Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => {
                        if is_reachable != Some(false) && drain_until.is_none() {
                            let error = error.message();
                            tracing::warn!(dispatcher = asked, error, "the dispatcher does not answer; retrying");
                            is_reachable = Some(false);
                        }
                        self.metrics.reachable(false);
                        link.rotate(&asked);
                        pause = Instant::now() + PAUSE;
                    }
                    Err(error) if error.kind() == ErrorKind::Invalid && self.say_less() => {
                        let error = error.message();
                        tracing::warn!(dispatcher = asked, error, "the dispatcher cannot take a message; saying less");
                        pause = Instant::now() + PAUSE;
                    }
                    Err(error) => return Err(error),
                },
                Some(opened) = feeds.opening.join_next() => {
                    if let Ok((id, opened)) = opened {
                        has_news = true;
                        self.opened(id, opened, &mut feeds);
                    }
                }
                Some((key, state)) = feeds.files.next() => has_news |= self.written(&key, state),
                () = self.store.changed() => {}
                () = self.draining.notified() => {
                    let windows = self.machine.lock().leases().len();
                    tracing::info!(windows, "draining: trainers read on while other workers take over");
                    drain_until = Some(Instant::now() + self.drain_timeout);
                    has_news = true;
                }
                () = sleep_until(wake.unwrap_or(Instant::now())), if wake.is_some() => {}
            }
            // A dispatcher in this process answers at once. This loop, while it has news, must not keep the rest of the
            // server's task from being polled: the part that accepts connections.
            tokio::task::yield_now().await;
        }
    }

    /// Lets later messages be shorter, after one that a dispatcher could not take. Returns `false` if none can be.
    fn say_less(&self) -> bool {
        self.machine.lock().say_less()
    }

    fn call(&self, leaving: bool) -> WorkerCall {
        let sync = WorkerSync { leaving, store_wait: self.store_wait(), ..self.machine.lock().sync() };
        let threads = self.session.width();
        WorkerCall {
            build: self.build.clone(),
            operators: operator_versions().clone(),
            sync,
            work: self.metrics.work(threads),
            threads: u32::try_from(threads).unwrap_or(u32::MAX),
            beside_trainer: self.beside_trainer,
        }
    }

    /// Carries out the dispatcher's answer. Returns whether any window is leased.
    fn obey(&self, answer: &WorkerAnswer, feeds: &mut Feeds) -> bool {
        match PublicKey::try_from(answer.ticket_key.clone()) {
            Ok(key) => {
                let mut trust = self.trust.lock();
                trust.verifier.trust(key);
                trust.clock = (Instant::now(), answer.now_unix_seconds);
            }
            Err(error) => tracing::warn!(error, "the dispatcher's ticket key cannot be read"),
        }
        let (actions, leases) = {
            let mut machine = self.machine.lock();
            (machine.reply(&answer.reply), machine.leases().to_vec())
        };
        for action in actions {
            match action {
                WorkerAction::Start(key) => {
                    self.metrics.leased(&key);
                    if let Some(work) = feeds.wanted(&key) {
                        self.start(&work, &key, &mut feeds.files);
                    }
                }
                WorkerAction::Drop(key) => {
                    feeds.unwanted(&key);
                    feeds.files.cancel(&key);
                    self.metrics.dropped(&key);
                    self.store.drop_window(&key);
                }
            }
        }
        let order: Vec<_> = leases.into_iter().map(|lease| (lease.key, lease.shares)).collect();
        self.store.prioritise(&order);
        let in_use: HashSet<&Arc<str>> = order.iter().map(|((feed, _), _)| feed).collect();
        feeds.all.retain(|id, feed| {
            let Opening::Done { used, .. } = feed else { return true };
            if in_use.contains(id) {
                *used = Instant::now();
            }
            // The next reader may be about to open it: a loop may open one per epoch.
            let is_kept = used.elapsed() < FEED_KEPT;
            if !is_kept {
                tracing::info!(feed = %id, "feed closed: none of its windows is leased to this worker");
                self.store.close_feed(id);
            }
            is_kept
        });
        !order.is_empty()
    }

    fn start(&self, work: &Work, key: &WindowKey, files: &mut FileTasks) {
        tracing::debug!(feed = %key.0, epoch = key.1.epoch, window = key.1.index, "window leased");
        match work {
            Work::Feed(feed) => self.store.start(feed, key.1),
            Work::Job(job) => {
                files.start(job, key);
                self.machine.lock().report(key, HeldState::Computing, true);
            }
        }
    }

    /// Handles the end of the task that wrote a file. Returns whether there is news for the dispatcher.
    fn written(&self, key: &WindowKey, state: HeldState) -> bool {
        let (job, file) = (&*key.0, key.1.index);
        match &state {
            HeldState::Stored { rows, bytes } => tracing::debug!(job, file, rows, bytes, "file stored"),
            HeldState::Failed(report) => tracing::warn!(job, file, error = report.message, "file failed"),
            _ => {}
        }
        self.machine.lock().report(key, state, false)
    }

    /// Handles the result of opening a feed.
    fn opened(&self, id: Arc<str>, opened: Result<Work>, feeds: &mut Feeds) {
        let Some(Opening::Under(keys)) = feeds.all.remove(&id) else { return };
        match opened {
            Ok(work) => {
                self.machine.lock().forgive(&id);
                tracing::info!(feed = %id, pipeline = work.pipeline(), "feed opened");
                self.metrics.opened(&id, work.pipeline());
                self.metrics.meter(&id, work.meter());
                keys.iter().for_each(|key| self.start(&work, key, &mut feeds.files));
                feeds.all.insert(id, Opening::Done { work, used: Instant::now() });
            }
            // The dispatcher is down or was restarted: the leases still stand, or will be revoked.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound) => {
                tracing::debug!(feed = %id, error = error.message(), "the feed's spec is not available now");
                self.machine.lock().forgive(&id);
                keys.iter().for_each(|key| drop(feeds.wanted(key)));
            }
            Err(error) => {
                feeds.refused.push((Arc::clone(&id), Instant::now()));
                if self.machine.lock().refuse(Arc::clone(&id), error.report()) {
                    tracing::warn!(feed = %id, error = error.message(), "the feed cannot be computed here");
                }
            }
        }
    }

    /// Reports the state of each window to the machine. Returns whether there is news for the dispatcher.
    fn take_stock(&self, files: &FileTasks) -> bool {
        let mut has_news = false;
        let states = self.store.states();
        if let Some(crashes) = self.crashes.get() {
            let at_work = states.iter().filter(|(_, _, at_work)| *at_work).map(|(key, ..)| key);
            let at_work = at_work.chain(files.running()).cloned().collect();
            let is_next = |(_, state, at_work): &&_| matches!(state, StoredState::Computing) && !at_work;
            let next: HashSet<&WindowKey> = states.iter().filter(is_next).map(|(key, ..)| key).collect();
            let leases = self.machine.lock().leases().to_vec();
            crashes.record(at_work, leases.into_iter().map(|lease| lease.key).filter(|key| next.contains(key)));
        }
        let mut machine = self.machine.lock();
        for (key, state, at_work) in states {
            self.metrics.reached(&key, &state);
            let state = match state {
                StoredState::Computing => HeldState::Computing,
                StoredState::Counted { rows, bytes } => HeldState::Counted { rows, bytes },
                StoredState::Ready { rows, bytes } => HeldState::Ready { rows, bytes },
                StoredState::Failed(error) => HeldState::Failed(error.report()),
            };
            let failed = match &state {
                HeldState::Failed(report) => Some(report.message.clone()),
                _ => None,
            };
            let is_news = machine.report(&key, state, at_work);
            has_news |= is_news;
            if let Some(error) = failed.filter(|_| is_news) {
                tracing::warn!(feed = %key.0, epoch = key.1.epoch, window = key.1.index, error, "window failed");
            }
        }
        has_news
    }

    /// Tells the dispatcher that this worker leaves, so that it need not detect the silence.
    async fn leave(&self, link: &Link) -> Result<()> {
        let _ = timeout(FAREWELL, link.sync(self.call(true))).await;
        Ok(())
    }
}

/// The snapshots of a feed that is open at the worker's dispatcher.
struct SnapshotsOf<'a> {
    link: &'a Link,
    feed: &'a str,
}

#[tonic::async_trait]
impl SnapshotSource for SnapshotsOf<'_> {
    async fn snapshot(&self, id: &str) -> Result<SnapshotPieces> {
        match self.link {
            Link::Here(dispatcher) => dispatcher.feed(self.feed)?.snapshot(id).await,
            Link::There(dispatcher) => {
                let call = SnapshotCall { feed: self.feed.to_owned(), snapshot: id.to_owned() };
                dispatcher.snapshot(&call).await
            }
        }
    }
}

/// What a session waits for from object stores, if it has waited for long.
pub(crate) fn store_wait(session: &Session) -> Option<StoreWait> {
    session.store_wait().map(|wait| {
        let (requests, oldest_ms) = (wait.requests, wait.oldest.as_millis() as u64);
        StoreWait { requests, oldest_ms, object: wait.object }
    })
}

/// The feeds of a worker. A feed is opened when a window of it is leased.
struct Feeds {
    session: Arc<Session>,
    link: Arc<Link>,
    all: HashMap<Arc<str>, Opening>,
    opening: JoinSet<(Arc<str>, Result<Work>)>,
    /// Feeds that cannot be computed here, and when they were refused.
    refused: Vec<(Arc<str>, Instant)>,
    /// The files of jobs that are being written.
    files: FileTasks,
}

/// What is leased: windows of a feed, or files of a job.
#[derive(Clone)]
enum Work {
    Feed(Feed),
    Job(Arc<SharedJob>),
}

impl Work {
    fn pipeline(&self) -> &str {
        match self {
            Self::Feed(feed) => feed.pipeline(),
            Self::Job(job) => job.pipeline(),
        }
    }

    fn meter(&self) -> &CostMeter {
        match self {
            Self::Feed(feed) => feed.meter(),
            Self::Job(job) => job.meter(),
        }
    }
}

enum Opening {
    /// These windows wait for the feed.
    Under(Vec<WindowKey>),
    Done {
        work: Work,
        /// When a window of it was last leased.
        used: Instant,
    },
}

impl Feeds {
    /// The feed or job of a window to start; `None` if it is not open yet.
    fn wanted(&mut self, key: &WindowKey) -> Option<Work> {
        match self.all.get_mut(&key.0) {
            Some(Opening::Done { work, .. }) => return Some(work.clone()),
            Some(Opening::Under(keys)) => keys.push(key.clone()),
            None => self.open(&key.0, vec![key.clone()]),
        }
        None
    }

    /// Opens a feed, then starts these windows.
    fn open(&mut self, id: &Arc<str>, keys: Vec<WindowKey>) {
        self.all.insert(Arc::clone(id), Opening::Under(keys));
        let (session, link, id) = (Arc::clone(&self.session), Arc::clone(&self.link), Arc::clone(id));
        self.opening.spawn(async move {
            let opened = async {
                let spec = link.spec(&id).await?;
                let feed = session.open_spec(&spec.feed, &SnapshotsOf { link: &link, feed: &id }).await?;
                Ok(match &spec.job {
                    Some(job) => Work::Job(Arc::new(SharedJob::open(feed, job).await?)),
                    None => Work::Feed(feed),
                })
            };
            let opened = opened.await;
            if opened.is_err() {
                // The feed may be requested again at once.
                sleep(PAUSE).await;
            }
            (id, opened)
        });
    }

    /// Retries feeds that could not be opened a while ago. They stay refused until opening succeeds.
    fn retry(&mut self) {
        let due: Vec<_> = self.refused.extract_if(.., |(_, since)| since.elapsed() >= REFUSAL).collect();
        for (id, _) in due {
            if !self.all.contains_key(&id) {
                self.open(&id, Vec::new());
            }
        }
    }

    /// Cancels the start of a window.
    fn unwanted(&mut self, key: &WindowKey) {
        if let Some(Opening::Under(keys)) = self.all.get_mut(&key.0) {
            keys.retain(|waiting| waiting != key);
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_delivery::messages::{Granted, WorkerReply};
    use forebay_delivery::{Changes, Known, WindowId};

    use super::*;
    use crate::server::REQUEST_BYTES_MAX;

    #[test]
    fn a_message_about_many_windows_that_failed_with_long_reasons_is_a_request_of_permitted_size() {
        const WINDOWS: u32 = 5_000;
        let profile = WorkerProfile {
            worker: WorkerId::MAX,
            address: "grpc+tls://worker-of-a-long-name.example.org:65535".to_owned(),
            memory_bytes: u64::MAX,
            computing: COMPUTING,
        };
        let mut machine = Worker::new(profile);
        let feed: Arc<str> = blake3::hash(b"feed").to_hex().as_str().into();
        let key = |index| (Arc::clone(&feed), WindowId { epoch: u64::MAX, index });
        let granted = |index| (key(index), Some(Granted { lease: u64::MAX, shares: 1.0 / 3.0 }));
        let known = |upto| Known { pass: 1, upto };
        machine.reply(&WorkerReply {
            version: 1,
            seq: 0,
            held: Known::default(),
            leases: Changes { known: (known(0), known(1)), is_all: true, changed: (0..WINDOWS).map(granted).collect() },
            places: Vec::new(),
            has_waiting_ranks: false,
        });
        // JSON escapes control characters with six bytes.
        for character in ["\u{1}", "x", ""] {
            let error =
                Error::new(ErrorKind::Unavailable, character.repeat(1 << 20)).with_hint(character.repeat(1 << 20));
            let report = error.report();
            (0..WINDOWS).for_each(|index| _ = machine.report(&key(index), HeldState::Failed(report.clone()), true));
            (0..500).for_each(|feed| _ = machine.refuse(format!("{feed:064}").into(), report.clone()));
            let sync = machine.sync();
            assert!(machine.has_more());
            let call = WorkerCall {
                build: build().unwrap().clone(),
                operators: operator_versions().clone(),
                sync,
                work: Default::default(),
                threads: 1,
                beside_trainer: false,
            };
            let bytes = serde_json::to_vec(&call).unwrap().len();
            assert!(bytes < REQUEST_BYTES_MAX * 9 / 10, "{bytes} bytes");
        }
    }
}
