//! Reduced photographs, once resized, are nearly the same as whole photographs resized to that size.

use super::pixels;
use super::scaled::scaled;
use crate::{Header, Region, Scale, Scratch};

/// Returns the weights of a triangle filter for each of `count` pixels of a side that was `len` long, like Pillow's
/// `BILINEAR`.
fn weights(len: f64, pixels: usize, count: usize) -> Vec<Vec<(usize, f64)>> {
    let step = len / count as f64;
    let support = step.max(1.0);
    let one = |number: usize| {
        let centre = (number as f64 + 0.5) * step;
        let (first, end) = ((centre - support).max(0.0) as usize, ((centre + support).ceil() as usize).min(pixels));
        let weight = |pixel: usize| (pixel, (1.0 - (pixel as f64 + 0.5 - centre).abs() / support).max(0.0));
        let weights: Vec<_> = (first..end).map(weight).collect();
        let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
        weights.into_iter().map(|(pixel, weight)| (pixel, weight / sum)).collect()
    };
    (0..count).map(one).collect()
}

/// Resizes an image of `height` by `width` pixels, which may be fractions.
fn resized(picture: &[u8], size: Region, [height, width]: [f64; 2], to: [usize; 2]) -> Vec<f64> {
    let (down, across) = (weights(height, size.height, to[0]), weights(width, size.width, to[1]));
    let mut between = vec![0.0; to[0] * size.width * 3];
    for (out, weights) in between.chunks_exact_mut(size.width * 3).zip(&down) {
        for (row, weight) in weights {
            let row = &picture[row * size.width * 3..][..size.width * 3];
            out.iter_mut().zip(row).for_each(|(out, value)| *out += weight * f64::from(*value));
        }
    }
    let pixel = |row: usize, weights: &Vec<(usize, f64)>, colour: usize| -> f64 {
        weights.iter().map(|(column, weight)| weight * between[(row * size.width + column) * 3 + colour]).sum()
    };
    (0..to[0])
        .flat_map(|row| across.iter().flat_map(move |weights| [0, 1, 2].map(|colour| (row, weights, colour))))
        .map(|(row, weights, colour)| pixel(row, weights, colour).round())
        .collect()
}

fn photographs() -> Vec<Vec<u8>> {
    let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/photos")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jpg") {
                files.push(std::fs::read(path).unwrap());
            }
        }
    }
    files
}

/// Bounds the mean and the largest difference between photographs that are reduced and then resized, and photographs
/// that are only resized. The documentation of `Scale` states the same figures.
#[test]
fn reduced_photographs_resize_to_nearly_the_same() {
    let mut scratch = Scratch::default();
    let files = photographs();
    assert!(files.len() > 100);
    for (scale, share, mean_max, difference_max) in [
        (Scale::Half, 1.0, 1.75, 78.0),
        (Scale::Half, 0.75, 0.69, 23.0),
        (Scale::Half, 0.5, 0.47, 12.0),
        (Scale::Quarter, 1.0, 1.84, 62.0),
        (Scale::Quarter, 0.75, 0.97, 24.0),
        (Scale::Quarter, 0.5, 0.73, 14.0),
        (Scale::Eighth, 1.0, 2.28, 54.0),
        (Scale::Eighth, 0.75, 1.34, 27.0),
        (Scale::Eighth, 0.5, 1.0, 18.0),
    ] {
        let (mut sum, mut count, mut most) = (0.0, 0, 0.0_f64);
        for file in &files {
            let header = Header::read(file).unwrap();
            let (size, reduced_size) = (header.scaled(Scale::Whole), header.scaled(scale));
            let [height, width] = [header.height, header.width].map(|side| side as f64);
            let to = [reduced_size.height, reduced_size.width].map(|side| (side as f64 * share) as usize);
            let exact = resized(&pixels(file, size, &mut scratch).unwrap(), size, [height, width], to);
            let picture = scaled(file, reduced_size, scale, &mut scratch).unwrap();
            let counted = [height, width].map(|side| side / scale.denominator() as f64);
            for (got, exact) in resized(&picture, reduced_size, counted, to).iter().zip(&exact) {
                sum += (got - exact).abs();
                most = most.max((got - exact).abs());
            }
            count += exact.len();
        }
        let mean = sum / count as f64;
        assert!(mean <= mean_max && most <= difference_max, "{scale:?} to {share}: {mean} on average, {most} at most");
    }
}
