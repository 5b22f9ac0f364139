//! Files of tokens, for both sides of a connection. Errors name the file and the line, never a token.

use std::path::Path;
use std::sync::Arc;

use forebay_protocol::{Error, ErrorKind, Result};

/// Shorter tokens can be guessed.
const TOKEN_LENGTH_MIN: usize = 16;
/// Longer tokens come close to the limit on a request's headers.
const TOKEN_LENGTH_MAX: usize = 4096;

/// A line of a file of tokens.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenLine {
    /// The token.
    pub token: String,
    /// What its owner may do; `None` leaves that to the file.
    pub role: Option<TokenRole>,
    /// The pipelines that its owner may read; `None` for all.
    pub pipelines: Option<Arc<[String]>>,
}

/// What the owner of a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenRole {
    /// Reads.
    Reader,
    /// Reads, and lets the server open its scripts again.
    Operator,
    /// Computes for the server.
    Worker,
}

/// The lines of a file, at least one: a token each, and perhaps its role and the pipelines of a reader. Empty lines and
/// lines that begin with `#` count for nothing.
///
/// # Errors
/// `NotFound` for a file that does not exist. `Invalid` for one that cannot be read, has no token, has a token that is
/// too short, too long or not visible ASCII, or has something else after the token.
pub fn read_tokens(path: &Path) -> Result<Vec<TokenLine>> {
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
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed =
            parse(line).map_err(|(what, hint)| of(format!("has an invalid line {number}: {what}")).with_hint(hint));
        tokens.push(parsed?);
    }
    if tokens.is_empty() {
        return Err(of("has no token".to_owned()).with_hint("write one token per line: openssl rand -base64 32"));
    }
    Ok(tokens)
}

/// The token that a process sends if it has this file: the first that is no reader's or operator's, or else the first.
///
/// # Errors
/// Those of [`read_tokens`].
pub fn read_own_token(path: &Path) -> Result<String> {
    let mut lines = read_tokens(path)?;
    let own = lines.iter().position(|line| matches!(line.role, None | Some(TokenRole::Worker)));
    Ok(lines.swap_remove(own.unwrap_or(0)).token)
}

/// Parses a line. The errors name no word of it: any may be a part of a token.
fn parse(line: &str) -> Result<TokenLine, (String, &'static str)> {
    const FORM: &str = "write a token and, if it is not for everything, a role (reader, operator or worker) and, for a \
        reader, pipelines: TOKEN reader train,eval";
    let mut words = line.split_whitespace();
    let token = words.next().unwrap_or_default();
    check(token).map_err(|what| (format!("the token {what}"), "make one with: openssl rand -base64 32"))?;
    let role = match words.next() {
        None => None,
        Some("reader") => Some(TokenRole::Reader),
        Some("operator") => Some(TokenRole::Operator),
        Some("worker") => Some(TokenRole::Worker),
        Some(_) => return Err(("the second word is no role".to_owned(), FORM)),
    };
    let pipelines = match (role, words.next()) {
        (_, None) => None,
        (Some(TokenRole::Reader), Some(names)) if names.split(',').all(|name| !name.is_empty()) => {
            Some(names.split(',').map(str::to_owned).collect())
        }
        (Some(TokenRole::Reader), Some(_)) => return Err(("a pipeline has no name".to_owned(), FORM)),
        _ => return Err(("only a reader's token is for some pipelines".to_owned(), FORM)),
    };
    match words.next() {
        None => Ok(TokenLine { token: token.to_owned(), role, pipelines }),
        Some(_) => Err(("there is a fourth word; pipelines are separated by commas, without spaces".to_owned(), FORM)),
    }
}

fn check(token: &str) -> Result<(), String> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("is not visible ASCII".to_owned());
    }
    match token.len() {
        ..TOKEN_LENGTH_MIN => Err(format!("is shorter than {TOKEN_LENGTH_MIN} characters")),
        TOKEN_LENGTH_MIN..=TOKEN_LENGTH_MAX => Ok(()),
        _ => Err(format!("is longer than {TOKEN_LENGTH_MAX} characters")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "a-token-for-these-tests";

    #[test]
    fn a_line_has_a_token_a_role_and_pipelines() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = format!("# ours\n{TOKEN}\treader train,eval\n\n{TOKEN}2 operator\n{TOKEN}3 worker\n{TOKEN}4\n");
        std::fs::write(file.path(), text).unwrap();
        let lines = read_tokens(file.path()).unwrap();
        let roles: Vec<_> = lines.iter().map(|line| line.role).collect();
        assert_eq!(roles, [Some(TokenRole::Reader), Some(TokenRole::Operator), Some(TokenRole::Worker), None]);
        assert_eq!(lines[0].pipelines.as_deref().unwrap(), ["train", "eval"]);
        assert!(lines[1..].iter().all(|line| line.pipelines.is_none()));
        assert_eq!(read_own_token(file.path()).unwrap(), format!("{TOKEN}3"));
        std::fs::write(file.path(), format!("{TOKEN} reader train")).unwrap();
        assert_eq!(read_own_token(file.path()).unwrap(), TOKEN, "a trainer's own copy of its line");
    }

    #[test]
    fn other_lines_are_refused_without_their_text() {
        for (line, phrase) in [
            (format!("{TOKEN} admin"), "the second word is no role"),
            (format!("{TOKEN} reader train, eval"), "a pipeline has no name"),
            (format!("{TOKEN} reader train eval"), "there is a fourth word"),
            (format!("{TOKEN} worker train"), "only a reader's token is for some pipelines"),
            ("short reader".to_owned(), "the token is shorter than 16"),
        ] {
            let (what, hint) = parse(&line).map(|_| ()).unwrap_err();
            assert!(what.starts_with(phrase), "{what}");
            assert!(!what.contains(TOKEN) && !hint.is_empty());
        }
    }
}
