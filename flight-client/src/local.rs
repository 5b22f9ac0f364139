//! The socket over which trainers read from workers on their own machine.
//!
//! Loopback TCP cuts what is sent into packets and acknowledges them, all on the sender's time; a local socket only copies,
//! for half of the CPU. It serves what the port serves, to whoever has the same token and ticket.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_delivery::WorkerId;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

/// Whoever listens there answers at once.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The name of a worker's socket, in Linux's abstract namespace: it is no file, ends with its process, and containers with
/// networks of their own do not see it. A worker's id is drawn at random, so no two machines have the same.
pub fn socket(worker: WorkerId) -> PathBuf {
    OsString::from_vec(format!("\0forebay-worker-{worker:016x}").into_bytes()).into()
}

/// A connection to the socket, if somebody listens there.
pub(crate) async fn connect(socket: &Path, endpoint: &Endpoint) -> Option<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    endpoint.clone().connect_timeout(TIMEOUT).connect_with_connector(connector).await.ok()
}
