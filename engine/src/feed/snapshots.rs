//! Sends snapshots between processes: a spec names its snapshots, and the process that opens it fetches the missing
//! ones.
//!
//! A snapshot is content-addressed: its id is a hash of its content, which the receiver checks. So any sender can be
//! trusted, and many feeds share one snapshot.

use std::sync::Arc;

use bytes::Bytes;
use forebay_storage::{Snapshot, SnapshotReader, SnapshotText};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::Feed;
use crate::error::{Error, ErrorKind, Result};

/// Sends snapshots to [`Session::open_spec`](crate::Session::open_spec).
#[async_trait::async_trait]
pub trait SnapshotSource: Send + Sync {
    /// The text of snapshot `id`, in pieces.
    ///
    /// # Errors
    /// `NotFound` if this source does not have it.
    async fn snapshot(&self, id: &str) -> Result<SnapshotPieces>;
}

/// The text of a snapshot in pieces.
pub type SnapshotPieces = BoxStream<'static, Result<Bytes>>;

impl Feed {
    /// The snapshot `id`, if it belongs to a table that the feed reads.
    fn own_snapshot(&self, id: &str) -> Option<Arc<Snapshot>> {
        let snapshot = self.pipeline.datasets().map(forebay_storage::Dataset::snapshot).find(|it| it.id() == id)?;
        Some(Arc::clone(snapshot))
    }
}

/// An open feed has the snapshots that its spec names.
#[async_trait::async_trait]
impl SnapshotSource for Feed {
    async fn snapshot(&self, id: &str) -> Result<SnapshotPieces> {
        let missing = || Error::new(ErrorKind::NotFound, format!("feed {} reads no snapshot {id}", self.id()));
        let snapshot = self.own_snapshot(id).ok_or_else(missing)?;
        Ok(stream::iter(SnapshotText::new(snapshot).map(Ok)).boxed())
    }
}

/// Reads the snapshot `id` from `source`. The id is unverified until a dataset has been opened over the snapshot.
pub(crate) async fn fetch(source: &dyn SnapshotSource, id: &str) -> Result<Snapshot> {
    let (mut pieces, mut reader) = (source.snapshot(id).await?, SnapshotReader::default());
    while let Some(piece) = pieces.next().await {
        reader.push(&piece?)?;
    }
    let snapshot = reader.finish()?;
    match snapshot.id() == id {
        true => Ok(snapshot),
        false => Err(Error::new(ErrorKind::Conflict, format!("requested snapshot {id}, received {}", snapshot.id()))),
    }
}
