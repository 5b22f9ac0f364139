//! Image operators as steps on one image, so that a chain of operators runs image by image.
//!
//! An operator on images describes its work on one image as a [`Step`]. By itself it runs over a column
//! (`frame_each`, `change_each`, `widen_each`). In a chain it runs on each image while the image is in the
//! processor's cache. Only the last step of a chain produces a column ([`fuse()`]), and each step makes only the pixels
//! that later steps need (`regions`). Both ways run the same steps, so their results agree bit for bit.

mod chain;
mod change;
mod deferred;
mod frame;
mod fuse;
mod order;
mod regions;
#[cfg(test)]
mod tests;

use arrow::array::ArrayRef;
use arrow::datatypes::UInt8Type;
use datafusion::common::Result;
use forebay_arrays::{Widen, pool};

use crate::decode_image::Limits;
use crate::image_column::{self, ImageLayout, Images, Rectangle};
use crate::operator::Arguments;
use crate::resample::Resampler;
use crate::strip::Strip;

pub use change::PixelChange;
pub use deferred::{defer, is_last_step};
pub use frame::Frame;
pub(crate) use frame::Span;
pub(crate) use fuse::chain_costs;
pub use fuse::fuse;
pub use order::{MovedCall, Sizing, described, relaxed, sizing};

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
                placed.fill(Strip::whole(image), Rectangle::whole(frame.size), out, &mut resampler)?;
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
