//! Files of tokens, for both sides of a connection. Errors name the file and the line, never a token.

use std::path::Path;

use forebay_protocol::{Error, ErrorKind, Result};

/// Shorter tokens can be guessed.
const TOKEN_LENGTH_MIN: usize = 16;
/// Longer tokens come close to the limit on a request's headers.
const TOKEN_LENGTH_MAX: usize = 4096;

/// The tokens in a file, at least one: one per line. Empty lines and lines that begin with `#` count for nothing.
///
/// # Errors
/// `NotFound` for a file that does not exist. `Invalid` for one that cannot be read, has no token, or has a token that
/// is too short, too long or not visible ASCII.
pub fn read_tokens(path: &Path) -> Result<Vec<String>> {
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
            of(format!("has an invalid token in line {number}: it {what}"))
                .with_hint("make one with: openssl rand -base64 32")
        })?;
        tokens.push(token.to_owned());
    }
    if tokens.is_empty() {
        return Err(of("has no token".to_owned()).with_hint("write one token per line: openssl rand -base64 32"));
    }
    Ok(tokens)
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
