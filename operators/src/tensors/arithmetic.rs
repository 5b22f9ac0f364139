//! `tensor_add`, `tensor_sub`, `tensor_mul`, `tensor_div`: arithmetic of tensors with tensors of the same shape, or
//! with a number.
//!
//! All are one struct. An integer result that does not fit its type saturates, because `tensor_add(image, 10)` must not
//! wrap bright pixels to dark ones.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, Float64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use half::f16;

use super::{field, whole};
use forebay_arrays::FixedShapeTensor;

use crate::descriptor::{Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::reuse::Own;

/// An arithmetic operator.
#[derive(Debug)]
pub(crate) struct Arithmetic {
    descriptor: &'static Descriptor,
    kind: ArithmeticKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArithmeticKind {
    Add,
    Sub,
    Mul,
    Div,
}

const ARITHMETIC: Descriptor = Descriptor {
    version: 1,
    category: "tensor",
    parameters: &[
        Parameter::input("a", TypeClass::FixedTensor, "The tensor"),
        Parameter::input("b", TypeClass::TensorOrNumber, "A tensor of the same type and shape, or a number"),
    ],
    returns: "a tensor of the type and shape of a",
    docs: "Computes value by value. Floats follow IEEE 754, with NaN and infinities, in a's type; float16 is computed \
           in float32 and rounded. A number is first rounded to a's type. For integer tensors, the number must be an \
           integer, and the exact result is then clamped to the type's range, where NumPy wraps around. `cast_tensor` \
           gives floats. Null if either argument is null.",
    source: "NumPy's arithmetic on arrays of one type, except for integer overflow",
    ..Descriptor::BASE
};

static ADD: Descriptor = Descriptor {
    name: "tensor_add",
    summary: "Adds two tensors, or a number to a tensor",
    examples: &[Example { sql: "tensor_add(reshape([1, 2], shape => [2]), 10)", result: "[2] 11 12" }],
    ..ARITHMETIC
};
static SUB: Descriptor = Descriptor {
    name: "tensor_sub",
    summary: "Subtracts two tensors, or a number from a tensor",
    examples: &[Example { sql: "tensor_sub(reshape([1, 2], shape => [2]), 10)", result: "[2] -9 -8" }],
    ..ARITHMETIC
};
static MUL: Descriptor = Descriptor {
    name: "tensor_mul",
    summary: "Multiplies two tensors value by value, or a tensor by a number",
    examples: &[Example {
        sql: "tensor_mul(reshape([1, 2], shape => [2]), reshape([3, 4], shape => [2]))",
        result: "[2] 3 8",
    }],
    ..ARITHMETIC
};
static DIV: Descriptor = Descriptor {
    name: "tensor_div",
    summary: "Divides two tensors value by value, or a tensor by a number",
    returns: "a tensor of the shape and type of a; float32 for integers",
    docs: "Computes value by value. Floats follow IEEE 754, with NaN and infinities, in a's type; float16 is computed \
           in float32 and rounded. A number is first rounded to a's type. Integers are divided as float32, by \
           fractions, too. Division by 0 gives an infinity or NaN. Null if either argument is null.",
    source: "PyTorch's `true_divide`",
    examples: &[Example { sql: "tensor_div(reshape([1, 2], shape => [2]), 4)", result: "[2] 0.25 0.5" }],
    ..ARITHMETIC
};

pub(crate) static TENSOR_ADD: Arithmetic = Arithmetic { descriptor: &ADD, kind: ArithmeticKind::Add };
pub(crate) static TENSOR_DIV: Arithmetic = Arithmetic { descriptor: &DIV, kind: ArithmeticKind::Div };
pub(crate) static TENSOR_MUL: Arithmetic = Arithmetic { descriptor: &MUL, kind: ArithmeticKind::Mul };
pub(crate) static TENSOR_SUB: Arithmetic = Arithmetic { descriptor: &SUB, kind: ArithmeticKind::Sub };

impl Operator for Arithmetic {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let (a, b) = (arguments.field("a")?, arguments.field("b")?);
        let Some(tensor) = FixedShapeTensor::of_numbers(a) else {
            return internal_err!("{} is not a tensor", a.name());
        };
        if tensor.dtype.is_some() {
            return arguments.refuse("a", format_args!("must have a type that Arrow supports, got {tensor}"));
        }
        let other = FixedShapeTensor::of_numbers(b);
        let fits = match &other {
            Some(other) => (&tensor.value, &tensor.shape, &tensor.dtype) == (&other.value, &other.shape, &other.dtype),
            None => self.kind == ArithmeticKind::Div || tensor.value.is_floating() || b.data_type().is_integer(),
        };
        if !fits {
            let got = other.map_or(b.data_type().to_string(), |other| other.to_string());
            let number = if tensor.value.is_floating() { "a number" } else { "an integer" };
            return arguments.refuse("b", format_args!("must be {tensor} as \"a\" is, or {number}, got {got}"));
        }
        let value = self.value(&tensor.value);
        field(&FixedShapeTensor { value, ..tensor }, "tensor", a.is_nullable() || b.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let is_tensor = FixedShapeTensor::of_numbers(arguments.field("b")?).is_some();
        let b = arguments.take_array("b")?;
        let b_nulls = b.nulls().cloned();
        let b = if is_tensor { Arc::clone(whole(self.descriptor.name, &b)?.values()) } else { b };
        // Release the list's own reference to the values, so that they can be changed in place.
        let (a, size, nulls) = {
            let list = whole(self.descriptor.name, &arguments.take_array("a")?)?.clone();
            let (_, size, values, nulls) = list.into_parts();
            (values, size, NullBuffer::union(nulls.as_ref(), b_nulls.as_ref()))
        };
        let value = self.value(a.data_type());
        let (a, b) = match a.data_type() == &value {
            true => (a, b),
            false => (cast(&a, &value)?, cast(&b, &DataType::Float64)?),
        };
        let operands = Operands { kind: self.kind, a, b, is_tensor, size: size as usize };
        let values = match value {
            DataType::Int8 => operands.integers::<Int8Type>(),
            DataType::Int16 => operands.integers::<Int16Type>(),
            DataType::Int32 => operands.integers::<Int32Type>(),
            DataType::Int64 => operands.integers::<Int64Type>(),
            DataType::UInt8 => operands.integers::<UInt8Type>(),
            DataType::UInt16 => operands.integers::<UInt16Type>(),
            DataType::UInt32 => operands.integers::<UInt32Type>(),
            DataType::UInt64 => operands.integers::<UInt64Type>(),
            DataType::Float16 => operands.floats::<Float16Type>(),
            DataType::Float32 => operands.floats::<Float32Type>(),
            DataType::Float64 => operands.floats::<Float64Type>(),
            ref other => internal_err!("no arithmetic on {other}, and its type class refuses it"),
        }?;
        let item = Arc::new(Field::new_list_field(value, false));
        Ok(Arc::new(FixedSizeListArray::try_new(item, size, values, nulls)?))
    }
}

impl Arithmetic {
    fn value(&self, value: &DataType) -> DataType {
        match self.kind {
            ArithmeticKind::Div if value.is_integer() => DataType::Float32,
            _ => value.clone(),
        }
    }
}

/// The operands: the values of all tensors, and those of other tensors or a number for each row.
struct Operands {
    kind: ArithmeticKind,
    a: ArrayRef,
    b: ArrayRef,
    is_tensor: bool,
    size: usize,
}

impl Operands {
    fn integers<T: ArrowPrimitiveType<Native: Integer>>(self) -> Result<ArrayRef> {
        let kind = self.kind;
        let own = |a: T::Native, b: T::Native| match kind {
            ArithmeticKind::Add => a.saturating_add(b),
            ArithmeticKind::Sub => a.saturating_sub(b),
            _ => a.saturating_mul(b),
        };
        if self.is_tensor {
            return self.with_tensor::<T>(own);
        }
        let numbers = whole_numbers(&self.b)?;
        self.with_rows::<T>(|row, out| match T::Native::exact(numbers[row]) {
            Some(number) => out.iter_mut().for_each(|a| *a = own(*a, number)),
            // A number outside the type's range may still give results inside it.
            None => out.iter_mut().for_each(|a| {
                let (a_wide, number) = ((*a).wide(), numbers[row]);
                *a = T::Native::nearest(match kind {
                    ArithmeticKind::Add => a_wide + number,
                    ArithmeticKind::Sub => a_wide - number,
                    _ => a_wide * number,
                });
            }),
        })
    }

    fn floats<T: ArrowPrimitiveType<Native: Float>>(self) -> Result<ArrayRef> {
        match self.kind {
            ArithmeticKind::Add => self.with_floats::<T>(|a, b| a + b),
            ArithmeticKind::Sub => self.with_floats::<T>(|a, b| a - b),
            ArithmeticKind::Mul => self.with_floats::<T>(|a, b| a * b),
            ArithmeticKind::Div => self.with_floats::<T>(|a, b| a / b),
        }
    }

    fn with_floats<T: ArrowPrimitiveType<Native: Float>>(
        self,
        compute: impl Fn(Wide<T>, Wide<T>) -> Wide<T>,
    ) -> Result<ArrayRef> {
        let compute = |a: T::Native, b: T::Native| T::Native::of(compute(a.wide(), b.wide()));
        if self.is_tensor {
            return self.with_tensor::<T>(compute);
        }
        let numbers = cast(&self.b, &DataType::Float64)?;
        let numbers: &Float64Array = numbers.as_primitive();
        self.with_rows::<T>(|row, out| {
            let number = T::Native::rounded(numbers.value(row));
            out.iter_mut().for_each(|a| *a = compute(*a, number));
        })
    }

    fn with_tensor<T: ArrowPrimitiveType>(
        self,
        compute: impl Fn(T::Native, T::Native) -> T::Native,
    ) -> Result<ArrayRef> {
        let other = match self.b.data_type() == &T::DATA_TYPE {
            true => Arc::clone(&self.b),
            false => cast(&self.b, &T::DATA_TYPE)?,
        };
        let other = other.as_primitive::<T>();
        let size = self.size;
        self.with_rows::<T>(|row, out| {
            let other = &other.values()[row * size..(row + 1) * size];
            out.iter_mut().zip(other).for_each(|(a, b)| *a = compute(*a, *b));
        })
    }

    /// Changes the values of each tensor, in place if the array has no other owner.
    fn with_rows<T: ArrowPrimitiveType>(self, mut change: impl FnMut(usize, &mut [T::Native])) -> Result<ArrayRef> {
        // Values in a null row may be null. A tensor's values are not.
        let mut own = Own::take_or_copy::<T>(self.a).without_nulls();
        own.values_mut::<T>().chunks_exact_mut(self.size).enumerate().for_each(|(row, out)| change(row, out));
        Ok(own.finish::<T>())
    }
}

fn whole_numbers(array: &ArrayRef) -> Result<Vec<i128>> {
    Ok(match array.data_type() {
        DataType::UInt64 => array.as_primitive::<UInt64Type>().values().iter().map(|x| i128::from(*x)).collect(),
        other if other.is_integer() => {
            let integers = cast(array, &DataType::Int64)?;
            integers.as_primitive::<Int64Type>().values().iter().map(|x| i128::from(*x)).collect()
        }
        other => return Err(internal_datafusion_err!("{other} is no integer, which planning has refused")),
    })
}

/// Operations shared by integers of all widths.
trait Integer: Copy {
    fn saturating_add(self, other: Self) -> Self;
    fn saturating_sub(self, other: Self) -> Self;
    fn saturating_mul(self, other: Self) -> Self;
    fn wide(self) -> i128;
    fn exact(wide: i128) -> Option<Self>;
    fn nearest(wide: i128) -> Self;
}

macro_rules! integer {
    ($($native:ty)+) => {
        $(impl Integer for $native {
            fn saturating_add(self, other: Self) -> Self {
                self.saturating_add(other)
            }

            fn saturating_sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }

            fn saturating_mul(self, other: Self) -> Self {
                self.saturating_mul(other)
            }

            fn wide(self) -> i128 {
                self.into()
            }

            fn exact(wide: i128) -> Option<Self> {
                wide.try_into().ok()
            }

            fn nearest(wide: i128) -> Self {
                wide.clamp(Self::MIN.into(), Self::MAX.into()) as Self
            }
        })+
    };
}

integer!(i8 i16 i32 i64 u8 u16 u32 u64);

type Wide<T> = <<T as ArrowPrimitiveType>::Native as Float>::Wide;

/// Operations shared by floats of all widths.
trait Float: Copy {
    /// The type in which to compute.
    type Wide: std::ops::Add<Output = Self::Wide>
        + std::ops::Sub<Output = Self::Wide>
        + std::ops::Mul<Output = Self::Wide>
        + std::ops::Div<Output = Self::Wide>;
    fn wide(self) -> Self::Wide;
    fn of(wide: Self::Wide) -> Self;
    fn rounded(number: f64) -> Self;
}

macro_rules! float {
    ($($native:ty, $wide:ty, $to:expr, $from:expr, $rounded:expr;)+) => {
        $(impl Float for $native {
            type Wide = $wide;

            fn wide(self) -> $wide {
                $to(self)
            }

            fn of(wide: $wide) -> Self {
                $from(wide)
            }

            fn rounded(number: f64) -> Self {
                $rounded(number)
            }
        })+
    };
}

float! {
    f16, f32, f16::to_f32, f16::from_f32, f16::from_f64;
    f32, f32, |x| x, |x| x, |x| x as f32;
    f64, f64, |x| x, |x| x, |x| x;
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::PrimitiveArray;

    use super::*;
    use crate::testing::{Column, call, fixed, noise, sql};

    fn tensor<T: ArrowPrimitiveType>(name: &str, rows: usize, values: Vec<T::Native>) -> Column {
        let size = values.len() / rows;
        let field = FixedShapeTensor::new(T::DATA_TYPE, vec![size]).field(name, false).unwrap();
        let item = Arc::new(Field::new_list_field(T::DATA_TYPE, false));
        let values = Arc::new(PrimitiveArray::<T>::new(values.into(), None));
        (field, Arc::new(FixedSizeListArray::new(item, size as i32, values, None)))
    }

    fn check<T: ArrowPrimitiveType>(text: &str, columns: Vec<Column>, expect: &[T::Native]) {
        let (field, got) = call(text, columns).unwrap();
        assert_eq!(FixedShapeTensor::of_numbers(&field).unwrap().value, T::DATA_TYPE, "{text}");
        assert_eq!(got.as_fixed_size_list().values().as_primitive::<T>().values()[..], *expect, "{text}");
    }

    #[test]
    fn integers_saturate() {
        let columns =
            || vec![tensor::<UInt8Type>("x", 2, vec![1, 2, 250, 255]), tensor::<UInt8Type>("y", 2, vec![3, 4, 5, 0])];
        check::<UInt8Type>("tensor_add(x, y)", columns(), &[4, 6, 255, 255]);
        check::<UInt8Type>("tensor_sub(x, y)", columns(), &[0, 0, 245, 255]);
        check::<UInt8Type>("tensor_mul(x, y)", columns(), &[3, 8, 255, 0]);
        check::<UInt8Type>("tensor_add(x, 10)", columns(), &[11, 12, 255, 255]);
        check::<UInt8Type>("tensor_add(x, -2)", columns(), &[0, 0, 248, 253]);
        check::<UInt8Type>("tensor_sub(x, -300)", columns(), &[255, 255, 255, 255]);
        check::<UInt8Type>("tensor_mul(x, -1)", columns(), &[0, 0, 0, 0]);
        let wide = || vec![tensor::<Int64Type>("x", 1, vec![i64::MAX, i64::MIN, 7])];
        check::<Int64Type>("tensor_add(x, 1)", wide(), &[i64::MAX, i64::MIN + 1, 8]);
        check::<Int64Type>("tensor_mul(x, -1)", wide(), &[-i64::MAX, i64::MAX, -7]);
    }

    // The expected values come from NumPy on float32 and float16 arrays, and from torch.true_divide of integers.
    #[test]
    fn floats_follow_ieee_754() {
        let x = || vec![tensor::<Float32Type>("x", 1, vec![0.1, -0.0, f32::INFINITY, 3e38])];
        check::<Float32Type>("tensor_add(x, 0.2)", x(), &[0.3, 0.2, f32::INFINITY, 3e38]);
        check::<Float32Type>("tensor_mul(x, 10)", x(), &[1.0, -0.0, f32::INFINITY, f32::INFINITY]);
        let y = tensor::<Float32Type>("y", 1, vec![3.0; 4]);
        check::<Float32Type>("tensor_div(x, y)", vec![x().remove(0), y], &[0.033333335, -0.0, f32::INFINITY, 1e38]);
    }

    #[test]
    fn division_by_zero_is_infinite_or_nan() {
        let (_, got) = call("tensor_div(x, 0)", vec![tensor::<Int32Type>("x", 1, vec![1, 0, -1])]).unwrap();
        let got = got.as_fixed_size_list().values().as_primitive::<Float32Type>().clone();
        assert_eq!((got.value(0), got.value(2)), (f32::INFINITY, f32::NEG_INFINITY));
        assert!(got.value(1).is_nan());
        check::<Float32Type>(
            "tensor_div(x, y)",
            vec![tensor::<UInt8Type>("x", 1, vec![1, 255]), tensor::<UInt8Type>("y", 1, vec![3, 2])],
            &[1.0 / 3.0, 127.5],
        );
        check::<Float32Type>("tensor_div(x, 0.5)", vec![tensor::<UInt8Type>("x", 1, vec![1, 255])], &[2.0, 510.0]);
        let half = |x: f32| f16::from_f32(x);
        let x = tensor::<Float16Type>("x", 1, vec![half(1.0), half(60000.0)]);
        check::<Float16Type>("tensor_div(x, 3)", vec![x.clone()], &[half(1.0 / 3.0), half(20000.0)]);
        check::<Float16Type>("tensor_add(x, x)", vec![x], &[half(2.0), f16::INFINITY]);
    }

    #[test]
    fn a_number_may_be_a_column_and_null() {
        let numbers = arrow::array::Int32Array::from(vec![Some(1), None]);
        let columns = vec![tensor::<UInt8Type>("x", 2, vec![1, 2, 3, 4]), crate::testing::column("n", numbers)];
        let (field, got) = call("tensor_add(x, n)", columns).unwrap();
        assert!(field.is_nullable() && got.is_null(1) && !got.is_null(0));
        assert_eq!(got.as_fixed_size_list().value(0).as_primitive::<UInt8Type>().values()[..], [2, 3]);
    }

    #[test]
    fn a_list_with_a_null_in_it_is_no_tensor() {
        let pairs = [Some([Some(1), Some(2)]), None, Some([Some(3), None])];
        let pairs = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2);
        let first = crate::testing::column("x", pairs.slice(0, 2));
        let (_, got) = call("tensor_add(x, 1)", vec![first]).unwrap();
        assert_eq!((got.is_null(0), got.is_null(1)), (false, true));
        for text in ["tensor_add(x, 1)", "tensor_add(y, x)", "stack(y, x)"] {
            let columns = vec![crate::testing::column("x", pairs.clone()), tensor::<Int32Type>("y", 3, vec![1; 6])];
            let operator = text.split('(').next().unwrap();
            assert_eq!(call(text, columns).unwrap_err(), format!("{operator}: a list has a null in it"));
        }
    }

    #[test]
    fn an_image_stays_one() {
        let (field, _) = sql("tensor_sub(image, 7)", vec![noise()]).unwrap();
        assert!(crate::image_column::is_image(&field));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let check = |text: &str, expect: &str| {
            let (field, array) = fixed(1, 2, vec![1; 6]);
            assert_eq!(call(text, vec![noise(), (field.with_name("other"), array)]).unwrap_err(), expect);
        };
        let expect = "tensor_add: \"b\" must be a UInt8 tensor of 9 x 13 x 3 as \"a\" is, or an integer, got Float64";
        check("tensor_add(image, 0.5)", expect);
        let expect = "tensor_add: \"b\" must be a UInt8 tensor of 9 x 13 x 3 as \"a\" is, or an integer, got a UInt8 tensor of \
                      1 x 2 x 3";
        check("tensor_add(image, other)", expect);
        let expect = "tensor_add: \"a\" must be a tensor of one fixed shape, got Int64";
        check("tensor_add(1, image)", expect);
    }
}
