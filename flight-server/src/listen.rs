//! Accepts connections, does the TLS handshake, finds out who is at the other end, and closes connections that only
//! take up room.
//!
//! HTTP/2's keep-alive starts only after the peer has spoken HTTP/2, and a peer that answers it may stay for ever
//! without a token. So the TLS handshake, the first bytes and the first request that passes the
//! [`Gate`](crate::auth::Gate) each have a deadline here, and the number of connections is bounded, over all peers and
//! for each: see [`crate::slots`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_delivery::WorkerId;
use forebay_engine::{Error, ErrorKind, Result};
use futures::stream::{self, Stream};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::caller::Peer;
use crate::logins::FailedLogins;
use crate::peer_user;
use crate::slots::{Slot, Slots};
use crate::tls::ServerTls;

/// Time limit for the TLS handshake, and again for the first bytes after it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// After the first bytes, a connection has this many times [`PATIENCE`] to make a request that is accepted.
const ADMISSION_FACTOR: u32 = 3;
/// Concurrent TLS handshakes. One address may have half of them, and its further connections are closed. Those of
/// others wait in the listener's queue.
const HANDSHAKES_MAX: usize = 1024;
/// Pause after a failure that will not pass by itself, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Size of a local socket's send buffer. With the usual 208 KiB both sides wait for each other within every frame.
const LOCAL_BUFFER_BYTES: usize = 1 << 20;
/// Length of the HTTP/2 connection preface (`PRI * HTTP/2.0`…), the first bytes of a client.
const PREFACE_BYTES: usize = 24;

/// How a listener finds out who is at the other end of a connection. The default does not.
#[derive(Clone, Default)]
pub(crate) struct Identification {
    /// Asked for each connection, because its files may change.
    pub(crate) tls: Option<ServerTls>,
    /// Whether to ask the system for the user at the other end.
    pub(crate) asks_user: bool,
    /// Counts TLS handshakes that failed.
    pub(crate) failed: Arc<FailedLogins>,
}

struct Listening {
    listener: TcpListener,
    /// For trainers on this machine; never used with TLS.
    local: Option<UnixListener>,
    identification: Identification,
    patience: Duration,
    slots: Slots,
    handshaking: Slots,
    /// Aborted when the listener is dropped.
    handshakes: JoinSet<Option<Connection>>,
}

/// The connections of a TCP listener and of a local one. Each has `patience` for the TLS handshake, if there is one,
/// and again for its first bytes.
pub(crate) fn connections(
    listener: TcpListener,
    local: Option<UnixListener>,
    identification: Identification,
    patience: Duration,
) -> impl Stream<Item = io::Result<Connection>> {
    let (slots, handshaking) = (Slots::of_process(), Slots::new(HANDSHAKES_MAX));
    let handshakes = JoinSet::new();
    let listening = Listening { listener, local, identification, patience, slots, handshaking, handshakes };
    stream::unfold(listening, |mut listening| async move {
        let connection = listening.next().await;
        Some((Ok(connection), listening))
    })
}

impl Listening {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => {
                    let (tcp, peer) = match accepted {
                        Ok(accepted) => accepted,
                        Err(error) => {
                            pause(&error).await;
                            continue;
                        }
                    };
                    let Some(slot) = self.slots.take(Some(peer.ip())) else {
                        tracing::debug!(%peer, "a connection is closed: there are too many");
                        continue;
                    };
                    // Without this, small requests would wait 40 ms for an acknowledgement.
                    if let Err(error) = tcp.set_nodelay(true) {
                        tracing::debug!(%error, "a connection ended as it began");
                        continue;
                    }
                    let Identification { tls, asks_user, failed } = &self.identification;
                    let is_own_user =
                        *asks_user && tcp.local_addr().is_ok_and(|server| peer_user::is_own(peer, server));
                    let known = Peer { address: Some(peer), is_own_user, ..Peer::default() };
                    let Some(tls) = tls.clone() else { return Connection::new(tcp, known, slot, self.patience) };
                    let Some(handshaking) = self.handshaking.take(Some(peer.ip())) else {
                        tracing::debug!(%peer, "a connection is closed: its address has too many TLS handshakes");
                        continue;
                    };
                    let (failed, patience) = (Arc::clone(failed), self.patience);
                    self.handshakes.spawn(async move {
                        let _handshaking = handshaking;
                        let stream = handshake(&tls.acceptor(), tcp, peer, patience, &failed).await?;
                        // The client's own certificate is the first.
                        let own = stream.get_ref().1.peer_certificates().and_then(|certificates| certificates.first());
                        let certificate = tls.roles().zip(own).map(|(roles, own)| roles.caller(own));
                        Some(Connection::new(stream, Peer { certificate, ..known }, slot, patience))
                    });
                }
                accepted = accept(self.local.as_ref()) => match accepted {
                    Ok(stream) => match self.slots.take(None) {
                        Some(slot) => {
                            let user = stream.peer_cred().map(|of| of.uid());
                            let is_own_user = user.is_ok_and(peer_user::is_trusted);
                            let peer = Peer { is_own_user, ..Peer::default() };
                            return Connection::new(stream, peer, slot, self.patience);
                        }
                        None => tracing::debug!("a local connection is closed: there are too many"),
                    },
                    Err(error) => pause(&error).await,
                },
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }
}

/// The next connection of the local listener. Waits forever if there is none.
async fn accept(listener: Option<&UnixListener>) -> io::Result<UnixStream> {
    match listener {
        Some(listener) => {
            let (stream, _) = listener.accept().await?;
            // The system may allow less, which only costs speed.
            let _ = SockRef::from(&stream).set_send_buffer_size(LOCAL_BUFFER_BYTES);
            Ok(stream)
        }
        None => std::future::pending().await,
    }
}

/// Listens for trainers on this machine. If that fails, they use the port.
pub(crate) fn local(worker: WorkerId) -> Option<UnixListener> {
    UnixListener::bind(forebay_flight_client::local::socket(worker))
        .inspect_err(|error| tracing::debug!(%error, "no local socket"))
        .ok()
}

/// Binds a port; port 0 binds a free one. `option` is the name of the port's option, for hints.
///
/// # Errors
/// `Conflict` for a port in use, `Invalid` for an address that is not of this machine.
pub(crate) async fn bind(address: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => Error::new(
            ErrorKind::Conflict,
            format!("port {} of {} is in use", address.port(), address.ip()),
        )
        .with_hint(format!(
            "stop the process that uses it, or give another port with the option \"{option}\" (0 takes a free one)"
        )),
        _ => Error::new(ErrorKind::Invalid, format!("cannot listen on {address}: {error}")).with_hint(
            "the option \"host\" takes an address of this machine, and a port below 1024 may need privileges",
        ),
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Waits if accepting failed for a reason that will not pass by itself.
pub(crate) async fn pause(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    if !matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted) {
        tracing::warn!(%error, "a connection cannot be accepted");
        sleep(ACCEPT_PAUSE).await;
    }
}

async fn handshake(
    tls: &TlsAcceptor,
    tcp: TcpStream,
    peer: SocketAddr,
    patience: Duration,
    failed: &FailedLogins,
) -> Option<TlsStream<TcpStream>> {
    match timeout(patience, tls.accept(tcp).into_fallible()).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err((error, tcp))) => {
            // Probes of load balancers connect and say nothing.
            if error.kind() != io::ErrorKind::UnexpectedEof {
                failed.add("tls_handshake", Some(peer), &error.to_string());
            }
            let _ = timeout(patience, part(tcp)).await;
            None
        }
        Err(_) => {
            tracing::debug!(%peer, "TLS handshake timed out");
            None
        }
    }
}

/// Closes the connection so that the peer can read the alert. Closing with unread input would reset the connection and
/// discard the alert.
async fn part(mut tcp: TcpStream) -> io::Result<()> {
    tcp.shutdown().await?;
    tokio::io::copy(&mut tcp.take(64 << 10), &mut tokio::io::sink()).await?;
    Ok(())
}

trait Duplex: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A plain or TLS connection. It fails if its peer does not speak HTTP/2 before the deadline, or makes no request that
/// is accepted.
pub(crate) struct Connection {
    io: Pin<Box<dyn Duplex>>,
    peer: Peer,
    probation: Option<Probation>,
    /// Kept for as long as the connection lives.
    _slot: Slot,
}

/// The state of a connection that is not admitted yet.
struct Probation {
    deadline: Pin<Box<Sleep>>,
    patience: Duration,
    heard: usize,
}

impl Probation {
    /// Counts bytes. A peer that has spoken HTTP/2 gets more time, once.
    fn hear(&mut self, bytes: usize) {
        let before = self.heard;
        self.heard += bytes;
        if before < PREFACE_BYTES && self.heard >= PREFACE_BYTES {
            self.deadline = Box::pin(sleep(ADMISSION_FACTOR * self.patience));
        }
    }
}

impl Connection {
    fn new(io: impl Duplex + 'static, peer: Peer, slot: Slot, patience: Duration) -> Self {
        let probation = Some(Probation { deadline: Box::pin(sleep(patience)), patience, heard: 0 });
        Self { io: Box::pin(io), peer, probation, _slot: slot }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.io.as_mut().poll_read(cx, buffer);
        if self.peer.admission.is_admitted() {
            self.probation = None;
        }
        if let Some(probation) = &mut self.probation {
            probation.hear(buffer.filled().len() - before);
            if read.is_pending() && probation.deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.as_mut().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.as_mut().poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    async fn listener() -> (TcpListener, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener, client)
    }

    fn tls() -> ServerTls {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("cert"), folder.path().join("key"));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        ServerTls::read(&certificate, &key, None).unwrap()
    }

    #[tokio::test]
    async fn a_silent_connection_ends() {
        for said in [&b""[..], &b"PRI * HTTP/2.0"[..]] {
            let (listener, mut client) = listener().await;
            let mut connections = std::pin::pin!(connections(listener, None, Identification::default(), SHORT));
            let mut connection = connections.next().await.unwrap().unwrap();
            client.write_all(said).await.unwrap();
            let mut heard = Vec::new();
            let error = connection.read_to_end(&mut heard).await.unwrap_err();
            assert_eq!((error.kind(), &heard[..]), (io::ErrorKind::TimedOut, said));
        }
    }

    #[tokio::test]
    async fn a_connection_without_an_accepted_request_ends_and_an_admitted_one_may_be_silent() {
        for admitted in [false, true] {
            let (listener, mut client) = listener().await;
            let mut connections = std::pin::pin!(connections(listener, None, Identification::default(), SHORT));
            let mut connection = connections.next().await.unwrap().unwrap();
            client.write_all(&[b' '; PREFACE_BYTES]).await.unwrap();
            connection.read_exact(&mut [0; PREFACE_BYTES]).await.unwrap();
            if admitted {
                connection.connect_info().admission.admit();
            }
            let waited = timeout(2 * ADMISSION_FACTOR * SHORT, connection.read_u8()).await;
            match waited {
                Ok(read) => assert_eq!((admitted, read.unwrap_err().kind()), (false, io::ErrorKind::TimedOut)),
                Err(_) => assert!(admitted, "the connection was kept without a request"),
            }
        }
    }

    #[tokio::test]
    async fn a_local_connection_is_one_of_them() {
        let (listener, mut by_port) = listener().await;
        let worker = u64::from(std::process::id());
        let local = local(worker).unwrap();
        let socket = forebay_flight_client::local::socket(worker);
        let mut locally = UnixStream::connect(&socket).await.unwrap();
        let mut connections = std::pin::pin!(connections(listener, Some(local), Identification::default(), SHORT));
        let mut heard = Vec::new();
        by_port.write_all(&[b'p'; PREFACE_BYTES]).await.unwrap();
        locally.write_all(&[b'l'; PREFACE_BYTES]).await.unwrap();
        for _ in 0..2 {
            let mut connection = connections.next().await.unwrap().unwrap();
            let mut bytes = [0; PREFACE_BYTES];
            connection.read_exact(&mut bytes).await.unwrap();
            // A local socket names the user at its other end without being asked.
            assert_eq!(connection.connect_info().is_own_user, bytes[0] == b'l');
            heard.push(bytes[0]);
        }
        heard.sort_unstable();
        assert_eq!(heard, b"lp");
        // The name cannot be bound twice.
        assert!(super::local(worker).is_none());
    }

    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn a_listener_that_asks_for_users_knows_its_own() {
        for asks_user in [false, true] {
            let (listener, _client) = listener().await;
            let identification = Identification { asks_user, ..Identification::default() };
            let mut connections = std::pin::pin!(connections(listener, None, identification, PATIENCE));
            let connection = connections.next().await.unwrap().unwrap();
            assert_eq!(connection.connect_info().is_own_user, asks_user);
        }
    }

    #[tokio::test]
    async fn a_silent_tls_handshake_ends() {
        let (listener, mut client) = listener().await;
        let address = listener.local_addr().unwrap();
        let identification = Identification { tls: Some(tls()), ..Identification::default() };
        let mut connections = std::pin::pin!(connections(listener, None, identification, SHORT));
        // A peer that does not speak TLS gets an alert at once, and its connection is closed.
        let mut other = TcpStream::connect(address).await.unwrap();
        other.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let clients = async {
            let (mut silent, mut answer) = (Vec::new(), Vec::new());
            client.read_to_end(&mut silent).await.unwrap();
            other.read_to_end(&mut answer).await.unwrap();
            (silent, answer)
        };
        tokio::select! {
            _ = connections.next() => panic!("no connection came about"),
            (silent, answer) = clients => {
                assert!(silent.is_empty());
                assert_eq!(answer.first(), Some(&0x15), "a TLS alert");
            }
        }
    }
}
