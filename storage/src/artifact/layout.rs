//! The names of an artifact's objects.
//!
//! | object | below the artifact's folder |
//! |---|---|
//! | data file | `<stem>-<tag>.<extension>` |
//! | digests of its blocks | `_forebay/blocks/<data file>` |
//! | generation | `_forebay/generations/<number>` |
//! | sign of life of a job | `_forebay/jobs/<job>/<generation>/claims/<number>` |
//! | part of a job's result | `_forebay/jobs/<job>/<generation>/parts/<number>` |
//! | index of a job's result | `_forebay/jobs/<job>/<generation>/index/<digest>` |
//! | index | any other, once the artifact is committed |
//!
//! An attempt is a job and the generation that it will be committed as. Its tag is in the names of all that it writes,
//! so that what one attempt writes late is never taken for another's.

use std::fmt;

use super::digests::ContentDigest;
use crate::visible::is_visible;
use crate::{Error, Result, Stores};

/// The folder of all that is not data.
const OWN: &str = "_forebay";
/// Maximum characters of a job's id.
const JOB_CHARS_MAX: usize = 64;

/// The folder of an artifact, which may not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Folder {
    /// The absolute path or URL, without a slash at the end.
    url: String,
}

impl Folder {
    pub(super) fn new(stores: &Stores, url: &str) -> Result<Self> {
        Ok(Self { url: stores.locate(url)?.display() })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The object with a name below the folder.
    pub(super) fn object(&self, name: &str) -> String {
        format!("{}/{name}", self.url.trim_end_matches('/'))
    }

    pub(super) fn own(&self) -> String {
        self.object(OWN)
    }

    pub(super) fn generations(&self) -> String {
        self.object(&format!("{OWN}/generations"))
    }

    pub(super) fn jobs(&self) -> String {
        self.object(&format!("{OWN}/jobs"))
    }

    pub(super) fn generation(&self, number: u64) -> String {
        self.object(&format!("{OWN}/generations/{number:08}"))
    }

    pub(super) fn claims(&self, attempt: &Attempt) -> String {
        self.object(&format!("{}/claims", attempt.folder()))
    }

    pub(super) fn claim(&self, attempt: &Attempt, number: u64) -> String {
        format!("{}/{number:08}", self.claims(attempt))
    }

    pub(super) fn parts(&self, attempt: &Attempt) -> String {
        self.object(&format!("{}/parts", attempt.folder()))
    }

    pub(super) fn part(&self, attempt: &Attempt, number: u64) -> String {
        format!("{}/{number:08}", self.parts(attempt))
    }

    pub(super) fn index(&self, attempt: &Attempt, digest: &ContentDigest) -> String {
        self.object(&format!("{}/index/{digest}", attempt.folder()))
    }

    pub(super) fn blocks(&self, file: &str) -> String {
        self.object(&blocks_name(file))
    }
}

/// The name of the digests of a data file's blocks.
pub(super) fn blocks_name(file: &str) -> String {
    format!("{OWN}/blocks/{file}")
}

/// A job, and the generation of the folder that it will be committed as.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Attempt {
    pub(super) job: String,
    pub(super) generation: u64,
}

impl Attempt {
    fn folder(&self) -> String {
        format!("{OWN}/jobs/{}/{}", self.job, self.generation)
    }

    /// Eight digits for the names of its files.
    pub(super) fn tag(&self) -> String {
        let hash = blake3::hash(format!("{} {}", self.job, self.generation).as_bytes());
        hash.to_hex()[..8].to_owned()
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.job)
    }
}

/// What an object in an artifact's folder is, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Generation(u64),
    OfAttempt(Attempt),
    /// A data file or the digests of its blocks, with the tag.
    Tagged(String),
    /// An index, or nothing of Forebay's.
    Other,
}

impl Kind {
    pub(super) fn of(name: &str) -> Self {
        let Some(own) = name.strip_prefix(OWN).and_then(|rest| rest.strip_prefix('/')) else {
            return Self::of_data(name);
        };
        let mut parts = own.splitn(4, '/');
        let of = match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some("generations"), Some(number), None, None) => number.parse().ok().map(Self::Generation),
            (Some("jobs"), Some(job), Some(generation), Some(_)) => {
                generation.parse().ok().map(|generation| Self::OfAttempt(Attempt { job: job.to_owned(), generation }))
            }
            (Some("blocks"), ..) => own.strip_prefix("blocks/").map(Self::of_data),
            _ => None,
        };
        of.unwrap_or(Self::Other)
    }

    fn of_data(name: &str) -> Self {
        let file = name.rsplit('/').next().unwrap_or(name);
        let tag = file.rsplit_once('-').and_then(|(_, rest)| rest.split('.').next());
        let is_tag = |tag: &&str| tag.len() == 8 && tag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        tag.filter(is_tag).map_or(Self::Other, |tag| Self::Tagged(tag.to_owned()))
    }
}

/// Whether a name is of a data file: a path below the folder that listing it would show.
pub(super) fn is_data(name: &str) -> bool {
    is_visible(name) && !name.contains("//") && !name.split('/').any(|part| part.is_empty() || part == "..")
}

/// Refuses a job's id that is no file name everywhere.
pub(super) fn check_job(id: &str) -> Result<()> {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || c == '-';
    match !id.is_empty() && id.len() <= JOB_CHARS_MAX && id.chars().all(is_fine) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "\"{id}\" is not a job's id: it must have letters, digits and \"-\", and at most {JOB_CHARS_MAX} of them"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_an_object_is() {
        let attempt = Attempt { job: "a-1".to_owned(), generation: 3 };
        let folder = Folder::new(&Stores::new(), "memory:///x/").unwrap();
        let kind = |url: String| Kind::of(url.strip_prefix("memory:///x/").unwrap());
        let tag = attempt.tag();
        assert_eq!(kind(folder.generation(7)), Kind::Generation(7));
        assert_eq!(kind(folder.claim(&attempt, 1)), Kind::OfAttempt(attempt.clone()));
        assert_eq!(kind(folder.part(&attempt, 1)), Kind::OfAttempt(attempt.clone()));
        assert_eq!(kind(folder.index(&attempt, &ContentDigest::of_content(b"x"))), Kind::OfAttempt(attempt));
        let file = format!("year=1/part-00001-{tag}.csv.gz");
        assert_eq!(kind(folder.blocks(&file)), Kind::Tagged(tag.clone()));
        assert_eq!(kind(folder.object(&file)), Kind::Tagged(tag));
        for other in ["x.csv", "x-12.csv", "_forebay/x", "_forebay/generations/x", "a-1234567g.csv"] {
            assert_eq!(Kind::of(other), Kind::Other, "{other}");
        }
    }
}
