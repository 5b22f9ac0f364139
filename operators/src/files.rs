//! Files that a call names in a constant: a tokenizer, a vocabulary.
//!
//! A call's result must follow from its arguments, but the same path may hold other bytes tomorrow. So the planner
//! *pins* such a constant: it reads the file and appends a digest of its bytes to the path, `tokenizer.json#` and 32
//! hexadecimal digits. The pinned text is what identifies the call, so a feed's id changes when the file does. Whoever
//! computes the call reads the file once, checks the digest, and keeps what it made of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The greatest file that is read: enough for any tokenizer, little enough to read while a query is planned.
const BYTES_MAX: u64 = 1 << 28;

const DIGITS: usize = 32;

/// The path of a file, as it is written, with the digest of its bytes. A relative one begins at `base`, which is no part of the
/// text: the same files elsewhere are the same call. A text that is pinned already is checked.
///
/// The error reads after the parameter's name: `cannot be read: …`.
pub fn pin(text: &str, base: &Path) -> Result<String, String> {
    let (path, _) = parts(text);
    let absolute = std::path::absolute(base.join(path)).map_err(|e| format!("is no path: {e}"))?;
    let (_, digest) = read(text, &absolute)?;
    let pinned = format!("{path}#{digest}");
    PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, absolute);
    Ok(pinned)
}

/// Where this process has found what has these digests.
static PLACES: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// Where to look for the file that a text names.
fn place(text: &str) -> PathBuf {
    let (path, digest) = parts(text);
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    digest.and_then(|digest| places.get(digest)).map_or_else(|| path.into(), PathBuf::clone)
}

/// What a pinned text says: the path, and the digest where there is one.
fn parts(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once('#') {
        Some((path, digest)) if digest.len() == DIGITS && digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
            (path, Some(digest))
        }
        _ => (text, None),
    }
}

/// The bytes of `file`, which the text names, and their digest.
fn read(text: &str, file: &Path) -> Result<(Vec<u8>, String), String> {
    let (path, pinned) = parts(text);
    let unreadable =
        |problem: &dyn std::fmt::Display| format!("names a file that cannot be read: \"{path}\": {problem}");
    let about = fs::metadata(file).map_err(|e| unreadable(&e))?;
    if !about.is_file() {
        return Err(unreadable(&"it is not a file"));
    }
    if about.len() > BYTES_MAX {
        return Err(unreadable(&format_args!("it has {} bytes, more than {BYTES_MAX}", about.len())));
    }
    let bytes = fs::read(file).map_err(|e| unreadable(&e))?;
    let digest = &blake3::hash(&bytes).to_hex()[..DIGITS];
    match pinned {
        Some(pinned) if pinned != digest => {
            Err(format!("names a file that has changed: \"{path}\" now has the digest {digest}, not {pinned}"))
        }
        _ => Ok((bytes, digest.to_owned())),
    }
}

/// What an operator made of the files it was last called with, for all calls of the process.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// The pinned text, the way, and what was made.
    entries: Mutex<Vec<(String, String, Arc<T>)>>,
    most: usize,
}

impl<T> Loaded<T> {
    /// Nothing is loaded yet. What was last used of `most` files will be kept.
    pub(crate) const fn new(most: usize) -> Self {
        Self { entries: Mutex::new(Vec::new()), most }
    }

    /// What `load` makes of the file that the text names, or what it has made of the same bytes before. The error reads
    /// after the parameter's name.
    pub(crate) fn get(&self, text: &str, load: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Arc<T>, String> {
        self.get_as(text, "", load)
    }

    /// The same where what is made of a file depends on `way` as well.
    pub(crate) fn get_as(
        &self,
        text: &str,
        way: &str,
        load: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        if let Some(found) = self.find(text, way) {
            return Ok(found);
        }
        // Without the lock, so that other calls go on meanwhile; two may load the same file, which does no harm.
        let (path, _) = parts(text);
        let (bytes, digest) = read(text, &place(text))?;
        let pinned = format!("{path}#{digest}");
        if let Some(found) = self.find(&pinned, way) {
            return Ok(found);
        }
        let made = Arc::new(
            load(&bytes).map_err(|problem| format!("names a file that cannot be used: \"{path}\": {problem}"))?,
        );
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.insert(0, (pinned, way.to_owned(), Arc::clone(&made)));
        entries.truncate(self.most);
        Ok(made)
    }

    /// Moves what it finds to the front. A text that is not pinned is never found: its file may have changed.
    fn find(&self, pinned: &str, way: &str) -> Option<Arc<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let at = entries.iter().position(|(text, other, _)| text == pinned && other == way)?;
        entries[..=at].rotate_right(1);
        Some(Arc::clone(&entries[0].2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, text: &str) -> String {
        let path = std::env::temp_dir().join(format!("forebay-files-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn another_content_is_another_constant() {
        let path = write("pin", "one");
        let one = pin(&path, Path::new("")).unwrap();
        assert_eq!(parts(&one), (path.as_str(), Some(&blake3::hash(b"one").to_hex()[..32])));
        assert_eq!(pin(&one, Path::new("")).as_ref(), Ok(&one), "pinned twice");
        fs::write(&path, "two").unwrap();
        assert_ne!(pin(&path, Path::new("")).unwrap(), one);
        let changed = pin(&one, Path::new("")).unwrap_err();
        assert!(changed.starts_with("names a file that has changed: "), "{changed}");
        fs::remove_file(&path).unwrap();
        assert!(pin(&path, Path::new("")).unwrap_err().starts_with("names a file that cannot be read: "));
        assert!(pin("/", Path::new("")).unwrap_err().ends_with("it is not a file"));
    }

    #[test]
    fn a_file_is_loaded_once_per_content() {
        let loaded = Loaded::new(8);
        let path = write("load", "one");
        let pinned = pin(&path, Path::new("")).unwrap();
        let get = |text: &str| loaded.get(text, |bytes| Ok(bytes.to_vec())).unwrap();
        let first = get(&pinned);
        assert!(Arc::ptr_eq(&first, &get(&path)), "the same bytes, by another text");
        fs::write(&path, "two").unwrap();
        assert_eq!(*get(&path), b"two");
        assert!(Arc::ptr_eq(&first, &get(&pinned)), "kept although the file has changed");
        fs::remove_file(&path).unwrap();
        assert_eq!(*get(&pinned), b"one");
        let refused = Loaded::<()>::new(1).get(&write("bad", "x"), |_| Err("no".to_owned())).unwrap_err();
        assert!(refused.ends_with(": no"), "{refused}");
    }
}
