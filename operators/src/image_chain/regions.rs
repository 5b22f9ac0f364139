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

/// The region of an image of a chain that is made, and where its pixels are after the changes of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) made: Rectangle,
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
        let reads = |region, at: &AtSite<PixelChange>| at.step.reads(&mut Draws::new(key, at.site), size, region);
        let made = changes.iter().rev().fold(needed, reads);
        // A change of all pixels gives all pixels.
        Self { made, changed: if made == Rectangle::whole(size) { made } else { needed } }
    }

    /// The region of an image without changes, or of all of it.
    pub(super) fn unchanged(region: Rectangle) -> Self {
        Self { made: region, changed: region }
    }
}

/// Places frames for an image of this size, and finds the needed region of each.
pub(super) fn placed(frames: &[Framed], key: u64, picture: Size) -> Vec<PlacedFrame> {
    let mut size = picture;
    let place = |Framed { frame, .. }: &Framed| {
        let placed = frame.step.placed(&mut Draws::new(key, frame.site), size);
        size = frame.step.size;
        PlacedFrame { placed, region: Region::unchanged(Rectangle::whole(size)) }
    };
    let mut placed: Vec<PlacedFrame> = frames.iter().map(place).collect();
    let mut needed = Rectangle::whole(size);
    for (framed, placed) in frames.iter().zip(&mut placed).rev() {
        placed.region = Region::before(&framed.changes, key, framed.frame.step.size, needed);
        needed = placed.placed.reads(placed.region.made);
    }
    placed
}
