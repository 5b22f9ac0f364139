//! One file of a snapshot, readable only while it is unchanged.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt};

use crate::artifact::Verifier;
use crate::piece_cache::{FileKey, PieceCache};
use crate::{Error, Result};

/// Files to read at a time.
const FILES_AT_ONCE: usize = 16;
/// Files of which to read a few bytes at a time. A store answers after tens of milliseconds.
const REMOTE_FILES_AT_ONCE: usize = 128;

/// Runs `work`, which reads little, on all files, several at a time, and returns the results in the files' order.
// Boxed here, where lifetimes have names: inside an async function the compiler cannot prove that such a stream is
// Send.
pub fn for_all<'a, T, F>(
    files: &'a [PinnedFile],
    work: impl Fn(&'a PinnedFile) -> F + Send + 'a,
) -> BoxFuture<'a, Result<Vec<T>>>
where
    T: Send + 'a,
    F: Future<Output = Result<T>> + Send + 'a,
{
    let at_once = match files.first().is_some_and(PinnedFile::is_local) {
        true => FILES_AT_ONCE,
        false => REMOTE_FILES_AT_ONCE,
    };
    stream::iter(files.iter().map(work)).buffered(at_once).try_collect().boxed()
}

/// Runs `work` on all files, several at a time, and passes each result through `then`, in the files' order, as soon as
/// all results before it exist.
pub(crate) fn for_all_then<'a, T, U, F>(
    files: &'a [PinnedFile],
    work: impl Fn(&'a PinnedFile) -> F + Send + 'a,
    mut then: impl FnMut(&'a PinnedFile, T) -> Result<U> + Send + 'a,
) -> BoxFuture<'a, Result<Vec<U>>>
where
    T: Send + 'a,
    U: Send + 'a,
    F: Future<Output = Result<T>> + Send + 'a,
{
    let results = stream::iter(files.iter().map(work)).buffered(FILES_AT_ONCE);
    results.zip(stream::iter(files)).map(move |(result, file)| then(file, result?)).try_collect().boxed()
}

/// A file in the state at the time of the snapshot.
#[derive(Clone, Debug)]
pub struct PinnedFile {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) location: Path,
    pub(crate) size: u64,
    /// The store's version of the content. Without one, the modification time reveals a changed file.
    pub(crate) etag: Option<String>,
    pub(crate) modified_ms: i64,
    /// The path for users: an absolute path or a URL.
    pub(crate) display: Arc<str>,
    /// The path below the dataset's folder.
    pub(crate) relative: Arc<str>,
    /// For a file of an artifact, which is the pinned one if its content is.
    pub(crate) verifier: Option<Verifier>,
    /// Where pieces of it are kept, if it is remote, and whether more are to be.
    pub(crate) pieces: Option<(Arc<PieceCache>, bool)>,
}

impl PinnedFile {
    /// The path for users: an absolute path or a URL.
    pub fn path(&self) -> &str {
        &self.display
    }

    /// The path below the dataset's folder.
    pub fn relative(&self) -> &str {
        &self.relative
    }

    /// Whether it is in a file of the local disk.
    pub(crate) fn is_local(&self) -> bool {
        self.display.starts_with('/')
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads the whole file.
    ///
    /// # Errors
    /// `Conflict` if the file is no longer the pinned one, and errors of the store.
    pub async fn get_all(&self) -> Result<Bytes> {
        self.get(None).await
    }

    /// Reads a range of bytes of the file.
    ///
    /// # Errors
    /// `Data` for a range beyond the end of the file, and those of [`get_all`](Self::get_all).
    pub async fn get_range(&self, range: Range<u64>) -> Result<Bytes> {
        if range.start > range.end || range.end > self.size {
            return Err(Error::data(format!(
                "\"{}\" points at bytes {}..{} but has only {}; it is damaged or truncated",
                self.display, range.start, range.end, self.size
            )));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        self.get(Some(range)).await
    }

    async fn get(&self, range: Option<Range<u64>>) -> Result<Bytes> {
        match &self.verifier {
            Some(verifier) => verifier.read(self, range.unwrap_or(0..self.size)).await,
            None => self.fetch(range).await,
        }
    }

    /// Reads bytes without verifying their content.
    pub(crate) async fn fetch(&self, range: Option<Range<u64>>) -> Result<Bytes> {
        match &self.pieces {
            Some((pieces, keeps)) => {
                let range = range.unwrap_or(0..self.size);
                pieces.read(self.key(), range, *keeps, |range| self.fetch_stored(Some(range))).await
            }
            None => self.fetch_stored(range).await,
        }
    }

    /// A name of this content.
    pub(crate) fn key(&self) -> FileKey {
        let version = match (&self.verifier, &self.etag) {
            (Some(verifier), _) => format!("\0content\0{}", verifier.content.digest),
            (None, Some(etag)) => format!("\0etag\0{etag}"),
            (None, None) => format!("\0modified\0{}", self.modified_ms),
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.display.as_bytes()).update(version.as_bytes()).update(&self.size.to_le_bytes());
        *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
    }

    /// Reads bytes from the store.
    pub(crate) async fn fetch_stored(&self, range: Option<Range<u64>>) -> Result<Bytes> {
        let expected = range.as_ref().map_or(self.size, |r| r.end - r.start);
        let options = GetOptions::new().with_if_match(self.etag.clone()).with_range(range);
        let result = match self.store.get_opts(&self.location, options).await {
            Ok(result) if self.is_same(&result.meta) => result,
            Ok(_) | Err(object_store::Error::Precondition { .. } | object_store::Error::NotFound { .. }) => {
                return Err(self.changed().await);
            }
            // Without a version to compare, a store may first report that the file is shorter than the range.
            Err(e) => match self.store.head(&self.location).await {
                Ok(now) if !self.is_same(&now) => return Err(self.changed().await),
                _ => return Err(Error::from_store(&self.display, e)),
            },
        };
        let bytes = result.bytes().await.map_err(|e| Error::from_store(&self.display, e))?;
        if bytes.len() as u64 != expected {
            return Err(self.changed().await);
        }
        Ok(bytes)
    }

    fn is_same(&self, now: &ObjectMeta) -> bool {
        self.size == now.size
            && match (&self.etag, &now.e_tag) {
                _ if self.verifier.is_some() => true,
                (Some(then), Some(now)) => then == now,
                _ => self.modified_ms == now.last_modified.timestamp_millis(),
            }
    }

    async fn changed(&self) -> Error {
        let place = &self.display;
        let detail = match self.store.head(&self.location).await {
            Ok(now) if now.size != self.size => {
                format!(" (size {} -> {})", self.size, now.size)
            }
            Ok(_) => " (same size, other version)".to_owned(),
            Err(object_store::Error::NotFound { .. }) => {
                return Error::conflict(format!(
                    "\"{place}\" was removed since the feed's snapshot was taken; put it back, or create its table \
                     again (restart the run or server)"
                ));
            }
            Err(_) => String::new(),
        };
        Error::conflict(format!(
            "\"{place}\" changed since the feed's snapshot was taken{detail}; create its table again (restart the run \
             or server) to read the new file"
        ))
    }
}
