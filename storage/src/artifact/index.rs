//! Index files, which other programs look for under fixed names, such as `index.json` beside the shards of MDS.
//!
//! A fixed name is no attempt's own: what a job that was given up writes there late would be taken for another's. So
//! before the commit an index is kept among the job's own objects, named by its digest. After it, whoever sees the
//! commit copies it to its name, and replaces what is there. A folder with an index holds the whole artifact.

use bytes::Bytes;

use super::digests::ContentDigest;
use super::generations::last_number;
use super::job::Job;
use super::manifest::ArtifactIndex;
use super::open::Artifact;
use crate::{Error, ErrorKind, Result};

/// Tries to write an index to its name, while what others wrote before arrives there late.
const TRIES: usize = 3;

impl Job {
    /// Keeps index files until the commit.
    pub(super) async fn keep_index(&self, index: Vec<(String, Bytes)>) -> Result<Vec<ArtifactIndex>> {
        let mut files = Vec::new();
        for (name, content) in index {
            let (bytes, digest) = (content.len() as u64, ContentDigest::of_content(&content));
            self.stores.put_durably(&self.folder.index(&self.attempt, &digest), content).await?;
            files.push(ArtifactIndex { name, bytes, digest });
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }
}

impl Artifact {
    /// Writes the index files to their names, unless they are there.
    pub(super) async fn publish_index(&self) -> Result<()> {
        for file in &self.manifest().index {
            self.publish(file).await?;
        }
        Ok(())
    }

    async fn publish(&self, file: &ArtifactIndex) -> Result<()> {
        let place = self.folder.object(&file.name);
        match self.stores.get(&place).await {
            Ok(there) if ContentDigest::of_content(&there) == file.digest => return Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let kept = self.folder.index(&self.attempt(), &file.digest);
        let content = match self.stores.get(&kept).await {
            Ok(content) => content,
            Err(error) if error.kind() == ErrorKind::NotFound && self.is_past().await? => return Ok(()),
            Err(error) => return Err(error),
        };
        if ContentDigest::of_content(&content) != file.digest {
            return Err(Error::data(format!("\"{kept}\" is damaged: its content is not what its name says"))
                .with_hint("restore it, or remove its folder and run its job again"));
        }
        // Only created, so that what arrives late never replaces the index of a later artifact.
        for _ in 0..TRIES {
            if self.stores.put_new(&place, content.clone()).await? {
                return Ok(());
            }
            if self.is_past().await? {
                return Ok(());
            }
            self.stores.delete(&place).await?;
        }
        Err(Error::conflict(format!("another process writes to \"{place}\"")).with_hint("run the job again"))
    }

    /// Whether the artifact was removed meanwhile.
    async fn is_past(&self) -> Result<bool> {
        Ok(last_number(&self.stores, &self.folder).await? != self.generation())
    }
}
