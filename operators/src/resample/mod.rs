//! Resampling: a part of an image, scaled to another size.
//!
//! A caller may want only a region of the result. Its pixels are those of the whole result, bit for bit. The resizer
//! cannot be asked for less than a whole side, since it rounds its weights by the largest one of a side. So a region is
//! made by two calls, one for each side, over the whole side in one direction and only what is wanted in the other.

mod area;

use datafusion::common::{Result, exec_datafusion_err, internal_datafusion_err};
use fast_image_resize::images::{TypedCroppedImage, TypedCroppedImageMut, TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{Filter, FilterType, ResizeAlg, ResizeOptions, Resizer};

use self::area::AreaMeans;
use crate::descriptor::{ConstantKind, Parameter};
use crate::image_column::{Image, Rectangle, Size};
use crate::operator::Arguments;
use crate::strip::{Strip, sized};

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

/// The most pixels of a result that a kernel reaches to each side.
pub(crate) const KERNEL_REACH: f64 = 3.0;

/// One part of an image, to be scaled to a size.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resampling {
    pub(crate) interpolation: Interpolation,
    /// The part. Pixels outside it have no influence, as if the image had been cropped first.
    pub(crate) part: Rectangle,
    /// The area of the part that kernels use, if it is not all of it: left, top, width and height in fractions of its
    /// pixels.
    pub(crate) within: Option<[f64; 4]>,
    /// The size of the whole result.
    pub(crate) size: Size,
}

impl Resampling {
    /// Returns the pixels of the image that a region of the result needs, and maybe a few more.
    pub(crate) fn reads(&self, region: Rectangle) -> Rectangle {
        let [left, top, width, height] = self.area();
        let (part, size) = (self.part, self.size);
        let (x, width) = reads_along((left, width), part.width, size.width, (region.left, region.width));
        let (y, height) = reads_along((top, height), part.height, size.height, (region.top, region.height));
        Rectangle { top: part.top + y, left: part.left + x, height, width }
    }

    fn area(&self) -> [f64; 4] {
        self.within.unwrap_or([0.0, 0.0, self.part.width as f64, self.part.height as f64])
    }
}

/// Returns the first source pixel and the number of source pixels along one side that a range of `to` result pixels
/// needs. All of the result needs all of the part.
fn reads_along(area: (f64, f64), side: usize, to: usize, (first, len): (usize, usize)) -> (usize, usize) {
    if len == 0 || len == to {
        return (0, if len == 0 { 0 } else { side });
    }
    let scale = area.1 / to as f64;
    let reach = KERNEL_REACH * scale.max(1.0) + 1.0;
    let middle = |at: usize| area.0 + (at as f64 + 0.5) * scale;
    let start = (middle(first) - reach).max(0.0) as usize;
    let end = ((middle(first + len - 1) + reach).ceil() as usize).min(side);
    (start.min(end), end.saturating_sub(start))
}

/// Resamples images and reuses its memory from one to the next.
#[derive(Debug, Default)]
pub(crate) struct Resampler {
    resizer: Resizer,
    means: AreaMeans,
    /// The image after its rows were scaled.
    lines: Vec<u8>,
    /// The wanted rows of the result, over its whole width.
    wide: Vec<u8>,
}

impl Resampler {
    /// Makes a region of the result. `image` holds at least what the region [reads](Resampling::reads).
    pub(crate) fn run(
        &mut self,
        resampling: &Resampling,
        image: Strip,
        region: Rectangle,
        out: &mut [u8],
    ) -> Result<()> {
        let Interpolation::Kernel(algorithm) = resampling.interpolation else {
            self.means.run(resampling, image, region, out);
            return Ok(());
        };
        let options = ResizeOptions::new().resize_alg(algorithm).use_alpha(false);
        let done = match region == Rectangle::whole(resampling.size) {
            true => self.whole(resampling, &options, image, out),
            false => self.region(resampling, &options, image, region, out),
        };
        done.map_err(|e| internal_datafusion_err!("resizing {:?} of an image: {e}", resampling.part))
    }

    /// Makes the whole result. The part is cropped first: the resizer's own crop box would use pixels around it.
    fn whole(&mut self, resampling: &Resampling, options: &ResizeOptions, image: Strip, out: &mut [u8]) -> Resized {
        let source = pixels(image.columns.pixels, image.columns.size())?;
        let part = resampling.part;
        let source = cropped(&source, Rectangle { left: part.left - image.left, ..part })?;
        let mut target = target(out, resampling.size)?;
        let options = match resampling.within {
            Some([left, top, width, height]) => options.crop(left, top, width, height),
            None => *options,
        };
        // Use typed calls. A resizer for every pixel type would be as much code as all operators.
        Ok(self.resizer.resize_typed(&source, &mut target, &options)?)
    }

    /// Makes a part of the result.
    fn region(
        &mut self,
        resampling: &Resampling,
        options: &ResizeOptions,
        image: Strip,
        region: Rectangle,
        out: &mut [u8],
    ) -> Resized {
        let Resampling { part, size, .. } = *resampling;
        let [left, top, width, height] = resampling.area();
        let reads = resampling.reads(region);
        // Scale the columns that are read, in all rows: what is stale above and below gives rows that are not read.
        let lines_size = Size { height: size.height, width: part.width };
        let lines = sized(&mut self.lines, lines_size.values());
        let source = pixels(image.columns.pixels, image.columns.size())?;
        let columns = Rectangle { left: reads.left - image.left, width: reads.width, ..part };
        let across = reads.left - part.left;
        let mut whole = target(lines, lines_size)?;
        let mut strip =
            TypedCroppedImageMut::from_ref(&mut whole, across as u32, 0, reads.width as u32, size.height as u32)?;
        let down = options.crop(0.0, top, reads.width as f64, height);
        self.resizer.resize_typed(&cropped(&source, columns)?, &mut strip, &down)?;
        // Scale the wanted rows, in all columns.
        let rows = Rectangle { top: region.top, left: 0, height: region.height, width: part.width };
        let is_wide = region.width == size.width;
        let wide_size = Size { height: region.height, width: size.width };
        let wide = if is_wide { &mut *out } else { sized(&mut self.wide, wide_size.values()) };
        let along = options.crop(left, 0.0, width, region.height as f64);
        let lines = pixels(lines, lines_size)?;
        self.resizer.resize_typed(&cropped(&lines, rows)?, &mut target(wide, wide_size)?, &along)?;
        if !is_wide {
            let wide = &self.wide[..wide_size.values()];
            let from = Strip::whole(Image { height: region.height, width: size.width, pixels: wide });
            from.copy(Rectangle { top: 0, ..region }, out);
        }
        Ok(())
    }

    /// The memory that is kept, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.lines.capacity() + self.wide.capacity()
    }
}

type Resized<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn pixels(pixels: &[u8], size: Size) -> Resized<TypedImageRef<'_, U8x3>> {
    Ok(TypedImageRef::from_buffer(size.width as u32, size.height as u32, pixels)?)
}

fn target(pixels: &mut [u8], size: Size) -> Resized<TypedImage<'_, U8x3>> {
    Ok(TypedImage::from_buffer(size.width as u32, size.height as u32, pixels)?)
}

fn cropped<'a>(
    image: &'a TypedImageRef<'a, U8x3>,
    part: Rectangle,
) -> Resized<TypedCroppedImage<'a, TypedImageRef<'a, U8x3>>> {
    let [left, top, width, height] = [part.left, part.top, part.width, part.height].map(|n| n as u32);
    Ok(TypedCroppedImage::from_ref(image, left, top, width, height)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Draws;

    /// Draws a rectangle inside of a side.
    fn inside(draws: &mut Draws, size: Size) -> Rectangle {
        let mut along = |side: usize| {
            let len = 1 + draws.below(side as u64) as usize;
            (draws.below((side - len + 1) as u64) as usize, len)
        };
        let ((top, height), (left, width)) = (along(size.height), along(size.width));
        Rectangle { top, left, height, width }
    }

    #[test]
    fn a_region_is_that_of_the_whole_result() {
        let mut draws = Draws::new(47, 0);
        let filters = [
            FilterType::Bilinear,
            FilterType::CatmullRom,
            FilterType::Custom(Filter::new("lanczos", lanczos, 3.0).unwrap()),
        ];
        let (mut whole, mut resampler) = (Resampler::default(), Resampler::default());
        for round in 0..3_000 {
            // Every fifth is a photograph or larger than that; others meet more edges.
            let most = if round % 5 == 0 { 400 } else { 40 };
            let mut size =
                |most: u64| Size { height: 1 + draws.below(most) as usize, width: 1 + draws.below(most) as usize };
            let (have, size) = (size(most), size(most));
            let pixels: Vec<u8> = (0..have.values()).map(|_| draws.below(256) as u8).collect();
            let image = Image { height: have.height, width: have.width, pixels: &pixels };
            let filter = filters[draws.below(3) as usize];
            let interpolation = match draws.below(4) {
                0 => Interpolation::Area,
                1 => Interpolation::Kernel(ResizeAlg::Nearest),
                2 => Interpolation::Kernel(ResizeAlg::Interpolation(filter)),
                _ => Interpolation::Kernel(ResizeAlg::Convolution(filter)),
            };
            let part = inside(&mut draws, have);
            let within = (draws.below(3) == 0 && interpolation != Interpolation::Area).then(|| {
                let mut along = |side: usize| {
                    let first = draws.uniform_in(0.0, side as f64 / 2.0);
                    (first, draws.uniform_in(0.1, side as f64 - first))
                };
                let ((left, width), (top, height)) = (along(part.width), along(part.height));
                [left, top, width, height]
            });
            let resampling = Resampling { interpolation, part, within, size };
            let mut expect = vec![0; size.values()];
            whole.run(&resampling, Strip::whole(image), Rectangle::whole(size), &mut expect).unwrap();
            let region = inside(&mut draws, size);
            let reads = resampling.reads(region);
            // What is not read is stale: the columns are not there, and the rows hold anything.
            let mut columns = vec![draws.below(256) as u8; Size { width: reads.width, ..have }.values()];
            let rows = &mut columns[reads.top * reads.width * 3..][..reads.size().values()];
            Strip::whole(image).copy(reads, rows);
            let columns = Image { height: have.height, width: reads.width, pixels: &columns };
            let mut got = vec![0; region.size().values()];
            let strip = Strip { columns, left: reads.left };
            resampler.run(&resampling, strip, region, &mut got).unwrap();
            let mut wanted = vec![0; got.len()];
            Strip::whole(Image { height: size.height, width: size.width, pixels: &expect }).copy(region, &mut wanted);
            assert!(got == wanted, "seed 47, round {round}: {resampling:?}, {region:?} of a {have:?}");
        }
    }
}
