//! Bounds on the options that a client names in a request.
//!
//! A pipeline's own options, and those of `forebay run`, are the operator's business. A client's could take any memory
//! of a server that others use too.

use forebay_engine::{CacheMode, Error, ErrorKind, OnError, Result};
use forebay_flight_client::StreamRequest;

use crate::caller::Caller;

/// The most samples of a batch.
const BATCH_SAMPLES_MAX: u64 = 1 << 24;
/// The most source bytes of a window.
const WINDOW_BYTES_MAX: u64 = 4 << 30;
/// The most source rows of a window.
const WINDOW_ROWS_MAX: u64 = 1 << 26;

/// Checks the options of a request.
///
/// # Errors
/// `Invalid` for an option above its bound, `Denied` for one that a reader may not give.
pub(crate) fn check(request: &StreamRequest, caller: Caller) -> Result<()> {
    for (name, value, most) in [
        ("batch_size", request.batch_size, BATCH_SAMPLES_MAX),
        ("global_batch_size", request.global_batch_size, BATCH_SAMPLES_MAX),
        ("window_bytes", request.window_bytes, WINDOW_BYTES_MAX),
        ("window_rows", request.window_rows, WINDOW_ROWS_MAX),
    ] {
        if let Some(value) = value.filter(|value| *value > most) {
            let message = format!("a client of this server may set \"{name}\" to at most {most}, got {value}");
            return Err(Error::invalid(message).with_hint("a pipeline's own WITH may have more"));
        }
    }
    // Quarantine writes files to the server's root, in a folder for each feed.
    if request.on_error == Some(OnError::Quarantine) && matches!(caller, Caller::Reader(_)) {
        let message = "\"on_error\" \"quarantine\" writes files on the server, which a trainer may not do";
        return Err(Error::new(ErrorKind::Denied, message)
            .with_hint("use \"skip\", or ask the server's operator to write it into the pipeline's WITH"));
    }
    // The cache writes files there too.
    if request.cache.is_some_and(|cache| cache != CacheMode::None) && matches!(caller, Caller::Reader(_)) {
        let message = "\"cache\" writes files on the server, which a trainer may not do";
        return Err(Error::new(ErrorKind::Denied, message)
            .with_hint("ask the server's operator to write it into the pipeline's WITH"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Proof;

    const READER: Caller = Caller::Reader(Proof::Token);

    #[test]
    fn options_of_clients_are_bounded() {
        let check = |request: StreamRequest, caller| check(&request, caller).map_err(|error| error.kind());
        let request = StreamRequest::default;
        assert_eq!(check(request(), READER), Ok(()));
        for request in [
            StreamRequest { batch_size: Some(4_000_000_000), ..request() },
            StreamRequest { global_batch_size: Some(4_000_000_000), ..request() },
            StreamRequest { window_rows: Some(1 << 60), ..request() },
            StreamRequest { window_bytes: Some(1 << 60), ..request() },
        ] {
            assert_eq!(check(request, Caller::Worker), Err(ErrorKind::Invalid));
        }
        let quarantine = || StreamRequest { on_error: Some(OnError::Quarantine), ..request() };
        assert_eq!(check(quarantine(), READER), Err(ErrorKind::Denied));
        assert_eq!(check(quarantine(), Caller::Worker), Ok(()));
        let cache = |cache| StreamRequest { cache: Some(cache), ..request() };
        assert_eq!(check(cache(CacheMode::Prefix), READER), Err(ErrorKind::Denied));
        assert_eq!(check(cache(CacheMode::None), READER), Ok(()));
        assert_eq!(check(cache(CacheMode::Full), Caller::Worker), Ok(()));
    }
}
