//! The operators on boxes and points that follow those on images: `resize_boxes`, `random_crop_points`, …

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{Result, exec_err, internal_err};

use super::column::{Groups, GroupsBuilder};
use super::geometry::{Movement, Positions};
use crate::center_crop;
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::image_column::{self, Rectangle, SIDE_MAX, Size};
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};
use crate::pixels::{pad, random_crop};
use crate::random_resized_crop::Ranges;

/// An operator that moves boxes or points like an image.
#[derive(Debug)]
pub(crate) struct Annotation {
    descriptor: &'static Descriptor,
    prepare: fn(&Arguments, Positions) -> Result<Box<Move>>,
}

/// A function that draws the movement of an image of some size, or says why it cannot be moved.
type Move = dyn Fn(&mut Draws, Size) -> std::result::Result<Movement, String>;

impl Operator for Annotation {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        drop((self.prepare)(arguments, self.positions())?);
        if self.descriptor.determinism == Determinism::KeyedRandom && arguments.text("key")?.is_empty() {
            return arguments.refuse("key", "must be the key of the image's call, got \"\"");
        }
        if self.has_min_visible() {
            let share = arguments.number("min_visible")?;
            if !(0.0..=1.0).contains(&share) {
                return arguments.refuse("min_visible", format_args!("must be from 0 to 1, got {share}"));
            }
        }
        let inputs = [self.input(), "from_height", "from_width"];
        let nullable = inputs.into_iter().map(|name| Ok(arguments.field(name)?.is_nullable()));
        let nullable = nullable.collect::<Result<Vec<_>>>()?.contains(&true);
        Ok(Field::new(self.input(), arguments.field(self.input())?.data_type().clone(), nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let name = self.descriptor.name;
        let movement = (self.prepare)(arguments, self.positions())?;
        let min_visible = if self.has_min_visible() { arguments.number("min_visible")? } else { 0.0 };
        let side = |name: &str| -> Result<ArrayRef> { Ok(cast(arguments.array(name)?, &DataType::Int64)?) };
        let sides = [side("from_height")?, side("from_width")?];
        let [heights, widths]: [&Int64Array; 2] = [sides[0].as_primitive::<Int64Type>(), sides[1].as_primitive()];
        let groups = Groups::try_new(arguments.array(self.input())?)?;
        let nulls = NullBuffer::union(groups.nulls(), NullBuffer::union(heights.nulls(), widths.nulls()).as_ref());
        let width = match arguments.array(self.input())?.as_list::<i32>().value_type() {
            DataType::FixedSizeList(_, width) => width as usize,
            other => return internal_err!("{name} got a list of {other}, which its type class refuses"),
        };
        let mut out = GroupsBuilder::new(name, width, groups.len(), groups.values());
        for row in 0..groups.len() {
            if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                let from = match (heights.value(row), widths.value(row)) {
                    (height @ 1.., width @ 1..) if height <= SIDE_MAX as i64 && width <= SIDE_MAX as i64 => {
                        Size { height: height as usize, width: width as usize }
                    }
                    (height, width) => {
                        return exec_err!("{name}: no image has the size {height} x {width}");
                    }
                };
                let movement = match movement(&mut arguments.draws_of(row), from) {
                    Ok(movement) => movement,
                    Err(problem) => return exec_err!("{name}: {problem}"),
                };
                for group in groups.row(row) {
                    match group {
                        Some(&[left, top, right, bottom]) => {
                            let visible = movement.visible([left, top, right, bottom], from, min_visible);
                            out.push(&visible.unwrap_or_default());
                        }
                        Some(&[x, y]) => out.push(&movement.placed([x, y], from).unwrap_or([f32::NAN; 2])),
                        Some(&[x, y, visibility]) => {
                            let place = if visibility > 0.0 { movement.placed([x, y], from) } else { None };
                            out.push(&place.map_or([0.0; 3], |[x, y]| [x, y, visibility]));
                        }
                        _ if width == 2 => out.push(&[f32::NAN; 2]),
                        _ => out.push(&[0.0; 4][..width]),
                    }
                }
            }
            out.end_row()?;
        }
        out.finish(nulls)
    }
}

impl Annotation {
    fn input(&self) -> &'static str {
        self.descriptor.parameters[0].name
    }

    fn positions(&self) -> Positions {
        if self.input() == "boxes" { Positions::Edges } else { Positions::Pixels }
    }

    fn has_min_visible(&self) -> bool {
        self.descriptor.position("min_visible").is_some()
    }
}

fn resize(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let size = named_size(arguments)?;
    Ok(Box::new(move |_, from| Ok(Movement::scaled(Rectangle::whole(from), size))))
}

fn center_crop(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let size = named_size(arguments)?;
    Ok(match center_crop::shorter_side(arguments)? {
        None => Box::new(move |_, from| Ok(Movement::copied(center_crop::spans(from, size), size))),
        Some(shorter) => Box::new(move |_, from| Ok(Movement::of_area(center_crop::area(from, size, shorter), size))),
    })
}

fn pad(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let [left, top, right, bottom] = pad::sides(arguments)?;
    Ok(Box::new(move |_, from| {
        let size = Size { height: from.height + top + bottom, width: from.width + left + right };
        image_column::check_size(size.height, size.width)
            .map_err(|problem| format!("the padding is too large: {problem}"))?;
        Ok(Movement::bordered(left, top, size))
    }))
}

fn random_crop(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let (size, padding) = (named_size(arguments)?, random_crop::padding(arguments)?);
    Ok(Box::new(move |draws, from| Ok(Movement::copied(random_crop::spans(draws, from, size, padding), size))))
}

fn random_resized_crop(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let (size, ranges) = (named_size(arguments)?, Ranges::read(arguments)?);
    Ok(Box::new(move |draws, from| Ok(Movement::scaled(ranges.draw(draws, from.height, from.width), size))))
}

fn random_hflip(arguments: &Arguments, positions: Positions) -> Result<Box<Move>> {
    let p = probability(arguments)?;
    Ok(Box::new(move |draws, from| {
        let is_mirrored = draws.uniform() < p;
        Ok(if is_mirrored { Movement::mirrored_left_to_right(from, positions) } else { Movement::none(from) })
    }))
}

fn random_vflip(arguments: &Arguments, positions: Positions) -> Result<Box<Move>> {
    let p = probability(arguments)?;
    Ok(Box::new(move |draws, from| {
        let is_mirrored = draws.uniform() < p;
        Ok(if is_mirrored { Movement::mirrored_top_to_bottom(from, positions) } else { Movement::none(from) })
    }))
}

fn random_rotate(arguments: &Arguments, _: Positions) -> Result<Box<Move>> {
    let degrees = arguments.number("degrees")?;
    if !(0.0..=360.0).contains(&degrees) {
        return arguments.refuse("degrees", format_args!("must be from 0 to 360, got {degrees}"));
    }
    Ok(Box::new(move |draws, from| Ok(Movement::rotated(draws.uniform_in(-degrees, degrees), from))))
}

fn probability(arguments: &Arguments) -> Result<f64> {
    match arguments.number("p")? {
        p if (0.0..=1.0).contains(&p) => Ok(p),
        p => arguments.refuse("p", format_args!("must be from 0 to 1, got {p}")),
    }
}

fn named_size(arguments: &Arguments) -> Result<Size> {
    let size = Size { height: arguments.positive("height")?, width: arguments.positive("width")? };
    match image_column::check_size(size.height, size.width) {
        Ok(()) => Ok(size),
        Err(problem) => arguments.refuse("height", format_args!("is too large: {problem}")),
    }
}

const BOXES: Parameter =
    Parameter::input("boxes", TypeClass::Boxes, "The boxes as left, top, right, bottom, in pixels");
const POINTS: Parameter = Parameter::input("points", TypeClass::Points, "The points as x, y or x, y, visibility");
const FROM_HEIGHT: Parameter = Parameter::input("from_height", TypeClass::Side, "The height of the image before");
const FROM_WIDTH: Parameter = Parameter::input("from_width", TypeClass::Side, "The width of the image before");
const HEIGHT: Parameter =
    Parameter::constant("height", ConstantKind::PositiveInteger, "The height of the image's result").like("224");
const WIDTH: Parameter =
    Parameter::constant("width", ConstantKind::PositiveInteger, "The width of the image's result").like("224");
const KEY: Parameter = Parameter::constant("key", ConstantKind::Text, "The key of the image's call").like("'view'");
const P: Parameter =
    Parameter::constant("p", ConstantKind::Number, "The probability, as in the image's call").or("0.5");
const PADDING: Parameter =
    Parameter::constant("padding", ConstantKind::Integer, "The padding of the image's call").or("0");
const BORDER: Parameter = Parameter::constant("padding", ConstantKind::NumberOrList, "The padding of the image's call");
const SCALE_MIN: Parameter =
    Parameter::constant("scale_min", ConstantKind::Number, "As in the image's call").or("0.08");
const SCALE_MAX: Parameter = Parameter::constant("scale_max", ConstantKind::Number, "As in the image's call").or("1.0");
const RATIO_MIN: Parameter =
    Parameter::constant("ratio_min", ConstantKind::Number, "As in the image's call").or("0.75");
const RATIO_MAX: Parameter =
    Parameter::constant("ratio_max", ConstantKind::Number, "As in the image's call").or("1.3333333333333333");
const DEGREES: Parameter = Parameter::constant("degrees", ConstantKind::Number, "As in the image's call").like("15");
const MIN_VISIBLE: Parameter = Parameter::constant(
    "min_visible",
    ConstantKind::Number,
    "The minimum share of a box's area that must stay in the image",
)
.or("0.0");

const OF_BOXES: Descriptor =
    Descriptor { category: "box", returns: "a list of float32 of 4, with as many boxes", ..Descriptor::BASE };
const OF_POINTS: Descriptor =
    Descriptor { category: "box", returns: "a list of the points' type, with as many points", ..Descriptor::BASE };

/// Declares the operators that move boxes and points like an operator on images moves its pixels.
macro_rules! follow {
    (
        $boxes:ident, $points:ident: $image:literal by $prepare:ident, $determinism:ident,
        required [$($required:expr),*], optional [$($optional:expr),*], visible [$($visible:expr)?],
        $of_boxes:literal, $example:literal
    ) => {
        pub(crate) static $boxes: Annotation = Annotation {
            descriptor: &Descriptor {
                name: concat!($image, "_boxes"),
                summary: concat!("Moves boxes like `", $image, "` moves the image"),
                parameters: &[BOXES, FROM_HEIGHT, FROM_WIDTH, $($required,)* $($optional,)* $($visible)?],
                determinism: Determinism::$determinism,
                draws_like: $image,
                docs: concat!(
                    "from_height and from_width are the size of the image before the call, such as \
                     `image_height(bytes)`. Boxes are clipped to the image, and then to the result. ", $of_boxes,
                    "A box without area in the result becomes `[0, 0, 0, 0]`, as does a null box. It keeps its place, \
                     and `filter_by_boxes` removes it with its label. The row is null if the boxes or a side are null."
                ),
                source: "torchvision's v2 transforms of `BoundingBoxes`, except for boxes without area",
                examples: &[Example {
                    sql: concat!($image, "_boxes(boxes, image_height(bytes), image_width(bytes), ", $example, ")"),
                    result: "the boxes in the result's pixels",
                }],
                ..OF_BOXES
            },
            prepare: $prepare,
        };

        pub(crate) static $points: Annotation = Annotation {
            descriptor: &Descriptor {
                name: concat!($image, "_points"),
                summary: concat!("Moves points like `", $image, "` moves the image"),
                parameters: &[POINTS, FROM_HEIGHT, FROM_WIDTH, $($required,)* $($optional,)*],
                determinism: Determinism::$determinism,
                draws_like: $image,
                docs: "from_height and from_width are the size of the image before the call, such as \
                       `image_height(bytes)`. A point names a pixel: x is 0 in the first column. A point outside the \
                       image or the result becomes `[NaN, NaN]`, as does a null point. If points have a visibility, \
                       such a point becomes `[0, 0, 0]`, as does one whose visibility is 0. Points keep their places. \
                       The row is null if the points or a side are null.",
                source: "torchvision's v2 transforms of `KeyPoints`, except for points outside",
                examples: &[Example {
                    sql: concat!($image, "_points(points, image_height(bytes), image_width(bytes), ", $example, ")"),
                    result: "the points in the result's pixels",
                }],
                ..OF_POINTS
            },
            prepare: $prepare,
        };
    };
}

follow!(
    RESIZE_BOXES, RESIZE_POINTS: "resize" by resize, Deterministic,
    required [HEIGHT, WIDTH], optional [], visible [],
    "", "224, 224"
);
follow!(
    CENTER_CROP_BOXES, CENTER_CROP_POINTS: "center_crop" by center_crop, Deterministic,
    required [HEIGHT, WIDTH], optional [center_crop::RESIZE], visible [MIN_VISIBLE],
    "A box of which less than min_visible is left becomes `[0, 0, 0, 0]`. ", "224, 224"
);
follow!(
    PAD_BOXES, PAD_POINTS: "pad" by pad, Deterministic,
    required [BORDER], optional [], visible [],
    "", "padding => 4"
);
follow!(
    RANDOM_CROP_BOXES, RANDOM_CROP_POINTS: "random_crop" by random_crop, KeyedRandom,
    required [HEIGHT, WIDTH, KEY], optional [PADDING], visible [MIN_VISIBLE],
    "A box of which less than min_visible is left becomes `[0, 0, 0, 0]`. ", "224, 224, key => 'view'"
);
follow!(
    RANDOM_RESIZED_CROP_BOXES, RANDOM_RESIZED_CROP_POINTS: "random_resized_crop" by random_resized_crop, KeyedRandom,
    required [HEIGHT, WIDTH, KEY], optional [SCALE_MIN, SCALE_MAX, RATIO_MIN, RATIO_MAX], visible [MIN_VISIBLE],
    "A box of which less than min_visible is left becomes `[0, 0, 0, 0]`. ", "224, 224, key => 'view'"
);
follow!(
    RANDOM_HFLIP_BOXES, RANDOM_HFLIP_POINTS: "random_hflip" by random_hflip, KeyedRandom,
    required [KEY], optional [P], visible [],
    "", "key => 'view'"
);
follow!(
    RANDOM_VFLIP_BOXES, RANDOM_VFLIP_POINTS: "random_vflip" by random_vflip, KeyedRandom,
    required [KEY], optional [P], visible [],
    "", "key => 'view'"
);
follow!(
    RANDOM_ROTATE_BOXES, RANDOM_ROTATE_POINTS: "random_rotate" by random_rotate, KeyedRandom,
    required [DEGREES, KEY], optional [], visible [MIN_VISIBLE],
    "A rotated box becomes the upright box around it. One of which less than min_visible is left becomes \
     `[0, 0, 0, 0]`. ", "degrees => 15, key => 'view'"
);
