//! Progressive scans (T.81, annex G; libjpeg's `jdphuff.c`): a band of frequencies, either its upper bits or one more
//! bit.
//!
//! A frame that ends before all bits have arrived is decoded without smoothing; libjpeg would smooth it.

use crate::bits::Bits;
use crate::blocks::BLOCK;
use crate::error::{Error, OVERFULL};
use crate::huffman::{AcTable, extend};
use crate::scan::{Intervals, Scan};
use crate::standard::ZIGZAG;
use crate::stored::{ScanInput, Stored, extent, for_blocks};

/// Reads one scan.
pub(crate) fn read(stored: &mut Stored, input: &ScanInput<'_>) -> Result<(), Error> {
    let ScanInput { geometry, scan, entropy, interval, .. } = *input;
    if !scan.is_progressive() {
        return Err(Error::Damaged("an invalid band in a progressive scan"));
    }
    let mut intervals = Intervals::new(entropy, interval)?;
    match (scan.first, scan.high) {
        (0, 0) => dc_first(stored, input, &mut intervals)?,
        (0, _) => {
            let (high, wide) = extent(geometry, scan);
            for row in 0..high {
                for column in 0..wide {
                    intervals.take(1)?;
                    for_blocks(geometry, scan, row, column, |component, plane, row, column| {
                        intervals.bits.check()?;
                        let block = stored.block(component, plane, row, column);
                        stored.at(block)[0] |= i16::from(intervals.bits.bit()) << scan.low;
                        Ok(())
                    })?;
                }
            }
        }
        _ => ac(stored, input, &mut intervals)?,
    }
    intervals.bits.finish()
}

fn dc_first(stored: &mut Stored, input: &ScanInput<'_>, intervals: &mut Intervals<'_>) -> Result<(), Error> {
    let ScanInput { geometry, scan, tables, .. } = *input;
    let mut dc = [None; 4];
    for part in scan.parts() {
        stored.seen[part.component] = true;
        dc[part.component] = Some(tables.dc[part.dc].get()?);
    }
    if !geometry.fits_mcu(scan.parts().iter().map(|part| part.component)) && scan.parts().len() > 1 {
        return Err(Error::Damaged("more than 10 blocks in an MCU"));
    }
    let (high, wide) = extent(geometry, scan);
    for row in 0..high {
        for column in 0..wide {
            intervals.take(1)?;
            for_blocks(geometry, scan, row, column, |component, plane, row, column| {
                let Intervals { bits, predictions, .. } = &mut *intervals;
                bits.check()?;
                bits.refill();
                let difference = dc[component].expect("set for each part").read(bits)?;
                predictions[component] = predictions[component].wrapping_add(difference);
                let block = stored.block(component, plane, row, column);
                stored.at(block)[0] = (predictions[component] << scan.low) as i16;
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Reads a band of AC coefficients of one component.
fn ac(stored: &mut Stored, input: &ScanInput<'_>, intervals: &mut Intervals<'_>) -> Result<(), Error> {
    let ScanInput { geometry, scan, tables, .. } = *input;
    let part = scan.parts()[0];
    let plane = geometry.plane(part.component);
    let table = tables.ac[part.ac].get()?;
    let total = plane.blocks_high * plane.blocks_wide;
    let mut at = 0;
    let mut run = 0;
    while at < total {
        let (count, fresh) = intervals.take(total - at)?;
        if fresh {
            run = 0;
        }
        let end = at + count;
        let bits = &mut intervals.bits;
        while at < end {
            if scan.high == 0 && run > 0 {
                // Empty blocks cost nothing.
                let skipped = run.min(end - at);
                run -= skipped;
                at += skipped;
                continue;
            }
            let block = stored.block(part.component, plane, at / plane.blocks_wide, at % plane.blocks_wide);
            let last = stored.lasts[block];
            let coefficients = stored.at(block);
            bits.check()?;
            let coded = if scan.high == 0 {
                ac_first(bits, table, scan, coefficients, &mut run)?
            } else {
                ac_refine(bits, table, scan, coefficients, &mut run)?
            };
            stored.lasts[block] = last.max(coded as u8);
            at += 1;
        }
    }
    Ok(())
}

/// Reads the first bits of a block's band. Returns the last coded index, and sets `run` to the number of following
/// empty blocks.
fn ac_first(
    bits: &mut Bits<'_>,
    table: &AcTable,
    scan: &Scan,
    out: &mut [i16; BLOCK],
    run: &mut usize,
) -> Result<usize, Error> {
    let mut place = scan.first;
    let mut coded = 0;
    while place <= scan.last {
        bits.refill();
        let symbol = table.symbol(bits)?;
        let (zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size == 0 && zeros < 15 {
            *run = (1 << zeros) + bits.take(zeros as u32) as usize - 1;
            break;
        }
        place += zeros;
        if place > scan.last {
            return Err(OVERFULL);
        }
        if size > 0 {
            let value = extend(bits.word, size);
            bits.consume(size);
            out[usize::from(ZIGZAG[place])] = (value << scan.low) as i16;
            coded = place;
        }
        place += 1;
    }
    Ok(coded)
}

/// Reads one more bit of a block's band: a bit of each nonzero coefficient, and new coefficients of 1 or -1.
fn ac_refine(
    bits: &mut Bits<'_>,
    table: &AcTable,
    scan: &Scan,
    out: &mut [i16; BLOCK],
    run: &mut usize,
) -> Result<usize, Error> {
    let one = 1_i16 << scan.low;
    let mut place = scan.first;
    let mut coded = 0;
    let refine = |bits: &mut Bits<'_>, value: &mut i16| {
        if bits.bit() && *value & one == 0 {
            *value = value.wrapping_add(if *value >= 0 { one } else { -one });
        }
    };
    if *run == 0 {
        while place <= scan.last {
            bits.refill();
            let symbol = table.symbol(bits)?;
            let (mut zeros, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 && zeros < 15 {
                // This block is the first of the run.
                *run = (1 << zeros) + bits.take(zeros as u32) as usize;
                break;
            }
            if size > 1 {
                return Err(Error::Damaged("a refinement by more than one bit"));
            }
            let new = if size == 0 {
                0
            } else if bits.bit() {
                one
            } else {
                -one
            };
            while place <= scan.last {
                let value = &mut out[usize::from(ZIGZAG[place])];
                if *value != 0 {
                    refine(bits, value);
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                place += 1;
            }
            if new != 0 {
                if place > scan.last {
                    return Err(OVERFULL);
                }
                out[usize::from(ZIGZAG[place])] = new;
                coded = place;
            }
            place += 1;
        }
    }
    if *run > 0 {
        while place <= scan.last {
            let value = &mut out[usize::from(ZIGZAG[place])];
            if *value != 0 {
                refine(bits, value);
            }
            place += 1;
        }
        *run -= 1;
    }
    Ok(coded)
}
