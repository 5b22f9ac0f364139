//! A reader with dynamic delivery: delivers batches as the rank claims them.
//!
//! One task reports finished claims to the dispatcher and receives granted ones. A [`Follower`] per claim receives its
//! rows. The [`DynamicTrainer`] makes all decisions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::SchemaRef;
use forebay_delivery::{
    Claim, ClaimAnswer, Claimer, DynamicTrainer, Meeting, Millis, Next, ReceiveLimits, Start, Token,
};
use forebay_protocol::{Batch, Error, ErrorKind, Result};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::Clock;
use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::follow::{Follower, secret_and_session};
use crate::followed::{FollowedTrainer, Machine};
use crate::piece::{self, Piece};
use crate::process_number::process_number;
use crate::read_plan::ReadPlan;
use crate::transport::SliceTransport;
use crate::waiting::{FAREWELL, gone, moved, patience_ms, with_resume_hint};
use crate::wire::{ClaimCall, StreamRequest};

/// After waiting this long, the log names the ranks that this rank waits for.
const SILENCE_MS: Millis = 2_000;

/// A rank that takes batches as they become available.
pub(crate) struct DynamicReader {
    rank: Arc<SharedRank>,
    dispatch: Arc<dyn Dispatch>,
    /// The transport of all claims.
    transport: Arc<dyn SliceTransport>,
    request: StreamRequest,
    feed: Arc<str>,
    schema: SchemaRef,
    patience_ms: Millis,
    /// The followers of the claims being read. The first one is the loop's current claim.
    followers: VecDeque<(Claim, Follower)>,
    last: Option<Token>,
    /// The secret and the session with which the next claim is read.
    next: (String, u64),
    /// When the loop started waiting.
    waits_since: Option<Millis>,
    has_ended: bool,
    driver: JoinSet<()>,
}

/// State shared by the loop and the task that talks to the dispatcher.
struct SharedRank {
    /// Also shared with the claims' followers.
    trainer: Arc<Mutex<DynamicTrainer<Piece>>>,
    clock: Clock,
    has_left: AtomicBool,
    /// Wakes the loop.
    moved: Arc<Notify>,
    /// Wakes the task that talks to the dispatcher.
    news: Notify,
}

impl DynamicReader {
    pub(crate) fn new(
        dispatch: Arc<dyn Dispatch>,
        transport: Arc<dyn SliceTransport>,
        what: ReadPlan,
        options: &ConnectOptions,
    ) -> Result<Self> {
        let claimer = claimer(&what)?;
        let patience_ms = patience_ms(options.patience);
        // The rank must notice when it talks to another dispatcher, but followers of claims rotate on their own.
        let claiming = dispatch.apart();
        let others = claiming.others();
        let limits = ReceiveLimits::of_bytes(options.buffer_bytes()).patient_for(patience_ms);
        let trainer = DynamicTrainer::new(claimer, others.len() + 1, limits, patience_ms);
        let rank = Arc::new(SharedRank {
            trainer: Arc::new(Mutex::new(trainer)),
            clock: Clock::start(),
            has_left: AtomicBool::new(false),
            moved: Arc::new(Notify::new()),
            news: Notify::new(),
        });
        let mut driver = JoinSet::new();
        let request = StreamRequest { from: Start::default(), ..what.request.clone() };
        let claiming = ClaimDriver::new(Arc::clone(&rank), claiming, request);
        driver.spawn(claiming.run(others));
        Ok(Self {
            rank,
            dispatch,
            transport,
            feed: what.metadata.feed.as_str().into(),
            request: what.request,
            schema: what.schema,
            patience_ms,
            followers: VecDeque::new(),
            last: None,
            next: secret_and_session()?,
            waits_since: None,
            has_ended: false,
            driver,
        })
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
            self.begin_claims()?;
            let now = self.rank.clock.now();
            let next = self.rank.trainer.lock().next(now);
            self.end_claims();
            self.followers.iter().for_each(|(_, follower)| follower.followed.looked());
            self.rank.news.notify_one();
            match next {
                Next::Deliver(batch) => {
                    self.waits_since = None;
                    let batch = piece::join(*batch, &self.schema)?;
                    self.last = Some(batch.token.clone());
                    return Ok(Some(batch));
                }
                Next::End => return Ok(None),
                Next::Fail(report) => return Err(self.of_claim(Error::from(&report))),
                Next::Wait => {}
            }
            let waits_since = *self.waits_since.get_or_insert(now);
            match self.followers.front_mut() {
                Some((_, follower)) => {
                    let waited = follower.wait(waits_since, self.patience_ms).await;
                    waited.map_err(|error| self.of_claim(error))?;
                }
                None if self.driver.is_empty() => return Err(gone()),
                None => {
                    let gives_up_at = self.rank.trainer.lock().gives_up_at();
                    let deadline = gives_up_at.map(|at| self.rank.clock.instant(at));
                    moved(&self.rank.moved, &mut self.driver, deadline).await;
                }
            }
        }
    }

    /// Adds a resume hint to the error of a claim being read. An error of the whole job has its own hint.
    fn of_claim(&self, error: Error) -> Error {
        with_resume_hint(error, self.last.as_ref().filter(|_| !self.followers.is_empty()))
    }

    /// Starts followers for granted claims.
    fn begin_claims(&mut self) -> Result<()> {
        loop {
            let session = self.next.1;
            let Some(claim) = self.rank.trainer.lock().begin(|| session) else { return Ok(()) };
            let (secret, _) = std::mem::replace(&mut self.next, secret_and_session()?);
            let machine = Machine::OfClaim(Arc::clone(&self.rank.trainer), claim);
            let (feed, schema, moved) =
                (Arc::clone(&self.feed), Arc::clone(&self.schema), Arc::clone(&self.rank.moved));
            let followed = FollowedTrainer::new(machine, feed, schema, self.rank.clock, moved);
            let (dispatch, transport) = (Arc::clone(&self.dispatch), Arc::clone(&self.transport));
            let follower = Follower::new(followed, dispatch, transport, self.request.clone(), secret);
            self.followers.push_back((claim, follower));
        }
    }

    /// Drops the followers of finished claims.
    fn end_claims(&mut self) {
        let first = self.rank.trainer.lock().reading().next();
        while self.followers.front().is_some_and(|(claim, _)| Some(*claim) != first) {
            self.followers.pop_front();
        }
    }

    pub(crate) async fn close(&mut self) {
        self.leave();
        while self.driver.join_next().await.is_some() {}
        for (_, follower) in &mut self.followers {
            follower.close().await;
        }
    }

    fn leave(&mut self) {
        self.rank.has_left.store(true, Ordering::Relaxed);
        self.rank.news.notify_one();
    }
}

impl Drop for DynamicReader {
    fn drop(&mut self) {
        self.leave();
        // The task sends its last message by itself, within a second.
        self.driver.detach_all();
    }
}

/// The rank's claims, from the start position of its request.
fn claimer(what: &ReadPlan) -> Result<Claimer> {
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
    let session = process_number()?;
    let job = what.request.job.clone().unwrap_or_else(|| format!("{session:016x}"));
    Ok(Claimer::new(what.metadata.feed.as_str().into(), job, session, settings, begin, marks)?)
}

/// The dispatcher's name, the number of the message, and its answer.
type AnsweredClaim = (String, u64, Result<ClaimAnswer>);

/// The task that reports finished claims to the dispatcher and receives granted ones.
struct ClaimDriver {
    rank: Arc<SharedRank>,
    dispatch: Arc<dyn Dispatch>,
    meeting: Meeting,
    request: StreamRequest,
    calls: FuturesUnordered<BoxFuture<'static, AnsweredClaim>>,
    /// Whether the log has named the awaited ranks.
    has_said: bool,
}

impl ClaimDriver {
    fn new(rank: Arc<SharedRank>, dispatch: Arc<dyn Dispatch>, request: StreamRequest) -> Self {
        let mut names: Vec<String> = dispatch.others().iter().map(|other| other.name()).collect();
        names.push(dispatch.name());
        Self { rank, dispatch, meeting: Meeting::new(names), request, calls: FuturesUnordered::new(), has_said: false }
    }

    /// Runs until the loop leaves or a dispatcher refuses permanently. Also announces the rank to the `others`, since
    /// an old process of this rank may ask any of them.
    async fn run(mut self, others: Vec<Arc<dyn Dispatch>>) {
        let mut announcing = FuturesUnordered::new();
        let announced = self.rank.trainer.lock().announce();
        for (other, message) in others.into_iter().zip(announced.into_iter().cycle()) {
            let seq = message.seq;
            let call = ClaimCall { request: self.request.clone(), message };
            announcing.push(async move { (other.name(), seq, other.claim(&call).await) });
        }
        loop {
            if self.rank.has_left.load(Ordering::Relaxed) {
                return self.leave().await;
            }
            let wake = self.call();
            let refused = tokio::select! {
                Some((asked, seq, answer)) = announcing.next() => match answer {
                    Err(error) if error.kind() != ErrorKind::Conflict => None,
                    // The dispatcher may know of newer processes of other ranks.
                    answer => self.answered(&asked, seq, answer).err(),
                },
                Some((asked, seq, answer)) = self.calls.next() => self.answered(&asked, seq, answer).err(),
                () = self.rank.news.notified() => None,
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => None,
            };
            if let Some(error) = refused {
                self.rank.trainer.lock().refused(error.report());
                self.rank.moved.notify_one();
                return;
            }
        }
    }

    /// Sends the messages that are due. Returns when to run again if nothing else happens.
    fn call(&self) -> Option<Instant> {
        let now = self.rank.clock.now();
        let mut trainer = self.rank.trainer.lock();
        while let Some(message) = trainer.sync(now) {
            let (dispatch, seq) = (Arc::clone(&self.dispatch), message.seq);
            let call = ClaimCall { request: self.request.clone(), message };
            self.calls.push(async move { (dispatch.name(), seq, dispatch.claim(&call).await) }.boxed());
        }
        trainer.sync_at().map(|at| self.rank.clock.instant(at))
    }

    /// Handles the answer of the dispatcher `asked`.
    ///
    /// # Errors
    /// Permanent refusals by the dispatcher.
    fn answered(&mut self, asked: &str, seq: u64, answer: Result<ClaimAnswer>) -> Result<()> {
        let now = self.rank.clock.now();
        match answer {
            Ok(answer) => {
                let is_awaiting = !answer.reply.awaited.is_empty();
                self.meeting.heard(asked, answer.reply.workers > 0);
                let is_home = self.meeting.is_home(asked);
                let (must_turn, awaiting) = {
                    let mut trainer = self.rank.trainer.lock();
                    (trainer.reply(seq, answer, asked, is_home, now), trainer.awaiting())
                };
                if let Some((_, report)) = awaiting.filter(|(since, _)| now - since > SILENCE_MS) {
                    if !std::mem::replace(&mut self.has_said, true) {
                        tracing::warn!(dispatcher = asked, "{}", report.message);
                    }
                } else if !is_awaiting && std::mem::take(&mut self.has_said) {
                    tracing::info!(dispatcher = asked, "all ranks have joined");
                }
                if must_turn {
                    self.dispatch.rotate(asked);
                }
            }
            Err(error) if error.may_pass() && error.kind() != ErrorKind::Internal => {
                self.rank.trainer.lock().unanswered(seq, error.report(), now);
            }
            Err(error) => return Err(error),
        }
        self.rank.moved.notify_one();
        Ok(())
    }

    async fn leave(self) {
        let message = self.rank.trainer.lock().leave();
        let call = ClaimCall { request: self.request, message };
        // If this message is lost, the finished claims are still asked for when the other ranks end.
        let _ = timeout(FAREWELL, self.dispatch.claim(&call)).await;
    }
}
