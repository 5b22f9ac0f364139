//! The configuration file: options under the names of their flags, in TOML.
//!
//! What the file sets is added to the command line, unless a flag or a variable sets it too. So it is parsed and
//! checked exactly as flags are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use forebay_engine::{Error, nearest};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Where the options are that neither flags nor variables set.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigArguments {
    /// Read options from this TOML file, under the names of their flags; a table named for a command, such as serve or
    /// worker, is for that command only. Flags and environment variables have precedence.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The flag that names the file, which the file itself cannot set.
const CONFIG: &str = "config";

/// A command line with the options of a configuration file.
#[derive(Debug)]
pub(crate) struct Given {
    arguments: Vec<OsString>,
    file: PathBuf,
    /// The flags that the file added, and their lines in it.
    lines: BTreeMap<String, usize>,
}

impl Given {
    pub(crate) fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// The place in the file of the value that `error` is about, if the value is the file's.
    pub(crate) fn place_of(&self, error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return None };
        let flag = argument.strip_prefix("--")?.split([' ', '=']).next()?;
        let line = self.lines.get(flag)?;
        Some(format!("The value is in line {line} of the configuration file \"{}\".", self.file.display()))
    }
}

/// Adds the options of the file that `arguments` or the environment name, if any.
///
/// # Errors
/// `Invalid` for a file that cannot be read, is not TOML, or sets what is not an option.
pub(crate) fn insert(command: &Command, mut arguments: Vec<OsString>) -> Result<Given> {
    // Wrong flags are reported later, when all arguments are parsed together.
    let matches = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
    let named = matches.ok().and_then(|matches| {
        let (name, given) = matches.subcommand()?;
        let file = given.get_one::<PathBuf>(CONFIG)?.clone();
        Some((name.to_owned(), given.clone(), file))
    });
    let mut lines = BTreeMap::new();
    let Some((name, given, file)) = named else { return Ok(Given { arguments, file: PathBuf::new(), lines }) };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        Error::invalid(format!("cannot read the configuration file \"{}\": {error}", file.display()))
            .with_hint("check the path in --config or FOREBAY_CONFIG")
    })?;
    let source = Source { command, file: &file, text: &text };
    let flags: Vec<_> = source
        .options(&name)?
        .into_iter()
        .filter(|option| !is_given(&given, option.flag) && !is_of_reader(&given, &option.name))
        .filter_map(|option| {
            lines.insert(option.name.clone(), option.line);
            option.as_flag()
        })
        .collect();
    // What follows `--` is not a flag.
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    arguments.splice(end..end, flags.into_iter().map(OsString::from));
    Ok(Given { arguments, file, lines })
}

/// Whether the command line or a variable sets the flag.
fn is_given(given: &ArgMatches, flag: &Arg) -> bool {
    let source = given.value_source(flag.get_id().as_str());
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// Whether the option is the server of a reader that reads a script, or that a variable names.
fn is_of_reader(given: &ArgMatches, name: &str) -> bool {
    let has_script = given.try_get_one::<PathBuf>("file").is_ok_and(|file| file.is_some());
    name == "connect" && (has_script || std::env::var_os("FOREBAY_URI").is_some_and(|uri| !uri.is_empty()))
}

/// An option in the file.
struct FileOption<'a> {
    flag: &'a Arg,
    name: String,
    value: String,
    line: usize,
}

impl FileOption<'_> {
    /// The option as a flag; `None` for a switch that is off.
    fn as_flag(&self) -> Option<String> {
        let Self { name, value, .. } = self;
        match is_switch(self.flag) {
            true => (value == "true").then(|| format!("--{name}")),
            false => Some(format!("--{name}={value}")),
        }
    }
}

/// Whether the flag takes no value.
fn is_switch(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::SetTrue) || flag.get_num_args().is_some_and(|count| count.max_values() == 0)
}

/// A file, and the command whose flags it may set.
struct Source<'a> {
    command: &'a Command,
    file: &'a Path,
    text: &'a str,
}

impl<'a> Source<'a> {
    /// The options for the subcommand `running`. Those in its own table have precedence.
    fn options(&self, running: &str) -> Result<Vec<FileOption<'a>>> {
        let table = DeTable::parse(self.text).map_err(|error| {
            self.wrong(error.span().map_or(0, |span| span.start), &format!("is not TOML: {}", error.message()))
        })?;
        let running = self.command.find_subcommand(running);
        let mut options = BTreeMap::new();
        let mut own = BTreeMap::new();
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            match (self.command.find_subcommand(name), value.get_ref()) {
                (Some(command), DeValue::Table(table)) => {
                    for (key, value) in table {
                        let option = self.option(key, value, &[self.command, command], &format!(" of [{name}]"))?;
                        if running.is_some_and(|running| running.get_name() == name) {
                            own.insert(option.name.clone(), option);
                        }
                    }
                }
                _ => {
                    let all: Vec<_> = std::iter::once(self.command).chain(self.command.get_subcommands()).collect();
                    let option = self.option(key, value, &all, "")?;
                    options.insert(option.name.clone(), option);
                }
            }
        }
        options.extend(own);
        // The flag of this command: the same name may have another form in another one.
        let is_of = |option: &FileOption<'_>| {
            running.into_iter().chain([self.command]).find_map(|command| find(command, &option.name))
        };
        Ok(options
            .into_values()
            .filter_map(|option| is_of(&option).map(|flag| FileOption { flag, ..option }))
            .collect())
    }

    /// One option, which is a flag of one of `commands`.
    fn option(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
        commands: &[&'a Command],
        of: &str,
    ) -> Result<FileOption<'a>> {
        let (name, at) = (key.get_ref().as_ref(), key.span().start);
        let flag = commands.iter().find_map(|command| find(command, name)).filter(|_| name != CONFIG);
        let Some(flag) = flag else {
            let known = commands.iter().flat_map(|command| command.get_arguments().filter_map(Arg::get_long));
            let hint = match nearest(name, known.filter(|known| *known != CONFIG)) {
                Some(nearest) => format!("did you mean \"{nearest}\"?"),
                None => "the names are those of the flags, without \"--\": see --help".to_owned(),
            };
            return Err(self.wrong(at, &format!("sets \"{name}\"{of}, which is no option")).with_hint(hint).into());
        };
        let wrong = |what: &str| self.wrong(at, &format!("sets \"{name}\" to {what}"));
        let value = match value.get_ref() {
            DeValue::Array(items) => {
                let words: Option<Vec<_>> = items.iter().map(|item| word(item.get_ref())).collect();
                words.map(|words| words.join(","))
            }
            value => word(value),
        };
        let hint = "write a word, a number below 2^63 or a list; a larger number in quotes";
        let value = value.ok_or_else(|| wrong("a value that is no word, number or list").with_hint(hint))?;
        if is_switch(flag) && !["true", "false"].contains(&value.as_str()) {
            return Err(wrong(&format!("\"{value}\"")).with_hint("write true or false").into());
        }
        Ok(FileOption { flag, name: name.to_owned(), value, line: self.line(at) })
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn wrong(&self, at: usize, what: &str) -> Error {
        Error::invalid(format!("line {} of the configuration file \"{}\" {what}", self.line(at), self.file.display()))
    }
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|argument| argument.get_long() == Some(name))
}

/// The text of a value on a command line.
fn word(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok().map(|it| it.to_string()),
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}
