//! What a reader reads.

use arrow::datatypes::SchemaRef;
use forebay_delivery::ReadSettings;

use crate::wire::{FeedMetadata, StreamRequest};

/// A rank's stream of a feed, as a server has planned it.
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
