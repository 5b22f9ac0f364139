//! The samples of one row of MCUs, between the transform and the pixels.
//!
//! A band keeps only the last few rows of the previous row of MCUs, so the samples stay in the first-level caches for
//! an image of any size.

use std::ops::Range;

use crate::blocks::BLOCK;
use crate::colour::{self, BIAS_H2V1, BIAS_H2V2, HalfWidthRow};
use crate::cpu::Cpu;
use crate::geometry::{Geometry, KEPT_GROUPS, Plane, Upsampling};
use crate::header::Colour;

/// Memory for samples, reused from file to file.
#[derive(Debug, Default)]
pub(crate) struct Band {
    samples: Vec<u8>,
    /// Rows of colour differences at half width: see `colour::sums`.
    sums: [Vec<u16>; 2],
    /// Rows upsampled to full width.
    rows: [Vec<u8>; 4],
}

impl Band {
    pub(crate) fn bytes(&self) -> usize {
        let sums = self.sums.iter().map(|sums| sums.capacity() * size_of::<u16>()).sum::<usize>();
        self.samples.capacity() + sums + self.rows.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Allocates memory for an image.
    pub(crate) fn prepare(&mut self, geometry: &Geometry) {
        grow(&mut self.samples, geometry.samples);
        let width = geometry.region.width + 2 + 64;
        self.sums.iter_mut().for_each(|sums| grow(sums, width / 2 + 64));
        self.rows.iter_mut().for_each(|row| grow(row, width));
    }

    /// Returns the start and the stride of a block in the current row of MCUs. `row` and `column` count the blocks that
    /// the region needs.
    pub(crate) fn start(plane: &Plane, row: usize, column: usize) -> (usize, usize) {
        let first = KEPT_GROUPS * plane.vertical;
        (plane.start + (first + plane.side * row) * plane.stride + plane.side * column, plane.stride)
    }

    /// Transforms two blocks to `side` x `side` samples each.
    #[inline]
    pub(crate) fn pair(
        &mut self,
        cpu: Cpu,
        side: usize,
        blocks: &mut [i16; 2 * BLOCK],
        lasts: [u8; 2],
        starts: [(usize, usize); 2],
    ) {
        cpu.pair(side, blocks, lasts, &mut self.samples, starts);
    }

    /// Writes the pixels that a complete row of MCUs makes possible, and keeps the rows that the next one needs.
    pub(crate) fn finish(&mut self, cpu: Cpu, geometry: &Geometry, colour: Colour, mcu_row: usize, out: &mut [u8]) {
        let region = geometry.region;
        let lag = if geometry.context { geometry.vertical } else { 0 };
        let height = geometry.unit * geometry.vertical;
        let begin = if mcu_row == geometry.rows.start { 0 } else { mcu_row * height - lag };
        let bottom = region.top + region.height;
        let end = if mcu_row + 1 == geometry.rows.end { bottom } else { (mcu_row + 1) * height - lag };
        for row in begin.max(region.top)..end.min(bottom) {
            let out = &mut out[(row - region.top) * region.width * 3..][..region.width * 3];
            self.row(cpu, geometry, colour, mcu_row, row, out);
        }
        if geometry.context {
            for plane in geometry.planes() {
                let group = plane.vertical * plane.stride;
                let last = plane.start + geometry.unit * group..plane.start + (geometry.unit + KEPT_GROUPS) * group;
                self.samples.copy_within(last, plane.start);
            }
        }
    }

    /// Writes one row of pixels.
    fn row(&mut self, cpu: Cpu, geometry: &Geometry, colour: Colour, mcu_row: usize, row: usize, out: &mut [u8]) {
        let Self { samples, sums, rows } = self;
        let source = BandRows { geometry, samples, mcu_row };
        let left = geometry.region.left;
        if colour == Colour::Grey {
            let grey = source.full(0, row);
            return cpu.triple(&[grey; 3], false, out);
        }
        let upsampling = |number: usize| geometry.plane(number).upsampling;
        let differences = matches!(colour, Colour::YCbCr | Colour::Ycck);
        let half = matches!(upsampling(1), Upsampling::H2V1 | Upsampling::H2V2) && upsampling(1) == upsampling(2);
        if colour == Colour::YCbCr && upsampling(0) == Upsampling::Full && half {
            let [cb, cr] = sums;
            let bias = source.sums(cpu, 1, row, cb);
            source.sums(cpu, 2, row, cr);
            let skip = left % 2;
            let luma = source.row(0, row, left - skip);
            return cpu.pairs(&HalfWidthRow { luma, cb, cr, bias, skip }, out);
        }
        let count = geometry.planes().len();
        for (number, made) in rows.iter_mut().enumerate().take(count) {
            source.upsample(cpu, number, row, &mut sums[0], made);
        }
        let full = |number: usize| match upsampling(number) {
            Upsampling::Full => source.full(number, row),
            _ => rows[number].as_slice(),
        };
        match colour {
            Colour::Cmyk | Colour::Ycck => colour::inks([full(0), full(1), full(2), full(3)], differences, out),
            _ => cpu.triple(&[full(0), full(1), full(2)], differences, out),
        }
    }
}

fn grow<T: Copy + Default>(memory: &mut Vec<T>, len: usize) {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
}

/// The samples of a row of MCUs and the rows kept of the previous one.
struct BandRows<'a> {
    geometry: &'a Geometry,
    samples: &'a [u8],
    mcu_row: usize,
}

impl<'a> BandRows<'a> {
    /// Returns a row of a component from a column to its end. Row and column count the component's samples.
    fn row(&self, number: usize, row: usize, column: usize) -> &'a [u8] {
        let plane = self.geometry.plane(number);
        let row = row + KEPT_GROUPS * plane.vertical - self.mcu_row * self.geometry.unit * plane.vertical;
        let column = column - self.geometry.columns.start * self.geometry.unit * plane.horizontal;
        let start = plane.start + row * plane.stride;
        &self.samples[start + column..start + plane.stride]
    }

    /// Returns a row of a full-size component, from the region's left edge.
    fn full(&self, number: usize, row: usize) -> &'a [u8] {
        self.row(number, row, self.geometry.region.left)
    }

    /// Returns the neighbouring row that contributes a quarter to a row of pixels, for a component of half height.
    fn neighbour(plane: &Plane, row: usize) -> usize {
        let this = row / 2;
        if row.is_multiple_of(2) { this.saturating_sub(1) } else { (this + 1).min(plane.height - 1) }
    }

    /// Computes the sums of a row at half width, from one sample before the region to one after it. Returns the
    /// rounding bias.
    fn sums(&self, cpu: Cpu, number: usize, row: usize, out: &mut [u16]) -> [i16; 2] {
        let plane = self.geometry.plane(number);
        let region = self.geometry.region;
        let Range { start, end } = region.left / 2..(region.left + region.width).div_ceil(2);
        let from = start.saturating_sub(1);
        let to = (end + 1).min(plane.width);
        // The outermost samples of an image stand in for those beyond its edge.
        let place = from + 1 - start;
        let out = &mut out[..end - start + 2];
        let inner = &mut out[place..place + to - from];
        let bias = if plane.upsampling == Upsampling::H2V2 {
            let far = self.row(number, Self::neighbour(plane, row), from);
            cpu.sums(self.row(number, row / 2, from), Some(far), inner);
            BIAS_H2V2
        } else {
            cpu.sums(self.row(number, row, from), None, inner);
            BIAS_H2V1
        };
        if place == 1 {
            out[0] = out[1];
        }
        if to == end {
            out[end - start + 1] = out[end - start];
        }
        bias
    }

    /// Upsamples a component's row to full width within the region.
    fn upsample(&self, cpu: Cpu, number: usize, row: usize, sums: &mut [u16], out: &mut [u8]) {
        let plane = self.geometry.plane(number);
        let region = self.geometry.region;
        let columns = region.left..region.left + region.width;
        match plane.upsampling {
            Upsampling::Full => {}
            Upsampling::H2V1 | Upsampling::H2V2 => {
                let bias = self.sums(cpu, number, row, sums);
                let skip = region.left % 2;
                for (column, out) in (skip..skip + region.width).zip(out) {
                    *out = colour::between(sums, bias, column);
                }
            }
            Upsampling::H1V2 => {
                let near = self.row(number, row / 2, region.left);
                let far = self.row(number, Self::neighbour(plane, row), region.left);
                let bias = 1 + row as u16 % 2;
                for ((out, near), far) in out.iter_mut().zip(near).zip(far).take(columns.len()) {
                    *out = ((3 * u16::from(*near) + u16::from(*far) + bias) >> 2) as u8;
                }
            }
            Upsampling::Repeat(right, down) => {
                let first = region.left / right;
                let source = self.row(number, row / down, first);
                for (column, out) in columns.zip(out) {
                    *out = source[column / right - first];
                }
            }
        }
    }
}
