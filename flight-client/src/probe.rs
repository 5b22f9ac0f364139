//! Detects what listens where no dispatcher answers: TLS, HTTP/1 or another protocol.
//!
//! An HTTP/2 client only learns that its connection broke; whether it sees the peer's first bytes before that is
//! chance. This module reads them.

use std::time::Duration;

use forebay_protocol::{Error, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::plain_address;
use crate::status::foreign;

const PATIENCE: Duration = Duration::from_secs(1);
/// The HTTP/2 connection preface, and an empty SETTINGS frame.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// A request for an HTTP/1 server, which may close the connection on the HTTP/2 preface without an answer.
const GREETING_1: &[u8] = b"GET / HTTP/1.1\r\nHost: forebay\r\n\r\n";
/// The type of an HTTP/2 server's first frame. Three bytes of length come before it.
const SETTINGS: u8 = 4;

/// Why no Forebay server can ever answer at the plain-text address `uri`; `None` if one might.
pub(crate) async fn mistaken(uri: &str) -> Option<Error> {
    let address = plain_address(uri)?;
    let said = match hear(address, GREETING).await {
        Some(said) => said,
        None => hear(address, GREETING_1).await?,
    };
    let (what, hint) = match said {
        [_, _, _, SETTINGS] => return None,
        [0x15 | 0x16, 3, ..] => ("it speaks TLS", "write grpc+tls://HOST:PORT"),
        [b'H', b'T', b'T', b'P'] => ("it speaks HTTP/1", "check host and port: `forebay serve` says where it listens"),
        _ => ("it does not speak HTTP/2", "check host and port: `forebay serve` says where it listens"),
    };
    Some(foreign(ErrorKind::Denied, uri, what).with_hint(hint))
}

/// The first four bytes of the server's answer to `greeting`, if it answers.
async fn hear(address: &str, greeting: &[u8]) -> Option<[u8; 4]> {
    let mut said = [0; 4];
    let hearing = async {
        let mut tcp = TcpStream::connect(address).await?;
        tcp.write_all(greeting).await?;
        tcp.read_exact(&mut said).await
    };
    timeout(PATIENCE, hearing).await.ok()?.ok()?;
    Some(said)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The error for a server that answers the first greeting with `words` and the second one with `then`.
    async fn said_in_turn(words: &[u8], then: &[u8]) -> Option<String> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let uri = format!("grpc://{}", listener.local_addr().unwrap());
        let serving = async {
            for (greeting, words) in [(GREETING, words), (GREETING_1, then)] {
                let (mut tcp, _) = listener.accept().await.unwrap();
                let mut heard = vec![0; greeting.len()];
                tcp.read_exact(&mut heard).await.unwrap();
                assert_eq!(heard, greeting);
                tcp.write_all(words).await.unwrap();
                if !words.is_empty() {
                    break;
                }
            }
        };
        let (error, ()) = tokio::join!(mistaken(&uri), serving);
        error.map(|error| error.message().replace(&uri, "URI"))
    }

    async fn said(words: &[u8]) -> Option<String> {
        said_in_turn(words, b"").await
    }

    #[tokio::test]
    async fn other_protocols_are_told_by_their_first_words() {
        let is = |what: &str| Some(format!("URI does not answer as a Forebay server does: {what}"));
        assert_eq!(said(b"\x15\x03\x03\0\x02\x02\x16").await, is("it speaks TLS"));
        assert_eq!(said(b"HTTP/1.1 400 Bad Request\r\n").await, is("it speaks HTTP/1"));
        assert_eq!(said(b"220 mail.example.org\r\n").await, is("it does not speak HTTP/2"));
        assert_eq!(said(b"\0\0\x06\x04\0\0\0\0\0").await, None);
        assert_eq!(said_in_turn(b"", b"HTTP/1.1 404 Not Found\r\n").await, is("it speaks HTTP/1"));
        // The server may be stopping, or a proxy may wait for its server.
        assert_eq!(said(b"").await, None);
        assert!(mistaken("grpc+tls://127.0.0.1:1").await.is_none());
    }
}
