//! Connections and requests that were refused for who sent them: counted by reason, and logged.
//!
//! A client that retries for ever would fill the log, so only some lines a minute are written. The counters have all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines of the log in each [`INTERVAL`].
const LINES_MAX: u32 = 10;
const INTERVAL: Duration = Duration::from_secs(60);

/// All reasons, so that each has a counter from the start.
const REASONS: [&str; 6] =
    ["no_bearer_token", "no_certificate", "no_token", "other_user", "tls_handshake", "unknown_token"];

/// The logins that failed since the process started.
#[derive(Debug, Default)]
pub(crate) struct FailedLogins(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    counts: BTreeMap<&'static str, u64>,
    since: Option<Instant>,
    lines: u32,
    unlogged: u64,
}

impl FailedLogins {
    /// Counts a login that failed for `reason`, and logs it if few failed lately.
    pub(crate) fn add(&self, reason: &'static str, peer: Option<SocketAddr>, cause: &str) {
        let Some(unlogged) = self.count(reason, Instant::now()) else { return };
        let peer = peer.map_or_else(|| "the local socket".to_owned(), |peer| peer.to_string());
        tracing::warn!(%peer, reason, cause, unlogged, "a login failed");
    }

    /// Counts a failure. Returns how many before it were not logged, or `None` if it is not to be logged either.
    fn count(&self, reason: &'static str, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        *state.counts.entry(reason).or_default() += 1;
        if state.since.is_none_or(|since| now.duration_since(since) >= INTERVAL) {
            (state.since, state.lines) = (Some(now), 0);
        }
        if state.lines == LINES_MAX {
            state.unlogged += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.unlogged))
    }

    /// The number of failures by reason.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        let state = self.0.lock();
        REASONS.into_iter().map(|reason| (reason, state.counts.get(reason).copied().unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_some_are_logged() {
        let failed = FailedLogins::default();
        let start = Instant::now();
        for _ in 0..LINES_MAX {
            assert_eq!(failed.count("no_token", start), Some(0));
        }
        for _ in 0..5 {
            assert_eq!(failed.count("unknown_token", start + INTERVAL / 2), None);
        }
        assert_eq!(failed.count("no_token", start + INTERVAL), Some(5), "the next line has those that were left out");
        let counts = failed.counts();
        assert_eq!((counts["no_token"], counts["unknown_token"], counts["other_user"]), (11, 5, 0));
    }
}
