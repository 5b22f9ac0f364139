//! Reads, writes, lists and deletes whole objects. All writing to stores happens here.
//!
//! What must not be lost is synced if it is on a local disk: the file, and the names of the folders on the way to it.
//! An object that only one of several writers may create is written by [`Stores::put_new`]. If the store's answer is
//! lost, the object is read back, because the write may have happened or may still happen.

use std::pin::Pin;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStoreExt, PutMode, PutOptions};
use tokio::io::AsyncWrite;

use crate::durable::{sync, tidy};
use crate::stores::StoreLocation;
use crate::{Error, ErrorKind, Result, Stores};

/// Bytes of an upload's requests.
const UPLOAD_PART_BYTES: usize = 8 << 20;
/// Requests of an upload at a time. More would hold more of a file in memory.
const UPLOAD_PARTS_AT_ONCE: usize = 2;

/// One object of a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Object {
    /// The path below the listed folder.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
}

impl Stores {
    /// Writes one object, replacing an existing one. A local file may be lost in a power failure.
    pub async fn put(&self, url: &str, bytes: Bytes) -> Result<()> {
        put(&self.locate(url)?, bytes).await
    }

    /// Like [`put`](Self::put), but a local file survives a power failure.
    pub async fn put_durably(&self, url: &str, bytes: Bytes) -> Result<()> {
        let place = self.locate(url)?;
        put(&place, bytes).await?;
        sync(&place).await
    }

    /// Writes an object unless the name is taken. Of several writers one succeeds, and the others get `false`. A writer
    /// that finds exactly its own bytes has succeeded. A local file survives a power failure.
    ///
    /// # Errors
    /// If the store's answer is lost, and the object is not there, the outcome is unknown: the write may still happen.
    /// It is repeated a few times. Then the error, which is `Unavailable`, says so. Writing the same bytes again
    /// resolves it.
    pub async fn put_new(&self, url: &str, bytes: Bytes) -> Result<bool> {
        let place = self.locate(url)?;
        let mut pauses = self.repeats_after().into_iter();
        let is_ours = loop {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            let Err(failed) = place.store.put_opts(&place.path, bytes.clone().into(), options).await else {
                break true;
            };
            match read_back(&place, &bytes, failed).await? {
                ReadBack::Ours => break true,
                ReadBack::Others => break false,
                ReadBack::Missing(error) => tokio::time::sleep(pauses.next().ok_or(error)?).await,
            }
        };
        if is_ours {
            sync(&place).await?;
        }
        Ok(is_ours)
    }

    /// Reads one whole object.
    ///
    /// The client of the store retries requests. It does not retry an answer that breaks off in the text of an error,
    /// such as that the object does not exist, so this repeats the request a few times.
    pub async fn get(&self, url: &str) -> Result<Bytes> {
        let place = self.locate(url)?;
        let mut pauses = self.repeats_after().into_iter();
        loop {
            match get(&place).await.map_err(|(place, e)| Error::from_store(&place, e)) {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tokio::time::sleep(pauses.next().ok_or(error)?).await;
                }
                done => return done,
            }
        }
    }

    /// All objects below a folder, ordered by name. A folder that does not exist has none.
    pub async fn list(&self, folder: &str) -> Result<Vec<Object>> {
        let place = self.locate(folder)?;
        let mut found = Vec::new();
        let mut listing = place.store.list(Some(&place.path));
        loop {
            match listing.try_next().await.map_err(|e| Error::from_store(&place.display(), e)) {
                Ok(Some(meta)) => {
                    if let Some(name) = below(&place.path, &meta.location) {
                        found.push(Object { name, bytes: meta.size });
                    }
                }
                Ok(None) => break,
                // Another process removes folders, or what should be a folder is a file.
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        found.sort();
        Ok(found)
    }

    /// The names of the folders directly below a folder, in order.
    pub async fn folders(&self, folder: &str) -> Result<Vec<String>> {
        let place = self.locate(folder)?;
        let listed = match place.store.list_with_delimiter(Some(&place.path)).await {
            Ok(listed) => listed,
            Err(error) => match Error::from_store(&place.display(), error) {
                error if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                error => return Err(error),
            },
        };
        let mut names: Vec<String> =
            listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect();
        names.sort();
        Ok(names)
    }

    /// Deletes an object. One that does not exist is deleted already.
    pub async fn delete(&self, url: &str) -> Result<()> {
        let place = self.locate(url)?;
        let mut pauses = self.repeats_after().into_iter();
        loop {
            let error = match place.store.delete(&place.path).await {
                Ok(()) | Err(StoreError::NotFound { .. }) => return Ok(()),
                Err(error) => Error::from_store(&place.display(), error),
            };
            match pauses.next().filter(|_| error.kind() == ErrorKind::Unavailable) {
                Some(pause) => tokio::time::sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    /// On a local disk, removes what killed writers of files below `folder` left behind, if `is_over` says so of the
    /// files' names below it. Then removes folders without files, if `prune`.
    pub(crate) async fn tidy(
        &self,
        folder: &str,
        is_over: impl Fn(&str) -> bool + Send + Sync + 'static,
        prune: bool,
    ) -> Result<()> {
        tidy(&self.locate(folder)?, is_over, prune).await
    }

    /// Begins to write an object of any size, of which some parts at a time are in memory. An existing object is
    /// replaced when the upload finishes. A killed process leaves no object.
    pub fn upload(&self, url: &str) -> Result<Upload> {
        let place = self.locate(url)?;
        let writer = BufWriter::with_capacity(place.store.clone(), place.path.clone(), UPLOAD_PART_BYTES);
        Ok(Upload { place, writer: writer.with_max_concurrency(UPLOAD_PARTS_AT_ONCE) })
    }
}

/// An object that is being written in parts.
#[derive(Debug)]
pub struct Upload {
    place: StoreLocation,
    writer: BufWriter,
}

impl Upload {
    /// Writes more bytes. Waits while enough parts are on the way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.writer.put(bytes).await.map_err(|e| Error::from_store(&self.place.display(), e))
    }

    /// Waits for all parts. Then the object exists, and survives a power failure.
    pub async fn finish(mut self) -> Result<()> {
        let finished = std::future::poll_fn(|context| Pin::new(&mut self.writer).poll_shutdown(context)).await;
        if let Err(error) = finished {
            let error = error
                .downcast::<StoreError>()
                .unwrap_or_else(|error| StoreError::Generic { store: "upload", source: error.into() });
            return Err(Error::from_store(&self.place.display(), error));
        }
        sync(&self.place).await
    }

    /// Gives up, so that the store keeps no parts.
    pub async fn abort(mut self) -> Result<()> {
        self.writer.abort().await.map_err(|e| Error::from_store(&self.place.display(), e))
    }
}

async fn put(place: &StoreLocation, bytes: Bytes) -> Result<()> {
    match place.store.put(&place.path, bytes.into()).await {
        Ok(_) => Ok(()),
        Err(e) => Err(Error::from_store(&place.display(), e)),
    }
}

async fn get(place: &StoreLocation) -> Result<Bytes, (String, StoreError)> {
    let read = async { place.store.get(&place.path).await?.bytes().await };
    read.await.map_err(|error| (place.display(), error))
}

/// An object after an attempt to create it failed.
enum ReadBack {
    Ours,
    Others,
    /// It is not there, but may still arrive.
    Missing(Error),
}

/// Finds out whether an object was written by an attempt to create it with these bytes, which failed.
async fn read_back(place: &StoreLocation, bytes: &Bytes, failed: StoreError) -> Result<ReadBack> {
    let shown = place.display();
    // A local disk has answered, and other stores refused the request as such.
    let is_local = place.is_local() && !matches!(failed, StoreError::AlreadyExists { .. });
    let is_refused = matches!(
        failed,
        StoreError::NotSupported { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::InvalidPath { .. }
            | StoreError::PermissionDenied { .. }
            | StoreError::Unauthenticated { .. }
    );
    if is_local || is_refused {
        return Err(Error::from_store(&shown, failed));
    }
    match get(place).await {
        Ok(found) if found == bytes => Ok(ReadBack::Ours),
        Ok(_) => Ok(ReadBack::Others),
        Err((_, reading)) => {
            // Another process has removed the object, which must not come back.
            let was_there = matches!(failed, StoreError::AlreadyExists { .. });
            let is_missing = matches!(reading, StoreError::NotFound { .. });
            let failed = Error::from_store(&shown, failed);
            if !matches!(failed.kind(), ErrorKind::Unavailable | ErrorKind::Conflict | ErrorKind::Internal) {
                return Err(failed);
            }
            let found = match is_missing {
                true => "it is not there, but may still arrive".to_owned(),
                false => format!("it could not be read back: {}", Error::from_store(&shown, reading)),
            };
            let unknown = Error::unavailable(format!("whether \"{shown}\" was written is unknown: {failed}; {found}"))
                .with_hint("run it again: then what was written is found, or written again")
                .with_source(failed);
            match is_missing && !was_there {
                true => Ok(ReadBack::Missing(unknown)),
                false => Err(unknown),
            }
        }
    }
}

/// The path of `file` below `folder`.
fn below(folder: &Path, file: &Path) -> Option<String> {
    let parts: Vec<_> = file.prefix_match(folder)?.collect();
    (!parts.is_empty()).then(|| parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{FaultRates, Faults};

    #[tokio::test]
    async fn of_two_writers_one_is_first() {
        let (stores, folder) = (Stores::new(), tempfile::tempdir().unwrap());
        for url in ["memory:///m", folder.path().join("a/m").to_str().unwrap()] {
            let put = async |text: &'static str| stores.put_new(url, Bytes::from_static(text.as_bytes())).await;
            assert!(put("x").await.unwrap());
            assert!(put("x").await.unwrap(), "a retry of the first");
            assert!(!put("y").await.unwrap());
            assert_eq!(stores.get(url).await.unwrap(), "x");
        }
    }

    #[tokio::test]
    async fn a_lost_answer_is_read_back() {
        let rates = FaultRates { lost: 1000, ..FaultRates::NONE };
        let (stores, _) = Faults::over(&Stores::new(), rates, 1);
        assert!(stores.put_new("memory:///m", Bytes::from_static(b"x")).await.unwrap());
        assert!(!stores.put_new("memory:///m", Bytes::from_static(b"y")).await.unwrap());
    }

    #[tokio::test]
    async fn an_unknown_outcome_says_so_and_is_resolved_by_writing_again() {
        let (stores, faults) = Faults::over(&Stores::new(), FaultRates { late: 1000, ..FaultRates::NONE }, 1);
        let put = async || stores.put_new("memory:///m", Bytes::from_static(b"x")).await;
        let error = put().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let expected = "whether \"memory:///m\" was written is unknown: the store of \"memory:///m\" failed: ";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(error.to_string().ends_with("it is not there, but may still arrive"), "{error}");
        faults.settle().await;
        assert!(put().await.unwrap());
    }

    #[tokio::test]
    async fn an_upload_of_many_parts_is_one_object() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let stores = Stores::new();
        for url in ["memory:///a/b/c".to_owned(), format!("{folder}/a/b/c")] {
            let bytes: Bytes = (0..20_u32 << 20).map(|n| (n >> 7) as u8).collect::<Vec<u8>>().into();
            let mut upload = stores.upload(&url).unwrap();
            for start in (0..bytes.len()).step_by(1 << 20) {
                upload.write(bytes.slice(start..start + (1 << 20))).await.unwrap();
            }
            upload.finish().await.unwrap();
            assert!(stores.get(&url).await.unwrap() == bytes);
            let above = url.strip_suffix("/b/c").unwrap();
            assert_eq!(stores.list(above).await.unwrap(), [Object { name: "b/c".into(), bytes: 20 << 20 }]);
            assert_eq!(stores.folders(above).await.unwrap(), ["b"]);
            stores.delete(&url).await.unwrap();
            stores.delete(&url).await.unwrap();
            assert_eq!(stores.list(above).await.unwrap(), []);
        }
    }

    #[tokio::test]
    async fn what_killed_writers_left_is_tidied() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().to_str().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b/c")).unwrap();
        for name in ["a/x.parquet", "a/b/y.parquet#1", "a/b/c/z.parquet#12"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        std::fs::write(folder.path().join("a/b/w.parquet#x"), "x").unwrap();
        Stores::new().tidy(url, |name| name == "a/b/y.parquet", false).await.unwrap();
        let exists = |name: &str| folder.path().join(name).exists();
        assert!(exists("a/x.parquet") && !exists("a/b/y.parquet#1") && exists("a/b/c/z.parquet#12"));
        Stores::new().tidy(url, |_| true, true).await.unwrap();
        assert!(exists("a/x.parquet") && exists("a/b/w.parquet#x") && !exists("a/b/c"));
        Stores::new().tidy(&format!("{url}/none"), |_| true, true).await.unwrap();
    }
}
