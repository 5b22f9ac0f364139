//! What listens where no dispatcher answers: TLS, HTTP/1 or something else again.
//!
//! A client over HTTP/2 only learns that its connection broke, and whether it hears the other side's words before that is
//! chance. Here they are read.

use std::time::Duration;

use forebay_engine::{Error, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::plain_address;
use crate::status::foreign;

const PATIENCE: Duration = Duration::from_secs(1);
/// What a client over HTTP/2 says first, and its settings, which are none.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of the frame that a server over HTTP/2 says first, behind three bytes of its length.
const SETTINGS: u8 = 4;

/// Why nobody at `uri`, which says that it is plain text, can ever answer; `None` if somebody might.
pub(crate) async fn mistaken(uri: &str) -> Option<Error> {
    let said = timeout(PATIENCE, hear(plain_address(uri)?)).await.ok()?.ok()?;
    let (what, hint) = match said {
        [_, _, _, SETTINGS] => return None,
        [0x15 | 0x16, 3, ..] => ("it speaks TLS", "write grpc+tls://HOST:PORT"),
        [b'H', b'T', b'T', b'P'] => ("it speaks HTTP/1", "check host and port: `forebay serve` says where it listens"),
        _ => ("it does not speak HTTP/2", "check host and port: `forebay serve` says where it listens"),
    };
    Some(foreign(ErrorKind::Denied, uri, what).with_hint(hint))
}

async fn hear(address: &str) -> std::io::Result<[u8; 4]> {
    let mut tcp = TcpStream::connect(address).await?;
    tcp.write_all(GREETING).await?;
    let mut said = [0; 4];
    tcp.read_exact(&mut said).await?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// What is said of a server that hears a greeting and says `words`.
    async fn said(words: &[u8]) -> Option<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let uri = format!("grpc://{}", listener.local_addr().unwrap());
        let serving = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut heard = [0; GREETING.len()];
            tcp.read_exact(&mut heard).await.unwrap();
            tcp.write_all(words).await.unwrap();
        };
        let (error, ()) = tokio::join!(mistaken(&uri), serving);
        error.map(|error| error.message().replace(&uri, "URI"))
    }

    #[tokio::test]
    async fn other_protocols_are_told_by_their_first_words() {
        let is = |what: &str| Some(format!("URI does not answer as a Forebay server does: {what}"));
        assert_eq!(said(b"\x15\x03\x03\0\x02\x02\x16").await, is("it speaks TLS"));
        assert_eq!(said(b"HTTP/1.1 400 Bad Request\r\n").await, is("it speaks HTTP/1"));
        assert_eq!(said(b"220 mail.example.org\r\n").await, is("it does not speak HTTP/2"));
        assert_eq!(said(b"\0\0\x06\x04\0\0\0\0\0").await, None);
        // It may be stopping, or a proxy before one that will come.
        assert_eq!(said(b"").await, None);
        assert!(mistaken("grpc+tls://127.0.0.1:1").await.is_none());
    }
}
