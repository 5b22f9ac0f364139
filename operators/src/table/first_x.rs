//! `first_x`: the first values of lists.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, UInt64Array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, SizeRatio, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "first_x",
    version: 1,
    category: "list",
    summary: "Keeps the first values of lists",
    parameters: &[
        Parameter::input("list", TypeClass::NumberList, "The lists"),
        Parameter::constant("x", ConstantKind::PositiveInteger, "The maximum number of values to keep"),
    ],
    returns: "the type of list; a variable-size list for one of fixed size",
    docs: "A shorter list stays unchanged. Null values count, and stay null. Null in, null out.",
    source: "TorchArrow's and DPP's `firstx`",
    examples: &[Example { sql: "first_x([5, 6, 7], x => 2)", result: "[5, 6]" }],
    size_ratio: SizeRatio::at_most(1.0),
    ..Descriptor::BASE
};

/// The operator `first_x`.
#[derive(Debug)]
pub(crate) struct FirstX;

impl Operator for FirstX {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("list")?;
        Ok(Field::new("list", field.data_type().clone(), field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let most = arguments.positive("x")?;
        let array = arguments.array("list")?;
        match array.data_type() {
            DataType::List(item) => first(array.as_list::<i32>(), item, most),
            DataType::LargeList(item) => first(array.as_list::<i64>(), item, most),
            other => internal_err!("first_x got {other}, which its type class refuses"),
        }
    }
}

fn first<O: OffsetSizeTrait>(list: &GenericListArray<O>, item: &FieldRef, most: usize) -> Result<ArrayRef> {
    let length = |row: usize| if list.is_null(row) { 0 } else { list.value_length(row).as_usize().min(most) };
    let mut indices = Vec::with_capacity(list.values().len().min(list.len().saturating_mul(most)));
    for (row, start) in list.value_offsets()[..list.len()].iter().enumerate() {
        let start = start.as_usize();
        indices.extend((start..start + length(row)).map(|at| at as u64));
    }
    let values = take(list.values(), &UInt64Array::from(indices), None)?;
    let offsets = OffsetBuffer::<O>::from_lengths((0..list.len()).map(length));
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, values, list.nulls().cloned())?))
}
