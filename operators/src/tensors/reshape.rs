//! `reshape`: the values of tensors or lists in another shape.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, internal_err};

use super::{bytes, field, len, values, whole};
use forebay_arrays::FixedShapeTensor;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, SizeRatio, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "reshape",
    version: 1,
    category: "tensor",
    summary: "Changes the shape of tensors, or makes tensors from lists",
    parameters: &[
        Parameter::input("tensor", TypeClass::TensorOrList, "The tensors, or lists of one length"),
        Parameter::constant(
            "shape",
            ConstantKind::NumberList,
            "The dimensions of the result; for tensors, one may be -1",
        ),
    ],
    returns: "a tensor of this shape and the values' type",
    docs: "The values keep their order; the last dimension varies fastest. -1 stands for the size that the other \
           dimensions leave. A list is a bad row if its length does not match the shape, or if it contains a null. A \
           tensor of height x width x 3 is an image again. Null in, null out.",
    source: "NumPy's `reshape` in C order",
    examples: &[Example { sql: "reshape([1, 2, 3, 4, 5, 6], shape => [2, 3])", result: "[2,3] 1 2 3 4 5 6" }],
    size_ratio: SizeRatio::exactly(1.0),
    ..Descriptor::BASE
};

/// Maximum number of dimensions.
const RANK_MAX: usize = 8;

/// The operator `reshape`.
#[derive(Debug)]
pub(crate) struct Reshape;

impl Operator for Reshape {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        field(&target(arguments)?, "tensor", arguments.field("tensor")?.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let target = target(arguments)?;
        let array = arguments.array("tensor")?;
        let size = len(&target.shape).unwrap_or(0);
        let (buffer, width) = match array.data_type() {
            DataType::List(_) => of_lists(array.as_list::<i32>(), size)?,
            DataType::LargeList(_) => of_lists(array.as_list::<i64>(), size)?,
            DataType::FixedSizeList(..) => bytes(whole(DESCRIPTOR.name, array)?.values())?,
            other => return internal_err!("reshape got {other}, which its type class refuses"),
        };
        let values = values(&target.value, buffer, width)?;
        let item = Arc::new(Field::new_list_field(target.value, false));
        Ok(Arc::new(FixedSizeListArray::try_new(item, size as i32, values, array.nulls().cloned())?))
    }
}

fn target(arguments: &Arguments) -> Result<FixedShapeTensor> {
    let field = arguments.field("tensor")?;
    let shape = arguments.numbers("shape")?;
    let is_side = |x: &f64| x.fract() == 0.0 && (*x == -1.0 || (1.0..=f64::from(i32::MAX)).contains(x));
    if let Some(bad) = shape.iter().find(|x| !is_side(x)) {
        return arguments.refuse("shape", format_args!("must be positive whole numbers, one of them -1, got {bad}"));
    }
    if shape.is_empty() || shape.len() > RANK_MAX {
        return arguments.refuse("shape", format_args!("must have 1 to {RANK_MAX} numbers, got {}", shape.len()));
    }
    let known: Vec<usize> = shape.iter().filter(|x| **x > 0.0).map(|x| *x as usize).collect();
    let product = len(&known).filter(|len| i32::try_from(*len).is_ok());
    let Some(product) = product else {
        return arguments.refuse("shape", format_args!("has more than {} values", i32::MAX));
    };
    let source = match (FixedShapeTensor::of_numbers(field), field.data_type()) {
        (Some(source), _) => source,
        (None, DataType::List(item) | DataType::LargeList(item)) => match shape.len() == known.len() {
            true => FixedShapeTensor::new(item.data_type().clone(), vec![product]),
            false => return arguments.refuse("shape", "cannot have -1 for lists, whose length no type tells"),
        },
        (None, other) => return internal_err!("reshape got {other}, which its type class refuses"),
    };
    let have = len(&source.shape).unwrap_or(0);
    let rest = match shape.len() - known.len() {
        0 if product == have => 0,
        1 if have.is_multiple_of(product) => have / product,
        0 | 1 => {
            let problem = format!("has {product} values, and \"tensor\" is {source}");
            return arguments.refuse("shape", problem);
        }
        _ => return arguments.refuse("shape", "has more than one -1"),
    };
    Ok(source.with_shape(shape.iter().map(|x| if *x > 0.0 { *x as usize } else { rest }).collect()))
}

/// Returns the values of lists that have `size` values each, with zeros for nulls. Contiguous lists are not copied.
fn of_lists<O: OffsetSizeTrait>(list: &GenericListArray<O>, size: usize) -> Result<(Buffer, usize)> {
    let offsets = list.value_offsets();
    for (row, range) in offsets.windows(2).enumerate() {
        let (start, length) = (range[0].as_usize(), (range[1] - range[0]).as_usize());
        if !list.is_null(row) && length != size {
            return exec_err!("reshape: a list has {length} values, and the shape {size}");
        }
        let has_null = |nulls: &NullBuffer| nulls.slice(start, size).null_count() > 0;
        if !list.is_null(row) && list.values().nulls().is_some_and(has_null) {
            return exec_err!("reshape: a list has a null in it");
        }
    }
    let (buffer, width) = bytes(list.values())?;
    let start = |row: usize| offsets[row].as_usize() * width;
    if list.null_count() == 0 {
        return Ok((buffer.slice_with_length(start(0), list.len() * size * width), width));
    }
    let mut out = MutableBuffer::from_len_zeroed(list.len() * size * width);
    for (row, out) in out.as_slice_mut().chunks_exact_mut(size * width).enumerate() {
        if !list.is_null(row) {
            out.copy_from_slice(&buffer[start(row)..start(row) + size * width]);
        }
    }
    Ok((out.into(), width))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float32Array, LargeListArray, ListArray};
    use arrow::datatypes::{Float32Type, Int32Type};

    use super::*;
    use crate::testing::{call, column, decoded, image, noise};

    fn lists() -> ListArray {
        let row = |from: i32| Some((from..from + 4).map(Some).collect::<Vec<_>>());
        ListArray::from_iter_primitive::<Int32Type, _, _>([row(9), row(1), None, row(5)]).slice(1, 3)
    }

    #[test]
    fn lists_become_tensors() {
        let (field, got) = call("reshape(x, [2, 2])", vec![column("x", lists())]).unwrap();
        assert_eq!(field.metadata()["ARROW:extension:metadata"], r#"{"shape":[2,2]}"#);
        let got = got.as_fixed_size_list();
        assert_eq!(got.values().as_primitive::<Int32Type>().values()[..], [1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8]);
        assert!(got.is_null(1) && got.null_count() == 1);
        let large = LargeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.5), Some(2.5)])]);
        let (_, got) = call("reshape(x, [2, 1])", vec![column("x", large)]).unwrap();
        let values = Float32Array::from(vec![1.5, 2.5]);
        assert_eq!(got.as_fixed_size_list().values().as_primitive::<Float32Type>(), &values);
    }

    #[test]
    fn an_image_goes_there_and_back() {
        let (field, flat) = call("reshape(image, [-1])", vec![noise()]).unwrap();
        assert_eq!(field.metadata()["ARROW:extension:metadata"], r#"{"shape":[351]}"#);
        let back = call("reshape(image, [9, -1, 3])", vec![(field.with_name("image"), flat)]).unwrap();
        assert_eq!(image(&back, 0), image(&noise(), 0));
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let check = |text: &str, expect: &str| assert_eq!(call(text, vec![noise()]).unwrap_err(), expect);
        let tensor = "\"tensor\" is a UInt8 tensor of 9 x 13 x 3";
        check("reshape(image, [9, 13])", &format!("reshape: \"shape\" has 117 values, and {tensor}"));
        check("reshape(image, [-1, 4])", &format!("reshape: \"shape\" has 4 values, and {tensor}"));
        check("reshape(image, [-1, -1, 9])", "reshape: \"shape\" has more than one -1");
        let expect = "reshape: \"shape\" must be positive whole numbers, one of them -1, got 0";
        check("reshape(image, [0, 351])", expect);
        check("reshape(image, [100000, 100000])", "reshape: \"shape\" has more than 2147483647 values");
        let check = |text: &str, expect: &str| {
            assert_eq!(call(text, vec![column("x", lists())]).unwrap_err(), expect);
        };
        check("reshape(x, [3])", "reshape: a list has 4 values, and the shape 3");
        check("reshape(x, [2, -1])", "reshape: \"shape\" cannot have -1 for lists, whose length no type tells");
        let images = decoded(&["colour.jpg"]);
        let expect = "reshape: \"tensor\" must be a tensor of one fixed shape or a list of numbers, got a UInt8 tensor of \
                      variable shape";
        assert_eq!(call("reshape(image, [3])", vec![images]).unwrap_err(), expect);
        let nulls = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None])]);
        assert_eq!(call("reshape(x, [2])", vec![column("x", nulls)]).unwrap_err(), "reshape: a list has a null in it");
    }
}
