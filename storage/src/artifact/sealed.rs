//! Records whose every byte is vouched for: `{"digest":"…","body":…}`.
//!
//! The digest is a hash of the bytes of the body, which begins with the version of its form.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Raise this when earlier builds would misread a record.
const VERSION: u32 = 1;
const BEFORE_DIGEST: &[u8] = b"{\"digest\":\"";
const BEFORE_BODY: &[u8] = b"\",\"body\":";
const AFTER_BODY: &[u8] = b"}\n";
/// Hexadecimal digits of the digest.
const DIGITS: usize = 64;

#[derive(Serialize, Deserialize)]
struct Body<T> {
    version: u32,
    record: T,
}

/// A body of any version.
#[derive(Deserialize)]
struct OfVersion {
    version: u32,
}

/// The bytes of a record.
pub(super) fn seal(record: &impl Serialize) -> Bytes {
    seal_version(VERSION, record)
}

fn seal_version(version: u32, record: &impl Serialize) -> Bytes {
    let body = serde_json::to_vec(&Body { version, record }).expect("plain data becomes JSON");
    let digest = blake3::hash(&body).to_hex();
    [BEFORE_DIGEST, digest.as_bytes(), BEFORE_BODY, &body, AFTER_BODY].concat().into()
}

/// The record with these bytes. `place` is for messages.
///
/// # Errors
/// `Data` if a byte is wrong, `Invalid` for a record of a later version.
pub(super) fn unseal<T: DeserializeOwned>(place: &str, bytes: &[u8]) -> Result<T> {
    let damaged = |why: &str| {
        Error::data(format!("\"{place}\" is damaged: {why}"))
            .with_hint("restore it, or remove its folder and run its job again")
    };
    let body = body(bytes).ok_or_else(|| damaged("its content is not what its digest says"))?;
    let parsed = |error: serde_json::Error| damaged(&error.to_string()).with_source(error);
    let OfVersion { version } = serde_json::from_slice(body).map_err(parsed)?;
    if version > VERSION {
        return Err(Error::invalid(format!(
            "\"{place}\" is of version {version}, and this build of Forebay reads versions up to {VERSION}"
        ))
        .with_hint("use a newer build"));
    }
    let Body { record, .. } = serde_json::from_slice(body).map_err(parsed)?;
    Ok(record)
}

/// The body, if its digest is right.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let (digest, rest) = bytes.strip_prefix(BEFORE_DIGEST)?.split_at_checked(DIGITS)?;
    let body = rest.strip_prefix(BEFORE_BODY)?.strip_suffix(AFTER_BODY)?;
    (blake3::hash(body).to_hex().as_bytes() == digest).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn every_flipped_bit_is_found() {
        let sealed = seal(&vec!["a", "b"]);
        assert!(
            sealed.starts_with(b"{\"digest\":\"")
                && sealed.ends_with(b"\",\"body\":{\"version\":1,\"record\":[\"a\",\"b\"]}}\n")
        );
        assert_eq!(unseal::<Vec<String>>("x", &sealed).unwrap(), ["a", "b"]);
        for bit in 0..sealed.len() * 8 {
            let mut flipped = sealed.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = unseal::<Vec<String>>("x", &flipped).unwrap_err();
            assert_eq!(error.to_string(), "\"x\" is damaged: its content is not what its digest says", "bit {bit}");
            assert_eq!(error.kind(), ErrorKind::Data);
        }
        for length in 0..sealed.len() {
            assert!(unseal::<Vec<String>>("x", &sealed[..length]).is_err());
        }
    }

    #[test]
    fn a_later_version_is_refused_with_both() {
        let error = unseal::<u32>("x", &seal_version(2, &"of another form")).unwrap_err();
        assert_eq!(error.to_string(), "\"x\" is of version 2, and this build of Forebay reads versions up to 1");
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
}
