//! `stack`, `tensor_concat`: join several tensors into one.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray};
use arrow::buffer::{MutableBuffer, NullBuffer};
use arrow::datatypes::Field;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};

use super::{bytes, field, len, values, whole};
use forebay_arrays::FixedShapeTensor;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

/// An operator that joins tensors along an existing dimension or a new one.
#[derive(Debug)]
pub(crate) struct JoinTensors {
    descriptor: &'static Descriptor,
    is_stack: bool,
}

const NAMES: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];

const fn another(name: &'static str) -> Parameter {
    Parameter::input(name, TypeClass::FixedTensor, "Another tensor").or("NULL")
}

const JOIN: Descriptor = Descriptor {
    version: 1,
    category: "tensor",
    parameters: &[
        Parameter::input("a", TypeClass::FixedTensor, "The first tensor"),
        Parameter::input("b", TypeClass::FixedTensor, "The second tensor"),
        another("c"),
        another("d"),
        another("e"),
        another("f"),
        another("g"),
        another("h"),
        Parameter::constant(
            "axis",
            ConstantKind::Integer,
            "The dimension, from 0; negative numbers count from the last",
        )
        .or("0"),
    ],
    returns: "a tensor of fixed shape of the same type",
    ..Descriptor::BASE
};

static STACK_DESCRIPTOR: Descriptor = Descriptor {
    name: "stack",
    summary: "Joins tensors of one shape along a new dimension",
    docs: "Takes two to eight tensors of one type and shape. Lists of fixed size are tensors. The size of the new \
           dimension is the number of tensors. Null if any tensor is null.",
    source: "NumPy's `stack`",
    examples: &[Example {
        sql: "stack(reshape([1, 2], shape => [2]), reshape([3, 4], shape => [2]))",
        result: "[2,2] 1 2 3 4",
    }],
    ..JOIN
};

static CONCAT_DESCRIPTOR: Descriptor = Descriptor {
    name: "tensor_concat",
    summary: "Joins tensors along one of their dimensions",
    docs: "Takes two to eight tensors of one type whose shapes differ in that dimension only. Lists of fixed size are \
           tensors. Null if any tensor is null.",
    source: "NumPy's `concatenate`",
    examples: &[Example {
        sql: "tensor_concat(reshape([1, 2], shape => [2, 1]), reshape([3, 4], shape => [2, 1]), axis => 1)",
        result: "[2,2] 1 3 2 4",
    }],
    ..JOIN
};

pub(crate) static STACK: JoinTensors = JoinTensors { descriptor: &STACK_DESCRIPTOR, is_stack: true };
pub(crate) static TENSOR_CONCAT: JoinTensors = JoinTensors { descriptor: &CONCAT_DESCRIPTOR, is_stack: false };

impl Operator for JoinTensors {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let mut is_nullable = false;
        for name in given(arguments) {
            is_nullable |= arguments.field(name)?.is_nullable();
        }
        field(&self.plan(arguments)?.result, "tensor", is_nullable)
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let JoinPlan { result, axis, runs } = self.plan(arguments)?;
        let (mut sources, mut nulls, mut width) = (vec![], None, 1);
        for name in given(arguments) {
            let list = whole(self.descriptor.name, arguments.array(name)?)?;
            let (bytes, bytes_each) = bytes(list.values())?;
            sources.push(bytes);
            nulls = NullBuffer::union(nulls.as_ref(), list.nulls());
            width = bytes_each;
        }
        let size = len(&result.shape).unwrap_or(0);
        let total = arguments.rows().checked_mul(size * width).filter(|total| *total <= BYTES_MAX);
        let Some(total) = total else {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{}: a batch has more than {BYTES_MAX} bytes; use smaller batches",
                self.descriptor.name
            )));
        };
        let mut out = MutableBuffer::with_capacity(total);
        // The next position in each tensor. Each tensor is read from beginning to end.
        let mut places = vec![0; sources.len()];
        let times = arguments.rows() * len(&result.shape[..axis]).unwrap_or(0);
        for _ in 0..times {
            for ((source, place), run) in sources.iter().zip(&mut places).zip(&runs) {
                out.extend_from_slice(&source[*place..*place + run * width]);
                *place += run * width;
            }
        }
        let values = values(&result.value, out.into(), width)?;
        let item = Arc::new(Field::new_list_field(result.value, false));
        Ok(Arc::new(FixedSizeListArray::try_new(item, size as i32, values, nulls)?))
    }
}

/// The shape of the result, and the order in which the inputs are copied.
struct JoinPlan {
    result: FixedShapeTensor,
    axis: usize,
    /// Number of contiguous values to copy from each tensor at a time.
    runs: Vec<usize>,
}

/// Maximum size of an array in bytes.
const BYTES_MAX: usize = i32::MAX as usize;

impl JoinTensors {
    fn plan(&self, arguments: &Arguments) -> Result<JoinPlan> {
        let of = |name: &str| -> Result<FixedShapeTensor> {
            let field = arguments.field(name)?;
            FixedShapeTensor::of_numbers(field)
                .ok_or_else(|| internal_datafusion_err!("{name} is not a tensor of fixed shape"))
        };
        let first = of("a")?;
        let ranks = first.shape.len() + usize::from(self.is_stack);
        let axis = arguments.integer("axis")?;
        let from_front = if axis < 0 { axis + ranks as i64 } else { axis };
        let Some(axis) = usize::try_from(from_front).ok().filter(|axis| *axis < ranks) else {
            return arguments.refuse("axis", format_args!("must be from -{ranks} to {}, got {axis}", ranks - 1));
        };
        let (mut side, mut runs) = (0, vec![]);
        for name in given(arguments) {
            let other = of(name)?;
            let mut expect = first.shape.clone();
            if !self.is_stack
                && let (Some(expect), Some(own)) = (expect.get_mut(axis), other.shape.get(axis))
            {
                *expect = *own;
            }
            if (&other.value, &other.dtype, &other.shape) != (&first.value, &first.dtype, &expect) {
                let except = if self.is_stack { "" } else { ", except along \"axis\"" };
                return arguments.refuse(name, format_args!("must be {} as \"a\" is{except}, got {}", first, other));
            }
            side += if self.is_stack { 1 } else { other.shape[axis] };
            runs.push(len(&other.shape[axis..]).unwrap_or(0));
        }
        let mut shape = first.shape.clone();
        match self.is_stack {
            true => shape.insert(axis, side),
            false => shape[axis] = side,
        }
        if len(&shape).is_none_or(|len| i32::try_from(len).is_err()) {
            return arguments.refuse("a", format_args!("makes a tensor of more than {} values", i32::MAX));
        }
        Ok(JoinPlan { result: first.with_shape(shape), axis, runs })
    }
}

fn given(arguments: &Arguments) -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|name| arguments.is_given(name))
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Float32Type, UInt8Type};

    use super::*;
    use crate::testing::{Column, call, fixed, noise};

    fn tensor(name: &str, shape: &[usize], values: &[u8]) -> Column {
        let (field, array) = fixed(1, values.len() / 3, values.to_vec());
        let flat = FixedShapeTensor::of_numbers(&field).unwrap().with_shape(shape.to_vec()).field(name, true).unwrap();
        (flat, array)
    }

    fn check(text: &str, columns: Vec<Column>, shape: &str, expect: &[u8]) {
        let (field, got) = call(text, columns).unwrap();
        assert_eq!(field.metadata()["ARROW:extension:metadata"], format!(r#"{{"shape":{shape}}}"#), "{text}");
        assert_eq!(got.as_fixed_size_list().values().as_primitive::<UInt8Type>().values()[..], *expect, "{text}");
    }

    // The expected values come from numpy.stack and numpy.concatenate.
    #[test]
    fn tensors_are_joined_as_numpy_joins_them() {
        let columns =
            || vec![tensor("x", &[2, 3], &[1, 2, 3, 4, 5, 6]), tensor("y", &[2, 3], &[11, 12, 13, 14, 15, 16])];
        let inner = [1, 11, 2, 12, 3, 13, 4, 14, 5, 15, 6, 16];
        let middle = [1, 2, 3, 11, 12, 13, 4, 5, 6, 14, 15, 16];
        let outer = [1, 2, 3, 4, 5, 6, 11, 12, 13, 14, 15, 16];
        let null = "NULL, NULL, NULL, NULL, NULL, NULL";
        check("stack(x, y)", columns(), "[2,2,3]", &outer);
        check(&format!("stack(x, y, {null}, 1)"), columns(), "[2,2,3]", &middle);
        check(&format!("stack(x, y, {null}, -1)"), columns(), "[2,3,2]", &inner);
        check("tensor_concat(x, y)", columns(), "[4,3]", &outer);
        check(&format!("tensor_concat(x, y, {null}, 1)"), columns(), "[2,6]", &middle);
        let three = [&middle[..6], &[1, 2, 3], &middle[6..], &[4, 5, 6]].concat();
        let null = "NULL, NULL, NULL, NULL, NULL";
        check(&format!("tensor_concat(x, y, x, {null}, -1)"), columns(), "[2,9]", &three);
        let other = vec![tensor("x", &[1, 3], &[1, 2, 3]), tensor("y", &[2, 3], &[11, 12, 13, 14, 15, 16])];
        check("tensor_concat(x, y)", other, "[3,3]", &[1, 2, 3, 11, 12, 13, 14, 15, 16]);
    }

    #[test]
    fn floats_of_several_rows_are_joined_row_by_row() {
        let columns = vec![fixed(1, 1, (1..=6).collect())];
        let text = "stack(image, image)";
        let (field, bytes) = call(text, columns.clone()).unwrap();
        let floats = crate::testing::sql("cast_tensor(image)", columns).unwrap();
        let floats = call(text, vec![(floats.0.with_name("image"), floats.1)]).unwrap().1;
        let floats = floats.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
        assert_eq!(floats, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0]);
        assert_eq!((field.is_nullable(), bytes.len()), (false, 2));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let check = |text: &str, expect: &str| {
            let columns = vec![noise(), tensor("y", &[2, 3], &[1; 6])];
            assert_eq!(call(text, columns).unwrap_err(), expect);
        };
        let expect = "\"b\" must be a UInt8 tensor of 9 x 13 x 3 as \"a\" is";
        check("stack(image, y)", &format!("stack: {expect}, got a UInt8 tensor of 2 x 3"));
        check(
            "tensor_concat(image, y)",
            &format!("tensor_concat: {expect}, except along \"axis\", got a UInt8 tensor of 2 x 3"),
        );
        let null = "NULL, NULL, NULL, NULL, NULL, NULL";
        check(&format!("stack(y, y, {null}, 3)"), "stack: \"axis\" must be from -3 to 2, got 3");
        check(&format!("tensor_concat(y, y, {null}, -3)"), "tensor_concat: \"axis\" must be from -2 to 1, got -3");
        check("stack(y)", "stack: \"b\" is missing");
    }
}
