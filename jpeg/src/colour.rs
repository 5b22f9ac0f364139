//! Samples to RGB: libjpeg's upsampling (`jdsample.c`) and colour conversion (`jdcolor.c`).
//!
//! Colour differences at half width are upsampled and converted in one pass, and written once.

/// 1.402, 1.772, 0.34414 and 0.71414 as fixed-point numbers with 16 fractional bits.
pub(crate) const CR_RED: i32 = 91_881;
pub(crate) const CB_BLUE: i32 = 116_130;
pub(crate) const CB_GREEN: i32 = 22_554;
pub(crate) const CR_GREEN: i32 = 46_802;

/// Three rows at full width. Each can be read 31 samples past its end.
pub(crate) type Triple<'a> = [&'a [u8]; 3];

/// A row of luma with colour differences at half width.
#[derive(Debug)]
pub(crate) struct HalfWidthRow<'a> {
    /// Starts at an even column.
    pub(crate) luma: &'a [u8],
    /// Differences from `sums`, from one before the first pair to one after the last.
    pub(crate) cb: &'a [u16],
    pub(crate) cr: &'a [u16],
    /// The rounding term of the division by 16, in even and in odd columns.
    pub(crate) bias: [i16; 2],
    /// Leading columns to leave out, 0 or 1.
    pub(crate) skip: usize,
}

/// The rounding terms for half width, and for half width and height.
pub(crate) const BIAS_H2V1: [i16; 2] = [4, 8];
pub(crate) const BIAS_H2V2: [i16; 2] = [8, 7];

/// Computes four times each sample of a row. With `far`, each sample is interpolated a quarter of the way to that row.
#[inline(always)]
pub(crate) fn sums(near: &[u8], far: Option<&[u8]>, out: &mut [u16]) {
    match far {
        Some(far) => {
            for ((out, near), far) in out.iter_mut().zip(near).zip(far) {
                *out = 3 * u16::from(*near) + u16::from(*far);
            }
        }
        None => out.iter_mut().zip(near).for_each(|(out, near)| *out = 4 * u16::from(*near)),
    }
}

/// Returns the sample in a column: three quarters of its own sum, a quarter of the nearer neighbour's ("fancy
/// upsampling").
#[inline(always)]
pub(crate) fn between(sums: &[u16], bias: [i16; 2], column: usize) -> u8 {
    let (this, odd) = (column / 2 + 1, column % 2);
    let other = this - 1 + 2 * odd;
    ((3 * sums[this] + sums[other] + bias[odd] as u16) >> 4) as u8
}

/// Upsamples differences and converts a row to interleaved RGB.
pub(crate) fn pairs(input: &HalfWidthRow<'_>, out: &mut [u8]) {
    for (column, out) in (input.skip..).zip(out.chunks_exact_mut(3)) {
        let [cb, cr] = [input.cb, input.cr].map(|sums| between(sums, input.bias, column));
        out.copy_from_slice(&rgb(input.luma[column], cb, cr));
    }
}

/// Converts a row at full width to interleaved RGB, or only interleaves it.
pub(crate) fn triple(input: &Triple<'_>, differences: bool, out: &mut [u8]) {
    for (column, out) in out.chunks_exact_mut(3).enumerate() {
        let [a, b, c] = input.map(|row| row[column]);
        out.copy_from_slice(&if differences { rgb(a, b, c) } else { [a, b, c] });
    }
}

/// Converts a row of four inks to RGB. The inks are inverted, as Adobe stores them; the first three are plain, or luma
/// and differences. The conversion from CMYK to RGB is Pillow's.
pub(crate) fn inks(input: [&[u8]; 4], differences: bool, out: &mut [u8]) {
    for (column, out) in out.chunks_exact_mut(3).enumerate() {
        let [a, b, c, light] = input.map(|row| row[column]);
        // libjpeg subtracts the colours from 255 to get the stored inks, and those are inverted.
        let inks = if differences { rgb(a, b, c) } else { [255 - a, 255 - b, 255 - c] };
        for (out, ink) in out.iter_mut().zip(inks) {
            // Divides the product by 255, rounded.
            let product = u32::from(ink) * u32::from(light) + 128;
            *out = light - (((product >> 8) + product) >> 8) as u8;
        }
    }
}

#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let red = y + ((CR_RED * cr + HALF) >> 16);
    let green = y + ((HALF - CB_GREEN * cb - CR_GREEN * cr) >> 16);
    let blue = y + ((CB_BLUE * cb + HALF) >> 16);
    [red, green, blue].map(|colour| colour.clamp(0, 255) as u8)
}
