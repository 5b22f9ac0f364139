//! Keeps what opening a table found, so that opening it again takes no time while its files are the same.
//!
//! Opening reads every footer, or all records of text files. The columns and the snapshot are what it finds. They are
//! written under the root as one object for each table definition, which the next opening with other files replaces.
//! An object that cannot be read or written only costs time.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::dataset_spec::DatasetSpec;
use crate::pinned::PinnedFile;
use crate::snapshot::Snapshot;
use crate::snapshot_text::{SnapshotReader, SnapshotText};
use crate::{Result, Stores};

/// Where to keep what opening tables found.
#[derive(Clone, Copy, Debug)]
pub struct Keeping<'a> {
    /// The folder or URL.
    pub root: &'a str,
    /// The build. Another one may find other columns in the same files.
    pub build: &'a str,
    /// Opening that takes less time is not worth keeping.
    pub after: Duration,
}

/// The first line of an object. The text of the snapshot follows.
#[derive(Serialize, Deserialize)]
struct Head {
    /// A hash of the files.
    files: String,
    #[serde(with = "crate::schema::schema_text")]
    schema: SchemaRef,
}

impl Keeping<'_> {
    /// What an earlier opening found in the same files.
    pub(crate) async fn find(
        &self,
        stores: &Stores,
        spec: &DatasetSpec,
        files: &[PinnedFile],
    ) -> Option<(SchemaRef, Snapshot)> {
        let bytes = stores.get(&self.object(spec)).await.ok()?;
        match parsed(&bytes, &files_id(files)) {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(table = spec.location, %error, "what an earlier opening kept is not readable");
                None
            }
        }
    }

    pub(crate) async fn put(
        &self,
        stores: &Stores,
        spec: &DatasetSpec,
        files: &[PinnedFile],
        schema: &SchemaRef,
        snapshot: &Arc<Snapshot>,
    ) {
        let head = Head { files: files_id(files), schema: Arc::clone(schema) };
        let mut text = serde_json::to_vec(&head).expect("plain data becomes JSON");
        text.push(b'\n');
        SnapshotText::new(Arc::clone(snapshot)).for_each(|piece| text.extend_from_slice(&piece));
        if let Err(error) = stores.put(&self.object(spec), text.into()).await {
            tracing::debug!(table = spec.location, %error, "what opening found is not kept");
        }
    }

    fn object(&self, spec: &DatasetSpec) -> String {
        let mut hash = blake3::Hasher::new();
        for part in [self.build.as_bytes(), &serde_json::to_vec(spec).expect("plain data becomes JSON")] {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        format!("{}/tables/{}", self.root.trim_end_matches('/'), hash.finalize().to_hex())
    }
}

/// The columns and the snapshot, unless they are of other files.
fn parsed(bytes: &Bytes, files: &str) -> Result<Option<(SchemaRef, Snapshot)>> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let Ok(head) = serde_json::from_slice::<Head>(&bytes[..end]) else { return Ok(None) };
    if head.files != files {
        return Ok(None);
    }
    let mut snapshot = SnapshotReader::default();
    snapshot.push(bytes.get(end + 1..).unwrap_or_default())?;
    Ok(Some((head.schema, snapshot.finish()?)))
}

/// A hash of the files' paths, sizes and versions.
fn files_id(files: &[PinnedFile]) -> String {
    let mut hash = blake3::Hasher::new();
    for file in files {
        let digest = file.verifier.as_ref().map(|verifier| verifier.content.digest.to_string());
        let version = digest.as_deref().or(file.etag.as_deref()).unwrap_or_default();
        for text in [&*file.display, version] {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&file.size.to_le_bytes());
        hash.update(&file.modified_ms.to_le_bytes());
    }
    hash.finalize().to_hex().to_string()
}
