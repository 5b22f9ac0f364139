//! Fetches snapshots from a dispatcher, in pieces. A worker fetches each snapshot once, for all feeds that read it.

use std::time::Duration;

use arrow_flight::Action;
use bytes::Bytes;
use forebay_protocol::Result;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::timeout;

use crate::dispatcher::DispatcherClient;
use crate::status::{error_of, lost};
use crate::wire::{SnapshotCall, actions};

/// Time limit for the next piece of a snapshot. The dispatcher may be sending to many workers.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);

impl DispatcherClient {
    /// Streams the text of a snapshot in pieces.
    ///
    /// # Errors
    /// The dispatcher's errors; `Unavailable` if it stops sending.
    pub async fn snapshot(&self, call: &SnapshotCall) -> Result<BoxStream<'static, Result<Bytes>>> {
        let uri = self.uri();
        let mut service = self.service().await?;
        let body = serde_json::to_vec(call).expect("plain data becomes JSON");
        let asked = timeout(PIECE_TIMEOUT, service.do_action(Action::new(actions::SNAPSHOT, body))).await;
        let answer = match asked {
            Ok(answer) => answer.map_err(|status| error_of(&uri, &status, |cause| lost(&uri, cause)))?,
            Err(_) => return Err(lost(&uri, "it does not answer")),
        };
        let pieces = stream::unfold(Some(answer.into_inner()), move |pieces| {
            let uri = uri.clone();
            async move {
                let mut pieces = pieces?;
                let piece = match timeout(PIECE_TIMEOUT, pieces.message()).await {
                    Ok(piece) => piece.map_err(|status| error_of(&uri, &status, |cause| lost(&uri, cause))),
                    Err(_) => Err(lost(&uri, "it stopped sending a snapshot")),
                };
                match piece.transpose()? {
                    Ok(piece) => Some((Ok(piece.body), Some(pieces))),
                    Err(error) => Some((Err(error), None)),
                }
            }
        });
        Ok(pieces.boxed())
    }
}
