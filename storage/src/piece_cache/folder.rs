//! The folder of a cache: a file for each piece, and one with the sum of their bytes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::pieces::FileKey;

/// Bytes at the end of a piece's file: a digest of its content and place.
const DIGEST_BYTES: usize = 16;
/// The file with the sum of the bytes. Who holds its lock may change it.
const SUM: &str = "bytes";
/// The beginning of the names of unfinished files.
const UNFINISHED: &str = "unfinished-";
/// Nobody writes a piece for so long.
const ABANDONED_AFTER: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// The file of the sum, once it is open. Its lock excludes other processes, and this mutex other threads.
    sum: Mutex<Option<File>>,
}

/// What became of a piece.
pub(super) enum Found {
    Whole(Bytes),
    Gone,
    Damaged,
}

impl Folder {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), sum: Mutex::new(None) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of a piece's file.
    pub(super) fn name(file: FileKey, piece: &Range<u64>) -> String {
        let file: String = file.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}/{file}-{}-{}", &file[..2], piece.start, piece.end)
    }

    /// The bytes of a piece's file.
    pub(super) fn size(piece: &Range<u64>) -> u64 {
        piece.end - piece.start + DIGEST_BYTES as u64
    }

    /// Passes all pieces to `add`, removes those that it refuses, and corrects the sum of bytes.
    pub(super) fn scan(&self, mut add: impl FnMut(FileKey, Range<u64>) -> bool) -> io::Result<()> {
        // The folder may be another than before.
        *self.sum.lock() = None;
        if !self.path.exists() {
            return Ok(());
        }
        self.change_sum(|sum| {
            *sum = 0;
            let now = fs::metadata(self.path.join(SUM))?.modified()?;
            for folder in fs::read_dir(&self.path)? {
                let folder = folder?;
                if !folder.file_type()?.is_dir() {
                    continue;
                }
                for file in fs::read_dir(folder.path())? {
                    let file = file?;
                    let name = file.file_name();
                    let Some(name) = name.to_str() else { continue };
                    match parsed(name) {
                        Some((key, piece)) if add(key, piece.clone()) => *sum += Self::size(&piece),
                        Some(_) => fs::remove_file(file.path())?,
                        None if name.starts_with(UNFINISHED) => {
                            let begun = file.metadata()?.modified()?;
                            if now.duration_since(begun).is_ok_and(|age| age > ABANDONED_AFTER) {
                                fs::remove_file(file.path())?;
                            }
                        }
                        None => {}
                    }
                }
            }
            Ok(())
        })
    }

    /// Adds `bytes` to the sum, unless it would exceed `limit`.
    pub(super) fn reserve(&self, bytes: u64, limit: u64) -> io::Result<bool> {
        self.change_sum(|sum| {
            let fits = sum.saturating_add(bytes) <= limit;
            *sum += if fits { bytes } else { 0 };
            Ok(fits)
        })
    }

    /// Subtracts `bytes` from the sum.
    pub(super) fn release(&self, bytes: u64) -> io::Result<()> {
        self.change_sum(|sum| {
            *sum = sum.saturating_sub(bytes);
            Ok(())
        })
    }

    fn change_sum<T>(&self, change: impl FnOnce(&mut u64) -> io::Result<T>) -> io::Result<T> {
        let mut sum_file = self.sum.lock();
        let file = match &mut *sum_file {
            Some(file) => file,
            unopened => {
                fs::create_dir_all(&self.path)?;
                let options =
                    File::options().read(true).write(true).create(true).truncate(false).open(self.path.join(SUM));
                unopened.insert(options?)
            }
        };
        file.lock()?;
        let changed = read_sum(file).and_then(|mut sum| {
            let before = sum;
            let changed = change(&mut sum)?;
            if sum != before {
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&sum.to_le_bytes())?;
            }
            Ok(changed)
        });
        file.unlock()?;
        changed
    }

    pub(super) fn read(&self, file: FileKey, piece: &Range<u64>) -> Found {
        let mut bytes = match fs::read(self.path.join(Self::name(file, piece))) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Found::Gone,
            Err(_) => return Found::Damaged,
        };
        if bytes.len() as u64 != Self::size(piece) {
            return Found::Damaged;
        }
        let expected = bytes.split_off(bytes.len() - DIGEST_BYTES);
        match digest(file, piece, &bytes)[..] == expected {
            true => Found::Whole(bytes.into()),
            false => Found::Damaged,
        }
    }

    /// Writes a piece, whose bytes are reserved. Returns false if another process has written it.
    pub(super) fn write(&self, file: FileKey, piece: &Range<u64>, bytes: &[u8]) -> io::Result<bool> {
        let path = self.path.join(Self::name(file, piece));
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder)?;
        let mut unfinished = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
        unfinished.write_all(bytes)?;
        unfinished.write_all(&digest(file, piece, bytes))?;
        match unfinished.persist_noclobber(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error.error),
        }
    }

    /// Removes a piece, and releases its bytes if this process removed it.
    pub(super) fn remove(&self, file: FileKey, piece: &Range<u64>) -> io::Result<()> {
        match fs::remove_file(self.path.join(Self::name(file, piece))) {
            Ok(()) => self.release(Self::size(piece)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn read_sum(file: &mut File) -> io::Result<u64> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
}

/// The file and place of a piece, by the last part of its file's name.
fn parsed(name: &str) -> Option<(FileKey, Range<u64>)> {
    let mut parts = name.split('-');
    let (file, start, end) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let mut key = FileKey::default();
    for (at, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(file.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    (start < end && Folder::name(key, &(start..end)).ends_with(&format!("/{name}"))).then_some((key, start..end))
}

fn digest(file: FileKey, piece: &Range<u64>, bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file).update(&piece.start.to_le_bytes()).update(bytes);
    *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}
