//! Calls to a dispatcher. If one does not answer, the next of several is tried.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_flight::Action;
use bytes::Bytes;
use forebay_delivery::ClaimAnswer;
use forebay_protocol::{ErrorKind, Result};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tonic::Status;

use crate::connect::{self, AuthorizedClient, ConnectOptions};
use crate::probe;
use crate::status::{error_of, lost};
use crate::wire::{ClaimCall, ReaderAnswer, ReaderCall, actions};

/// A dispatcher answers a call within half a second. After this time it is treated as lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);

/// Splits a comma-separated list of addresses.
pub fn addresses(list: &str) -> Vec<String> {
    list.split(',').map(|address| address.trim().to_owned()).collect()
}

/// Answers a trainer's messages.
#[async_trait::async_trait]
pub trait Dispatch: Send + Sync {
    /// Reports the trainer's position and returns the next routes.
    async fn sync(&self, call: &ReaderCall) -> Result<ReaderAnswer>;

    /// Reports what a rank with dynamic delivery has taken and returns its claims.
    async fn claim(&self, call: &ClaimCall) -> Result<ClaimAnswer>;

    /// Switches to the dispatcher after `from`, the [`name`](Self::name) of a dispatcher without workers. Does nothing
    /// if another call has already switched.
    fn rotate(&self, from: &str);

    /// The same dispatchers, starting with the first, for a caller that rotates independently.
    fn apart(&self) -> Arc<dyn Dispatch>;

    /// Each of the other dispatchers, for a caller that must contact all of them.
    fn others(&self) -> Vec<Arc<dyn Dispatch>> {
        Vec::new()
    }

    /// The dispatcher's name in errors.
    fn name(&self) -> String;
}

/// A dispatcher over the network, one of several addresses.
pub struct DispatcherClient {
    addresses: Vec<String>,
    options: ConnectOptions,
    at: Mutex<(usize, Option<AuthorizedClient>)>,
    /// Whether any of them has answered before.
    is_known: AtomicBool,
}

impl DispatcherClient {
    /// Uses the first of `addresses` until it stops answering.
    pub fn new(addresses: Vec<String>, options: ConnectOptions) -> Self {
        Self { addresses, options, at: Mutex::new((0, None)), is_known: AtomicBool::new(false) }
    }

    /// The address in use.
    pub fn uri(&self) -> String {
        self.addresses.get(self.at.lock().0).cloned().unwrap_or_default()
    }

    /// The number of addresses.
    pub fn addresses(&self) -> usize {
        self.addresses.len()
    }

    /// Switches to the address after `from` if `from` is still in use: another call may have switched already.
    pub fn rotate(&self, from: &str) {
        let mut at = self.at.lock();
        if self.addresses.get(at.0).is_some_and(|address| address == from) {
            *at = ((at.0 + 1) % self.addresses.len(), None);
        }
    }

    /// Calls an action.
    ///
    /// # Errors
    /// The dispatcher's errors; `Unavailable` if it does not answer within three seconds.
    pub async fn call<T: DeserializeOwned>(&self, action: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_vec(body).expect("plain data becomes JSON");
        let uri = self.uri();
        let called = timeout(CALL_TIMEOUT, async {
            let mut service = self.service().await?;
            let answer = call(&mut service, Action::new(action, body)).await;
            answer.map_err(|status| error_of(&uri, &status, |cause| lost(&uri, cause)))
        });
        let mut answer = called.await.unwrap_or_else(|_| Err(lost(&uri, "it does not answer")));
        let is_gone = |answer: &Result<T>| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
        // An address that never answered may not be a dispatcher.
        if is_gone(&answer)
            && !self.is_known.load(Ordering::Relaxed)
            && let Some(error) = probe::mistaken(&uri).await
        {
            answer = Err(error);
        }
        self.is_known.fetch_or(answer.is_ok(), Ordering::Relaxed);
        if is_gone(&answer) {
            // Retrying a failed connection is pointless, and the next dispatcher may answer.
            self.rotate(&uri);
        }
        answer
    }

    /// A connection to the address in use.
    pub(crate) async fn service(&self) -> Result<AuthorizedClient> {
        let (index, service) = self.at.lock().clone();
        if let Some(service) = service {
            return Ok(service);
        }
        let uri = self.addresses.get(index).cloned().unwrap_or_default();
        let service = connect::connect(&uri, &self.options).await;
        let service = service.map_err(|error| match error.kind() {
            ErrorKind::Unavailable if self.is_known.load(Ordering::Relaxed) => lost(&uri, error.message()),
            _ => error,
        })?;
        let mut at = self.at.lock();
        if at.0 == index {
            at.1 = Some(service.clone());
        }
        Ok(service)
    }
}

#[async_trait::async_trait]
impl Dispatch for DispatcherClient {
    async fn sync(&self, call: &ReaderCall) -> Result<ReaderAnswer> {
        self.call(actions::READER_SYNC, call).await
    }

    async fn claim(&self, call: &ClaimCall) -> Result<ClaimAnswer> {
        self.call(actions::CLAIM_SYNC, call).await
    }

    fn rotate(&self, from: &str) {
        Self::rotate(self, from);
    }

    fn apart(&self) -> Arc<dyn Dispatch> {
        Arc::new(Self::new(self.addresses.clone(), self.options.clone()))
    }

    fn others(&self) -> Vec<Arc<dyn Dispatch>> {
        let here = self.uri();
        let others = self.addresses.iter().filter(|address| **address != here);
        others
            .map(|address| Arc::new(Self::new(vec![address.clone()], self.options.clone())) as Arc<dyn Dispatch>)
            .collect()
    }

    fn name(&self) -> String {
        self.uri()
    }
}

/// Calls an action that returns one JSON answer.
///
/// Reads the stream to its end: dropping it before its trailers resets it, and HTTP/2 closes a connection after 1,024
/// resets.
pub(crate) async fn call<T: DeserializeOwned>(service: &mut AuthorizedClient, action: Action) -> Result<T, Status> {
    let mut answers = service.do_action(action).await?.into_inner();
    let body: Bytes = answers.message().await?.map(|answer| answer.body).unwrap_or_default();
    while answers.message().await?.is_some() {}
    serde_json::from_slice(&body).map_err(|error| Status::internal(format!("the answer cannot be read: {error}")))
}

#[cfg(test)]
mod tests;
