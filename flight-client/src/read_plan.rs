//! The plan of one rank's stream.

use arrow::datatypes::SchemaRef;
use forebay_delivery::ReadSettings;

use crate::wire::{FeedMetadata, StreamRequest};

/// A rank's stream of a feed, as planned by a server.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    /// The request, with the feed's id filled in.
    pub request: StreamRequest,
    /// The server's answer: the resolved settings and the start position.
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
