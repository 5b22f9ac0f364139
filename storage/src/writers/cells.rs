//! The values of columns one by one, for formats that store rows.

use std::io::Write;
use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, downcast_primitive_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_json::writer::{EncoderOptions, NullableEncoder, make_encoder};
use forebay_arrays::TensorType;

use super::plain::plain;
use super::refusals::first_not_finite;

/// How formats of rows see a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// A number of numpy.
    Number(Number),
    /// A boolean.
    Boolean,
    /// A text.
    Text,
    /// Bytes.
    Bytes,
    /// A decimal number, as text.
    Decimal,
    /// A date, a time or a duration, as text.
    Time,
    /// An array of numpy.
    Array(Number, Shape),
    /// Anything else, as JSON.
    Json,
}

/// A type of numpy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    /// Its name, such as `float32`.
    pub(super) name: &'static str,
    /// Its description in `.npy` files, such as `<f4`.
    pub(super) description: &'static str,
    /// Its bytes.
    pub(super) width: usize,
}

/// The shape of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// All rows have this shape.
    Fixed(Vec<usize>),
    /// A list, of any length.
    List,
    /// So many dimensions, of any sides.
    Ragged(usize),
}

impl Kind {
    /// The kind of a column.
    pub(super) fn of(field: &Field) -> Self {
        let data_type = plain(field.data_type());
        match TensorType::of(field) {
            Some(TensorType::Fixed(tensor)) => match Number::of(&tensor.value) {
                Some(number) => return Self::Array(number, Shape::Fixed(tensor.shape)),
                None => return Self::Json,
            },
            Some(TensorType::Variable(tensor)) => match Number::of(&tensor.value) {
                Some(number) => return Self::Array(number, Shape::Ragged(tensor.rank)),
                None => return Self::Json,
            },
            None => {}
        }
        match &data_type {
            DataType::Boolean => Self::Boolean,
            DataType::Utf8 | DataType::LargeUtf8 => Self::Text,
            DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => Self::Bytes,
            other if other.is_decimal() => Self::Decimal,
            other if other.is_temporal() => Self::Time,
            DataType::FixedSizeList(item, size) if *size > 0 => match Number::of(item.data_type()) {
                Some(number) => Self::Array(number, Shape::Fixed(vec![*size as usize])),
                None => Self::Json,
            },
            // Arrays of numpy have no nulls, so lists that may have some are JSON.
            DataType::List(item) | DataType::LargeList(item) if !item.is_nullable() => {
                Number::of(item.data_type()).map_or(Self::Json, |number| Self::Array(number, Shape::List))
            }
            other => Number::of(other).map_or(Self::Json, Self::Number),
        }
    }
}

impl Number {
    fn of(data_type: &DataType) -> Option<Self> {
        let (name, description, width) = match data_type {
            DataType::Int8 => ("int8", "|i1", 1),
            DataType::Int16 => ("int16", "<i2", 2),
            DataType::Int32 => ("int32", "<i4", 4),
            DataType::Int64 => ("int64", "<i8", 8),
            DataType::UInt8 => ("uint8", "|u1", 1),
            DataType::UInt16 => ("uint16", "<u2", 2),
            DataType::UInt32 => ("uint32", "<u4", 4),
            DataType::UInt64 => ("uint64", "<u8", 8),
            DataType::Float16 => ("float16", "<f2", 2),
            DataType::Float32 => ("float32", "<f4", 4),
            DataType::Float64 => ("float64", "<f8", 8),
            _ => return None,
        };
        Some(Self { name, description, width })
    }

    /// Whether it is an integer.
    pub(super) fn is_integer(self) -> bool {
        !self.name.starts_with("float")
    }
}

/// The values of one column of a batch with plain types.
pub(super) struct Cells<'a> {
    array: &'a ArrayRef,
    values: Values<'a>,
}

enum Values<'a> {
    Fixed { bytes: &'a [u8], width: usize },
    Boolean(&'a BooleanArray),
    Bytes { ends: Ends<'a>, bytes: &'a [u8] },
    List { ends: Ends<'a>, bytes: &'a [u8], width: usize },
    Ragged { ends: Ends<'a>, items: &'a ArrayRef, bytes: &'a [u8], width: usize, sides: &'a FixedSizeListArray },
    Shown(ArrayFormatter<'a>),
    Json(NullableEncoder<'a>),
}

/// Where each value of variable length ends.
#[derive(Clone, Copy)]
enum Ends<'a> {
    I32(&'a OffsetBuffer<i32>),
    I64(&'a OffsetBuffer<i64>),
}

impl Ends<'_> {
    fn range(self, row: usize) -> Range<usize> {
        match self {
            Self::I32(ends) => ends[row] as usize..ends[row + 1] as usize,
            Self::I64(ends) => ends[row] as usize..ends[row + 1] as usize,
        }
    }
}

/// A value that cannot be stored. The text follows the column's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// An element of an array is null.
    NullElement,
    /// A tensor has not as many values as its shape says.
    Malformed,
}

impl<'a> Cells<'a> {
    /// The values of a column of this kind.
    pub(super) fn new(
        kind: &Kind,
        array: &'a ArrayRef,
        field: &'a FieldRef,
        json: &'a EncoderOptions,
    ) -> Result<Self, arrow::error::ArrowError> {
        let values = match kind {
            Kind::Number(number) => {
                Values::Fixed { bytes: number_bytes(array).unwrap_or_default().0, width: number.width }
            }
            Kind::Boolean => Values::Boolean(array.as_boolean()),
            Kind::Text | Kind::Bytes => of_bytes(array),
            Kind::Decimal | Kind::Time => Values::Shown(ArrayFormatter::try_new(array, &TEXT)?),
            Kind::Array(number, Shape::Fixed(shape)) => {
                let items = array.as_fixed_size_list().values();
                let width = number.width * shape.iter().product::<usize>();
                Values::Fixed { bytes: number_bytes(items).unwrap_or_default().0, width }
            }
            Kind::Array(number, Shape::List) => {
                let (ends, items) = list(array);
                Values::List { ends, bytes: number_bytes(items).unwrap_or_default().0, width: number.width }
            }
            Kind::Array(number, Shape::Ragged(_)) => {
                let tensors = array.as_struct();
                let (ends, items) = list(tensors.column(0));
                let bytes = number_bytes(items).unwrap_or_default().0;
                let sides = tensors.column(1).as_fixed_size_list();
                Values::Ragged { ends, items, bytes, width: number.width, sides }
            }
            Kind::Json => Values::Json(make_encoder(field, array, json)?),
        };
        Ok(Self { array, values })
    }

    /// Whether the value of a row is null.
    pub(super) fn is_null(&self, row: usize) -> bool {
        self.array.is_null(row) || self.array.data_type().is_null()
    }

    /// The value as bytes: a number or the values of an array in memory order, a text or bytes as they are, and other
    /// values as their text. It must not be null.
    pub(super) fn append(&mut self, row: usize, out: &mut Vec<u8>) -> Result<(), Unfit> {
        match &mut self.values {
            Values::Fixed { bytes, width } => {
                if let DataType::FixedSizeList(_, size) = self.array.data_type() {
                    let size = *size as usize;
                    check_elements(self.array.as_fixed_size_list().values(), row * size..(row + 1) * size)?;
                }
                out.extend_from_slice(&bytes[row * *width..(row + 1) * *width]);
            }
            Values::Boolean(array) => out.push(u8::from(array.value(row))),
            Values::Bytes { ends, bytes } => out.extend_from_slice(&bytes[ends.range(row)]),
            Values::List { ends, bytes, width } => {
                let range = ends.range(row);
                out.extend_from_slice(&bytes[range.start * *width..range.end * *width]);
            }
            Values::Ragged { ends, items, bytes, width, .. } => {
                let range = ends.range(row);
                check_elements(items, range.clone())?;
                out.extend_from_slice(&bytes[range.start * *width..range.end * *width]);
            }
            // Writing to memory cannot fail.
            Values::Shown(array) => _ = write!(out, "{}", array.value(row)),
            Values::Json(encoder) => encoder.encode(row, out),
        }
        Ok(())
    }

    /// The value as bytes in the memory of its column, if they lie there.
    pub(super) fn bytes(&self, row: usize) -> Option<&[u8]> {
        match &self.values {
            Values::Bytes { ends, bytes } => Some(&bytes[ends.range(row)]),
            Values::Fixed { bytes, width } => Some(&bytes[row * width..(row + 1) * width]),
            _ => None,
        }
    }

    /// The sides of the array of a row whose shape varies.
    pub(super) fn shape(&self, row: usize, shape: &mut Vec<u64>) -> Result<(), Unfit> {
        shape.clear();
        match &self.values {
            Values::List { ends, .. } => shape.push(ends.range(row).len() as u64),
            Values::Ragged { ends, sides, .. } => {
                let rank = sides.value_length() as usize;
                let all = sides.values().as_primitive::<Int32Type>().values();
                let own = &all[row * rank..(row + 1) * rank];
                shape.extend(own.iter().map(|side| u64::try_from(*side).unwrap_or(u64::MAX)));
                let values = shape.iter().try_fold(1_u64, |values, side| values.checked_mul(*side));
                if values != Some(ends.range(row).len() as u64) {
                    return Err(Unfit::Malformed);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The first row that is JSON with a number that JSON does not have.
    pub(super) fn first_not_finite(&self) -> Option<usize> {
        matches!(self.values, Values::Json(_)).then(|| first_not_finite(self.array)).flatten()
    }
}

/// Times and decimals as texts.
const TEXT: FormatOptions<'static> = FormatOptions::new();

fn check_elements(items: &ArrayRef, mut range: Range<usize>) -> Result<(), Unfit> {
    match items.null_count() > 0 && range.any(|at| items.is_null(at)) {
        true => Err(Unfit::NullElement),
        false => Ok(()),
    }
}

fn of_bytes(array: &ArrayRef) -> Values<'_> {
    match array.data_type() {
        DataType::Utf8 => {
            let texts = array.as_string::<i32>();
            Values::Bytes { ends: Ends::I32(texts.offsets()), bytes: texts.value_data() }
        }
        DataType::LargeUtf8 => {
            let texts = array.as_string::<i64>();
            Values::Bytes { ends: Ends::I64(texts.offsets()), bytes: texts.value_data() }
        }
        DataType::LargeBinary => {
            let bytes = array.as_binary::<i64>();
            Values::Bytes { ends: Ends::I64(bytes.offsets()), bytes: bytes.value_data() }
        }
        DataType::FixedSizeBinary(width) => {
            Values::Fixed { bytes: array.as_fixed_size_binary().value_data(), width: *width as usize }
        }
        _ => {
            let bytes = array.as_binary::<i32>();
            Values::Bytes { ends: Ends::I32(bytes.offsets()), bytes: bytes.value_data() }
        }
    }
}

fn list(array: &ArrayRef) -> (Ends<'_>, &ArrayRef) {
    match array.data_type() {
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            (Ends::I64(lists.offsets()), lists.values())
        }
        _ => {
            let lists = array.as_list::<i32>();
            (Ends::I32(lists.offsets()), lists.values())
        }
    }
}

/// The values of a primitive array as they lie in memory, and the bytes of each. Machines are little-endian, as numpy's
/// files are.
pub(super) fn number_bytes(array: &dyn Array) -> Option<(&[u8], usize)> {
    let width = array.data_type().primitive_width()?;
    let bytes = downcast_primitive_array! {
        array => array.values().inner().as_slice(),
        _ => return None,
    };
    Some((bytes, width))
}
