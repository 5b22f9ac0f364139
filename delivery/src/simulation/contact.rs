//! How workers and trainers reach a dispatcher: two calls at a time, turning to the next dispatcher when one is silent.
//!
//! As in HTTP/2, all calls of a process share a connection. A call ends with its trailers, after its answer. A call
//! that its client leaves before them is reset, and after some resets the connection closes, with all calls on it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use super::faults::Fault;
use super::world::{NodeId, Process, Timer, World};
use crate::rules::{Rule, holds};
use crate::{Meeting, Millis};

/// The most unanswered calls at a time: one that waits for news, and one that brings news.
const CALLS_MAX: usize = 2;
/// A connection closes after more resets than this. In h2 there are 1,024.
const RESETS_MAX: u32 = 6;
/// The time after which an unanswered message is given up.
const UNANSWERED_MS: Millis = 1_500;

/// The dispatchers in the order of a process's list, and the one that it talks to.
pub(super) struct Addresses {
    list: Vec<NodeId>,
    at: Cell<NodeId>,
    meeting: RefCell<Meeting>,
}

/// The dispatcher that a process talks to. The claims that a process reads share it.
pub(super) type SharedAddress = Rc<Addresses>;

pub(super) struct Contact {
    at: SharedAddress,
    /// The dispatcher of the newest message.
    asked: NodeId,
    /// The dispatcher of each unanswered call.
    open: BTreeMap<u64, NodeId>,
    /// The calls of this connection that were reset.
    resets: u32,
    /// When the dispatcher became useless, if it is.
    useless_since: Option<Millis>,
}

impl Contact {
    pub(super) fn new(world: &mut World) -> Self {
        Self::sharing(&Self::anywhere(world))
    }

    /// Returns the dispatchers, at a random one.
    pub(super) fn anywhere(world: &mut World) -> SharedAddress {
        let at = Cell::new(world.random.below(world.dispatchers as u64) as usize);
        let mut list: Vec<NodeId> = (0..world.dispatchers).collect();
        if world.has_own_lists {
            for last in (1..list.len()).rev() {
                list.swap(last, world.random.below(last as u64 + 1) as usize);
            }
        }
        let meeting = RefCell::new(Meeting::new(list.iter().map(|dispatcher| format!("d{dispatcher}")).collect()));
        Rc::new(Addresses { list, at, meeting })
    }

    /// Shares the dispatcher with other contacts: when one turns to another dispatcher, all do.
    pub(super) fn sharing(at: &SharedAddress) -> Self {
        Self { at: Rc::clone(at), asked: at.at.get(), open: BTreeMap::new(), resets: 0, useless_since: None }
    }

    pub(super) fn dispatcher(&self) -> NodeId {
        self.at.at.get()
    }

    /// Records whether a dispatcher that answered has workers, and returns whether ranks meet there.
    pub(super) fn is_home(&self, dispatcher: NodeId, has_workers: bool) -> bool {
        let name = format!("d{dispatcher}");
        let mut meeting = self.at.meeting.borrow_mut();
        meeting.heard(&name, has_workers);
        meeting.is_home(&name)
    }

    pub(super) fn sent(&mut self, world: &mut World, process: Process, seq: u64) {
        self.asked = self.at.at.get();
        self.open.insert(seq, self.asked);
        world.timer(world.now + UNANSWERED_MS, process, Timer::Unanswered(seq));
    }

    /// Returns whether there is room for a call, with or without news.
    pub(super) fn may_call(&self, has_news: bool) -> bool {
        self.open.is_empty() || (has_news && self.open.len() < CALLS_MAX)
    }

    /// Takes the answer to a call. Returns the calls that failed because the connection closed.
    pub(super) fn answered(&mut self, world: &mut World, seq: u64) -> Vec<u64> {
        let Some(dispatcher) = self.open.remove(&seq) else { return Vec::new() };
        if holds(Rule::CallsAreReadToTheirEnd) {
            return Vec::new();
        }
        self.resets += 1;
        match self.resets > RESETS_MAX {
            true => self.unreachable(world, dispatcher),
            false => Vec::new(),
        }
    }

    /// Ends the calls to a dispatcher whose connection closed, and turns to the next. Returns these calls.
    pub(super) fn unreachable(&mut self, world: &mut World, dispatcher: NodeId) -> Vec<u64> {
        let failed: Vec<u64> = self.open.iter().filter(|(_, at)| **at == dispatcher).map(|(&seq, _)| seq).collect();
        self.open.retain(|_, at| *at != dispatcher);
        self.resets = 0;
        if !failed.is_empty() {
            world.call_failed(dispatcher);
            self.rotate(world);
        }
        failed
    }

    /// Gives a call up if it is still unanswered, and turns to the next dispatcher. Returns whether it was.
    pub(super) fn unanswered(&mut self, world: &mut World, seq: u64) -> bool {
        let Some(&dispatcher) = self.open.get(&seq) else { return false };
        world.call_failed(dispatcher);
        if holds(Rule::LostCallsMakeRoom) {
            self.open.remove(&seq);
        }
        self.resets = 0;
        self.rotate(world);
        true
    }

    /// Turns to the dispatcher after the one that was asked last, in the order of the list.
    pub(super) fn rotate(&mut self, world: &mut World) {
        self.useless_since = None;
        // A contact that shares the dispatcher may have turned already.
        if world.dispatchers > 1 && self.at.at.get() == self.asked {
            let asked = self.at.list.iter().position(|&it| it == self.asked).unwrap_or(0);
            self.at.at.set(self.at.list[(asked + 1) % self.at.list.len()]);
            world.faults.fired(Fault::FailedOver);
        }
    }

    /// Turns to the next dispatcher if this one has been useless for longer than `patience`.
    pub(super) fn judge(&mut self, world: &mut World, is_useful: bool, patience: Millis) {
        match is_useful {
            true => self.useless_since = None,
            false => {
                let since = *self.useless_since.get_or_insert(world.now);
                if world.now >= since + patience {
                    self.rotate(world);
                }
            }
        }
    }
}
