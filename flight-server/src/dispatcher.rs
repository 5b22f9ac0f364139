//! The dispatcher's side of the cluster: answers calls with the [`Dispatcher`] of `forebay-delivery`.
//!
//! A call is answered at once if there is news for its caller, otherwise when news arrives or after half a second. So
//! every caller calls at least that often.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_delivery::messages::Report;
use forebay_delivery::{
    ClaimAnswer, Dispatcher, DispatcherSettings, Millis, ReaderSessions, RefusedReader, Replaced, ScalingStatus,
    Status, Unanswered, WindowId, WorkerId, WritingProgress,
};
use forebay_engine::{
    Error, ErrorKind, Feed, FeedSpec, Job, JobSpec, Result, Session, build, operator_differences, operator_versions,
};
use forebay_flight_client::StreamRequest;
use forebay_flight_client::wire::{ClaimCall, ReaderAnswer, ReaderCall, WorkDone, WorkerAnswer, WorkerCall};
use forebay_protocol::random_bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::caller::Pipelines;
use crate::calls::{CallerId, UnansweredCalls};
use crate::crash_record::CrashRecord;
use crate::jobs::LeasedPlan;
use crate::journal::{FeedReading, Journal};
use crate::redacted::{NameHash, redacted};
use crate::ticket::{Signer, TicketClaims};
use forebay_flight_client::wall_clock::now_unix_seconds;

/// How long a call waits for news.
const POLL: Duration = Duration::from_millis(500);
/// The most feeds that are open at a time. A feed without readers is closed after a minute.
const FEEDS_MAX: usize = 1024;
/// How often to check for silent peers.
const TICK: Duration = Duration::from_millis(250);
/// Lifetime of a ticket. A trainer gets a new one with every answer.
const TICKET_SECONDS: u64 = 15 * 60;

/// The dispatcher of a session's pipelines.
pub(crate) struct DispatcherService {
    session: Arc<Session>,
    state: Mutex<DispatcherState>,
    /// Behind a lock of its own: no call should wait while it writes to the log.
    journal: Mutex<Journal>,
    work: Mutex<HashMap<WorkerId, WorkerWork>>,
    scaling: Mutex<Option<ScalingStatus>>,
    changed: Notify,
    calls: UnansweredCalls,
    began: Instant,
    signer: Signer,
    /// The worker in this process, if there is one, and this process's address, which no other worker may claim.
    own: OnceLock<(Option<WorkerId>, String)>,
    /// What earlier processes computed that ended here.
    crashes: OnceLock<Arc<CrashRecord>>,
    names: NameHash,
}

/// What a worker has done, as of its newest message.
#[derive(Clone, Default)]
pub(crate) struct WorkerWork {
    seq: u64,
    pub(crate) threads: u32,
    /// Whether the worker computes beside a trainer.
    pub(crate) beside_trainer: bool,
    /// By feed.
    pub(crate) done: BTreeMap<String, WorkDone>,
}

/// A worker's call that waits for an answer. Dropping it early means that its connection broke.
struct HangingUp<'a> {
    dispatcher: &'a DispatcherService,
    worker: Option<WorkerId>,
}

impl Drop for HangingUp<'_> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker {
            self.dispatcher.act(|state| state.dispatcher.suspect(worker));
        }
    }
}

struct DispatcherState {
    dispatcher: Dispatcher<LeasedPlan>,
    /// Open feeds, and the feeds of open jobs under the jobs' names.
    feeds: HashMap<Arc<str>, Feed>,
    jobs: HashMap<Arc<str>, JobSpec>,
    sessions: ReaderSessions,
}

impl DispatcherService {
    pub(crate) fn new(session: Arc<Session>) -> Result<Self> {
        let instance = u32::from_le_bytes(random_bytes()?);
        let dispatcher = Dispatcher::new(DispatcherSettings::default(), instance, 0);
        Ok(Self {
            session,
            state: Mutex::new(DispatcherState {
                dispatcher,
                feeds: HashMap::new(),
                jobs: HashMap::new(),
                sessions: ReaderSessions::default(),
            }),
            journal: Mutex::default(),
            work: Mutex::default(),
            scaling: Mutex::default(),
            changed: Notify::new(),
            calls: UnansweredCalls::default(),
            began: Instant::now(),
            signer: Signer::generate(),
            own: OnceLock::new(),
            crashes: OnceLock::new(),
            names: NameHash::new(random_bytes()?),
        })
    }

    fn now(&self) -> Millis {
        self.began.elapsed().as_millis() as Millis
    }

    /// Detects silent peers, forever, and calls `also` as often.
    pub(crate) async fn watch(&self, also: impl Fn()) {
        loop {
            sleep(TICK).await;
            also();
            let (status, failures) = self.act(|DispatcherState { dispatcher, feeds, .. }| {
                dispatcher.tick(self.now());
                feeds.retain(|id, _| dispatcher.has_feed(id));
                let failures = dispatcher.failures().map(|(id, window, why)| (Arc::clone(id), window, why));
                let failures: Vec<_> = failures.collect();
                (dispatcher.status(self.now()), failures)
            });
            self.journal.lock().look(&status, failures);
        }
    }

    /// Sets the worker in this process, if there is one, and the address of this process.
    pub(crate) fn set_own(&self, worker: Option<WorkerId>, address: &str) {
        let _ = self.own.set((worker, address.to_owned()));
    }

    /// Sets the record of earlier processes that computed here.
    pub(crate) fn set_crashes(&self, crashes: Arc<CrashRecord>) {
        let _ = self.crashes.set(crashes);
    }

    pub(crate) async fn worker_sync(&self, call: WorkerCall) -> Result<WorkerAnswer> {
        check_build(&call)?;
        let sync = &call.sync;
        if self.own.get().is_some_and(|(worker, address)| *address == sync.address && *worker != Some(sync.worker)) {
            let message = format!("the dispatcher itself serves at {}", sync.address);
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("the option \"advertise\" is the worker's address for trainers, not the dispatcher's"));
        }
        self.act(|state| state.dispatcher.worker_sync(sync, self.now())).map_err(|replaced| rival(&replaced))?;
        self.journal.lock().worker(sync);
        self.set_work(&call);
        let mut hanging_up = HangingUp { dispatcher: self, worker: (!sync.leaving).then_some(sync.worker) };
        let reply = self.poll(("worker", sync.worker), sync.seq, |state| {
            let Some(reply) = state.dispatcher.worker_reply(sync.worker, self.now()) else {
                // Another worker may have taken its place while the call waited.
                let replaced = state.dispatcher.replaced(sync.worker);
                return Err(replaced.map_or_else(
                    || Error::new(ErrorKind::Unavailable, "the worker has left"),
                    |replaced| rival(&replaced),
                ));
            };
            Ok((reply.is_urgent(sync), reply))
        });
        let reply = reply.await;
        hanging_up.worker = None;
        let (reply, ticket_key) = (reply?, self.signer.public_key().to_string());
        Ok(WorkerAnswer { reply, ticket_key, now_unix_seconds: now_unix_seconds() })
    }

    pub(crate) async fn reader_sync(&self, call: ReaderCall) -> Result<ReaderAnswer> {
        let sync = &call.sync;
        self.open(&call.request, &call.sync.feed)?;
        let ticket = self.ticket(&call)?;
        let refusal = |why: Report| Error::from(&why);
        self.act(|state| {
            state.sessions.admit(sync, &call.secret_key).map_err(refused)?;
            state.dispatcher.reader_sync(sync, self.now()).map_err(refusal)
        })?;
        // A new reader tries again what ended earlier processes. Each later claim of a rank has a reader of its own.
        if let Some(crashes) = self.crashes.get().filter(|_| sync.seq == 1 && !sync.is_later_claim) {
            crashes.forget(&sync.feed, sync.at);
        }
        self.journal.lock().reader(sync);
        let reply = self.poll(("reader", sync.session), sync.seq, |state| {
            let reply = state.dispatcher.reader_reply(sync).map_err(refusal)?;
            Ok((reply.version != sync.known || reply.seq > sync.seq, reply))
        });
        Ok(ReaderAnswer { reply: reply.await?, ticket })
    }

    pub(crate) async fn claim_sync(&self, call: ClaimCall) -> Result<ClaimAnswer> {
        let message = &call.message;
        self.open(&call.request, &message.feed)?;
        let refused = |why: Unanswered| Error::from(&why.report());
        self.act(|state| state.dispatcher.claim_sync(message, self.now())).map_err(refused)?;
        let answer = self.poll(("claims", message.session), message.seq, |state| {
            let answer = state.dispatcher.claim_answer(message, self.now()).map_err(refused)?;
            Ok((answer.version != message.known || answer.seq > message.seq, answer))
        });
        answer.await
    }

    /// Runs `act`, and wakes waiting calls if the state changed. Most messages change nothing and would wake all calls
    /// in vain.
    fn act<T>(&self, act: impl FnOnce(&mut DispatcherState) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.dispatcher.revision();
        let done = act(&mut state);
        let is_news = state.dispatcher.revision() != before;
        drop(state);
        if is_news {
            self.changed.notify_waiters();
        }
        done
    }

    /// Waits until `look` has news for `caller`, whose message is number `seq`, or for half a second.
    async fn poll<T>(
        &self,
        caller: CallerId,
        seq: u64,
        mut look: impl FnMut(&mut DispatcherState) -> Result<(bool, T)>,
    ) -> Result<T> {
        let deadline = Instant::now() + POLL;
        let waiting = self.calls.begin(caller, seq);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before looking, so that a change in between is not missed.
            changed.as_mut().enable();
            // Granting claims to a rank may change which windows are needed.
            let (is_news, answer) = self.act(&mut look)?;
            if is_news {
                return Ok(answer);
            }
            tokio::select! {
                () = changed => {}
                () = waiting.superseded() => {}
                () = sleep_until(deadline) => return Ok(answer),
            }
        }
    }

    fn ticket(&self, call: &ReaderCall) -> Result<String> {
        let key = blake3::Hash::from_hex(&call.secret_key).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("\"secret_key\" must be 64 hexadecimal digits: {error}"))
        })?;
        Ok(self.signer.sign(&TicketClaims {
            feed: call.sync.feed.to_string(),
            reader: format!("{:016x}", call.sync.session),
            reader_key: *key.as_bytes(),
            expires_unix_seconds: now_unix_seconds() + TICKET_SECONDS,
        }))
    }

    /// Opens the feed of a trainer that is new or came from another dispatcher.
    fn open(&self, request: &StreamRequest, id: &Arc<str>) -> Result<()> {
        let open_feeds = {
            let state = self.state.lock();
            if state.dispatcher.has_feed(id) {
                return Ok(());
            }
            state.feeds.len()
        };
        if open_feeds >= FEEDS_MAX {
            let message = format!("{FEEDS_MAX} feeds are being read here, and each seed or option makes another feed");
            return Err(Error::new(ErrorKind::Exhausted, message)
                .with_hint("wait until some have ended, or read from another dispatcher"));
        }
        let feed = open(&self.session, request, Some(id))?;
        if feed.id() != &**id {
            let message = format!(
                "pipeline \"{}\" opens here as feed {}, but the reader reads feed {id}",
                request.pipeline,
                feed.id()
            );
            return Err(Error::new(ErrorKind::Conflict, message)
                .with_hint("the pipeline's query, files or operators have changed since the reader began"));
        }
        self.journal.lock().opened(id, feed.pipeline());
        let ended = self.crashes.get().map_or(Vec::new(), |crashes| crashes.ended(id));
        self.act(|state| {
            state.dispatcher.open(id, LeasedPlan::Windows(feed.plan()), self.now());
            state.dispatcher.describe(id, about(&feed));
            for (windows, is_alone) in ended {
                state.dispatcher.remember_loss(id, windows, is_alone);
            }
            state.feeds.insert(Arc::clone(id), feed);
        });
        Ok(())
    }

    /// The spec from which a worker opens a feed or a job.
    pub(crate) fn spec(&self, id: &str) -> Result<WorkSpec> {
        let feed = self.feed(id)?.spec();
        Ok(WorkSpec { feed, job: self.state.lock().jobs.get(id).cloned() })
    }

    /// Opens a job until the result is dropped. Workers write its files, except those that are `stored`. If a client
    /// `begins` it, retries the files that ended earlier processes.
    pub(crate) fn open_job(self: &Arc<Self>, job: &Job, spec: JobSpec, stored: Vec<u32>, begins: bool) -> OpenJob {
        let name: Arc<str> = job.name().into();
        self.journal.lock().opened(&name, job.feed().pipeline());
        if let Some(crashes) = self.crashes.get().filter(|_| begins) {
            crashes.forget(&name, WindowId { epoch: 0, index: 0 });
        }
        let ended = self.crashes.get().map_or(Vec::new(), |crashes| crashes.ended(&name));
        self.act(|state| {
            let plan = LeasedPlan::Files(job.file_plan());
            state.dispatcher.open_writing(&name, plan, stored, self.now());
            state.dispatcher.describe(&name, about(job.feed()));
            for (files, is_alone) in ended {
                state.dispatcher.remember_loss(&name, files, is_alone);
            }
            state.feeds.insert(Arc::clone(&name), job.feed().clone());
            state.jobs.insert(Arc::clone(&name), spec);
        });
        OpenJob { dispatcher: Arc::clone(self), name }
    }

    /// An open feed.
    pub(crate) fn feed(&self, id: &str) -> Result<Feed> {
        let feed = self.state.lock().feeds.get(id).cloned();
        feed.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("feed {id} is not open here")))
    }

    pub(crate) fn status(&self) -> Status {
        let work = self.work();
        let status = self.state.lock().dispatcher.status(self.now());
        let mut status = Status { scaling: self.scaling.lock().clone(), ..status };
        for feed in &mut status.feeds {
            feed.keeps = work.values().find_map(|worker| worker.done.get(&*feed.feed)?.keeps.clone());
        }
        for worker in &mut status.workers {
            worker.beside_trainer = work.get(&worker.worker).is_some_and(|work| work.beside_trainer);
        }
        status
    }

    fn set_work(&self, call: &WorkerCall) {
        let mut work = self.work.lock();
        let known = work.entry(call.sync.worker).or_default();
        // Two messages may be under way.
        if known.seq <= call.sync.seq {
            let WorkerCall { threads, beside_trainer, .. } = *call;
            *known = WorkerWork { seq: call.sync.seq, threads, beside_trainer, done: call.work.clone() };
        }
    }

    /// What each worker in contact has done.
    pub(crate) fn work(&self) -> HashMap<WorkerId, WorkerWork> {
        let mut work = self.work.lock();
        let state = self.state.lock();
        work.retain(|worker, _| state.dispatcher.has_worker(*worker));
        work.clone()
    }

    /// Sets how many workers there should be, and returns what was set before.
    pub(crate) fn set_scaling(&self, scaling: ScalingStatus) -> Option<ScalingStatus> {
        self.scaling.lock().replace(scaling)
    }

    /// The part of a status that a reader of these pipelines sees.
    pub(crate) fn redacted(&self, status: Status, pipelines: &Pipelines) -> Status {
        let is_readable = |feed: &Feed| pipelines.permit(feed.pipeline());
        let readable = || {
            let state = self.state.lock();
            state.feeds.iter().filter(|(_, feed)| is_readable(feed)).map(|(id, _)| Arc::clone(id)).collect()
        };
        let readable = pipelines.0.is_some().then(readable);
        redacted(status, readable.as_ref(), &self.names)
    }

    /// The state of the dispatcher, and the counters of each feed's readers.
    pub(crate) fn observe(&self) -> (Status, Vec<FeedReading>) {
        let status = self.status();
        let journal = self.journal.lock();
        let reading = status.feeds.iter().map(|feed| journal.reading(&feed.feed)).collect();
        (status, reading)
    }

    /// Whether `worker` is the only worker.
    pub(crate) fn is_alone(&self, worker: WorkerId) -> bool {
        self.status().workers.iter().all(|it| it.worker == worker)
    }
}

/// What a worker needs to open a feed, or a job that writes its samples.
#[derive(Serialize, Deserialize)]
pub(crate) struct WorkSpec {
    pub(crate) feed: FeedSpec,
    pub(crate) job: Option<JobSpec>,
}

/// A job that is open at a dispatcher.
pub(crate) struct OpenJob {
    dispatcher: Arc<DispatcherService>,
    name: Arc<str>,
}

impl OpenJob {
    /// Asks for the job, so that it continues, and returns how far it is.
    pub(crate) fn ask(&self) -> Result<WritingProgress> {
        let progress = self.dispatcher.act(|DispatcherState { dispatcher, .. }| {
            dispatcher.ask_for_writing(&self.name, self.dispatcher.now());
            dispatcher.writing_progress(&self.name)
        });
        progress.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the job was closed"))
    }

    /// Waits until anything changes.
    pub(crate) async fn changed(&self) {
        self.dispatcher.changed.notified().await;
    }
}

impl Drop for OpenJob {
    fn drop(&mut self) {
        self.dispatcher.act(|state| {
            state.dispatcher.close_writing(&self.name);
            state.feeds.remove(&self.name);
            state.jobs.remove(&self.name);
        });
    }
}

/// Opens the requested feed: `id` if an earlier version of the pipeline has it and is still read, or else the one that
/// the pipeline has now.
pub(crate) fn open(session: &Session, request: &StreamRequest, id: Option<&str>) -> Result<Feed> {
    let options = request.feed_options();
    let now = session.open(&request.pipeline, &options);
    let is_it = now.as_ref().is_ok_and(|feed| id.is_none_or(|id| feed.id() == id));
    let earlier = id.filter(|_| !is_it).and_then(|id| session.open_replaced(&request.pipeline, &options, id));
    earlier.map_or(now, Ok)
}

/// Describes a feed's pipeline and operators: a worker that is killed cannot report which operator took its memory.
fn about(feed: &Feed) -> String {
    let identity = feed.identity();
    let operators: Vec<&str> =
        identity["operators"].as_object().into_iter().flatten().map(|(name, _)| &**name).collect();
    match operators.is_empty() {
        true => format!(" of pipeline \"{}\"", feed.pipeline()),
        false => format!(" of pipeline \"{}\", which calls {},", feed.pipeline(), operators.join(", ")),
    }
}

fn rival(replaced: &Replaced) -> Error {
    let message = format!("another worker serves at {} now", replaced.address);
    Error::new(ErrorKind::Conflict, message)
        .with_hint("give each worker its own option \"port\" and option \"advertise\"")
}

fn refused(why: RefusedReader) -> Error {
    match why {
        RefusedReader::Left => has_left(),
        RefusedReader::Stranger => Error::new(ErrorKind::Denied, "this session belongs to another reader")
            .with_hint("run the same version of forebay everywhere: a session follows from its secret key"),
    }
}

fn has_left() -> Error {
    Error::new(ErrorKind::Unavailable, "the reader has left")
}

/// Refuses a worker of another build, which may compute other bytes.
fn check_build(call: &WorkerCall) -> Result<()> {
    let mut differences = build()?.differences(&call.build);
    differences.extend(operator_differences(operator_versions(), &call.operators));
    if differences.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the worker at {} is of another build than this dispatcher: {}",
        call.sync.address,
        differences.join("; ")
    );
    Err(Error::new(ErrorKind::Conflict, message).with_hint("run the same version of forebay everywhere"))
}

#[cfg(test)]
mod tests {
    use forebay_delivery::messages::{ReaderSync, WorkerSync};
    use forebay_delivery::{Changes, Known, session_of};
    use forebay_flight_client::StreamRequest;

    use super::*;

    #[test]
    fn a_worker_of_another_build_is_refused_with_the_difference() {
        let sync = WorkerSync {
            worker: 1,
            seq: 1,
            address: "grpc://10.0.0.7:7071".to_owned(),
            memory_bytes: 0,
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
        let same = WorkerCall {
            build: build().unwrap().clone(),
            operators: operator_versions().clone(),
            sync,
            work: Default::default(),
            threads: 1,
            beside_trainer: false,
        };
        assert!(check_build(&same).is_ok());
        let refusal = |change: &dyn Fn(&mut WorkerCall)| {
            let mut call = same.clone();
            change(&mut call);
            let error = check_build(&call).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert_eq!(error.hint(), Some("run the same version of forebay everywhere"));
            error.message().to_owned()
        };
        let build = "the worker at grpc://10.0.0.7:7071 is of another build than this dispatcher: ";
        let here = env!("CARGO_PKG_VERSION");
        assert_eq!(
            refusal(&|call| call.build.version = "0.0.9".to_owned()),
            format!("{build}forebay is version {here} here and 0.0.9 there")
        );
        let message = refusal(&|call| _ = call.operators.insert("resize".to_owned(), 99));
        assert!(message.starts_with(build) && message.contains("resize"), "{message}");
        let message = refusal(&|call| _ = call.operators.remove("resize"));
        assert!(message.starts_with(build) && message.contains("resize"), "{message}");
        let message = refusal(&|call| _ = call.operators.insert("rotate".to_owned(), 1));
        assert!(message.starts_with(build) && message.contains("rotate"), "{message}");
    }

    #[tokio::test]
    async fn a_message_that_its_farewell_overtook_does_not_bring_a_reader_back() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rows.csv"), "id\n1\n").unwrap();
        let session = Session::builder().base(folder.path()).root("memory:///root").build().unwrap();
        let script =
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv'; CREATE PIPELINE p AS SELECT id FROM t;";
        session.execute("script.sql", script).await.unwrap();
        let feed = session.open("p", &forebay_engine::FeedOptions::default()).unwrap();
        let dispatcher = DispatcherService::new(Arc::new(session)).unwrap();
        let call = |seq, leaving| ReaderCall {
            request: StreamRequest { pipeline: "p".to_owned(), ..StreamRequest::default() },
            secret_key: blake3::hash(b"secret").to_hex().to_string(),
            sync: ReaderSync {
                session: session_of(&blake3::hash(b"secret").to_hex()),
                seq,
                feed: feed.id().into(),
                rank: 0,
                world_size: 1,
                member: None,
                at: WindowId { epoch: 0, index: 0 },
                until_epoch: 1,
                known: 0,
                broken: Vec::new(),
                waiting: None,
                leaving,
                is_later_claim: false,
                samples: 0,
                bytes: 0,
                stalled_ms: 0,
                elapsed_ms: 0,
            },
        };
        let readers = || dispatcher.status().feeds[0].readers.len();
        dispatcher.reader_sync(call(1, false)).await.unwrap();
        assert_eq!(readers(), 1);
        // Another trainer that knows the session's number can neither end it nor confuse its messages.
        for (seq, leaving) in [(2, true), (1 << 63, false)] {
            let secret_key = blake3::hash(b"another secret").to_hex().to_string();
            let stranger = ReaderCall { secret_key, ..call(seq, leaving) };
            assert_eq!(dispatcher.reader_sync(stranger).await.unwrap_err().kind(), ErrorKind::Denied);
            assert_eq!(readers(), 1);
        }
        assert_eq!(dispatcher.reader_sync(call(3, true)).await.unwrap_err().message(), "the reader has left");
        assert_eq!(dispatcher.reader_sync(call(2, false)).await.unwrap_err().message(), "the reader has left");
        assert_eq!(readers(), 0);
    }
}
