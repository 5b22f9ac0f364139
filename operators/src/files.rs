//! Files that a call names in a constant, such as a tokenizer or a vocabulary.
//!
//! A call's result must depend on its arguments only, but the bytes at a path may change. So the planner *pins* such a
//! constant: it reads the file and appends a digest of its bytes to the path, `tokenizer.json#` and 32 hexadecimal
//! digits. The pinned text identifies the call, so a feed's id changes when the file changes. A process that computes
//! the call reads the file once, checks the digest, and caches the parsed result.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum size of a file: enough for any tokenizer, and quick to read while a query is planned.
const BYTES_MAX: u64 = 1 << 28;

const DIGITS: usize = 32;

/// Returns the path of a file, as written, with the digest of its bytes. A relative path starts at `base`. The pinned
/// text does not contain `base`, so equal files in another directory make the same call. A pinned text is checked
/// again.
///
/// The error text continues the parameter's name: `cannot be read: …`.
pub fn pin(text: &str, base: &Path) -> Result<String, String> {
    let (path, _) = parts(text);
    let absolute = std::path::absolute(base.join(path)).map_err(|e| format!("is not a valid path: {e}"))?;
    let (_, digest) = read(text, &absolute)?;
    let pinned = format!("{path}#{digest}");
    PLACES.lock().unwrap_or_else(PoisonError::into_inner).insert(digest, absolute);
    Ok(pinned)
}

/// The paths at which this process has found files, by digest.
static PLACES: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// Returns the path at which to read the file that a text names.
fn place(text: &str) -> PathBuf {
    let (path, digest) = parts(text);
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    digest.and_then(|digest| places.get(digest)).map_or_else(|| path.into(), PathBuf::clone)
}

/// Splits a text into path and digest. A text that is not pinned has no digest.
fn parts(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once('#') {
        Some((path, digest)) if digest.len() == DIGITS && digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
            (path, Some(digest))
        }
        _ => (text, None),
    }
}

/// Reads `file`, which the text names. Returns its bytes and their digest.
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

/// A cache of the values that an operator made from files, shared by all calls of the process.
#[derive(Debug)]
pub(crate) struct Loaded<T> {
    /// Pinned text, variant and value of each entry, most recently used first.
    entries: Mutex<Vec<(String, String, Arc<T>)>>,
    most: usize,
}

impl<T> Loaded<T> {
    /// Makes an empty cache of at most `most` entries.
    pub(crate) const fn new(most: usize) -> Self {
        Self { entries: Mutex::new(Vec::new()), most }
    }

    /// Returns the value that `load` makes from the named file, from the cache if the bytes are the same. The error
    /// text continues the parameter's name.
    pub(crate) fn get(&self, text: &str, load: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<Arc<T>, String> {
        self.get_as(text, "", load)
    }

    /// Like `get`, for a value that also depends on `way`.
    pub(crate) fn get_as(
        &self,
        text: &str,
        way: &str,
        load: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<Arc<T>, String> {
        if let Some(found) = self.find(text, way) {
            return Ok(found);
        }
        // Load without the lock, so other calls do not wait. Two calls may load the same file, which does no harm.
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

    /// Finds an entry and moves it to the front. A text that is not pinned has no entry, since its file may have
    /// changed.
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
