//! Which process works on a job. Two may at a time, and that only costs their work: the commit decides.
//!
//! A claim is a series of numbered objects. The holder writes the next number now and then. Another process that sees
//! no new number for a while, by its own clock, writes the next number itself.

use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::generations::Latest;
use super::holder;
use super::job::Job;
use super::sealed::{seal, unseal};
use crate::{Error, ErrorKind, Result};

/// The time between two signs of life.
pub const BEAT: Duration = Duration::from_secs(10);
/// The time without signs of life after which another process takes over.
pub const SILENCE: Duration = Duration::from_secs(30);

/// The time between two looks for signs of life, and for the end of the job.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for a duration by some clock, such as tokio's.
pub type Wait<'a> = &'a (dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync);

/// The right to work on a job, until another process takes it.
#[derive(Debug)]
pub struct Claim {
    job: Job,
    holder: String,
    number: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sign {
    holder: String,
    number: u64,
    /// The holder has stopped working on the job.
    released: bool,
}

impl Job {
    /// Claims the job for the process `holder`, whose name is its own: see [`holder_name`](super::holder_name). If
    /// another process holds it, watches that for up to [`SILENCE`], unless it has ended on this machine. Returns
    /// `None` if it is alive or has finished the job.
    ///
    /// # Errors
    /// `Invalid` if the store does not keep writers from replacing each other's objects.
    pub async fn claim(&self, holder: &str, wait: Wait<'_>) -> Result<Option<Claim>> {
        let number = match self.last_claim().await? {
            None => 0,
            Some(before) => {
                let last = self.sign(before).await?;
                let is_free = |last: &Sign| last.released || last.holder == holder || holder::has_ended(&last.holder);
                if !last.as_ref().is_some_and(is_free) && self.is_busy(before, last, wait).await? {
                    return Ok(None);
                }
                before + 1
            }
        };
        let claim = Claim { job: self.clone(), holder: holder.to_owned(), number };
        if !claim.write(number, false).await? {
            return Ok(None);
        }
        claim.check_store().await?;
        Ok(Some(claim))
    }

    pub(super) async fn last_claim(&self) -> Result<Option<u64>> {
        let listed = self.stores.list(&self.folder.claims(&self.attempt)).await?;
        Ok(listed.iter().filter_map(|object| object.name.parse().ok()).max())
    }

    /// Watches for a sign of life after this one, until its holder has ended on this machine. Returns whether there is
    /// one, or the job has ended.
    async fn is_busy(&self, number: u64, last: Option<Sign>, wait: Wait<'_>) -> Result<bool> {
        for _ in 0..SILENCE.as_secs() / LOOK.as_secs() {
            wait(LOOK).await;
            let ended = Latest::of(&self.stores, &self.folder).await?.number >= self.generation();
            if ended || self.last_claim().await? != Some(number) {
                return Ok(true);
            }
            if last.as_ref().is_some_and(|last| holder::has_ended(&last.holder)) {
                return Ok(false);
            }
        }
        Ok(false)
    }

    /// The sign of this number. `None` if it is gone or damaged: its holder is unknown, and is seen to live or not.
    async fn sign(&self, number: u64) -> Result<Option<Sign>> {
        let place = self.folder.claim(&self.attempt, number);
        let read = self.stores.get(&place).await.and_then(|bytes| unseal::<Sign>(&place, &bytes));
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::Data | ErrorKind::NotFound) => Ok(None),
            read => read.map(Some),
        }
    }
}

impl Claim {
    /// Gives a sign of life, which is due every [`BEAT`]. Returns whether the claim is still held. After an error it
    /// may be tried again.
    pub async fn beat(&mut self) -> Result<bool> {
        self.advance(false).await
    }

    /// Stops working on the job, so that another process may claim it at once.
    pub async fn release(mut self) -> Result<()> {
        self.advance(true).await.map(drop)
    }

    async fn advance(&mut self, released: bool) -> Result<bool> {
        let next = self.number + 1;
        if !self.write(next, released).await? {
            return Ok(false);
        }
        let before = std::mem::replace(&mut self.number, next);
        // The first stays: an attempt without a claim is a dead one.
        if before > 0
            && let Err(error) = self.job.stores.delete(&self.place(before)).await
        {
            tracing::debug!(job = self.job.attempt.job, %error, "an old sign of life could not be removed");
        }
        Ok(true)
    }

    fn place(&self, number: u64) -> String {
        self.job.folder.claim(&self.job.attempt, number)
    }

    async fn write(&self, number: u64, released: bool) -> Result<bool> {
        let sign = seal(&Sign { holder: self.holder.clone(), number, released });
        self.job.stores.put_new(&self.place(number), sign).await
    }

    /// Refuses a store that replaces an object although it should only be created: there, commits would not exclude
    /// each other.
    async fn check_store(&self) -> Result<()> {
        let place = self.place(self.number);
        let other = seal(&Sign { holder: format!("not {}", self.holder), number: self.number, released: true });
        match self.job.stores.put_new(&place, other).await {
            Ok(false) => Ok(()),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            Ok(true) => {
                self.job.stores.delete(&place).await?;
                // Giving up a job removes its claims.
                match Latest::of(&self.job.stores, &self.job.folder).await?.number < self.job.generation() {
                    true => Err(refused(&place)),
                    false => Err(self.job.given_up()),
                }
            }
            Err(error) => Err(error),
        }
    }
}

fn refused(place: &str) -> Error {
    Error::invalid(format!(
        "the store of \"{place}\" replaces objects that it should only create (If-None-Match: *), so two writers could \
         overwrite each other's results"
    ))
    .with_hint("write to a store that honours conditional writes")
}
