//! Pieces of remote files, kept on the local disk.
//!
//! All that is read of a file is kept, in pieces, until the limit is reached. From then on, pieces stay: an epoch reads
//! each piece once, so a policy that makes room for the latest piece, such as LRU, would evict most pieces of a larger
//! dataset before the next epoch reads them (the MinIO cache of CoorDL: Mohan et al., "Analyzing and Mitigating Data
//! Stalls in DNN Training", VLDB 2021). A piece makes room only for one that was used more often, as happens when
//! another dataset is read, or a new version of a file.
//!
//! A cache is never needed. Each piece has a digest. A piece that is damaged or gone is read from the store again, and
//! anybody may delete files of the folder, or the folder, at any time. Processes may share it.

mod folder;
mod pieces;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;
use parking_lot::Mutex;

use self::folder::{Folder, Found};
pub(crate) use self::pieces::FileKey;
use self::pieces::Pieces;
use crate::Result;

/// A piece is of bytes between two multiples of this number in its file.
const PIECE_BYTES_MAX: u64 = if cfg!(test) { 64 } else { 1 << 20 };
/// If files of the folder are gone, it is scanned again, but not more often than this.
const SCAN_PAUSE: Duration = Duration::from_secs(60);
/// After a failure, nothing is kept for so long.
const FAILURE_PAUSE: Duration = Duration::from_secs(60);

/// A cache of pieces of remote files, in a folder of the local disk.
#[derive(Debug)]
pub struct PieceCache {
    folder: Folder,
    limit: u64,
    pieces: Mutex<Pieces>,
    /// When this process last learnt of the pieces that other processes keep.
    scanned: Mutex<Option<Instant>>,
    /// When keeping last failed.
    failed: Mutex<Option<Instant>>,
}

/// What a cache holds, as far as this process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PieceCacheUsage {
    /// Pieces of files.
    pub pieces: u64,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// A part of what is read.
struct Part {
    range: Range<u64>,
    /// Its bytes, if they were kept.
    bytes: Option<Bytes>,
}

impl PieceCache {
    /// A cache in `folder` that holds at most `limit` bytes. Does not access the disk yet.
    pub fn new(folder: &Path, limit: u64) -> Self {
        Self {
            folder: Folder::new(folder),
            limit,
            pieces: Mutex::default(),
            scanned: Mutex::new(None),
            failed: Mutex::new(None),
        }
    }

    /// The folder of the pieces.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The most bytes on the disk.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// What is kept, as far as this process knows.
    pub async fn usage(self: &Arc<Self>) -> PieceCacheUsage {
        let count = |cache: &Self| {
            cache.scan(false);
            let pieces = cache.pieces.lock();
            PieceCacheUsage { pieces: pieces.count() as u64, bytes: pieces.bytes() }
        };
        self.on_disk(count).await
    }

    /// The bytes that are kept of some files, as far as this process knows.
    pub(crate) async fn bytes_of(self: &Arc<Self>, files: Vec<FileKey>) -> u64 {
        let count = move |cache: &Self| {
            cache.scan(false);
            let pieces = cache.pieces.lock();
            files.iter().map(|file| pieces.bytes_of(*file)).sum()
        };
        self.on_disk(count).await
    }

    /// Reads a range of a file: what is kept of it from the disk, the rest with `fetch`. The rest is kept if `keeps`.
    /// Equal keys are of equal files.
    pub(crate) async fn read<F: Future<Output = Result<Bytes>>>(
        self: &Arc<Self>,
        file: FileKey,
        range: Range<u64>,
        keeps: bool,
        fetch: impl Fn(Range<u64>) -> F,
    ) -> Result<Bytes> {
        let whole = range.clone();
        let mut parts = self.on_disk(move |cache| cache.kept(file, &whole)).await;
        let missing = missing(&parts);
        let fetched = try_join_all(missing.iter().cloned().map(fetch)).await?;
        let fetched_part = |part: &Range<u64>| {
            let (run, bytes) = missing.iter().zip(&fetched).find(|(run, _)| run.contains(&part.start))?;
            Some(bytes.slice((part.start - run.start) as usize..(part.end - run.start) as usize))
        };
        let mut new = Vec::new();
        for part in parts.iter_mut().filter(|part| part.bytes.is_none()) {
            part.bytes = fetched_part(&part.range);
            new.extend(part.bytes.clone().map(|bytes| (part.range.clone(), bytes)));
        }
        if !new.is_empty() && keeps {
            self.on_disk(move |cache| cache.keep(file, &new)).await;
        }
        match (&missing[..], &fetched[..]) {
            // Nothing to copy.
            ([run], [bytes]) if *run == range => Ok(bytes.clone()),
            _ => Ok(joined(parts)),
        }
    }

    /// Runs `work` where it may block.
    async fn on_disk<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let this = Arc::clone(self);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => match runtime.spawn_blocking(move || work(&this)).await {
                Ok(done) => done,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
            Err(_) => work(&this),
        }
    }

    /// Learns of the pieces that other processes keep, the first time, and later if `is_stale`.
    fn scan(&self, is_stale: bool) {
        let mut scanned = self.scanned.lock();
        if scanned.is_some_and(|at| !is_stale || at.elapsed() < SCAN_PAUSE) {
            return;
        }
        *scanned = Some(Instant::now());
        let mut pieces = self.pieces.lock();
        *pieces = Pieces::default();
        if let Err(error) = self.folder.scan(|file, range| pieces.add(file, range)) {
            self.fail(&error);
        }
    }

    /// Divides a range into what is kept, with its bytes, and what is missing.
    fn kept(&self, file: FileKey, range: &Range<u64>) -> Vec<Part> {
        self.scan(false);
        let found = self.pieces.lock().find(file, range);
        let (mut parts, mut is_stale) = (Vec::with_capacity(found.len()), false);
        for (range, piece) in found {
            match piece {
                Some(piece) => {
                    let bytes = self.read_piece(file, &piece).map(|bytes| {
                        bytes.slice((range.start - piece.start) as usize..(range.end - piece.start) as usize)
                    });
                    is_stale |= bytes.is_none();
                    parts.push(Part { range, bytes });
                }
                // Another process may have kept it since.
                None => parts.extend(cut(&range).map(|range| {
                    let bytes = self.read_piece(file, &range);
                    if bytes.is_some() {
                        self.pieces.lock().add(file, range.clone());
                    }
                    Part { range, bytes }
                })),
            }
        }
        if is_stale {
            self.scan(true);
        }
        parts
    }

    /// Reads a piece. Forgets it if that fails.
    fn read_piece(&self, file: FileKey, piece: &Range<u64>) -> Option<Bytes> {
        match self.folder.read(file, piece) {
            Found::Whole(bytes) => return Some(bytes),
            Found::Gone => {}
            Found::Damaged => {
                let folder = self.folder.path().display();
                tracing::warn!(%folder, piece = Folder::name(file, piece), "a kept piece is damaged, and is read again");
                let _ = self.folder.remove(file, piece);
            }
        }
        self.pieces.lock().remove(file, piece);
        None
    }

    /// Keeps pieces of a file, as far as there is room. If that fails, keeps nothing for a while.
    fn keep(&self, file: FileKey, new: &[(Range<u64>, Bytes)]) {
        for (range, bytes) in new {
            if self.failed.lock().is_some_and(|at| at.elapsed() < FAILURE_PAUSE) {
                return;
            }
            if let Err(error) = self.keep_piece(file, range, bytes) {
                self.fail(&error);
            }
        }
    }

    fn keep_piece(&self, file: FileKey, range: &Range<u64>, bytes: &Bytes) -> io::Result<()> {
        let uses = {
            let mut pieces = self.pieces.lock();
            if pieces.has_any(file, range) {
                // Another thread was faster.
                return Ok(());
            }
            pieces.miss(file, range.start)
        };
        if !self.make_room(range, uses)? {
            return Ok(());
        }
        let written = self.folder.write(file, range, bytes);
        if !matches!(written, Ok(true)) {
            self.folder.release(Folder::size(range))?;
        }
        written?;
        if !self.pieces.lock().add(file, range.clone()) {
            self.folder.remove(file, range)?;
        }
        Ok(())
    }

    /// Reserves room for a piece that was used so often, if there is some, or pieces that were used less make it.
    fn make_room(&self, piece: &Range<u64>, uses: u8) -> io::Result<bool> {
        let size = Folder::size(piece);
        if size > self.limit {
            return Ok(false);
        }
        if self.folder.reserve(size, self.limit)? {
            return Ok(true);
        }
        let evicted = self.pieces.lock().evict(uses, piece.end - piece.start);
        for (file, range) in &evicted {
            self.folder.remove(*file, range)?;
        }
        Ok(!evicted.is_empty() && self.folder.reserve(size, self.limit)?)
    }

    fn fail(&self, error: &io::Error) {
        let folder = self.folder.path().display();
        if self.failed.lock().replace(Instant::now()).is_none_or(|at| at.elapsed() >= FAILURE_PAUSE) {
            tracing::warn!(%folder, %error, "nothing more is kept for a minute: the cache cannot be written");
        }
    }
}

/// A range in pieces.
fn cut(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let piece = at..end.min((at / PIECE_BYTES_MAX + 1) * PIECE_BYTES_MAX);
        at = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// What is missing, with neighbours as one range.
fn missing(parts: &[Part]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for Part { range, .. } in parts.iter().filter(|part| part.bytes.is_none()) {
        match runs.last_mut() {
            Some(run) if run.end == range.start => run.end = range.end,
            _ => runs.push(range.clone()),
        }
    }
    runs
}

fn joined(mut parts: Vec<Part>) -> Bytes {
    if let [one] = &mut parts[..] {
        return one.bytes.take().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(parts.iter().map(|part| (part.range.end - part.range.start) as usize).sum());
    for bytes in parts.iter().filter_map(|part| part.bytes.as_ref()) {
        all.extend_from_slice(bytes);
    }
    all.freeze()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::Error;

    const FILE: FileKey = [7; 16];
    const BYTES: u64 = 1_000;

    /// The file's bytes, and how many of them were fetched.
    #[derive(Default)]
    struct Store(AtomicU64);

    impl Store {
        fn bytes(range: &Range<u64>) -> Bytes {
            range.clone().map(|at| (at * 7 + at / 256) as u8).collect()
        }

        /// Reads a range, and returns the bytes that were fetched for it.
        async fn read(&self, cache: &Arc<PieceCache>, range: Range<u64>) -> u64 {
            let before = self.0.load(Ordering::Relaxed);
            let fetch = async |range: Range<u64>| {
                self.0.fetch_add(range.end - range.start, Ordering::Relaxed);
                Ok(Self::bytes(&range))
            };
            assert_eq!(cache.read(FILE, range.clone(), true, fetch).await.unwrap(), Self::bytes(&range), "{range:?}");
            self.0.load(Ordering::Relaxed) - before
        }
    }

    fn cache(folder: &Path, limit: u64) -> Arc<PieceCache> {
        Arc::new(PieceCache::new(folder, limit))
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
        let files = folders.filter(|path| path.is_dir()).flat_map(|path| std::fs::read_dir(path).unwrap());
        files.map(|entry| entry.unwrap().path()).collect()
    }

    #[tokio::test]
    async fn each_byte_is_fetched_once_by_any_process() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        let first = cache(folder.path(), 1 << 20);
        for (range, fetched) in
            [(10..20, 10), (10..20, 0), (0..30, 20), (15..300, 270), (300..1_000, 700), (0..BYTES, 0)]
        {
            assert_eq!(store.read(&first, range.clone()).await, fetched, "{range:?}");
        }
        let usage = first.usage().await;
        assert_eq!(usage.bytes, BYTES);
        for other in [cache(folder.path(), 1 << 20), first] {
            assert_eq!(other.usage().await, usage);
            assert_eq!(store.read(&other, 5..995).await, 0);
        }
    }

    #[tokio::test]
    async fn a_process_finds_what_another_keeps_meanwhile() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        let (first, second) = (cache(folder.path(), 1 << 20), cache(folder.path(), 1 << 20));
        assert_eq!(store.read(&first, 0..10).await + store.read(&second, 0..10).await, 10);
        assert_eq!(store.read(&first, 100..500).await + store.read(&second, 100..500).await, 400);
    }

    #[tokio::test]
    async fn threads_that_read_the_same_at_once_keep_it_once() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        let cache = cache(folder.path(), 1 << 20);
        futures::future::join_all((0..8).map(|_| store.read(&cache, 0..BYTES))).await;
        let kept: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
        let usage = cache.usage().await;
        assert_eq!((usage.bytes, kept), (BYTES, BYTES + 16 * usage.pieces));
        assert_eq!(cache.folder.reserve(1 << 20, kept + (1 << 20)).ok(), Some(true), "the sum is right");
        assert_eq!(cache.folder.reserve(1, kept + (1 << 20)).ok(), Some(false));
    }

    #[tokio::test]
    async fn processes_keep_no_more_than_the_limit_together() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        for _ in 0..3 {
            let (first, second) = (cache(folder.path(), 500), cache(folder.path(), 500));
            for at in (0..BYTES).step_by(50) {
                let cache = if at % 100 == 0 { &first } else { &second };
                store.read(cache, at..at + 50).await;
            }
            let kept: u64 = files(folder.path()).iter().map(|file| file.metadata().unwrap().len()).sum();
            assert!((400..=500).contains(&kept), "{kept}");
        }
    }

    #[tokio::test]
    async fn damaged_and_deleted_pieces_are_fetched_again() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        let cache = cache(folder.path(), 1 << 20);
        store.read(&cache, 0..BYTES).await;
        for (number, file) in files(folder.path()).iter().enumerate() {
            let mut bytes = std::fs::read(file).unwrap();
            let at = number * 13 % bytes.len();
            match number % 4 {
                0 => bytes[at] ^= 1,
                1 => bytes.truncate(at),
                2 => bytes.push(0),
                _ => std::fs::remove_file(file).unwrap(),
            }
            if number % 4 < 3 {
                std::fs::write(file, bytes).unwrap();
            }
        }
        assert_eq!(store.read(&cache, 0..BYTES).await, BYTES);
        assert_eq!(store.read(&cache, 0..BYTES).await, 0);
        // A piece in the place of another is noticed.
        let [a, b] = [0, 1].map(|at| files(folder.path())[at].clone());
        std::fs::copy(a, b).unwrap();
        store.read(&cache, 0..BYTES).await;
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_written_keeps_nothing() {
        let (folder, store) = (tempfile::tempdir().unwrap(), Store::default());
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let cache = cache(&file, 1 << 20);
        assert_eq!(store.read(&cache, 0..BYTES).await, BYTES);
        assert_eq!(store.read(&cache, 0..BYTES).await, BYTES);
        assert_eq!(cache.usage().await, PieceCacheUsage::default());
    }

    #[tokio::test]
    async fn an_error_of_the_store_is_the_readers() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1 << 20);
        let fails = async |_| Err(Error::data("gone"));
        assert_eq!(cache.read(FILE, 0..10, true, fails).await.unwrap_err().to_string(), "gone");
        assert_eq!(Store::default().read(&cache, 0..10).await, 10);
    }
}
