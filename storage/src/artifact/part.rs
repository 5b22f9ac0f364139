//! The parts of a job's result, which are written and recorded one by one.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::digests::FileHasher;
use super::layout::Folder;
use super::manifest::ArtifactFile;
use crate::objects::Upload;
use crate::{Result, Stores};

/// A part of a job's result that is complete. A job that resumes finds its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its data files. More than one if rows are divided by a column, none if there are no rows.
    pub files: Vec<ArtifactFile>,
    /// The number of rows that were read for it.
    pub rows_in: u64,
    /// The number of them that could not be read or computed.
    pub bad_rows: u64,
    /// How many rows were bad for which reason.
    pub bad_reasons: BTreeMap<String, u64>,
    /// What it cost, in the terms of the job's crate.
    pub costs: Value,
    /// What the job's crate wants to know of the files, such as statistics.
    pub facts: Value,
}

/// A data file that is being written. It is digested on the way.
#[derive(Debug)]
pub struct DataFile {
    pub(super) stores: Stores,
    pub(super) folder: Folder,
    pub(super) name: String,
    pub(super) upload: Upload,
    pub(super) hasher: FileHasher,
}

impl DataFile {
    /// The path below the artifact's folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes more bytes. Waits while enough of them are on the way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.hasher.update(&bytes);
        self.upload.write(bytes).await
    }

    /// Waits until the file is complete with its `rows` rows.
    pub(super) async fn finish(self, rows: u64) -> Result<ArtifactFile> {
        let Self { stores, folder, name, upload, hasher } = self;
        upload.finish().await?;
        let (bytes, digest, blocks) = hasher.finish();
        stores.put_durably(&folder.blocks(&name), blocks).await?;
        Ok(ArtifactFile { name, rows, bytes, digest })
    }

    /// Gives up, and returns what [`finish`](Self::finish) would have.
    pub(super) async fn digest(self, rows: u64) -> Result<ArtifactFile> {
        self.upload.abort().await?;
        let (bytes, digest, _) = self.hasher.finish();
        Ok(ArtifactFile { name: self.name, rows, bytes, digest })
    }

    /// Gives up, so that the store keeps nothing of the file.
    pub async fn abort(self) -> Result<()> {
        self.upload.abort().await
    }
}
