//! Resampling: a part of an image, scaled to another size.

use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err};
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{Filter, FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::descriptor::{ConstantKind, Parameter};
use crate::image_column::{CHANNELS, Image, Rectangle, Size};
use crate::operator::Arguments;

/// The parameter that selects an [`Interpolation`].
pub(crate) const INTERPOLATION: Parameter = Parameter::constant(
    "interpolation",
    ConstantKind::Text,
    "`'nearest'`, `'bilinear'`, `'bicubic'`, `'area'` or `'lanczos'`",
)
.or("'bilinear'");

/// The parameter that selects averaging when an image shrinks.
pub(crate) const ANTIALIAS: Parameter = Parameter::constant(
    "antialias",
    ConstantKind::Boolean,
    "Whether the support of bilinear, bicubic and lanczos grows with the scale when shrinking",
)
.or("true");

/// The way a pixel of the result is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interpolation {
    /// A kernel over neighbouring pixels, or the nearest pixel.
    Kernel(ResizeAlg),
    /// The mean of the area that a pixel covers.
    Area,
}

impl Interpolation {
    /// Returns whether the result is nearly the same after the image was averaged over a few pixels.
    pub(crate) fn averages(self) -> bool {
        matches!(self, Self::Kernel(ResizeAlg::Convolution(_)))
    }

    /// Returns the interpolation that a call names.
    pub(crate) fn of(arguments: &Arguments) -> Result<Self> {
        let filter = match arguments.text(INTERPOLATION.name)?.as_str() {
            "nearest" => return Ok(Self::Kernel(ResizeAlg::Nearest)),
            "area" => return Ok(Self::Area),
            "bilinear" => FilterType::Bilinear,
            "bicubic" => FilterType::CatmullRom,
            "lanczos" => {
                FilterType::Custom(Filter::new("lanczos", lanczos, 3.0).map_err(|e| exec_datafusion_err!("{e}"))?)
            }
            other => {
                let accepted = "'nearest', 'bilinear', 'bicubic', 'area' or 'lanczos'";
                return arguments.refuse(INTERPOLATION.name, format_args!("must be {accepted}, got '{other}'"));
            }
        };
        Ok(Self::Kernel(match arguments.flag(ANTIALIAS.name)? {
            true => ResizeAlg::Convolution(filter),
            false => ResizeAlg::Interpolation(filter),
        }))
    }
}

/// The sinc function, windowed by its main lobe at three times the width. It uses `libm`, since the last bit of the
/// platform's sine may differ.
fn lanczos(x: f64) -> f64 {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { libm::sin(x) / x }
    };
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

/// Resamples images and reuses its memory from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Resampler {
    resizer: Resizer,
    line: Vec<f32>,
    sums: Vec<f32>,
}

impl Resampler {
    /// Scales a part of an image into `out`. Pixels outside the part have no influence, as if the image had been
    /// cropped first; the resizer's own crop box would use them at the edges. If `within` is given, kernels use this
    /// area of the part: left, top, width and height in fractions of its pixels.
    pub(crate) fn run(
        &mut self,
        interpolation: Interpolation,
        image: Image,
        (part, within): (Rectangle, Option<[f64; 4]>),
        out: &mut [u8],
        size: Size,
    ) -> Result<()> {
        let Interpolation::Kernel(algorithm) = interpolation else {
            self.area(image, part, out, size);
            return Ok(());
        };
        let Size { height, width } = size;
        let internal = |e: &dyn std::fmt::Display| internal_datafusion_err!("resizing {part:?} of an image: {e}");
        let source = TypedImageRef::<U8x3>::from_buffer(image.width as u32, image.height as u32, image.pixels)
            .map_err(|e| internal(&e))?;
        let [left, top, part_width, part_height] = [part.left, part.top, part.width, part.height].map(|n| n as u32);
        let source =
            TypedCroppedImage::from_ref(&source, left, top, part_width, part_height).map_err(|e| internal(&e))?;
        let mut target = TypedImage::<U8x3>::from_buffer(width as u32, height as u32, out).map_err(|e| internal(&e))?;
        let mut options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        if let Some([left, top, width, height]) = within {
            options = options.crop(left, top, width, height);
        }
        // Use a typed call. A resizer for every pixel type would be as much code as all operators.
        self.resizer.resize_typed(&source, &mut target, &options).map_err(|e| internal(&e))
    }

    fn area(&mut self, image: Image, part: Rectangle, out: &mut [u8], size: Size) {
        let (columns, rows) = (covers(part.width, size.width), covers(part.height, size.height));
        let line = size.width * CHANNELS;
        self.line.resize(line, 0.0);
        self.sums.resize(line, 0.0);
        // The source row from which `line` was computed. Two rows of the result may share one.
        let mut made = None;
        for (cover, out) in rows.iter().zip(out.chunks_exact_mut(line)) {
            self.sums.fill(0.5);
            for (row, weight) in (cover.first..).zip(cover.weights()) {
                if made.replace(row) != Some(row) {
                    let start = ((part.top + row) * image.width + part.left) * CHANNELS;
                    let source = image.pixels[start..start + part.width * CHANNELS].as_chunks::<CHANNELS>().0;
                    covered(source, &columns, self.line.as_chunks_mut::<CHANNELS>().0);
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

/// Returns the source pixels that each of `to` pixels covers. Integers make a fully covered pixel exact.
fn covers(from: usize, to: usize) -> Vec<Cover> {
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
    (0..to).map(cover).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(pixels: &[u8], width: usize, to: usize) -> Vec<u8> {
        let pixels: Vec<u8> = pixels.iter().flat_map(|value| [*value, 0, 255]).collect();
        let image = Image { height: pixels.len() / 3 / width, width, pixels: &pixels };
        let mut out = vec![7; to * to * 3];
        let part = Rectangle::whole(image.size());
        Resampler::default()
            .run(Interpolation::Area, image, (part, None), &mut out, Size { height: to, width: to })
            .unwrap();
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
