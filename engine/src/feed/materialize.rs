//! Writes a feed's samples to Parquet once: files under fresh names, then one manifest that commits them.

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use forebay_protocol::{ReadOptions, random_id};
use forebay_storage::write_parquet;
use serde::{Deserialize, Serialize};

use super::Feed;
use crate::error::{Error, ErrorKind, Result};

/// Raise this when readers of older manifests would misread a new one.
const MANIFEST_VERSION: u32 = 1;
const MANIFEST: &str = "_forebay.json";
/// Samples to read at a time, and the size of a file, which is built in memory.
const BATCH_ROWS: u64 = 256;
const FILE_BYTES: usize = 64 << 20;

/// Samples written to files, as listed by the manifest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Materialized {
    /// The manifest's version.
    pub version: u32,
    /// The feed that was written: see [`Feed::identity`].
    pub identity: serde_json::Value,
    /// Samples in all files.
    pub rows: u64,
    /// Bad rows that were skipped.
    pub bad_rows: u64,
    /// The folder of the files, beside the manifest. Each run has its own folder, so concurrent or interrupted runs do
    /// not touch each other's files.
    pub folder: String,
    /// Names of the files in the folder, in the samples' order.
    pub files: Vec<String>,
    /// Whether an earlier run wrote them.
    #[serde(skip)]
    pub found: bool,
}

/// A random id, unique to this run.
impl Feed {
    /// Writes the samples of the first epoch, in order, to Parquet files under the folder or URL `url`. If an earlier
    /// run wrote the same feed there, keeps its files. An interrupted run leaves a folder of files without a manifest;
    /// the next run writes another folder.
    ///
    /// # Errors
    /// `Conflict` if `url` holds another feed, `Invalid` if the query calls functions without a version; errors of
    /// reading and writing.
    pub async fn materialize(&self, url: &str) -> Result<Materialized> {
        let unversioned = self.pipeline.unversioned_functions();
        if !unversioned.is_empty() {
            let message = format!("what {} gives must not be kept, since it has no version", unversioned.join(", "));
            return Err(Error::invalid(message).with_hint("declare the function with a version"));
        }
        let url = url.trim_end_matches('/');
        let manifest = format!("{url}/{MANIFEST}");
        if let Some(found) = self.committed(&manifest).await? {
            return Ok(found);
        }
        let read = ReadOptions {
            batch_size: self.settings().buckets.is_none().then_some(BATCH_ROWS),
            epochs: Some(1),
            drop_last: Some(false),
            ..ReadOptions::default()
        };
        let mut reader = self.read(&read)?;
        let mut done = Materialized {
            version: MANIFEST_VERSION,
            identity: self.identity(),
            rows: 0,
            bad_rows: 0,
            folder: format!("{}-{:016x}", self.id(), random_id()?),
            files: Vec::new(),
            found: false,
        };
        let (mut batches, mut bytes) = (Vec::new(), 0);
        loop {
            let batch = reader.next().await.transpose()?;
            let is_last = batch.is_none();
            if let Some(batch) = batch {
                done.rows += batch.records.num_rows() as u64;
                done.bad_rows += batch.bad_rows();
                bytes += batch.records.get_array_memory_size();
                batches.push(batch.records);
            }
            // A feed without samples becomes one file without rows, to preserve the schema.
            if bytes >= FILE_BYTES || is_last && (!batches.is_empty() || done.files.is_empty()) {
                let name = format!("{:05}.parquet", done.files.len());
                self.write(&format!("{url}/{}/{name}", done.folder), &std::mem::take(&mut batches)).await?;
                bytes = 0;
                done.files.push(name);
            }
            if is_last {
                break;
            }
        }
        let text = serde_json::to_vec_pretty(&done).expect("plain data becomes JSON");
        if self.core().stores.put_new(&manifest, text.into()).await? {
            return Ok(done);
        }
        let found = self.committed(&manifest).await?;
        found.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, format!("\"{manifest}\" was removed while it was being written"))
        })
    }

    async fn write(&self, url: &str, batches: &[RecordBatch]) -> Result<()> {
        let rows = concat_batches(&self.schema(), batches)
            .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot put a file together: {error}")))?;
        write_parquet(&self.core().stores, url, &rows).await.map_err(|error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("cannot write samples: {}", error.message()))
                .with_hint("choose a writable folder or URL")
        })
    }

    /// The manifest of an earlier run.
    async fn committed(&self, manifest: &str) -> Result<Option<Materialized>> {
        let text = match self.core().stores.get(manifest).await {
            Err(error) if error.kind() == forebay_storage::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let found: Materialized = serde_json::from_slice(&text)
            .map_err(|error| Error::new(ErrorKind::Data, format!("\"{manifest}\" cannot be read: {error}")))?;
        if found.version != MANIFEST_VERSION || found.identity["feed"] != self.id() {
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("\"{manifest}\" belongs to feed {}, and this is feed {}", found.identity["feed"], self.id()),
            )
            .with_hint("write to another folder, or remove this one"));
        }
        Ok(Some(Materialized { found: true, ..found }))
    }
}
