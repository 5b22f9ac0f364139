//! Reads certificates, keys, roles and tokens again when their files change, or when asked to.
//!
//! Files are compared by time, length and number every few seconds. That needs no support of the file system, and finds
//! what Kubernetes and editors do, which replace files and links instead of writing into them. A file that cannot be
//! used changes nothing: the old content stays in use.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_engine::Result;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::auth::AccessTokens;
use crate::clock::now_unix_seconds;
use crate::tls::ServerTls;

/// The interval of looks at the files.
const INTERVAL: Duration = Duration::from_secs(2);
/// Warnings begin this long before a certificate expires.
const EXPIRY_WARNED_SECONDS: u64 = 14 * 24 * 3600;
/// The interval of these warnings.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Asks a running server to read its files again, whether they changed or not. Clones ask the same server.
#[derive(Clone, Debug, Default)]
pub struct Reload(Arc<Notify>);

impl Reload {
    /// Asks for it.
    pub fn ask(&self) {
        self.0.notify_one();
    }
}

/// What tells that a file was changed or replaced; `None` for a file that is not there.
type Stamp = Option<(SystemTime, u64, u64)>;

fn stamp(path: &Path) -> Stamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len(), file.ino()))
}

/// Files that are read together.
struct Watched {
    paths: Vec<PathBuf>,
    seen: Vec<Stamp>,
    read: Box<dyn Fn() -> Result<()> + Send>,
}

impl Watched {
    fn new(paths: Vec<PathBuf>, read: impl Fn() -> Result<()> + Send + 'static) -> Self {
        let seen = paths.iter().map(|path| stamp(path)).collect();
        Self { paths, seen, read: Box::new(read) }
    }

    /// Reads the files if they changed since the last look, or if `is_asked`.
    fn look(&mut self, is_asked: bool) {
        // Before reading: what changes later is found by the next look.
        let now: Vec<_> = self.paths.iter().map(|path| stamp(path)).collect();
        if !is_asked && now == self.seen {
            return;
        }
        self.seen = now;
        let files = self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        match (self.read)() {
            Ok(()) => tracing::info!(files, "files were read again"),
            Err(error) => {
                let (error, hint) = (error.message(), error.hint().unwrap_or_default());
                tracing::warn!(files, error, hint, "files cannot be used; what was read before stays in use");
            }
        }
    }
}

/// The files of a server.
pub(crate) struct Rotation {
    watched: Vec<Watched>,
    tls: Option<ServerTls>,
    warned: Option<Instant>,
}

impl Rotation {
    pub(crate) fn new<'a>(tls: Option<&ServerTls>, tokens: impl IntoIterator<Item = &'a AccessTokens>) -> Self {
        let of_tls = tls.cloned().map(|tls| Watched::new(tls.paths(), move || tls.read_again()));
        let of_tokens = tokens.into_iter().cloned();
        let of_tokens = of_tokens.map(|tokens| Watched::new(vec![tokens.path()], move || tokens.read_again()));
        Self { watched: of_tls.into_iter().chain(of_tokens).collect(), tls: tls.cloned(), warned: None }
    }

    /// Looks at the files for ever.
    pub(crate) async fn run(mut self, reload: Reload) -> std::convert::Infallible {
        let mut is_asked = false;
        loop {
            let looked = tokio::task::spawn_blocking(move || {
                self.watched.iter_mut().for_each(|watched| watched.look(is_asked));
                self.warn(now_unix_seconds());
                self
            });
            let Ok(this) = looked.await else { return std::future::pending().await };
            self = this;
            is_asked = timeout(INTERVAL, reload.0.notified()).await.is_ok();
        }
    }

    /// Warns daily of a certificate that expires soon.
    fn warn(&mut self, now_seconds: u64) {
        let Some((tls, expires)) = self.tls.as_ref().and_then(|tls| Some((tls, tls.expires_unix_seconds()?))) else {
            return;
        };
        let left = expires.saturating_sub(now_seconds);
        if left > EXPIRY_WARNED_SECONDS {
            self.warned = None;
            return;
        }
        if self.warned.is_none_or(|warned| warned.elapsed() >= EXPIRY_INTERVAL) {
            self.warned = Some(Instant::now());
            let (certificate, days) = (tls.certificate().display().to_string(), left / (24 * 3600));
            match left {
                0 => tracing::error!(certificate, "the TLS certificate has expired; replace the file"),
                _ => tracing::warn!(certificate, days, "the TLS certificate expires soon; replace the file"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

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
            watched.look(is_asked);
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
}
