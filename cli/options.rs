//! Flags for the options of feeds, of reading them and of sessions, generated from the table that declares the options.

use std::marker::PhantomData;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use forebay_engine::{OptionKind, OptionSet, OptionSpec, SessionOptions};
use serde_json::Value;

/// The flags of `T`. Options without a flag on the command line are unset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags<T>(pub(crate) T);

/// The session flags of a process of role `R`.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionFlags<R>(pub(crate) SessionOptions, PhantomData<R>);

/// A role that leaves out options of a session.
pub(crate) trait Role {
    const LEAVES_OUT: &[&str];
}

/// A server. It has a memory limit of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serves;

impl Role for Serves {
    const LEAVES_OUT: &[&str] = &["memory_limit"];
}

/// A worker. Windows, stages and the root folder are the dispatcher's business.
#[derive(Clone, Debug, Default)]
pub(crate) struct Works;

impl Role for Works {
    const LEAVES_OUT: &[&str] = &[
        "batch_memory_limit",
        "memory_limit",
        "no_precompute",
        "root",
        "spill_folder",
        "sql_queries",
        "window_memory_limit",
    ];
}

impl<T: OptionSet> Args for Flags<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::TABLE.iter().filter(|spec| spec.in_cli).map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: OptionSet> FromArgMatches for Flags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        given(T::TABLE.iter(), matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<R: Role> Args for SessionFlags<R> {
    fn augment_args(command: Command) -> Command {
        command.args(taken::<R>().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<R: Role> FromArgMatches for SessionFlags<R> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        given(taken::<R>(), matches).map(|options| Self(options, PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The options of a session that a process of role `R` takes as flags.
fn taken<R: Role>() -> impl Iterator<Item = &'static OptionSpec> {
    SessionOptions::TABLE.iter().filter(|spec| spec.in_cli && !R::LEAVES_OUT.contains(&spec.name))
}

/// Returns the options whose flags are among `matches`.
fn given<T: OptionSet>(table: impl Iterator<Item = &'static OptionSpec>, matches: &ArgMatches) -> Result<T, Error> {
    let value = |spec: &'static OptionSpec| {
        let value = matches.try_get_one::<Value>(spec.name).ok().flatten();
        value.map(|value| (spec.name, value.clone()))
    };
    T::of(table.filter_map(value)).map_err(|error| Error::raw(ErrorKind::ValueValidation, error))
}

/// The arguments with which a worker has the options of this session.
pub(crate) fn of_worker(options: &SessionOptions) -> Vec<String> {
    let values = serde_json::to_value(options).expect("plain data becomes JSON");
    let argument = |spec: &OptionSpec| {
        let flag = spec.name.replace('_', "-");
        match &values[spec.name] {
            Value::Null => None,
            Value::String(text) => Some(format!("--{flag}={text}")),
            value => Some(format!("--{flag}={value}")),
        }
    };
    taken::<Works>().filter_map(argument).collect()
}

fn flag(spec: &'static OptionSpec) -> Arg {
    let argument = Arg::new(spec.name)
        .long(spec.name.replace('_', "-"))
        .help(help(spec))
        .value_name(value_name(spec))
        .allow_negative_numbers(true)
        .value_parser(|text: &str| spec.parse(text).map_err(|error| error.to_string()));
    let argument = match spec.environment {
        Some(variable) => argument.env(variable),
        None => argument,
    };
    match spec.kind {
        // The parser names the values, for completion and help.
        OptionKind::Boolean => {
            let words = PossibleValuesParser::new(["true", "false"]).map(|word| Value::from(word == "true"));
            argument.num_args(0..=1).default_missing_value("true").value_parser(words)
        }
        OptionKind::Switch => {
            argument.allow_negative_numbers(false).num_args(0).default_missing_value("true").action(ArgAction::Set)
        }
        _ => argument,
    }
}

/// Returns the option's documentation with its default.
fn help(spec: &OptionSpec) -> String {
    let docs = spec.docs.trim_end_matches('.');
    match (spec.in_with, spec.default) {
        (true, Some(default)) => format!("{docs} [default: the pipeline's, else {default}]"),
        (true, None) => format!("{docs} [default: the pipeline's]"),
        (false, Some(default)) => format!("{docs} [default: {default}]"),
        (false, None) => docs.to_owned(),
    }
}

fn value_name(spec: &OptionSpec) -> String {
    match spec.kind {
        OptionKind::Integer | OptionKind::Count => spec.unit.unwrap_or(spec.name).to_ascii_uppercase(),
        OptionKind::Boolean | OptionKind::Switch => "BOOL".to_owned(),
        OptionKind::Bytes | OptionKind::Memory => "SIZE".to_owned(),
        OptionKind::Choice(words) => words.join("|"),
        OptionKind::Lengths => "LENGTH,LENGTH".to_owned(),
        OptionKind::Column => "COLUMN".to_owned(),
        OptionKind::Columns => "COLUMNS".to_owned(),
        OptionKind::Name => "NAME".to_owned(),
        OptionKind::Folder => "URL".to_owned(),
        OptionKind::Start => "OFFSET|EPOCH:OFFSET|TOKEN".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::{FeedOptions, OnError, ReadOptions};

    use super::*;

    fn read<T: OptionSet>(arguments: &[&str]) -> Result<T, Error> {
        let command = Flags::<T>::augment_args(Command::new("run").no_binary_name(true).arg(Arg::new("file")));
        Flags::from_arg_matches(&command.try_get_matches_from(arguments)?).map(|Flags(options)| options)
    }

    #[test]
    fn flags_make_options() {
        let arguments = ["--window-bytes", "1MiB", "--on-error", "skip", "--bucket-boundaries", "8,16", "--shuffle"];
        let options: FeedOptions = read(&arguments).expect("good flags");
        let expected = FeedOptions {
            shuffle: Some(true),
            window_bytes: Some(1 << 20),
            on_error: Some(OnError::Skip),
            bucket_boundaries: Some("8,16".parse().expect("boundaries")),
            ..FeedOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!(read::<FeedOptions>(&["--shuffle", "false"]).expect("a value").shuffle, Some(false));
        assert_eq!(read::<FeedOptions>(&[]).expect("no flags"), FeedOptions::default());
    }

    #[test]
    fn a_worker_has_the_options_of_its_server() {
        let given = ["--threads", "3", "--lookup-memory-limit", "1MiB"];
        let command = || SessionFlags::<Works>::augment_args(Command::new("worker").no_binary_name(true));
        let read = |arguments: &[String]| {
            let matches = command().try_get_matches_from(arguments).expect("good flags");
            SessionFlags::<Works>::from_arg_matches(&matches).expect("good flags").0
        };
        let options = read(&given.map(str::to_owned));
        assert_eq!((options.threads, options.lookup_memory_limit), (Some(3), Some(1 << 20)));
        assert_eq!(read(&of_worker(&options)), options);
    }

    #[test]
    fn a_switch_takes_no_value() {
        let options: ReadOptions = read(&["--drop-last", "script.sql"]).expect("a switch and a file");
        assert_eq!(options, ReadOptions { drop_last: Some(true), ..ReadOptions::default() });
        assert_eq!(read::<ReadOptions>(&[]).expect("no flags").drop_last, None);
    }

    #[test]
    fn a_wrong_value_names_its_flag() {
        for (arguments, phrases) in [
            (["--seed", "-1"], ["'-1' for '--seed <SEED>'", "must be a whole number"]),
            (["--shuffle", "maybe"], ["'maybe'", "true, false"]),
            (["--window-bytes", "big"], ["--window-bytes <SIZE>", "\"big\" is not a size\nhint: write a number"]),
        ] {
            let error = read::<FeedOptions>(&arguments).expect_err("a wrong value").to_string();
            assert!(phrases.iter().all(|phrase| error.contains(phrase)), "{error}");
        }
    }
}
