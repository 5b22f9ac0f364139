//! What a feed keeps of its rows for later epochs, ranks and jobs.

use std::sync::Arc;

use super::auto_cache::AutoCache;
use super::feed_core::FeedCore;
use super::memo::Memo;

/// What a feed keeps of its rows.
pub(crate) enum Keeps {
    /// Nothing.
    Nothing,
    /// One part of them.
    Part(Arc<Memo>),
    /// The part that pays off most, once that is known.
    Best(Arc<AutoCache>),
}

impl Keeps {
    /// The part that is kept now.
    pub(crate) fn memo(&self) -> Option<&Arc<Memo>> {
        match self {
            Self::Nothing => None,
            Self::Part(memo) => Some(memo),
            Self::Best(best) => best.memo(),
        }
    }

    /// Whether a part is kept now, or may be later.
    pub(super) fn may_keep(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Tells that a rank reads in this process.
    pub(super) fn read_by(&self, rank: u64, world_size: u64) {
        match self {
            Self::Nothing => {}
            Self::Part(memo) => memo.read_by(rank, world_size),
            Self::Best(best) => best.memos().for_each(|memo| memo.read_by(rank, world_size)),
        }
    }

    /// Begins to find out what pays off, for a feed that will be read until `epochs`, if that is known.
    pub(super) fn begin(core: &Arc<FeedCore>, epochs: Option<u64>) {
        if let Self::Best(best) = &core.keeps {
            best.begin(core, epochs);
        }
    }
}
