//! What a feed keeps, for `EXPLAIN PIPELINE`.

use std::fmt;

use forebay_protocol::CacheMode;
use serde::Serialize;

/// What a feed keeps for later epochs, ranks and jobs.
#[derive(Clone, Debug, Serialize)]
pub struct CacheReport {
    /// Which part of the samples.
    pub mode: CacheMode,
    /// The folder of what is kept. Its name is a hash of the kept part of the query and its data.
    pub folder: String,
    /// Source rows whose results are kept.
    pub rows: u64,
    /// Bytes that are kept.
    pub bytes: u64,
    /// Bytes kept for each byte read, measured on some rows; `None` if these have none.
    pub bytes_per_byte: Option<f64>,
}

/// A cache of more than this many times the bytes that were read is worth a note.
const INFLATION_WARNED: f64 = 4.0;

impl CacheReport {
    pub(crate) fn fmt(&self, f: &mut fmt::Formatter<'_>, table: &str, rows: u64) -> fmt::Result {
        let Self { mode, folder, rows: kept, bytes, bytes_per_byte } = self;
        let mode = if *mode == CacheMode::Full { "full" } else { "prefix" };
        writeln!(f, "  cache    {mode}: {kept} of {rows} rows are kept, {bytes} bytes in \"{folder}\"")?;
        let Some(times) = bytes_per_byte else { return Ok(()) };
        let note = if *times > INFLATION_WARNED {
            ": put a call that shrinks samples, such as resize, before the first random one"
        } else {
            ""
        };
        writeln!(f, "           keeps {times:.1} bytes for each byte of {table}{note}")
    }
}
