//! Samples of one row of MCUs on their way to pixels.
//!
//! Only the last few rows of the row of MCUs above are kept, so that samples stay in the first caches however large the
//! picture is.

use std::ops::Range;

use crate::blocks::BLOCK;
use crate::colour::{self, BIAS_H2V1, BIAS_H2V2, Pairs};
use crate::cpu::Cpu;
use crate::header::Colour;
use crate::layout::{KEPT_GROUPS, Layout, Plane, Upsampling};

/// Memory for samples, kept from file to file.
#[derive(Debug, Default)]
pub(crate) struct Band {
    samples: Vec<u8>,
    /// Rows of differences of half width: see `colour::sums`.
    sums: [Vec<u16>; 2],
    /// Rows of full width that had to be made.
    rows: [Vec<u8>; 4],
}

impl Band {
    pub(crate) fn bytes(&self) -> usize {
        let sums = self.sums.iter().map(|sums| sums.capacity() * size_of::<u16>()).sum::<usize>();
        self.samples.capacity() + sums + self.rows.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Makes room for a picture.
    pub(crate) fn prepare(&mut self, layout: &Layout) {
        grow(&mut self.samples, layout.samples);
        let width = layout.region.width + 2 + 64;
        self.sums.iter_mut().for_each(|sums| grow(sums, width / 2 + 64));
        self.rows.iter_mut().for_each(|row| grow(row, width));
    }

    /// Where a block of the current row of MCUs begins, by its place among those needed.
    pub(crate) fn start(plane: &Plane, row: usize, column: usize) -> (usize, usize) {
        let first = KEPT_GROUPS * plane.vertical;
        (plane.start + (first + plane.side * row) * plane.stride + plane.side * column, plane.stride)
    }

    /// Transforms two blocks to so many samples to a side.
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

    /// Writes the pixels that can be made once a row of MCUs is complete, and keeps what the next one needs.
    pub(crate) fn finish(&mut self, cpu: Cpu, layout: &Layout, colour: Colour, mcu_row: usize, out: &mut [u8]) {
        let region = layout.region;
        let lag = if layout.context { layout.vertical } else { 0 };
        let height = layout.unit * layout.vertical;
        let begin = if mcu_row == layout.rows.start { 0 } else { mcu_row * height - lag };
        let bottom = region.top + region.height;
        let end = if mcu_row + 1 == layout.rows.end { bottom } else { (mcu_row + 1) * height - lag };
        for row in begin.max(region.top)..end.min(bottom) {
            let out = &mut out[(row - region.top) * region.width * 3..][..region.width * 3];
            self.row(cpu, layout, colour, mcu_row, row, out);
        }
        if layout.context {
            for plane in layout.planes() {
                let group = plane.vertical * plane.stride;
                let last = plane.start + layout.unit * group..plane.start + (layout.unit + KEPT_GROUPS) * group;
                self.samples.copy_within(last, plane.start);
            }
        }
    }

    /// Makes one row of pixels.
    fn row(&mut self, cpu: Cpu, layout: &Layout, colour: Colour, mcu_row: usize, row: usize, out: &mut [u8]) {
        let Self { samples, sums, rows } = self;
        let source = Source { layout, samples, mcu_row };
        let left = layout.region.left;
        if colour == Colour::Grey {
            let grey = source.full(0, row);
            return cpu.triple(&[grey; 3], false, out);
        }
        let upsampling = |number: usize| layout.plane(number).upsampling;
        let differences = matches!(colour, Colour::YCbCr | Colour::Ycck);
        let half = matches!(upsampling(1), Upsampling::H2V1 | Upsampling::H2V2) && upsampling(1) == upsampling(2);
        if colour == Colour::YCbCr && upsampling(0) == Upsampling::Full && half {
            let [cb, cr] = sums;
            let bias = source.sums(cpu, 1, row, cb);
            source.sums(cpu, 2, row, cr);
            let skip = left % 2;
            let luma = source.row(0, row, left - skip);
            return cpu.pairs(&Pairs { luma, cb, cr, bias, skip }, out);
        }
        let count = layout.planes().len();
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

/// The samples of a row of MCUs and of those kept of the one above.
struct Source<'a> {
    layout: &'a Layout,
    samples: &'a [u8],
    mcu_row: usize,
}

impl<'a> Source<'a> {
    /// A row of a component from a column on, both counted in its samples.
    fn row(&self, number: usize, row: usize, column: usize) -> &'a [u8] {
        let plane = self.layout.plane(number);
        let row = row + KEPT_GROUPS * plane.vertical - self.mcu_row * self.layout.unit * plane.vertical;
        let column = column - self.layout.columns.start * self.layout.unit * plane.horizontal;
        let start = plane.start + row * plane.stride;
        &self.samples[start + column..start + plane.stride]
    }

    /// A row of a component of full size, from the region's left edge on.
    fn full(&self, number: usize, row: usize) -> &'a [u8] {
        self.row(number, row, self.layout.region.left)
    }

    /// The row that contributes a quarter to a row of pixels, where rows are half as many.
    fn neighbour(plane: &Plane, row: usize) -> usize {
        let this = row / 2;
        if row.is_multiple_of(2) { this.saturating_sub(1) } else { (this + 1).min(plane.height - 1) }
    }

    /// Sums of a row of half width: from one before the region's first to one behind its last, and what rounds them.
    fn sums(&self, cpu: Cpu, number: usize, row: usize, out: &mut [u16]) -> [i16; 2] {
        let plane = self.layout.plane(number);
        let region = self.layout.region;
        let Range { start, end } = region.left / 2..(region.left + region.width).div_ceil(2);
        let from = start.saturating_sub(1);
        let to = (end + 1).min(plane.width);
        // The outermost samples of a picture stand for those beyond it.
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

    /// Makes a row of full width in the region of one that is not.
    fn upsample(&self, cpu: Cpu, number: usize, row: usize, sums: &mut [u16], out: &mut [u8]) {
        let plane = self.layout.plane(number);
        let region = self.layout.region;
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
