//! Bearer tokens: who may call this server at all.
//!
//! Checked before a method is looked up, so that no method can forget to.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use blake3::Hash;
use forebay_engine::{Error, ErrorKind, Result};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::status::status;

/// Shorter ones can be guessed.
const TOKEN_LENGTH_MIN: usize = 16;
/// Longer ones come near the limit on a request's headers.
const TOKEN_LENGTH_MAX: usize = 4096;

/// The tokens that a server accepts; several, so that one can be replaced while both are in use.
///
/// Only their hashes are kept: a hash compares in constant time whatever the lengths are, and cannot leak a token.
#[derive(Clone)]
pub struct Tokens(Arc<[Hash]>);

impl Tokens {
    /// Reads one token per line; empty lines and lines that begin with `#` are left out.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be read, has no token, or has one that is too short or cannot be sent. It names
    /// the file and the line, never the token.
    pub fn read(path: &Path) -> Result<Self> {
        let hashes = parse(path)?.iter().map(|token| blake3::hash(token.as_bytes())).collect();
        Ok(Self(hashes))
    }

    /// The first token of a file: what a process of a cluster sends to the others.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn first(path: &Path) -> Result<String> {
        Ok(parse(path)?.swap_remove(0))
    }

    /// Whether `token` is one of them, in a time that tells nothing about which.
    fn accept(&self, token: &[u8]) -> bool {
        let given = blake3::hash(token);
        // `Hash` compares in constant time; `|` looks at all of them.
        self.0.iter().fold(false, |found, known| found | (*known == given))
    }
}

/// The tokens in a file, at least one.
fn parse(path: &Path) -> Result<Vec<String>> {
    let of = |what: String| Error::new(ErrorKind::Invalid, format!("the token file \"{}\" {what}", path.display()));
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let missing = format!("the token file \"{}\" does not exist", path.display());
            return Err(Error::new(ErrorKind::NotFound, missing).with_hint("check the path"));
        }
        read => read.map_err(|error| of(format!("cannot be read: {error}")))?,
    };
    // Some editors begin a file with a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut tokens = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let token = line.trim();
        if token.is_empty() || token.starts_with('#') {
            continue;
        }
        check(token).map_err(|what| {
            of(format!("has in line {number} a token that {what}")).with_hint("make one with: openssl rand -base64 32")
        })?;
        tokens.push(token.to_owned());
    }
    if tokens.is_empty() {
        return Err(of("has no token".to_owned()).with_hint("write one token per line: openssl rand -base64 32"));
    }
    Ok(tokens)
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.0.len())
    }
}

fn check(token: &str) -> Result<(), String> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("is not one word of visible ASCII".to_owned());
    }
    match token.len() {
        ..TOKEN_LENGTH_MIN => Err(format!("is shorter than {TOKEN_LENGTH_MIN} characters")),
        TOKEN_LENGTH_MIN..=TOKEN_LENGTH_MAX => Ok(()),
        _ => Err(format!("is longer than {TOKEN_LENGTH_MAX} characters")),
    }
}

/// Lets through only requests with a token that the server knows; all of them, where it has no tokens.
#[derive(Clone)]
pub(crate) struct Gate(Option<Tokens>);

impl Gate {
    pub(crate) fn new(tokens: Option<Tokens>) -> Self {
        Self(tokens)
    }
}

impl Interceptor for Gate {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        // Taken out, so that nothing behind this can log it.
        let header = request.metadata_mut().remove("authorization");
        let Some(tokens) = &self.0 else { return Ok(request) };
        let Some(header) = header else {
            return Err(denied("no token was sent", "set FOREBAY_TOKEN, or send \"authorization: Bearer TOKEN\""));
        };
        let token = header.as_bytes().split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
        let Some((_, token)) = token else {
            return Err(denied("the authorization is not a bearer token", "send \"authorization: Bearer TOKEN\""));
        };
        if !tokens.accept(token.trim_ascii()) {
            return Err(denied("the token is not one that this server knows", "ask who runs it for a current one"));
        }
        Ok(request)
    }
}

fn denied(message: &str, hint: &str) -> Status {
    status(&Error::new(ErrorKind::Denied, message).with_hint(hint))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const OLD: &str = "an-old-token-of-ours";
    const NEW: &str = "a-new-token-of-ours/+=";

    fn read(text: &str) -> Result<Tokens> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Tokens::read(file.path()).inspect_err(|error| {
            assert!(error.message().contains(&file.path().display().to_string()), "{error} names the file");
        })
    }

    #[test]
    fn a_file_has_one_token_per_line() {
        let tokens = read(&format!("\u{feff}# in turn\n\n  {OLD} \r\n{NEW}\n#{OLD}2\n")).unwrap();
        assert!(tokens.accept(OLD.as_bytes()) && tokens.accept(NEW.as_bytes()));
        for other in ["", "# in turn", "an-old-token-of-our", "an-old-token-of-ours2", "an-old-token-of-ourt"] {
            assert!(!tokens.accept(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(2)");
    }

    #[test]
    fn unusable_files_are_refused() {
        for (text, phrase) in [
            ("", "has no token"),
            ("# none\n\n", "has no token"),
            ("# one\nfifteen-letters", "line 2 a token that is shorter than 16 characters"),
            ("two words, and long enough", "line 1 a token that is not one word"),
            (&"x".repeat(5000), "line 1 a token that is longer than 4096"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(phrase), "{error}");
            assert!(!text.lines().any(|line| line.len() > 6 && error.to_string().contains(line)), "{error} tells");
        }
        let error = Tokens::read("no/such/file".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "the token file \"no/such/file\" does not exist\nhint: check the path");
    }

    #[test]
    fn the_gate_says_what_is_wrong() {
        let mut gate = Gate::new(Some(read(&format!("{OLD}\n{NEW}")).unwrap()));
        let mut ask = |header: Option<&str>| {
            let mut request = Request::new(());
            if let Some(header) = header {
                request.metadata_mut().insert("authorization", header.parse().unwrap());
            }
            gate.call(request)
        };
        for header in [format!("Bearer {OLD}"), format!("bearer {NEW}"), format!("BEARER  {NEW}")] {
            let request = ask(Some(&header)).unwrap();
            assert!(request.metadata().is_empty(), "the token goes no further");
        }
        let basic = format!("Basic {OLD}");
        for (header, message) in [
            (None, "no token was sent"),
            (Some("Bearer wrong"), "the token is not one that this server knows"),
            (Some("Bearer "), "the token is not one that this server knows"),
            (Some("Bearer"), "the authorization is not a bearer token"),
            (Some(OLD), "the authorization is not a bearer token"),
            (Some(&basic), "the authorization is not a bearer token"),
            (Some(""), "the authorization is not a bearer token"),
        ] {
            let refused = ask(header).unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated);
            assert!(refused.message().starts_with(&format!("{message}\nhint: ")), "{}", refused.message());
        }
        assert!(Gate::new(None).call(Request::new(())).is_ok());
    }
}
