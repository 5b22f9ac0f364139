//! Random ids of sessions, processes and runs.

use crate::{Error, Result};

/// Bytes from the operating system's generator, for ids that must not repeat.
///
/// # Errors
/// `Internal` if the system gives none.
pub fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::internal(format!("the system gives no random numbers: {error}")))?;
    Ok(bytes)
}

/// A random 64-bit id.
///
/// # Errors
/// Those of [`random_bytes`].
pub fn random_id() -> Result<u64> {
    random_bytes().map(u64::from_le_bytes)
}
