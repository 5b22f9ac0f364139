//! Calls that wait for news. The newest call of a caller ends its older ones.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The kind of the caller, and its id within that kind.
pub(crate) type CallerId = (&'static str, u64);

/// The newest call of each caller.
///
/// A caller may have two open calls, one that waits and one that reports news. If the news of the second changes
/// nothing, nothing would end the first, and the caller could not call again until one of them times out.
///
/// The newest call is the one whose message has the highest number: several threads handle calls, so the order of
/// arrival may differ.
#[derive(Default)]
pub(crate) struct UnansweredCalls {
    newest: Mutex<HashMap<CallerId, (u64, Arc<Notify>)>>,
}

/// An open call, until it is answered or dropped.
pub(crate) struct Waiting<'a> {
    calls: &'a UnansweredCalls,
    caller: CallerId,
    superseded: Arc<Notify>,
}

impl UnansweredCalls {
    /// Begins the call with message `seq` and wakes the one before it. A call that arrives after its successor does not
    /// wait, since the successor is answered instead.
    pub(crate) fn begin(&self, caller: CallerId, seq: u64) -> Waiting<'_> {
        let superseded = Arc::new(Notify::new());
        let mut calls = self.newest.lock();
        let newest = calls.get(&caller);
        if newest.is_none_or(|(newest, _)| *newest <= seq)
            && let Some((_, older)) = calls.insert(caller, (seq, Arc::clone(&superseded)))
        {
            older.notify_one();
        }
        Waiting { calls: self, caller, superseded }
    }
}

impl Waiting<'_> {
    /// Waits for the caller's next call.
    pub(crate) async fn superseded(&self) {
        self.superseded.notified().await;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut newest = self.calls.newest.lock();
        if newest.get(&self.caller).is_some_and(|(_, call)| Arc::ptr_eq(call, &self.superseded)) {
            newest.remove(&self.caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_makes_way_for_the_next_of_its_caller_only() {
        let calls = UnansweredCalls::default();
        let (first, other) = (calls.begin(("worker", 1), 1), calls.begin(("trainer", 1), 1));
        let third = calls.begin(("worker", 1), 3);
        first.superseded().await;
        drop(first);
        // The second call arrives late, so the fourth still supersedes the third.
        drop(calls.begin(("worker", 1), 2));
        for waiting in [&third, &other] {
            let outcome = tokio::time::timeout(std::time::Duration::from_millis(5), waiting.superseded()).await;
            assert!(outcome.is_err(), "nothing came after it");
        }
        let fourth = calls.begin(("worker", 1), 4);
        third.superseded().await;
        drop((third, fourth, other));
        assert!(calls.newest.lock().is_empty());
    }
}
