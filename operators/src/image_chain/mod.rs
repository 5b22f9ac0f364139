//! Image operators as steps on one image, so that a chain of them runs image by image.
//!
//! An operator on images says what it does with one of them: a [`Step`]. Alone it runs over a column ([`frame_each`],
//! [`change_each`], [`widen_each`]). Within a chain it runs on each image while that is in the processor's cache, no step but the last
//! has a column of its own, and of a file only the part is decoded that the chain looks at ([`fuse`]). Both ways run
//! the same steps, so they agree bit for bit.

mod chain;
mod fuse;
mod later;
#[cfg(test)]
mod tests;

use std::fmt;

use arrow::array::ArrayRef;
use arrow::datatypes::{Field, Float32Type, UInt8Type};
use datafusion::common::Result;

use forebay_jpeg::Scale;

use crate::keyed::Draws;
use crate::operator::Arguments;
use crate::pool;
use crate::resample::{Interpolation, Resampler};
use crate::tensor::{self, CHANNELS, Image, Images, Layout, Rectangle, Size};

pub use fuse::fuse;
pub use later::Later;

/// What a thread keeps of an operator's memory from column to column: a large photograph's pixels, not those of a poster.
pub(crate) const KEPT_BYTES_MAX: usize = 16 << 20;

/// What an operator does with one image.
#[derive(Debug)]
pub enum Step {
    /// Makes pixels of a file. Only where a chain begins.
    Decode {
        /// Whether a frame that shrinks may have them of a smaller picture.
        fast: bool,
    },
    /// Makes an image of one size of a part of the image.
    Frame(Frame),
    /// Changes pixels where they are.
    Change(Change),
    /// Gives each channel's values others, as floats. Only where a chain ends.
    Widen(Widen),
}

/// A new image of a part of another.
pub struct Frame {
    pub(crate) size: Size,
    pub(crate) part: PartOf,
}

/// Which part of an image of some size goes into a frame, and how. A deterministic operator draws nothing.
pub(crate) enum PartOf {
    /// The part is scaled to the frame's size. Pixels outside of it have no influence.
    Scaled(Box<Draw<Rectangle>>, Interpolation),
    /// Rows and columns are copied; where there are none, the frame is black.
    Copied(Box<Draw<[Span; 2]>>),
}

/// What is copied along one side: `len` pixels from `source` to `target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) target: usize,
    pub(crate) len: usize,
}

/// What is drawn for an image of some size.
type Draw<T> = dyn Fn(&mut Draws, Size) -> T + Send + Sync;

type Paint = dyn Fn(&mut Draws, &mut [u8], Size) + Send + Sync;

/// A change of an image in its own memory.
pub struct Change {
    pub(crate) paint: Box<Paint>,
    /// Whether each pixel becomes what it becomes wherever it stands and whatever stands beside it, and black stays black:
    /// then cutting a part out first gives the same.
    pub(crate) is_of_pixels: bool,
}

/// The float that each of the 256 values of each channel becomes.
#[derive(Debug)]
pub struct Widen(pub(crate) Box<[[f32; 256]; CHANNELS]>);

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} x {})", self.size.height, self.size.width)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Change")
    }
}

impl Frame {
    /// A frame of the size that the call names, to which a part is scaled as it says.
    pub(crate) fn scaled(
        arguments: &Arguments,
        part: impl Fn(&mut Draws, Size) -> Rectangle + Send + Sync + 'static,
    ) -> Result<Self> {
        let part = PartOf::Scaled(Box::new(part), Interpolation::of(arguments)?);
        Ok(Self { size: named_size(arguments)?, part })
    }

    /// A frame of the size that the call names, into which rows and columns are copied.
    pub(crate) fn copied(
        arguments: &Arguments,
        spans: impl Fn(&mut Draws, Size, Size) -> [Span; 2] + Send + Sync + 'static,
    ) -> Result<Self> {
        let size = named_size(arguments)?;
        Ok(Self { size, part: PartOf::Copied(Box::new(move |draws, have| spans(draws, have, size))) })
    }

    /// Which pixels of an image of this size it looks at, and how they go into the frame.
    fn placed(&self, draws: &mut Draws, have: Size) -> Placed {
        match &self.part {
            PartOf::Scaled(part, interpolation) => Placed { part: part(draws, have), way: Way::Scaled(*interpolation) },
            PartOf::Copied(spans) => {
                let [rows, columns] = spans(draws, have);
                Placed {
                    part: Rectangle { top: rows.source, left: columns.source, height: rows.len, width: columns.len },
                    way: Way::Copied { top: rows.target, left: columns.target },
                }
            }
        }
    }
}

/// A part of an image that goes into a frame.
struct Placed {
    part: Rectangle,
    way: Way,
}

/// An image in which the part is, and where.
pub(crate) struct Taken<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) part: Rectangle,
    /// What is wanted of the part, where that is not whole pixels: left, top, width and height from the part's corner.
    pub(crate) within: Option<[f64; 4]>,
}

/// How it does.
enum Way {
    Scaled(Interpolation),
    /// To this row and column.
    Copied {
        top: usize,
        left: usize,
    },
}

impl Placed {
    /// At which scale a file may be decoded so that what goes into a frame of this size is much the same: the pixels
    /// decoded are at least twice as many along each side, which is what Pillow calls a reducing gap of 2.
    fn scale(&self, size: Size) -> Scale {
        let suffices = |scale: &Scale| {
            let least = 2 * scale.denominator();
            self.part.height >= least * size.height && self.part.width >= least * size.width
        };
        match self.way {
            Way::Scaled(interpolation) if interpolation.averages() => {
                Scale::ALL.into_iter().rev().find(suffices).unwrap_or(Scale::Whole)
            }
            _ => Scale::Whole,
        }
    }

    /// Fills the frame from an image.
    fn fill(&self, taken: Taken, out: &mut [u8], size: Size, resampler: &mut Resampler) -> Result<()> {
        let Taken { image, part, within } = taken;
        let (top, left) = match self.way {
            Way::Scaled(interpolation) => return resampler.run(interpolation, image, (part, within), out, size),
            Way::Copied { top, left } => (top, left),
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

impl Change {
    /// A change that looks at more than one pixel, or moves pixels.
    pub(crate) fn of_images(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), is_of_pixels: false }
    }

    /// A change of each pixel by itself that leaves black as it is.
    pub(crate) fn of_pixels(paint: impl Fn(&mut Draws, &mut [u8], Size) + Send + Sync + 'static) -> Self {
        Self { paint: Box::new(paint), is_of_pixels: true }
    }
}

impl Widen {
    pub(crate) fn fill(&self, pixels: &[u8], out: &mut [f32]) {
        let [red, green, blue] = &*self.0;
        for (value, [r, g, b]) in out.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(pixels.as_chunks::<CHANNELS>().0) {
            *value = [red[usize::from(*r)], green[usize::from(*g)], blue[usize::from(*b)]];
        }
    }
}

fn named_size(arguments: &Arguments) -> Result<Size> {
    Ok(Size { height: arguments.positive("height")?, width: arguments.positive("width")? })
}

/// Runs an operator that is a [`Frame`] over the column `image`. Nulls stay null.
pub(crate) fn frame_each(operator: &str, arguments: &Arguments, frame: &Frame) -> Result<ArrayRef> {
    let images = Images::try_new(arguments.field("image")?, arguments.array("image")?)?;
    let layout = Layout::fixed(operator, images.len(), frame.size)?;
    let mut out = pool::outputs().take_filled(layout.values());
    let mut resampler = Resampler::default();
    for row in 0..images.len() {
        let out = &mut out.values()[layout.range(row)];
        match images.get(row)? {
            Some(image) => {
                let placed = frame.placed(&mut arguments.draws_of(row), image.size());
                let taken = Taken { image, part: placed.part, within: None };
                placed.fill(taken, out, frame.size, &mut resampler)?;
            }
            None => out.fill(0),
        }
    }
    layout.array::<UInt8Type>(out.freeze().into(), images.nulls().cloned())
}

/// Runs an operator that is a [`Change`] over the column `image`, in its memory if nobody else holds it.
pub(crate) fn change_each(arguments: &mut Arguments, change: &Change) -> Result<ArrayRef> {
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
    tensor::change_pixels(array, |pixels| {
        for (row, range, size) in places {
            (change.paint)(&mut arguments.draws_of(row), &mut pixels[range], size);
        }
    })
}

/// Runs an operator that is a [`Widen`] over the column `image`.
pub(crate) fn widen_each(operator: &str, arguments: &Arguments, widen: &Widen) -> Result<ArrayRef> {
    let (field, array) = (arguments.field("image")?, arguments.array("image")?);
    widen_column(operator, field, &Images::try_new(field, array)?, widen)
}

fn widen_column(operator: &str, field: &Field, images: &Images, widen: &Widen) -> Result<ArrayRef> {
    let layout = Layout::of(operator, field, images)?;
    let mut out = pool::outputs().take_filled(layout.values() * size_of::<f32>());
    for row in 0..images.len() {
        let out = &mut out.values::<f32>()[layout.range(row)];
        match images.get(row)? {
            Some(image) => widen.fill(image.pixels, out),
            None => out.fill(0.0),
        }
    }
    layout.array::<Float32Type>(out.freeze().into(), images.nulls().cloned())
}
