//! The adjustments that augmentations make: changes of one image in place.
//!
//! The definitions are torchvision's for uint8. Its float32 steps are fixed-point integers here, so that a result is
//! the same on every machine and loops become vector code. A value may be one level lower or higher than torchvision's.

use std::array;

use super::affine::Affine;
use super::in_place::{equalized, map_channels, stretched};
use crate::image_column::CHANNELS;

/// The number 1 in fixed point.
const ONE: i32 = 1 << 16;

/// Maximum factor of [`Adjustment::Contrast`] and [`Adjustment::Saturation`]. With a larger factor, sums would not fit
/// 32 bits.
pub(super) const FACTOR_MAX: f64 = 100.0;

/// A change of an image. A factor of 1 changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Adjustment {
    Identity,
    Affine(Affine),
    AutoContrast,
    Brightness(f64),
    Contrast(f64),
    Equalize,
    /// Rotates the hue by a fraction of the colour circle, from -0.5 to 0.5.
    Hue(f64),
    /// Keeps this number of upper bits.
    Posterize(u8),
    Saturation(f64),
    Sharpness(f64),
    /// Inverts values from this threshold on.
    Solarize(f64),
}

impl Adjustment {
    /// Changes one image. `scratch` only avoids allocations.
    pub(super) fn apply(self, pixels: &mut [u8], width: usize, scratch: &mut Vec<u8>) {
        match self {
            Self::Identity => {}
            Self::Affine(affine) => affine.apply(pixels, width, scratch),
            Self::AutoContrast => map_channels(pixels, stretched),
            Self::Brightness(factor) => map(pixels, |x| x * factor as f32),
            Self::Contrast(factor) => {
                let (factor, grey) = (factor as f32, mean_luma(pixels) as f32);
                map(pixels, |x| x * factor + grey * (1.0 - factor));
            }
            Self::Equalize => map_channels(pixels, equalized),
            Self::Hue(turn) => {
                let shift = (turn.rem_euclid(1.0) * 6.0 * f64::from(ONE)).round() as i32;
                pixels.as_chunks_mut::<CHANNELS>().0.iter_mut().for_each(|pixel| *pixel = turned(*pixel, shift));
            }
            Self::Posterize(bits) => pixels.iter_mut().for_each(|x| *x &= (0xFF00_u32 >> bits) as u8),
            Self::Saturation(factor) => saturate(pixels, factor),
            Self::Sharpness(factor) => sharpen(pixels, width, factor, scratch),
            Self::Solarize(threshold) => map(pixels, |x| if f64::from(x) >= threshold { 255.0 - x } else { x }),
        }
    }
}

/// Maps each value by a function, in float32 and truncated like PyTorch's.
fn map(pixels: &mut [u8], function: impl Fn(f32) -> f32) {
    let table: [u8; 256] = array::from_fn(|x| function(x as f32) as u8);
    pixels.iter_mut().for_each(|x| *x = table[usize::from(*x)]);
}

/// Returns the brightness of a pixel: 0.2989 red + 0.587 green + 0.114 blue, truncated.
fn luma([r, g, b]: [i32; CHANNELS]) -> i32 {
    (r * 19_589 + g * 38_470 + b * 7_471) >> 16
}

fn mean_luma(pixels: &[u8]) -> f64 {
    let pixels = pixels.as_chunks::<CHANNELS>().0;
    let sum: i64 = pixels.iter().map(|pixel| i64::from(luma(pixel.map(i32::from)))).sum();
    sum as f64 / pixels.len().max(1) as f64
}

fn fixed(factor: f64) -> i32 {
    (factor.clamp(-FACTOR_MAX, FACTOR_MAX) * f64::from(ONE)).round() as i32
}

/// Number of pixels that are split into channels at a time, so that the arithmetic becomes vector code.
const BLOCK: usize = 32;

/// Interpolates between a pixel's grey (0) and itself (1), and extrapolates beyond.
fn saturate(pixels: &mut [u8], factor: f64) {
    let factor = fixed(factor);
    let (blocks, rest) = pixels.as_chunks_mut::<CHANNELS>().0.as_chunks_mut::<BLOCK>();
    blocks.iter_mut().for_each(|block| saturate_block(block, factor));
    let mut last = [[0; CHANNELS]; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    saturate_block(&mut last, factor);
    rest.copy_from_slice(&last[..rest.len()]);
}

fn saturate_block(block: &mut [[u8; CHANNELS]; BLOCK], factor: i32) {
    let mut channels = [[0; BLOCK]; CHANNELS];
    for (at, pixel) in block.iter().enumerate() {
        (0..CHANNELS).for_each(|channel| channels[channel][at] = i32::from(pixel[channel]));
    }
    let [red, green, blue] = &channels;
    let grey: [i32; BLOCK] = array::from_fn(|at| luma([red[at], green[at], blue[at]]) * (ONE - factor));
    let changed = channels.map(|channel| {
        let changed: [u8; BLOCK] = array::from_fn(|at| ((channel[at] * factor + grey[at]) >> 16).clamp(0, 255) as u8);
        changed
    });
    for (at, pixel) in block.iter_mut().enumerate() {
        *pixel = array::from_fn(|channel| changed[channel][at]);
    }
}

/// Rotates a pixel's colour by `shift` sixths of the circle. The greatest and the least channel keep their values. The
/// colour is a position on a hexagon whose sides are as long as their difference. So only the middle value is computed,
/// without a division.
fn turned([r, g, b]: [u8; CHANNELS], shift: i32) -> [u8; CHANNELS] {
    let (max, min) = (r.max(g).max(b), r.min(g).min(b));
    let [r, g, b] = [r, g, b].map(i32::from);
    let (most, least) = (i32::from(max), i32::from(min));
    let side = most - least;
    let place = match most {
        m if m == r && g >= b => g - b,
        m if m == r => 6 * side + g - b,
        m if m == g => 2 * side + b - r,
        _ => 4 * side + r - g,
    };
    // The product is at most 2 x 6 x 255 x 2^16, which fits 32 bits.
    let (side, all) = (side << 16, (6 * side) << 16);
    let place = (place << 16) + (side >> 16) * shift;
    let place = if place >= all { place - all } else { place };
    let sector: i32 = (1..6).map(|sector| i32::from(place >= sector * side)).sum();
    let rest = place - sector * side;
    let middle = if sector % 2 == 0 { (least << 16) + rest } else { (most << 16) - rest };
    // torchvision converts floats back to bytes with a factor of 255.999 instead of 255.
    let middle = ((middle + (middle >> 8)) >> 16) as u8;
    match sector {
        0 => [max, middle, min],
        1 => [middle, max, min],
        2 => [min, max, middle],
        3 => [min, middle, max],
        4 => [middle, min, max],
        // A grey pixel is in all sectors at once. All its channels are equal.
        _ => [max, min, middle],
    }
}

/// Interpolates between the image smoothed by a 3 x 3 kernel (0) and itself (1), and extrapolates beyond. The border
/// stays unchanged.
fn sharpen(pixels: &mut [u8], width: usize, factor: f64, scratch: &mut Vec<u8>) {
    let line = width * CHANNELS;
    if width < 3 || pixels.len() < 3 * line {
        return;
    }
    let rest = ONE - fixed(factor);
    scratch.clear();
    scratch.extend_from_slice(pixels);
    let lines = pixels.chunks_exact_mut(line).skip(1).zip(scratch.windows(3 * line).step_by(line));
    for (out, around) in lines {
        let (above, others) = around.split_at(line);
        let (own, below) = others.split_at(line);
        let column = |at: usize| i32::from(above[at]) + i32::from(own[at]) + i32::from(below[at]);
        for at in CHANNELS..line - CHANNELS {
            let value = i32::from(own[at]);
            let sum = column(at - CHANNELS) + column(at) + column(at + CHANNELS) + 4 * value;
            let smooth = (2 * sum + 13) / 26;
            out[at] = (((value << 16) + (smooth - value) * rest) >> 16).clamp(0, 255) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_of_one_changes_nothing() {
        let image: Vec<u8> = (0..30 * 20 * 3).map(|i: u32| (i * i * 7 / 5 % 256) as u8).collect();
        for step in [
            Adjustment::Identity,
            Adjustment::Brightness(1.0),
            Adjustment::Contrast(1.0),
            Adjustment::Saturation(1.0),
            Adjustment::Sharpness(1.0),
            Adjustment::Hue(0.0),
            Adjustment::Hue(1.0),
            Adjustment::Posterize(8),
            Adjustment::Solarize(256.0),
        ] {
            let mut changed = image.clone();
            step.apply(&mut changed, 30, &mut vec![]);
            assert!(changed == image, "{step:?}");
        }
    }

    #[test]
    fn a_turn_by_a_third_moves_the_channels() {
        for pixel in [[200, 10, 90], [3, 250, 4], [17, 18, 19], [0, 255, 255], [7, 7, 7]] {
            let [r, g, b] = pixel;
            assert_eq!(turned(pixel, 2 * ONE), [b, r, g]);
            assert_eq!(turned(pixel, 4 * ONE), [g, b, r]);
        }
    }

    #[test]
    fn factors_beyond_the_bounds_do_not_overflow() {
        for factor in [-FACTOR_MAX, FACTOR_MAX, 1e300] {
            for step in [Adjustment::Saturation(factor), Adjustment::Contrast(factor), Adjustment::Brightness(factor)] {
                step.apply(&mut [255, 0, 0, 0, 255, 255], 2, &mut vec![]);
            }
        }
        let mut pixel = [255, 0, 0];
        Adjustment::Saturation(FACTOR_MAX).apply(&mut pixel, 1, &mut vec![]);
        assert_eq!(pixel, [255, 0, 0]);
    }
}
