//! A worker that computes a window alone computes nothing of other feeds either.
//!
//! A [sequencer](crate::Sequencer) leases a window alone because the window may end its worker. The sequencers of other
//! feeds do not know that. If they went on leasing windows to this worker, its loss would again be a loss over several
//! windows, and nobody would learn which of them is to blame.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Dispatcher;
use crate::clock::Millis;
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, WorkerId};
use crate::window::Plan;

/// A worker is not reserved for longer: a window that hangs must not stop other feeds.
const RESERVED_MS: Millis = 60_000;

impl<P: Plan> Dispatcher<P> {
    /// Reserves each worker that has a lease of a window alone for that window's feed, until the feed has no such
    /// window there. Call this before a worker is told its leases.
    pub(super) fn reserve_workers(&mut self, now: Millis) {
        if !holds(Rule::AloneIsAmongAllFeeds) {
            return;
        }
        let is_any_reserved = self.workers.values().any(|worker| worker.reserved_for.is_some());
        // A feed that loses a worker here may lease its window alone to another worker, which is reserved in turn. A
        // worker stays reserved while the window is being computed, so this ends.
        while is_any_reserved || self.revision() != self.reserved_at {
            let before = self.revision();
            self.reserve(now);
            self.reserved_at = self.revision();
            if self.reserved_at == before {
                break;
            }
        }
    }

    fn reserve(&mut self, now: Millis) {
        let mut alone: BTreeSet<(WorkerId, Arc<str>)> = BTreeSet::new();
        for (id, feed) in &self.feeds {
            let young = feed.sequencer.alone().filter(|(_, window)| feed.age(*window, now) < RESERVED_MS);
            alone.extend(young.map(|(worker, _)| (worker, Arc::clone(id))));
        }
        for (&id, worker) in &mut self.workers {
            let was_reserved = worker.reserved_for.is_some();
            let kept = worker.reserved_for.take().filter(|feed| alone.contains(&(id, Arc::clone(feed))));
            let first = || alone.iter().find(|(worker, _)| *worker == id).map(|(_, feed)| Arc::clone(feed));
            worker.reserved_for = kept.or_else(first);
            if !was_reserved && worker.reserved_for.is_none() {
                continue;
            }
            for (feed, state) in &mut self.feeds {
                let is_reserved = worker.reserved_for.as_ref().is_some_and(|it| it != feed);
                let _ = state.sequencer.handle(Event::WorkerReserved { worker: id, is_reserved });
            }
        }
    }
}
