//! Gaussian blur in float32: rows first, then columns.

use crate::image_column::CHANNELS;

/// Memory that is reused from image to image.
#[derive(Debug, Default)]
pub(super) struct Blur {
    weights: Vec<f32>,
    /// One row of the image, extended at both ends by mirrored pixels.
    wide: Vec<f32>,
    /// The most recent blurred rows, as many as the kernel's height.
    ring: Vec<f32>,
    sum: Vec<f32>,
}

impl Blur {
    /// Blurs an image in place with a kernel of `size` x `size`; `size` is odd. The image is mirrored at its edges
    /// without repeating the edge pixels.
    pub(super) fn apply(&mut self, pixels: &mut [u8], width: usize, size: usize, sigma: f64) {
        let line = width * CHANNELS;
        let (height, reach) = (pixels.len() / line, size / 2);
        self.weigh(size, sigma);
        // For an image lower than the kernel, the ring holds all rows, so mirrored rows are always available.
        let kept = size.min(height);
        self.ring.resize(kept * line, 0.0);
        self.sum.resize(line, 0.0);
        let mut blurred = 0;
        for y in 0..height {
            while blurred < (y + reach + 1).min(height) {
                let target = blurred % kept * line;
                let source = &pixels[blurred * line..(blurred + 1) * line];
                widen(source, reach, &mut self.wide);
                let out = &mut self.ring[target..target + line];
                out.fill(0.0);
                for (tap, weight) in self.weights.iter().enumerate() {
                    add(out, &self.wide[tap * CHANNELS..tap * CHANNELS + line], *weight);
                }
                blurred += 1;
            }
            self.sum.fill(0.5);
            for (tap, weight) in self.weights.iter().enumerate() {
                let source = mirrored(y as isize + tap as isize - reach as isize, height) % kept * line;
                add(&mut self.sum, &self.ring[source..source + line], *weight);
            }
            for (out, sum) in pixels[y * line..(y + 1) * line].iter_mut().zip(&self.sum) {
                // A cast to an integer and then to a byte needs no bounds check. The value always fits a byte.
                *out = *sum as i32 as u8;
            }
        }
    }

    fn weigh(&mut self, size: usize, sigma: f64) {
        let middle = (size / 2) as f64;
        let weight = |x: usize| libm::exp(-0.5 * ((x as f64 - middle) / sigma).powi(2));
        let all: f64 = (0..size).map(weight).sum();
        self.weights.clear();
        self.weights.extend((0..size).map(|x| (weight(x) / all) as f32));
    }
}

/// Converts a row to floats and extends it at both ends by mirrored pixels.
fn widen(line: &[u8], reach: usize, wide: &mut Vec<f32>) {
    let (width, first) = (line.len() / CHANNELS, reach * CHANNELS);
    wide.resize(line.len() + 2 * first, 0.0);
    for (out, value) in wide[first..].iter_mut().zip(line) {
        *out = f32::from(*value);
    }
    for x in (-(reach as isize)..0).chain(width as isize..(width + reach) as isize) {
        let source = mirrored(x, width) * CHANNELS;
        let target = (x + reach as isize) as usize * CHANNELS;
        for channel in 0..CHANNELS {
            wide[target + channel] = f32::from(line[source + channel]);
        }
    }
}

fn add(sum: &mut [f32], values: &[f32], weight: f32) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * weight);
}

/// Mirrors an index at 0 and at the end until it is below `len`.
fn mirrored(at: isize, len: usize) -> usize {
    let last = len as isize - 1;
    if last == 0 {
        return 0;
    }
    let at = at.rem_euclid(2 * last);
    (if at > last { 2 * last - at } else { at }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_mirrored_without_the_edge() {
        let all: Vec<_> = (-4..8).map(|at| mirrored(at, 4)).collect();
        assert_eq!(all, [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(mirrored(-3, 1), 0);
    }

    #[test]
    fn one_colour_stays_whatever_the_size() {
        for (height, width, size) in [(1, 1, 3), (2, 5, 9), (7, 1, 255), (9, 9, 3)] {
            let image = [200, 100, 7].repeat(height * width);
            let mut blurred = image.clone();
            Blur::default().apply(&mut blurred, width, size, 1.3);
            assert_eq!(blurred, image, "{height} x {width} by {size}");
        }
    }
}
