//! Calls that wait for news: of each caller the newest, for which older ones make way.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Who calls: what it is, and its id among these.
pub(crate) type Caller = (&'static str, u64);

/// The newest call of each caller.
///
/// A caller has room for two calls, one that waits and one that brings news. What the second brings may be no news to anybody,
/// so that nothing would end the first; and the caller would be dumb until one of them runs out of time.
#[derive(Default)]
pub(crate) struct Calls {
    newest: Mutex<HashMap<Caller, Arc<Notify>>>,
}

/// A call, until it is answered or given up.
pub(crate) struct Waiting<'a> {
    calls: &'a Calls,
    caller: Caller,
    superseded: Arc<Notify>,
}

impl Calls {
    /// Begins a call, and lets the one before it look again.
    pub(crate) fn begin(&self, caller: Caller) -> Waiting<'_> {
        let superseded = Arc::new(Notify::new());
        if let Some(older) = self.newest.lock().insert(caller, Arc::clone(&superseded)) {
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
        if newest.get(&self.caller).is_some_and(|call| Arc::ptr_eq(call, &self.superseded)) {
            newest.remove(&self.caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_makes_way_for_the_next_of_its_caller_only() {
        let calls = Calls::default();
        let (first, other) = (calls.begin(("worker", 1)), calls.begin(("trainer", 1)));
        let second = calls.begin(("worker", 1));
        first.superseded().await;
        drop(first);
        for waiting in [&second, &other] {
            let outcome = tokio::time::timeout(std::time::Duration::from_millis(5), waiting.superseded()).await;
            assert!(outcome.is_err(), "nothing came after it");
        }
        drop((second, other));
        assert!(calls.newest.lock().is_empty());
    }
}
