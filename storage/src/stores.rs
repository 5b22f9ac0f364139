//! Object stores by URL.
//!
//! A location is a plain path, `file:///…`, `memory:///…` or `s3://bucket/…`. [`Stores`] resolves it to a store and a
//! path in the store. A bucket's client holds the connection pool, so it is created once and shared by all clones.

use std::collections::HashMap;
use std::path::{Component, Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::memory::InMemory;
use object_store::path::Path;
use parking_lot::Mutex;
use url::Url;

use crate::local_disk::LocalDisk;
use crate::waits::{StoreWait, Waits, WatchedConnector};
use crate::{Error, Result};

/// The prefix of a local file's path.
const LOCAL_PREFIX: &str = "/";

/// The object stores of a process. Clones share connections and the content of `memory://`.
#[derive(Clone, Debug)]
pub struct Stores {
    shared: Arc<SharedStores>,
    base: Option<PathBuf>,
}

#[derive(Debug)]
struct SharedStores {
    file: Arc<dyn ObjectStore>,
    memory: Arc<dyn ObjectStore>,
    buckets: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
    waits: Arc<Waits>,
    /// The pauses before a request is repeated that the store's client does not repeat: a creation or a deletion whose
    /// outcome is unknown.
    repeats_after: [Duration; 3],
}

/// A path in a store. Users see `prefix` followed by the path.
#[derive(Clone, Debug)]
pub(crate) struct StoreLocation {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) path: Path,
    prefix: String,
}

impl StoreLocation {
    pub(crate) fn display(&self) -> String {
        self.display_of(&self.path)
    }

    /// Whether another location is in the same store.
    pub(crate) fn is_of_store(&self, other: &Self) -> bool {
        self.prefix == other.prefix
    }

    /// Whether this is on the local disk.
    pub(crate) fn is_local(&self) -> bool {
        self.prefix == LOCAL_PREFIX
    }

    /// Whether this is on the local disk, but neither a file nor a folder.
    pub(crate) fn is_pipe_or_device(&self) -> bool {
        self.is_local() && std::fs::metadata(self.display()).is_ok_and(|m| !m.is_file() && !m.is_dir())
    }

    /// The path in the same store that users see as `display`.
    pub(crate) fn path_of(&self, display: &str) -> Option<Path> {
        let path = Path::parse(display.strip_prefix(&self.prefix)?).ok()?;
        // An extra slash at either end would be a second name for the same file.
        (self.display_of(&path) == display).then_some(path)
    }

    /// The place of `name` below this.
    pub(crate) fn join(&self, name: &str) -> Result<Self> {
        let path = match self.path.as_ref() {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        };
        let path = Path::parse(&path)
            .map_err(|e| Error::invalid(format!("\"{path}\" is not a usable path: {e}")).with_source(e))?;
        Ok(Self { store: Arc::clone(&self.store), path, prefix: self.prefix.clone() })
    }

    /// The text that users see for another path in the same store.
    pub(crate) fn display_of(&self, path: &Path) -> String {
        format!("{}{path}", self.prefix)
    }
}

impl Default for Stores {
    fn default() -> Self {
        Self::new()
    }
}

impl Stores {
    /// The local file system, an empty memory store, and S3 configured by the `AWS_…` environment variables.
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedStores {
                file: Arc::new(LocalDisk::default()),
                memory: Arc::new(InMemory::new()),
                buckets: Mutex::default(),
                waits: Arc::default(),
                repeats_after: [50, 200, 800].map(Duration::from_millis),
            }),
            base: None,
        }
    }

    /// The same stores, with relative paths resolved against `folder` instead of the current directory.
    pub fn with_base(mut self, folder: &FsPath) -> Self {
        self.base = Some(folder.to_path_buf());
        self
    }

    /// The requests that have waited for long, if there are any.
    pub fn waits(&self) -> Option<StoreWait> {
        self.shared.waits.now()
    }

    /// The store of `url`, the path in that store, and the absolute URL or path to display.
    pub fn store(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path, String)> {
        let location = self.locate(url)?;
        let display = location.display();
        Ok((location.store, location.path, display))
    }

    /// The same stores with the local file system and the memory store replaced by what `wrap` makes of them. Clients
    /// of buckets are not shared. Requests are repeated at once, so that simulations take no time.
    pub(crate) fn wrapped(&self, wrap: impl Fn(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>) -> Self {
        let shared = SharedStores {
            file: wrap(Arc::clone(&self.shared.file)),
            memory: wrap(Arc::clone(&self.shared.memory)),
            buckets: Mutex::default(),
            waits: Arc::clone(&self.shared.waits),
            repeats_after: [Duration::ZERO; 3],
        };
        Self { shared: Arc::new(shared), base: self.base.clone() }
    }

    /// The pauses before a request whose outcome is unknown is repeated.
    pub(crate) fn repeats_after(&self) -> [Duration; 3] {
        self.shared.repeats_after
    }

    /// A path or URL as this process names it: absolute, and without parts such as `.`.
    ///
    /// # Errors
    /// `Invalid` for a scheme that is not supported, and for a path that is not a name in a store.
    pub fn absolute(&self, url: &str) -> Result<String> {
        Ok(self.locate(url)?.display())
    }

    pub(crate) fn locate(&self, url: &str) -> Result<StoreLocation> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return self.file_location(url, FsPath::new(url));
        };
        match scheme {
            "file" => self.file_location(url, &file_url_path(url)?),
            "memory" => {
                let prefix = "memory:///".to_owned();
                new_location(url, Arc::clone(&self.shared.memory), rest, prefix)
            }
            "s3" => {
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                new_location(url, self.bucket(url, bucket)?, key, format!("s3://{bucket}/"))
            }
            "gs" | "gcs" | "az" | "azure" | "abfs" | "abfss" => Err(Error::invalid(format!(
                "\"{url}\": \"{scheme}://\" is not supported yet; use a path, file://, memory:// or s3://"
            ))),
            _ => Err(Error::invalid(format!(
                "\"{url}\": unknown scheme \"{scheme}\"; use a path, file://, memory:// or s3://"
            ))),
        }
    }

    fn file_location(&self, url: &str, path: &FsPath) -> Result<StoreLocation> {
        if path.as_os_str().is_empty() {
            return Err(Error::invalid("a location must not be empty"));
        }
        let joined = match &self.base {
            Some(base) => base.join(path),
            None => path.to_path_buf(),
        };
        let absolute = std::path::absolute(&joined)
            .map_err(|e| Error::invalid(format!("\"{url}\" cannot be made absolute: {e}")).with_source(e))?;
        let absolute = without_dots(&absolute);
        let key = absolute.to_str().ok_or_else(|| Error::invalid(format!("\"{url}\" is not UTF-8")))?;
        new_location(url, Arc::clone(&self.shared.file), key, LOCAL_PREFIX.to_owned())
    }

    fn bucket(&self, url: &str, bucket: &str) -> Result<Arc<dyn ObjectStore>> {
        if bucket.is_empty() {
            return Err(Error::invalid(format!("\"{url}\" names no bucket; write s3://bucket/path")));
        }
        let mut buckets = self.shared.buckets.lock();
        if let Some(store) = buckets.get(bucket) {
            return Ok(Arc::clone(store));
        }
        let store = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_http_connector(WatchedConnector(Arc::clone(&self.shared.waits)))
            .build()
            .map_err(|e| Error::invalid(format!("\"{url}\": the AWS settings do not work: {e}")).with_source(e))?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        buckets.insert(bucket.to_owned(), Arc::clone(&store));
        Ok(store)
    }
}

fn new_location(url: &str, store: Arc<dyn ObjectStore>, key: &str, prefix: String) -> Result<StoreLocation> {
    let path = Path::parse(key.trim_matches('/'))
        .map_err(|e| Error::invalid(format!("\"{url}\" is not a usable path: {e}")).with_source(e))?;
    Ok(StoreLocation { store, path, prefix })
}

fn file_url_path(url: &str) -> Result<PathBuf> {
    let bad = || Error::invalid(format!("\"{url}\" is not a file URL; write file:///absolute/path"));
    // A file URL has neither query nor fragment, but globs contain question marks.
    let escaped = url.replace('?', "%3F").replace('#', "%23");
    Url::parse(&escaped).map_err(|_| bad())?.to_file_path().map_err(|()| bad())
}

/// Resolves `..` in the text only: the path may not exist, and globs never do.
fn without_dots(path: &FsPath) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn locations_become_absolute() {
        let stores = Stores::new().with_base(FsPath::new("/data/base"));
        let check = |url: &str, expect: &str| {
            assert_eq!(stores.store(url).unwrap().2, expect, "{url}");
        };
        check("a.csv", "/data/base/a.csv");
        check("./x/../a b.csv", "/data/base/a b.csv");
        check("../*.csv", "/data/*.csv");
        check("/abs/folder/", "/abs/folder");
        check("file:///abs/a%20b?.csv", "/abs/a b?.csv");
        check("memory:///x/a.csv", "memory:///x/a.csv");
        check("memory://x/a.csv", "memory:///x/a.csv");
        check("s3://bucket/x/#1.csv", "s3://bucket/x/#1.csv");
    }

    #[test]
    fn unusable_locations_say_what_is_supported() {
        let check = |url: &str, expect: &str| {
            let error = Stores::new().store(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.to_string(), expect);
        };
        check("", "a location must not be empty");
        check("ftp://x/y", "\"ftp://x/y\": unknown scheme \"ftp\"; use a path, file://, memory:// or s3://");
        check("gs://x/y", "\"gs://x/y\": \"gs://\" is not supported yet; use a path, file://, memory:// or s3://");
        check("s3:///y", "\"s3:///y\" names no bucket; write s3://bucket/path");
    }

    #[tokio::test]
    async fn memory_is_shared_by_clones_only() {
        let stores = Stores::new();
        let clone = stores.clone().with_base(FsPath::new("/elsewhere"));
        stores.put("memory:///a", Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(clone.get("memory:///a").await.unwrap(), "x");
        let error = Stores::new().get("memory:///a").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.to_string(), "\"memory:///a\" does not exist");
    }
}
