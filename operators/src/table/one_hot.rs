//! `one_hot`: maps an index to a list with a single 1.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, UInt8Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{DataFusionError, Result};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "one_hot",
    version: 1,
    category: "category",
    summary: "Converts an index to a list of zeros with a one at that index",
    parameters: &[
        Parameter::input("index", TypeClass::Integer, "The indices"),
        Parameter::constant("size", ConstantKind::PositiveInteger, "The length of the lists, up to 65536"),
    ],
    returns: "FixedSizeList(UInt8) of that size",
    docs: "An index below 0, or not below size, gives only zeros. Null in, null out.",
    source: "TensorFlow's `one_hot`, as bytes",
    examples: &[Example { sql: "one_hot(1, size => 3)", result: "[0, 1, 0]" }],
    ..Descriptor::BASE
};

pub(super) const SIZE_MAX: usize = 1 << 16;

/// The operator `one_hot`.
#[derive(Debug)]
pub(crate) struct OneHot;

impl Operator for OneHot {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("index")?;
        let size = arguments.positive("size")?;
        if size > SIZE_MAX {
            return arguments.refuse("size", format_args!("must be at most {SIZE_MAX}, got {size}"));
        }
        let list = DataType::new_fixed_size_list(DataType::UInt8, size as i32, true);
        Ok(Field::new("one_hot", list, field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let size = arguments.positive("size")?;
        let indices = cast(arguments.array("index")?, &DataType::Int64)?;
        let indices = indices.as_primitive::<Int64Type>();
        let total = indices.len().checked_mul(size).filter(|total| *total <= i32::MAX as usize).ok_or_else(|| {
            DataFusionError::ResourcesExhausted(format!(
                "one_hot: the lists of one batch exceed {} values; use smaller batches",
                i32::MAX
            ))
        })?;
        let mut values = vec![0; total];
        for (list, index) in values.chunks_exact_mut(size).zip(indices) {
            let index = index.and_then(|index| usize::try_from(index).ok());
            if let Some(place) = index.and_then(|index| list.get_mut(index)) {
                *place = 1;
            }
        }
        let item = Arc::new(Field::new_list_field(DataType::UInt8, true));
        let values = Arc::new(UInt8Array::from(values));
        Ok(Arc::new(FixedSizeListArray::try_new(item, size as i32, values, indices.nulls().cloned())?))
    }
}
