//! The socket through which trainers read from workers on their own machine.
//!
//! Loopback TCP splits data into packets and acknowledges them, all on the sender's time; a local socket only copies,
//! for less CPU time. It serves the same requests as the port and requires the same token and ticket. A client uses it
//! only if the listener runs as this process's own user or as root: any user can bind an unused socket name and would
//! receive the token.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_delivery::WorkerId;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Time limit to connect. A listener on the same machine answers at once.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a worker's socket in Linux's abstract namespace. It is not a file, it disappears with its process, and
/// containers with their own network namespace do not see it. A worker's id is random, so no two machines share a name.
pub fn socket(worker: WorkerId) -> PathBuf {
    OsString::from_vec(format!("\0forebay-worker-{worker:016x}").into_bytes()).into()
}

/// Connects to the socket, if a trusted process listens on it.
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

/// Whether to trust a listener of this user. A listener of the own user or of root is trusted.
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
