//! The blocks of a sequential scan (T.81, F.2.2). Decoding spends most of its time in this loop.

use crate::bits::Bits;
use crate::error::{Error, OVERFULL};
use crate::huffman::{AC_BITS, AcEntries, AcTable, DcTable, END, SLOW, Symbol, extend_some};
use crate::standard::ZIGZAG;

/// Maximum number of blocks in an MCU (T.81, B.2.3).
pub(crate) const MCU_BLOCKS_MAX: usize = 10;
/// Coefficients in a block.
pub(crate) const BLOCK: usize = 64;
/// The last index of a block.
const LAST: usize = BLOCK - 1;

/// The output of a block, with room after it. An index is one byte, so stores need no bounds check.
pub(crate) type PaddedBlock = [i16; 4 * BLOCK];
/// Blocks of room after the last block.
pub(crate) const PADDING_BLOCKS: usize = 3;

/// Positions in a block by index in zigzag order. Indices past the block map to the first coefficient after it.
static PLACES: [u8; 256] = {
    let mut places = [BLOCK as u8; 256];
    let mut at = 0;
    while at < BLOCK {
        places[at] = ZIGZAG[at];
        at += 1;
    }
    places
};

/// The quantization factor of each index.
#[derive(Debug, Clone)]
pub(crate) struct QuantizationSteps([i32; 256]);

impl Default for QuantizationSteps {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl QuantizationSteps {
    /// Sets the factors. `quantization` is in zigzag order.
    pub(crate) fn set(&mut self, quantization: &[u16; BLOCK]) {
        self.0.iter_mut().zip(quantization).for_each(|(step, factor)| *step = i32::from(*factor));
    }

    /// Stores a value truncated to 16 bits, like the vector code of libjpeg-turbo.
    #[inline(always)]
    fn store(&self, place: usize, value: i32, out: &mut PaddedBlock) {
        let place = place & 255;
        out[usize::from(PLACES[place])] = value.wrapping_mul(self.0[place]) as i16;
    }
}

/// Tables and settings for one block of an MCU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockSpec<'a> {
    /// The component's index, for the prediction.
    pub(crate) component: usize,
    pub(crate) dc: &'a DcTable,
    pub(crate) ac: &'a AcTable,
    pub(crate) steps: &'a QuantizationSteps,
    /// Whether to keep only the first coefficient.
    pub(crate) mean: bool,
}

/// The previous DC value of each component.
pub(crate) type Predictions = [i32; 4];

/// Reads MCUs. Writes dequantized coefficients to consecutive blocks of zeros, with room for one more block after them.
/// `lasts` receives the last coded index of each block, or 0 for a block of which only the mean is kept.
#[inline(always)]
pub(crate) fn read(
    bits: &mut Bits<'_>,
    mcu: &[BlockSpec<'_>],
    predictions: &mut Predictions,
    coefficients: &mut [i16],
    lasts: &mut [u8],
) -> Result<(), Error> {
    let mut reader = *bits;
    let mut nowhere = [0; 4 * BLOCK];
    let mut at = 0;
    for lasts in lasts.chunks_exact_mut(mcu.len()) {
        for (spec, last) in mcu.iter().zip(lasts) {
            let out = coefficients[at..].first_chunk_mut().expect("room for one more");
            *last = if spec.mean {
                block::<false>(&mut reader, spec, predictions, &mut nowhere)?;
                spec.steps.store(0, predictions[spec.component % 4], out);
                0
            } else {
                block::<true>(&mut reader, spec, predictions, out)?
            };
            at += BLOCK;
        }
    }
    *bits = reader;
    Ok(())
}

/// Skips MCUs.
#[inline(always)]
pub(crate) fn skip(
    bits: &mut Bits<'_>,
    mcu: &[BlockSpec<'_>],
    predictions: &mut Predictions,
    mcus: usize,
) -> Result<(), Error> {
    let mut reader = *bits;
    let mut nowhere = [0; 4 * BLOCK];
    for _ in 0..mcus {
        for spec in mcu {
            block::<false>(&mut reader, spec, predictions, &mut nowhere)?;
        }
    }
    *bits = reader;
    Ok(())
}

/// Decodes the one or two coefficients in the next bits. Returns the last index, and the table entry.
#[inline(always)]
fn probe<const STORE: bool>(
    bits: &mut Bits<'_>,
    entries: &AcEntries,
    steps: &QuantizationSteps,
    place: usize,
    out: &mut PaddedBlock,
) -> (usize, u64) {
    let entry = entries[(bits.word >> (64 - AC_BITS)) as usize];
    let first = place + (entry >> 8 & 255) as usize;
    let second = first + (entry >> 16 & 255) as usize;
    if STORE {
        // Store the second coefficient first. An entry without a second one gives it the first one's index, so the
        // first overwrites it.
        steps.store(second, ((entry as i64) >> 48) as i32, out);
        steps.store(first, extend_some(bits.word << (entry >> 24 & 63), (entry >> 32) as u32), out);
    }
    bits.consume(entry as u32);
    (second, entry)
}

#[inline(always)]
fn block<const STORE: bool>(
    bits: &mut Bits<'_>,
    spec: &BlockSpec<'_>,
    predictions: &mut Predictions,
    out: &mut PaddedBlock,
) -> Result<u8, Error> {
    let BlockSpec { dc, ac, steps, component, .. } = *spec;
    let entries = &*ac.entries;
    bits.check()?;
    bits.refill();
    let prediction = &mut predictions[component % 4];
    *prediction = prediction.wrapping_add(dc.read(bits)?);
    if STORE {
        steps.store(0, *prediction, out);
    }
    // One refill covers a DC difference and a probe, or two probes of 21 bits each.
    let (mut place, mut entry) = probe::<STORE>(bits, entries, steps, 0, out);
    loop {
        if place < LAST {
            bits.refill();
            (place, entry) = probe::<STORE>(bits, entries, steps, place, out);
            if place < LAST {
                (place, entry) = probe::<STORE>(bits, entries, steps, place, out);
                continue;
            }
        }
        if place.wrapping_sub(END) < LAST {
            return Ok((place - END) as u8);
        }
        if place == LAST {
            return Ok(LAST as u8);
        }
        let (after, next) = unusual(*bits, spec, place, entry, out)?;
        *bits = after;
        if next >= LAST {
            return Ok((next % END) as u8);
        }
        place = next;
    }
}

/// Continues after a probe that did not decide. Returns an index in the block, `LAST`, or a value above `END` for an
/// end.
#[cold]
#[inline(never)]
fn unusual<'a>(
    mut bits: Bits<'a>,
    spec: &BlockSpec<'_>,
    place: usize,
    entry: u64,
    out: &mut PaddedBlock,
) -> Result<(Bits<'a>, usize), Error> {
    let byte = |shift: u32| (entry >> shift & 255) as usize;
    if byte(8) == SLOW {
        bits.refill();
        let place = place - SLOW;
        return match spec.ac.read(&mut bits)? {
            Symbol::End => Ok((bits, place + END)),
            Symbol::Value(ahead, _) if place + ahead > LAST => Err(OVERFULL),
            Symbol::Value(ahead, value) => {
                spec.steps.store(place + ahead, value, out);
                Ok((bits, place + ahead))
            }
        };
    }
    // The first coefficient filled the block. The second belongs to the next block, so its bits are given back.
    if byte(16) != 0 && place - byte(16) == LAST {
        bits.give_back(byte(0) - byte(24) - byte(32));
        return Ok((bits, LAST));
    }
    Err(OVERFULL)
}
