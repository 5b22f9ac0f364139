//! Which pieces a cache has, how often each was used, and which of them make room.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A file in one version.
pub(crate) type FileKey = [u8; 16];

/// The pieces that are compared to find one that makes room.
const COMPARED: usize = 8;
/// Uses by which a piece must exceed one that makes room for it. While an epoch runs, some pieces of a dataset were
/// used once more than others.
const MORE_USES: u8 = 2;
/// The most pieces that are not kept whose uses are counted.
const MISSED_MAX: usize = if cfg!(test) { 1_000 } else { 1 << 20 };

/// The pieces of a cache.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    files: HashMap<FileKey, BTreeMap<u64, Piece>>,
    /// The file and first byte of each, in no order.
    places: Vec<(FileKey, u64)>,
    /// Uses of pieces that are not kept, by file and first byte.
    missed: HashMap<(FileKey, u64), u8>,
    bytes: u64,
    /// The last number that was drawn.
    drawn: u64,
}

#[derive(Debug)]
struct Piece {
    end: u64,
    uses: u8,
    /// Its position in `places`.
    at: usize,
}

impl Pieces {
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the pieces of a file.
    pub(super) fn bytes_of(&self, file: FileKey) -> u64 {
        self.files.get(&file).map_or(0, |pieces| pieces.iter().map(|(start, piece)| piece.end - start).sum())
    }

    /// Divides a range by the pieces that are kept of it, and counts their use. Each part has its piece, if there is
    /// one.
    pub(super) fn find(&mut self, file: FileKey, range: &Range<u64>) -> Vec<(Range<u64>, Option<Range<u64>>)> {
        let (mut parts, mut at, mut is_old) = (Vec::new(), range.start, false);
        if let Some(pieces) = self.files.get_mut(&file) {
            let before = pieces.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
            for (&start, piece) in pieces.range_mut(before..range.end).filter(|(_, piece)| piece.end > range.start) {
                if at < start {
                    parts.push((at..start, None));
                }
                let end = piece.end.min(range.end);
                parts.push((at.max(start)..end, Some(start..piece.end)));
                at = end;
                piece.uses = piece.uses.saturating_add(1);
                is_old |= piece.uses == u8::MAX;
            }
        }
        if at < range.end {
            parts.push((at..range.end, None));
        }
        if is_old {
            self.age();
        }
        parts
    }

    /// Whether any byte of a range is kept.
    pub(super) fn has_any(&self, file: FileKey, range: &Range<u64>) -> bool {
        let before = self.files.get(&file).and_then(|pieces| pieces.range(..range.end).next_back());
        before.is_some_and(|(_, before)| before.end > range.start)
    }

    /// Adds a piece. Returns false if another piece has a part of it.
    pub(super) fn add(&mut self, file: FileKey, piece: Range<u64>) -> bool {
        if self.has_any(file, &piece) {
            let known = self.files.get(&file).and_then(|pieces| pieces.get(&piece.start));
            return known.is_some_and(|known| known.end == piece.end);
        }
        let uses = self.missed.remove(&(file, piece.start)).unwrap_or(0);
        self.bytes += piece.end - piece.start;
        let added = Piece { end: piece.end, uses, at: self.places.len() };
        self.files.entry(file).or_default().insert(piece.start, added);
        self.places.push((file, piece.start));
        true
    }

    /// Removes a piece, if it is there.
    pub(super) fn remove(&mut self, file: FileKey, piece: &Range<u64>) {
        let Some(pieces) = self.files.get_mut(&file) else { return };
        if pieces.get(&piece.start).is_none_or(|known| known.end != piece.end) {
            return;
        }
        let Some(removed) = pieces.remove(&piece.start) else { return };
        if pieces.is_empty() {
            self.files.remove(&file);
        }
        self.bytes -= piece.end - piece.start;
        self.places.swap_remove(removed.at);
        if let Some((file, start)) = self.places.get(removed.at)
            && let Some(moved) = self.files.get_mut(file).and_then(|pieces| pieces.get_mut(start))
        {
            moved.at = removed.at;
        }
    }

    /// Counts a use of a piece that is not kept. Returns its uses.
    pub(super) fn miss(&mut self, file: FileKey, start: u64) -> u8 {
        while self.missed.len() >= MISSED_MAX {
            self.age();
        }
        let uses = self.missed.entry((file, start)).or_default();
        *uses = uses.saturating_add(1);
        let uses = *uses;
        if uses == u8::MAX {
            self.age();
        }
        uses
    }

    /// Removes pieces of at least `bytes` together, each used less than one with `uses`. Removes none if it finds too
    /// few.
    pub(super) fn evict(&mut self, uses: u8, bytes: u64) -> Vec<(FileKey, Range<u64>)> {
        let mut compared: Vec<(u8, FileKey, Range<u64>)> = (0..COMPARED).filter_map(|_| self.draw()).collect();
        compared.sort_unstable_by_key(|(uses, file, piece)| (*uses, *file, piece.start));
        compared.dedup();
        let rare = compared.into_iter().take_while(|(of_piece, ..)| of_piece.saturating_add(MORE_USES) <= uses);
        let (mut freed, mut evicted) = (0, Vec::new());
        for (_, file, piece) in rare {
            if freed >= bytes {
                break;
            }
            freed += piece.end - piece.start;
            evicted.push((file, piece));
        }
        if freed < bytes {
            return Vec::new();
        }
        evicted.iter().for_each(|(file, piece)| self.remove(*file, piece));
        evicted
    }

    /// Any piece, with its uses.
    fn draw(&mut self) -> Option<(u8, FileKey, Range<u64>)> {
        // A full-period generator (Knuth's MMIX): which pieces are compared need not be unpredictable.
        self.drawn = self.drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (u128::from(self.drawn) * self.places.len() as u128) >> 64;
        let (file, start) = *self.places.get(at as usize)?;
        let piece = self.files.get(&file)?.get(&start)?;
        Some((piece.uses, file, start..piece.end))
    }

    /// Halves all uses, so that what is no longer used makes room after a while.
    fn age(&mut self) {
        self.files.values_mut().flat_map(BTreeMap::values_mut).for_each(|piece| piece.uses /= 2);
        self.missed.values_mut().for_each(|uses| *uses /= 2);
        self.missed.retain(|_, uses| *uses > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileKey = [7; 16];

    #[test]
    fn a_range_is_divided_by_its_pieces() {
        let mut pieces = Pieces::default();
        for piece in [10..20, 20..30, 40..50] {
            assert!(pieces.add(FILE, piece));
        }
        assert!(pieces.add(FILE, 20..30), "it is there already");
        for overlapping in [0..11, 19..21, 12..15, 45..60, 5..100] {
            assert!(!pieces.add(FILE, overlapping));
        }
        let mut check = |range: Range<u64>, expect: &[(Range<u64>, Option<Range<u64>>)]| {
            assert_eq!(pieces.find(FILE, &range), expect);
        };
        check(0..5, &[(0..5, None)]);
        check(12..18, &[(12..18, Some(10..20))]);
        check(15..45, &[(15..20, Some(10..20)), (20..30, Some(20..30)), (30..40, None), (40..45, Some(40..50))]);
        check(
            5..55,
            &[
                (5..10, None),
                (10..20, Some(10..20)),
                (20..30, Some(20..30)),
                (30..40, None),
                (40..50, Some(40..50)),
                (50..55, None),
            ],
        );
        assert_eq!(pieces.find([8; 16], &(10..20)), [(10..20, None)]);
        pieces.remove(FILE, &(10..20));
        pieces.remove(FILE, &(40..45));
        assert_eq!((pieces.count(), pieces.bytes()), (2, 20));
        assert_eq!(
            pieces.find(FILE, &(5..45)),
            [(5..20, None), (20..30, Some(20..30)), (30..40, None), (40..45, Some(40..50))]
        );
        pieces.remove(FILE, &(40..50));
        pieces.remove(FILE, &(20..30));
        assert_eq!((pieces.count(), pieces.bytes(), pieces.files.len()), (0, 0, 0));
    }

    /// Reads all pieces of a file once, and keeps what may be kept, of 100 pieces in all. Returns the pieces missed.
    fn epoch(pieces: &mut Pieces, file: FileKey, count: u64, salt: u64) -> usize {
        let mut order: Vec<u64> = (0..count).collect();
        order.sort_unstable_by_key(|n| (n ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut missed = 0;
        for piece in order.into_iter().map(|n| n * 10..n * 10 + 10) {
            if pieces.find(file, &piece)[0].1.is_some() {
                continue;
            }
            missed += 1;
            let uses = pieces.miss(file, piece.start);
            if pieces.count() < 100 || !pieces.evict(uses, 10).is_empty() {
                assert!(pieces.add(file, piece));
            }
        }
        missed
    }

    #[test]
    fn pieces_stay_while_all_are_used_alike() {
        let mut pieces = Pieces::default();
        let missed: Vec<usize> = (0..600).map(|salt| epoch(&mut pieces, FILE, 200, salt)).collect();
        assert_eq!(missed[0], 200);
        // When uses are halved within an epoch, a piece may make room.
        assert!(missed[1..].iter().all(|missed| *missed <= 101), "{missed:?}");
    }

    #[test]
    fn pieces_make_room_for_those_of_another_dataset() {
        let mut pieces = Pieces::default();
        (0..5).for_each(|salt| _ = epoch(&mut pieces, FILE, 100, salt));
        let missed: Vec<usize> = (0..12).map(|salt| epoch(&mut pieces, [8; 16], 100, salt)).collect();
        assert!(missed[0] == 100 && missed[11] < 10, "{missed:?}");
    }

    #[test]
    fn counting_is_bounded() {
        let mut pieces = Pieces::default();
        pieces.add(FILE, 0..10);
        (0..100_000).for_each(|start| _ = pieces.miss(FILE, start * 10));
        assert!(pieces.missed.len() <= MISSED_MAX);
        (0..1_000).for_each(|_| _ = pieces.miss([9; 16], 0));
        (0..1_000).for_each(|_| _ = pieces.find(FILE, &(0..10)));
        assert!(pieces.files[&FILE][&0].uses >= 127);
    }
}
