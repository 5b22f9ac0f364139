//! The files of an artifact, as those of a dataset.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::open::Artifact;
use super::verified::{KeptBlocks, Verifier};
use crate::extension::has_extension;
use crate::formats::format::FormatDescriptor;
use crate::pinned::PinnedFile;
use crate::source_file::FileContent;
use crate::stores::StoreLocation;
use crate::{Error, Result, Stores};

/// The files of the artifact at `place`, and the columns in them. `None` if there is no artifact.
pub(crate) async fn artifact_files(
    stores: &Stores,
    place: &StoreLocation,
    format: &FormatDescriptor,
) -> Result<Option<(Vec<PinnedFile>, SchemaRef)>> {
    let Some(artifact) = Artifact::find(stores, &place.display()).await? else { return Ok(None) };
    let kept = KeptBlocks::default();
    let mut files = Vec::new();
    for file in &artifact.manifest().files {
        if !has_extension(&file.name, format.extensions) {
            return Err(Error::invalid(format!(
                "\"{}\" is an artifact of files such as \"{}\", which is not a {} file",
                artifact.url(),
                file.name,
                format.name
            )));
        }
        let folders = file.name.matches('/').count() as u32;
        let content = FileContent { digest: file.digest, rows: file.rows, folders };
        let location = place.join(&file.name)?.path;
        let verifier = Verifier::of(&location, content, kept.clone());
        files.push(PinnedFile {
            store: Arc::clone(&place.store),
            display: place.display_of(&location).into(),
            relative: file.name.as_str().into(),
            location,
            size: file.bytes,
            etag: None,
            modified_ms: 0,
            verifier,
            pieces: None,
        });
    }
    Ok(Some((files, Arc::clone(&artifact.manifest().schema))))
}
