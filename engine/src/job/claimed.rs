//! Claims of jobs: which process writes, and signs of its life.

use std::convert::Infallible;

use forebay_protocol::random_id;
use forebay_storage::Stores;
use forebay_storage::artifact::{self, Artifact, Claim, JobState};

use crate::error::Result;

/// Claims the job `id`, or waits until another process has finished it. `waits` hears whether it waits.
///
/// # Errors
/// Those of the store.
pub(crate) async fn claim<'a>(
    stores: &Stores,
    state: &'a JobState,
    id: &str,
    waits: impl Fn(bool) + Send + Sync,
) -> Result<Claimed<'a>> {
    let job = match state {
        JobState::Committed(artifact) => return Ok(Claimed::Found(Box::new(artifact.clone()))),
        JobState::Open(job) => job,
    };
    let holder = artifact::holder_name(random_id()?);
    loop {
        let wait = |duration| -> futures::future::BoxFuture<'static, ()> {
            waits(true);
            Box::pin(tokio::time::sleep(duration))
        };
        if let Some(claim) = job.claim(&holder, &wait).await? {
            waits(false);
            return Ok(Claimed::Held(job, Held(Some(claim))));
        }
        tracing::info!(job = id, url = job.url(), "another process writes the same files; waiting for it");
        if let JobState::Committed(artifact) = artifact::Job::open(stores, job.url(), id).await? {
            waits(false);
            return Ok(Claimed::Found(Box::new(artifact)));
        }
    }
}

/// A job that this process may write, or that is done.
pub(crate) enum Claimed<'a> {
    Held(&'a artifact::Job, Held),
    Found(Box<Artifact>),
}

/// A claim that is released when this is dropped, so that an interrupted job can be resumed at once. After a commit
/// there is nothing to release.
pub(crate) struct Held(Option<Claim>);

impl Held {
    /// Gives signs of life while `work` is done. A claim that another process took is no reason to stop: the commit
    /// decides.
    pub(crate) async fn while_alive<T>(mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        // The store may take long for a sign of life. The work must not wait for it.
        let done = tokio::select! {
            biased;
            done = work => done,
            never = self.give_signs() => match never {},
        };
        if done.is_ok() {
            self.0 = None;
        }
        done
    }

    async fn give_signs(&mut self) -> Infallible {
        while let Some(claim) = &mut self.0 {
            tokio::time::sleep(artifact::BEAT).await;
            match claim.beat().await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("another process writes the same files");
                    self.0 = None;
                }
                Err(error) => tracing::warn!(%error, "cannot give a sign of life; retrying"),
            }
        }
        std::future::pending().await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(claim), Ok(runtime)) = (self.0.take(), runtime) {
            runtime.spawn(async move {
                if let Err(error) = claim.release().await {
                    tracing::debug!(%error, "a claim could not be released");
                }
            });
        }
    }
}
