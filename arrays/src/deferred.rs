//! Steps of a pipeline that a feed's reader computes after the transfer.
//!
//! Converting pixels to floats makes them four times as large. A worker therefore sends the pixels and stores the
//! remaining step in the metadata of the column's field, so a reader needs only the column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, Int32Array, ListArray, PrimitiveArray, RecordBatch,
    StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, SchemaRef, UInt8Type};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::ColumnError;
use crate::pool;
use crate::tensor_type::{TensorType, item};

/// The metadata key for the float of each value of each channel, as little-endian float32 in base64.
const KEY: &str = "forebay:widen";

/// Red, green, blue.
const CHANNELS: usize = 3;

/// A map from each of the 256 values of each of the three channels to a float.
#[derive(Clone, Debug)]
pub struct Widen(Box<[[f32; 256]; CHANNELS]>);

impl Widen {
    /// Creates a map from its tables, for red, green and blue.
    pub fn new(tables: Box<[[f32; 256]; CHANNELS]>) -> Self {
        Self(tables)
    }

    /// Writes the floats of `pixels`, whose channels alternate red, green, blue. Both slices have the same length.
    pub fn fill(&self, pixels: &[u8], out: &mut [f32]) {
        let [red, green, blue] = &*self.0;
        for (value, [r, g, b]) in out.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(pixels.as_chunks::<CHANNELS>().0) {
            *value = [red[usize::from(*r)], green[usize::from(*g)], blue[usize::from(*b)]];
        }
    }

    /// Converts a column of uint8 images to float32 images. Null rows stay null.
    ///
    /// # Errors
    /// [`ColumnError::Internal`] if the column does not hold uint8 images of three channels, [`ColumnError::Damaged`]
    /// if an image does not have its shape, [`ColumnError::Exhausted`] if the floats exceed one array.
    pub fn apply(&self, field: &Field, column: &ArrayRef) -> Result<ArrayRef, ColumnError> {
        match TensorType::of(field).filter(is_image) {
            Some(TensorType::Fixed(tensor)) => self.apply_fixed(tensor.values(), column.as_ref()),
            Some(TensorType::Variable(_)) => self.apply_variable(column.as_ref()),
            None => Err(ColumnError::Internal(format!("{} is not a column of images", field.name()))),
        }
    }

    fn apply_fixed(&self, size: usize, column: &dyn Array) -> Result<ArrayRef, ColumnError> {
        let Some(list) = column.as_fixed_size_list_opt() else { return Err(stored_as(column)) };
        let rows = list.len();
        if size.checked_mul(rows).is_none_or(|values| values > i32::MAX as usize) {
            return Err(too_many());
        }
        let Some(pixels) = list.values().as_primitive_opt::<UInt8Type>() else { return Err(stored_as(list.values())) };
        let Some(pixels) = pixels.values().get(..rows * size) else {
            return Err(ColumnError::Damaged(format!("a column of images has {} bytes for {rows} rows", pixels.len())));
        };
        let mut out = pool::outputs().take_filled(pixels.len() * size_of::<f32>());
        for row in 0..rows {
            let (out, range) = (out.values::<f32>(), row * size..(row + 1) * size);
            match list.is_null(row) {
                true => out[range].fill(0.0),
                false => self.fill(&pixels[range.clone()], &mut out[range]),
            }
        }
        let floats = Float32Array::new(out.freeze().into(), None);
        let nulls = list.nulls().cloned();
        let list = FixedSizeListArray::try_new(item(DataType::Float32), list.value_length(), Arc::new(floats), nulls);
        Ok(Arc::new(list.map_err(internal)?))
    }

    /// Null rows take no space in the result, and have zero sides.
    fn apply_variable(&self, column: &dyn Array) -> Result<ArrayRef, ColumnError> {
        let Some(rows) = column.as_struct_opt() else { return Err(stored_as(column)) };
        let (data, shapes) = (rows.column(0).as_list::<i32>(), rows.column(1).as_fixed_size_list());
        let Some(pixels) = data.values().as_primitive_opt::<UInt8Type>() else { return Err(stored_as(data.values())) };
        let (pixels, sides) = (pixels.values(), shapes.values().as_primitive::<Int32Type>().values());
        // The specification makes the children non-nullable, but a file may violate it.
        let nulls = NullBuffer::union(rows.nulls(), data.nulls());
        let nulls = NullBuffer::union(nulls.as_ref(), shapes.nulls());
        let len = rows.len();
        let (mut offsets, mut kept) = (vec![0_i32], Vec::with_capacity(CHANNELS * len));
        for row in 0..len {
            let end = offsets[row];
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                offsets.push(end);
                kept.extend([0, 0, CHANNELS as i32]);
                continue;
            }
            let shape = &sides[CHANNELS * row..CHANNELS * (row + 1)];
            let bytes = data.value_length(row);
            if !is_shape_of(shape, bytes) {
                return Err(ColumnError::Damaged(format!("an image of shape {shape:?} holds {bytes} bytes")));
            }
            offsets.push(end.checked_add(bytes).ok_or_else(too_many)?);
            kept.extend_from_slice(shape);
        }
        let mut out = pool::outputs().take_filled(offsets[len] as usize * size_of::<f32>());
        for (row, to) in offsets.windows(2).enumerate() {
            let (from, to) = (data.value_offsets()[row] as usize, to[0] as usize..to[1] as usize);
            self.fill(&pixels[from..from + to.len()], &mut out.values::<f32>()[to]);
        }
        let floats = PrimitiveArray::<Float32Type>::new(out.freeze().into(), None);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let list = ListArray::try_new(item(DataType::Float32), offsets, Arc::new(floats), None).map_err(internal)?;
        let kept = Arc::new(Int32Array::from(kept));
        let shape = FixedSizeListArray::try_new(item(DataType::Int32), CHANNELS as i32, kept, None);
        let fields = vec![
            Field::new("data", DataType::List(item(DataType::Float32)), false),
            Field::new("shape", DataType::FixedSizeList(item(DataType::Int32), CHANNELS as i32), false),
        ];
        let columns: Vec<ArrayRef> = vec![Arc::new(list), Arc::new(shape.map_err(internal)?)];
        Ok(Arc::new(StructArray::try_new(fields.into(), columns, nulls).map_err(internal)?))
    }
}

/// Whether the tensors are uint8 images of three channels, stored row by row.
fn is_image(tensor: &TensorType) -> bool {
    let has_channels = match tensor {
        TensorType::Fixed(tensor) => tensor.permutation.is_none() && matches!(tensor.shape[..], [_, _, CHANNELS]),
        TensorType::Variable(tensor) => tensor.permutation.is_none() && tensor.rank == CHANNELS,
    };
    has_channels && *tensor.value() == DataType::UInt8
}

fn is_shape_of(shape: &[i32], bytes: i32) -> bool {
    let product = shape.iter().try_fold(1_i32, |product, &side| product.checked_mul(side).filter(|_| side > 0));
    shape[2] == CHANNELS as i32 && product == Some(bytes)
}

fn too_many() -> ColumnError {
    ColumnError::Exhausted(format!("the images of one batch exceed {} values; use smaller batches", i32::MAX))
}

fn stored_as(array: &dyn Array) -> ColumnError {
    ColumnError::Internal(format!("an image column has type {}", array.data_type()))
}

fn internal(error: impl std::fmt::Display) -> ColumnError {
    ColumnError::Internal(error.to_string())
}

/// The last step of a column, which the feed's reader computes.
#[derive(Debug)]
pub struct DeferredStep(Widen);

impl DeferredStep {
    /// Creates the step that converts pixels to floats.
    pub fn new(widen: Widen) -> Self {
        Self(widen)
    }

    /// The field of an image column without this step; its metadata stores the step.
    pub fn defer_in(&self, field: &Field) -> Field {
        let floats = self.0.0.as_flattened().iter().flat_map(|float| float.to_le_bytes());
        let mut metadata = field.metadata().clone();
        metadata.insert(KEY.to_owned(), STANDARD.encode(floats.collect::<Vec<u8>>()));
        field.clone().with_metadata(metadata)
    }

    /// The step stored in the field of a column, if any.
    ///
    /// # Errors
    /// Metadata that [`defer_in`](Self::defer_in) did not write.
    pub fn of(field: &Field) -> Result<Option<Self>, ColumnError> {
        let Some(text) = field.metadata().get(KEY) else { return Ok(None) };
        let broken = || ColumnError::Damaged(format!("column \"{}\" has an invalid deferred step", field.name()));
        let bytes = STANDARD.decode(text).map_err(|_| broken())?;
        let (floats, []) = bytes.as_chunks::<4>() else { return Err(broken()) };
        let mut tables = Box::new([[0.0; 256]; CHANNELS]);
        if floats.len() != tables.as_flattened().len() || !TensorType::of(field).is_some_and(|it| is_image(&it)) {
            return Err(broken());
        }
        for (value, bytes) in tables.as_flattened_mut().iter_mut().zip(floats) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(Some(Self(Widen(tables))))
    }

    /// The field of the column after the step; `None` if `field` is not an image column.
    pub fn finished_field(&self, field: &Field) -> Option<Field> {
        let (name, nullable) = (field.name(), field.is_nullable());
        match TensorType::of(field).filter(is_image)? {
            TensorType::Fixed(mut tensor) => {
                tensor.value = DataType::Float32;
                tensor.field(name, nullable)
            }
            TensorType::Variable(mut tensor) => {
                tensor.value = DataType::Float32;
                Some(tensor.field(name, nullable))
            }
        }
    }

    /// The column after the step.
    ///
    /// # Errors
    /// See [`Widen::apply`].
    pub fn apply(&self, field: &Field, column: &ArrayRef) -> Result<ArrayRef, ColumnError> {
        self.0.apply(field, column)
    }
}

/// Applies all deferred steps of the samples.
///
/// # Errors
/// [`ColumnError::Internal`] for columns with broken steps, or that differ from `schema` afterwards.
pub fn finish_deferred(records: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch, ColumnError> {
    let wrong = |error: &dyn std::fmt::Display| ColumnError::Internal(format!("samples cannot be completed: {error}"));
    let columns = records.schema_ref().fields().iter().zip(records.columns()).map(|(field, column)| {
        match DeferredStep::of(field).map_err(|error| wrong(&error))? {
            // Too many pixels for one column give the same error as in the operator.
            Some(step) => step.apply(field, column),
            None => Ok(Arc::clone(column)),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| wrong(&error))
}

/// Whether a column of `field` has the name and type of `expected` after its deferred step.
pub fn matches_when_finished(field: &Field, expected: &Field) -> bool {
    let finished = match DeferredStep::of(field) {
        Ok(Some(step)) => step.finished_field(field),
        Ok(None) => Some(field.clone()),
        Err(_) => None,
    };
    finished.is_some_and(|finished| finished.name() == expected.name() && finished.data_type() == expected.data_type())
}

#[cfg(test)]
mod tests {
    use arrow::array::UInt8Array;
    use arrow::datatypes::Schema;

    use super::*;
    use crate::{FixedShapeTensor, VariableShapeTensor};

    /// Halves red values, negates green values, and keeps blue values.
    fn widen() -> Widen {
        let table = |of: fn(f32) -> f32| std::array::from_fn(|value| of(value as f32));
        Widen::new(Box::new([table(|x| x / 2.0), table(|x| -x), table(|x| x)]))
    }

    fn fixed() -> (Field, ArrayRef) {
        let field = FixedShapeTensor::new(DataType::UInt8, vec![1, 1, 3]).named(&["H", "W", "C"]);
        let pixels = Arc::new(UInt8Array::from((0..9).collect::<Vec<u8>>()));
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        let list = FixedSizeListArray::new(item(DataType::UInt8), 3, pixels, nulls);
        (field.field("image", true).unwrap(), Arc::new(list))
    }

    fn variable(sides: Vec<i32>) -> (Field, ArrayRef) {
        let field = VariableShapeTensor::new(DataType::UInt8, 3).field("image", true);
        let DataType::Struct(fields) = field.data_type().clone() else { panic!("a struct") };
        let pixels = Arc::new(UInt8Array::from((0..12).collect::<Vec<u8>>()));
        let offsets = OffsetBuffer::from_lengths([3, 3, 6]);
        let data = ListArray::new(item(DataType::UInt8), offsets, pixels, None);
        let sides = Arc::new(Int32Array::from(sides));
        let shape = FixedSizeListArray::new(item(DataType::Int32), 3, sides, None);
        let nulls = Some(NullBuffer::from(vec![true, false, true]));
        (field, Arc::new(StructArray::new(fields, vec![Arc::new(data), Arc::new(shape)], nulls)))
    }

    fn records(field: Field, column: ArrayRef) -> RecordBatch {
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap()
    }

    #[test]
    fn a_fixed_column_keeps_its_shape_and_nulls() {
        let (field, column) = fixed();
        let deferred = DeferredStep::new(widen()).defer_in(&field);
        let finished = DeferredStep::of(&deferred).unwrap().expect("a step").finished_field(&deferred).unwrap();
        assert_eq!(finished.metadata(), field.metadata(), "the step is gone, the shape is not");
        assert!(matches_when_finished(&deferred, &finished));
        assert!(!matches_when_finished(&field, &finished));
        let schema = Arc::new(Schema::new(vec![finished]));
        let done = finish_deferred(&records(deferred.clone(), Arc::clone(&column)).slice(1, 2), &schema).unwrap();
        let list = done.column(0).as_fixed_size_list();
        assert!(list.is_null(0));
        assert_eq!(list.value(1).as_primitive::<Float32Type>().values(), &[3.0, -7.0, 8.0]);
    }

    #[test]
    fn a_variable_column_drops_what_lies_under_nulls() {
        let (field, column) = variable(vec![1, 1, 3, 9, 9, 9, 1, 2, 3]);
        let done = widen().apply(&field, &column).unwrap();
        let data = done.as_struct().column(0).as_list::<i32>();
        assert_eq!(data.value_offsets(), &[0, 3, 3, 9]);
        let floats = [0.0, -1.0, 2.0, 3.0, -7.0, 8.0, 4.5, -10.0, 11.0];
        assert_eq!(data.values().as_primitive::<Float32Type>().values(), &floats);
        let sides = done.as_struct().column(1).as_fixed_size_list().values().clone();
        assert_eq!(sides.as_primitive::<Int32Type>().values(), &[1, 1, 3, 0, 0, 3, 1, 2, 3]);
        assert_eq!(done.nulls(), column.nulls());
    }

    #[test]
    fn a_shape_that_lies_is_an_error() {
        for sides in [[1, 1, 3, 1, 1, 3, 2, 2, 3], [1, 1, 3, 1, 1, 3, 2, 3, 1], [1, 1, 3, 1, 1, 3, -1, -2, 3]] {
            let (field, column) = variable(sides.to_vec());
            assert!(matches!(widen().apply(&field, &column), Err(ColumnError::Damaged(_))), "{sides:?}");
        }
    }

    #[test]
    fn broken_metadata_is_an_error() {
        let (field, _) = fixed();
        for text in ["", "no base64!", "AAAA"] {
            let mut metadata = field.metadata().clone();
            metadata.insert(KEY.to_owned(), text.to_owned());
            assert!(DeferredStep::of(&field.clone().with_metadata(metadata)).is_err(), "{text}");
        }
        assert!(DeferredStep::of(&field).unwrap().is_none());
        let other = DeferredStep::new(widen()).defer_in(&Field::new("x", DataType::Int8, false));
        assert!(DeferredStep::of(&other).is_err(), "only images have this step");
    }
}
