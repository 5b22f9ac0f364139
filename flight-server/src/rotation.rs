//! Reads certificates, keys, roles and tokens again when their files change, or when asked to.
//!
//! The content of the files is compared every two seconds. That needs no support of the file system, and finds what
//! Kubernetes and editors do, which replace files and links instead of writing into them. Files that cannot be used
//! change nothing: what was read before stays in use, and they are tried again at each look.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_engine::Result;
use forebay_flight_client::pem::PemFile;
use forebay_flight_client::wall_clock::now_unix_seconds;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::auth::AccessTokens;
use crate::tls::{Expiry, ServerTls};

/// The interval of looks at the files.
const INTERVAL: Duration = Duration::from_secs(2);
/// Warnings begin this long before a certificate expires.
const EXPIRY_WARNED_SECONDS: u64 = 14 * 24 * 3600;
/// The interval of these warnings.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Asks a running server to read its files again, whether they changed or not, and to open its scripts again that
/// changed. Clones ask the same server.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<watch::Sender<u64>>);

impl Reload {
    /// Asks for it.
    pub fn ask(&self) {
        self.0.send_modify(|times| *times += 1);
    }

    /// Says when it is asked for, or that it was before.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        let mut asked = self.0.subscribe();
        if *asked.borrow() > 0 {
            asked.mark_changed();
        }
        asked
    }
}

/// What became of the files, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct RotationState {
    pub(crate) succeeded: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Groups of files that cannot be used at present.
    pub(crate) failing: AtomicU64,
    pub(crate) expiries: Mutex<Vec<Expiry>>,
}

/// Files that are read together.
struct Watched {
    paths: Vec<PathBuf>,
    seen: Vec<Option<blake3::Hash>>,
    read: Box<dyn Fn() -> Result<()> + Send>,
    /// Why the files cannot be used, if they cannot.
    failure: Option<String>,
}

impl Watched {
    fn new(paths: Vec<PathBuf>, read: impl Fn() -> Result<()> + Send + 'static) -> Self {
        let seen = digests(&paths);
        Self { paths, seen, read: Box::new(read), failure: None }
    }

    /// Reads the files, which may have changed between their first reading and `new`.
    fn catch_up(&mut self) {
        self.failure = (self.read)().err().map(|error| error.to_string());
    }

    /// Reads the files if they changed since the last look, if they could not be used then, or if `is_asked`.
    fn look(&mut self, is_asked: bool, state: &RotationState) {
        // Before reading: what changes later is found by the next look.
        let now = digests(&self.paths);
        let is_changed = now != self.seen;
        if !is_asked && !is_changed && self.failure.is_none() {
            return;
        }
        self.seen = now;
        let files = self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match (self.read)() {
            Ok(()) => {
                self.failure = None;
                state.succeeded.fetch_add(1, Ordering::Relaxed);
                tracing::info!(files, "files were read again");
            }
            Err(error) => {
                let failure = Some(error.to_string());
                // Not at each look.
                if is_asked || is_changed || failure != self.failure {
                    state.failed.fetch_add(1, Ordering::Relaxed);
                    let (error, hint) = (error.message(), error.hint().unwrap_or_default());
                    tracing::warn!(files, error, hint, "files cannot be used; what was read before stays in use");
                }
                self.failure = failure;
            }
        }
    }
}

/// The digest of each file that can be read.
fn digests(paths: &[PathBuf]) -> Vec<Option<blake3::Hash>> {
    paths.iter().map(|path| Some(blake3::hash(&std::fs::read(path).ok()?))).collect()
}

/// The files of a server.
pub(crate) struct Rotation {
    watched: Vec<Watched>,
    tls: Option<ServerTls>,
    /// The CA of the other processes. Connections read it themselves; here only its end is of interest.
    ca: Option<PathBuf>,
    state: Arc<RotationState>,
    warned: Option<Instant>,
}

impl Rotation {
    pub(crate) fn new<'a>(
        tls: Option<&ServerTls>,
        tokens: impl IntoIterator<Item = &'a AccessTokens>,
        ca: Option<PathBuf>,
        state: Arc<RotationState>,
    ) -> Self {
        let of_tls = tls.cloned().map(|tls| Watched::new(tls.paths(), move || tls.read_again()));
        let of_tokens = tokens.into_iter().cloned();
        let of_tokens = of_tokens.map(|tokens| Watched::new(vec![tokens.path()], move || tokens.read_again()));
        let mut watched: Vec<Watched> = of_tls.into_iter().chain(of_tokens).collect();
        // Opening the scripts may have taken minutes since the files were first read.
        watched.iter_mut().for_each(Watched::catch_up);
        Self { watched, tls: tls.cloned(), ca, state, warned: None }
    }

    /// Looks at the files for ever.
    pub(crate) async fn run(mut self, reload: Reload) -> std::convert::Infallible {
        let (mut is_asked, mut asked) = (false, reload.subscribe());
        loop {
            let looked = tokio::task::spawn_blocking(move || {
                self.look(is_asked);
                self
            });
            let Ok(this) = looked.await else { return std::future::pending().await };
            self = this;
            is_asked = timeout(INTERVAL, asked.changed()).await.is_ok();
        }
    }

    fn look(&mut self, is_asked: bool) {
        self.watched.iter_mut().for_each(|watched| watched.look(is_asked, &self.state));
        let failing = self.watched.iter().filter(|watched| watched.failure.is_some()).count();
        self.state.failing.store(failing as u64, Ordering::Relaxed);
        let mut expiries = self.tls.as_ref().map_or(Vec::new(), ServerTls::expiries);
        expiries.extend(self.ca.as_deref().and_then(expiry_of_ca));
        self.warn(&expiries, now_unix_seconds());
        *self.state.expiries.lock() = expiries;
    }

    /// Warns daily of certificates that expire soon.
    fn warn(&mut self, expiries: &[Expiry], now_seconds: u64) {
        let left = |expiry: &Expiry| expiry.not_after_unix_seconds.saturating_sub(now_seconds);
        let mut soon = expiries.iter().filter(|expiry| left(expiry) <= EXPIRY_WARNED_SECONDS).peekable();
        if soon.peek().is_none() {
            self.warned = None;
            return;
        }
        if self.warned.is_some_and(|warned| warned.elapsed() < EXPIRY_INTERVAL) {
            return;
        }
        self.warned = Some(Instant::now());
        for expiry in soon {
            let (file, days) = (expiry.path.display().to_string(), left(expiry) / (24 * 3600));
            match left(expiry) {
                0 => tracing::error!(file, "a TLS certificate has expired; replace the file"),
                _ => tracing::warn!(file, days, "a TLS certificate expires soon; replace the file"),
            }
        }
    }
}

fn expiry_of_ca(path: &Path) -> Option<Expiry> {
    let validity = PemFile::read("CA certificate", path).ok()?.ca_validity().ok()??;
    Some(Expiry { file: "ca", path: path.to_owned(), not_after_unix_seconds: validity.not_after_unix_seconds })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use forebay_engine::Error;

    use super::*;

    #[test]
    fn files_are_read_when_they_change_or_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "one").unwrap();
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let mut watched = Watched::new(vec![path.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let mut look = |is_asked| {
            watched.look(is_asked, &RotationState::default());
            reads.load(Ordering::Relaxed)
        };
        assert_eq!((look(false), look(true), look(false)), (0, 1, 1));
        // Another file of the same length takes its place, as Kubernetes and editors do it.
        std::fs::write(folder.path().join("new"), "two").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!((look(false), look(false)), (2, 2));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((look(false), look(false)), (3, 3));
    }

    #[test]
    fn files_that_cannot_be_used_are_tried_again_and_counted_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        std::fs::write(&path, "good").unwrap();
        // Whether it can be used depends on more than its content, such as the time.
        let is_usable = folder.path().join("usable");
        let (file, usable) = (path.clone(), is_usable.clone());
        let mut watched = Watched::new(vec![path.clone()], move || match std::fs::read_to_string(&file) {
            Ok(text) if text == "good" || usable.exists() => Ok(()),
            _ => Err(Error::invalid("it cannot be used")),
        });
        let state = RotationState::default();
        let mut look = || {
            watched.look(false, &state);
            (state.succeeded.load(Ordering::Relaxed), state.failed.load(Ordering::Relaxed), watched.failure.is_some())
        };
        assert_eq!(look(), (0, 0, false));
        std::fs::write(&path, "bad").unwrap();
        assert_eq!((look(), look()), ((0, 1, true), (0, 1, true)));
        std::fs::write(&is_usable, "").unwrap();
        assert_eq!((look(), look()), ((1, 1, false), (1, 1, false)));
    }

    #[test]
    fn a_certificate_that_expires_soon_is_warned_of_once_a_day() {
        let mut rotation = Rotation::new(None, [], None, Arc::default());
        let expiry = |not_after_unix_seconds| [Expiry { file: "ca", path: "ca.pem".into(), not_after_unix_seconds }];
        rotation.warn(&expiry(EXPIRY_WARNED_SECONDS + 1), 0);
        assert!(rotation.warned.is_none());
        rotation.warn(&expiry(EXPIRY_WARNED_SECONDS), 0);
        let warned = rotation.warned;
        assert!(warned.is_some());
        rotation.warn(&expiry(EXPIRY_WARNED_SECONDS), 60);
        assert_eq!(rotation.warned, warned);
        rotation.warn(&expiry(2 * EXPIRY_WARNED_SECONDS), 60);
        assert!(rotation.warned.is_none(), "the file was replaced");
    }
}
