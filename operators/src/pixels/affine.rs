//! Translation, shear and rotation of images of constant size.
//!
//! A map gives the source position of each pixel of the result. Coordinates advance as integers with 32 fractional
//! bits, so results are the same on every machine.

use crate::image_column::CHANNELS;

/// Half a pixel.
const HALF: i64 = 1 << 31;

/// A map from a position in the result to a position in the image. Pixels have their centres at whole numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    /// The coefficients of x, y and 1 for the source's x.
    x: [f64; 3],
    /// The coefficients of x, y and 1 for the source's y.
    y: [f64; 3],
    /// The colour outside the image.
    fill: [u8; CHANNELS],
    /// Whether to interpolate between the four nearest pixels. Otherwise the map takes the nearest pixel.
    bilinear: bool,
}

impl Affine {
    /// Moves the image to the right and down by whole pixels.
    pub(super) fn translated(right: i64, down: i64) -> Self {
        Self { x: [1.0, 0.0, -right as f64], y: [0.0, 1.0, -down as f64], fill: [0; CHANNELS], bilinear: false }
    }

    /// Moves each row to the left by `slope` times its distance from the top edge.
    pub(super) fn sheared_x(slope: f64) -> Self {
        Self { x: [1.0, slope, slope / 2.0], ..Self::translated(0, 0) }
    }

    /// Moves each column up by `slope` times its distance from the left edge.
    pub(super) fn sheared_y(slope: f64) -> Self {
        Self { y: [slope, 1.0, slope / 2.0], ..Self::translated(0, 0) }
    }

    /// Rotates the image counterclockwise about its centre.
    pub(super) fn rotated(degrees: f64, height: usize, width: usize, fill: [u8; CHANNELS], bilinear: bool) -> Self {
        let (sin, cos) = libm::sincos(degrees.to_radians());
        let (x, y) = ((width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0);
        Self { x: [cos, -sin, x - cos * x + sin * y], y: [sin, cos, y - sin * x - cos * y], fill, bilinear }
    }

    pub(super) fn apply(&self, pixels: &mut [u8], width: usize, scratch: &mut Vec<u8>) {
        scratch.clear();
        scratch.extend_from_slice(pixels);
        let source = SourceImage {
            pixels: scratch.as_chunks().0,
            width,
            height: pixels.len() / (width * CHANNELS),
            fill: self.fill,
        };
        let fixed = |x: f64| (x * (1_i64 << 32) as f64).round() as i64;
        let (step_x, step_y) = (fixed(self.x[0]), fixed(self.y[0]));
        for (line, out) in pixels.chunks_exact_mut(width * CHANNELS).enumerate() {
            let mut x = fixed(self.x[1] * line as f64 + self.x[2]);
            let mut y = fixed(self.y[1] * line as f64 + self.y[2]);
            for pixel in out.as_chunks_mut::<CHANNELS>().0 {
                *pixel = match self.bilinear {
                    true => source.between(x, y),
                    false => source.at((x + HALF) >> 32, (y + HALF) >> 32),
                };
                x += step_x;
                y += step_y;
            }
        }
    }
}

struct SourceImage<'a> {
    pixels: &'a [[u8; CHANNELS]],
    width: usize,
    height: usize,
    fill: [u8; CHANNELS],
}

impl SourceImage<'_> {
    fn at(&self, x: i64, y: i64) -> [u8; CHANNELS] {
        // A negative number becomes a large one as unsigned, so one comparison checks both bounds.
        match (x as u64) < self.width as u64 && (y as u64) < self.height as u64 {
            true => self.pixels[y as usize * self.width + x as usize],
            false => self.fill,
        }
    }

    /// Interpolates between the four pixels around a position.
    fn between(&self, x: i64, y: i64) -> [u8; CHANNELS] {
        let (left, top) = (x >> 32, y >> 32);
        let (right_weight, bottom_weight) = ((x as u64 >> 16) & 0xFFFF, (y as u64 >> 16) & 0xFFFF);
        let corners = [
            (self.at(left, top), (0x1_0000 - right_weight) * (0x1_0000 - bottom_weight)),
            (self.at(left + 1, top), right_weight * (0x1_0000 - bottom_weight)),
            (self.at(left, top + 1), (0x1_0000 - right_weight) * bottom_weight),
            (self.at(left + 1, top + 1), right_weight * bottom_weight),
        ];
        std::array::from_fn(|channel| {
            let sum: u64 = corners.iter().map(|(pixel, weight)| u64::from(pixel[channel]) * weight).sum();
            ((sum + HALF as u64) >> 32) as u8
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(affine: Affine) -> Vec<u8> {
        let mut pixels: Vec<u8> = (1..=9).flat_map(|x| [x; CHANNELS]).collect();
        affine.apply(&mut pixels, 3, &mut vec![]);
        pixels.into_iter().step_by(CHANNELS).collect()
    }

    #[test]
    fn pixels_move_as_named() {
        assert_eq!(applied(Affine::translated(1, 0)), [0, 1, 2, 0, 4, 5, 0, 7, 8]);
        assert_eq!(applied(Affine::translated(0, -1)), [4, 5, 6, 7, 8, 9, 0, 0, 0]);
        assert_eq!(applied(Affine::sheared_x(1.2)), [2, 3, 0, 6, 0, 0, 0, 0, 0]);
        assert_eq!(applied(Affine::sheared_y(-1.2)), [0, 0, 0, 1, 0, 0, 4, 2, 0]);
    }

    #[test]
    fn a_quarter_turn_is_counterclockwise_and_exact() {
        for bilinear in [false, true] {
            let turned = |degrees| applied(Affine::rotated(degrees, 3, 3, [0; 3], bilinear));
            assert_eq!(turned(90.0), [3, 6, 9, 2, 5, 8, 1, 4, 7]);
            assert_eq!(turned(180.0), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
            assert_eq!(turned(0.0), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        }
    }

    #[test]
    fn what_is_outside_is_filled() {
        let mut pixels = vec![5; 5 * 5 * CHANNELS];
        Affine::rotated(45.0, 5, 5, [77, 78, 79], false).apply(&mut pixels, 5, &mut vec![]);
        let pixels = pixels.as_chunks::<CHANNELS>().0;
        assert_eq!([pixels[0], pixels[4], pixels[20], pixels[24]], [[77, 78, 79]; 4]);
        assert!([2, 10, 12, 14, 22].iter().all(|at| pixels[*at] == [5; 3]));
    }
}
