//! A reader with ordered delivery: delivers the batches of a rank's stride.
//!
//! The loop that takes batches only looks at received data; a [`Follower`] receives it.

use std::sync::Arc;

use forebay_delivery::{Millis, Next, Origin, ReadSettings, ReceiveLimits, Token, Trainer};
use forebay_protocol::{Batch, Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::follow::{Follower, secret_and_session};
use crate::followed::{FollowedTrainer, Machine};
use crate::piece;
use crate::process_number::{is_first, process_number};
use crate::read_plan::ReadPlan;
use crate::transport::SliceTransport;
use crate::waiting::{patience_ms, with_resume_hint};
use crate::wire::FeedMetadata;

/// Reads a rank's stride of a feed. Dropping it leaves the feed.
pub(crate) struct RankReader {
    follower: Follower,
    settings: ReadSettings,
    patience_ms: Millis,
    last: Option<Token>,
    /// When the loop started waiting. The loop may cancel its call and call again in between.
    waits_since: Option<Millis>,
    has_ended: bool,
}

impl RankReader {
    /// Creates a reader that asks `dispatch` for routes. Must be called inside a Tokio runtime.
    pub(crate) fn new(
        dispatch: Arc<dyn Dispatch>,
        transport: Arc<dyn SliceTransport>,
        what: &ReadPlan,
        options: &ConnectOptions,
    ) -> Result<Self> {
        let FeedMetadata { window, window_offset, offset, .. } = what.metadata;
        let feed: Arc<str> = what.metadata.feed.as_str().into();
        let (secret, session) = secret_and_session()?;
        let begin = Origin { window, window_offset, offset };
        let limits = ReceiveLimits::of_bytes(options.buffer_bytes()).patient_for(patience_ms(options.patience));
        let trainer = Trainer::new(Arc::clone(&feed), session, what.settings(), begin, limits);
        let trainer = match what.request.job.clone().filter(|job| !job.is_empty()) {
            Some(job) => {
                let is_first = is_first(&feed, &job, what.settings().rank);
                trainer.in_job(job, process_number()?, is_first)
            }
            None => trainer,
        };
        let machine = Machine::OfRank(Box::new(Mutex::new(trainer)));
        let followed =
            FollowedTrainer::new(machine, feed, Arc::clone(&what.schema), Clock::start(), Arc::new(Notify::new()));
        Ok(Self {
            follower: Follower::new(followed, dispatch, transport, what.request.clone(), secret),
            settings: what.settings(),
            patience_ms: patience_ms(options.patience),
            last: None,
            waits_since: None,
            has_ended: false,
        })
    }

    /// The next batch, or `None` after the last epoch. Ends after an error. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Result<Batch>> {
        if self.has_ended {
            return None;
        }
        let next = self.advance().await.map_err(|error| with_resume_hint(error, self.last.as_ref())).transpose();
        self.has_ended = !matches!(next, Some(Ok(_)));
        next
    }

    /// Leaves the feed and waits up to a second for the dispatcher to acknowledge. Dropping the reader leaves without
    /// waiting.
    pub(crate) async fn close(&mut self) {
        self.follower.close().await;
    }

    async fn advance(&mut self) -> Result<Option<Batch>> {
        loop {
            let followed = &self.follower.followed;
            // A newer process of the rank reads what is buffered here too.
            if let Some(error) = followed.take_conflict() {
                return Err(error);
            }
            let now = followed.now();
            let (next, is_empty) = followed
                .with(|trainer| (trainer.next(now), trainer.met_empty_epoch()))
                .expect("a rank has one trainer as long as it reads");
            followed.looked();
            if is_empty {
                return Err(Error::empty_epoch(&self.settings));
            }
            match next {
                Next::Deliver(batch) => {
                    self.waits_since = None;
                    let batch = piece::join(*batch, &followed.schema)?;
                    self.last = Some(batch.token.clone());
                    return Ok(Some(batch));
                }
                Next::End => return Ok(None),
                Next::Fail(report) => return Err(Error::from(&report)),
                Next::Wait => {}
            }
            let waits_since = *self.waits_since.get_or_insert(now);
            self.follower.wait(waits_since, self.patience_ms).await?;
        }
    }
}
