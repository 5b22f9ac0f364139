//! `check_size`: the size of each image, compared with the size that it must have.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, nullif};
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::image_column::{self, Images};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "check_size",
    category: "image",
    summary: "Returns images unchanged, and refuses one of another size",
    parameters: &[
        Parameter::input("image", TypeClass::Image, "The images"),
        Parameter::input("height", TypeClass::Side, "The height that the image must have"),
        Parameter::input("width", TypeClass::Side, "The width that the image must have"),
        Parameter::constant(
            "same_ratio",
            ConstantKind::Boolean,
            "Whether an image of exactly the same aspect ratio passes too",
        )
        .or("false"),
        Parameter::constant(
            "cropped_by",
            ConstantKind::Text,
            "The key of the crops that need the size, for the error: then the image is a mask",
        )
        .or("''"),
    ],
    returns: "the images, as they were given",
    docs: "An image of another size is an error, so its row is bad. A mask must have the size of its image before both \
           are cropped by one key. Otherwise the crops show different parts. Where a query crops `decode_mask(mask)` \
           and `decode_image(bytes)` by one key, and both are columns of one table or subquery, it has this check by \
           itself, with same_ratio for `random_resized_crop`. `image_height(bytes)` and `image_width(bytes)` read the \
           image's size from its header. The row is null if the image or a side is null.",
    source: "its definition",
    examples: &[
        Example {
            sql: "check_size(decode_image(mask), image_height(bytes), image_width(bytes))",
            result: "the mask, which is as large as its image",
        },
        Example {
            sql: "check_size(decode_image(mask), 64, 80)",
            result: "error: check_size: the image is 60 x 80, and must be 64 x 80",
        },
    ],
    ..Descriptor::BASE
};

/// The operator `check_size`.
#[derive(Debug)]
pub(crate) struct CheckSize;

impl Operator for CheckSize {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("image")?;
        let nullable =
            field.is_nullable() || arguments.field("height")?.is_nullable() || arguments.field("width")?.is_nullable();
        image_column::field("image", DataType::UInt8, image_column::shape(field)?, nullable)
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let side = |name: &str| -> Result<ArrayRef> { Ok(cast(arguments.array(name)?, &DataType::Int64)?) };
        let sides = [side("height")?, side("width")?];
        let same_ratio = arguments.flag("same_ratio")?;
        let [heights, widths]: [&Int64Array; 2] = [sides[0].as_primitive::<Int64Type>(), sides[1].as_primitive()];
        let unknown = NullBuffer::union(heights.nulls(), widths.nulls());
        let array = arguments.take_array("image")?;
        let images = Images::try_new(arguments.field("image")?, &array)?;
        for row in 0..images.len() {
            let is_unknown = unknown.as_ref().is_some_and(|unknown| unknown.is_null(row));
            let Some(image) = images.get(row)?.filter(|_| !is_unknown) else { continue };
            let (height, width) = (heights.value(row), widths.value(row));
            let size = (image.height as i64, image.width as i64);
            if size != (height, width) && !(same_ratio && have_one_ratio(size, (height, width))) {
                return Err(refusal(size, (height, width), same_ratio, &arguments.text("cropped_by")?));
            }
        }
        drop(images);
        match unknown {
            Some(known) => Ok(nullif(&array, &BooleanArray::new(!known.inner(), None))?),
            None => Ok(array),
        }
    }
}

/// Whether two sizes, of height and width, have exactly one aspect ratio. `random_resized_crop` accepts an attempt by
/// it, so a size that was rounded may lose another part.
fn have_one_ratio(one: (i64, i64), other: (i64, i64)) -> bool {
    let products = (i128::from(one.0) * i128::from(other.1), i128::from(one.1) * i128::from(other.0));
    other.0 > 0 && products.0 == products.1
}

fn refusal(size: (i64, i64), expected: (i64, i64), same_ratio: bool, key: &str) -> DataFusionError {
    let (name, [size, expected]) =
        (DESCRIPTOR.name, [size, expected].map(|(height, width)| format!("{height} x {width}")));
    let or = if same_ratio { " or have exactly its aspect ratio" } else { "" };
    match key {
        "" => exec_datafusion_err!("{name}: the image is {size}, and must be {expected}{or}"),
        key => exec_datafusion_err!(
            "{name}: the mask is {size} and its image {expected}; to be cropped with the key '{key}' alike, it must \
             have the image's size{or}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int32Array;

    use crate::testing::{Column, column, decoded, image, noise, sql};

    fn check(images: Column, height: [Option<i32>; 2], width: [Option<i32>; 2]) -> std::result::Result<Column, String> {
        let sides = [column("h", Int32Array::from(height.to_vec())), column("w", Int32Array::from(width.to_vec()))];
        sql("check_size(image, h, w)", [images].into_iter().chain(sides).collect())
    }

    #[test]
    fn images_of_the_named_size_are_returned_and_others_refused() {
        let images = || decoded(&["colour.jpg", "palette.png"]);
        let got = check(images(), [Some(37), Some(9)], [Some(53), Some(13)]).unwrap();
        assert_eq!((image(&got, 0), image(&got, 1)), (image(&images(), 0), image(&images(), 1)));
        let expect = "check_size: the image is 9 x 13, and must be 13 x 9";
        assert_eq!(check(images(), [Some(37), Some(13)], [Some(53), Some(9)]).unwrap_err(), expect);
        assert!(sql("check_size(image, 9, 13)", vec![noise()]).is_ok());
        let expect = "check_size: the image is 9 x 13, and must be 9 x -1";
        assert_eq!(sql("check_size(image, 9, -1)", vec![noise()]).unwrap_err(), expect);
    }

    #[test]
    fn a_scaled_image_passes_if_its_ratio_may() {
        // 9 x 13 pixels.
        let check = |height: i32, width: i32| {
            sql(&format!("check_size(image, {height}, {width}, true)"), vec![decoded(&["palette.png"])])
        };
        for (height, width) in [(9, 13), (18, 26), (36, 52), (900, 1300)] {
            assert!(check(height, width).is_ok(), "{height} x {width}");
        }
        for (height, width) in [(13, 9), (17, 26), (1200, 1300), (0, 0), (-9, -13)] {
            let expect = format!(
                "check_size: the image is 9 x 13, and must be {height} x {width} or have exactly its aspect ratio"
            );
            assert_eq!(check(height, width).unwrap_err(), expect);
        }
    }

    #[test]
    fn a_row_whose_size_is_unknown_is_null() {
        let (_, pixels) = noise();
        let fixed = (noise().0, arrow::compute::concat(&[&pixels, &pixels]).unwrap());
        for images in [decoded(&["noise_5x7.png", "noise_5x7.png"]), fixed] {
            let (height, width, _) = image(&images, 0).unwrap();
            let [height, width] = [height as i32, width as i32].map(Some);
            let got = check(images.clone(), [None, height], [width; 2]).unwrap();
            assert_eq!((image(&got, 0), image(&got, 1)), (None, image(&images, 1)));
            let got = check(images.clone(), [height; 2], [width, None]).unwrap();
            assert_eq!((image(&got, 0), image(&got, 1)), (image(&images, 0), None));
        }
    }
}
