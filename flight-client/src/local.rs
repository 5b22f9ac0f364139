//! The socket over which trainers read from workers on their own machine.
//!
//! Loopback TCP cuts what is sent into packets and acknowledges them, all on the sender's time; a local socket only
//! copies, for less of the CPU. It serves what the port serves, to whoever has the same token and ticket. And it is
//! only used where this process's own user, or root, listens: anybody may take a name that no worker has, and would be
//! sent the token.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_delivery::WorkerId;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Whoever listens there answers at once.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a worker's socket, in Linux's abstract namespace: it is no file, ends with its process, and containers
/// with networks of their own do not see it. A worker's id is drawn at random, so no two machines have the same.
pub fn socket(worker: WorkerId) -> PathBuf {
    OsString::from_vec(format!("\0forebay-worker-{worker:016x}").into_bytes()).into()
}

/// A connection to the socket, if somebody listens there.
pub(crate) async fn connect(socket: &Path, endpoint: &Endpoint) -> Option<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = UnixStream::connect(socket).await?;
            let (peer, own) = (stream.peer_cred()?.uid(), UnixStream::pair()?.0.peer_cred()?.uid());
            match is_trusted(peer, own) {
                true => Ok(TokioIo::new(stream)),
                false => Err(io::Error::from(io::ErrorKind::PermissionDenied)),
            }
        }
    });
    endpoint.clone().connect_timeout(TIMEOUT).connect_with_connector(connector).await.ok()
}

/// Whether a listener that this user started is a worker of ours as far as a user can tell.
fn is_trusted(listener: u32, own: u32) -> bool {
    listener == own || listener == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_user_and_root_are_trusted() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
    }
}
