//! Finds artifacts by what their rows mean.
//!
//! An entry is one object, `<root>/catalog/<fingerprint>/<hash of the folder>`, that names the artifact's folder. It is
//! written before the commit. So whoever sees a committed artifact under the root and then no entry knows that nothing
//! names it, however slow its job is.

use serde::{Deserialize, Serialize};

use super::layout::Folder;
use super::open::Artifact;
use super::sealed::{seal, unseal};
use crate::{Error, ErrorKind, Result, Stores};

/// The artifacts that a session knows, under its root.
#[derive(Clone, Debug)]
pub struct Catalog {
    pub(super) stores: Stores,
    pub(super) root: Folder,
}

/// An entry of a [`Catalog`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the rows mean.
    pub fingerprint: String,
    /// The folder of the artifact.
    pub url: String,
    pub(super) object: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    /// The folder: below the root if it lies there, so that a root can be copied or moved.
    url: String,
}

impl Catalog {
    /// The catalog under the folder or URL `root`.
    pub fn new(stores: &Stores, root: &str) -> Result<Self> {
        Ok(Self { stores: stores.clone(), root: Folder::new(stores, root)? })
    }

    /// The folder for an artifact that a session keeps for itself. `id` is a file name.
    pub fn kept(&self, id: &str) -> String {
        self.root.object(&format!("artifacts/{id}"))
    }

    /// Writes an entry. Call it before [`Job::commit`](super::Job::commit).
    ///
    /// # Errors
    /// `Invalid` for a fingerprint that cannot be a file's name.
    pub async fn record(&self, fingerprint: &str, url: &str) -> Result<()> {
        check_fingerprint(fingerprint)?;
        let folder = Folder::new(&self.stores, url)?;
        let below = folder.url().strip_prefix(self.root.object("").as_str());
        let url = below.unwrap_or(folder.url()).to_owned();
        let hash = blake3::hash(url.as_bytes()).to_hex();
        let place = self.root.object(&format!("catalog/{fingerprint}/{}", &hash[..32]));
        let entry = seal(&Written { url });
        match self.stores.put_new(&place, entry.clone()).await? {
            true => Ok(()),
            // The content follows from the name, so this one is damaged.
            false => self.stores.put_durably(&place, entry).await,
        }
    }

    /// A committed artifact whose rows have this meaning. Entries whose artifact is gone, damaged or not finished are
    /// passed over.
    pub async fn find(&self, fingerprint: &str) -> Result<Option<Artifact>> {
        check_fingerprint(fingerprint)?;
        for place in self.places(fingerprint).await? {
            let found = match self.entry(fingerprint, place.clone()).await {
                Ok(Some(entry)) => Artifact::find(&self.stores, &entry.url).await,
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match found {
                Ok(Some(artifact)) if artifact.manifest().fingerprint == fingerprint => return Ok(Some(artifact)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                Err(error) => tracing::debug!(entry = place, %error, "an entry of the catalog is passed over"),
            }
        }
        Ok(None)
    }

    /// All entries.
    pub async fn entries(&self) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for fingerprint in self.stores.folders(&self.root.object("catalog")).await? {
            for place in self.places(&fingerprint).await? {
                entries.extend(self.entry(&fingerprint, place).await?);
            }
        }
        Ok(entries)
    }

    /// Removes an entry. The artifact stays until garbage is collected.
    pub async fn remove(&self, entry: &Entry) -> Result<()> {
        self.stores.delete(&entry.object).await
    }

    /// The objects of the entries with a fingerprint.
    async fn places(&self, fingerprint: &str) -> Result<Vec<String>> {
        let folder = self.root.object(&format!("catalog/{fingerprint}"));
        let listed = self.stores.list(&folder).await?;
        Ok(listed.into_iter().map(|object| format!("{folder}/{}", object.name)).collect())
    }

    /// The entry of an object, unless it was removed meanwhile.
    async fn entry(&self, fingerprint: &str, object: String) -> Result<Option<Entry>> {
        let bytes = match self.stores.get(&object).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let Written { url } = unseal(&object, &bytes)?;
        let is_absolute = url.starts_with('/') || url.contains("://");
        let url = if is_absolute { url } else { self.root.object(&url) };
        Ok(Some(Entry { fingerprint: fingerprint.to_owned(), url, object }))
    }
}

fn check_fingerprint(fingerprint: &str) -> Result<()> {
    match !fingerprint.is_empty() && fingerprint.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        true => Ok(()),
        false => Err(Error::internal(format!("\"{fingerprint}\" is not a fingerprint of letters and digits"))),
    }
}
