//! From global steps to tokens.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::rules::{Rule, holds};
use crate::{Token, WindowId};

/// Makes the tokens of one feed, for which it remembers where the latest windows began.
#[derive(Clone, Debug)]
pub struct Steps {
    feed: Arc<str>,
    epoch: u64,
    recent: VecDeque<(u32, u64)>,
}

impl Steps {
    /// Creates the steps of a reader that begins in `epoch`.
    pub fn new(feed: Arc<str>, epoch: u64) -> Self {
        Self { feed, epoch, recent: VecDeque::new() }
    }

    /// Returns the epoch of the latest window.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Adds the next window, which begins at `offset`.
    pub fn push(&mut self, window: WindowId, offset: u64) {
        if window.epoch != self.epoch {
            self.epoch = window.epoch;
            self.recent.clear();
        }
        self.recent.push_back((window.index, offset));
    }

    /// Returns the token of the global step that began at `step_at`. Calls must be in order.
    pub fn token(&mut self, step_at: u64, next_step_at: u64) -> Token {
        // The window in which the step began. Every rank has passed it, so all ranks make the same token.
        let is_passed = |offset| offset <= step_at || !holds(Rule::TokensNameTheStepsWindow);
        while self.recent.get(1).is_some_and(|&(_, offset)| is_passed(offset)) {
            self.recent.pop_front();
        }
        let &(window, window_offset) = self.recent.front().expect("the windows of a step were pushed");
        Token {
            feed: Arc::clone(&self.feed),
            epoch: self.epoch,
            offset: next_step_at,
            window,
            window_offset,
            claims: None,
        }
    }
}
