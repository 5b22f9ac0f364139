//! Frames: images of a fixed size made from a part of another image.

use std::fmt;

use datafusion::common::Result;
use forebay_jpeg::Scale;

use crate::decode_image::PartDecode;
use crate::image_column::{CHANNELS, Rectangle, Size};
use crate::keyed::Draws;
use crate::operator::Arguments;
use crate::resample::{Interpolation, KERNEL_REACH, Resampler, Resampling};
use crate::strip::Strip;

/// A new image made from a part of another one.
pub struct Frame {
    pub(super) size: Size,
    part: PartOf,
}

/// The part of an image that goes into a frame, and the way it does. A deterministic operator draws nothing.
enum PartOf {
    /// Scales the part to the frame's size. Pixels outside the part have no influence.
    Scaled(Box<Draw<Rectangle>>, Interpolation),
    /// Scales an area, in fractions of pixels, to the frame's size. Pixels around it have an influence.
    Area(Box<Area>, Interpolation),
    /// Copies rows and columns. The rest of the frame is black.
    Copied(Box<Draw<[Span; 2]>>),
}

/// A function that draws a value for an image of some size.
type Draw<T> = dyn Fn(&mut Draws, Size) -> T + Send + Sync;

/// A function from an image's size to an area of it: left, top, width and height.
type Area = dyn Fn(Size) -> [f64; 4] + Send + Sync;

/// A copy along one side: `len` pixels from `source` to `target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) target: usize,
    pub(crate) len: usize,
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame({} x {})", self.size.height, self.size.width)
    }
}

impl Frame {
    /// Makes a frame of the size that the call names, into which a part of the image is scaled.
    pub(crate) fn scaled(
        arguments: &Arguments,
        part: impl Fn(&mut Draws, Size) -> Rectangle + Send + Sync + 'static,
    ) -> Result<Self> {
        let part = PartOf::Scaled(Box::new(part), Interpolation::of(arguments)?);
        Ok(Self { size: named_size(arguments)?, part })
    }

    /// Makes a frame of the size that the call names, into which a part of the image is copied.
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
    pub(super) fn placed(&self, draws: &mut Draws, have: Size) -> Placed {
        let scaled = |part, within, interpolation| {
            let resampling = Resampling { interpolation, part, within, size: self.size };
            Placed { size: self.size, part, way: FrameFill::Scaled(resampling) }
        };
        match &self.part {
            PartOf::Scaled(part, interpolation) => scaled(part(draws, have), None, *interpolation),
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
                scaled(part, Some([left - x as f64, top - y as f64, width, height]), *interpolation)
            }
            PartOf::Copied(spans) => {
                let [rows, columns] = spans(draws, have);
                Placed {
                    size: self.size,
                    part: Rectangle { top: rows.source, left: columns.source, height: rows.len, width: columns.len },
                    way: FrameFill::Copied { top: rows.target, left: columns.target },
                }
            }
        }
    }
}

fn named_size(arguments: &Arguments) -> Result<Size> {
    Ok(Size { height: arguments.positive("height")?, width: arguments.positive("width")? })
}

/// The part of one image that fills a frame.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) size: Size,
    pub(super) part: Rectangle,
    way: FrameFill,
}

/// The way a part fills a frame.
#[derive(Debug, Clone, Copy)]
enum FrameFill {
    Scaled(Resampling),
    /// Copied to this row and column.
    Copied {
        top: usize,
        left: usize,
    },
}

impl Placed {
    /// Returns the scale at which a file may be decoded for the frame with nearly the same result. The decoded part has
    /// at least twice as many pixels along each side as the frame. Pillow calls this a reducing gap of 2.
    pub(super) fn scale(&self) -> Scale {
        let suffices = |scale: &Scale| {
            let least = 2 * scale.denominator();
            self.part.height >= least * self.size.height && self.part.width >= least * self.size.width
        };
        match self.way {
            FrameFill::Scaled(resampling) if resampling.interpolation.averages() => {
                Scale::ALL.into_iter().rev().find(suffices).unwrap_or(Scale::Whole)
            }
            _ => Scale::Whole,
        }
    }

    /// Returns the same frame, filled from the image in which its part of a file is decoded.
    pub(super) fn decoded(&self, decode: &PartDecode) -> Self {
        let way = match self.way {
            FrameFill::Scaled(resampling) => {
                let area = |area| self.area_in(area, decode.part, decode.within);
                let within = resampling.within.map_or(decode.within, |within| Some(area(within)));
                FrameFill::Scaled(Resampling { part: decode.part, within, ..resampling })
            }
            copied @ FrameFill::Copied { .. } => copied,
        };
        Self { size: self.size, part: decode.part, way }
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

    /// Returns the pixels of the image that a region of the frame needs.
    pub(super) fn reads(&self, region: Rectangle) -> Rectangle {
        match &self.way {
            FrameFill::Scaled(resampling) => resampling.reads(region),
            FrameFill::Copied { top, left } => {
                let common = self.common(region, *top, *left);
                let (top, left) = (self.part.top + common.top - top, self.part.left + common.left - left);
                Rectangle { top, left, ..common }
            }
        }
    }

    /// Returns what a region of the frame has of the part if that is at this row and column.
    fn common(&self, region: Rectangle, top: usize, left: usize) -> Rectangle {
        let along = |(first, len): (usize, usize), (part, part_len): (usize, usize)| {
            let start = first.clamp(part, part + part_len);
            (start, (first + len).clamp(start, part + part_len) - start)
        };
        let (top, height) = along((region.top, region.height), (top, self.part.height));
        let (left, width) = along((region.left, region.width), (left, self.part.width));
        Rectangle { top, left, height, width }
    }

    /// Makes a region of the frame. `image` has at least what the region [reads](Self::reads).
    pub(super) fn fill(
        &self,
        image: Strip,
        region: Rectangle,
        out: &mut [u8],
        resampler: &mut Resampler,
    ) -> Result<()> {
        let (top, left) = match &self.way {
            _ if region.is_empty() => return Ok(()),
            FrameFill::Scaled(resampling) => return resampler.run(resampling, image, region, out),
            FrameFill::Copied { top, left } => (*top, *left),
        };
        let common = self.common(region, top, left);
        if common.size() != region.size() {
            out.fill(0);
        }
        if common.is_empty() {
            return Ok(());
        }
        let (reads, line) = (self.reads(region), region.width * CHANNELS);
        for row in 0..common.height {
            let start = (common.top - region.top + row) * line + (common.left - region.left) * CHANNELS;
            let out = &mut out[start..start + common.width * CHANNELS];
            out.copy_from_slice(image.row(reads, row));
        }
        Ok(())
    }
}
