//! Reading an artifact's files: every byte is verified before it is used.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::digests::{Blocks, ContentDigest};
use super::layout::blocks_name;
use crate::pinned::PinnedFile;
use crate::source_file::FileContent;
use crate::{Error, ErrorKind, Result};

/// Maximum bytes of digests to keep for each dataset: those of 64 GiB of files.
const KEPT_BYTES_MAX: u64 = 64 << 20;

type Kept = Cache<ContentDigest, Blocks, Size, DefaultHashBuilder, DefaultLifecycle<ContentDigest, Blocks>>;

/// The digests of blocks that were read last.
#[derive(Clone, Debug)]
pub(crate) struct KeptBlocks(Arc<Kept>);

#[derive(Clone, Debug)]
struct Size;

impl Weighter<ContentDigest, Blocks> for Size {
    fn weight(&self, _: &ContentDigest, blocks: &Blocks) -> u64 {
        blocks.size() + 64
    }
}

impl Default for KeptBlocks {
    fn default() -> Self {
        let mut options = OptionsBuilder::new();
        // One shard, so that one file's digests may take any part of the bytes.
        options.shards(1).weight_capacity(KEPT_BYTES_MAX).estimated_items_capacity(1024);
        let options = options.build().expect("all options are set");
        let kept = Kept::with_options(options, Size, DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self(Arc::new(kept))
    }
}

/// How to verify what is read of a file.
#[derive(Clone, Debug)]
pub(crate) struct Verifier {
    pub(crate) content: FileContent,
    /// The digests of its blocks.
    place: Path,
    kept: KeptBlocks,
}

impl Verifier {
    /// For the file at `path` in an artifact, or `None` if the path is too short for the content.
    pub(crate) fn of(path: &Path, content: FileContent, kept: KeptBlocks) -> Option<Self> {
        let parts: Vec<&str> = path.as_ref().split('/').collect();
        let folder = parts.len().checked_sub(content.folders as usize + 1)?;
        let blocks = blocks_name(&parts[folder..].join("/"));
        let place = match folder {
            0 => Path::parse(blocks),
            _ => Path::parse(format!("{}/{blocks}", parts[..folder].join("/"))),
        };
        Some(Self { content, place: place.ok()?, kept })
    }

    /// Reads a range of the file's bytes.
    pub(crate) async fn read(&self, file: &PinnedFile, range: Range<u64>) -> Result<Bytes> {
        let around = Blocks::around(&range, file.size);
        let blocks = self.kept.0.get_or_insert_async(&self.content.digest, self.blocks(file)).await?;
        let bytes = file.fetch(Some(around.clone())).await?;
        match blocks.find_wrong(around.start, &bytes) {
            None => Ok(bytes.slice((range.start - around.start) as usize..(range.end - around.start) as usize)),
            Some(wrong) => Err(Error::data(format!(
                "\"{}\" is damaged in bytes {}..{}: they are not what the artifact's job wrote",
                file.display, wrong.start, wrong.end
            ))
            .with_hint("restore the file, or remove its folder and run its job again")),
        }
    }

    async fn blocks(&self, file: &PinnedFile) -> Result<Blocks> {
        let shown = || file.display.strip_suffix(file.location.as_ref()).unwrap_or_default().to_owned();
        let place = format!("{}{}", shown(), self.place);
        let read = async { file.store.get_opts(&self.place, Default::default()).await?.bytes().await };
        let digests = read.await.map_err(|error| match Error::from_store(&place, error) {
            error if error.kind() == ErrorKind::NotFound => Error::conflict(format!(
                "\"{}\" is no longer an artifact's file: \"{place}\" does not exist",
                file.display
            ))
            .with_hint("run its job again")
            .with_source(error),
            error => error,
        })?;
        Blocks::of(digests, file.size, self.content.digest).ok_or_else(|| {
            Error::data(format!("\"{place}\" is damaged: it is not of the file \"{}\" of its manifest", file.display))
                .with_hint("restore it, or remove its folder and run its job again")
        })
    }
}
