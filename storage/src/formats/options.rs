//! The options of a format: declared as data, written as text, stored as typed values.

use crate::{Error, Result};

/// An option that a format takes, such as the delimiter of CSV.
#[derive(Debug)]
pub struct FormatOption {
    /// Its name.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: FormatOptionKind,
    /// The default value, in the user's notation.
    pub default: &'static str,
    /// Its meaning, as a phrase.
    pub docs: &'static str,
    /// Whether it affects only which columns and types a table has. The schema says these, so a snapshot's id leaves
    /// the option out.
    pub only_columns: bool,
}

/// A default that follows from the end of a location, unless the table sets the option.
#[derive(Debug)]
pub struct ImpliedOption {
    /// The end of the location, such as `.tsv`.
    pub suffix: &'static str,
    /// The option's name.
    pub option: &'static str,
    /// Its value, in the user's notation.
    pub value: &'static str,
}

/// The kind of an option's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatOptionKind {
    /// `true` or `false`.
    Flag,
    /// One ASCII character.
    Character,
    /// Any text. The format itself checks it.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormatOptionValue {
    /// The value of a [`FormatOptionKind::Flag`].
    Flag(bool),
    /// The value of a [`FormatOptionKind::Character`].
    Character(u8),
    /// The value of a [`FormatOptionKind::Text`] or [`FormatOptionKind::OneOf`].
    Text(String),
}

/// A value for each option of a format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OptionValues(Vec<(&'static str, FormatOptionValue)>);

impl FormatOption {
    /// Parses the value in `text`.
    pub(crate) fn parse(&self, text: &str) -> Result<FormatOptionValue> {
        let refused =
            |accepted: &str| Err(Error::invalid(format!("\"{}\" must be {accepted}, got '{text}'", self.name)));
        match (self.kind, text.as_bytes()) {
            (FormatOptionKind::Flag, _) => match text.to_ascii_lowercase().parse() {
                Ok(flag) => Ok(FormatOptionValue::Flag(flag)),
                Err(_) => refused("true or false"),
            },
            (FormatOptionKind::Character, [byte]) if byte.is_ascii() => Ok(FormatOptionValue::Character(*byte)),
            (FormatOptionKind::Character, _) => refused("one ASCII character"),
            (FormatOptionKind::Text, _) => Ok(FormatOptionValue::Text(text.to_owned())),
            (FormatOptionKind::OneOf(texts), _) => match texts.iter().find(|known| known.eq_ignore_ascii_case(text)) {
                Some(known) => Ok(FormatOptionValue::Text((*known).to_owned())),
                None => refused(&texts.join(" or ")),
            },
        }
    }
}

impl FormatOptionValue {
    /// The value in the user's notation.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Flag(flag) => flag.to_string(),
            Self::Character(byte) => char::from(*byte).to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl OptionValues {
    /// Parses the value of each option; `text` returns an option's text.
    pub(crate) fn of(options: &'static [FormatOption], text: impl Fn(&FormatOption) -> Result<String>) -> Result<Self> {
        let value = |option: &'static FormatOption| Ok((option.name, option.parse(&text(option)?)?));
        Ok(Self(options.iter().map(value).collect::<Result<_>>()?))
    }

    /// Names and values, in declaration order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, &FormatOptionValue)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// The value of a flag.
    ///
    /// # Panics
    /// If the format declares no flag of that name.
    pub fn flag(&self, name: &str) -> bool {
        match self.get(name) {
            FormatOptionValue::Flag(flag) => *flag,
            other => panic!("option \"{name}\" is declared as {other:?}, not as a flag"),
        }
    }

    /// The value of a character option.
    ///
    /// # Panics
    /// If the format declares no character option of that name.
    pub fn character(&self, name: &str) -> u8 {
        match self.get(name) {
            FormatOptionValue::Character(byte) => *byte,
            other => panic!("option \"{name}\" is declared as {other:?}, not as a character"),
        }
    }

    /// The value of a text option.
    ///
    /// # Panics
    /// If the format declares no text option of that name.
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            FormatOptionValue::Text(text) => text,
            other => panic!("option \"{name}\" is declared as {other:?}, not as a text"),
        }
    }

    fn get(&self, name: &str) -> &FormatOptionValue {
        let found = self.0.iter().find(|(other, _)| *other == name);
        &found.unwrap_or_else(|| panic!("the format declares no option \"{name}\"")).1
    }
}
