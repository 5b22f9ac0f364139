//! A rate that is measured piece by piece, with how sure it is.
//!
//! Evidence is a list of pieces, each some amount of samples and the seconds that it took. Newer pieces weigh more, by
//! a constant factor from piece to piece. Counting pieces and not seconds makes the measurement scale-free: windows
//! may take a millisecond or an hour. A piece is closed only when it holds an amount, so that the seconds of a long
//! wait count together with the samples that end it.

use std::collections::VecDeque;

/// How many pieces are kept.
const PIECES_MAX: usize = 48;
/// The weight of a piece relative to the next newer one: about 30 of the 48 pieces count.
const FADING: f64 = 0.97;
/// A piece counts at most as this many times slower, or faster, than the median. Evaluation between epochs, a paused
/// process or a checkpoint says nothing of the pace of training.
const OUTLIER: f64 = 3.0;
/// So many pieces in a row on the same side of all before them are a change and no noise.
const CHANGED: usize = 4;

/// A measured rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Samples per second.
    pub(crate) per_second: f64,
    /// Half the width of the 95 % interval, relative to the rate.
    pub(crate) error: f64,
    /// Seconds of evidence.
    pub(crate) seconds: f64,
    /// How many equal pieces would say as much.
    pub(crate) pieces: f64,
    /// The variance of the seconds that one sample takes, relative to the square of their mean, as if samples were
    /// independent of each other. Divided by the samples of a window it is the squared coefficient of variation of
    /// windows, whatever the length of the pieces.
    pub(crate) dispersion: f64,
}

/// Pieces of evidence of one rate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    pieces: VecDeque<Piece>,
    /// The piece that is not closed yet.
    open: Piece,
}

#[derive(Clone, Copy, Debug, Default)]
struct Piece {
    amount: f64,
    seconds: f64,
}

impl Piece {
    fn pace(&self) -> f64 {
        self.seconds / self.amount
    }
}

impl Evidence {
    /// Adds what was seen in an interval. `seconds` may be negative where an earlier interval had too many, as with a
    /// wait that is reported when it ends: the piece stays open until later seconds have made up for it. `least` bounds
    /// the seconds of the piece from below.
    pub(crate) fn add(&mut self, amount: f64, seconds: f64, least: f64) {
        self.open.amount += amount;
        self.open.seconds += seconds;
        if self.open.amount <= 0.0 || self.open.seconds < 0.0 || self.open.seconds.max(least) <= 0.0 {
            return;
        }
        let piece = std::mem::take(&mut self.open);
        self.pieces.push_back(Piece { seconds: piece.seconds.max(least).max(1e-12 * piece.amount), ..piece });
        self.forget_what_was_before_a_change();
        if self.pieces.len() > PIECES_MAX {
            self.pieces.pop_front();
        }
    }

    /// Forgets the open piece: what came before belongs to another process or another pace.
    pub(crate) fn interrupt(&mut self) {
        self.open = Piece::default();
    }

    fn forget_what_was_before_a_change(&mut self) {
        let Some(old) = self.pieces.len().checked_sub(CHANGED).filter(|old| *old >= CHANGED) else { return };
        let (amount, seconds) = total(self.pieces.iter().take(old));
        let mean = seconds / amount;
        let square =
            self.pieces.iter().take(old).map(|piece| piece.amount * (piece.pace() - mean).powi(2)).sum::<f64>();
        let far = (2.0 * (square / amount).sqrt()).max(0.2 * mean);
        let mut new = self.pieces.iter().skip(old);
        if new.clone().all(|piece| piece.pace() > mean + far) || new.all(|piece| piece.pace() < mean - far) {
            // The first of the new ones is partly of the old pace.
            self.pieces.drain(..=old);
        }
    }

    /// The rate, if anything was measured.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let median = self.median_pace()?;
        let mut weight = FADING.powi(i32::try_from(self.pieces.len()).unwrap_or(i32::MAX));
        let weighted: Vec<(f64, f64, f64)> = self
            .pieces
            .iter()
            .map(|piece| {
                weight /= FADING;
                (weight, piece.amount, piece.pace().clamp(median / OUTLIER, median * OUTLIER))
            })
            .collect();
        let sum =
            |of: &dyn Fn(f64, f64, f64) -> f64| weighted.iter().map(|(w, a, pace)| of(*w, *a, *pace)).sum::<f64>();
        let amount = sum(&|w, a, _| w * a);
        let pace = sum(&|w, a, pace| w * a * pace) / amount;
        // A large piece among small ones is alone, whatever their number.
        let pieces = amount.powi(2) / sum(&|w, a, _| (w * a).powi(2));
        let degrees = (pieces - 1.0).max(1e-3);
        // The variance of a mean with weights w·a, from the deviations of the pieces.
        let variance = sum(&|w, a, p| (w * a * (p / pace - 1.0)).powi(2)) / amount.powi(2) * pieces / degrees;
        // Pauses are no variance of steps.
        let is_usual = |p: f64| if p < median * OUTLIER && p > median / OUTLIER { 1.0 } else { 0.0 };
        let squares = sum(&|w, a, p| is_usual(p) * w * a * (p / pace - 1.0).powi(2));
        let dispersion = squares / sum(&|w, _, _| w) * pieces / degrees;
        // Student's t for 95 %, which is large for few pieces. One piece is no evidence of a spread at all.
        let student = 1.96 + 2.4 / degrees + 2.0 / degrees.powi(2);
        let error = if self.pieces.len() < 3 { f64::INFINITY } else { student * variance.sqrt() };
        let seconds = sum(&|w, a, pace| w * a * pace);
        Some(Rate { per_second: 1.0 / pace, error, seconds, pieces, dispersion })
    }

    /// The median of the pieces' seconds per sample, each piece counted by its samples.
    fn median_pace(&self) -> Option<f64> {
        let mut sorted: Vec<&Piece> = self.pieces.iter().collect();
        sorted.sort_by(|a, b| a.pace().total_cmp(&b.pace()));
        let half = total(self.pieces.iter()).0 / 2.0;
        let mut below = 0.0;
        let median = sorted.iter().find(|piece| {
            below += piece.amount;
            below >= half
        });
        median.or(sorted.last()).map(|piece| piece.pace())
    }
}

fn total<'a>(pieces: impl Iterator<Item = &'a Piece>) -> (f64, f64) {
    pieces.fold((0.0, 0.0), |(amount, seconds), piece| (amount + piece.amount, seconds + piece.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_that_are_reported_too_early_are_made_up_for() {
        let mut evidence = Evidence::default();
        // Waits of the next interval are in this one, as often as not.
        for _ in 0..40 {
            evidence.add(90.0, -0.05, 1e-4);
            evidence.add(110.0, 0.25, 1e-4);
        }
        let rate = evidence.rate().unwrap();
        assert!((rate.per_second - 1_000.0).abs() < 1.0, "{}", rate.per_second);
        // Nothing is known of samples in no time.
        let mut evidence = Evidence::default();
        (0..9).for_each(|_| evidence.add(10.0, 0.0, 0.0));
        assert!(evidence.rate().is_none());
    }

    fn evidence(pieces: &[(f64, f64)]) -> Evidence {
        let mut evidence = Evidence::default();
        for (amount, seconds) in pieces {
            evidence.add(*amount, *seconds, 0.0);
        }
        evidence
    }

    #[test]
    fn equal_pieces_give_a_sure_rate_without_spread() {
        let rate = evidence(&[(100.0, 2.0); 20]).rate().unwrap();
        assert!((rate.per_second - 50.0).abs() < 1e-9, "{rate:?}");
        assert!(rate.error < 1e-6 && rate.dispersion < 1e-9, "{rate:?}");
        assert!(rate.pieces > 18.0 && rate.seconds > 25.0, "{rate:?}");
    }

    #[test]
    fn few_pieces_are_not_sure() {
        assert_eq!(Evidence::default().rate(), None);
        assert_eq!(evidence(&[(1.0, 1.0), (1.0, 2.0)]).rate().unwrap().error, f64::INFINITY);
        let few = evidence(&[(1.0, 1.0), (1.0, 2.0), (1.0, 1.5)]).rate().unwrap().error;
        let many = evidence(&[(1.0, 1.0), (1.0, 2.0), (1.0, 1.5)].repeat(10)).rate().unwrap().error;
        assert!(few > 3.0 * many, "{few} {many}");
    }

    #[test]
    fn a_pause_counts_as_an_outlier() {
        let mut pieces = vec![(100.0, 2.0); 20];
        pieces[12].1 = 3600.0;
        let rate = evidence(&pieces).rate().unwrap();
        assert!(rate.per_second > 45.0, "{rate:?}");
    }

    #[test]
    fn a_wait_that_is_reported_late_is_made_up_for() {
        // Nine intervals of ten seconds without a sample, then the wait of 89 seconds and one second of training.
        let mut evidence = Evidence::default();
        for _ in 0..4 {
            (0..9).for_each(|_| evidence.add(0.0, 10.0, 0.0));
            evidence.add(50.0, 10.0 - 99.0, 0.0);
        }
        assert!((evidence.rate().unwrap().per_second - 50.0).abs() < 1e-9, "{:?}", evidence.rate());
    }

    #[test]
    fn a_change_of_pace_is_believed_after_four_pieces() {
        let mut evidence = evidence(&[(100.0, 2.0), (100.0, 2.1)].repeat(15));
        (0..4).for_each(|_| evidence.add(100.0, 1.0, 0.0));
        assert!((evidence.rate().unwrap().per_second - 100.0).abs() < 1e-6, "{:?}", evidence.rate());
    }

    #[test]
    fn the_dispersion_is_that_of_single_windows_whatever_a_piece_holds() {
        // Windows of 10 samples take 1 or 3 seconds: their squared coefficient of variation is 1/4.
        let single = evidence(&[(10.0, 1.0), (10.0, 3.0)].repeat(24)).rate().unwrap();
        assert!((single.dispersion / 10.0 - 0.25).abs() < 0.02, "{single:?}");
    }
}
