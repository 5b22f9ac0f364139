//! Which pixels of each image of a chain are needed.
//!
//! The places of all steps follow from the row's key and the image's size, without any pixel. So they are drawn from
//! the first step to the last, and then the needed region of each image is found from the last to the first. A crop
//! needs a rectangle of the image before it; a change of single pixels needs the same rectangle, a flip the mirrored
//! one, and a scaled frame the pixels that its rectangle is computed from. A change that depends on the whole image
//! needs all of it.

use super::chain::{AtSite, Framed};
use super::change::PixelChange;
use super::frame::Placed;
use crate::image_column::{Rectangle, Size};
use crate::keyed::Draws;

/// The part of an image of a chain that is made, and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    /// What is made before any change.
    pub(super) made: Rectangle,
    /// The number of leading changes that need all of the image.
    pub(super) split: usize,
    /// What the other changes need.
    pub(super) kept: Rectangle,
    /// Where that is after the changes.
    pub(super) changed: Rectangle,
}

/// A frame for one image, and the region of it that the rest of the chain needs.
#[derive(Debug)]
pub(super) struct PlacedFrame {
    pub(super) placed: Placed,
    pub(super) region: Region,
}

impl Region {
    /// Finds what has to be made so that changes give at least this region.
    pub(super) fn before(changes: &[AtSite<PixelChange>], key: u64, size: Size, needed: Rectangle) -> Self {
        let whole = Rectangle::whole(size);
        let split = changes.iter().rposition(|at| at.step.reads_image()).map_or(0, |at| at + 1);
        let reads = |region, at: &AtSite<PixelChange>| at.step.reads(&mut Draws::new(key, at.site), size, region);
        let kept = changes[split..].iter().rev().fold(needed, reads);
        match (split, changes.len() - split) {
            (0, _) => Self { made: kept, split, kept, changed: needed },
            // The next frame can read what it needs from the whole image.
            (_, 0) => Self { made: whole, split, kept: whole, changed: whole },
            _ => Self { made: whole, split, kept, changed: needed },
        }
    }

    /// The same, where more is made than is needed.
    pub(super) fn of_more(self, made: Rectangle, changes: &[AtSite<PixelChange>]) -> Self {
        match changes.is_empty() {
            true => Self { made, split: 0, kept: made, changed: made },
            false => Self { made, ..self },
        }
    }

    /// The place in memory where the pixels are made. If nothing is cut off, they have their last place at once.
    pub(super) fn place(&self) -> Rectangle {
        if self.is_cut() { self.made } else { self.changed }
    }

    /// Whether the other changes need less than is made.
    pub(super) fn is_cut(&self) -> bool {
        self.made != self.kept
    }
}

/// Places frames for an image of this size, and finds the needed region of each.
pub(super) fn placed(frames: &[Framed], key: u64, picture: Size) -> Vec<PlacedFrame> {
    let mut size = picture;
    let place = |Framed { frame, .. }: &Framed| {
        let placed = frame.step.placed(&mut Draws::new(key, frame.site), size);
        size = frame.step.size;
        PlacedFrame { placed, region: Region::before(&[], key, size, Rectangle::whole(size)) }
    };
    let mut placed: Vec<PlacedFrame> = frames.iter().map(place).collect();
    let mut needed = Rectangle::whole(size);
    for (framed, placed) in frames.iter().zip(&mut placed).rev() {
        placed.region = Region::before(&framed.changes, key, framed.frame.step.size, needed);
        needed = placed.placed.reads(placed.region.made);
    }
    placed
}
