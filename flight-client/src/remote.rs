//! Reading from a cluster, with ordered or dynamic delivery.

use std::sync::Arc;

use forebay_protocol::{Batch, DeliveryMode, Result};

use crate::connect::ConnectOptions;
use crate::dispatcher::Dispatch;
use crate::dynamic::DynamicReader;
use crate::read_plan::ReadPlan;
use crate::reader::RankReader;
use crate::transport::{FlightTransport, SliceTransport};

/// Reads batches from a cluster. With ordered delivery they equal the batches of a reader in process. Dropping the
/// reader leaves the feed.
pub struct RemoteReader(ReaderKind);

enum ReaderKind {
    Ordered(Box<RankReader>),
    Dynamic(Box<DynamicReader>),
}

impl RemoteReader {
    /// Creates a reader that asks `dispatch` for routes and reads over Flight. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// `Invalid` if a dynamic reader would start in the middle of a claim.
    pub fn new(dispatch: Arc<dyn Dispatch>, what: ReadPlan, options: ConnectOptions) -> Result<Self> {
        let transport = FlightTransport::new(options.clone());
        Self::over(transport, dispatch, what, &options)
    }

    /// Like [`new`](Self::new), over any transport.
    ///
    /// # Errors
    /// `Invalid` if a dynamic reader would start in the middle of a claim.
    pub fn over(
        transport: Arc<dyn SliceTransport>,
        dispatch: Arc<dyn Dispatch>,
        what: ReadPlan,
        options: &ConnectOptions,
    ) -> Result<Self> {
        Ok(Self(match what.request.delivery.unwrap_or_default() {
            DeliveryMode::Ordered => {
                ReaderKind::Ordered(Box::new(RankReader::new(dispatch, transport, &what, options)?))
            }
            DeliveryMode::Dynamic => {
                ReaderKind::Dynamic(Box::new(DynamicReader::new(dispatch, transport, what, options)?))
            }
        }))
    }

    /// The next batch, or `None` after the last epoch. Ends after an error. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Batch>> {
        let next = match &mut self.0 {
            ReaderKind::Ordered(reader) => reader.next().await,
            ReaderKind::Dynamic(reader) => reader.next().await,
        };
        if !matches!(next, Some(Ok(_))) {
            self.close().await;
        }
        next
    }

    /// Leaves the feed and waits up to a second for the dispatcher to acknowledge. Dropping the reader leaves without
    /// waiting.
    pub async fn close(&mut self) {
        match &mut self.0 {
            ReaderKind::Ordered(reader) => reader.close().await,
            ReaderKind::Dynamic(reader) => reader.close().await,
        }
    }
}
