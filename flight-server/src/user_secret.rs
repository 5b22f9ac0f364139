//! The secret that a server on loopback leaves for other processes of its user: see [`forebay_flight_client::secret`].

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use blake3::Hash;
use forebay_engine::{Error, ErrorKind, Result};
use forebay_flight_client::secret;
use forebay_protocol::random_bytes;

/// The file that is locked while files of a folder are made and removed.
const FOLDER_LOCK: &str = "lock";
/// A file that is still being written.
const UNFINISHED: &str = "new";

/// A secret in its file, which is removed when this is dropped.
pub(crate) struct UserSecret {
    text: String,
    address: SocketAddr,
    folder: PathBuf,
    path: PathBuf,
    /// Locked until the server ends, however it ends.
    file: File,
}

impl UserSecret {
    /// Makes a new secret for the server that listens on `address`.
    ///
    /// # Errors
    /// `Unavailable` if no folder can hold it, with the reason for the first.
    pub(crate) fn create(address: SocketAddr) -> Result<Self> {
        let random: [u8; secret::DIGITS / 2] = random_bytes()?;
        Self::leave(address, random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Leaves the secret in the first folder that can hold it.
    fn leave(address: SocketAddr, text: String) -> Result<Self> {
        let mut failed = None;
        for folder in secret::folders() {
            // A system may lack the folder of the user's sessions.
            if folder.parent().is_some_and(|parent| !parent.is_dir()) {
                continue;
            }
            match Self::leave_in(&folder, address, text.clone()) {
                Ok(secret) => return Ok(secret),
                Err(error) => {
                    let path = folder.display();
                    failed = failed.or(Some(format!("the folder \"{path}\" cannot hold the user's secret: {error}")));
                }
            }
        }
        let message = failed.unwrap_or_else(|| "there is no folder for the user's secret".to_owned());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn leave_in(folder: &Path, address: SocketAddr, text: String) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => secret::check_folder(folder)?,
        }
        let _alone = lock(folder)?;
        sweep(folder)?;
        let path = folder.join(secret::file_name(address));
        // A client must never see a file that is not complete and locked.
        let unfinished = folder.join(UNFINISHED);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.lock()?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&unfinished, &path)?;
        Ok(Self { text, address, folder: folder.to_owned(), path, file })
    }

    /// The hash of the secret: comparing hashes takes constant time.
    pub(crate) fn hash(&self) -> Hash {
        blake3::hash(self.text.as_bytes())
    }

    /// Leaves the secret again if its file is gone. The system removes the folder of a user's sessions when the last of
    /// them ends, and servers may outlive it.
    pub(crate) fn restore(&mut self) {
        // A later server at the same address may have replaced the file.
        if std::fs::symlink_metadata(&self.path).is_ok() {
            return;
        }
        let here = Self::leave_in(&self.folder, self.address, self.text.clone());
        match here.or_else(|_| Self::leave(self.address, self.text.clone())) {
            Ok(restored) => *self = restored,
            Err(error) => tracing::debug!(%error, "the secret for workers is gone, and cannot be left again"),
        }
    }

    /// Whether the file is at its path. A later server at the same address may have replaced it.
    fn is_there(&self) -> bool {
        let id = |about: std::fs::Metadata| (about.dev(), about.ino());
        let (own, there) = (self.file.metadata().map(id), std::fs::symlink_metadata(&self.path).map(id));
        own.is_ok_and(|own| there.is_ok_and(|there| own == there))
    }
}

impl Drop for UserSecret {
    fn drop(&mut self) {
        let _alone = lock(&self.folder);
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl fmt::Debug for UserSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UserSecret({})", self.path.display())
    }
}

/// Waits until no other process makes or removes files in the folder. Dropping the file lets others continue.
fn lock(folder: &Path) -> io::Result<File> {
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(folder.join(FOLDER_LOCK))?;
    file.lock()?;
    Ok(file)
}

/// Removes the files of servers that were killed, which nothing holds.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name != UNFINISHED && name.parse::<SocketAddr>().is_err() {
            continue;
        }
        match File::open(&path).map(|file| file.try_lock()) {
            Ok(Ok(())) => std::fs::remove_file(&path)?,
            Ok(Err(TryLockError::WouldBlock)) => {}
            Ok(Err(TryLockError::Error(error))) | Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 7070);

    fn create_in(folder: &Path, address: impl Into<SocketAddr>) -> io::Result<UserSecret> {
        let random: [u8; secret::DIGITS / 2] = random_bytes().unwrap();
        UserSecret::leave_in(folder, address.into(), random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name != FOLDER_LOCK).collect();
        names.sort();
        names
    }

    #[test]
    fn a_secret_is_its_user_s_and_ends_with_its_server() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("forebay");
        let secret = create_in(&folder, ADDRESS).unwrap();
        let path = folder.join("127.0.0.1:7070");
        let text = std::fs::read(&path).unwrap();
        assert_eq!((text.len(), blake3::hash(&text)), (secret::DIGITS, secret.hash()));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert!(File::open(&path).unwrap().try_lock_shared().is_err(), "a server holds it");
        assert!(!format!("{secret:?}").contains(std::str::from_utf8(&text).unwrap()));
        drop(secret);
        assert_eq!(names(&folder), [""; 0]);
    }

    #[test]
    fn a_new_server_at_an_address_has_a_new_secret() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("forebay");
        let first = create_in(&folder, ADDRESS).unwrap();
        let second = create_in(&folder, ADDRESS).unwrap();
        assert_ne!(first.hash(), second.hash());
        drop(first);
        let text = std::fs::read(folder.join("127.0.0.1:7070")).unwrap();
        assert_eq!(blake3::hash(&text), second.hash(), "the first does not remove the file of the second");
    }

    #[test]
    fn a_secret_whose_folder_was_removed_is_left_again() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("forebay");
        let mut secret = create_in(&folder, ADDRESS).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        secret.restore();
        let text = std::fs::read(folder.join("127.0.0.1:7070")).unwrap();
        assert_eq!(blake3::hash(&text), secret.hash());
        drop(secret);
        assert_eq!(names(&folder), [""; 0]);
    }

    #[test]
    fn files_of_killed_servers_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("forebay");
        let _running = create_in(&folder, ([127, 0, 0, 1], 1)).unwrap();
        for left in ["127.0.0.1:2", "[::1]:3", UNFINISHED] {
            std::fs::write(folder.join(left), "5e").unwrap();
        }
        let _new = create_in(&folder, ([127, 0, 0, 1], 5)).unwrap();
        assert_eq!(names(&folder), ["127.0.0.1:1", "127.0.0.1:5"]);
    }

    #[test]
    fn a_folder_that_others_may_enter_holds_no_secret() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("forebay");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o750)).unwrap();
        let refused = create_in(&folder, ADDRESS).unwrap_err();
        assert_eq!(refused.to_string(), "other users may enter it");
        assert_eq!(names(&folder), [""; 0]);
    }
}
