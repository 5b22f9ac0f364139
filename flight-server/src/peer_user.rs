//! Whose process is at the other end of a TCP connection on loopback.
//!
//! Linux knows the user of every socket of this machine, and tells it over netlink. So a process need not say who its
//! user is, and any Flight client can be recognised. On other systems the answer is always no.

use std::net::SocketAddr;

use nix::unistd::geteuid;

/// The user by which a namespace names all users that it does not know.
const UNKNOWN_USER: u32 = 65534;

/// Whether the connection from `client` to `server`, both on loopback, was opened by a process of this process's user
/// or of root. Takes some 50 µs.
pub(crate) fn is_own(client: SocketAddr, server: SocketAddr) -> bool {
    sockets::user(client, server).is_some_and(is_trusted)
}

/// Whether to trust a process of this user. A process of this process's user or of root is trusted.
pub(crate) fn is_trusted(user: u32) -> bool {
    is_trusted_by(geteuid().as_raw(), user)
}

fn is_trusted_by(own: u32, user: u32) -> bool {
    user == 0 || (user == own && user != UNKNOWN_USER)
}

#[cfg(not(target_os = "linux"))]
mod sockets {
    use std::net::SocketAddr;

    pub(super) fn user(_: SocketAddr, _: SocketAddr) -> Option<u32> {
        None
    }
}

/// Linux's `sock_diag(7)`.
#[cfg(target_os = "linux")]
mod sockets {
    use std::io::{self, Read};
    use std::net::{IpAddr, SocketAddr};
    use std::time::Duration;

    use nix::libc;
    use socket2::{Domain, Protocol, Socket, Type};

    /// The kernel answers while it takes the question.
    const PATIENCE: Duration = Duration::from_millis(100);
    /// `SOCK_DIAG_BY_FAMILY`: the type of a question about one socket, and of its answer.
    const ONE_SOCKET: u16 = 20;
    /// `TCP_ESTABLISHED`.
    const ESTABLISHED: u8 = 1;
    /// The length of `nlmsghdr`, which begins each message.
    const HEADER_BYTES: usize = 16;
    /// Where the answer has the socket's state, user and inode: after the header, in `inet_diag_msg`.
    const STATE_AT: usize = HEADER_BYTES + 1;
    const USER_AT: usize = HEADER_BYTES + 64;
    const INODE_AT: usize = HEADER_BYTES + 68;

    /// The user of the socket that `client` connected to `server`, if a process holds it.
    pub(super) fn user(client: SocketAddr, server: SocketAddr) -> Option<u32> {
        let asked = ask(&question(client, server)?);
        let answer = asked.inspect_err(|error| tracing::debug!(%error, "the kernel names no users of sockets")).ok()?;
        holder(&answer)
    }

    fn ask(question: &[u8]) -> io::Result<Vec<u8>> {
        let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
        let mut socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(protocol))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        // A socket without a peer sends to the kernel.
        socket.send(question)?;
        let mut answer = vec![0; 4096];
        let length = socket.read(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    }

    /// `nlmsghdr` and `inet_diag_req_v2`, in this machine's byte order, but addresses and ports as on the wire.
    fn question(client: SocketAddr, server: SocketAddr) -> Option<Vec<u8>> {
        // An IPv6 socket may have an IPv4 connection, and Linux finds it by IPv4.
        let (family, client_ip, server_ip) = match (client.ip().to_canonical(), server.ip().to_canonical()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                (libc::AF_INET, padded(&client.octets()), padded(&server.octets()))
            }
            (IpAddr::V6(client), IpAddr::V6(server)) => (libc::AF_INET6, client.octets(), server.octets()),
            _ => return None,
        };
        let mut body = vec![u8::try_from(family).ok()?, u8::try_from(libc::IPPROTO_TCP).ok()?, 0, 0];
        let any_state = u32::MAX;
        body.extend(any_state.to_ne_bytes());
        // The socket is the client's, so its own address is the client's.
        body.extend(client.port().to_be_bytes());
        body.extend(server.port().to_be_bytes());
        body.extend(client_ip);
        body.extend(server_ip);
        let (any_interface, any_cookie) = (0_u32, u64::MAX);
        body.extend(any_interface.to_ne_bytes());
        body.extend(any_cookie.to_ne_bytes());

        let (request_flag, sequence, sender) = (1_u16, 0_u32, 0_u32);
        let mut message = u32::try_from(HEADER_BYTES + body.len()).ok()?.to_ne_bytes().to_vec();
        message.extend(ONE_SOCKET.to_ne_bytes());
        message.extend(request_flag.to_ne_bytes());
        message.extend(sequence.to_ne_bytes());
        message.extend(sender.to_ne_bytes());
        message.extend(body);
        Some(message)
    }

    fn padded(ip: &[u8; 4]) -> [u8; 16] {
        let mut padded = [0; 16];
        padded[..4].copy_from_slice(ip);
        padded
    }

    /// The user of an established socket. One that its process has closed has no inode, and may be called root's.
    pub(super) fn holder(answer: &[u8]) -> Option<u32> {
        let number = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
        let is_held = kind == ONE_SOCKET && *answer.get(STATE_AT)? == ESTABLISHED && number(INODE_AT)? != 0;
        if is_held { number(USER_AT) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_user_and_root_are_trusted() {
        assert!(is_trusted_by(1000, 1000) && is_trusted_by(1000, 0) && is_trusted_by(0, 0));
        assert!(!is_trusted_by(1000, 1001) && !is_trusted_by(0, 1000) && !is_trusted_by(UNKNOWN_USER, UNKNOWN_USER));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_an_established_socket_with_a_process_has_a_user() {
        let answer = |kind: u16, state: u8, user: u32, inode: u32| {
            let mut answer = vec![0; 88];
            answer[4..6].copy_from_slice(&kind.to_ne_bytes());
            answer[17] = state;
            answer[80..84].copy_from_slice(&user.to_ne_bytes());
            answer[84..88].copy_from_slice(&inode.to_ne_bytes());
            answer
        };
        assert_eq!(sockets::holder(&answer(20, 1, 1001, 44)), Some(1001));
        // An error, a listener, a connection in its last states, and sockets without a process.
        for (kind, state, inode) in [(2, 1, 44), (20, 10, 44), (20, 4, 0), (20, 6, 0), (20, 8, 44), (20, 1, 0)] {
            assert_eq!(sockets::holder(&answer(kind, state, 0, inode)), None, "{kind} {state} {inode}");
        }
        for length in 0..88 {
            assert_eq!(sockets::holder(&answer(20, 1, 1001, 44)[..length]), None, "{length}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_is_its_own_user_s() {
        use std::net::{TcpListener, TcpStream};
        // The last client has an IPv6 socket with an IPv4 connection, as pyarrow's have.
        for (server, host) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("127.0.0.1:0", "::ffff:127.0.0.1")] {
            // A machine may lack IPv6.
            let Ok(listener) = TcpListener::bind(server) else { continue };
            let server = listener.local_addr().unwrap();
            let Ok(stream) = TcpStream::connect((host, server.port())) else { continue };
            let client = stream.local_addr().unwrap();
            assert!(is_own(client, server), "{client} to {server}");
            drop(stream);
            assert!(!is_own(client, server), "a closed connection is not root's");
        }
    }
}
