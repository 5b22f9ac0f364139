//! `multi_hot`: maps a list of indices to a list with a 1 at each.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, UInt8Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::{DataFusionError, Result};

use super::one_hot::SIZE_MAX;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "multi_hot",
    category: "category",
    summary: "Converts a list of indices to a list of zeros with a one at each of them",
    parameters: &[
        Parameter::input("indices", TypeClass::IntegerList, "The indices, such as the labels of a sample"),
        Parameter::constant("size", ConstantKind::PositiveInteger, "The length of the result's lists, up to 65536"),
    ],
    returns: "FixedSizeList(UInt8) of that size",
    docs: "An index may occur several times. An index that is null, below 0 or not below size is left out. An empty \
           list gives only zeros. Null in, null out.",
    source: "Keras' `CategoryEncoding` with `multi_hot`, as bytes",
    examples: &[Example { sql: "multi_hot([0, 2], size => 4)", result: "[1, 0, 1, 0]" }],
    ..Descriptor::BASE
};

/// The operator `multi_hot`.
#[derive(Debug)]
pub(crate) struct MultiHot;

impl Operator for MultiHot {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let size = arguments.positive("size")?;
        if size > SIZE_MAX {
            return arguments.refuse("size", format_args!("must be at most {SIZE_MAX}, got {size}"));
        }
        let list = DataType::new_fixed_size_list(DataType::UInt8, size as i32, true);
        Ok(Field::new("multi_hot", list, arguments.field("indices")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let size = arguments.positive("size")?;
        let lists = cast(arguments.array("indices")?, &DataType::new_list(DataType::Int64, true))?;
        let lists = lists.as_list::<i32>();
        let indices = lists.values().as_primitive::<Int64Type>();
        let total = lists.len().checked_mul(size).filter(|total| *total <= i32::MAX as usize).ok_or_else(|| {
            DataFusionError::ResourcesExhausted(format!(
                "multi_hot: the lists of one batch exceed {} values; use smaller batches",
                i32::MAX
            ))
        })?;
        let mut values = vec![0; total];
        for (row, out) in values.chunks_exact_mut(size).enumerate().filter(|(row, _)| lists.is_valid(*row)) {
            let (start, end) = (lists.value_offsets()[row] as usize, lists.value_offsets()[row + 1] as usize);
            for at in (start..end).filter(|at| indices.is_valid(*at)) {
                if let Some(place) = usize::try_from(indices.value(at)).ok().and_then(|index| out.get_mut(index)) {
                    *place = 1;
                }
            }
        }
        let item = Arc::new(Field::new_list_field(DataType::UInt8, true));
        let values = Arc::new(UInt8Array::from(values));
        Ok(Arc::new(FixedSizeListArray::try_new(item, size as i32, values, lists.nulls().cloned())?))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::ListArray;
    use arrow::datatypes::{Int32Type, UInt8Type};

    use super::*;
    use crate::testing::{column, sql};

    #[test]
    fn each_index_is_a_one() {
        let lists = [Some(vec![Some(0), Some(2), Some(2)]), Some(vec![None, Some(-1), Some(3)]), Some(vec![]), None];
        let lists = column("x", ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let (_, got) = sql("multi_hot(x, 3)", vec![lists]).unwrap();
        let got = got.as_fixed_size_list();
        assert_eq!(got.values().as_primitive::<UInt8Type>().values()[..9], [1, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert!(got.is_valid(2) && got.is_null(3));
    }

    #[test]
    fn a_size_over_the_limit_is_refused() {
        let lists = column("x", ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]));
        let got = sql("multi_hot(x, 70000)", vec![lists]).unwrap_err();
        assert_eq!(got, "multi_hot: \"size\" must be at most 65536, got 70000");
    }
}
