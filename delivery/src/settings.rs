//! The settings of a rank.

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
