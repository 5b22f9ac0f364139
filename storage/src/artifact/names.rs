//! Names whose versions are artifacts.
//!
//! A version is one object, `<root>/names/<hash of the name>/<number>`, with the fingerprint of its artifact. Its job
//! creates it before the commit, so no two jobs get the same number. A job that does not commit leaves a version
//! without an artifact, which readers pass over.

use serde::{Deserialize, Serialize};

use super::catalog::Catalog;
use super::generations::{Generation, Latest};
use super::layout::Folder;
use super::open::Artifact;
use super::sealed::{seal, unseal};
use crate::Result;

/// The latest version of a name.
#[derive(Debug, Default)]
pub struct LatestVersion {
    /// The highest number of a version; 0 if there is none.
    pub number: u64,
    /// The latest artifact, with its number.
    pub artifact: Option<(u64, Artifact)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    fingerprint: String,
}

impl Catalog {
    /// The latest version of a name.
    ///
    /// # Errors
    /// Those of the store, and `Data` for a damaged version or artifact.
    pub async fn latest_version(&self, name: &str) -> Result<LatestVersion> {
        let folder = self.versions(name);
        let listed = self.stores.list(&folder).await?;
        let mut numbers: Vec<u64> = listed.iter().filter_map(|object| object.name.parse().ok()).collect();
        numbers.sort_unstable();
        let mut latest = LatestVersion { number: numbers.last().copied().unwrap_or(0), artifact: None };
        for number in numbers.into_iter().rev() {
            let object = version(&folder, number);
            let version = unseal(&object, &self.stores.get(&object).await?).map_err(|error| {
                error.with_hint(format!(
                    "restore it: it is version {number} of \"{name}\", which the next one continues"
                ))
            });
            let Version { fingerprint } = version?;
            let folder = Folder::new(&self.stores, &self.kept(&fingerprint))?;
            let Latest { number: commit, generation } = Latest::of(&self.stores, &folder).await?;
            if let Some(Generation::Committed(manifest)) = generation {
                latest.artifact = Some((number, Artifact::new(&self.stores, folder, commit, manifest)));
                break;
            }
        }
        Ok(latest)
    }

    /// Makes the [kept](Self::kept) artifact with this fingerprint version `number` of a name. Returns whether the
    /// number was not taken.
    pub async fn add_version(&self, name: &str, number: u64, fingerprint: &str) -> Result<bool> {
        let record = seal(&Version { fingerprint: fingerprint.to_owned() });
        self.stores.put_new(&version(&self.versions(name), number), record).await
    }

    fn versions(&self, name: &str) -> String {
        let hash = blake3::hash(name.as_bytes()).to_hex();
        self.root.object(&format!("names/{}", &hash[..32]))
    }
}

fn version(folder: &str, number: u64) -> String {
    format!("{folder}/{number:08}")
}
