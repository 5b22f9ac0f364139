//! What a feed keeps, for `EXPLAIN PIPELINE`.

use std::fmt;

use forebay_protocol::CacheMode;
use serde::Serialize;

/// What a feed keeps for later epochs, ranks and jobs.
#[derive(Clone, Debug, Serialize)]
pub struct CacheReport {
    /// Which part of the samples, or of their files.
    pub mode: CacheMode,
    /// The folder of what is kept. If that are rows, its name is a hash of the kept part of the query and its data.
    pub folder: String,
    /// Source rows whose results are kept; `None` for pieces of files.
    pub rows: Option<u64>,
    /// Bytes that are kept.
    pub bytes: u64,
    /// The most bytes that are kept, if there is a limit.
    pub limit: Option<u64>,
    /// Whether no file is remote, so that there is nothing to keep of files.
    pub is_local: bool,
    /// Bytes kept for each byte read, measured on some rows; `None` if these have none.
    pub bytes_per_byte: Option<f64>,
    /// What `auto` chooses, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
}

/// A cache of more than this many times the bytes that were read is worth a note.
const INFLATION_WARNED: f64 = 4.0;

impl CacheReport {
    pub(crate) fn fmt(&self, f: &mut fmt::Formatter<'_>, table: &str, rows: u64) -> fmt::Result {
        let Self { mode, folder, rows: kept, bytes, limit, is_local, bytes_per_byte, choice } = self;
        if let Some(choice) = choice {
            let choice = choice.strip_prefix("cache: ").unwrap_or(choice);
            writeln!(f, "  cache    auto: {choice}")?;
            return match kept {
                Some(kept) => writeln!(f, "           {kept} of {rows} rows are kept, {bytes} bytes in \"{folder}\""),
                None => Ok(()),
            };
        }
        let mode = if *mode == CacheMode::Full { "full" } else { "prefix" };
        match (kept, limit) {
            (Some(kept), _) => {
                writeln!(f, "  cache    {mode}: {kept} of {rows} rows are kept, {bytes} bytes in \"{folder}\"")?;
            }
            (None, _) if *is_local => {
                writeln!(f, "  cache    source: nothing is kept, since no file of {table} is remote")?
            }
            (None, limit) => {
                let limit = limit.unwrap_or(u64::MAX);
                writeln!(f, "  cache    source: {bytes} bytes of at most {limit} are kept in \"{folder}\"")?;
            }
        }
        let Some(times) = bytes_per_byte else { return Ok(()) };
        let note = if *times > INFLATION_WARNED {
            ": put a call that shrinks samples, such as resize, before the first random one"
        } else {
            ""
        };
        writeln!(f, "           keeps {times:.1} bytes for each byte of {table}{note}")
    }
}
