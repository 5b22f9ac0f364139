//! Fetches snapshots from a dispatcher, in pieces. A worker fetches each snapshot once, for all feeds that read it.

use std::time::Duration;

use arrow_flight::Action;
use bytes::Bytes;
use forebay_protocol::{ErrorKind, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::time::timeout;
use tonic::Streaming;

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
        let opened = self.open_snapshot(&uri, call).await;
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
            self.rotate(&uri);
        }
        let pieces = opened?;
        Ok(stream::unfold(Some(pieces), move |pieces| {
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
        })
        .boxed())
    }

    async fn open_snapshot(&self, uri: &str, call: &SnapshotCall) -> Result<Streaming<arrow_flight::Result>> {
        let mut service = self.service().await?;
        let body = serde_json::to_vec(call).expect("plain data becomes JSON");
        let asked = timeout(PIECE_TIMEOUT, service.do_action(Action::new(actions::SNAPSHOT, body))).await;
        match asked {
            Ok(answer) => Ok(answer.map_err(|status| error_of(uri, &status, |cause| lost(uri, cause)))?.into_inner()),
            Err(_) => Err(lost(uri, "it does not answer")),
        }
    }
}
