//! How workers and trainers reach a dispatcher: one message at a time, turning to the next dispatcher when one is
//! silent.

use std::cell::Cell;
use std::rc::Rc;

use super::faults::Fault;
use super::world::{NodeId, Process, Timer, World};
use crate::{Millis, home};

/// The time after which an unanswered message is given up.
const UNANSWERED_MS: Millis = 1_500;

/// The dispatchers in the order of a process's list, and the one that it talks to.
pub(super) struct Addresses {
    list: Vec<NodeId>,
    at: Cell<NodeId>,
}

/// The dispatcher that a process talks to. The claims that a process reads share it.
pub(super) type SharedAddress = Rc<Addresses>;

pub(super) struct Contact {
    at: SharedAddress,
    /// The dispatcher of the newest message.
    asked: NodeId,
    /// The newest message, if it is unanswered.
    outstanding: Option<u64>,
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
        Rc::new(Addresses { list, at })
    }

    /// Shares the dispatcher with other contacts: when one turns to another dispatcher, all do.
    pub(super) fn sharing(at: &SharedAddress) -> Self {
        Self { at: Rc::clone(at), asked: at.at.get(), outstanding: None, useless_since: None }
    }

    pub(super) fn dispatcher(&self) -> NodeId {
        self.at.at.get()
    }

    /// Returns whether the process talks to the dispatcher at which ranks meet.
    pub(super) fn is_at_home(&self) -> bool {
        let names: Vec<String> = self.at.list.iter().map(|dispatcher| format!("d{dispatcher}")).collect();
        home(names.iter().map(String::as_str)) == Some(&*format!("d{}", self.dispatcher()))
    }

    pub(super) fn sent(&mut self, world: &mut World, process: Process, seq: u64) {
        self.asked = self.at.at.get();
        self.outstanding = Some(seq);
        world.timer(world.now + UNANSWERED_MS, process, Timer::Unanswered(seq));
    }

    pub(super) fn answered(&mut self, seq: u64) {
        if self.outstanding.is_some_and(|outstanding| outstanding <= seq) {
            self.outstanding = None;
        }
    }

    /// Returns whether the message is unanswered.
    pub(super) fn awaits(&self, seq: u64) -> bool {
        self.outstanding == Some(seq)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.outstanding.is_none()
    }

    /// Turns to the dispatcher after the one that was asked last, in the order of the list.
    pub(super) fn rotate(&mut self, world: &mut World) {
        self.outstanding = None;
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
