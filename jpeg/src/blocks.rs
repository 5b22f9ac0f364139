//! Blocks of a sequential scan (T.81, F.2.2): the loop that most of the time goes to.

use crate::bits::Bits;
use crate::error::{Error, OVERFULL};
use crate::huffman::{AC_BITS, AcTable, DcTable, END, Entries, SLOW, Symbol, extend_some};
use crate::standard::ZIGZAG;

/// Blocks of an MCU at most (T.81, B.2.3).
pub(crate) const MCU_BLOCKS_MAX: usize = 10;
/// Coefficients of a block.
pub(crate) const BLOCK: usize = 64;
/// The last place of a block.
const LAST: usize = BLOCK - 1;

/// What a block is decoded to, with room behind it: a place is a byte, so nothing needs to be asked before storing.
pub(crate) type Room = [i16; 4 * BLOCK];
/// Blocks of room behind the last.
pub(crate) const ROOM_BLOCKS: usize = 3;

/// Where in a block each place in the order of the file lies. Places behind the block are the first one after it.
static PLACES: [u8; 256] = {
    let mut places = [BLOCK as u8; 256];
    let mut at = 0;
    while at < BLOCK {
        places[at] = ZIGZAG[at];
        at += 1;
    }
    places
};

/// By what the coefficient in each place is multiplied.
#[derive(Debug, Clone)]
pub(crate) struct Steps([i32; 256]);

impl Default for Steps {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Steps {
    /// `quantization` in the order of the file.
    pub(crate) fn set(&mut self, quantization: &[u16; BLOCK]) {
        self.0.iter_mut().zip(quantization).for_each(|(step, factor)| *step = i32::from(*factor));
    }

    /// Stores a value as 16 bits hold it, which is what libjpeg-turbo's vector code does.
    #[inline(always)]
    fn store(&self, place: usize, value: i32, out: &mut Room) {
        let place = place & 255;
        out[usize::from(PLACES[place])] = value.wrapping_mul(self.0[place]) as i16;
    }
}

/// How a block of an MCU is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'a> {
    /// Its place among the components, for the prediction.
    pub(crate) component: usize,
    pub(crate) dc: &'a DcTable,
    pub(crate) ac: &'a AcTable,
    pub(crate) steps: &'a Steps,
    /// Whether only its first coefficient is wanted.
    pub(crate) mean: bool,
}

/// The DC values that the next blocks are told relative to.
pub(crate) type Predictions = [i32; 4];

/// Reads MCUs. Coefficients, multiplied, go to blocks of zeros, one after the other, behind which must be room for one
/// more; `lasts` is told the last place of each that was coded, or 0 where only the mean is wanted.
#[inline(always)]
pub(crate) fn read(
    bits: &mut Bits<'_>,
    mcu: &[Reading<'_>],
    predictions: &mut Predictions,
    coefficients: &mut [i16],
    lasts: &mut [u8],
) -> Result<(), Error> {
    let mut reader = *bits;
    let mut nowhere = [0; 4 * BLOCK];
    let mut at = 0;
    for lasts in lasts.chunks_exact_mut(mcu.len()) {
        for (reading, last) in mcu.iter().zip(lasts) {
            let out = coefficients[at..].first_chunk_mut().expect("room for one more");
            *last = if reading.mean {
                block::<false>(&mut reader, reading, predictions, &mut nowhere)?;
                reading.steps.store(0, predictions[reading.component % 4], out);
                0
            } else {
                block::<true>(&mut reader, reading, predictions, out)?
            };
            at += BLOCK;
        }
    }
    *bits = reader;
    Ok(())
}

/// Passes over MCUs.
#[inline(always)]
pub(crate) fn skip(
    bits: &mut Bits<'_>,
    mcu: &[Reading<'_>],
    predictions: &mut Predictions,
    mcus: usize,
) -> Result<(), Error> {
    let mut reader = *bits;
    let mut nowhere = [0; 4 * BLOCK];
    for _ in 0..mcus {
        for reading in mcu {
            block::<false>(&mut reader, reading, predictions, &mut nowhere)?;
        }
    }
    *bits = reader;
    Ok(())
}

/// Decodes the one or two coefficients that the next bits tell. Returns the place of the last, and the entry.
#[inline(always)]
fn probe<const STORE: bool>(
    bits: &mut Bits<'_>,
    entries: &Entries,
    steps: &Steps,
    place: usize,
    out: &mut Room,
) -> (usize, u64) {
    let entry = entries[(bits.word >> (64 - AC_BITS)) as usize];
    let first = place + (entry >> 8 & 255) as usize;
    let second = first + (entry >> 16 & 255) as usize;
    if STORE {
        // The second first: where there is none it has the place of the first, which then overwrites it.
        steps.store(second, ((entry as i64) >> 48) as i32, out);
        steps.store(first, extend_some(bits.word << (entry >> 24 & 63), (entry >> 32) as u32), out);
    }
    bits.consume(entry as u32);
    (second, entry)
}

#[inline(always)]
fn block<const STORE: bool>(
    bits: &mut Bits<'_>,
    reading: &Reading<'_>,
    predictions: &mut Predictions,
    out: &mut Room,
) -> Result<u8, Error> {
    let Reading { dc, ac, steps, component, .. } = *reading;
    let entries = &*ac.entries;
    bits.check()?;
    bits.refill();
    let prediction = &mut predictions[component % 4];
    *prediction = prediction.wrapping_add(dc.read(bits)?);
    if STORE {
        steps.store(0, *prediction, out);
    }
    // A DC difference and a probe fit a refill, or two probes of 21 bits each.
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
        let (after, next) = unusual(*bits, reading, place, entry, out)?;
        *bits = after;
        if next >= LAST {
            return Ok((next % END) as u8);
        }
        place = next;
    }
}

/// Goes on where a probe did not tell all: returns a place in the block, `LAST`, or above `END` for an end.
#[cold]
#[inline(never)]
fn unusual<'a>(
    mut bits: Bits<'a>,
    reading: &Reading<'_>,
    place: usize,
    entry: u64,
    out: &mut Room,
) -> Result<(Bits<'a>, usize), Error> {
    let byte = |shift: u32| (entry >> shift & 255) as usize;
    if byte(8) == SLOW {
        bits.refill();
        let place = place - SLOW;
        return match reading.ac.read(&mut bits)? {
            Symbol::End => Ok((bits, place + END)),
            Symbol::Value(ahead, _) if place + ahead > LAST => Err(OVERFULL),
            Symbol::Value(ahead, value) => {
                reading.steps.store(place + ahead, value, out);
                Ok((bits, place + ahead))
            }
        };
    }
    // The first coefficient filled the block, and the second belongs to the next: give back its bits.
    if byte(16) != 0 && place - byte(16) == LAST {
        bits.give_back(byte(0) - byte(24) - byte(32));
        return Ok((bits, LAST));
    }
    Err(OVERFULL)
}
