//! Dynamic delivery: drives the [`Claimer`] over the network, and reads each claim as a run of offsets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_delivery::{Claim, Claimer, Granted, Start};
use forebay_protocol::{Batch, Error, ErrorKind, Result};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until, timeout, timeout_at};

use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::reader::{
    BUFFER_BYTES, CALLS_MAX, FAREWELL, PATIENCE, PAUSE, RankReader, gone, lasting, moved, no_workers, random,
};
use crate::remote::ReadPlan;
use crate::streams::Workers;
use crate::wire::{ClaimCall, StreamRequest};

/// After so long it is said for whom the rank waits.
const SILENCE: Duration = Duration::from_secs(2);

/// Ranks that are named in a message.
const NAMED_MAX: usize = 16;

/// A rank that takes batches as they come.
pub(crate) struct DynamicReader {
    shared: Arc<Shared>,
    dispatch: Arc<dyn Dispatch>,
    what: ReadPlan,
    options: ConnectOptions,
    /// Connections that all claims are read over.
    workers: Arc<Workers>,
    patience: Duration,
    /// Claims that are being read, in the order of the log.
    reading: VecDeque<(Granted, RankReader)>,
    has_ended: bool,
    driver: JoinSet<()>,
}

struct Shared {
    claimer: Mutex<Claimer>,
    state: Mutex<State>,
    has_news: AtomicBool,
    /// There may be something for the loop.
    moved: Notify,
    /// There may be something for the driver.
    news: Notify,
}

#[derive(Default)]
struct State {
    /// What stands in the way now, and since when; it may pass.
    trouble: Option<(Instant, Error)>,
    /// What will not pass.
    fatal: Option<Error>,
    has_left: bool,
}

impl DynamicReader {
    pub(crate) fn new(dispatch: Arc<dyn Dispatch>, what: ReadPlan, options: ConnectOptions) -> Result<Self> {
        let settings = what.settings();
        let rows = Claimer::claim_rows(&settings);
        let (begin, marks) = match &what.request.from {
            Start::Token(token) => (Claim { epoch: token.epoch, run: token.offset / rows }, token.claims.as_deref()),
            Start::Offset { offset, .. } if offset % rows != 0 => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("dynamic delivery of batches of {} cannot begin at offset {offset}", settings.batch_size),
                )
                .with_hint(format!("begin at a multiple of {rows}: batches are claimed four at a time")));
            }
            Start::Offset { epoch, offset } => (Claim { epoch: *epoch, run: offset / rows }, None),
        };
        // Two claims are received at a time.
        let options =
            ConnectOptions { buffer_bytes: Some(options.buffer_bytes.unwrap_or(BUFFER_BYTES) / 2), ..options };
        let session = session();
        let job = what.request.job.clone().unwrap_or_else(|| format!("{session:016x}"));
        let claimer = Claimer::new(what.metadata.feed.as_str().into(), job, session, settings, begin, marks)?;
        let shared = Arc::new(Shared {
            claimer: Mutex::new(claimer),
            state: Mutex::default(),
            has_news: AtomicBool::new(true),
            moved: Notify::new(),
            news: Notify::new(),
        });
        let mut driver = JoinSet::new();
        // The claimer must know whenever it talks to another dispatcher: readers of claims turn to others as they like.
        driver.spawn(drive(Arc::clone(&shared), dispatch.apart(), what.clone()));
        let patience = options.patience.unwrap_or(PATIENCE);
        let workers = Workers::new(options.clone());
        let reading = VecDeque::new();
        Ok(Self { shared, dispatch, what, options, workers, patience, reading, has_ended: false, driver })
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Batch>> {
        if self.has_ended {
            return None;
        }
        let next = self.advance().await.transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }

    async fn advance(&mut self) -> Result<Option<Batch>> {
        loop {
            // Before anything that is here: of a process that was replaced, nothing counts any more.
            if let Some(error) = self.shared.state.lock().fatal.take() {
                return Err(error);
            }
            while let Some((granted, from)) = self.shared.claimer.lock().take() {
                let (dispatch, workers) = (Arc::clone(&self.dispatch), Arc::clone(&self.workers));
                let reader = RankReader::of_claim(dispatch, workers, &self.what, self.options.clone(), &granted, from);
                self.reading.push_back((granted, reader));
            }
            if let Some((granted, reader)) = self.reading.front_mut() {
                let granted = *granted;
                let batch = tokio::select! {
                    biased;
                    // Another claim may be there, to be received ahead, or an error.
                    () = self.shared.moved.notified() => continue,
                    batch = reader.next() => batch,
                };
                match batch {
                    Some(batch) => return self.hand_out(&granted, batch?).map(Some),
                    None => {
                        self.reading.pop_front();
                        self.handed(&granted, granted.end);
                        continue;
                    }
                }
            }
            if self.shared.claimer.lock().is_finished() {
                return Ok(None);
            }
            if self.driver.is_empty() {
                return Err(gone());
            }
            let trouble = self.shared.state.lock().trouble.clone();
            match trouble {
                Some((since, error)) => {
                    let moved = moved(&self.shared.moved, &mut self.driver);
                    if timeout_at(since + self.patience, moved).await.is_err() {
                        return Err(error);
                    }
                }
                None => moved(&self.shared.moved, &mut self.driver).await,
            }
        }
    }

    fn hand_out(&mut self, granted: &Granted, batch: Batch) -> Result<Batch> {
        self.handed(granted, batch.offset + batch.positions);
        let token = self.shared.claimer.lock().token();
        Ok(Batch { step: batch.offset / self.what.metadata.batch_size, token, ..batch })
    }

    fn handed(&self, granted: &Granted, offset: u64) {
        self.shared.claimer.lock().handed(granted.claim, offset);
        if offset >= granted.end {
            self.shared.has_news.store(true, Ordering::Relaxed);
            self.shared.news.notify_one();
        }
    }

    pub(crate) async fn close(&mut self) {
        self.leave();
        while self.driver.join_next().await.is_some() {}
        for (_, reader) in &mut self.reading {
            reader.close().await;
        }
    }

    fn leave(&mut self) {
        self.shared.state.lock().has_left = true;
        self.shared.news.notify_one();
    }
}

impl Drop for DynamicReader {
    fn drop(&mut self) {
        self.leave();
        // It says farewell by itself, within a second.
        self.driver.detach_all();
    }
}

/// Tells the dispatcher what is done and hears what is granted, until the reader leaves.
async fn drive(shared: Arc<Shared>, dispatch: Arc<dyn Dispatch>, what: ReadPlan) {
    let mut calls = FuturesUnordered::new();
    let mut pause = Instant::now();
    // Since when other ranks are waited for at this dispatcher.
    let (first, mut awaiting) = (dispatch.name(), None);
    let request = StreamRequest { from: Start::default(), ..what.request };
    // An old process of this rank may ask any of them.
    let others = dispatch.others();
    let dispatchers = others.len() + 1;
    let announced = (dispatchers > 1).then(|| shared.claimer.lock().announce());
    let mut announcing = FuturesUnordered::new();
    for (other, message) in others.into_iter().zip(announced.into_iter().cycle()) {
        let call = ClaimCall { request: request.clone(), message };
        announcing.push(async move { other.claim(&call).await });
    }
    let mut has_said = false;
    loop {
        let has_left = shared.state.lock().has_left;
        let is_paused = Instant::now() < pause;
        let has_news = shared.has_news.load(Ordering::Relaxed);
        if has_left || (!is_paused && (calls.is_empty() || (calls.len() < CALLS_MAX && has_news))) {
            shared.has_news.store(false, Ordering::Relaxed);
            let message = match has_left {
                true => shared.claimer.lock().leave(),
                false => shared.claimer.lock().sync(),
            };
            let (dispatch, call) = (Arc::clone(&dispatch), ClaimCall { request: request.clone(), message });
            if has_left {
                // What is done is asked for anyway when the others end.
                let _ = timeout(FAREWELL, dispatch.claim(&call)).await;
                return;
            }
            calls.push(async move { (dispatch.name(), dispatch.claim(&call).await) }.boxed());
        }
        tokio::select! {
            Some(answer) = announcing.next() => {
                if let Some(error) = answer.err().filter(|error| error.kind() == ErrorKind::Conflict) {
                    shared.state.lock().fatal = Some(error);
                    shared.moved.notify_one();
                    return;
                }
            }
            Some((asked, answer)) = calls.next() => match answer {
                Ok(answer) => {
                    let reply = &answer.reply;
                    let idle = (reply.workers == 0).then(|| no_workers(&asked));
                    let awaited = awaited(&reply.awaited);
                    awaiting = awaited.is_some().then(|| awaiting.unwrap_or_else(Instant::now));
                    if let Some(error) = awaited.as_ref().filter(|_| awaiting.is_some_and(|since| since.elapsed() > SILENCE)) {
                        if !std::mem::replace(&mut has_said, true) {
                            tracing::warn!(dispatcher = asked, "{}", error.message());
                        }
                    } else if awaited.is_none() && std::mem::take(&mut has_said) {
                        tracing::info!(dispatcher = asked, "all ranks are there");
                    }
                    let is_idle = idle.is_some();
                    let trouble = reply.failed.as_ref().map(Error::from).or(idle).or(awaited);
                    let must_turn = {
                        let mut claimer = shared.claimer.lock();
                        claimer.reply(answer);
                        // Those that are waited for may be elsewhere.
                        let is_newest = dispatch.name() == asked;
                        is_newest && (is_idle || (dispatchers > 1 && claimer.should_turn(asked == first, dispatchers)))
                    };
                    match trouble {
                        Some(error) => lasting(&mut shared.state.lock().trouble, error),
                        None => shared.state.lock().trouble = None,
                    }
                    shared.moved.notify_one();
                    if must_turn {
                        dispatch.rotate(&asked);
                        shared.claimer.lock().turn();
                        (pause, awaiting) = (Instant::now() + PAUSE, None);
                    }
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => {
                    lasting(&mut shared.state.lock().trouble, error);
                    shared.moved.notify_one();
                    shared.claimer.lock().turn();
                    (pause, awaiting) = (Instant::now() + PAUSE, None);
                }
                Err(error) => {
                    shared.state.lock().fatal = Some(error);
                    shared.moved.notify_one();
                    return;
                }
            },
            () = shared.news.notified() => {}
            () = sleep_until(pause), if is_paused => {}
        }
    }
}

/// Greater than those of the processes that were this rank before.
fn session() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "only the wall clock outlives a process")]
    let now = std::time::SystemTime::now();
    let millis = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    millis << 16 | u64::from(u16::from_le_bytes(random()))
}

fn awaited(ranks: &[u64]) -> Option<Error> {
    let mut names: Vec<_> = ranks.iter().take(NAMED_MAX).map(u64::to_string).collect();
    names.extend((ranks.len() > NAMED_MAX).then(|| format!("and {} others", ranks.len() - NAMED_MAX)));
    let message = format!("nothing is handed out before rank {} is there", names.join(", "));
    let error = Error::new(ErrorKind::Unavailable, message).with_hint(
        "with dynamic delivery every rank must say what it holds: start them all, with one name for the option \"job\"",
    );
    (!ranks.is_empty()).then_some(error)
}
