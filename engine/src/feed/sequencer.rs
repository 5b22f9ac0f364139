//! Which window is computed when, and how long it is kept: a state machine without I/O, clock or randomness.
//!
//! Events go in, actions come out; whoever drives it does the work. The rules:
//!
//! - A reader's current window is always leased, whatever the memory limit says: without it nobody would move.
//! - Windows ahead of a reader are leased in order while the limit has room, so computing overlaps reading.
//! - A window is kept until every reader has passed it. When a current window needs room, the windows whose readers
//!   are furthest away go first; they are computed again when their reader comes, never skipped.
//! - A report about a window that is not leased (a late or duplicate one) changes nothing: its bytes would be equal.

use std::collections::BTreeMap;

/// A window of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WindowId {
    pub(crate) epoch: u64,
    pub(crate) index: u32,
}

/// Names a reader to the sequencer.
pub(crate) type ReaderId = u64;

/// The order of windows and their expected sizes: a pure function.
pub(crate) trait Schedule {
    /// The window after `window`; epochs follow each other without end.
    fn after(&self, window: WindowId) -> WindowId;
    /// Expected bytes of `window` in memory.
    fn bytes(&self, window: WindowId) -> u64;
}

/// What happened.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A reader began at `at`, and will stop before epoch `until_epoch`.
    ReaderJoined { reader: ReaderId, at: WindowId, until_epoch: u64 },
    /// A reader needs `to` next, and nothing before it.
    ReaderAdvanced { reader: ReaderId, to: WindowId },
    /// A reader is gone.
    ReaderLeft { reader: ReaderId },
    /// A leased window is in memory and takes `bytes`.
    WindowReady { window: WindowId, bytes: u64 },
    /// A leased window could not be computed; its error is kept in its place until its readers are gone.
    WindowFailed { window: WindowId },
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Compute this window.
    Lease(WindowId),
    /// Forget this window.
    Evict(WindowId),
}

/// At most this many windows are being computed ahead of the readers at a time: reading is what limits it, and more
/// leases would only hold more memory half filled.
const LEASES_AHEAD_MAX: usize = 2;
/// At most this many windows are looked at ahead of one reader; what bounds them usually is memory.
const LOOKAHEAD_WINDOWS_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Held {
    bytes: u64,
    state: HeldState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldState {
    Computing,
    Ready,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    at: WindowId,
    until_epoch: u64,
}

/// The state machine.
pub(crate) struct Sequencer<S> {
    schedule: S,
    memory_limit_bytes: u64,
    windows: BTreeMap<WindowId, Held>,
    readers: BTreeMap<ReaderId, Reader>,
}

impl<S: Schedule> Sequencer<S> {
    pub(crate) fn new(schedule: S, memory_limit_bytes: u64) -> Self {
        Self { schedule, memory_limit_bytes, windows: BTreeMap::new(), readers: BTreeMap::new() }
    }

    /// Takes one event and gives what to do, in order.
    pub(crate) fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::ReaderJoined { reader, at, until_epoch } => {
                self.readers.insert(reader, Reader { at, until_epoch });
                self.evict_failed(at, &mut actions);
            }
            Event::ReaderAdvanced { reader, to } => {
                if let Some(reader) = self.readers.get_mut(&reader) {
                    debug_assert!(reader.at <= to, "readers only move forward");
                    reader.at = to;
                }
            }
            Event::ReaderLeft { reader } => {
                self.readers.remove(&reader);
            }
            Event::WindowReady { window, bytes } => self.report(window, Held { bytes, state: HeldState::Ready }),
            Event::WindowFailed { window } => self.report(window, Held { bytes: 0, state: HeldState::Failed }),
        }
        self.evict_passed(&mut actions);
        self.lease(&mut actions);
        actions
    }

    /// Bytes of the windows in memory and of those being computed.
    fn held_bytes(&self) -> u64 {
        self.windows.values().map(|held| held.bytes).sum()
    }

    fn report(&mut self, window: WindowId, outcome: Held) {
        if let Some(held) = self.windows.get_mut(&window) {
            *held = outcome;
        }
    }

    /// Whoever joins may be a reader that comes back after a failure: it gets a new try, not the old error.
    fn evict_failed(&mut self, from: WindowId, actions: &mut Vec<Action>) {
        let failed = self.windows.range(from..).filter(|(_, held)| held.state == HeldState::Failed);
        let failed: Vec<_> = failed.map(|(&window, _)| window).collect();
        for window in failed {
            self.evict(window, actions);
        }
    }

    /// How far `window` is ahead of the nearest reader that still needs it.
    fn distance(&self, window: WindowId) -> Option<u64> {
        self.readers
            .values()
            .filter(|reader| reader.at <= window && window.epoch < reader.until_epoch)
            // Only compared, so epochs may be taken as longer than any other distance.
            .map(|reader| {
                let epochs = window.epoch - reader.at.epoch;
                (epochs << 32) + u64::from(window.index) - u64::from(reader.at.index) * u64::from(epochs == 0)
            })
            .min()
    }

    fn evict_passed(&mut self, actions: &mut Vec<Action>) {
        let passed: Vec<_> = self.windows.keys().copied().filter(|&window| self.distance(window).is_none()).collect();
        for window in passed {
            self.evict(window, actions);
        }
    }

    fn evict(&mut self, window: WindowId, actions: &mut Vec<Action>) {
        self.windows.remove(&window);
        actions.push(Action::Evict(window));
    }

    fn lease(&mut self, actions: &mut Vec<Action>) {
        let current: Vec<_> = self.readers.values().filter(|r| r.at.epoch < r.until_epoch).map(|r| r.at).collect();
        for window in current {
            if !self.windows.contains_key(&window) {
                self.make_room(self.schedule.bytes(window), actions);
                self.grant(window, actions);
            }
        }
        if self.is_busy() {
            return;
        }
        for window in self.ahead() {
            if self.is_busy() || self.held_bytes() + self.schedule.bytes(window) > self.memory_limit_bytes {
                break;
            }
            self.grant(window, actions);
        }
    }

    /// Whether the limits leave no room to compute another window ahead.
    fn is_busy(&self) -> bool {
        let computing = self.windows.values().filter(|held| held.state == HeldState::Computing).count();
        computing >= LEASES_AHEAD_MAX || self.held_bytes() >= self.memory_limit_bytes
    }

    /// Windows ahead of the readers that nobody computes yet, nearest first.
    fn ahead(&self) -> Vec<WindowId> {
        let mut ahead = BTreeMap::new();
        for reader in self.readers.values() {
            let mut window = reader.at;
            for distance in 0..LOOKAHEAD_WINDOWS_MAX {
                if window.epoch >= reader.until_epoch {
                    break;
                }
                if !self.windows.contains_key(&window) {
                    let nearest = ahead.entry(window).or_insert(distance);
                    *nearest = distance.min(*nearest);
                }
                window = self.schedule.after(window);
            }
        }
        let mut ahead: Vec<_> = ahead.into_iter().map(|(window, distance)| (distance, window)).collect();
        ahead.sort_unstable();
        ahead.into_iter().map(|(_, window)| window).collect()
    }

    /// Evicts finished windows that no reader is at, the furthest away first, until `bytes` more fit.
    fn make_room(&mut self, bytes: u64, actions: &mut Vec<Action>) {
        while self.held_bytes() + bytes > self.memory_limit_bytes {
            let furthest = self
                .windows
                .iter()
                .filter(|(_, held)| held.state != HeldState::Computing)
                .map(|(&window, _)| (self.distance(window).unwrap_or(u64::MAX), window))
                .filter(|&(distance, _)| distance > 0)
                .max();
            let Some((_, window)) = furthest else { break };
            self.evict(window, actions);
        }
    }

    fn grant(&mut self, window: WindowId, actions: &mut Vec<Action>) {
        self.windows.insert(window, Held { bytes: self.schedule.bytes(window), state: HeldState::Computing });
        actions.push(Action::Lease(window));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Epochs of `windows` windows of 10 bytes each.
    struct Even {
        windows: u32,
    }

    impl Schedule for Even {
        fn after(&self, window: WindowId) -> WindowId {
            if window.index + 1 < self.windows {
                WindowId { index: window.index + 1, ..window }
            } else {
                WindowId { epoch: window.epoch + 1, index: 0 }
            }
        }

        fn bytes(&self, _: WindowId) -> u64 {
            10
        }
    }

    fn window(index: u32) -> WindowId {
        WindowId { epoch: 0, index }
    }

    fn leases(actions: &[Action]) -> Vec<u32> {
        actions.iter().filter_map(|action| if let Action::Lease(w) = action { Some(w.index) } else { None }).collect()
    }

    #[test]
    fn a_reader_gets_its_window_even_over_the_limit() {
        let mut sequencer = Sequencer::new(Even { windows: 5 }, 0);
        let actions = sequencer.handle(Event::ReaderJoined { reader: 1, at: window(2), until_epoch: 1 });
        assert_eq!(actions, [Action::Lease(window(2))]);
        assert_eq!(sequencer.handle(Event::WindowReady { window: window(2), bytes: 10 }), []);
        let actions = sequencer.handle(Event::ReaderAdvanced { reader: 1, to: window(3) });
        assert_eq!(actions, [Action::Evict(window(2)), Action::Lease(window(3))]);
    }

    #[test]
    fn windows_ahead_are_leased_in_order_while_memory_lasts() {
        let mut sequencer = Sequencer::new(Even { windows: 9 }, 35);
        let joined = sequencer.handle(Event::ReaderJoined { reader: 1, at: window(0), until_epoch: 1 });
        assert_eq!(leases(&joined), [0, 1]);
        assert_eq!(leases(&sequencer.handle(Event::WindowReady { window: window(0), bytes: 10 })), [2]);
        assert!(leases(&sequencer.handle(Event::WindowReady { window: window(1), bytes: 10 })).is_empty());
        let advanced = sequencer.handle(Event::ReaderAdvanced { reader: 1, to: window(1) });
        assert_eq!(advanced, [Action::Evict(window(0)), Action::Lease(window(3))]);
    }

    #[test]
    fn a_reader_that_falls_behind_has_its_windows_computed_again() {
        let mut sequencer = Sequencer::new(Even { windows: 50 }, 30);
        let mut ready = BTreeSet::new();
        let mut leased_again = Vec::new();
        let mut seen = BTreeSet::new();
        let mut pending: Vec<WindowId> = Vec::new();
        let mut apply = |sequencer: &mut Sequencer<Even>, event: Event, ready: &mut BTreeSet<WindowId>| {
            let mut actions = sequencer.handle(event);
            loop {
                for action in actions.drain(..) {
                    match action {
                        Action::Lease(window) => {
                            if !seen.insert(window) {
                                leased_again.push(window.index);
                            }
                            pending.push(window);
                        }
                        Action::Evict(window) => {
                            ready.remove(&window);
                        }
                    }
                }
                let Some(window) = pending.pop() else { break };
                ready.insert(window);
                actions = sequencer.handle(Event::WindowReady { window, bytes: 10 });
            }
        };
        apply(&mut sequencer, Event::ReaderJoined { reader: 1, at: window(0), until_epoch: 1 }, &mut ready);
        apply(&mut sequencer, Event::ReaderJoined { reader: 2, at: window(0), until_epoch: 1 }, &mut ready);
        for index in 1..20 {
            apply(&mut sequencer, Event::ReaderAdvanced { reader: 1, to: window(index) }, &mut ready);
            assert!(ready.contains(&window(index)) && ready.contains(&window(0)));
            assert!(ready.len() <= 3, "the limit holds three windows, got {ready:?}");
        }
        for index in 1..20 {
            apply(&mut sequencer, Event::ReaderAdvanced { reader: 2, to: window(index) }, &mut ready);
            assert!(ready.contains(&window(index)));
        }
        assert!(!leased_again.is_empty());
    }

    #[test]
    fn nothing_is_leased_past_the_last_epoch_and_nothing_kept_after_the_last_reader() {
        let mut sequencer = Sequencer::new(Even { windows: 3 }, 1_000);
        sequencer.handle(Event::ReaderJoined { reader: 7, at: window(2), until_epoch: 1 });
        assert_eq!(sequencer.windows.len(), 1);
        assert_eq!(sequencer.handle(Event::ReaderLeft { reader: 7 }), [Action::Evict(window(2))]);
    }

    #[test]
    fn a_failed_window_is_computed_again_for_a_reader_that_comes_back() {
        let mut sequencer = Sequencer::new(Even { windows: 9 }, 25);
        sequencer.handle(Event::ReaderJoined { reader: 1, at: window(0), until_epoch: 1 });
        sequencer.handle(Event::WindowReady { window: window(0), bytes: 10 });
        sequencer.handle(Event::WindowFailed { window: window(1) });
        sequencer.handle(Event::ReaderJoined { reader: 2, at: window(1), until_epoch: 1 });
        assert_eq!(sequencer.windows[&window(1)].state, HeldState::Computing);
        // A reader that was there all the time waits for the new try as well.
        let actions = sequencer.handle(Event::ReaderAdvanced { reader: 1, to: window(1) });
        assert!(!actions.contains(&Action::Evict(window(1))));
    }

    #[test]
    fn late_and_duplicate_reports_change_nothing() {
        let mut sequencer = Sequencer::new(Even { windows: 3 }, 10);
        sequencer.handle(Event::ReaderJoined { reader: 1, at: window(0), until_epoch: 1 });
        assert_eq!(sequencer.handle(Event::WindowReady { window: window(2), bytes: 10 }), []);
        sequencer.handle(Event::WindowReady { window: window(0), bytes: 10 });
        assert_eq!(sequencer.handle(Event::WindowReady { window: window(0), bytes: 10 }), []);
        assert_eq!(sequencer.held_bytes(), 10);
    }
}
