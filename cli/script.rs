//! A SQL script on the command line, and the options shared by all commands that run one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use forebay_engine::{Error, Output, Session, SessionOptions, parse_bytes};

use crate::exit::refuse;
use crate::options::Flags;
use crate::output;

/// The script, and the session that runs it.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScriptArguments {
    /// SQL file that creates tables and pipelines; relative locations in it are relative to its folder.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) session: Flags<SessionOptions>,
}

impl ScriptArguments {
    /// Reads the script and runs it in a new session.
    pub(crate) async fn open(&self) -> Result<Session> {
        let (session, text) = self.read()?;
        let outputs = session.execute(&self.file.display().to_string(), &text).await?;
        if outputs.iter().any(|output| matches!(output, Output::Query(_))) {
            output::note("note: the script's queries were checked and not run; `forebay sql` shows their rows");
        }
        Ok(session)
    }

    fn read(&self) -> Result<(Session, String)> {
        let session = session(&self.session.0, self.file.parent().unwrap_or(Path::new("")))?;
        Ok((session, read(&self.file)?))
    }
}

/// Starts a session whose relative locations begin at `base`.
pub(crate) fn session(options: &SessionOptions, base: &Path) -> Result<Session> {
    Ok(Session::builder().options(options.clone()).base(base).build()?)
}

pub(crate) fn read(file: &Path) -> Result<String> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = std::env::current_dir().unwrap_or_default();
            refuse!(
                "the script \"{}\" does not exist\nhint: check the path; relative paths begin at \"{}\"",
                file.display(),
                folder.display()
            )
        }
        Err(error) => refuse!("cannot read the script \"{}\": {error}", file.display()),
        Ok(text) => text,
    };
    // Some editors write a byte order mark at the beginning of a file.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Returns the pipeline called `named`, or the script's only pipeline.
pub(crate) fn pipeline(session: &Session, named: Option<&str>) -> Result<String> {
    match (named, &session.pipelines()[..]) {
        (Some(name), _) => Ok(session.pipeline(name)?.name().to_owned()),
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(no_pipeline()),
        (None, several) => refuse!(
            "the script creates {} pipelines\nhint: choose one with --pipeline: {}",
            several.len(),
            several.join(", ")
        ),
    }
}

pub(crate) fn no_pipeline() -> anyhow::Error {
    Error::invalid("the script creates no pipeline\nhint: add CREATE PIPELINE name AS SELECT …").into()
}

pub(crate) fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "must be a whole number from 0 to 2^64 - 1".to_owned())
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// Like [`bytes`], but refuses 0.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("must be greater than 0, such as 1GiB".to_owned()),
        bytes => Ok(bytes),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e9).contains(seconds));
    seconds.ok_or_else(|| "must be a number of seconds, 0 or more".to_owned())
}
