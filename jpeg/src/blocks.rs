//! Blocks of a sequential scan (T.81, F.2.2): the loop that most of the time goes to.

use crate::bits::Bits;
use crate::error::{Error, OVERFULL};
use crate::huffman::{AC_BITS, AcTable, DcTable, END, SLOW, Symbol};
use crate::standard::ZIGZAG;

/// Blocks of an MCU at most (T.81, B.2.3).
pub(crate) const MCU_BLOCKS_MAX: usize = 10;
/// Coefficients of a block.
pub(crate) const BLOCK: usize = 64;
/// The last place of a block.
const LAST: usize = BLOCK - 1;

/// For each place in the order of the file: where the coefficient goes, and above that by what it is multiplied.
/// Places behind the block go to the first one after it, so that the loop need not ask before it stores.
#[derive(Debug, Clone)]
pub(crate) struct Steps([u32; 256]);

impl Default for Steps {
    fn default() -> Self {
        Self([BLOCK as u32; 256])
    }
}

impl Steps {
    /// `quantization` in the order of the file.
    pub(crate) fn set(&mut self, quantization: &[u16; BLOCK]) {
        for (at, step) in self.0[..BLOCK].iter_mut().enumerate() {
            *step = u32::from(ZIGZAG[at]) | u32::from(quantization[at]) << 16;
        }
    }

    /// Stores a value as 16 bits hold it, which is what libjpeg-turbo's vector code does.
    #[inline(always)]
    fn store(&self, place: usize, value: i32, out: &mut [i16; 2 * BLOCK]) {
        let step = self.0[place & 255];
        out[step as usize % (2 * BLOCK)] = (value as i16).wrapping_mul((step >> 16) as i16);
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
}

/// The DC values that the next blocks are told relative to.
pub(crate) type Predictions = [i32; 4];

/// Reads MCUs. Coefficients, multiplied, go to blocks of zeros, one after the other, behind which must be room for one
/// more; `lasts` is told the last place of each that was coded.
#[inline(always)]
pub(crate) fn read(
    bits: &mut Bits<'_>,
    mcu: &[Reading<'_>],
    predictions: &mut Predictions,
    coefficients: &mut [i16],
    lasts: &mut [u8],
) -> Result<(), Error> {
    let mut reader = *bits;
    let mut at = 0;
    for lasts in lasts.chunks_exact_mut(mcu.len()) {
        for (reading, last) in mcu.iter().zip(lasts) {
            let out = coefficients[at..].first_chunk_mut().expect("room for one more");
            *last = block::<true>(&mut reader, reading, predictions, out)?;
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
    let mut nowhere = [0; 2 * BLOCK];
    for _ in 0..mcus {
        for reading in mcu {
            block::<false>(&mut reader, reading, predictions, &mut nowhere)?;
        }
    }
    *bits = reader;
    Ok(())
}

/// What a probe found.
struct Probe {
    entry: u64,
    before: u64,
}

/// Decodes the one or two coefficients that the next bits tell, and returns the place of the last.
#[inline(always)]
fn probe<const STORE: bool>(
    bits: &mut Bits<'_>,
    reading: &Reading<'_>,
    place: usize,
    out: &mut [i16; 2 * BLOCK],
) -> (usize, Probe) {
    let before = bits.word;
    let entry = reading.ac.entries[(before >> (64 - AC_BITS)) as usize];
    let first = place + (entry >> 8 & 255) as usize;
    let second = first + (entry >> 16 & 255) as usize;
    if STORE {
        // `huffman::extend`, with 63 less the size at hand.
        let word = before << (entry >> 24 & 63);
        let negative = !((word as i64) >> 63);
        let value = (((word ^ negative as u64) >> 1) >> (entry >> 32 & 63)) as i64;
        // The second first: where there is none it has the place of the first, which then overwrites it.
        reading.steps.store(second, ((entry as i64) >> 48) as i32, out);
        reading.steps.store(first, ((value ^ negative) - negative) as i32, out);
    }
    bits.consume(entry as u32);
    (second, Probe { entry, before })
}

#[inline(always)]
fn block<const STORE: bool>(
    bits: &mut Bits<'_>,
    reading: &Reading<'_>,
    predictions: &mut Predictions,
    out: &mut [i16; 2 * BLOCK],
) -> Result<u8, Error> {
    bits.check()?;
    bits.refill();
    let prediction = &mut predictions[reading.component % 4];
    *prediction = prediction.wrapping_add(reading.dc.read(bits)?);
    if STORE {
        reading.steps.store(0, *prediction, out);
    }
    let mut place = 0;
    // A DC difference and a probe fit a refill, or two probes of 20 bits each.
    let mut probes = 1;
    loop {
        for _ in 0..probes {
            let (next, probe) = probe::<STORE>(bits, reading, place, out);
            place = next;
            if place >= LAST {
                if place.wrapping_sub(END) < LAST {
                    return Ok((place - END) as u8);
                }
                if place == LAST {
                    return Ok(LAST as u8);
                }
                let (after, next) = unusual(*bits, reading, place, &probe, out)?;
                *bits = after;
                if next >= LAST {
                    return Ok((next % END) as u8);
                }
                place = next;
                break;
            }
        }
        probes = 2;
        bits.refill();
    }
}

/// Goes on where a probe did not tell all: returns a place in the block, `LAST`, or above `END` for an end.
#[cold]
#[inline(never)]
fn unusual<'a>(
    mut bits: Bits<'a>,
    reading: &Reading<'_>,
    place: usize,
    probe: &Probe,
    out: &mut [i16; 2 * BLOCK],
) -> Result<(Bits<'a>, usize), Error> {
    let byte = |shift: u32| (probe.entry >> shift & 255) as usize;
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
        let first = byte(24) as u32 + 63 - byte(32) as u32;
        bits.word = probe.before << first;
        bits.count += probe.entry as u32 % 64 - first;
        return Ok((bits, LAST));
    }
    Err(OVERFULL)
}
