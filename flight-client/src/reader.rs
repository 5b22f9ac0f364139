//! A reader of a stride or a run of offsets: drives the [`Trainer`] over the network.
//!
//! One task talks to the dispatcher and opens streams; each stream is a task that receives a window's rows. The loop that
//! takes batches only looks at what is there. All decisions are the trainer's.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use forebay_arrays::{finish_deferred, matches_when_finished};
use forebay_delivery::{AssembledBatch, Granted, Millis, Next, Origin, ReadSettings, Token, Trainer};
use forebay_protocol::{Batch, Error, ErrorKind, Result};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::remote::ReadPlan;
use crate::streams::{WindowStreams, Workers};
use crate::wire::{FeedMetadata, ReaderAnswer, ReaderCall, StreamRequest, secret_key};

/// Received ahead of the loop, about, over all streams.
pub(crate) const BUFFER_BYTES: u64 = 64 << 20;
/// Messages to the dispatcher that wait for an answer at a time: one that waits for news, and one that brings some.
pub(crate) const CALLS_MAX: usize = 2;
/// After a dispatcher did not answer, or knew no workers.
pub(crate) const PAUSE: Duration = Duration::from_millis(200);
/// A loop that waited for so long tries another dispatcher.
const STUCK: Duration = Duration::from_secs(15);
const STUCK_MS: Millis = STUCK.as_millis() as Millis;
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long the last message may take.
pub(crate) const FAREWELL: Duration = Duration::from_secs(1);

/// Reads a rank's stride of a feed, or a run of offsets. Dropping it leaves the feed.
pub(crate) struct RankReader {
    shared: Arc<Shared>,
    schema: SchemaRef,
    patience: Duration,
    last: Option<Token>,
    /// Since when the loop has waited; it may give up and ask again meanwhile.
    waits_since: Option<Instant>,
    has_ended: bool,
    driver: JoinSet<()>,
}

/// Rows that came in one message.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) records: RecordBatch,
    /// Positions that have no row, bad or good.
    pub(crate) gaps: u64,
}

/// What the loop, the driver and the streams share.
pub(crate) struct Shared {
    began: Instant,
    schema: SchemaRef,
    pub(crate) trainer: Mutex<Trainer<Piece>>,
    state: Mutex<State>,
    /// There may be something for the loop.
    pub(crate) moved: Notify,
    /// There may be something for the driver.
    pub(crate) news: Notify,
    /// There may be room for streams to go on.
    pub(crate) room: Notify,
}

#[derive(Default)]
struct State {
    /// What stands in the way now, and since when; it may pass.
    dispatcher_trouble: Option<(Instant, Error)>,
    stream_trouble: Option<(Instant, Error)>,
    /// What will not pass.
    fatal: Option<Error>,
    has_left: bool,
}

impl Shared {
    pub(crate) fn now(&self) -> Millis {
        self.began.elapsed().as_millis() as Millis
    }

    /// A stream broke; if none brings anything for long, it is what the loop is told.
    pub(crate) fn stream_trouble(&self, error: Error) {
        tracing::debug!(%error, "a stream broke");
        lasting(&mut self.state.lock().stream_trouble, error);
        self.moved.notify_one();
    }

    /// The dispatcher is of no use; if that lasts, it is what the loop is told.
    fn dispatcher_trouble(&self, error: Error) {
        lasting(&mut self.state.lock().dispatcher_trouble, error);
        self.moved.notify_one();
    }

    /// Whether these are columns of this feed.
    pub(crate) fn is_expected(&self, records: &RecordBatch) -> bool {
        let (fields, expected) = (records.schema_ref().fields(), self.schema.fields());
        fields.len() == expected.len()
            && fields.iter().zip(expected).all(|(field, expected)| matches_when_finished(field, expected))
    }

    /// A stream brings something.
    pub(crate) fn all_is_well(&self) {
        self.state.lock().stream_trouble = None;
    }

    fn trouble(&self) -> Option<(Instant, Error)> {
        let state = self.state.lock();
        state.dispatcher_trouble.clone().or_else(|| state.stream_trouble.clone())
    }
}

impl RankReader {
    /// A rank that asks `dispatch` where to read. Must be called inside a Tokio runtime.
    pub(crate) fn new(dispatch: Arc<dyn Dispatch>, what: &ReadPlan, options: ConnectOptions) -> Self {
        let FeedMetadata { window, window_offset, offset, .. } = what.metadata;
        let workers = Workers::new(options.clone());
        Self::begin(dispatch, workers, what, options, what.settings(), Origin { window, window_offset, offset }, None)
    }

    /// The batches of a claim, from the offset `from` on, over connections that all claims share.
    pub(crate) fn of_claim(
        dispatch: Arc<dyn Dispatch>,
        workers: Arc<Workers>,
        what: &ReadPlan,
        options: ConnectOptions,
        claim: &Granted,
        from: u64,
    ) -> Self {
        let settings = ReadSettings {
            epochs: claim.claim.epoch + 1,
            // What is not whole was left out when the claim was granted.
            drop_last: false,
            rank: 0,
            world_size: 1,
            ..what.settings()
        };
        let begin = Origin { window: claim.window, window_offset: claim.window_offset, offset: from };
        Self::begin(dispatch, workers, what, options, settings, begin, Some(claim.end))
    }

    fn begin(
        dispatch: Arc<dyn Dispatch>,
        workers: Arc<Workers>,
        what: &ReadPlan,
        options: ConnectOptions,
        settings: ReadSettings,
        begin: Origin,
        until: Option<u64>,
    ) -> Self {
        let buffer = options.buffer_bytes.unwrap_or(BUFFER_BYTES);
        let session = u64::from_le_bytes(random());
        let trainer = Trainer::new(what.metadata.feed.as_str().into(), session, settings, begin, buffer);
        let trainer = match until {
            Some(until) => trainer.until(until),
            None => trainer,
        };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            schema: Arc::clone(&what.schema),
            trainer: Mutex::new(trainer),
            state: Mutex::default(),
            moved: Notify::new(),
            news: Notify::new(),
            room: Notify::new(),
        });
        let (schema, patience) = (Arc::clone(&what.schema), options.patience.unwrap_or(PATIENCE));
        let mut driver = JoinSet::new();
        driver.spawn(drive(Arc::clone(&shared), dispatch, what.request.clone(), workers));
        Self { shared, schema, patience, last: None, waits_since: None, has_ended: false, driver }
    }

    /// The next batch, or `None` after the last epoch. After an error there is nothing more. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Batch>> {
        if self.has_ended {
            return None;
        }
        let next = self.advance().await.transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }

    /// Leaves the feed, and waits until the dispatcher knows, for a second at most. Dropping does the same without waiting.
    pub(crate) async fn close(&mut self) {
        self.leave();
        while self.driver.join_next().await.is_some() {}
    }

    async fn advance(&mut self) -> Result<Option<Batch>> {
        loop {
            let next = self.shared.trainer.lock().next(self.shared.now());
            // There may be room now, or what the loop waits for may come whatever the room.
            self.shared.room.notify_waiters();
            self.shared.news.notify_one();
            match next {
                Next::Deliver(delivery) => {
                    self.waits_since = None;
                    return self.batch(*delivery).map(Some);
                }
                Next::End => return Ok(None),
                Next::Fail(report) => return Err(self.with_resume_hint(Error::from(&report))),
                Next::Wait => {}
            }
            if let Some(error) = self.shared.state.lock().fatal.take() {
                return Err(self.with_resume_hint(error));
            }
            if self.driver.is_empty() {
                return Err(self.with_resume_hint(gone()));
            }
            let waits_since = *self.waits_since.get_or_insert_with(Instant::now);
            let moved = moved(&self.shared.moved, &mut self.driver);
            match self.shared.trouble() {
                Some((since, error)) => {
                    let deadline = since.max(waits_since) + self.patience;
                    if timeout_at(deadline, moved).await.is_err() {
                        return Err(self.with_resume_hint(error));
                    }
                }
                // A window may take its time, as long as somebody computes it.
                None => moved.await,
            }
        }
    }

    fn with_resume_hint(&self, error: Error) -> Error {
        match &self.last {
            Some(token) if error.kind() == ErrorKind::Unavailable => {
                error.with_hint(format!("when it is back, go on from {token}"))
            }
            _ => error,
        }
    }

    fn batch(&mut self, delivery: AssembledBatch<Piece>) -> Result<Batch> {
        let AssembledBatch { epoch, step, offsets, token, records: pieces } = delivery;
        let gaps = pieces.iter().map(|piece| piece.gaps).sum();
        let records = pieces.into_iter().map(|piece| piece.records);
        let mut records: Vec<_> = records.filter(|records| records.num_rows() > 0).collect();
        let records = match records.len() {
            0 => RecordBatch::new_empty(Arc::clone(&self.schema)),
            1 => finish_deferred(&records.remove(0), &self.schema)?,
            _ => {
                let joined = concat_batches(records[0].schema_ref(), &records).map_err(|error| {
                    Error::new(ErrorKind::Exhausted, format!("cannot put a batch together: {error}"))
                        .with_hint("lower the batch size")
                })?;
                finish_deferred(&joined, &self.schema)?
            }
        };
        self.last = Some(token.clone());
        Ok(Batch { epoch, step, offset: offsets.start, positions: offsets.end - offsets.start, gaps, records, token })
    }

    fn leave(&mut self) {
        self.shared.state.lock().has_left = true;
        self.shared.news.notify_one();
    }
}

impl Drop for RankReader {
    fn drop(&mut self) {
        self.leave();
        // It says farewell by itself, within a second.
        self.driver.detach_all();
    }
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

/// Waits until there may be something for the loop, or there never will be because the driver is gone.
pub(crate) async fn moved(moved: &Notify, driver: &mut JoinSet<()>) {
    tokio::select! {
        () = moved.notified() => {}
        Some(_) = driver.join_next() => {}
    }
}

/// A driver ends only when it is told to, or has said why.
pub(crate) fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the task that talks to the dispatcher is gone")
}

/// Talks to the dispatcher and opens streams, until the reader leaves.
async fn drive(shared: Arc<Shared>, dispatch: Arc<dyn Dispatch>, request: StreamRequest, workers: Arc<Workers>) {
    let secret: String = random::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
    let secret_key = secret_key(&secret);
    let mut streams = WindowStreams::new(Arc::clone(&shared), workers, secret);
    let mut calls = FuturesUnordered::new();
    let (mut pause, mut rotated) = (Instant::now(), Instant::now());
    let (mut is_held_up, has_others) = (false, !dispatch.others().is_empty());
    loop {
        if shared.state.lock().has_left {
            let sync = shared.trainer.lock().leave(shared.now());
            let call = ReaderCall { request, secret_key, sync };
            // It is missed soon anyway.
            let _ = timeout(FAREWELL, dispatch.sync(&call)).await;
            return;
        }
        let is_paused = Instant::now() < pause;
        let retry_at = {
            let mut trainer = shared.trainer.lock();
            if !is_paused && (calls.is_empty() || (calls.len() < CALLS_MAX && trainer.has_news())) {
                let sync = trainer.sync(shared.now());
                // The workers may have gone to another dispatcher, although this one answers.
                if sync.waiting.is_some_and(|(_, waited)| waited > STUCK_MS) && rotated.elapsed() > STUCK {
                    rotated = Instant::now();
                    dispatch.rotate(&dispatch.name());
                }
                let call = ReaderCall { request: request.clone(), secret_key: secret_key.clone(), sync };
                let dispatch = Arc::clone(&dispatch);
                calls.push(async move { (dispatch.name(), dispatch.sync(&call).await) }.boxed());
            }
            streams.open(trainer.opens(shared.now()));
            trainer.retry_at().map(|millis| shared.began + Duration::from_millis(millis))
        };
        let wake = [is_paused.then_some(pause), retry_at].into_iter().flatten().min();
        tokio::select! {
            Some((asked, answer)) = calls.next() => match answer {
                Ok(ReaderAnswer { mut reply, ticket }) => {
                    if reply.workers == 0 {
                        // Workers that refuse the feed are none; those of another dispatcher may not.
                        let refusal = if has_others && reply.refused { reply.failed.take() } else { None };
                        let error = refusal.as_ref().map_or_else(|| no_workers(&asked), |(_, why)| Error::from(why));
                        held_up(&mut is_held_up, &asked, &error);
                        shared.dispatcher_trouble(error);
                        dispatch.rotate(&asked);
                        pause = Instant::now() + PAUSE;
                    } else {
                        shared.state.lock().dispatcher_trouble = None;
                    }
                    if reply.workers > 0 && std::mem::take(&mut is_held_up) {
                        tracing::info!(dispatcher = asked, workers = reply.workers, "the dispatcher answers again");
                    }
                    streams.set_ticket(ticket);
                    shared.trainer.lock().reply(reply);
                    shared.moved.notify_one();
                }
                Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted) => {
                    held_up(&mut is_held_up, &asked, &error);
                    shared.dispatcher_trouble(error);
                    pause = Instant::now() + PAUSE;
                }
                Err(error) => {
                    shared.state.lock().fatal = Some(error);
                    shared.moved.notify_one();
                    return;
                }
            },
            () = shared.news.notified() => {}
            () = streams.ended() => {}
            () = sleep_until(wake.unwrap_or(Instant::now())), if wake.is_some() => {}
        }
    }
}

/// Keeps since when there is trouble, and what it is now.
pub(crate) fn lasting(trouble: &mut Option<(Instant, Error)>, error: Error) {
    let (since, before) = trouble.take().map_or_else(|| (Instant::now(), None), |(since, error)| (since, Some(error)));
    // What a worker refuses says more than that there are none elsewhere.
    let says_more = |before: &Error| before.kind() != ErrorKind::Unavailable && error.kind() == ErrorKind::Unavailable;
    *trouble = Some((since, before.filter(says_more).unwrap_or(error)));
}

/// Says once that something is wrong with the dispatcher: it is asked again and again.
fn held_up(is_held_up: &mut bool, dispatcher: &str, error: &Error) {
    if !std::mem::replace(is_held_up, true) {
        tracing::warn!(dispatcher, error = error.message(), "the dispatcher is of no use now; trying on");
    }
}

pub(crate) fn no_workers(dispatcher: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the dispatcher at {dispatcher} knows no worker"))
        .with_hint(format!("start one with `forebay worker --dispatcher {dispatcher}`"))
}
