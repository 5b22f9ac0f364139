//! `fill_null`: replaces nulls by a number.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, downcast_primitive};
use arrow::datatypes::Field;
use datafusion::common::{Result, internal_err};

use crate::descriptor::{ConstantKind, Descriptor, Example, Nulls, Parameter, SizeRatio, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::pad_to::padding;
use crate::reuse::Own;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "fill_null",
    version: 1,
    category: "number",
    summary: "Replaces nulls by a number",
    parameters: &[
        Parameter::input("x", TypeClass::Numeric, "The numbers"),
        Parameter::constant("value", ConstantKind::Number, "The number that replaces null").or("0"),
    ],
    returns: "the type of x, without nulls; Float32 for Float16, Float64 for decimals",
    nulls: Nulls::Filled,
    docs: "value must fit the type of x. Unlike with `coalesce`, the type never changes. NaN is a number and stays.",
    source: "TorchArrow's `fill_null`",
    examples: &[
        Example { sql: "fill_null(NULL, value => 0.5)", result: "0.5" },
        Example { sql: "fill_null(7)", result: "7" },
    ],
    size_ratio: SizeRatio::exactly(1.0),
    ..Descriptor::BASE
};

/// The operator `fill_null`.
#[derive(Debug)]
pub(crate) struct FillNull;

impl Operator for FillNull {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let data_type = arguments.field("x")?.data_type();
        padding(arguments, data_type)?;
        Ok(Field::new("filled", data_type.clone(), false))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.take_array("x")?;
        if array.null_count() == 0 {
            return Ok(array);
        }
        let value = padding(arguments, array.data_type())?.to_array()?;
        macro_rules! filled {
            ($t:ty) => {
                Ok(fill::<$t>(array, &value))
            };
        }
        downcast_primitive! {
            array.data_type() => (filled),
            other => internal_err!("fill_null got {other}, which its type class refuses")
        }
    }
}

fn fill<T: ArrowPrimitiveType>(array: ArrayRef, value: &ArrayRef) -> ArrayRef {
    let value = value.as_primitive::<T>().value(0);
    let Some(nulls) = array.nulls().cloned() else { return array };
    let mut own = Own::take_or_copy::<T>(array).without_nulls();
    let values = own.values_mut::<T>();
    (!nulls.inner()).set_indices().for_each(|row| values[row] = value);
    own.finish::<T>()
}
