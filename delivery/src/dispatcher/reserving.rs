//! A worker that computes a window alone computes nothing of other feeds either.
//!
//! A [sequencer](crate::Sequencer) leases a window alone because the window may end its worker. The sequencers of other
//! feeds do not know that. If they went on leasing windows to this worker, its loss would again be a loss over several
//! windows, and nobody would learn which of them is to blame.

use std::sync::Arc;

use super::Dispatcher;
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, WorkerId};
use crate::window::Plan;

impl<P: Plan> Dispatcher<P> {
    /// Reserves each worker that has a lease of a window alone for that window's feed. If several feeds have one, they
    /// take turns. Call this before a worker is told its leases.
    pub(super) fn reserve_workers(&mut self) {
        if !holds(Rule::AloneIsAmongAllFeeds) || self.feeds.len() < 2 {
            return;
        }
        // A feed that loses a worker here may lease its window alone to another worker, which is reserved in turn. A
        // worker stays reserved while the window is being computed, so this ends.
        loop {
            let before = self.revision();
            let ids: Vec<WorkerId> = self.workers.keys().copied().collect();
            ids.into_iter().for_each(|id| self.reserve(id));
            if self.revision() == before {
                break;
            }
        }
    }

    fn reserve(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let feeds = &self.feeds;
        let is_alone = |feed: &Arc<str>| feeds.get(feed).is_some_and(|it| it.sequencer.is_alone_on(id));
        let kept = worker.reserved_for.take().filter(is_alone);
        let reserved_for = kept.or_else(|| feeds.keys().find(|feed| is_alone(feed)).cloned());
        worker.reserved_for.clone_from(&reserved_for);
        for (feed, state) in &mut self.feeds {
            let is_reserved = reserved_for.as_ref().is_some_and(|it| it != feed);
            let _ = state.sequencer.handle(Event::WorkerReserved { worker: id, is_reserved });
        }
    }
}
