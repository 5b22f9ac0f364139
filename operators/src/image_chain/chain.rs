//! A chain of steps that runs over a column, image by image.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{Field, Float32Type, UInt8Type};
use datafusion::common::{Result, exec_datafusion_err};
use forebay_arrays::{Widen, pool};
use forebay_jpeg::Scale;

use super::{Frame, KEPT_BYTES_MAX, PixelChange, Step, TakenPart};
use crate::call_cost::CallCost;
use crate::decode_image::{self, Files, ImageHeader, Limits, Samples, sized};
use crate::image_column::{self, CHANNELS, Image, ImageLayout, Images, Shape, Size};
use crate::keyed::Draws;
use crate::resample::Resampler;

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
struct Framed {
    frame: AtSite<Frame>,
    changes: Vec<AtSite<PixelChange>>,
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
    ///
    /// The chain moves a frame that copies before pixelwise changes. The result is the same, and fewer pixels change.
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
                    let before = chain.changes();
                    let copies = matches!(frame.part, super::PartOf::Copied(_));
                    let first = before.iter().rposition(|change| !copies || !change.step.is_of_pixels);
                    let changes = before.split_off(first.map_or(0, |at| at + 1));
                    chain.frames.push(Framed { frame: AtSite { step: frame, site, cost }, changes });
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
            let named = |problem| exec_datafusion_err!("{}: {problem}", decode_image::NAME);
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
        let ChainScratch { decoder, resampler, current, next, .. } = scratch;
        let mut size = picture.size();
        let Some((last, before)) = self.frames.split_last() else {
            self.load(picture, out, decoder)?;
            return paint(&self.lead, key, out, size);
        };
        let mut is_loaded = !self.lead.is_empty();
        if is_loaded {
            let pixels = sized(current, size.values());
            self.load(picture, pixels, decoder)?;
            paint(&self.lead, key, pixels, size)?;
        }
        let mut step = |Framed { frame, changes }: &Framed, from: &[u8], is_loaded: bool, size: Size, to: &mut [u8]| {
            let placed = frame.step.placed(&mut Draws::new(key, frame.site), size);
            let pixels = |image| TakenPart { image, part: placed.part, within: None };
            let taken = match (is_loaded, picture) {
                (true, _) => pixels(Image { height: size.height, width: size.width, pixels: from }),
                (false, Picture::Pixels(image)) => pixels(image),
                (false, Picture::File(file, header)) => {
                    let named = |problem| exec_datafusion_err!("{}: {problem}", decode_image::NAME);
                    let scale = if self.is_fast { placed.scale(frame.step.size) } else { Scale::Whole };
                    let begun = Instant::now();
                    let part = decode_image::part(file, header, placed.part, scale, decoder).map_err(named)?;
                    self.count_decoding(begun, file, part.image.pixels);
                    part
                }
            };
            let (begun, bytes) = (Instant::now(), (taken.part.height * taken.part.width * CHANNELS) as u64);
            placed.fill(taken, to, frame.step.size, resampler)?;
            frame.cost.add(begun.elapsed(), 1, bytes, to.len() as u64);
            paint(changes, key, to, frame.step.size)
        };
        for framed in before {
            step(framed, current, is_loaded, size, sized(next, framed.frame.step.size.values()))?;
            std::mem::swap(current, next);
            (size, is_loaded) = (framed.frame.step.size, true);
        }
        step(last, current, is_loaded, size, out)
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

fn paint(changes: &[AtSite<PixelChange>], key: u64, pixels: &mut [u8], size: Size) -> Result<()> {
    for AtSite { step, site, cost } in changes {
        let begun = Instant::now();
        (step.paint)(&mut Draws::new(key, *site), pixels, size);
        cost.add(begun.elapsed(), 1, pixels.len() as u64, pixels.len() as u64);
    }
    Ok(())
}

impl ChainScratch {
    fn bytes(&self) -> usize {
        [&self.current, &self.next, &self.last].iter().map(|memory| memory.capacity()).sum::<usize>()
            + self.decoder.bytes()
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
            Self::File(file, header) => decode_image::whole(file, *header, Samples::Colours, out, decoder)
                .map_err(|problem| exec_datafusion_err!("{}: {problem}", decode_image::NAME)),
            Self::Pixels(image) => {
                out.copy_from_slice(image.pixels);
                Ok(())
            }
        }
    }
}
