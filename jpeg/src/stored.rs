//! Frames of several scans, whose coefficients are stored until the last scan: progressive frames, and sequential
//! frames with a scan per component.

use crate::bits::Entropy;
use crate::blocks::{BLOCK, MCU_BLOCKS_MAX, PADDING_BLOCKS, QuantizationSteps};
use crate::error::{CUT_SHORT, Error};
use crate::geometry::{Geometry, Plane};
use crate::header::Coding;
use crate::huffman::Tables;
use crate::progressive;
use crate::scan::{Intervals, Scan};
use crate::sequential::{Mcu, PixelOutput};
use crate::standard::ZIGZAG;

/// Bytes of coefficients that are kept from file to file.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// The coefficients of an image.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Coefficients block by block, each block row by row, not yet dequantized.
    pub(crate) coefficients: Vec<i16>,
    /// The last coded zigzag index of each block.
    pub(crate) lasts: Vec<u8>,
    /// The first block of each component.
    starts: [usize; 4],
    /// Components whose DC coefficients have been read.
    pub(crate) seen: [bool; 4],
    /// Whether a scan has been read since `prepare`.
    used: bool,
}

/// The input of a scan of a stored frame.
pub(crate) struct ScanInput<'a> {
    pub(crate) geometry: &'a Geometry,
    pub(crate) scan: &'a Scan,
    pub(crate) tables: &'a Tables,
    pub(crate) entropy: &'a Entropy,
    pub(crate) interval: usize,
}

impl Stored {
    pub(crate) fn bytes(&self) -> usize {
        self.coefficients.capacity() * size_of::<i16>() + self.lasts.capacity()
    }

    /// Forgets the previous image.
    pub(crate) fn reset(&mut self) {
        self.seen = [false; 4];
        self.used = false;
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used
    }

    /// Reads a scan. The file's size bounds memory, because a block takes at least one bit. The image's size bounds
    /// time, because each scan visits a block at most once, and the number of scans is bounded.
    pub(crate) fn read(
        &mut self,
        cpu: crate::cpu::Cpu,
        coding: Coding,
        input: &ScanInput<'_>,
        file_len: usize,
    ) -> Result<(), Error> {
        if !self.used {
            self.prepare(input.geometry, file_len)?;
        }
        match coding {
            Coding::Progressive => progressive::read(self, input),
            Coding::Sequential => self.sequential(cpu, input),
        }
    }

    fn prepare(&mut self, geometry: &Geometry, file_len: usize) -> Result<(), Error> {
        let coefficients = geometry.coefficients();
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
        for (place, plane) in self.starts.iter_mut().zip(geometry.planes()) {
            *place = start;
            start += plane.stored_wide * plane.stored_high;
        }
        Ok(())
    }

    /// Returns the number of a component's block.
    pub(crate) fn block(&self, component: usize, plane: &Plane, row: usize, column: usize) -> usize {
        self.starts[component] + row * plane.stored_wide + column
    }

    /// Returns the coefficients of a block.
    pub(crate) fn at(&mut self, block: usize) -> &mut [i16; BLOCK] {
        self.coefficients[block * BLOCK..].first_chunk_mut().expect("blocks are whole")
    }

    fn sequential(&mut self, cpu: crate::cpu::Cpu, input: &ScanInput<'_>) -> Result<(), Error> {
        let ScanInput { geometry, scan, tables, entropy, interval } = *input;
        for part in scan.parts() {
            if std::mem::replace(&mut self.seen[part.component], true) {
                return Err(Error::Damaged("two scans of a component"));
            }
        }
        let mut plain = QuantizationSteps::default();
        plain.set(&[1; BLOCK]);
        let plain = std::array::from_fn(|_| plain.clone());
        let mcu = Mcu::new(geometry, scan, tables, &plain)?;
        let specs = mcu.specs();
        let mut intervals = Intervals::new(entropy, interval)?;
        let mut coefficients = [0; (MCU_BLOCKS_MAX + PADDING_BLOCKS) * BLOCK];
        let mut lasts = [0; MCU_BLOCKS_MAX];
        let lasts = &mut lasts[..specs.len()];
        let (high, wide) = extent(geometry, scan);
        for row in 0..high {
            for column in 0..wide {
                intervals.take(1)?;
                coefficients.fill(0);
                cpu.read(&mut intervals.bits, specs, &mut intervals.predictions, &mut coefficients, lasts)?;
                let mut read = coefficients.chunks_exact(BLOCK).zip(lasts.iter());
                for_blocks(geometry, scan, row, column, |component, plane, row, column| {
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

    /// Writes the pixels of all scans read so far.
    pub(crate) fn finish(&mut self, output: PixelOutput<'_>, quantization: &[[u16; BLOCK]; 4]) -> Result<(), Error> {
        let PixelOutput { cpu, geometry, colour, band, chunk, pixels } = output;
        if !self.seen[..geometry.planes().len()].iter().all(|seen| *seen) {
            return Err(Error::Damaged("no scan for a component"));
        }
        let mut factors = [[0; BLOCK]; 4];
        for (factors, quantization) in factors.iter_mut().zip(quantization) {
            for (place, factor) in ZIGZAG.iter().zip(quantization) {
                factors[usize::from(*place)] = *factor as i16;
            }
        }
        for mcu_row in geometry.rows.clone() {
            for (component, plane) in geometry.planes().enumerate() {
                let (horizontal, vertical) = (plane.component.horizontal, plane.component.vertical);
                let columns = geometry.columns.start * horizontal..geometry.columns.end * horizontal;
                for row in 0..vertical {
                    for column in (0..columns.len()).step_by(2) {
                        // An odd row pairs its last block with itself.
                        let both = [column, (column + 1).min(columns.len() - 1)];
                        let numbers =
                            both.map(|at| self.block(component, plane, mcu_row * vertical + row, columns.start + at));
                        let pair = chunk.pair(0);
                        for (out, number) in pair.chunks_exact_mut(BLOCK).zip(numbers) {
                            // A block that becomes one sample uses only its first coefficient.
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
            band.finish(cpu, geometry, colour, mcu_row, pixels);
        }
        Ok(())
    }
}

/// Returns the number of rows and columns of MCUs in a scan. A scan of one component has blocks as MCUs (T.81, A.2.2).
pub(crate) fn extent(geometry: &Geometry, scan: &Scan) -> (usize, usize) {
    match scan.parts() {
        [part] => {
            let plane = geometry.plane(part.component);
            (plane.blocks_high, plane.blocks_wide)
        }
        _ => (geometry.mcus_high, geometry.mcus_wide),
    }
}

/// Calls `f` for each block of an MCU, in file order, with the block's component, plane, row and column.
#[inline(always)]
pub(crate) fn for_blocks(
    geometry: &Geometry,
    scan: &Scan,
    row: usize,
    column: usize,
    mut call: impl FnMut(usize, &Plane, usize, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    if let [part] = scan.parts() {
        return call(part.component, geometry.plane(part.component), row, column);
    }
    for part in scan.parts() {
        let plane = geometry.plane(part.component);
        let (horizontal, vertical) = (plane.component.horizontal, plane.component.vertical);
        for at in 0..horizontal * vertical {
            let (down, right) = (at / horizontal, at % horizontal);
            call(part.component, plane, row * vertical + down, column * horizontal + right)?;
        }
    }
    Ok(())
}
