//! The dispatcher's part in ordered delivery: messages of trainers, and the routes that they get.

use std::collections::BTreeMap;

use super::feed::{OpenFeed, ReaderContact, ToldReader};
use super::{Dispatcher, computing, writing};
use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::{ReaderReply, ReaderSync, Report, Route};
use crate::rules::{Rule, holds};
use crate::sequencer::{Event, ReplicaState};
use crate::window::Plan;

/// The number of windows for which a trainer is sent routes.
const ROUTES_AHEAD: usize = 8;
/// The most windows for which a trainer's unreachable workers are remembered, and the most that a message may name.
const BROKEN_MAX: usize = 64;
/// The most trainers of a feed.
const READERS_MAX: usize = if cfg!(test) { 256 } else { 1 << 16 };
/// The largest number of epochs that is accepted.
const EPOCHS_MAX: u64 = 1 << 32;

impl<P: Plan> Dispatcher<P> {
    /// Takes a trainer's message about an open feed. [`reader_reply`](Self::reader_reply) returns the answer.
    ///
    /// # Errors
    /// Returns the reason if the trainer is a rank of a named job, and may not read beside the job's other processes.
    pub fn reader_sync(&mut self, sync: &ReaderSync, now: Millis) -> Result<(), Report> {
        self.tick(now);
        let version = self.number();
        let Some(feed) = self.feeds.get_mut(&sync.feed) else { return Ok(()) };
        if feed.writing.is_some() {
            return Err(writing::not_a_feed(&sync.feed));
        }
        // Any client may have sent the message. An invalid one is ignored.
        let plan = feed.sequencer.plan();
        let is_sane = sync.until_epoch <= EPOCHS_MAX
            && sync.broken.len() <= BROKEN_MAX
            && plan.has(sync.at, sync.until_epoch)
            && sync.broken.iter().all(|broken| plan.has(broken.window, sync.until_epoch));
        if sync.world_size == 0 || (!is_sane && holds(Rule::PositionsFitTheFeed)) {
            return Ok(());
        }
        if feed.readers.len() >= READERS_MAX && !feed.readers.contains_key(&sync.session) && !sync.leaving {
            let message = format!("the feed has {READERS_MAX} readers already");
            return Err(Report { kind: ErrorKind::Exhausted, message, hint: None, retry: true });
        }
        if let Some(before) = feed.fence.admit(sync, now)? {
            feed.remove_reader(before);
            // Wakes the waiting call of the reader that was replaced.
            self.revision += 1;
        }
        if sync.leaving {
            feed.remove_reader(sync.session);
            return Ok(());
        }
        feed.last_read = now;
        let handle = |feed: &mut OpenFeed<P>, event| {
            let _ = feed.sequencer.handle(event);
        };
        match feed.readers.get(&sync.session) {
            Some(reader) if reader.seq >= sync.seq => return Ok(()),
            Some(_) => handle(feed, Event::ReaderAdvanced { reader: sync.session, to: sync.at }),
            None => {
                let (reader, at, until_epoch) = (sync.session, sync.at, sync.until_epoch);
                let share = 1.0 / sync.world_size.max(1) as f64;
                // The reader may have restarted to retry a failed window.
                feed.failures.retain(|&window, _| window < at);
                if sync.is_later_claim && holds(Rule::LossesOutlastClaims) {
                    handle(feed, Event::ReaderContinued { reader, at, until_epoch, share });
                } else {
                    // A reader that is new here but not new has only lost its dispatcher.
                    if sync.seq == 1 {
                        feed.sequencer.forget_losses(at);
                    }
                    handle(feed, Event::ReaderJoined { reader, at, until_epoch, share });
                }
            }
        }
        let reader = feed.readers.entry(sync.session).or_insert_with(|| ReaderContact {
            seq: 0,
            contact: now,
            rank: sync.rank,
            world_size: sync.world_size,
            at: sync.at,
            until_epoch: sync.until_epoch,
            avoid: BTreeMap::new(),
            waiting: None,
            samples: 0,
            bytes: 0,
            stalled_ms: 0,
            told: ToldReader::default(),
            version,
        });
        reader.seq = sync.seq;
        reader.contact = now;
        reader.at = reader.at.max(sync.at);
        reader.waiting = sync.waiting;
        (reader.samples, reader.bytes, reader.stalled_ms) = (sync.samples, sync.bytes, sync.stalled_ms);
        reader.avoid = reader.avoid.split_off(&reader.at);
        for broken in &sync.broken {
            reader.avoid.insert(broken.window, broken.worker);
        }
        while reader.avoid.len() > BROKEN_MAX {
            reader.avoid.pop_last();
        }
        for broken in &sync.broken {
            let (window, lease, worker) = (broken.window, broken.lease, broken.worker);
            if broken.missing {
                handle(feed, Event::WindowMissing { window, lease });
            } else {
                handle(feed, Event::WorkerSuspected { worker });
                handle(feed, Event::ReaderStalled { window });
            }
        }
        // The worker may have had the window for long when the reader arrives there.
        if let Some((window, waited)) = sync.waiting
            && waited.max(feed.age(window, now)) >= feed.patience(self.settings.stall_ms)
        {
            handle(feed, Event::ReaderStalled { window });
        }
        Ok(())
    }

    /// Returns the answer to a trainer's message. Its version changes when its content changes.
    ///
    /// # Errors
    /// Returns the reason if the trainer has left, or a newer process of its rank has replaced it.
    pub fn reader_reply(&mut self, sync: &ReaderSync) -> Result<ReaderReply, Report> {
        if let Some(feed) = self.feeds.get(&sync.feed).filter(|_| !sync.leaving) {
            feed.fence.check(sync)?;
        }
        self.routes(&sync.feed, sync.session).ok_or_else(|| Report {
            kind: ErrorKind::Unavailable,
            message: "the reader has left".to_owned(),
            hint: None,
            retry: true,
        })
    }

    fn routes(&mut self, feed: &str, session: u64) -> Option<ReaderReply> {
        let new_version = self.number();
        let state = self.feeds.get_mut(feed)?;
        let reader = state.readers.get(&session)?;
        let mut routes = Vec::new();
        let mut window = reader.at;
        while routes.len() < ROUTES_AHEAD && window.epoch < reader.until_epoch {
            let avoided = reader.avoid.get(&window);
            let copies: Vec<_> = state.sequencer.copies(window).collect();
            let copy = copies.iter().find(|copy| Some(&copy.worker) != avoided).or(copies.first());
            let (Some(copy), Some(rows)) = (copy, state.sequencer.rows(window)) else { break };
            let Some(worker) = self.workers.get(&copy.worker) else { break };
            routes.push(Route {
                window,
                rows,
                last: state.sequencer.plan().is_last(window),
                ready: copy.state == ReplicaState::Ready,
                lease: copy.lease,
                worker: copy.worker,
                address: worker.address.clone(),
            });
            window = state.sequencer.plan().after(window);
        }
        let failed = (state.sequencer.has_failed(window) && window.epoch < reader.until_epoch)
            .then(|| (window, state.failure(window)));
        let (workers, refusal) = computing(&self.workers, feed);
        // When no worker computes the feed, the reader gets the reason. A young dispatcher waits, because other workers
        // may not have reached it yet.
        let refusal = refusal.filter(|_| failed.is_none() && routes.is_empty() && !self.young);
        let refused = refusal.is_some();
        let told = (routes, failed.or_else(|| Some((window, refusal?.clone()))), workers, refused);
        let reader = state.readers.get_mut(&session)?;
        if reader.told != told {
            reader.told = told;
            reader.version = new_version;
        }
        let (routes, failed, workers, refused) = reader.told.clone();
        Some(ReaderReply { version: reader.version, seq: reader.seq, routes, failed, workers, refused })
    }
}
