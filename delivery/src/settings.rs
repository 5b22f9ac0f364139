//! The settings of a rank.

use crate::clock::Millis;

/// A stream that the loop waits for is closed, and asked for again, when it has brought nothing for this long.
pub const SILENCE_MS: Millis = 30_000;
/// A wait for such a stream becomes an error when nothing has come for this long after the stream was first closed.
pub const PATIENCE_MS: Millis = 30_000;

/// How one rank reads a feed, resolved and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Samples per batch of one rank.
    pub batch_size: u64,
    /// The epoch before which to stop.
    pub epochs: u64,
    /// Whether an incomplete global batch at an epoch's end is left out.
    pub drop_last: bool,
    /// The rank.
    pub rank: u64,
    /// The number of ranks.
    pub world_size: u64,
}

impl ReadSettings {
    /// Returns the number of samples in a global step, over all ranks.
    pub fn global_batch(&self) -> u64 {
        self.batch_size * self.world_size
    }
}
