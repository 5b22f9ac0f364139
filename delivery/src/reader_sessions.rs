//! Whose messages about a reader a dispatcher takes: only those of the reader itself.
//!
//! Other clients may learn a session's number, for example from a dispatcher's status. A message counts only with the
//! secret key from which the number follows. So a dispatcher need not remember keys, and another client can take over
//! no session: neither after its reader was silent for long, nor at a dispatcher that the reader has not reached yet.

use std::collections::VecDeque;

use crate::messages::ReaderSync;
use crate::rules::{Rule, holds};

/// The number of sessions of left readers to remember.
const LEFT_KEPT: usize = 1024;

/// Returns the session of the reader with this secret key. The key does not follow from the session.
pub fn session_of(secret_key: &str) -> u64 {
    let hash = blake3::derive_key("forebay 2026-11 session of a reader", secret_key.as_bytes());
    hash.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Why a reader's message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedReader {
    /// The session belongs to another reader.
    Stranger,
    /// The reader has left.
    Left,
}

/// The sessions that a dispatcher hears.
#[derive(Debug, Default)]
pub struct ReaderSessions {
    /// Sessions of left readers. A reader's last message may overtake the one before it, which must not bring the
    /// reader back.
    left: VecDeque<u64>,
}

impl ReaderSessions {
    /// Returns whether to take this message of a client with `secret_key`.
    ///
    /// # Errors
    /// Returns the reason to refuse it.
    pub fn admit(&mut self, sync: &ReaderSync, secret_key: &str) -> Result<(), RefusedReader> {
        if session_of(secret_key) != sync.session && holds(Rule::SessionsFollowFromSecrets) {
            return Err(RefusedReader::Stranger);
        }
        if self.left.contains(&sync.session) && holds(Rule::LeftReadersStayAway) {
            return Err(RefusedReader::Left);
        }
        if sync.leaving {
            self.left.push_back(sync.session);
            let forgotten = self.left.len().saturating_sub(LEFT_KEPT);
            self.left.drain(..forgotten);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::WindowId;

    #[test]
    fn a_reader_is_heard_with_its_secret_until_it_leaves() {
        let sync = |seq, leaving| ReaderSync {
            session: session_of("secret"),
            seq,
            feed: Arc::from("f"),
            rank: 0,
            world_size: 1,
            member: None,
            at: WindowId { epoch: 0, index: 0 },
            until_epoch: 1,
            known: 0,
            broken: Vec::new(),
            waiting: None,
            leaving,
            is_later_claim: false,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            elapsed_ms: 0,
        };
        let mut sessions = ReaderSessions::default();
        // A stranger may come first, and cannot end a session.
        assert_eq!(sessions.admit(&sync(1 << 63, true), "another"), Err(RefusedReader::Stranger));
        assert_eq!(sessions.admit(&sync(1, false), "secret"), Ok(()));
        assert_eq!(sessions.admit(&sync(3, true), "secret"), Ok(()));
        assert_eq!(sessions.admit(&sync(2, false), "secret"), Err(RefusedReader::Left));
        for _ in 0..LEFT_KEPT {
            sessions.left.push_back(0);
        }
        let other = ReaderSync { session: session_of("other"), ..sync(1, true) };
        assert_eq!(sessions.admit(&other, "other"), Ok(()));
        assert_eq!(sessions.left.len(), LEFT_KEPT);
    }
}
