//! Image operators as steps on one image, so that a chain of operators runs image by image.
//!
//! An operator on images describes its work on one image as a [`Step`]. By itself it runs over a column
//! (`frame_each`, `change_each`, `widen_each`). In a chain it runs on each image while the image is in the
//! processor's cache. Only the last step of a chain produces a column, and a file is decoded only where the chain needs
//! its pixels ([`fuse()`]). Both ways run the same steps, so their results agree bit for bit.

mod chain;
mod deferred;
mod fuse;
#[cfg(test)]
mod tests;

use std::fmt;

use arrow::array::ArrayRef;
use arrow::datatypes::UInt8Type;
use datafusion::common::Result;
use forebay_arrays::{Widen, pool};
use forebay_jpeg::Scale;

use crate::decode_image::Limits;
use crate::image_column::{self, CHANNELS, Image, ImageLayout, Images, Rectangle, Size};
use crate::keyed::Draws;
use crate::operator::Arguments;
use crate::resample::{Interpolation, Resampler};

pub use deferred::{defer, is_last_step};
pub(crate) use fuse::chain_costs;
pub use fuse::fuse;

/// Memory that a thread keeps between columns for one operator. A large photograph fits; a poster does not.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;

/// The work of an operator on one image.
#[derive(Debug)]
pub enum Step {
    /// Decodes a file to pixels. Only the first step of a chain decodes.
    Decode {
        /// Whether a frame that shrinks the image may use a reduced image.
        fast: bool,
        /// The largest image that is decoded.
        limits: Limits,
    },
    /// Makes an image of a fixed size from a part of the image.
    Frame(Frame),
    /// Changes pixels in place.
    Change(PixelChange),
    /// Maps each channel's values to floats. Only the last step of a chain widens.
    Widen(Widen),
}

/// A new image made from a part of another one.
pub struct Frame {
    pub(crate) size: Size,
    pub(crate) part: PartOf,
}

/// The part of an image that goes into a frame, and the way it does. A deterministic operator draws nothing.
pub(crate) enum PartOf {
    /// Scales the part to the frame's size. Pixels outside the part have no influence.
    Scaled(Box<Draw<Rectangle>>, Interpolation),
    /// Scales an area, in fractions of pixels, to the frame's size. Pixels around it have an influence.
    Area(Box<Area>, Interpolation),
    /// Copies rows and columns. The rest of the frame is black.
    Copied(Box<Draw<[Span; 2]>>),
}

/// A function from an image's size to an area of it: left, top, width and height.
type Area = dyn Fn(Size) -> [f64; 4] + Send + Sync;

/// The most pixels of a result that a kernel reaches to each side.
const KERNEL_REACH: f64 = 3.0;

/// A copy along one side: `len` pixels from `source` to `target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) target: usize,
    pub(crate) len: usize,
}

/// A function that draws a value for an image of some size.
type Draw<T> = dyn Fn(&mut Draws, Size) -> T + Send + Sync;

type Paint = dyn Fn(&mut Draws, &mut [u8], Size) + Send + Sync;

/// A change of an image in place.
pub struct PixelChange {
    pub(crate) paint: Box<Paint>,
    /// Whether the change is pixelwise and keeps black: the result of a pixel depends neither on its position nor on
    /// its neighbours, and black stays black. Then cropping first gives the same result.
    pub(crate) is_of_pixels: bool,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} x {})", self.size.height, self.size.width)
    }
}

impl fmt::Debug for PixelChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PixelChange")
    }
}

impl Frame {
    /// Makes a frame of the size that the call names. `PartOf::Scaled` fills it.
    pub(crate) fn scaled(
        arguments: &Arguments,
        part: impl Fn(&mut Draws, Size) -> Rectangle + Send + Sync + 'static,
    ) -> Result<Self> {
        let part = PartOf::Scaled(Box::new(part), Interpolation::of(arguments)?);
        Ok(Self { size: named_size(arguments)?, part })
    }

    /// Makes a frame of the size that the call names. `PartOf::Copied` fills it.
    pub(crate) fn copied(
        arguments: &Arguments,
        spans: impl Fn(&mut Draws, Size, Size) -> [Span; 2] + Send + Sync + 'static,
    ) -> Result<Self> {
        let size = named_size(arguments)?;
        Ok(Self { size, part: PartOf::Copied(Box::new(move |draws, have| spans(draws, have, size))) })
    }

    /// Makes a frame of the size that the call names, of an area of the image.
    pub(crate) fn of_area(
        arguments: &Arguments,
        area: impl Fn(Size, Size) -> [f64; 4] + Send + Sync + 'static,
    ) -> Result<Self> {
        let (size, interpolation) = (named_size(arguments)?, Interpolation::of(arguments)?);
        if interpolation == Interpolation::Area {
            return arguments.refuse("interpolation", "must not be 'area', which scales whole images");
        }
        Ok(Self { size, part: PartOf::Area(Box::new(move |have| area(have, size)), interpolation) })
    }

    /// Draws the pixels to use of an image of this size, and their position in the frame.
    fn placed(&self, draws: &mut Draws, have: Size) -> Placed {
        match &self.part {
            PartOf::Scaled(part, interpolation) => {
                Placed { part: part(draws, have), area: None, way: FrameFill::Scaled(*interpolation) }
            }
            PartOf::Area(area, interpolation) => {
                let [left, top, width, height] = area(have);
                let along = |first: f64, len: f64, to: usize, side: usize| {
                    let reach = KERNEL_REACH * (len / to as f64).max(1.0) + 1.0;
                    let (start, end) = ((first - reach).max(0.0) as usize, (first + len + reach).ceil() as usize);
                    (start, end.min(side) - start)
                };
                let (x, part_width) = along(left, width, self.size.width, have.width);
                let (y, part_height) = along(top, height, self.size.height, have.height);
                let part = Rectangle { top: y, left: x, height: part_height, width: part_width };
                let area = Some([left - x as f64, top - y as f64, width, height]);
                Placed { part, area, way: FrameFill::Scaled(*interpolation) }
            }
            PartOf::Copied(spans) => {
                let [rows, columns] = spans(draws, have);
                Placed {
                    part: Rectangle { top: rows.source, left: columns.source, height: rows.len, width: columns.len },
                    area: None,
                    way: FrameFill::Copied { top: rows.target, left: columns.target },
                }
            }
        }
    }
}

/// The part of an image that a frame uses.
struct Placed {
    part: Rectangle,
    /// The area of the part that is scaled, if it is not all of it.
    area: Option<[f64; 4]>,
    way: FrameFill,
}

/// An image that contains the part, and the part's position in it.
pub(crate) struct TakenPart<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) part: Rectangle,
    /// The wanted area if it is not whole pixels: left, top, width and height, relative to the part's corner.
    pub(crate) within: Option<[f64; 4]>,
}

/// The way a part fills a frame.
enum FrameFill {
    Scaled(Interpolation),
    /// Copied to this row and column.
    Copied {
        top: usize,
        left: usize,
    },
}

impl Placed {
    /// Returns the scale at which a file may be decoded for a frame of this size with nearly the same result. The
    /// decoded part has at least twice as many pixels along each side as the frame. Pillow calls this a reducing gap of
    /// 2.
    fn scale(&self, size: Size) -> Scale {
        let suffices = |scale: &Scale| {
            let least = 2 * scale.denominator();
            self.part.height >= least * size.height && self.part.width >= least * size.width
        };
        match self.way {
            FrameFill::Scaled(interpolation) if interpolation.averages() => {
                Scale::ALL.into_iter().rev().find(suffices).unwrap_or(Scale::Whole)
            }
            _ => Scale::Whole,
        }
    }

    /// Returns an area of the part as an area of the pixels that were taken for it, maybe from a smaller image.
    fn area_in(&self, [left, top, width, height]: [f64; 4], taken: Rectangle, within: Option<[f64; 4]>) -> [f64; 4] {
        let whole = [0.0, 0.0, taken.width as f64, taken.height as f64];
        let [x, y, part_width, part_height] = within.unwrap_or(whole);
        let (across, down) = (part_width / self.part.width as f64, part_height / self.part.height as f64);
        let along = |first: f64, len: f64, side: usize| {
            let first = first.clamp(0.0, side as f64);
            // Rounding may reach beyond the last pixel.
            (first, len.min(side as f64 - first))
        };
        let (left, width) = along(x + left * across, width * across, taken.width);
        let (top, height) = along(y + top * down, height * down, taken.height);
        [left, top, width, height]
    }

    /// Fills the frame from an image.
    fn fill(&self, taken: TakenPart, out: &mut [u8], size: Size, resampler: &mut Resampler) -> Result<()> {
        let TakenPart { image, part, within } = taken;
        let (top, left) = match self.way {
            FrameFill::Scaled(interpolation) => {
                let within = self.area.map_or(within, |area| Some(self.area_in(area, part, within)));
                return resampler.run(interpolation, image, (part, within), out, size);
            }
            FrameFill::Copied { top, left } => (top, left),
        };
        if (part.height, part.width) != (size.height, size.width) {
            out.fill(0);
        }
        let len = part.width * CHANNELS;
        for row in 0..part.height {
            let source = ((part.top + row) * image.width + part.left) * CHANNELS;
            let target = ((top + row) * size.width + left) * CHANNELS;
            out[target..target + len].copy_from_slice(&image.pixels[source..source + len]);
        }
        Ok(())
    }
}

impl PixelChange {
    /// Makes a change that moves pixels, or depends on more than one pixel.
    pub(crate) fn of_images(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), is_of_pixels: false }
    }

    /// Makes a pixelwise change that keeps black.
    pub(crate) fn of_pixels(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), is_of_pixels: true }
    }
}

fn named_size(arguments: &Arguments) -> Result<Size> {
    Ok(Size { height: arguments.positive("height")?, width: arguments.positive("width")? })
}

/// Runs an operator that is a [`Frame`] over the column `image`. Nulls stay null.
pub(crate) fn frame_each(operator: &str, arguments: &Arguments, frame: &Frame) -> Result<ArrayRef> {
    let images = Images::try_new(arguments.field("image")?, arguments.array("image")?)?;
    let layout = ImageLayout::fixed(operator, images.len(), frame.size)?;
    let mut out = pool::outputs().take_filled(layout.values());
    let mut resampler = Resampler::default();
    for row in 0..images.len() {
        let out = &mut out.values()[layout.range(row)];
        match images.get(row)? {
            Some(image) => {
                let placed = frame.placed(&mut arguments.draws_of(row), image.size());
                let taken = TakenPart { image, part: placed.part, within: None };
                placed.fill(taken, out, frame.size, &mut resampler)?;
            }
            None => out.fill(0),
        }
    }
    layout.array::<UInt8Type>(out.freeze().into(), images.nulls().cloned())
}

/// Runs an operator that is a [`PixelChange`] over the column `image`. It reuses the column's memory if nobody else
/// owns it.
pub(crate) fn change_each(arguments: &mut Arguments, change: &PixelChange) -> Result<ArrayRef> {
    let array = arguments.take_array("image")?;
    let images = Images::try_new(arguments.field("image")?, &array)?;
    let mut places = Vec::with_capacity(images.len());
    for row in 0..images.len() {
        if let Some(image) = images.get(row)? {
            let start = images.start(row);
            places.push((row, start..start + image.pixels.len(), image.size()));
        }
    }
    drop(images);
    image_column::change_pixels(array, |pixels| {
        for (row, range, size) in places {
            (change.paint)(&mut arguments.draws_of(row), &mut pixels[range], size);
        }
    })
}

/// Runs an operator that is a [`Widen`] over the column `image`.
pub(crate) fn widen_each(operator: &str, arguments: &Arguments, widen: &Widen) -> Result<ArrayRef> {
    let (field, array) = (arguments.field("image")?, arguments.array("image")?);
    widen.apply(field, array).map_err(|error| image_column::column_error(operator, error))
}
