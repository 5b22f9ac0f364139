//! The dispatcher of this process, for readers in the same process.

use std::sync::Arc;

use forebay_delivery::ClaimAnswer;
use forebay_engine::{Feed, Result};
use forebay_flight_client::wire::{ClaimCall, ReaderAnswer, ReaderCall};
use forebay_flight_client::{Dispatch, FeedMetadata, StreamRequest};

use crate::dispatcher::DispatcherService;

/// Answers like a dispatcher over the network.
pub(crate) struct Here(pub(crate) Arc<DispatcherService>);

#[tonic::async_trait]
impl Dispatch for Here {
    async fn sync(&self, call: &ReaderCall) -> Result<ReaderAnswer> {
        self.0.reader_sync(call.clone()).await
    }

    async fn claim(&self, call: &ClaimCall) -> Result<ClaimAnswer> {
        self.0.claim_sync(call.clone()).await
    }

    fn rotate(&self, _: &str) {}

    fn apart(&self) -> Arc<dyn Dispatch> {
        Arc::new(Self(Arc::clone(&self.0)))
    }

    fn name(&self) -> String {
        "this server".to_owned()
    }
}

/// Resolves a request for a feed.
pub(crate) fn metadata(feed: &Feed, request: &StreamRequest) -> Result<FeedMetadata> {
    let options = request.read_options();
    let (settings, begin) = feed.resolve(&options)?;
    let samples = feed.expected_samples(&options)?;
    Ok(FeedMetadata {
        feed: feed.id().to_owned(),
        samples_per_epoch: feed.samples_per_epoch(),
        samples,
        identity: feed.identity(),
        batch_size: settings.batch_size,
        epochs: settings.epochs,
        drop_last: settings.drop_last,
        window: begin.window,
        window_offset: begin.window_offset,
        offset: begin.offset,
    })
}
