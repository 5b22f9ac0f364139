//! How a rank reads a feed.

/// How one rank reads a feed, resolved and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Samples per batch of one rank.
    pub batch_size: u64,
    /// The epoch to stop before.
    pub epochs: u64,
    /// Whether an incomplete global batch at an epoch's end is left out.
    pub drop_last: bool,
    /// Which rank.
    pub rank: u64,
    /// Of how many.
    pub world_size: u64,
}
