//! The files of an artifact, as those of a dataset, and the columns of its rows.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::manifest::Manifest;
use super::open::Artifact;
use super::verified::{KeptBlocks, Verifier};
use crate::extension::has_extension;
use crate::formats::format::FormatDescriptor;
use crate::pinned::PinnedFile;
use crate::source_file::FileContent;
use crate::stores::StoreLocation;
use crate::{Error, Result, Stores};

/// The columns of an artifact's rows, as its job had them.
#[derive(Clone, Debug)]
pub(crate) struct ArtifactColumns {
    /// Those in the files.
    pub(crate) in_files: SchemaRef,
    /// Those whose values are the names of folders.
    pub(crate) of_folders: SchemaRef,
}

/// The files of the artifact at `place`, and its columns. `None` if there is no artifact.
pub(crate) async fn artifact_files(
    stores: &Stores,
    place: &StoreLocation,
    format: &FormatDescriptor,
) -> Result<Option<(Vec<PinnedFile>, ArtifactColumns)>> {
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
    let Manifest { schema, folders, .. } = artifact.manifest();
    Ok(Some((files, ArtifactColumns { in_files: Arc::clone(schema), of_folders: Arc::clone(folders) })))
}
