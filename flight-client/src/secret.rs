//! The secret by which the processes of one user know each other on loopback.
//!
//! A server on loopback without tokens and client certificates writes a random secret to a file that only its user can
//! read. A client of the same user reads the file and sends its text with every request, so nothing has to be set up.
//!
//! The file's name is the server's address, and the server keeps the file locked. A file without a lock is what a
//! killed server left behind, and is ignored: by now another user's process may listen at that address. For the same
//! reason, each server makes a new secret.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::unistd::{Uid, geteuid};

/// The header of a request that holds the secret.
pub const HEADER: &str = "forebay-secret";
/// The length of a secret: 32 bytes in hexadecimal digits.
pub const DIGITS: usize = 64;
/// Bits of a file's mode that permit anything to other users.
const OTHERS: u32 = 0o077;

/// The folders in which a server may keep its secret, in order: a server takes the first that it can use, and a client
/// looks into all, because the two may have different environments.
pub fn folders() -> Vec<PathBuf> {
    let user = geteuid();
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = PathBuf::from(format!("/run/user/{user}"));
    let mut folders: Vec<_> = of_session.into_iter().chain([of_user]).map(|path| path.join("forebay")).collect();
    folders.push(PathBuf::from(format!("/tmp/forebay-{user}")));
    folders
}

/// The name of the file with the secret of the server that listens on `address`.
pub fn file_name(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// Checks that `folder` is a folder of this process's user, which no other user may enter.
///
/// # Errors
/// The reason why it is not.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    // Not following links: another user may have made one.
    let about = std::fs::symlink_metadata(folder)?;
    let refuse = |what: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    match about.is_dir() {
        false => refuse("it is not a folder"),
        true if !is_own(&about) => refuse("it belongs to another user"),
        true if !is_private(&about) => refuse("other users may enter it"),
        true => Ok(()),
    }
}

/// The secret of the server of this process's user that listens on `address`, if there is one.
pub(crate) fn read(address: SocketAddr) -> Option<String> {
    folders().iter().find_map(|folder| read_in(folder, address))
}

fn read_in(folder: &Path, address: SocketAddr) -> Option<String> {
    check_folder(folder).ok()?;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(folder.join(file_name(address))).ok()?;
    let about = file.metadata().ok()?;
    let is_trusted = about.is_file() && is_own(&about) && is_private(&about);
    (is_trusted && is_locked(&file)).then(|| text(file)).flatten()
}

fn is_own(about: &Metadata) -> bool {
    Uid::from_raw(about.uid()) == geteuid()
}

fn is_private(about: &Metadata) -> bool {
    about.mode() & OTHERS == 0
}

/// Whether a server holds the file. A file system without locks cannot tell.
fn is_locked(file: &File) -> bool {
    file.try_lock_shared().is_err()
}

fn text(file: File) -> Option<String> {
    let mut text = String::new();
    file.take(DIGITS as u64).read_to_string(&mut text).ok()?;
    (text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

/// The address on loopback at which a server of this process's user may be meant by `host` and `port`.
///
/// The name `localhost` may stand for two addresses, with servers of different users. It stands for the one whose
/// secret this user has.
pub(crate) fn address(host: &str, port: u16) -> Option<SocketAddr> {
    let address = |ip: IpAddr| SocketAddr::new(ip, port);
    if host.eq_ignore_ascii_case("localhost") {
        let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].map(address);
        return both.into_iter().find(|address| read(*address).is_some());
    }
    let ip: IpAddr = host.trim_start_matches('[').trim_end_matches(']').parse().ok()?;
    ip.to_canonical().is_loopback().then(|| address(ip.to_canonical()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 7070);

    /// A private folder with the file of a secret, and the file, locked.
    fn served() -> (tempfile::TempDir, PathBuf, File) {
        let folder = tempfile::tempdir().unwrap();
        permit(folder.path(), 0o700);
        let path = folder.path().join("127.0.0.1:7070");
        std::fs::write(&path, "5e".repeat(32)).unwrap();
        permit(&path, 0o600);
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        (folder, path, file)
    }

    fn permit(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_secret_is_read_for_its_address_while_its_server_runs() {
        let (folder, _, lock) = served();
        let read = |address: SocketAddr| read_in(folder.path(), address);
        assert_eq!(read(SERVER.into()), Some("5e".repeat(32)));
        assert_eq!(read("[::ffff:127.0.0.1]:7070".parse().unwrap()), Some("5e".repeat(32)));
        for other in ["127.0.0.1:7071", "127.0.0.2:7070", "[::1]:7070"] {
            assert_eq!(read(other.parse().unwrap()), None, "{other}");
        }
        drop(lock);
        assert_eq!(read(SERVER.into()), None, "a file that no server holds");
    }

    #[test]
    fn a_file_that_others_could_have_written_or_read_is_no_secret() {
        let (folder, path, _lock) = served();
        let read = |folder: &Path| read_in(folder, SERVER.into());
        for mode in [0o640, 0o604, 0o620, 0o610] {
            permit(&path, mode);
            assert_eq!(read(folder.path()), None, "{mode:o}");
        }
        permit(&path, 0o600);
        for mode in [0o750, 0o701, 0o1777] {
            permit(folder.path(), mode);
            assert_eq!(read(folder.path()), None, "{mode:o}");
            assert_eq!(check_folder(folder.path()).unwrap_err().to_string(), "other users may enter it");
        }
        permit(folder.path(), 0o700);
        assert!(read(folder.path()).is_some());
        // Links, to the folder and to the file.
        let links = tempfile::tempdir().unwrap();
        permit(links.path(), 0o700);
        let link = links.path().join("link");
        symlink(folder.path(), &link).unwrap();
        assert_eq!(check_folder(&link).unwrap_err().to_string(), "it is not a folder");
        assert_eq!(read(&link), None);
        symlink(&path, links.path().join("127.0.0.1:7070")).unwrap();
        assert_eq!(read(links.path()), None);
    }

    #[test]
    fn a_file_with_another_text_is_no_secret() {
        let (folder, path, _lock) = served();
        for text in ["", "5e5e", &"5z".repeat(32), &"5e".repeat(31)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_in(folder.path(), SERVER.into()), None, "{text:?}");
        }
    }

    #[test]
    fn only_hosts_on_loopback_have_an_address() {
        let some = |host: &str| address(host, 7070).map(|address| address.to_string());
        assert_eq!(some("127.0.0.1").as_deref(), Some("127.0.0.1:7070"));
        assert_eq!(some("[::1]").as_deref(), Some("[::1]:7070"));
        assert_eq!(some("[::ffff:127.8.8.8]").as_deref(), Some("127.8.8.8:7070"));
        for host in ["10.0.0.1", "[::]", "0.0.0.0", "feeds.example.org", "localhost.example.org"] {
            assert_eq!(some(host), None, "{host}");
        }
    }
}
