//! Changes of an image in place.

use std::fmt;

use crate::image_column::{Rectangle, Size};
use crate::keyed::Draws;

type Paint = dyn Fn(&mut Draws, &mut [u8], Size) + Send + Sync;

/// A function from an image's size and a region of the result to the pixels from which the region is made.
type Moved = dyn Fn(&mut Draws, Size, Rectangle) -> Rectangle + Send + Sync;

/// A change of an image in place.
pub struct PixelChange {
    pub(super) paint: Box<Paint>,
    reads: Reads,
}

/// The pixels from which a change makes each pixel.
enum Reads {
    /// Any, or the result depends on the position.
    Image,
    /// The pixel itself. The change of a region is the region of the change.
    Itself,
    /// The mirrored pixel. The change of a region is the region of the change, at another place.
    Mirrored(Box<Moved>),
}

impl fmt::Debug for PixelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PixelChange")
    }
}

impl PixelChange {
    /// Makes a change that depends on more than one pixel, or on positions.
    pub(crate) fn of_images(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), reads: Reads::Image }
    }

    /// Makes a pixelwise change: the result of a pixel depends neither on its position nor on its neighbours.
    pub(crate) fn of_pixels(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), reads: Reads::Itself }
    }

    /// Makes a change that mirrors an image with probability `p`. `mirrored` is where a region comes from.
    pub(crate) fn mirrored(p: f64, mirror: fn(&mut [u8], Size), mirrored: fn(Size, Rectangle) -> Rectangle) -> Self {
        let paint = move |draws: &mut Draws, pixels: &mut [u8], size: Size| {
            if draws.uniform() < p {
                mirror(pixels, size);
            }
        };
        let moved = move |draws: &mut Draws, size: Size, region: Rectangle| {
            if draws.uniform() < p { mirrored(size, region) } else { region }
        };
        Self { paint: Box::new(paint), reads: Reads::Mirrored(Box::new(moved)) }
    }

    /// Whether the change depends on all of the image.
    pub(super) fn reads_image(&self) -> bool {
        matches!(self.reads, Reads::Image)
    }

    /// Returns the region of an image of this size that the change needs to make a region of its result.
    pub(super) fn reads(&self, draws: &mut Draws, size: Size, region: Rectangle) -> Rectangle {
        match &self.reads {
            Reads::Image => Rectangle::whole(size),
            Reads::Itself => region,
            Reads::Mirrored(moved) => moved(draws, size, region),
        }
    }
}
