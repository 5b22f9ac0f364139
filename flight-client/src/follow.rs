//! Follows the routes of a trainer: a task that reports the trainer's position to the dispatcher, receives the location
//! of the next windows, and opens the streams that the trainer requests. The trainer makes all decisions.

use std::sync::Arc;
use std::time::Duration;

use forebay_delivery::messages::Report;
use forebay_delivery::{Millis, WindowId, no_workers, session_of};
use forebay_protocol::{Error, ErrorKind, Result, random_bytes};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::dispatcher::Dispatch;
use crate::followed::FollowedTrainer;
use crate::streams::WindowStreams;
use crate::transport::SliceTransport;
use crate::waiting::{FAREWELL, LongWaits, gone, moved};
use crate::wire::{ReaderAnswer, ReaderCall, StreamRequest, secret_key};

/// Concurrent messages to the dispatcher: one that waits for news, and one that reports some.
const CALLS_MAX: usize = 2;
/// Pause after a dispatcher did not answer or had no workers.
const PAUSE: Duration = Duration::from_millis(200);
/// A loop that has waited this long tries another dispatcher.
const STUCK: Duration = Duration::from_secs(15);
const STUCK_MS: Millis = STUCK.as_millis() as Millis;

/// Returns a secret for a reader, and the session that follows from its key.
pub(crate) fn secret_and_session() -> Result<(String, u64)> {
    let secret: String = random_bytes::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect();
    let session = session_of(&secret_key(&secret));
    Ok((secret, session))
}

/// A trainer and the task that follows its routes. Dropping it leaves the feed.
pub(crate) struct Follower {
    pub(crate) followed: Arc<FollowedTrainer>,
    driver: JoinSet<()>,
}

impl Follower {
    /// Starts following a trainer, whose session follows from the key of `secret`. Must be called inside a Tokio
    /// runtime.
    pub(crate) fn new(
        followed: Arc<FollowedTrainer>,
        dispatch: Arc<dyn Dispatch>,
        transport: Arc<dyn SliceTransport>,
        request: StreamRequest,
        secret: String,
    ) -> Self {
        let mut driver = JoinSet::new();
        driver.spawn(Driver::new(Arc::clone(&followed), dispatch, transport, request, secret).run());
        Self { followed, driver }
    }

    /// Waits until there may be something for a loop that has waited since `waits_since`.
    ///
    /// # Errors
    /// The current trouble, if it lasts longer than `patience_ms` or will not pass.
    pub(crate) async fn wait(&mut self, waits_since: Millis, patience_ms: Millis) -> Result<()> {
        if let Some(error) = self.followed.take_failure() {
            return Err(error);
        }
        if self.driver.is_empty() {
            return Err(gone());
        }
        // A window may take any time, as long as a worker computes it.
        let trouble = self.followed.trouble();
        let trouble = trouble.map(|(since, report)| (since.max(waits_since) + patience_ms, report));
        // The trainer itself gives up a computed window whose rows do not come. The loop then asks it again.
        let silent = self.followed.with(|trainer| trainer.gives_up_at()).flatten();
        let deadline = trouble.as_ref().map(|(at, _)| *at).into_iter().chain(silent).min();
        let deadline_at = deadline.map(|at| self.followed.clock.instant(at));
        match (moved(&self.followed.moved, &mut self.driver, deadline_at).await, trouble) {
            (false, Some((at, report))) if Some(at) == deadline => Err(Error::from(&report)),
            _ => Ok(()),
        }
    }

    /// Leaves the feed and waits up to a second for the dispatcher to acknowledge. Dropping the follower leaves without
    /// waiting.
    pub(crate) async fn close(&mut self) {
        self.followed.leave();
        while self.driver.join_next().await.is_some() {}
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.followed.leave();
        // The task sends its last message by itself, within a second.
        self.driver.detach_all();
    }
}

type AnsweredReader = (String, Result<ReaderAnswer>);

/// The task that follows the routes.
struct Driver {
    followed: Arc<FollowedTrainer>,
    dispatch: Arc<dyn Dispatch>,
    request: StreamRequest,
    secret_key: String,
    streams: WindowStreams,
    calls: FuturesUnordered<BoxFuture<'static, AnsweredReader>>,
    paused_until: Option<Instant>,
    rotated: Instant,
    is_held_up: bool,
    has_others: bool,
    /// When the trainer gives up waiting for rows, as last seen.
    gives_up_at: Option<Millis>,
    long_waits: LongWaits,
}

impl Driver {
    fn new(
        followed: Arc<FollowedTrainer>,
        dispatch: Arc<dyn Dispatch>,
        transport: Arc<dyn SliceTransport>,
        request: StreamRequest,
        secret: String,
    ) -> Self {
        Self {
            secret_key: secret_key(&secret),
            streams: WindowStreams::new(Arc::clone(&followed), transport, secret),
            has_others: !dispatch.others().is_empty(),
            followed,
            dispatch,
            request,
            calls: FuturesUnordered::new(),
            paused_until: None,
            rotated: Instant::now(),
            is_held_up: false,
            gives_up_at: None,
            long_waits: LongWaits::default(),
        }
    }

    /// Runs until the loop leaves or reading fails.
    async fn run(mut self) {
        loop {
            self.paused_until.take_if(|until| *until <= Instant::now());
            let retry_at = match self.followed.has_left() {
                true => None,
                false => self.act(),
            };
            let Some(retry_at) = retry_at else { return self.leave().await };
            let wake = [self.paused_until, retry_at].into_iter().flatten().min();
            tokio::select! {
                Some((asked, answer)) = self.calls.next() => {
                    if let Err(error) = self.answered(&asked, answer) {
                        return self.followed.fail(error);
                    }
                }
                () = self.followed.news.notified() => {}
                () = self.streams.ended() => {}
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
    }

    /// Sends a message if one is due, and opens streams. Returns when to run again if nothing else happens; `None` if
    /// the trainer is no longer read.
    fn act(&mut self) -> Option<Option<Instant>> {
        let now = self.followed.now();
        let may_call = |has_news| self.calls.is_empty() || (self.calls.len() < CALLS_MAX && has_news);
        let is_paused = self.paused_until.is_some();
        let (sync, opens, retry_at, gives_up_at) = self.followed.with(|trainer| {
            // Opening also closes silent streams, which the message reports.
            let opens = trainer.opens(now);
            let sync = (!is_paused && may_call(trainer.has_news())).then(|| trainer.sync(now));
            (sync, opens, trainer.retry_at(), trainer.gives_up_at())
        })?;
        if let Some(sync) = sync {
            if let Some((window, waited)) = self.long_waits.newly_long(sync.waiting) {
                self.warn(window, waited);
            }
            // This dispatcher answers, but its workers may have moved to another one.
            if sync.waiting.is_some_and(|(_, waited)| waited > STUCK_MS) && self.rotated.elapsed() > STUCK {
                self.rotated = Instant::now();
                self.dispatch.rotate(&self.dispatch.name());
            }
            let call = ReaderCall { request: self.request.clone(), secret_key: self.secret_key.clone(), sync };
            let dispatch = Arc::clone(&self.dispatch);
            self.calls.push(async move { (dispatch.name(), dispatch.sync(&call).await) }.boxed());
        }
        self.streams.open(opens);
        // A stream may have been closed because it was silent, which changes when the loop gives up.
        if gives_up_at.is_some() && std::mem::replace(&mut self.gives_up_at, gives_up_at) != gives_up_at {
            self.followed.moved.notify_one();
        }
        Some(retry_at.map(|at| self.followed.clock.instant(at)))
    }

    /// Reports that the loop has waited for long.
    fn warn(&self, window: WindowId, waited: Millis) {
        let worker = self.followed.with(|trainer| trainer.worker_of(window).map(str::to_owned)).flatten();
        tracing::warn!(
            feed = self.request.feed,
            epoch = window.epoch,
            window = window.index,
            worker = worker.as_deref().unwrap_or("none"),
            seconds = waited / 1_000,
            "the loop has waited for samples for long"
        );
    }

    /// Handles the answer of the dispatcher `asked`.
    ///
    /// # Errors
    /// Permanent refusals by the dispatcher.
    fn answered(&mut self, asked: &str, answer: Result<ReaderAnswer>) -> Result<()> {
        let ReaderAnswer { mut reply, ticket } = match answer {
            Ok(answer) => answer,
            Err(error) if error.may_pass() && error.kind() != ErrorKind::Internal => {
                self.held_up(asked, &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if reply.workers == 0 {
            // Workers that refuse the feed count as none. Another dispatcher's workers may accept it, and a worker that
            // lacks something tries again.
            let lacks = |(_, why): &mut (_, Report)| matches!(why.kind, ErrorKind::Exhausted | ErrorKind::Unavailable);
            let is_refused = reply.refused;
            let refusal = reply.failed.take_if(|why| is_refused && (self.has_others || lacks(why)));
            let why = refusal.map_or_else(|| no_workers(asked), |(_, why)| why);
            self.held_up(asked, &Error::from(&why));
            self.dispatch.rotate(asked);
        } else {
            self.followed.dispatcher_is_well();
            if std::mem::take(&mut self.is_held_up) {
                tracing::info!(dispatcher = asked, workers = reply.workers, "the dispatcher answers again");
            }
        }
        self.streams.set_ticket(ticket);
        self.followed.with(|trainer| trainer.reply(reply));
        self.followed.moved.notify_one();
        Ok(())
    }

    /// The dispatcher cannot help now. Retries after a pause, and logs the first failure only.
    fn held_up(&mut self, dispatcher: &str, error: &Error) {
        if !std::mem::replace(&mut self.is_held_up, true) {
            tracing::warn!(dispatcher, error = error.message(), "the dispatcher cannot help now; retrying");
        }
        self.followed.dispatcher_trouble(error.report());
        self.paused_until = Some(Instant::now() + PAUSE);
    }

    async fn leave(self) {
        let Some(sync) = self.followed.last_message() else { return };
        let call = ReaderCall { request: self.request, secret_key: self.secret_key, sync };
        // Without this message, the dispatcher soon notices the silence.
        let _ = timeout(FAREWELL, self.dispatch.sync(&call)).await;
    }
}
