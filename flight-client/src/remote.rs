//! Reading from a cluster, whichever way batches are shared out.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use forebay_delivery::ReadSettings;
use forebay_protocol::{Batch, DeliveryMode, Result};

use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::dynamic::DynamicReader;
use crate::reader::RankReader;
use crate::wire::{FeedMetadata, StreamRequest};

/// What is read.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    /// As it was asked for, with the feed's id.
    pub request: StreamRequest,
    /// What that came to.
    pub metadata: FeedMetadata,
    /// The samples' schema.
    pub schema: SchemaRef,
}

impl ReadPlan {
    pub(crate) fn settings(&self) -> ReadSettings {
        let FeedMetadata { batch_size, epochs, drop_last, .. } = self.metadata;
        let StreamRequest { rank, world_size, .. } = self.request;
        ReadSettings { batch_size, epochs, drop_last, rank, world_size }
    }
}

/// Reads batches from a cluster; with ordered delivery the same that a reader in process gives. Dropping it leaves the
/// feed.
pub struct RemoteReader(Kind);

enum Kind {
    Ordered(Box<RankReader>),
    Dynamic(Box<DynamicReader>),
}

impl RemoteReader {
    /// A rank that asks `dispatch` where to read. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// `Invalid` where a dynamic reader would begin in the middle of a claim.
    pub fn new(dispatch: Arc<dyn Dispatch>, what: ReadPlan, options: ConnectOptions) -> Result<Self> {
        Ok(Self(match what.request.delivery.unwrap_or_default() {
            DeliveryMode::Ordered => Kind::Ordered(Box::new(RankReader::new(dispatch, &what, options))),
            DeliveryMode::Dynamic => Kind::Dynamic(Box::new(DynamicReader::new(dispatch, what, options)?)),
        }))
    }

    /// The next batch, or `None` after the last epoch. After an error there is nothing more. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Batch>> {
        let next = match &mut self.0 {
            Kind::Ordered(reader) => reader.next().await,
            Kind::Dynamic(reader) => reader.next().await,
        };
        if !matches!(next, Some(Ok(_))) {
            self.close().await;
        }
        next
    }

    /// Leaves the feed, and waits until the dispatcher knows, for a second at most. Dropping does the same without waiting.
    pub async fn close(&mut self) {
        match &mut self.0 {
            Kind::Ordered(reader) => reader.close().await,
            Kind::Dynamic(reader) => reader.close().await,
        }
    }
}
