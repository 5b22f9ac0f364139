//! Sequential scans of the whole frame: each block is transformed as soon as it is read, and only where the region needs it.

use crate::Error;
use crate::band::Band;
use crate::bits::Entropy;
use crate::blocks::{BLOCK, MCU_BLOCKS_MAX, ROOM_BLOCKS, Reading, Steps};
use crate::cpu::Cpu;
use crate::header::Colour;
use crate::huffman::Tables;
use crate::layout::Layout;
use crate::scan::{Intervals, Scan};

/// MCUs that are read before their blocks are transformed: enough to make pairs, few enough to stay in the first cache.
const CHUNK: usize = 8;
const CHUNK_BLOCKS: usize = CHUNK * MCU_BLOCKS_MAX;

/// Blocks on their way from the file to the transform. Between files all coefficients are zero, unless one failed.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) coefficients: Box<[i16; (CHUNK_BLOCKS + ROOM_BLOCKS) * BLOCK]>,
    pub(crate) lasts: [u8; CHUNK_BLOCKS],
}

impl Default for Chunk {
    fn default() -> Self {
        Self { coefficients: Box::new([0; (CHUNK_BLOCKS + ROOM_BLOCKS) * BLOCK]), lasts: [0; CHUNK_BLOCKS] }
    }
}

impl Chunk {
    /// Two of the blocks, by the number of the first.
    pub(crate) fn pair(&mut self, first: usize) -> &mut [i16; 2 * BLOCK] {
        self.coefficients[first * BLOCK..].first_chunk_mut().expect("a block behind it")
    }
}

/// A block of an MCU.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    component: usize,
    row: usize,
    column: usize,
}

/// The blocks of an MCU in the order of the file, and how each is read.
pub(crate) struct Mcu<'a> {
    places: [Place; MCU_BLOCKS_MAX],
    readings: [Reading<'a>; MCU_BLOCKS_MAX],
    count: usize,
}

impl<'a> Mcu<'a> {
    pub(crate) fn new(layout: &Layout, scan: &Scan, tables: &'a Tables, steps: &'a [Steps; 4]) -> Result<Self, Error> {
        let alone = scan.parts().len() == 1;
        if !alone && !layout.fits_mcu(scan.parts().iter().map(|part| part.component)) {
            return Err(Error::Damaged("more than 10 blocks in an MCU"));
        }
        let mut places = [Place::default(); MCU_BLOCKS_MAX];
        let mut readings = None;
        let mut count = 0;
        for part in scan.parts() {
            let plane = layout.plane(part.component);
            let component = plane.component;
            let (dc, ac) = (tables.dc[part.dc].get()?, tables.ac[part.ac].get()?);
            let mean = plane.side == 1;
            let reading = Reading { component: part.component, dc, ac, steps: &steps[part.component], mean };
            let readings = readings.get_or_insert([reading; MCU_BLOCKS_MAX]);
            // By itself a component has MCUs of one block.
            for at in 0..if alone { 1 } else { component.horizontal * component.vertical } {
                let (row, column) = (at / component.horizontal, at % component.horizontal);
                places[count] = Place { component: part.component, row, column };
                readings[count] = reading;
                count += 1;
            }
        }
        let readings = readings.ok_or(Error::Damaged("a scan without components"))?;
        Ok(Self { places, readings, count })
    }

    pub(crate) fn readings(&self) -> &[Reading<'a>] {
        &self.readings[..self.count]
    }
}

/// Where pixels go.
pub(crate) struct Output<'a> {
    pub(crate) cpu: Cpu,
    pub(crate) layout: &'a Layout,
    pub(crate) colour: Colour,
    pub(crate) band: &'a mut Band,
    pub(crate) chunk: &'a mut Chunk,
    pub(crate) pixels: &'a mut [u8],
}

/// Decodes a scan of all components to pixels.
pub(crate) fn decode(output: Output<'_>, mcu: &Mcu<'_>, entropy: &Entropy, interval: usize) -> Result<(), Error> {
    let Output { cpu, layout, colour, band, chunk, pixels } = output;
    let mut intervals = Intervals::new(entropy, interval)?;
    let (columns, rows) = (&layout.columns, &layout.rows);
    let skip = |intervals: &mut Intervals<'_>, mut mcus: usize| {
        while mcus > 0 {
            let (count, _) = intervals.take(mcus)?;
            cpu.skip(&mut intervals.bits, mcu.readings(), &mut intervals.predictions, count)?;
            mcus -= count;
        }
        Ok(())
    };
    skip(&mut intervals, rows.start * layout.mcus_wide)?;
    for row in rows.clone() {
        skip(&mut intervals, columns.start)?;
        let mut column = 0;
        while column < columns.len() {
            let (count, _) = intervals.take(CHUNK.min(columns.len() - column))?;
            let blocks = count * mcu.count;
            let coefficients = chunk.coefficients.as_mut_slice();
            let lasts = &mut chunk.lasts[..blocks];
            cpu.read(&mut intervals.bits, mcu.readings(), &mut intervals.predictions, coefficients, lasts)?;
            transform(cpu, layout, band, chunk, mcu, column, blocks);
            column += count;
        }
        skip(&mut intervals, layout.mcus_wide - columns.end)?;
        band.finish(cpu, layout, colour, row, pixels);
    }
    skip(&mut intervals, (layout.mcus_high - rows.end) * layout.mcus_wide)?;
    intervals.bits.finish()
}

/// Transforms the blocks of a chunk, the first MCU of which is in a column among those needed.
fn transform(
    cpu: Cpu,
    layout: &Layout,
    band: &mut Band,
    chunk: &mut Chunk,
    mcu: &Mcu<'_>,
    column: usize,
    blocks: usize,
) {
    let mut places = [(0, (0, 0)); MCU_BLOCKS_MAX];
    let mut steps = [0; MCU_BLOCKS_MAX];
    for (at, place) in mcu.places[..mcu.count].iter().enumerate() {
        let plane = layout.plane(place.component);
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

/// Transforms a block without a second one of its size, as its own second.
fn alone(cpu: Cpu, band: &mut Band, block: &mut [i16], side: usize, start: (usize, usize), last: u8) {
    let mut pair = [0; 2 * BLOCK];
    pair.chunks_exact_mut(BLOCK).for_each(|copy| copy.copy_from_slice(block));
    block.fill(0);
    band.pair(cpu, side, &mut pair, [last; 2], [start; 2]);
}
