//! Images as Arrow columns: the two canonical tensor extension types, and a view that reads either.
//!
//! An image is a tensor of height x width x 3 (`HWC`, RGB). A column of images is one of
//!
//! - `arrow.fixed_shape_tensor`: a `FixedSizeList` of the values, the shape in the field's metadata;
//! - `arrow.variable_shape_tensor`: a struct of `data: List` and `shape: FixedSizeList<Int32>[3]`.
//!
//! Both follow the Arrow specification and the `arrow-schema` crate exactly (children not nullable, list items named
//! `item`), so pyarrow and others read them. Rows may be null, pixels may not. At a null, a fixed column holds zeros
//! and a variable one holds nothing.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Int32Array, ListArray, NullArray, PrimitiveArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Int32Type, UInt8Type};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err};
use forebay_arrays::{ColumnError, FixedShapeTensor, TensorType, VariableShapeTensor, item};

use crate::reuse::Own;

/// Red, green, blue.
pub const CHANNELS: usize = 3;

/// The names of an image's dimensions.
const DIMENSIONS: [&str; CHANNELS] = ["H", "W", "C"];

/// Maximum height and width of an image that an operator makes. `decode_image` has limits of its own.
pub const SIDE_MAX: usize = 16_384;

/// Maximum number of pixels in an image that an operator makes.
pub const PIXELS_MAX: usize = 1 << 28;

/// Columns of at least this many bytes are reserved before they are made.
const RESERVED_FROM_BYTES: usize = 64 << 20;

/// The shape of the images in a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// All images have this height and width.
    Fixed {
        /// Height in pixels.
        height: usize,
        /// Width in pixels.
        width: usize,
    },
    /// Each image has its own height and width.
    Variable,
}

/// One image of a column.
#[derive(Debug, Clone, Copy)]
pub struct Image<'a> {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// `height * width * 3` values, row by row.
    pub pixels: &'a [u8],
}

impl Image<'_> {
    /// Returns the height and width.
    pub fn size(&self) -> Size {
        Size { height: self.height, width: self.width }
    }
}

/// The height and the width of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
}

impl Size {
    /// Returns the number of values in an image of this size.
    pub fn values(self) -> usize {
        self.height * self.width * CHANNELS
    }
}

/// A part of an image, in whole pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub(crate) top: usize,
    pub(crate) left: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
}

impl Rectangle {
    pub(crate) fn whole(size: Size) -> Self {
        Self { top: 0, left: 0, height: size.height, width: size.width }
    }

    pub(crate) fn size(self) -> Size {
        Size { height: self.height, width: self.width }
    }

    pub(crate) fn is_empty(self) -> bool {
        self.height == 0 || self.width == 0
    }
}

/// A view of a column of uint8 images, of either kind.
#[derive(Debug)]
pub struct Images<'a> {
    column: ImageValues<'a>,
    nulls: Option<NullBuffer>,
    len: usize,
}

#[derive(Debug)]
enum ImageValues<'a> {
    Fixed { height: usize, width: usize, pixels: &'a [u8] },
    Variable { offsets: &'a [i32], pixels: &'a [u8], shapes: &'a [i32] },
}

/// Returns the field of a column of images with one shape.
pub fn fixed_field(name: &str, value: DataType, height: usize, width: usize, nullable: bool) -> Result<Field> {
    match FixedShapeTensor::new(value, vec![height, width, CHANNELS]).named(&DIMENSIONS).field(name, nullable) {
        Some(field) => Ok(field),
        None => internal_err!("no fixed-shape tensor has the shape {height} x {width} x {CHANNELS}"),
    }
}

/// Returns the field of a column of images with individual shapes.
pub fn variable_field(name: &str, value: DataType, nullable: bool) -> Field {
    let tensor = VariableShapeTensor {
        names: Some(DIMENSIONS.map(str::to_owned).to_vec()),
        uniform_shape: Some(vec![None, None, Some(CHANNELS)]),
        ..VariableShapeTensor::new(value, CHANNELS)
    };
    tensor.field(name, nullable)
}

/// Returns the field of a column of images with this shape.
pub fn field(name: &str, value: DataType, shape: Shape, nullable: bool) -> Result<Field> {
    match shape {
        Shape::Fixed { height, width } => fixed_field(name, value, height, width, nullable),
        Shape::Variable => Ok(variable_field(name, value, nullable)),
    }
}

/// Returns the shape and the value type of a field, if it is a column of height x width x 3 tensors.
pub fn image_type(field: &Field) -> Option<(Shape, DataType)> {
    match TensorType::of(field)? {
        TensorType::Fixed(tensor) => {
            let [height, width, CHANNELS] = tensor.shape[..] else { return None };
            let has_pixels = tensor.permutation.is_none() && height > 0 && width > 0;
            has_pixels.then_some((Shape::Fixed { height, width }, tensor.value))
        }
        TensorType::Variable(tensor) => {
            let has_pixels = tensor.permutation.is_none() && tensor.rank == CHANNELS;
            has_pixels.then_some((Shape::Variable, tensor.value))
        }
    }
}

/// Returns the value type of a field, if it is a column of tensors of any shape.
pub(crate) fn value_type(field: &Field) -> Option<DataType> {
    TensorType::of(field).map(|tensor| tensor.value().clone())
}

/// Returns whether the field is a column of bfloat16 tensors.
pub(crate) fn is_bfloat16(field: &Field) -> bool {
    TensorType::of(field).is_some_and(|tensor| tensor.is_bfloat16())
}

/// Returns whether the field is a column of uint8 images.
pub(crate) fn is_image(field: &Field) -> bool {
    matches!(image_type(field), Some((_, DataType::UInt8)))
}

/// Returns the wording of a field's type after "got" in an error.
pub(crate) fn wording(field: &Field) -> String {
    match (image_type(field), FixedShapeTensor::of_numbers(field)) {
        (Some((Shape::Variable, value)), _) => format!("a {value} tensor of variable shape"),
        (_, Some(tensor)) if TensorType::is_named_by(field) => tensor.to_string(),
        _ => field.data_type().to_string(),
    }
}

/// Converts the error to DataFusion's, with the name of the operator that failed.
pub(crate) fn column_error(operator: &str, error: ColumnError) -> DataFusionError {
    match error {
        ColumnError::Exhausted(message) => DataFusionError::ResourcesExhausted(format!("{operator}: {message}")),
        ColumnError::Damaged(message) => DataFusionError::Execution(message),
        ColumnError::Internal(message) => DataFusionError::Internal(message),
    }
}

/// Returns the shape of an image column that has passed the type check.
pub(crate) fn shape(field: &Field) -> Result<Shape> {
    match image_type(field) {
        Some((shape, _)) => Ok(shape),
        None => internal_err!("{} is not a column of images", field.name()),
    }
}

impl<'a> Images<'a> {
    /// Views a column. The field has the shape, which the array of a fixed column does not have.
    pub fn try_new(field: &Field, array: &'a dyn Array) -> Result<Self> {
        let Some((shape, DataType::UInt8)) = image_type(field) else {
            return internal_err!("{} is not a column of uint8 images", field.name());
        };
        let len = array.len();
        let (column, nulls) = match shape {
            Shape::Fixed { height, width } => {
                let Some(list) = array.as_fixed_size_list_opt() else {
                    return internal_err!("a fixed-shape tensor is stored as {}", array.data_type());
                };
                let size = height * width * CHANNELS;
                let pixels = &list.values().as_primitive::<UInt8Type>().values()[..];
                if pixels.len() < len * size {
                    return exec_err!(
                        "a column of {height} x {width} images holds {} bytes for {len} rows",
                        pixels.len()
                    );
                }
                (ImageValues::Fixed { height, width, pixels }, list.nulls().cloned())
            }
            Shape::Variable => {
                let Some(rows) = array.as_struct_opt() else {
                    return internal_err!("a variable-shape tensor is stored as {}", array.data_type());
                };
                let data = rows.column(0).as_list::<i32>();
                let shape = rows.column(1).as_fixed_size_list();
                let column = ImageValues::Variable {
                    offsets: data.value_offsets(),
                    pixels: data.values().as_primitive::<UInt8Type>().values(),
                    shapes: &shape.values().as_primitive::<Int32Type>().values()[..3 * len],
                };
                // The specification makes the children non-nullable, but a file may declare them nullable.
                let nulls = NullBuffer::union(rows.nulls(), data.nulls());
                (column, NullBuffer::union(nulls.as_ref(), shape.nulls()))
            }
        };
        Ok(Self { column, nulls, len })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the nulls.
    pub fn nulls(&self) -> Option<&NullBuffer> {
        self.nulls.as_ref()
    }

    /// Returns the start of a row's image in the values that [`change_pixels`] passes.
    pub(crate) fn start(&self, row: usize) -> usize {
        match self.column {
            ImageValues::Fixed { height, width, .. } => row * height * width * CHANNELS,
            ImageValues::Variable { offsets, .. } => (offsets[row] - offsets[0]) as usize,
        }
    }

    /// Returns the image in a row, or `None` for a null. A row whose shape does not match its data is an error.
    pub fn get(&self, row: usize) -> Result<Option<Image<'a>>> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return Ok(None);
        }
        match self.column {
            ImageValues::Fixed { height, width, pixels } => {
                let size = height * width * CHANNELS;
                Ok(Some(Image { height, width, pixels: &pixels[row * size..(row + 1) * size] }))
            }
            ImageValues::Variable { offsets, pixels, shapes } => {
                let pixels = &pixels[offsets[row] as usize..offsets[row + 1] as usize];
                let shape = &shapes[3 * row..3 * row + 3];
                let size = |i: usize| usize::try_from(shape[i]).unwrap_or(0);
                let (height, width) = (size(0), size(1));
                let expect = height.checked_mul(width).and_then(|n| n.checked_mul(CHANNELS));
                if shape[2] != CHANNELS as i32 || expect != Some(pixels.len()) || pixels.is_empty() {
                    return exec_err!("an image of shape {shape:?} holds {} bytes", pixels.len());
                }
                Ok(Some(Image { height, width, pixels }))
            }
        }
    }
}

/// Changes a column's pixels, in place if the column has no other owner, and in one copy otherwise. The change receives
/// the pixels of all rows, concatenated. Nulls of a fixed column take space, and those of a variable column may.
pub(crate) fn change_pixels(array: ArrayRef, change: impl FnOnce(&mut [u8])) -> Result<ArrayRef> {
    if let Some(list) = array.as_fixed_size_list_opt() {
        let list = list.clone();
        drop(array);
        let (item, size, values, nulls) = list.into_parts();
        let values = change_values(values, change);
        return Ok(Arc::new(FixedSizeListArray::try_new(item, size, values, nulls)?));
    }
    let Some(rows) = array.as_struct_opt().cloned() else {
        return internal_err!("a tensor is stored as {}", array.data_type());
    };
    drop(array);
    let (fields, mut columns, nulls) = rows.into_parts();
    let (item, offsets, values, list_nulls) = {
        let list = columns[0].as_list::<i32>().clone();
        columns[0] = Arc::new(NullArray::new(0));
        list.into_parts()
    };
    // A slice shares the pixels of the whole column. Touch or copy only the slice's own rows.
    let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
    let values = match (first as usize, (last - first) as usize) {
        (0, len) if len == values.len() => values,
        (first, len) => values.slice(first, len),
    };
    let offsets = match first {
        0 => offsets,
        _ => OffsetBuffer::new(offsets.iter().map(|offset| offset - first).collect()),
    };
    let values = change_values(values, change);
    columns[0] = Arc::new(ListArray::try_new(item, offsets, values, list_nulls)?);
    Ok(Arc::new(StructArray::try_new(fields, columns, nulls)?))
}

fn change_values(values: ArrayRef, change: impl FnOnce(&mut [u8])) -> ArrayRef {
    let mut pixels = Own::take_or_copy::<UInt8Type>(values);
    change(pixels.values_mut::<UInt8Type>());
    pixels.finish::<UInt8Type>()
}

/// The positions of images in a new column.
///
/// A column has at most as many values as 32-bit list offsets can address. The limit also applies to fixed columns,
/// where it prevents a mistyped `height => 22400` from requesting terabytes.
#[derive(Debug)]
pub(crate) enum ImageLayout {
    /// Contiguous images, including nulls.
    Fixed { rows: usize, size: Size },
    /// Contiguous images; nulls take no space. `shapes` holds three numbers per row.
    Variable { offsets: Vec<i32>, shapes: Vec<i32> },
}

impl ImageLayout {
    pub(crate) fn fixed(operator: &str, rows: usize, size: Size) -> Result<Self> {
        let Size { height, width } = size;
        let values = height.saturating_mul(width).saturating_mul(CHANNELS).checked_mul(rows);
        if values.is_none_or(|values| values > i32::MAX as usize) {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{operator}: {rows} images of {height} x {width} in one batch exceed {} values; use smaller batches",
                i32::MAX
            )));
        }
        Ok(Self::Fixed { rows, size })
    }

    /// Lays out images of these sizes, with `None` for a null.
    pub(crate) fn variable(operator: &str, sizes: impl Iterator<Item = Result<Option<Size>>>) -> Result<Self> {
        let (mut offsets, mut shapes) = (vec![0], Vec::new());
        let mut total = 0i32;
        for size in sizes {
            let size = size?.unwrap_or(Size { height: 0, width: 0 });
            let values = i32::try_from(size.values()).ok();
            let Some(end) = values.and_then(|values| total.checked_add(values)) else {
                return Err(DataFusionError::ResourcesExhausted(format!(
                    "{operator}: the images of one batch exceed {} values; use smaller batches",
                    i32::MAX
                )));
            };
            total = end;
            offsets.push(total);
            shapes.extend([size.height as i32, size.width as i32, CHANNELS as i32]);
        }
        Ok(Self::Variable { offsets, shapes })
    }

    /// Checks that there is memory for values of this many bytes. An allocation that fails would end the process.
    pub(crate) fn reserve(&self, operator: &str, value_bytes: usize) -> Result<()> {
        let bytes = self.values() * value_bytes;
        match bytes < RESERVED_FROM_BYTES || Vec::<u8>::new().try_reserve_exact(bytes).is_ok() {
            true => Ok(()),
            false => Err(DataFusionError::ResourcesExhausted(format!(
                "{operator}: there is no memory for the {bytes} bytes of the images of one batch; use smaller batches"
            ))),
        }
    }

    /// Returns the number of values in all images.
    pub(crate) fn values(&self) -> usize {
        match self {
            Self::Fixed { rows, size } => rows * size.values(),
            Self::Variable { offsets, .. } => offsets[offsets.len() - 1] as usize,
        }
    }

    /// Returns the range of a row's image among all values.
    pub(crate) fn range(&self, row: usize) -> Range<usize> {
        match self {
            Self::Fixed { size, .. } => row * size.values()..(row + 1) * size.values(),
            Self::Variable { offsets, .. } => offsets[row] as usize..offsets[row + 1] as usize,
        }
    }

    /// Makes the column from all values.
    pub(crate) fn array<T: ArrowPrimitiveType>(
        self,
        values: ScalarBuffer<T::Native>,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        match self {
            Self::Fixed { size: Size { height, width }, .. } => fixed_array::<T>(values, height, width, nulls),
            Self::Variable { offsets, shapes } => {
                variable_array::<T>(values, OffsetBuffer::new(offsets.into()), shapes.into(), nulls)
            }
        }
    }
}

/// Rejects sizes above [`SIDE_MAX`] and [`PIXELS_MAX`]. The error text continues the operator's name.
pub(crate) fn check_size(height: usize, width: usize) -> std::result::Result<(), String> {
    if height > SIDE_MAX || width > SIDE_MAX || height * width > PIXELS_MAX {
        return Err(format!(
            "an image of {height} x {width} is over the limit of {SIDE_MAX} per side and {PIXELS_MAX} pixels"
        ));
    }
    Ok(())
}

/// Makes a column of images of one shape from values in their final layout.
pub(crate) fn fixed_array<T: ArrowPrimitiveType>(
    values: ScalarBuffer<T::Native>,
    height: usize,
    width: usize,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let field = fixed_field("image", T::DATA_TYPE, height, width, false)?;
    let DataType::FixedSizeList(item, size) = field.data_type().clone() else {
        return internal_err!("a fixed-shape tensor is a fixed-size list");
    };
    let values = Arc::new(PrimitiveArray::<T>::new(values, None));
    Ok(Arc::new(FixedSizeListArray::try_new(item, size, values, nulls)?))
}

/// Makes a column of images of any shape from values in their final layout. `shapes` holds three numbers per row.
pub(crate) fn variable_array<T: ArrowPrimitiveType>(
    values: ScalarBuffer<T::Native>,
    offsets: OffsetBuffer<i32>,
    shapes: ScalarBuffer<i32>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let field = variable_field("image", T::DATA_TYPE, false);
    let DataType::Struct(fields) = field.data_type().clone() else {
        return internal_err!("a variable-shape tensor is a struct");
    };
    let values = Arc::new(PrimitiveArray::<T>::new(values, None));
    let data = ListArray::try_new(item(T::DATA_TYPE), offsets, values, None)?;
    let shapes = Arc::new(Int32Array::new(shapes, None));
    let shape = FixedSizeListArray::try_new(item(DataType::Int32), 3, shapes, None)?;
    Ok(Arc::new(StructArray::try_new(fields, vec![Arc::new(data), Arc::new(shape)], nulls)?))
}

#[cfg(test)]
mod tests {
    use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};

    use super::*;

    #[test]
    fn metadata_is_spelt_as_pyarrow_spells_it() {
        let field = fixed_field("image", DataType::UInt8, 2, 4, false).unwrap();
        let metadata = field.metadata();
        assert_eq!(metadata["ARROW:extension:name"], "arrow.fixed_shape_tensor");
        assert_eq!(metadata["ARROW:extension:metadata"], r#"{"shape":[2,4,3],"dim_names":["H","W","C"]}"#);
        let field = variable_field("image", DataType::UInt8, false);
        let expected = r#"{"dim_names":["H","W","C"],"uniform_shape":[null,null,3]}"#;
        assert_eq!(field.metadata()["ARROW:extension:metadata"], expected);
    }

    #[test]
    fn only_tensors_of_three_channels_are_images() {
        let image = |metadata: &str, size: i32| {
            let data_type = DataType::FixedSizeList(item(DataType::UInt8), size);
            let extension = [
                (EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.fixed_shape_tensor".to_owned()),
                (EXTENSION_TYPE_METADATA_KEY.to_owned(), metadata.to_owned()),
            ];
            is_image(&Field::new("image", data_type, false).with_metadata(extension.into()))
        };
        assert!(image(r#"{"shape":[2,4,3]}"#, 24));
        assert!(image(r#"{"shape":[2,4,3],"permutation":[0,1,2]}"#, 24));
        assert!(!image(r#"{"shape":[2,4,3],"permutation":[2,0,1]}"#, 24), "stored channels first");
        assert!(!image(r#"{"shape":[2,4,3]}"#, 25));
        assert!(!image(r#"{"shape":[3,2,4]}"#, 24));
        assert!(!image(r#"{"shape":[2,12]}"#, 24));
        assert!(!image(r#"{"shape":[0,4,3]}"#, 0));
        assert!(!image("damaged", 24));
        let plain = Field::new("image", DataType::FixedSizeList(item(DataType::UInt8), 24), false);
        assert!(!is_image(&plain), "the shape is unknown without metadata");
    }

    #[test]
    fn a_shape_that_lies_is_an_error() {
        let offsets = OffsetBuffer::from_lengths([6, 6]);
        let shapes = vec![1, 2, 3, 2, 2, 3].into();
        let array = variable_array::<UInt8Type>(vec![7; 12].into(), offsets, shapes, None).unwrap();
        let field = variable_field("image", DataType::UInt8, false);
        let images = Images::try_new(&field, &array).unwrap();
        assert_eq!(images.get(0).unwrap().unwrap().width, 2);
        let problem = images.get(1).unwrap_err().strip_backtrace();
        assert_eq!(problem, "Execution error: an image of shape [2, 2, 3] holds 6 bytes");
    }
}
