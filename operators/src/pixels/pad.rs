//! `pad`: adds a border to images.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, UInt8Type};
use datafusion::common::{Result, exec_err};
use forebay_arrays::pool;

use super::augment::{IMAGE, colour};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter};
use crate::image_column::{self, CHANNELS, Image, ImageLayout, Images, Shape, Size};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "pad",
    version: 1,
    category: "image",
    summary: "Adds a border to each image",
    parameters: &[
        IMAGE,
        Parameter::constant(
            "padding",
            ConstantKind::NumberOrList,
            "The border's width in pixels, or `[left, top, right, bottom]`",
        ),
        Parameter::constant("mode", ConstantKind::Text, "`'constant'`, `'edge'` or `'reflect'`").or("'constant'"),
        Parameter::constant(
            "fill",
            ConstantKind::NumberList,
            "The colour of a constant border, from 0 to 255 per channel",
        )
        .or("[0, 0, 0]"),
    ],
    returns: "a uint8 tensor, of fixed shape if the input's shape is fixed, otherwise of variable shape",
    docs: "'edge' repeats the outermost pixels. 'reflect' mirrors the image without repeating them, so the padding \
           must be less than the side that it mirrors. Padding is whole numbers from 0. A list of two numbers is left \
           and right, then top and bottom. Null in, null out.",
    source: "torchvision's `v2.Pad`, bit for bit",
    examples: &[Example {
        sql: "pad(image, padding => 4, mode => 'reflect')",
        result: "8 pixels more in each direction",
    }],
    ..Descriptor::BASE
};

/// The operator `pad`.
#[derive(Debug)]
pub(crate) struct Pad;

/// The widths and the content of a border.
struct Border {
    left: usize,
    top: usize,
    right: usize,
    bottom: usize,
    mode: Mode,
}

enum Mode {
    Constant([u8; CHANNELS]),
    Edge,
    Reflect,
}

impl Operator for Pad {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let border = Border::read(arguments)?;
        let field = arguments.field("image")?;
        match image_column::shape(field)? {
            Shape::Fixed { height, width } => match border.size(height, width) {
                Ok((height, width)) => {
                    image_column::fixed_field("image", DataType::UInt8, height, width, field.is_nullable())
                }
                Err(problem) => arguments.refuse("padding", problem),
            },
            Shape::Variable => Ok(image_column::variable_field("image", DataType::UInt8, field.is_nullable())),
        }
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let border = Border::read(arguments)?;
        let (field, array) = (arguments.field("image")?, arguments.array("image")?);
        let images = Images::try_new(field, array)?;
        let sized = |height, width| match border.size(height, width) {
            Ok((height, width)) => Ok(Size { height, width }),
            Err(problem) => exec_err!("{}: the padding {problem}", DESCRIPTOR.name),
        };
        let layout = match image_column::shape(field)? {
            Shape::Fixed { height, width } => ImageLayout::fixed(DESCRIPTOR.name, images.len(), sized(height, width)?)?,
            Shape::Variable => {
                let size = |row| images.get(row)?.map(|image| sized(image.height, image.width)).transpose();
                ImageLayout::variable(DESCRIPTOR.name, (0..images.len()).map(size))?
            }
        };
        let mut out = pool::outputs().take_filled(layout.values());
        for row in 0..images.len() {
            let out = &mut out.values()[layout.range(row)];
            match images.get(row)? {
                Some(image) => border.draw(image, out),
                None => out.fill(0),
            }
        }
        layout.array::<UInt8Type>(out.freeze().into(), images.nulls().cloned())
    }
}

impl Border {
    fn read(arguments: &Arguments) -> Result<Self> {
        let [left, top, right, bottom] = sides(arguments)?;
        let mode = match arguments.text("mode")?.as_str() {
            "constant" => Mode::Constant(colour(arguments, "fill")?),
            "edge" => Mode::Edge,
            "reflect" => Mode::Reflect,
            other => {
                return arguments
                    .refuse("mode", format_args!("must be 'constant', 'edge' or 'reflect', got \"{other}\""));
            }
        };
        Ok(Self { left, top, right, bottom, mode })
    }

    /// Returns height and width including the border. The error text continues the argument's name.
    fn size(&self, height: usize, width: usize) -> std::result::Result<(usize, usize), String> {
        let is_short = self.left.max(self.right) >= width || self.top.max(self.bottom) >= height;
        if matches!(self.mode, Mode::Reflect) && is_short {
            return Err(format!("must be less than the sides of the image that it reflects, {height} x {width}"));
        }
        let (height, width) = (height + self.top + self.bottom, width + self.left + self.right);
        image_column::check_size(height, width).map_err(|problem| format!("is too large: {problem}"))?;
        Ok((height, width))
    }

    fn draw(&self, image: Image, out: &mut [u8]) {
        let line = (image.width + self.left + self.right) * CHANNELS;
        let (first, last) = (self.left * CHANNELS, (self.left + image.width) * CHANNELS);
        for (y, out) in out.chunks_exact_mut(line).enumerate() {
            let Some(source) = self.source(y, self.top, image.height) else {
                if let Mode::Constant(fill) = self.mode {
                    out.as_chunks_mut().0.fill(fill);
                }
                continue;
            };
            let source = &image.pixels[source * image.width * CHANNELS..][..image.width * CHANNELS];
            out[first..last].copy_from_slice(source);
            let source = source.as_chunks::<CHANNELS>().0;
            let out = out.as_chunks_mut::<CHANNELS>().0;
            for x in (0..self.left).chain(self.left + image.width..out.len()) {
                out[x] = match (self.source(x, self.left, image.width), &self.mode) {
                    (Some(x), _) => source[x],
                    (None, Mode::Constant(fill)) => *fill,
                    (None, _) => [0; CHANNELS],
                };
            }
        }
    }

    /// Returns the source row or column of a position, if it has one.
    fn source(&self, at: usize, before: usize, len: usize) -> Option<usize> {
        let at = at as isize - before as isize;
        let last = len as isize - 1;
        if (0..=last).contains(&at) {
            return Some(at as usize);
        }
        match self.mode {
            Mode::Constant(_) => None,
            Mode::Edge => Some(at.clamp(0, last) as usize),
            Mode::Reflect => Some((if at < 0 { -at } else { 2 * last - at }) as usize),
        }
    }
}

/// Reads the widths of a border: left, top, right, bottom.
pub(crate) fn sides(arguments: &Arguments) -> Result<[usize; 4]> {
    let numbers = arguments.numbers("padding")?;
    let most = image_column::SIDE_MAX;
    if let Some(bad) = numbers.iter().find(|x| !(0.0..=most as f64).contains(*x) || x.fract() != 0.0) {
        return arguments.refuse("padding", format_args!("must be whole numbers from 0 to {most}, got {bad}"));
    }
    let sides: Vec<usize> = numbers.iter().map(|x| *x as usize).collect();
    Ok(match sides[..] {
        [all] => [all; 4],
        [x, y] => [x, y, x, y],
        [left, top, right, bottom] => [left, top, right, bottom],
        _ => return arguments.refuse("padding", format_args!("must have 1, 2 or 4 numbers, got {}", sides.len())),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{assert_near, call, decoded, image, noise};

    #[test]
    fn borders_are_torchvisions() {
        for (mode, file) in [("'constant', [9, 8, 7]", "constant"), ("'edge'", "edge"), ("'reflect'", "reflect")] {
            let got = call(&format!("pad(image, [1, 2, 5, 3], {mode})"), vec![noise()]).unwrap();
            assert_near(&got, &format!("../golden/images/noise_pad_{file}.png"), 0);
        }
    }

    #[test]
    fn images_of_many_sizes_stay_so() {
        let source = decoded(&["colour.jpg", "palette.png"]);
        let got = call("pad(image, [0, 4], 'edge')", vec![source.clone()]).unwrap();
        for row in 0..2 {
            let (height, width, pixels) = image(&source, row).unwrap();
            let (padded_height, padded_width, padded) = image(&got, row).unwrap();
            assert_eq!((padded_height, padded_width), (height + 8, width));
            assert_eq!(padded[4 * width * 3..(height + 4) * width * 3], pixels);
            assert_eq!(padded[..width * 3], pixels[..width * 3]);
        }
    }

    #[test]
    fn wrong_borders_are_refused() {
        let check = |text: &str, expect: &str| assert_eq!(call(text, vec![noise()]).unwrap_err(), expect);
        check("pad(image, [1, 2, 3])", "pad: \"padding\" must have 1, 2 or 4 numbers, got 3");
        check("pad(image, -1)", "pad: \"padding\" must be whole numbers from 0 to 16384, got -1");
        check("pad(image, 1, 'wrap')", "pad: \"mode\" must be 'constant', 'edge' or 'reflect', got \"wrap\"");
        let expect = "pad: \"padding\" must be less than the sides of the image that it reflects, 9 x 13";
        check("pad(image, 9, 'reflect')", expect);
        assert!(call("pad(image, [12, 8], 'reflect')", vec![noise()]).is_ok());
        check(
            "pad(image, 16384)",
            "pad: \"padding\" is too large: an image of 32777 x 32781 is over the limit of 16384 per side and 268435456 pixels",
        );
    }
}
