//! The description of an option, and one conversion from text per kind of value.
//!
//! Values are JSON until they enter an options struct, as in a request on the wire. `WITH`, the command line and Python
//! therefore only collect values by name; [`OptionSet::of`] builds the struct from them.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::length_buckets::Boundaries;
use crate::size::parse_bytes;
use forebay_delivery::Start;

/// The description of one option.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// The name, the same in SQL, JSON and Python. The command-line flag has dashes instead of underscores.
    pub name: &'static str,
    /// The object that the option applies to.
    pub scope: Scope,
    /// The kind of its values.
    pub kind: OptionKind,
    /// The unit of the number.
    pub unit: Option<&'static str>,
    /// The default value, in the syntax of [`OptionSpec::parse`].
    pub default: Option<&'static str>,
    /// A documentation sentence.
    pub docs: &'static str,
    /// Further reading: a title, and the section of a guide in `docs/`.
    pub guide: Option<(&'static str, &'static str)>,
    /// An additional check of numbers, which a query applies as soon as it is parsed.
    pub check: Option<fn(u64) -> Result<()>>,
    /// The environment variable that sets the flag's default.
    pub environment: Option<&'static str>,
    /// Whether a pipeline's `WITH` accepts it.
    pub in_with: bool,
    /// Whether the command line has a flag for it.
    pub in_cli: bool,
    /// Whether Python accepts it unchanged. Python derives its own arguments from the others.
    pub in_python: bool,
}

/// The object that an option applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A feed: part of the feed's id.
    Feed,
    /// The reading of a feed.
    Read,
    /// A job that writes a feed's samples.
    Job,
    /// A session, with all its feeds.
    Session,
}

/// The kind of an option's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// An integer from 0 to 2^64 - 1.
    Integer,
    /// A positive integer.
    Count,
    /// `true` or `false`.
    Boolean,
    /// As [`OptionKind::Boolean`], with a flag that takes no value.
    Switch,
    /// A number of bytes, or a text such as `64MiB`.
    Bytes,
    /// Like [`OptionKind::Bytes`], but the command line refuses 0.
    Memory,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Ascending positive integers, separated by commas in a text.
    Lengths,
    /// The name of a column.
    Column,
    /// Names of columns, separated by commas in a text.
    Columns,
    /// Any other name.
    Name,
    /// The path or URL of a folder.
    Folder,
    /// A position in a feed.
    Start,
}

impl OptionSpec {
    /// The defaults of a row of the table.
    pub(super) const BASE: Self = Self {
        name: "",
        scope: Scope::Feed,
        kind: OptionKind::Integer,
        unit: None,
        default: None,
        docs: "",
        guide: None,
        check: None,
        environment: None,
        in_with: false,
        in_cli: true,
        in_python: true,
    };

    /// Parses a value from text, such as an argument of the command line.
    ///
    /// # Errors
    /// `Invalid` if the text is not of the option's kind. Ranges are checked when a feed is opened.
    pub fn parse(&self, text: &str) -> Result<Value> {
        Ok(match self.kind {
            OptionKind::Integer | OptionKind::Count => match text.parse::<u64>() {
                Ok(number) => number.into(),
                Err(_) => return Err(Error::invalid("must be a whole number from 0 to 2^64 - 1")),
            },
            OptionKind::Boolean | OptionKind::Switch => match text {
                "true" => true.into(),
                "false" => false.into(),
                _ => return Err(Error::invalid("must be true or false")),
            },
            OptionKind::Bytes => parse_bytes(text)?.into(),
            OptionKind::Memory => match parse_bytes(text)? {
                0 => return Err(Error::invalid("must be greater than 0, such as 1GiB")),
                bytes => bytes.into(),
            },
            OptionKind::Choice(words) => {
                let lower = text.to_ascii_lowercase();
                let word = words.iter().find(|word| **word == lower).ok_or_else(|| self.unknown_word(words, text))?;
                (*word).into()
            }
            OptionKind::Lengths => text.parse::<Boundaries>()?.to_string().into(),
            OptionKind::Column | OptionKind::Columns | OptionKind::Name | OptionKind::Folder => text.into(),
            OptionKind::Start => text.parse::<Start>()?.to_string().into(),
        })
    }

    /// Parses a value from its text in a query. The error names the option; 0 is refused if it has no meaning.
    ///
    /// # Errors
    /// `Invalid` if the option cannot have this value.
    pub fn parse_in_query(&self, text: &str) -> Result<Value> {
        let (accepted, least) = match self.kind {
            OptionKind::Integer => ("an integer from 0 to 2^64 - 1", 0),
            OptionKind::Count => ("a positive integer", 1),
            OptionKind::Bytes | OptionKind::Memory => ("a size such as '64MiB'", 1),
            _ => return self.parse(text),
        };
        let number = self.parse(text).ok().and_then(|value| value.as_u64()).filter(|&number| number >= least);
        let number =
            number.ok_or_else(|| Error::invalid(format!("\"{}\" must be {accepted}, got {text}", self.name)))?;
        if let Some(check) = self.check {
            check(number)?;
        }
        Ok(number.into())
    }

    fn unknown_word(&self, words: &[&str], text: &str) -> Error {
        let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
        let accepted = match &quoted[..] {
            [most @ .., last] if !most.is_empty() => format!("{} or {last}", most.join(", ")),
            all => all.join(", "),
        };
        Error::invalid(format!("\"{}\" must be {accepted}, got '{text}'", self.name))
    }
}

/// A struct of options that can be built from named values.
pub trait OptionSet: DeserializeOwned {
    /// The descriptions of its fields.
    const TABLE: &'static [OptionSpec];

    /// Builds the struct from these values; all other options are unset.
    ///
    /// # Errors
    /// `Invalid` if a value does not match its option's kind.
    fn of(values: impl IntoIterator<Item = (&'static str, Value)>) -> Result<Self> {
        let values: Map<String, Value> = values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        serde_json::from_value(Value::Object(values)).map_err(|error| Error::invalid(error.to_string()))
    }

    /// The options' defaults.
    fn defaults() -> Self {
        let value = |spec: &OptionSpec| spec.default.map(|text| (spec.name, spec.parse(text)));
        let values = Self::TABLE.iter().filter_map(value).map(|(name, value)| (name, value.expect(GOOD_DEFAULTS)));
        Self::of(values).expect(GOOD_DEFAULTS)
    }
}

const GOOD_DEFAULTS: &str = "a test reads the default of each option";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{FeedOptions, JobOptions, ReadDefaults, ReadOptions, SessionOptions};

    /// Two valid texts of each kind.
    fn examples(spec: &OptionSpec) -> Vec<&'static str> {
        match spec.kind {
            OptionKind::Integer | OptionKind::Count => vec!["1", "7"],
            OptionKind::Boolean | OptionKind::Switch => vec!["true", "false"],
            OptionKind::Bytes | OptionKind::Memory => vec!["4096", "1.5GiB"],
            OptionKind::Choice(words) => words.to_vec(),
            OptionKind::Lengths => vec!["64", "64, 128"],
            OptionKind::Column | OptionKind::Name | OptionKind::Folder => vec!["name", "a/b"],
            OptionKind::Columns => vec!["dt", "dt,country"],
            OptionKind::Start => vec!["3", "1:3"],
        }
    }

    /// Builds the struct of `T` from each option alone, with its examples and its default.
    fn each_alone<T: OptionSet>() {
        for spec in T::TABLE {
            for text in examples(spec).into_iter().chain(spec.default) {
                let value = spec.parse(text).unwrap_or_else(|error| panic!("{}: {error}", spec.name));
                T::of([(spec.name, value)]).unwrap_or_else(|error| panic!("{} = {text}: {error}", spec.name));
            }
            assert!(spec.docs.ends_with('.') && !spec.docs.contains('|'), "{}: {}", spec.name, spec.docs);
        }
        T::defaults();
    }

    #[test]
    fn each_options_kind_fits_its_type() {
        each_alone::<FeedOptions>();
        each_alone::<ReadOptions>();
        each_alone::<ReadDefaults>();
        each_alone::<JobOptions>();
        each_alone::<SessionOptions>();
    }

    #[test]
    fn words_are_read_in_any_case() {
        let spec = FeedOptions::TABLE.iter().find(|spec| spec.name == "on_error").expect("an option");
        assert_eq!(spec.parse("Skip").expect("a word"), "skip");
    }

    #[test]
    fn a_wrong_value_is_named() {
        let spec = |name: &str| {
            let all = FeedOptions::TABLE.iter().chain(ReadOptions::TABLE).chain(SessionOptions::TABLE);
            *all.clone().find(|spec| spec.name == name).expect("an option")
        };
        for (name, text, in_query, elsewhere) in [
            ("seed", "-1", "\"seed\" must be an integer from 0 to 2^64 - 1, got -1", "must be a whole number from 0"),
            ("batch_size", "x", "\"batch_size\" must be a positive integer, got x", "must be a whole number from 0"),
            ("window_rows", "0", "\"window_rows\" must be a positive integer, got 0", ""),
            ("window_bytes", "0", "\"window_bytes\" must be a size such as '64MiB', got 0", ""),
            (
                "window_bytes",
                "big",
                "\"window_bytes\" must be a size such as '64MiB', got big",
                "\"big\" is not a size",
            ),
            ("global_batch_size", "1048577", "\"global_batch_size\" must be between 1 and 1048576, got 1048577", ""),
            ("on_error", "X", "\"on_error\" must be 'raise', 'skip' or 'quarantine', got 'X'", "\"on_error\" must be"),
            ("delivery", "X", "\"delivery\" must be 'ordered' or 'dynamic', got 'X'", "\"delivery\" must be"),
            ("bucket_boundaries", "8,8", "\"bucket_boundaries\" must be ascending, got 8 before 8", "\"bucket_bound"),
            ("lookup_memory_limit", "0", "\"lookup_memory_limit\" must be a size", "must be greater than 0"),
        ] {
            let error = spec(name).parse_in_query(text).expect_err("a wrong value");
            assert!(error.message().starts_with(in_query), "{error}");
            match spec(name).parse(text) {
                Ok(value) => assert_eq!((elsewhere, value.is_u64()), ("", true), "{name} = {text}"),
                Err(error) => assert!(!elsewhere.is_empty() && error.message().starts_with(elsewhere), "{error}"),
            }
        }
    }
}
