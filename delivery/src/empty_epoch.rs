//! Notices a feed without samples. An endless reader would read its empty epochs one after another.

use crate::settings::ReadSettings;
use crate::trainer::Origin;

/// Watches the first epoch of a rank, if the rank reads it from its beginning and others follow it.
#[derive(Debug)]
pub struct EmptyEpoch {
    /// The epoch, as long as nothing was found in it.
    watched: Option<u64>,
    was_met: bool,
}

impl EmptyEpoch {
    /// Watches a rank that begins at `begin`.
    pub fn new(settings: &ReadSettings, begin: &Origin) -> Self {
        let epoch = begin.window.epoch;
        let is_watched = begin.offset == 0 && epoch.checked_add(1).is_some_and(|next| next < settings.epochs);
        Self { watched: is_watched.then_some(epoch), was_met: false }
    }

    /// Looks at a window that ends at an offset, and maybe ends its epoch.
    pub fn push(&mut self, settings: &ReadSettings, epoch: u64, end: u64, last_of_epoch: bool) {
        if self.watched != Some(epoch) {
            return;
        }
        let least = if settings.drop_last { settings.global_batch() } else { 1 };
        if end >= least || last_of_epoch {
            self.watched = None;
            self.was_met = end < least;
        }
    }

    /// Returns whether the epoch has no batch for any rank.
    pub fn was_met(&self) -> bool {
        self.was_met
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowId;

    /// Whether an epoch of windows with these ends is noticed by a rank that begins at the offset.
    fn is_met(epochs: u64, drop_last: bool, offset: u64, ends: &[u64]) -> bool {
        let settings = ReadSettings { batch_size: 4, epochs, drop_last, rank: 1, world_size: 2 };
        let begin = Origin { window: WindowId { epoch: 3, index: 0 }, window_offset: 0, offset };
        let mut empty = EmptyEpoch::new(&settings, &begin);
        for (at, end) in ends.iter().enumerate() {
            assert!(!empty.was_met(), "the epoch has not ended");
            empty.push(&settings, 3, *end, at + 1 == ends.len());
        }
        let first = empty.was_met();
        empty.push(&settings, 4, 0, true);
        assert_eq!(empty.was_met(), first, "only the first epoch is watched");
        first
    }

    #[test]
    fn an_epoch_without_a_batch_for_any_rank_is_noticed() {
        assert!(is_met(u64::MAX, false, 0, &[0, 0, 0]));
        assert!(is_met(5, true, 0, &[0, 3, 7]));
        // The other rank has a batch.
        assert!(!is_met(5, false, 0, &[0, 3, 3]));
        assert!(!is_met(5, true, 0, &[0, 8, 8]));
        // The last epoch, and the rest of one.
        assert!(!is_met(4, false, 0, &[0]));
        assert!(!is_met(5, true, 8, &[8, 9]));
    }
}
