//! The exit codes of the command. Scripts, units and orchestrators rely on them, so they never change.

use std::fmt;

use anyhow::Result;
use forebay_engine::{Error, ErrorKind};
use tokio::signal::unix::{SignalKind, signal};

/// The table of `forebay --help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  success
    1  an internal error, or output that could not be written
    2  usage: a flag, a script, a configuration, or a name that does not exist
    3  denied: a token, a certificate or a permission is missing
    4  data: a file or a row cannot be read
    5  conflict: something else changed or holds it, such as a port, a rank or a file
    6  unavailable: a server, a worker or a store does not answer; try again
    7  exhausted: memory, disk or another limit
  130  interrupted";

/// Refuses what the user asked for: returns an error with exit code 2.
macro_rules! refuse {
    ($($text:tt)*) => { return Err(forebay_engine::Error::invalid(format!($($text)*)).into()) };
}
pub(crate) use refuse;

/// The end of a command that the user interrupted.
#[derive(Debug)]
pub(crate) struct Interrupted(pub(crate) String);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Interrupted {}

/// Installs handlers, and returns a future that completes with a signal. Call this before the job begins, so that no
/// signal is lost.
pub(crate) fn interruption() -> Result<impl Future<Output = ()> + Unpin> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(Box::pin(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    }))
}

/// Waits for `work`, or for a signal.
pub(crate) async fn interruptible<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let interrupted = interruption()?;
    tokio::select! {
        biased;
        done = work => done,
        () = interrupted => Err(Interrupted("interrupted".to_owned()).into()),
    }
}

/// Returns the exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        return 130;
    }
    match error.downcast_ref::<Error>().map(Error::kind) {
        None | Some(ErrorKind::Internal) => 1,
        Some(ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Unsupported) => 2,
        Some(ErrorKind::Denied) => 3,
        Some(ErrorKind::Data) => 4,
        Some(ErrorKind::Conflict) => 5,
        Some(ErrorKind::Unavailable) => 6,
        Some(ErrorKind::Exhausted) => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_help() {
        let of = |kind| code(&Error::new(kind, "it failed").into());
        for (kind, number, word) in [
            (ErrorKind::Internal, 1, "internal"),
            (ErrorKind::Invalid, 2, "usage"),
            (ErrorKind::NotFound, 2, "does not exist"),
            (ErrorKind::Unsupported, 2, "usage"),
            (ErrorKind::Denied, 3, "denied"),
            (ErrorKind::Data, 4, "data"),
            (ErrorKind::Conflict, 5, "conflict"),
            (ErrorKind::Unavailable, 6, "unavailable"),
            (ErrorKind::Exhausted, 7, "exhausted"),
        ] {
            assert_eq!(of(kind), number);
            let line = HELP.lines().find(|line| line.trim_start().starts_with(&format!("{number} "))).expect("a line");
            assert!(line.contains(word), "{line}");
        }
        assert_eq!(code(&anyhow::Error::from(Interrupted("interrupted".to_owned()))), 130);
        assert_eq!(code(&anyhow::anyhow!("cannot write")), 1);
    }
}
