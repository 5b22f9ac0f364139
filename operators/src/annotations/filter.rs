//! `filter_by_boxes`: the values whose boxes are still visible.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, internal_err};

use super::column::Groups;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::offset;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "filter_by_boxes",
    category: "box",
    summary: "Keeps the values of each list whose boxes have an area",
    parameters: &[
        Parameter::input("values", TypeClass::List, "A list with one value for each box: labels, or the boxes"),
        Parameter::input("boxes", TypeClass::Boxes, "The boxes, left, top, right, bottom"),
        Parameter::constant("min_size", ConstantKind::Number, "The minimum width and height of a box to keep")
            .or("0.0"),
    ],
    returns: "a list of the values' type",
    docs: "A box is kept if its width and its height are above 0 and at least min_size. Operators on boxes turn a box \
           that is no longer visible into `[0, 0, 0, 0]`, and keep its place. Call this operator last, once for each \
           list that belongs to the boxes, and last for the boxes. Lists of other lengths than the boxes are an \
           error. The row is null if either list is null.",
    source: "torchvision's `v2.SanitizeBoundingBoxes`",
    examples: &[
        Example { sql: "filter_by_boxes([7, 8], [[0, 0, 5, 5], [0, 0, 0, 0]])", result: "[7]" },
        Example { sql: "filter_by_boxes(boxes, boxes, min_size => 2)", result: "the boxes of at least 2 x 2" },
    ],
    ..Descriptor::BASE
};

/// The operator `filter_by_boxes`.
#[derive(Debug)]
pub(crate) struct FilterByBoxes;

impl Operator for FilterByBoxes {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let (DataType::List(item) | DataType::LargeList(item)) = arguments.field("values")?.data_type() else {
            return internal_err!("filter_by_boxes got no list, which its type class refuses");
        };
        let nullable = arguments.field("values")?.is_nullable() || arguments.field("boxes")?.is_nullable();
        Ok(Field::new("kept", DataType::List(Arc::clone(item)), nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let min_size = arguments.number("min_size")? as f32;
        let array = arguments.array("values")?;
        let array = match array.data_type() {
            DataType::LargeList(item) => cast(array, &DataType::List(Arc::clone(item)))?,
            _ => Arc::clone(array),
        };
        let list: &ListArray = array.as_list();
        let boxes = Groups::try_new(arguments.array("boxes")?)?;
        let nulls = NullBuffer::union(list.nulls(), boxes.nulls());
        let (mut kept, mut ends) = (Vec::with_capacity(list.values().len()), Vec::with_capacity(list.len() + 1));
        ends.push(0);
        for row in 0..list.len() {
            if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
                let (start, length) = (list.value_offsets()[row] as u64, list.value_length(row));
                let mut count = 0;
                for group in boxes.row(row) {
                    if is_visible(group, min_size) {
                        kept.push(start + count);
                    }
                    count += 1;
                }
                if count != length as u64 {
                    return exec_err!("{}: a row has {length} values for {count} boxes", DESCRIPTOR.name);
                }
            }
            ends.push(offset(DESCRIPTOR.name, kept.len())?);
        }
        let DataType::List(item) = list.data_type() else { return internal_err!("a list has another type") };
        let values = take(list.values(), &UInt64Array::from(kept), None)?;
        Ok(Arc::new(ListArray::try_new(Arc::clone(item), OffsetBuffer::new(ends.into()), values, nulls)?))
    }
}

fn is_visible(corners: Option<&[f32]>, min_size: f32) -> bool {
    let Some(&[left, top, right, bottom]) = corners else { return false };
    let is_large = |side: f32| side > 0.0 && side >= min_size;
    is_large(right - left) && is_large(bottom - top)
}
