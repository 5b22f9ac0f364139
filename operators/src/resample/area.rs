//! The mean of the area that each pixel of a result covers.

use super::Resampling;
use crate::image_column::{CHANNELS, Rectangle};
use crate::strip::Strip;

/// Computes means and reuses its memory from one image to the next.
#[derive(Debug, Default)]
pub(super) struct AreaMeans {
    line: Vec<f32>,
    sums: Vec<f32>,
}

impl AreaMeans {
    /// Makes a region of the result.
    pub(super) fn run(&mut self, resampling: &Resampling, image: Strip, region: Rectangle, out: &mut [u8]) {
        let Resampling { part, size, .. } = *resampling;
        let mut columns = covers(part.width, size.width, region.left, region.width);
        columns.iter_mut().for_each(|cover| cover.first = part.left + cover.first - image.left);
        let rows = covers(part.height, size.height, region.top, region.height);
        let line = region.width * CHANNELS;
        self.line.resize(line, 0.0);
        self.sums.resize(line, 0.0);
        // The source row from which `line` was computed. Two rows of the result may share one.
        let mut made = None;
        for (cover, out) in rows.iter().zip(out.chunks_exact_mut(line)) {
            self.sums.fill(0.5);
            for (row, weight) in (cover.first..).zip(cover.weights()) {
                if made.replace(row) != Some(row) {
                    let width = image.columns.width;
                    let source = &image.columns.pixels[(part.top + row) * width * CHANNELS..][..width * CHANNELS];
                    covered(source.as_chunks().0, &columns, self.line.as_chunks_mut().0);
                }
                for (sum, value) in self.sums.iter_mut().zip(&self.line) {
                    *sum += *value * weight;
                }
            }
            for (out, sum) in out.iter_mut().zip(&self.sums) {
                *out = *sum as u8;
            }
        }
    }
}

/// Computes the mean of the area that each pixel of a row covers.
fn covered(source: &[[u8; CHANNELS]], columns: &[Cover], out: &mut [[f32; CHANNELS]]) {
    for (cover, out) in columns.iter().zip(out) {
        let mut sums = [0.0; CHANNELS];
        for (pixel, weight) in source[cover.first..].iter().zip(cover.weights()) {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += f32::from(*value) * weight;
            }
        }
        *out = sums;
    }
}

/// The source pixels along one side that one pixel of the result covers.
struct Cover {
    first: usize,
    len: usize,
    /// The share of the first pixel, of each one between, and of the last, in the covered length.
    shares: [f32; 3],
}

impl Cover {
    fn weights(&self) -> impl Iterator<Item = f32> {
        let [first, between, last] = self.shares;
        (0..self.len).map(move |at| match at {
            0 => first,
            at if at + 1 == self.len => last,
            _ => between,
        })
    }
}

/// Returns the source pixels that each of `len` pixels covers, from the pixel `first` of `to`. Integers make a fully
/// covered pixel exact.
fn covers(from: usize, to: usize, first: usize, len: usize) -> Vec<Cover> {
    // In these units, a source pixel has length `to` and a result pixel has length `from`.
    let cover = |at: usize| {
        let (start, end) = (at * from, (at + 1) * from);
        let (first, last) = (start / to, (end - 1) / to);
        let share = |units: usize| units as f32 / from as f32;
        let shares = match last - first {
            0 => [1.0, 0.0, 0.0],
            _ => [share((first + 1) * to - start), share(to), share(end - last * to)],
        };
        Cover { first, len: last - first + 1, shares }
    };
    (first..first + len).map(cover).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_column::{Image, Size};
    use crate::resample::Interpolation;

    fn area(pixels: &[u8], width: usize, to: usize) -> Vec<u8> {
        let pixels: Vec<u8> = pixels.iter().flat_map(|value| [*value, 0, 255]).collect();
        let image = Image { height: pixels.len() / 3 / width, width, pixels: &pixels };
        let mut out = vec![7; to * to * 3];
        let part = Rectangle::whole(image.size());
        let size = Size { height: to, width: to };
        let resampling = Resampling { interpolation: Interpolation::Area, part, within: None, size };
        AreaMeans::default().run(&resampling, Strip::whole(image), Rectangle::whole(size), &mut out);
        assert!(out.chunks(3).all(|pixel| pixel[1..] == [0, 255]));
        out.chunks(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn area_is_the_mean_of_what_a_pixel_covers() {
        assert_eq!(area(&[0, 10, 20, 30], 2, 1), [15]);
        assert_eq!(area(&[0, 90, 0, 0, 90, 0, 0, 90, 0], 3, 2), [30, 30, 30, 30]);
        // Each result pixel covers half of the middle row and column.
        assert_eq!(area(&[90, 0, 0, 0, 0, 0, 0, 0, 0], 3, 2), [40, 0, 0, 0]);
        assert_eq!(area(&[10, 20, 30, 40], 2, 4), [10, 10, 20, 20, 10, 10, 20, 20, 30, 30, 40, 40, 30, 30, 40, 40]);
    }
}
