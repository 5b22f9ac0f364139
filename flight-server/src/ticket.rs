//! Tickets: a reader gets them from the dispatcher and shows them to workers.
//!
//! A ticket states which feed may be read, by which reader and until when, and is signed. It holds the hash of a secret
//! that the reader sends along, so a stolen ticket is useless without the secret. It has no path and no SQL: a worker
//! gets a feed's spec from the dispatcher, never from a reader.
//!
//! The binary layout before base64url encoding; numbers are big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version |
//! | 8 | id of the signing key |
//! | 8 | expiry, in seconds since 1970 |
//! | 32 | BLAKE3 of the reader's secret |
//! | 4 + n | the feed's id, after its length |
//! | 4 + n | the reader's id, after its length |
//! | 64 | Ed25519 signature of [`CONTEXT`] and all of the above |

use std::collections::VecDeque;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forebay_engine::{Error, ErrorKind};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use thiserror::Error;

const VERSION: u8 = 1;
const SIGNATURE_BYTES: usize = 64;
/// Prefix of the signed bytes, so that a signature for another purpose is never valid for a ticket.
const CONTEXT: &[u8] = b"forebay ticket\n";
/// Number of keys to trust. A restarted dispatcher signs with a new key while tickets of its old key are in use.
const KEYS_KEPT: usize = 4;

/// The content of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TicketClaims {
    /// The id of the feed that may be read.
    pub(crate) feed: String,
    /// The id of the reader.
    pub(crate) reader: String,
    /// The BLAKE3 hash of the secret that the reader sends with the ticket.
    pub(crate) reader_key: [u8; 32],
    /// The ticket is invalid from this second on.
    pub(crate) expires_unix_seconds: u64,
}

/// Why a ticket is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum TicketError {
    #[error("the ticket is not one of Forebay's, or is truncated")]
    Malformed,
    #[error("the ticket has format version {0}, and this server reads version {VERSION}")]
    Version(u8),
    #[error("the ticket was signed by a key that this server does not know: it is forged, or its dispatcher is gone")]
    UnknownKey,
    #[error("the ticket's signature is wrong: it is forged or altered")]
    BadSignature,
    #[error("the ticket expired {ago_seconds} seconds ago")]
    Expired { ago_seconds: u64 },
    #[error("the ticket is of feed {ticket}, not of feed {asked}")]
    OtherFeed { ticket: String, asked: String },
    #[error("the ticket was given to another reader")]
    OtherReader,
}

impl From<TicketError> for Error {
    fn from(error: TicketError) -> Self {
        let hint = match error {
            TicketError::OtherReader => "use the ticket only on the connection that opened the feed, or open it again",
            TicketError::OtherFeed { .. } => "send each feed's own ticket",
            _ => "open the feed again for a new ticket",
        };
        Self::new(ErrorKind::Denied, error.to_string()).with_hint(hint)
    }
}

/// A signer's public key. In JSON it is text.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct PublicKey([u8; 32]);

impl PublicKey {
    fn id(&self) -> [u8; 8] {
        *blake3::hash(&self.0).as_bytes().first_chunk().expect("a hash has 32 bytes")
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        URL_SAFE_NO_PAD.encode(key.0)
    }
}

impl TryFrom<String> for PublicKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a public key is 32 bytes as base64url")
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

/// Signs tickets, for the dispatcher.
pub(crate) struct Signer {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

impl Signer {
    /// A signer with a new key, which is not stored. After the dispatcher ends, its tickets stay valid until they
    /// expire.
    pub(crate) fn generate() -> Self {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).expect("the operating system always has randomness once it has started");
        Self::from_seed(&seed)
    }

    /// The signer with this key.
    pub(crate) fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed");
        let public = PublicKey(pair.public_key().as_ref().try_into().expect("an Ed25519 key has 32 bytes"));
        Self { pair, public }
    }

    pub(crate) fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Signs a ticket and encodes it as text for URLs and headers.
    pub(crate) fn sign(&self, claims: &TicketClaims) -> String {
        let mut ticket = vec![VERSION];
        ticket.extend(self.public.id());
        ticket.extend(claims.expires_unix_seconds.to_be_bytes());
        ticket.extend(claims.reader_key);
        for text in [&claims.feed, &claims.reader] {
            let length = u32::try_from(text.len()).expect("an id fits in a request, which is of 1 MiB at most");
            ticket.extend(length.to_be_bytes());
            ticket.extend(text.as_bytes());
        }
        let signature = self.pair.sign(&signed(&ticket));
        ticket.extend(signature.as_ref());
        URL_SAFE_NO_PAD.encode(ticket)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Signer").field(&self.public).finish()
    }
}

/// Verifies tickets, for a worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verifier {
    /// The newest key comes last.
    keys: VecDeque<PublicKey>,
}

impl Verifier {
    /// Trusts no key yet.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Accepts tickets that this key signed. Beyond [`KEYS_KEPT`] keys, the oldest is removed.
    pub(crate) fn trust(&mut self, key: PublicKey) {
        self.keys.retain(|known| *known != key);
        self.keys.push_back(key);
        if self.keys.len() > KEYS_KEPT {
            self.keys.pop_front();
        }
    }

    /// The content of a ticket that is genuine and lets the reader with `secret` read `feed` now.
    ///
    /// # Errors
    /// The first that applies: not a ticket, unknown key, wrong signature, expired, other feed, other reader.
    pub(crate) fn verify(
        &self,
        text: &str,
        feed: &str,
        secret: &[u8],
        now_unix_seconds: u64,
    ) -> Result<TicketClaims, TicketError> {
        let claims = self.genuine(text)?;
        if claims.expires_unix_seconds <= now_unix_seconds {
            return Err(TicketError::Expired { ago_seconds: now_unix_seconds - claims.expires_unix_seconds });
        }
        if claims.feed != feed {
            return Err(TicketError::OtherFeed { ticket: claims.feed, asked: feed.to_owned() });
        }
        // Comparing hashes takes constant time.
        if blake3::hash(secret) != blake3::Hash::from_bytes(claims.reader_key) {
            return Err(TicketError::OtherReader);
        }
        Ok(claims)
    }

    pub(crate) fn genuine(&self, text: &str) -> Result<TicketClaims, TicketError> {
        let malformed = || TicketError::Malformed;
        let ticket = URL_SAFE_NO_PAD.decode(text).map_err(|_| malformed())?;
        let version = *ticket.first().ok_or_else(malformed)?;
        if version != VERSION {
            return Err(TicketError::Version(version));
        }
        let (said, signature) = ticket.split_last_chunk::<SIGNATURE_BYTES>().ok_or_else(malformed)?;
        let mut rest = said.get(1..).ok_or_else(malformed)?;
        let key_id = take::<8>(&mut rest).ok_or_else(malformed)?;
        let key = self.keys.iter().find(|key| key.id() == key_id).ok_or(TicketError::UnknownKey)?;
        let genuine = UnparsedPublicKey::new(&ED25519, key.0).verify(&signed(said), signature);
        genuine.map_err(|_| TicketError::BadSignature)?;
        claims(rest).ok_or_else(malformed)
    }
}

fn signed(ticket: &[u8]) -> Vec<u8> {
    [CONTEXT, ticket].concat()
}

/// Parses the bytes between the key's id and the signature.
pub(crate) fn claims(mut bytes: &[u8]) -> Option<TicketClaims> {
    let expires_unix_seconds = u64::from_be_bytes(take(&mut bytes)?);
    let reader_key = take(&mut bytes)?;
    let mut text = || {
        let length = u32::from_be_bytes(take(&mut bytes)?);
        let text = bytes.split_off(..usize::try_from(length).ok()?)?;
        String::from_utf8(text.to_vec()).ok()
    };
    let (feed, reader) = (text()?, text()?);
    bytes.is_empty().then_some(TicketClaims { feed, reader, reader_key, expires_unix_seconds })
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"only this reader knows it";
    const NOW: u64 = 1_800_000_000;

    fn example() -> TicketClaims {
        TicketClaims {
            feed: "8f3a61c0b7d2e945".to_owned(),
            reader: "train/rank 3".to_owned(),
            reader_key: *blake3::hash(SECRET).as_bytes(),
            expires_unix_seconds: NOW + 60,
        }
    }

    fn pair() -> (Signer, Verifier) {
        let signer = Signer::from_seed(&[7; 32]);
        let mut verifier = Verifier::new();
        verifier.trust(signer.public_key());
        (signer, verifier)
    }

    #[test]
    fn a_ticket_says_what_was_signed() {
        let (signer, verifier) = pair();
        for (feed, reader) in [("8f3a61c0b7d2e945", "train/rank 3"), ("", ""), ("ä", &"x".repeat(70_000))] {
            let claims = TicketClaims { feed: feed.to_owned(), reader: reader.to_owned(), ..example() };
            let ticket = signer.sign(&claims);
            assert!(ticket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)));
            assert_eq!(verifier.verify(&ticket, feed, SECRET, NOW), Ok(claims));
        }
    }

    #[test]
    fn a_ticket_with_any_bit_flipped_is_refused() {
        let (signer, verifier) = pair();
        let claims = example();
        let text = signer.sign(&claims);
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let refused = verifier.verify(&URL_SAFE_NO_PAD.encode(&flipped), &claims.feed, SECRET, NOW).unwrap_err();
            match bit / 8 {
                0 => assert!(matches!(refused, TicketError::Version(_)), "bit {bit}: {refused}"),
                1..=8 => assert_eq!(refused, TicketError::UnknownKey, "bit {bit}"),
                _ => assert_eq!(refused, TicketError::BadSignature, "bit {bit}"),
            }
        }
        // Flip bits of the text too: no other text may decode to the same ticket.
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone().into_bytes();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Ok(flipped) = String::from_utf8(flipped) {
                assert!(verifier.verify(&flipped, &claims.feed, SECRET, NOW).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_ticket_that_is_shorter_or_longer_is_refused() {
        let (signer, verifier) = pair();
        let text = signer.sign(&example());
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for length in 0..text.len() {
            assert!(verifier.verify(&text[..length], &example().feed, SECRET, NOW).is_err(), "{length}");
        }
        for length in 0..bytes.len() {
            let cut = URL_SAFE_NO_PAD.encode(&bytes[..length]);
            assert!(verifier.verify(&cut, &example().feed, SECRET, NOW).is_err(), "{length}");
        }
        for more in ["A", "AA", "AAAA", "=", "==", " ", "\n"] {
            assert!(verifier.verify(&format!("{text}{more}"), &example().feed, SECRET, NOW).is_err(), "{more:?}");
        }
    }

    #[test]
    fn each_refusal_says_why() {
        let (signer, verifier) = pair();
        let ticket = signer.sign(&example());
        let refusal = |ticket: &str, feed: &str, secret: &[u8], now| {
            let error = Error::from(verifier.verify(ticket, feed, secret, now).unwrap_err());
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.hint().is_some());
            error.message().to_owned()
        };
        let feed = &example().feed;
        assert!(verifier.verify(&ticket, feed, SECRET, NOW + 59).is_ok());
        assert_eq!(refusal(&ticket, feed, SECRET, NOW + 60), "the ticket expired 0 seconds ago");
        assert_eq!(refusal(&ticket, feed, SECRET, u64::MAX).split_at(18).0, "the ticket expired");
        assert_eq!(refusal(&ticket, "other", SECRET, NOW), format!("the ticket is of feed {feed}, not of feed other"));
        assert_eq!(refusal(&ticket, feed, b"a guess", NOW), "the ticket was given to another reader");
        assert_eq!(refusal(&ticket, feed, b"", NOW), "the ticket was given to another reader");
        // The hash in the ticket is not the secret.
        assert_eq!(
            refusal(&ticket, feed, blake3::hash(SECRET).as_bytes(), NOW),
            "the ticket was given to another reader"
        );
        assert!(refusal("no ticket", feed, SECRET, NOW).starts_with("the ticket is not one of Forebay's"));
        let forged = Signer::from_seed(&[8; 32]).sign(&example());
        assert!(refusal(&forged, feed, SECRET, NOW).contains("a key that this server does not know"));
        // Another signer's signature with the id of a trusted key.
        let (mut body, other) = (URL_SAFE_NO_PAD.decode(&ticket).unwrap(), URL_SAFE_NO_PAD.decode(&forged).unwrap());
        let at = body.len() - SIGNATURE_BYTES;
        body.splice(at.., other[at..].iter().copied());
        assert!(refusal(&URL_SAFE_NO_PAD.encode(body), feed, SECRET, NOW).contains("forged or altered"));
    }

    #[test]
    fn the_latest_keys_are_trusted() {
        let signers: Vec<_> = (0..6).map(|seed| Signer::from_seed(&[seed; 32])).collect();
        let mut verifier = Verifier::new();
        let trusted = |verifier: &Verifier| -> Vec<bool> {
            let verify = |signer: &Signer| verifier.verify(&signer.sign(&example()), &example().feed, SECRET, NOW);
            signers.iter().map(|signer| verify(signer).is_ok()).collect()
        };
        assert_eq!(trusted(&verifier), [false; 6]);
        signers[..5].iter().for_each(|signer| verifier.trust(signer.public_key()));
        assert_eq!(trusted(&verifier), [false, true, true, true, true, false]);
        // Trusting a known key again adds no second entry, and makes it the newest.
        verifier.trust(signers[1].public_key());
        verifier.trust(signers[5].public_key());
        assert_eq!(trusted(&verifier), [false, true, false, true, true, true]);
    }

    #[test]
    fn a_public_key_is_text_in_json() {
        let key = Signer::generate().public_key();
        let json = serde_json::to_string(&key).unwrap();
        assert_eq!(json.len(), 45);
        assert_eq!(serde_json::from_str::<PublicKey>(&json).unwrap(), key);
        for wrong in ["\"\"", "\"AAAA\"", "\"!\"", "7"] {
            assert!(serde_json::from_str::<PublicKey>(wrong).is_err(), "{wrong}");
        }
        assert_ne!(Signer::generate().public_key(), key);
    }

    #[test]
    fn garbage_never_panics() {
        let (signer, verifier) = pair();
        let id = signer.public_key().id();
        let mut noise = blake3::Hasher::new().update(b"seed 1").finalize_xof();
        for length in 0..200 {
            for head in [&[][..], &[VERSION], &[&[VERSION], &id[..]].concat()] {
                let mut bytes = vec![0; length];
                noise.fill(&mut bytes);
                let head_length = head.len().min(length);
                bytes[..head_length].copy_from_slice(&head[..head_length]);
                assert!(verifier.verify(&URL_SAFE_NO_PAD.encode(&bytes), "", b"", 0).is_err());
                assert!(verifier.verify(&String::from_utf8_lossy(&bytes), "", b"", 0).is_err());
                // Past the signature check, as if a trusted dispatcher were broken.
                let _ = claims(&bytes);
            }
        }
    }
}
