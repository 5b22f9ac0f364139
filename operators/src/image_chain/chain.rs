//! A chain of steps that runs over a column, image by image.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Float32Type, UInt8Type};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, internal_err};
use forebay_arrays::{Widen, pool};
use forebay_jpeg::Scale;

use super::regions::{self, PlacedFrame, Region};
use super::{Frame, KEPT_BYTES_MAX, PixelChange, Step};
use crate::call_cost::CallCost;
use crate::decode_image::{self, Files, ImageHeader, Limits, PartDecode, Samples};
use crate::image_column::{self, Image, ImageLayout, Images, Rectangle, Shape, Size};
use crate::keyed::Draws;
use crate::resample::Resampler;
use crate::strip::{Strip, region_in, sized};

/// Steps in the order in which they run, each with its call site if it is random.
#[derive(Debug)]
pub(super) struct Chain {
    /// The largest image to decode, if the chain begins with files, and what decoding costs.
    decodes: Option<(Limits, Arc<CallCost>)>,
    is_fast: bool,
    /// The changes before the first frame.
    lead: Vec<AtSite<PixelChange>>,
    frames: Vec<Framed>,
    widen: Option<(Widen, Arc<CallCost>)>,
}

/// A step with the site of its call and what it costs. The site is 0 for a deterministic step, which draws nothing.
#[derive(Debug)]
pub(super) struct AtSite<T> {
    pub(super) step: T,
    pub(super) site: u64,
    pub(super) cost: Arc<CallCost>,
}

/// A frame and the changes in it.
#[derive(Debug)]
pub(super) struct Framed {
    pub(super) frame: AtSite<Frame>,
    pub(super) changes: Vec<AtSite<PixelChange>>,
}

/// Memory that is reused from image to image.
#[derive(Debug, Default)]
struct ChainScratch {
    decoder: decode_image::DecodeScratch,
    resampler: Resampler,
    current: Vec<u8>,
    next: Vec<u8>,
    /// The image before its pixels are widened.
    last: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<ChainScratch>>> = const { Cell::new(None) };
}

/// An input image.
#[derive(Clone, Copy)]
enum Picture<'a> {
    File(&'a [u8], ImageHeader),
    Pixels(Image<'a>),
}

impl Chain {
    /// Makes a chain of these steps. Returns `None` if one step cannot follow another.
    pub(super) fn new(steps: Vec<AtSite<Step>>) -> Option<Self> {
        let mut chain = Self { decodes: None, is_fast: false, lead: Vec::new(), frames: Vec::new(), widen: None };
        for (at, AtSite { step, site, cost }) in steps.into_iter().enumerate() {
            if chain.widen.is_some() {
                return None;
            }
            match step {
                Step::Decode { fast, limits } if at == 0 => {
                    (chain.decodes, chain.is_fast) = (Some((limits, cost)), fast);
                }
                Step::Decode { .. } => return None,
                Step::Frame(frame) => {
                    chain.frames.push(Framed { frame: AtSite { step: frame, site, cost }, changes: Vec::new() });
                }
                Step::Change(change) => chain.changes().push(AtSite { step: change, site, cost }),
                Step::Widen(widen) => chain.widen = Some((widen, cost)),
            }
        }
        Some(chain)
    }

    /// The costs of the steps, in the order in which they run.
    pub(super) fn costs(&self) -> Vec<Arc<CallCost>> {
        let decode = self.decodes.iter().map(|(_, cost)| cost);
        let mut costs: Vec<&Arc<CallCost>> = decode.chain(self.lead.iter().map(|change| &change.cost)).collect();
        for Framed { frame, changes } in &self.frames {
            costs.push(&frame.cost);
            costs.extend(changes.iter().map(|change| &change.cost));
        }
        costs.extend(self.widen.iter().map(|(_, cost)| cost));
        costs.into_iter().cloned().collect()
    }

    /// The list to which the next change belongs.
    fn changes(&mut self) -> &mut Vec<AtSite<PixelChange>> {
        match self.frames.last_mut() {
            Some(framed) => &mut framed.changes,
            None => &mut self.lead,
        }
    }

    /// Runs over a column of files or of images. `keys` is present if any step is random.
    pub(super) fn run(&self, field: &Field, column: &ArrayRef, keys: Option<&UInt64Array>) -> Result<ArrayRef> {
        if let Some((limits, _)) = self.decodes {
            let files = Files::try_new(column)?;
            let picture = |row| match files.get(row) {
                Some(file) => Ok(Some(Picture::File(file, decode_image::limited_header(file, limits).map_err(named)?))),
                None => Ok(None),
            };
            return self.run_over(files.len(), None, files.nulls(), picture, keys);
        }
        let images = Images::try_new(field, column)?;
        let shape = match image_column::shape(field)? {
            Shape::Fixed { height, width } => Some(Size { height, width }),
            Shape::Variable => None,
        };
        let picture = |row| Ok(images.get(row)?.map(Picture::Pixels));
        self.run_over(images.len(), shape, images.nulls(), picture, keys)
    }

    /// Runs over images. `shape` is their common shape, if they have one.
    fn run_over<'a>(
        &self,
        rows: usize,
        shape: Option<Size>,
        nulls: Option<&NullBuffer>,
        picture: impl Fn(usize) -> Result<Option<Picture<'a>>>,
        keys: Option<&UInt64Array>,
    ) -> Result<ArrayRef> {
        let layout = match self.frames.last().map(|framed| framed.frame.step.size).or(shape) {
            Some(size) => ImageLayout::fixed(self.name(), rows, size)?,
            None => {
                let size = |row| Ok(picture(row)?.map(|picture: Picture| picture.size()));
                ImageLayout::variable(self.name(), (0..rows).map(size))?
            }
        };
        let mut scratch = SCRATCH.take().unwrap_or_default();
        let size = if self.widen.is_some() { size_of::<f32>() } else { 1 };
        layout.reserve(self.name(), size)?;
        let mut out = pool::outputs().take_filled(layout.values() * size);
        for row in 0..rows {
            let key = keys.map_or(0, |keys| keys.value(row));
            let range = layout.range(row);
            match (picture(row)?, &self.widen) {
                (Some(picture), None) => self.image(picture, key, &mut out.values()[range], &mut scratch)?,
                (Some(picture), Some((widen, cost))) => {
                    let mut last = std::mem::take(&mut scratch.last);
                    let pixels = sized(&mut last, range.len());
                    self.image(picture, key, pixels, &mut scratch)?;
                    let begun = Instant::now();
                    let floats = &mut out.values()[range];
                    widen.fill(pixels, floats);
                    cost.add(begun.elapsed(), 1, pixels.len() as u64, size_of_val(floats) as u64);
                    scratch.last = last;
                }
                (None, None) => out.values::<u8>()[range].fill(0),
                (None, Some(_)) => out.values::<f32>()[range].fill(0.0),
            }
        }
        if scratch.bytes() <= KEPT_BYTES_MAX {
            SCRATCH.set(Some(scratch));
        }
        match self.widen {
            Some(_) => layout.array::<Float32Type>(out.freeze().into(), nulls.cloned()),
            None => layout.array::<UInt8Type>(out.freeze().into(), nulls.cloned()),
        }
    }

    /// Computes the pixels of one image.
    fn image(&self, picture: Picture, key: u64, out: &mut [u8], scratch: &mut ChainScratch) -> Result<()> {
        let mut placed = regions::placed(&self.frames, key, picture.size());
        let Some(first) = placed.first_mut() else {
            self.load(picture, out, &mut scratch.decoder)?;
            paint(&self.lead, key, out, picture.size());
            return Ok(());
        };
        // The size and the region of the image in `current`; none if that is the picture itself.
        let mut held = self.begin(picture, key, first, scratch)?;
        let last = placed.len() - 1;
        let frames = self.frames.iter().zip(&placed).enumerate();
        for (at, (Framed { frame, changes }, PlacedFrame { placed, region })) in frames {
            let ChainScratch { resampler, current, next, .. } = scratch;
            let size = frame.step.size;
            let image = match (held, picture) {
                (Some((size, region)), _) => Strip::of_region(current, size, region),
                (None, Picture::Pixels(image)) => Strip::whole(image),
                (None, Picture::File(..)) => return internal_err!("a file is decoded before its first frame"),
            };
            let to = if at == last { &mut *out } else { region_in(next, size, region.place()) };
            let begun = Instant::now();
            placed.fill(image, region.made, to, resampler)?;
            let bytes = placed.reads(region.made).size().values() as u64;
            frame.cost.add(begun.elapsed(), 1, bytes, to.len() as u64);
            if at == last {
                paint(changes, key, out, size);
            } else {
                std::mem::swap(current, next);
                scratch.change(changes, key, size, region);
            }
            held = Some((size, region.changed));
        }
        Ok(())
    }

    /// Loads what the first frame needs of a picture, with the changes before the frame, and adapts the frame to it.
    /// Returns the size and the region of what is now in `current`; `None` if the frame uses the picture as it is.
    fn begin(
        &self,
        picture: Picture,
        key: u64,
        first: &mut PlacedFrame,
        scratch: &mut ChainScratch,
    ) -> Result<Option<(Size, Rectangle)>> {
        let ChainScratch { decoder, current, .. } = scratch;
        let (size, region) = match picture {
            Picture::Pixels(_) if self.lead.is_empty() => return Ok(None),
            Picture::Pixels(image) => {
                let size = image.size();
                let region = Region::before(&self.lead, key, size, first.placed.reads(first.region.made));
                Strip::whole(image).copy(region.made, region_in(current, size, region.place()));
                (size, region)
            }
            Picture::File(file, header) => {
                let begun = Instant::now();
                let (part, scale) = match self.lead.is_empty() {
                    true if self.is_fast => (first.placed.part, first.placed.scale()),
                    true => (first.placed.part, Scale::Whole),
                    false => (Rectangle::whole(header.shown()), Scale::Whole),
                };
                let decode = PartDecode::new(file, header, part, scale).map_err(named)?;
                if self.lead.is_empty() {
                    first.placed = first.placed.decoded(&decode);
                }
                let needed = first.placed.reads(first.region.made);
                let region = Region::before(&self.lead, key, decode.size, needed);
                let region = match decode.region(region.made) {
                    decoded if decoded == region.made => region,
                    more => region.of_more(more, &self.lead),
                };
                let pixels = region_in(current, decode.size, region.place());
                decode.run(file, header, region.made, pixels, decoder).map_err(named)?;
                self.count_decoding(begun, file, pixels);
                (decode.size, region)
            }
        };
        scratch.change(&self.lead, key, size, &region);
        Ok(Some((size, region.changed)))
    }

    /// Writes all pixels of an image.
    fn load(&self, picture: Picture, out: &mut [u8], decoder: &mut decode_image::DecodeScratch) -> Result<()> {
        let begun = Instant::now();
        picture.whole(out, decoder)?;
        if let Picture::File(file, _) = picture {
            self.count_decoding(begun, file, out);
        }
        Ok(())
    }

    fn count_decoding(&self, begun: Instant, file: &[u8], pixels: &[u8]) {
        if let Some((_, cost)) = &self.decodes {
            cost.add(begun.elapsed(), 1, file.len() as u64, pixels.len() as u64);
        }
    }

    fn name(&self) -> &'static str {
        if self.decodes.is_some() { decode_image::NAME } else { "images" }
    }
}

/// Changes the pixels of an image or of a region.
fn paint(changes: &[AtSite<PixelChange>], key: u64, pixels: &mut [u8], size: Size) {
    if pixels.is_empty() {
        return;
    }
    for AtSite { step, site, cost } in changes {
        let begun = Instant::now();
        (step.paint)(&mut Draws::new(key, *site), pixels, size);
        cost.add(begun.elapsed(), 1, pixels.len() as u64, pixels.len() as u64);
    }
}

fn named(problem: String) -> DataFusionError {
    exec_datafusion_err!("{}: {problem}", decode_image::NAME)
}

impl ChainScratch {
    /// Changes what was made of an image of this size in `current`, and cuts off what later steps do not need.
    fn change(&mut self, changes: &[AtSite<PixelChange>], key: u64, size: Size, region: &Region) {
        let (of_whole, others) = changes.split_at(region.split);
        paint(of_whole, key, region_in(&mut self.current, size, region.place()), region.made.size());
        if region.is_cut() {
            let made = Strip::of_region(&self.current, size, region.made);
            made.copy(region.kept, region_in(&mut self.next, size, region.changed));
            std::mem::swap(&mut self.current, &mut self.next);
        }
        paint(others, key, region_in(&mut self.current, size, region.changed), region.kept.size());
    }

    fn bytes(&self) -> usize {
        [&self.current, &self.next, &self.last].iter().map(|memory| memory.capacity()).sum::<usize>()
            + self.decoder.bytes()
            + self.resampler.bytes()
    }
}

impl Picture<'_> {
    fn size(&self) -> Size {
        match self {
            Self::File(_, header) => header.shown(),
            Self::Pixels(image) => image.size(),
        }
    }

    /// Writes all pixels of the image.
    fn whole(&self, out: &mut [u8], decoder: &mut decode_image::DecodeScratch) -> Result<()> {
        match self {
            Self::File(file, header) => {
                decode_image::whole(file, *header, Samples::Colours, out, decoder).map_err(named)
            }
            Self::Pixels(image) => {
                out.copy_from_slice(image.pixels);
                Ok(())
            }
        }
    }
}
