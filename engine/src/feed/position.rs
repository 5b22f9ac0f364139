//! Where a reader stands, and the token that a trainer keeps in its checkpoint.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where to begin reading. As text, and so in JSON: `OFFSET`, `EPOCH:OFFSET` or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At an offset of an epoch, shared by all ranks.
    Offset {
        /// Epoch, from 0.
        epoch: u64,
        /// Offset in the epoch, from 0.
        offset: u64,
    },
    /// Where a token says: after the global step that it came with.
    Token(Token),
}

impl Default for Start {
    fn default() -> Self {
        Self::Offset { epoch: 0, offset: 0 }
    }
}

impl FromStr for Start {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse::<u64>().ok();
        let parsed = match text.split_once(':') {
            _ if text.starts_with(Token::PREFIX) => return text.parse().map(Self::Token),
            Some((epoch, offset)) => number(epoch).zip(number(offset)),
            None => number(text).map(|offset| (0, offset)),
        };
        let (epoch, offset) = parsed.ok_or_else(|| {
            Error::invalid(format!("\"from\" must be OFFSET, EPOCH:OFFSET or a resume token, got \"{text}\""))
        })?;
        Ok(Self::Offset { epoch, offset })
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset { epoch, offset } => write!(f, "{epoch}:{offset}"),
            Self::Token(token) => token.fmt(f),
        }
    }
}

impl Serialize for Start {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Reads a value from its text; a bare number will do as well.
fn from_text<'de, D: serde::Deserializer<'de>, T: FromStr<Err = Error>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Text {
        Text(String),
        Number(u64),
    }
    let text = match Text::deserialize(deserializer)? {
        Text::Text(text) => text,
        Text::Number(number) => number.to_string(),
    };
    text.parse().map_err(|error: Error| serde::de::Error::custom(error.message()))
}

/// A position in a feed: all there is to checkpoint. The same on every rank after the same global step.
///
/// The window and its first offset let a reader go on at once where offsets are not known in advance (a filter makes
/// them depend on the data); they lie at or before the offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Epoch, from 0.
    pub epoch: u64,
    /// The next global step's first offset.
    pub offset: u64,
    pub(crate) window: u32,
    pub(crate) window_offset: u64,
}

impl Token {
    const PREFIX: &str = "fb1.";

    fn body(&self) -> String {
        let Self { feed, epoch, offset, window, window_offset } = self;
        format!("{}{feed}.{epoch}.{offset}.{window}.{window_offset}", Self::PREFIX)
    }
}

/// Enough of a hash to notice a token that lost a digit on its way.
fn checksum(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex()[..6].to_owned()
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        write!(f, "{body}.{}", checksum(&body))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let (body, sum) = text.rsplit_once('.')?;
            let mut parts = body.strip_prefix(Self::PREFIX)?.split('.');
            let token = Self {
                feed: parts.next()?.into(),
                epoch: parts.next()?.parse().ok()?,
                offset: parts.next()?.parse().ok()?,
                window: parts.next()?.parse().ok()?,
                window_offset: parts.next()?.parse().ok()?,
            };
            (parts.next().is_none() && token.body() == body && checksum(body) == sum).then_some(token)
        };
        parse().ok_or_else(|| {
            Error::invalid(format!("\"{text}\" is not a whole resume token"))
                .with_hint("copy the \"token\" of a batch as it was printed, or give an offset")
        })
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { feed: "0f3a".into(), epoch: 1, offset: 64, window: 2, window_offset: 50 }
    }

    #[test]
    fn tokens_survive_text_and_json() {
        let text = token().to_string();
        assert_eq!(text.parse::<Token>().expect("own text"), token());
        let start = Start::Token(token());
        for start in [start, Start::Offset { epoch: 2, offset: 7 }] {
            let json = serde_json::to_string(&start).expect("plain data");
            assert_eq!(serde_json::from_str::<Start>(&json).expect("own json"), start);
        }
        assert_eq!(serde_json::from_str::<Start>("9").expect("a number"), Start::Offset { epoch: 0, offset: 9 });
    }

    #[test]
    fn a_token_with_any_character_changed_is_refused() {
        let text = token().to_string();
        for at in 0..text.len() {
            for replacement in ["0", "9", "x", "."] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, replacement);
                assert!(changed == text || changed.parse::<Token>().is_err(), "{changed}");
            }
        }
    }

    #[test]
    fn starts_are_read_from_text() {
        assert_eq!("12".parse::<Start>().expect("offset"), Start::Offset { epoch: 0, offset: 12 });
        assert_eq!("3:12".parse::<Start>().expect("epoch and offset"), Start::Offset { epoch: 3, offset: 12 });
        for wrong in ["", "-1", "1:", ":1", "1:2:3", "fb1.", "abc"] {
            assert!(wrong.parse::<Start>().is_err(), "{wrong}");
        }
    }
}
