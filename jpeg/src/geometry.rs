//! The positions of blocks, samples and pixels in an image, and the part of them that a region needs.

use std::ops::Range;

use crate::blocks::{BLOCK, MCU_BLOCKS_MAX};
use crate::header::{Component, Header};
use crate::{Error, Region, Scale};

/// How a component's samples are upsampled to one per pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upsampling {
    /// No upsampling is needed.
    Full,
    /// Interpolates between two samples in a row: libjpeg's `h2v1_fancy_upsample`.
    H2V1,
    /// Interpolates between four samples: `h2v2_fancy_upsample`.
    H2V2,
    /// Interpolates between two samples in a column: `h1v2_fancy_upsample`.
    H1V2,
    /// Repeats each sample this often to the right and downwards: `int_upsample`.
    Repeat(usize, usize),
}

/// The samples of a component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plane {
    pub(crate) component: Component,
    pub(crate) upsampling: Upsampling,
    /// Side of a block in samples.
    pub(crate) side: usize,
    /// Samples in each direction that share an area of pixels: the sampling factors, or multiples of them if blocks are
    /// larger than the geometry's unit.
    pub(crate) horizontal: usize,
    pub(crate) vertical: usize,
    /// Size of the whole image in samples, without padding to blocks.
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Blocks that contain a sample of the image. A scan of this component alone has exactly these.
    pub(crate) blocks_wide: usize,
    pub(crate) blocks_high: usize,
    /// Blocks including the padding to whole MCUs.
    pub(crate) stored_wide: usize,
    pub(crate) stored_high: usize,
    /// Position of the first sample in the band, and the distance between rows.
    pub(crate) start: usize,
    pub(crate) stride: usize,
}

/// The geometry of a picture and a region.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// The region in pixels of the scaled image, like all following fields.
    pub(crate) region: Region,
    /// Side of a block of a component with one sample per pixel.
    pub(crate) unit: usize,
    planes: [Option<Plane>; 4],
    /// The highest vertical sampling factor.
    pub(crate) vertical: usize,
    /// Number of MCUs in a row, and number of rows of MCUs.
    pub(crate) mcus_wide: usize,
    pub(crate) mcus_high: usize,
    /// The MCUs whose samples the region needs.
    pub(crate) columns: Range<usize>,
    pub(crate) rows: Range<usize>,
    /// Whether a row of pixels depends on the rows of samples above and below.
    pub(crate) context: bool,
    /// Number of samples in a band: one row of MCUs and the rows kept of the previous one.
    pub(crate) samples: usize,
}

/// Groups of rows that a band keeps of the row of MCUs above. A group has as many rows as the sampling factor.
pub(crate) const KEPT_GROUPS: usize = 2;

/// Side of a block in coefficients.
const BLOCK_SIDE: usize = 8;

impl Geometry {
    pub(crate) fn new(header: &Header, scale: Scale, region: Region) -> Result<Self, Error> {
        let fits = |start: usize, len: usize, whole| len > 0 && start.checked_add(len).is_some_and(|end| end <= whole);
        let scaled = header.scaled(scale);
        if !fits(region.top, region.height, scaled.height) || !fits(region.left, region.width, scaled.width) {
            return Err(Error::Region);
        }
        let components = header.components();
        let most = |factor: fn(&Component) -> usize| components.iter().map(factor).max().unwrap_or(1);
        let (horizontal, vertical) = (most(|c| c.horizontal), most(|c| c.vertical));
        let mcus_wide = header.width.div_ceil(BLOCK_SIDE * horizontal);
        let mcus_high = header.height.div_ceil(BLOCK_SIDE * vertical);
        let unit = scale.unit();
        // Interpolation reads one more sample, which covers at most `factor` pixels.
        let needed = |start: usize, len: usize, factor: usize, mcus: usize| {
            let last = (start + len + factor).div_ceil(unit * factor);
            start.saturating_sub(factor) / (unit * factor)..last.min(mcus)
        };
        let columns = needed(region.left, region.width, horizontal, mcus_wide);
        let rows = needed(region.top, region.height, vertical, mcus_high);
        let mut samples = 0;
        let mut planes = [None; 4];
        for (plane, component) in planes.iter_mut().zip(components) {
            let side = side(component, [horizontal, vertical], unit);
            let (wide, high) = (component.horizontal * side, component.vertical * side);
            let width = (header.width * wide).div_ceil(horizontal * BLOCK_SIDE);
            let height = (header.height * high).div_ceil(vertical * BLOCK_SIDE);
            // The vector code reads whole groups of 32.
            let stride = columns.len() * wide + 64;
            let upsampling = match (horizontal * unit / wide, vertical * unit / high) {
                (1, 1) => Upsampling::Full,
                // libjpeg does not interpolate if blocks are single samples.
                (right, down) if unit == 1 => Upsampling::Repeat(right, down),
                (2, 1) if width > 2 => Upsampling::H2V1,
                (2, 2) if width > 2 => Upsampling::H2V2,
                (1, 2) => Upsampling::H1V2,
                (right, down) => Upsampling::Repeat(right, down),
            };
            *plane = Some(Plane {
                component: *component,
                upsampling,
                side,
                horizontal: wide / unit,
                vertical: high / unit,
                width,
                height,
                blocks_wide: width.div_ceil(side),
                blocks_high: height.div_ceil(side),
                stored_wide: mcus_wide * component.horizontal,
                stored_high: mcus_high * component.vertical,
                start: samples,
                stride,
            });
            samples += stride * (high / unit) * (unit + KEPT_GROUPS);
        }
        let context = planes.iter().flatten().any(|p| matches!(p.upsampling, Upsampling::H2V2 | Upsampling::H1V2));
        Ok(Self { region, unit, planes, vertical, mcus_wide, mcus_high, columns, rows, context, samples })
    }

    pub(crate) fn planes(&self) -> impl ExactSizeIterator<Item = &Plane> {
        let count = self.planes.iter().flatten().count();
        self.planes[..count].iter().map(|plane| plane.as_ref().expect("the first ones are there"))
    }

    pub(crate) fn plane(&self, number: usize) -> &Plane {
        self.planes[number].as_ref().expect("a component of the frame")
    }

    /// Returns the number of coefficients in the whole image.
    pub(crate) fn coefficients(&self) -> usize {
        self.planes().map(|plane| plane.stored_wide * plane.stored_high * BLOCK).sum()
    }

    /// Returns whether an MCU of these components has at most `MCU_BLOCKS_MAX` blocks.
    pub(crate) fn fits_mcu(&self, components: impl Iterator<Item = usize>) -> bool {
        let blocks = |number: usize| self.plane(number).component.horizontal * self.plane(number).component.vertical;
        components.map(blocks).sum::<usize>() <= MCU_BLOCKS_MAX
    }
}

/// Returns the side of a component's blocks in samples. A component with fewer samples than pixels gets larger blocks,
/// up to the full 8 x 8, where they make up for it. Then it needs no upsampling (`jpeg_calc_output_dimensions`).
fn side(component: &Component, [horizontal, vertical]: [usize; 2], unit: usize) -> usize {
    let mut side = unit;
    while side < BLOCK_SIDE
        && (horizontal * unit).is_multiple_of(component.horizontal * side * 2)
        && (vertical * unit).is_multiple_of(component.vertical * side * 2)
    {
        side *= 2;
    }
    side
}
