//! Arguments of functions of the embedding program that are tensors.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Int32Array, ListArray, StructArray, make_array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use forebay_arrays::{FixedShapeTensor, TensorType, VariableShapeTensor, item};

/// A tensor that a function takes: of one shape, or of a number of dimensions with sides that are any or given. The
/// function checks the given sides of tensors whose type does not say them.
#[derive(Clone, Debug)]
pub(crate) struct TensorParameter {
    tensor: TensorType,
}

impl TensorParameter {
    /// The parameter that a field declares; `None` if it is no tensor.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        TensorType::of(field).map(|tensor| Self { tensor })
    }

    /// Why an argument cannot be passed, to follow "argument 1"; `None` if it can.
    pub(crate) fn refusal(&self, given: &Field) -> Option<String> {
        let fits = match (&self.tensor, shown(given)) {
            (TensorType::Fixed(own), Some(TensorType::Fixed(given))) => {
                own.value == given.value && own.shape == given.shape && given.dtype.is_none()
            }
            (TensorType::Variable(own), Some(TensorType::Fixed(given))) => {
                own.value == given.value && given.dtype.is_none() && allows(own, &sides(&given.shape))
            }
            (TensorType::Variable(own), Some(TensorType::Variable(given))) => {
                let any = || vec![None; given.rank];
                let sides = given.uniform_shape.clone().unwrap_or_else(any);
                own.value == given.value && given.dtype.is_none() && allows(own, &sides)
            }
            (TensorType::Fixed(_), Some(TensorType::Variable(_))) | (_, None) => false,
        };
        let is_column = !given.name().is_empty() && given.name().chars().all(|c| c.is_alphanumeric() || c == '_');
        let name = if is_column { format!("\"{}\": ", given.name()) } else { String::new() };
        (!fits).then(|| format!("must be {}, got {name}{}", text(&self.tensor), given_text(given)))
    }

    /// The array to pass for an argument: tensors of one shape as such of many shapes, if the function takes these.
    pub(crate) fn passed(&self, array: &ArrayRef, field: &Field) -> ArrayRef {
        match (&self.tensor, shown(field)) {
            (TensorType::Variable(_), Some(TensorType::Fixed(fixed))) => Arc::new(varying(array, &fixed)),
            _ => Arc::clone(array),
        }
    }
}

/// The tensor type of an argument whose elements are in the order of its dimensions.
fn shown(field: &Field) -> Option<TensorType> {
    match TensorType::of(field) {
        Some(TensorType::Variable(tensor)) => tensor.permutation.is_none().then_some(TensorType::Variable(tensor)),
        _ => FixedShapeTensor::of_numbers(field).map(TensorType::Fixed),
    }
}

fn sides(shape: &[usize]) -> Vec<Option<usize>> {
    shape.iter().copied().map(Some).collect()
}

/// Whether no side is known to differ.
fn allows(own: &VariableShapeTensor, given: &[Option<usize>]) -> bool {
    let any = vec![None; own.rank];
    let own = own.uniform_shape.as_ref().unwrap_or(&any);
    own.len() == given.len()
        && own.iter().zip(given).all(|(own, given)| own.is_none() || given.is_none() || own == given)
}

fn varying(array: &ArrayRef, tensor: &FixedShapeTensor) -> StructArray {
    let list = array.as_fixed_size_list();
    let (size, rank) = (tensor.values(), tensor.shape.len());
    let first = list.value_offset(0) as usize;
    let values = list.values().slice(first, list.len() * size);
    // Tensors of many shapes have no null elements, so a row with one is null, which the function refuses.
    let is_whole = |row: usize| list.is_valid(row) && values.slice(row * size, size).null_count() == 0;
    let nulls = match values.null_count() {
        0 => list.nulls().cloned(),
        _ => Some((0..list.len()).map(is_whole).collect()),
    };
    let values = values.to_data().into_builder().nulls(None).build();
    let values = make_array(values.expect("the same buffers, which may hold anything under nulls"));
    let data =
        ListArray::new(item(tensor.value.clone()), OffsetBuffer::from_repeated_length(size, list.len()), values, None);
    let sides = (0..list.len()).flat_map(|_| tensor.shape.iter().map(|&side| side as i32));
    let sides = Arc::new(Int32Array::from_iter_values(sides));
    let shapes = FixedSizeListArray::new(item(DataType::Int32), rank as i32, sides, None);
    let fields: Fields = [("data", data.data_type()), ("shape", shapes.data_type())]
        .map(|(name, data_type)| -> FieldRef { Arc::new(Field::new(name, data_type.clone(), false)) })
        .into_iter()
        .collect();
    StructArray::new(fields, vec![Arc::new(data), Arc::new(shapes)], nulls)
}

fn given_text(field: &Field) -> String {
    TensorType::of(field).or_else(|| shown(field)).map_or_else(|| field.data_type().to_string(), |tensor| text(&tensor))
}

/// The type in an error, with a "?" for a side that may be any.
fn text(tensor: &TensorType) -> String {
    let (sides, dtype, is_permuted) = match tensor {
        TensorType::Fixed(tensor) => (sides(&tensor.shown_shape()), &tensor.dtype, tensor.permutation.is_some()),
        TensorType::Variable(tensor) => {
            let any = || vec![None; tensor.rank];
            (tensor.uniform_shape.clone().unwrap_or_else(any), &tensor.dtype, tensor.permutation.is_some())
        }
    };
    let value = dtype.clone().unwrap_or_else(|| tensor.value().to_string().to_lowercase());
    let sides: Vec<_> = sides.iter().map(|side| side.map_or("?".to_owned(), |side| side.to_string())).collect();
    let order = if is_permuted { " in another order of memory" } else { "" };
    format!("tensor<{value}>[{}]{order}", sides.join(", "))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, Int64Array};

    use super::*;

    fn fixed(shape: &[usize]) -> Field {
        FixedShapeTensor::new(DataType::Float32, shape.to_vec()).field("x", true).expect("a small tensor")
    }

    fn varying_field(sides: &[Option<usize>]) -> Field {
        let tensor = VariableShapeTensor::new(DataType::Float32, sides.len());
        VariableShapeTensor { uniform_shape: Some(sides.to_vec()), ..tensor }.field("x", true)
    }

    #[test]
    fn a_tensor_must_have_the_declared_elements_and_shape() {
        let check = |declared: &Field, given: &Field, expected: Option<&str>| {
            let parameter = TensorParameter::of(declared).expect("a tensor");
            assert_eq!(parameter.refusal(given).as_deref(), expected, "{declared} {given}");
        };
        let permuted =
            FixedShapeTensor { permutation: Some(vec![1, 0]), ..FixedShapeTensor::new(DataType::Float32, vec![2, 3]) };
        let permuted = permuted.field("x", true).expect("a small tensor");
        let bfloat16 = FixedShapeTensor {
            dtype: Some("bfloat16".to_owned()),
            ..FixedShapeTensor::new(DataType::UInt16, vec![2, 3])
        };
        let bfloat16 = bfloat16.field("x", true).expect("a small tensor");
        let plain = Field::new("x", DataType::FixedSizeList(item(DataType::Float32), 3), true);
        let of = |rest: &str| format!("must be tensor<float32>[2, 3], got {rest}");
        check(&fixed(&[2, 3]), &fixed(&[2, 3]), None);
        check(&fixed(&[2, 3]), &fixed(&[3, 2]), Some(&of("\"x\": tensor<float32>[3, 2]")));
        check(&fixed(&[2, 3]), &permuted, Some(&of("\"x\": tensor<float32>[3, 2] in another order of memory")));
        check(&fixed(&[2, 3]), &bfloat16, Some(&of("\"x\": tensor<bfloat16>[2, 3]")));
        check(&fixed(&[2, 3]), &varying_field(&[None, Some(3)]), Some(&of("\"x\": tensor<float32>[?, 3]")));
        check(&fixed(&[2, 3]), &Field::new("f(x)", DataType::Int64, true), Some(&of("Int64")));
        check(&fixed(&[3]), &plain, None);
        check(&fixed(&[4]), &plain, Some("must be tensor<float32>[4], got \"x\": tensor<float32>[3]"));
        check(&varying_field(&[None, Some(3)]), &fixed(&[2, 3]), None);
        check(&varying_field(&[None, Some(3)]), &varying_field(&[None, None]), None);
        check(&varying_field(&[None, None]), &varying_field(&[Some(2), Some(3)]), None);
        check(
            &varying_field(&[None, Some(3)]),
            &varying_field(&[Some(2), Some(4)]),
            Some("must be tensor<float32>[?, 3], got \"x\": tensor<float32>[2, 4]"),
        );
        check(
            &varying_field(&[None, None]),
            &fixed(&[3]),
            Some("must be tensor<float32>[?, ?], got \"x\": tensor<float32>[3]"),
        );
        assert!(TensorParameter::of(&plain).is_none(), "a plain list is not declared as a tensor");
    }

    #[test]
    fn tensors_of_one_shape_are_passed_as_such_of_many() {
        let values = Arc::new(Float32Array::from_iter_values((0..24).map(|value| value as f32)));
        let nulls = Some(vec![true, true, false, true].into());
        let column: ArrayRef = Arc::new(FixedSizeListArray::new(item(DataType::Float32), 6, values, nulls));
        let parameter = TensorParameter::of(&varying_field(&[None, None])).expect("a tensor");
        let passed = parameter.passed(&column.slice(1, 3), &fixed(&[2, 3]));
        let rows = passed.as_struct();
        assert_eq!(passed.data_type(), varying_field(&[None, None]).data_type());
        assert_eq!((rows.len(), rows.is_null(1), rows.null_count()), (3, true, 1));
        let first = rows.column(0).as_list::<i32>().value(0);
        assert_eq!(first.as_ref(), &Float32Array::from_iter_values((6..12).map(|value| value as f32)) as &dyn Array);
        let shape = rows.column(1).as_fixed_size_list().value(2);
        assert_eq!(shape.as_ref(), &Int32Array::from(vec![2, 3]) as &dyn Array);
        let values = (0..24).map(|value| (value != 13).then_some(value as f32));
        let values = Arc::new(Float32Array::from_iter(values));
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        let nulls = Some(vec![true, true, true, false].into());
        let holes: ArrayRef = Arc::new(FixedSizeListArray::new(item, 6, values, nulls));
        let passed = parameter.passed(&holes.slice(1, 3), &fixed(&[2, 3]));
        assert_eq!((0..3).map(|row| passed.is_null(row)).collect::<Vec<_>>(), [false, true, true]);
        let other: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        let same = TensorParameter::of(&fixed(&[2, 3])).expect("a tensor").passed(&other, &fixed(&[2, 3]));
        assert!(Arc::ptr_eq(&same, &other));
    }
}
