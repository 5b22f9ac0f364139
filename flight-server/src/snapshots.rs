//! A dispatcher's answer to a worker's request for a snapshot: a stream of small messages.

use arrow_flight::Result as ActionResult;
use forebay_engine::SnapshotSource;
use forebay_flight_client::wire::SnapshotCall;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tonic::Status;

use crate::dispatcher::DispatcherService;
use crate::status::status;

/// Streams a snapshot to a worker, one message per piece.
pub(crate) async fn answer(
    dispatcher: &DispatcherService,
    call: SnapshotCall,
) -> Result<BoxStream<'static, Result<ActionResult, Status>>, Status> {
    let feed = dispatcher.feed(&call.feed).map_err(|error| status(&error))?;
    let pieces = feed.snapshot(&call.snapshot).await.map_err(|error| status(&error))?;
    Ok(pieces.map_ok(|body| ActionResult { body }).map_err(|error| status(&error)).boxed())
}
