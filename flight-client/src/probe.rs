//! What listens where no dispatcher answers: TLS, HTTP/1 or something else again.
//!
//! A client over HTTP/2 only learns that its connection broke, and whether it hears the other side's words before that
//! is chance. Here they are read.

use std::time::Duration;

use forebay_protocol::{Error, ErrorKind};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::connect::plain_address;
use crate::status::foreign;

const PATIENCE: Duration = Duration::from_secs(1);
/// What a client over HTTP/2 says first, and its settings, which are none.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// For a server over HTTP/1, which may hang up on the other greeting without a word.
const GREETING_1: &[u8] = b"GET / HTTP/1.1\r\nHost: forebay\r\n\r\n";
/// The type of the frame that a server over HTTP/2 says first, behind three bytes of its length.
const SETTINGS: u8 = 4;

/// Why nobody at `uri`, which says that it is plain text, can ever answer; `None` if somebody might.
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

/// The first words of who is greeted, if there are any.
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

    /// What is said of a server that hears a greeting and says `words`; the second time `then`.
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
        // It may be stopping, or a proxy before one that will come.
        assert_eq!(said(b"").await, None);
        assert!(mistaken("grpc+tls://127.0.0.1:1").await.is_none());
    }
}
