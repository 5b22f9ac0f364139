//! Sequential scans of the whole frame. A block is transformed as soon as it is read, and only if the region needs it.

use crate::Error;
use crate::band::Band;
use crate::bits::Entropy;
use crate::blocks::{BLOCK, BlockSpec, MCU_BLOCKS_MAX, PADDING_BLOCKS, QuantizationSteps};
use crate::cpu::Cpu;
use crate::geometry::Geometry;
use crate::header::Colour;
use crate::huffman::Tables;
use crate::scan::{Intervals, Scan};

/// MCUs read before their blocks are transformed: enough to make pairs, few enough to stay in the first-level cache.
const CHUNK: usize = 8;
const CHUNK_BLOCKS: usize = CHUNK * MCU_BLOCKS_MAX;

/// Blocks between reading and the transform. All coefficients are zero between files, unless a file failed.
#[derive(Debug)]
pub(crate) struct BlockChunk {
    pub(crate) coefficients: Box<[i16; (CHUNK_BLOCKS + PADDING_BLOCKS) * BLOCK]>,
    pub(crate) lasts: [u8; CHUNK_BLOCKS],
}

impl Default for BlockChunk {
    fn default() -> Self {
        Self { coefficients: Box::new([0; (CHUNK_BLOCKS + PADDING_BLOCKS) * BLOCK]), lasts: [0; CHUNK_BLOCKS] }
    }
}

impl BlockChunk {
    /// Returns two blocks, starting with block `first`.
    pub(crate) fn pair(&mut self, first: usize) -> &mut [i16; 2 * BLOCK] {
        self.coefficients[first * BLOCK..].first_chunk_mut().expect("a block behind it")
    }
}

/// A block of an MCU.
#[derive(Debug, Clone, Copy, Default)]
struct McuBlock {
    component: usize,
    row: usize,
    column: usize,
}

/// The blocks of an MCU in file order, and the tables for each.
pub(crate) struct Mcu<'a> {
    places: [McuBlock; MCU_BLOCKS_MAX],
    specs: [BlockSpec<'a>; MCU_BLOCKS_MAX],
    count: usize,
}

impl<'a> Mcu<'a> {
    pub(crate) fn new(
        geometry: &Geometry,
        scan: &Scan,
        tables: &'a Tables,
        steps: &'a [QuantizationSteps; 4],
    ) -> Result<Self, Error> {
        let alone = scan.parts().len() == 1;
        if !alone && !geometry.fits_mcu(scan.parts().iter().map(|part| part.component)) {
            return Err(Error::Damaged("more than 10 blocks in an MCU"));
        }
        let mut places = [McuBlock::default(); MCU_BLOCKS_MAX];
        let mut specs = None;
        let mut count = 0;
        for part in scan.parts() {
            let plane = geometry.plane(part.component);
            let component = plane.component;
            let (dc, ac) = (tables.dc[part.dc].get()?, tables.ac[part.ac].get()?);
            let mean = plane.side == 1;
            let spec = BlockSpec { component: part.component, dc, ac, steps: &steps[part.component], mean };
            let specs = specs.get_or_insert([spec; MCU_BLOCKS_MAX]);
            // An MCU of a single component has one block.
            for at in 0..if alone { 1 } else { component.horizontal * component.vertical } {
                let (row, column) = (at / component.horizontal, at % component.horizontal);
                places[count] = McuBlock { component: part.component, row, column };
                specs[count] = spec;
                count += 1;
            }
        }
        let specs = specs.ok_or(Error::Damaged("a scan without components"))?;
        Ok(Self { places, specs, count })
    }

    pub(crate) fn specs(&self) -> &[BlockSpec<'a>] {
        &self.specs[..self.count]
    }
}

/// The destination of pixels, and what writing them needs.
pub(crate) struct PixelOutput<'a> {
    pub(crate) cpu: Cpu,
    pub(crate) geometry: &'a Geometry,
    pub(crate) colour: Colour,
    pub(crate) band: &'a mut Band,
    pub(crate) chunk: &'a mut BlockChunk,
    pub(crate) pixels: &'a mut [u8],
}

/// Decodes a scan of all components to pixels.
pub(crate) fn decode(output: PixelOutput<'_>, mcu: &Mcu<'_>, entropy: &Entropy, interval: usize) -> Result<(), Error> {
    let PixelOutput { cpu, geometry, colour, band, chunk, pixels } = output;
    let mut intervals = Intervals::new(entropy, interval)?;
    let (columns, rows) = (&geometry.columns, &geometry.rows);
    let skip = |intervals: &mut Intervals<'_>, mut mcus: usize| {
        while mcus > 0 {
            let (count, _) = intervals.take(mcus)?;
            cpu.skip(&mut intervals.bits, mcu.specs(), &mut intervals.predictions, count)?;
            mcus -= count;
        }
        Ok(())
    };
    skip(&mut intervals, rows.start * geometry.mcus_wide)?;
    for row in rows.clone() {
        skip(&mut intervals, columns.start)?;
        let mut column = 0;
        while column < columns.len() {
            let (count, _) = intervals.take(CHUNK.min(columns.len() - column))?;
            let blocks = count * mcu.count;
            let coefficients = chunk.coefficients.as_mut_slice();
            let lasts = &mut chunk.lasts[..blocks];
            cpu.read(&mut intervals.bits, mcu.specs(), &mut intervals.predictions, coefficients, lasts)?;
            transform(cpu, geometry, band, chunk, mcu, column, blocks);
            column += count;
        }
        skip(&mut intervals, geometry.mcus_wide - columns.end)?;
        band.finish(cpu, geometry, colour, row, pixels);
    }
    skip(&mut intervals, (geometry.mcus_high - rows.end) * geometry.mcus_wide)?;
    intervals.bits.finish()
}

/// Transforms the blocks of a chunk. `column` is the column of its first MCU within the columns that the region needs.
fn transform(
    cpu: Cpu,
    geometry: &Geometry,
    band: &mut Band,
    chunk: &mut BlockChunk,
    mcu: &Mcu<'_>,
    column: usize,
    blocks: usize,
) {
    let mut places = [(0, (0, 0)); MCU_BLOCKS_MAX];
    let mut steps = [0; MCU_BLOCKS_MAX];
    for (at, place) in mcu.places[..mcu.count].iter().enumerate() {
        let plane = geometry.plane(place.component);
        steps[at] = plane.side * plane.component.horizontal;
        places[at] = (plane.side, Band::start(plane, place.row, column * plane.component.horizontal + place.column));
    }
    let (mut at, mut ahead) = (0, 0);
    let mut next = || {
        let (side, (start, stride)) = places[at];
        let place = (side, (start + ahead * steps[at], stride));
        at += 1;
        if at == mcu.count {
            (at, ahead) = (0, ahead + 1);
        }
        place
    };
    for first in (0..blocks / 2).map(|pair| 2 * pair) {
        let [(side, start), (other_side, other_start)] = [next(), next()];
        let [last, other_last] = [chunk.lasts[first], chunk.lasts[first + 1]];
        let pair = chunk.pair(first);
        if side == other_side {
            band.pair(cpu, side, pair, [last, other_last], [start, other_start]);
        } else {
            let (one, other) = pair.split_at_mut(BLOCK);
            alone(cpu, band, one, side, start, last);
            alone(cpu, band, other, other_side, other_start, other_last);
        }
    }
    if blocks % 2 == 1 {
        let ((side, start), last) = (next(), chunk.lasts[blocks - 1]);
        alone(cpu, band, &mut chunk.pair(blocks - 1)[..BLOCK], side, start, last);
    }
}

/// Transforms a block that has no partner of its size, paired with itself.
fn alone(cpu: Cpu, band: &mut Band, block: &mut [i16], side: usize, start: (usize, usize), last: u8) {
    let mut pair = [0; 2 * BLOCK];
    pair.chunks_exact_mut(BLOCK).for_each(|copy| copy.copy_from_slice(block));
    block.fill(0);
    band.pair(cpu, side, &mut pair, [last; 2], [start; 2]);
}
