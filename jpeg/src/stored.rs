//! Frames of several scans, whose coefficients are stored until the last: progressive ones, and sequential ones with a scan
//! per component.

use crate::bits::Entropy;
use crate::blocks::{BLOCK, MCU_BLOCKS_MAX, ROOM_BLOCKS, Steps};
use crate::error::{CUT_SHORT, Error};
use crate::header::Coding;
use crate::huffman::Tables;
use crate::layout::{Layout, Plane};
use crate::progressive;
use crate::scan::{Intervals, Part, Scan};
use crate::sequential::{Mcu, Output};
use crate::standard::ZIGZAG;

/// Bytes of coefficients that are kept from file to file.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// How often scans may visit each block, on average. Encoders' scripts have some ten scans of a component; each visit under a run of
/// blocks costs 64 steps and no byte of the file.
const VISITS_MAX: usize = 30;

/// The coefficients of a picture.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Block by block, each row by row, not yet multiplied.
    pub(crate) coefficients: Vec<i16>,
    /// For each block the last place that was coded, in the order of the file.
    pub(crate) lasts: Vec<u8>,
    /// The first block of each component.
    starts: [usize; 4],
    /// Blocks that scans may still visit.
    budget: usize,
    /// Components of which DC coefficients came.
    pub(crate) seen: [bool; 4],
    /// Whether a scan came since `prepare`.
    used: bool,
}

/// What scans of stored frames share.
pub(crate) struct Source<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) scan: &'a Scan,
    pub(crate) tables: &'a Tables,
    pub(crate) entropy: &'a Entropy,
    pub(crate) interval: usize,
}

impl Stored {
    pub(crate) fn bytes(&self) -> usize {
        self.coefficients.capacity() * size_of::<i16>() + self.lasts.capacity()
    }

    /// Forgets the last picture.
    pub(crate) fn reset(&mut self) {
        self.seen = [false; 4];
        self.used = false;
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Reads a scan. Memory and time are bounded by the file's size: no block takes less than a bit, and scans may visit
    /// each block a hundred times, or 64 blocks per byte.
    pub(crate) fn read(
        &mut self,
        cpu: crate::cpu::Cpu,
        coding: Coding,
        source: &Source<'_>,
        file_len: usize,
    ) -> Result<(), Error> {
        if !self.used {
            self.prepare(source.layout, file_len)?;
        }
        let visits: usize = source.scan.parts().iter().map(|part| self.blocks(source, part)).sum();
        self.budget = self.budget.checked_sub(visits).ok_or(Error::Damaged("too many scans for its size"))?;
        match coding {
            Coding::Progressive => progressive::read(self, source),
            Coding::Sequential => self.sequential(cpu, source),
        }
    }

    fn prepare(&mut self, layout: &Layout, file_len: usize) -> Result<(), Error> {
        let coefficients = layout.coefficients();
        let blocks = coefficients / BLOCK;
        if blocks > file_len * 8 {
            return Err(CUT_SHORT);
        }
        self.used = true;
        self.coefficients.clear();
        self.coefficients.shrink_to(KEPT_BYTES_MAX / 2);
        self.coefficients.resize(coefficients, 0);
        self.lasts.clear();
        self.lasts.resize(blocks, 0);
        let mut start = 0;
        for (place, plane) in self.starts.iter_mut().zip(layout.planes()) {
            *place = start;
            start += plane.stored_wide * plane.stored_high;
        }
        self.budget = blocks.saturating_mul(VISITS_MAX).saturating_add(file_len.saturating_mul(64));
        Ok(())
    }

    fn blocks(&self, source: &Source<'_>, part: &Part) -> usize {
        let plane = source.layout.plane(part.component);
        plane.stored_wide * plane.stored_high
    }

    /// The number of a block of a component.
    pub(crate) fn block(&self, component: usize, plane: &Plane, row: usize, column: usize) -> usize {
        self.starts[component] + row * plane.stored_wide + column
    }

    /// The coefficients of a block.
    pub(crate) fn at(&mut self, block: usize) -> &mut [i16; BLOCK] {
        self.coefficients[block * BLOCK..].first_chunk_mut().expect("blocks are whole")
    }

    fn sequential(&mut self, cpu: crate::cpu::Cpu, source: &Source<'_>) -> Result<(), Error> {
        let Source { layout, scan, tables, entropy, interval } = *source;
        for part in scan.parts() {
            if std::mem::replace(&mut self.seen[part.component], true) {
                return Err(Error::Damaged("two scans of a component"));
            }
        }
        let mut plain = Steps::default();
        plain.set(&[1; BLOCK]);
        let plain = std::array::from_fn(|_| plain.clone());
        let mcu = Mcu::new(layout, scan, tables, &plain)?;
        let readings = mcu.readings();
        let mut intervals = Intervals::new(entropy, interval)?;
        let mut coefficients = [0; (MCU_BLOCKS_MAX + ROOM_BLOCKS) * BLOCK];
        let mut lasts = [0; MCU_BLOCKS_MAX];
        let lasts = &mut lasts[..readings.len()];
        let (high, wide) = extent(layout, scan);
        for row in 0..high {
            for column in 0..wide {
                intervals.take(1)?;
                coefficients.fill(0);
                cpu.read(&mut intervals.bits, readings, &mut intervals.predictions, &mut coefficients, lasts)?;
                let mut read = coefficients.chunks_exact(BLOCK).zip(lasts.iter());
                for_blocks(layout, scan, row, column, |component, plane, row, column| {
                    let block = self.block(component, plane, row, column);
                    if let Some((coefficients, last)) = read.next() {
                        self.at(block).copy_from_slice(coefficients);
                        self.lasts[block] = *last;
                    }
                    Ok(())
                })?;
            }
        }
        intervals.bits.finish()
    }

    /// Makes pixels of all that was read.
    pub(crate) fn finish(&mut self, output: Output<'_>, quantization: &[[u16; BLOCK]; 4]) -> Result<(), Error> {
        let Output { cpu, layout, colour, band, chunk, pixels } = output;
        if !self.seen[..layout.planes().len()].iter().all(|seen| *seen) {
            return Err(Error::Damaged("no scan for a component"));
        }
        let mut factors = [[0; BLOCK]; 4];
        for (factors, quantization) in factors.iter_mut().zip(quantization) {
            for (place, factor) in ZIGZAG.iter().zip(quantization) {
                factors[usize::from(*place)] = *factor as i16;
            }
        }
        for mcu_row in layout.rows.clone() {
            for (component, plane) in layout.planes().enumerate() {
                let (horizontal, vertical) = (plane.component.horizontal, plane.component.vertical);
                let columns = layout.columns.start * horizontal..layout.columns.end * horizontal;
                for row in 0..vertical {
                    for column in (0..columns.len()).step_by(2) {
                        // At the end of an odd row the last block is its own second.
                        let both = [column, (column + 1).min(columns.len() - 1)];
                        let numbers =
                            both.map(|at| self.block(component, plane, mcu_row * vertical + row, columns.start + at));
                        let pair = chunk.pair(0);
                        for (out, number) in pair.chunks_exact_mut(BLOCK).zip(numbers) {
                            // Of a block that becomes one sample, only the first coefficient counts.
                            let used = if plane.side == 1 { 1 } else { BLOCK };
                            for ((out, value), factor) in
                                out.iter_mut().zip(self.at(number)).zip(&factors[component]).take(used)
                            {
                                *out = value.wrapping_mul(*factor);
                            }
                        }
                        let lasts = numbers.map(|number| self.lasts[number]);
                        band.pair(
                            cpu,
                            plane.side,
                            pair,
                            lasts,
                            both.map(|at| crate::band::Band::start(plane, row, at)),
                        );
                    }
                }
            }
            band.finish(cpu, layout, colour, mcu_row, pixels);
        }
        Ok(())
    }
}

/// Rows and columns of a scan's MCUs; those of a component alone are blocks (T.81, A.2.2).
pub(crate) fn extent(layout: &Layout, scan: &Scan) -> (usize, usize) {
    match scan.parts() {
        [part] => {
            let plane = layout.plane(part.component);
            (plane.blocks_high, plane.blocks_wide)
        }
        _ => (layout.mcus_high, layout.mcus_wide),
    }
}

/// Calls for each block of an MCU, in the order of the file, with the block's component, row and column.
#[inline(always)]
pub(crate) fn for_blocks(
    layout: &Layout,
    scan: &Scan,
    row: usize,
    column: usize,
    mut call: impl FnMut(usize, &Plane, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if let [part] = scan.parts() {
        return call(part.component, layout.plane(part.component), row, column);
    }
    for part in scan.parts() {
        let plane = layout.plane(part.component);
        let (horizontal, vertical) = (plane.component.horizontal, plane.component.vertical);
        for at in 0..horizontal * vertical {
            let (down, right) = (at / horizontal, at % horizontal);
            call(part.component, plane, row * vertical + down, column * horizontal + right)?;
        }
    }
    Ok(())
}
