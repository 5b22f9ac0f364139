//! `pad_to`: pads lists to the next of a few lengths.
//!
//! A global step of a length bucket may contain shorter rows, promoted from the previous bucket. All lists of a step
//! must still have one length. So the engine passes for each row the maximum length in its step.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, BooleanBufferBuilder, GenericListArray, OffsetSizeTrait,
    PrimitiveArray, downcast_primitive_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, exec_err, internal_err, resources_err};
use datafusion::scalar::ScalarValue;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "pad_to",
    version: 1,
    category: "list",
    summary: "Pads lists to the shortest given length that fits them",
    parameters: &[
        Parameter::input("list", TypeClass::NumberList, "The lists"),
        Parameter::constant("boundaries", ConstantKind::NumberList, "The lengths, ascending"),
        Parameter::constant("value", ConstantKind::Number, "The value of the padding").or("0"),
        Parameter::constant(
            "truncate",
            ConstantKind::Boolean,
            "Whether to truncate a list that is longer than all lengths",
        )
        .or("false"),
    ],
    returns: "the type of list; a variable-size list for one of fixed size",
    determinism: Determinism::StepLength,
    docs: "In a feed with `bucket_by_length`, a list is padded to the length of its global step's bucket. If the \
           boundaries here and there are the same, all lists of a step have one length, and the column reshapes to \
           rows x length. Elsewhere, in a condition or without buckets, the list's own length decides. A list longer \
           than the last boundary is an error, or is truncated to it with truncate. For lists of integers, value must \
           be an integer that fits the type. Null values in a list stay null. Null in, null out.",
    source: "Keras' `pad_sequences` with `padding='post'`, to a length for each bucket",
    examples: &[
        Example { sql: "pad_to([1, 2, 3], boundaries => [2, 4, 8])", result: "[1, 2, 3, 0]" },
        Example { sql: "pad_to([1, 2, 3], boundaries => [2], value => 9, truncate => true)", result: "[1, 2]" },
    ],
    ..Descriptor::BASE
};

/// The operator `pad_to`.
#[derive(Debug)]
pub(crate) struct PadTo;

impl Operator for PadTo {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("list")?;
        boundaries(arguments)?;
        padding(arguments, item(field.data_type())?.data_type())?;
        Ok(Field::new("list", field.data_type().clone(), field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.array("list")?;
        let lengths = PaddedLengths { boundaries: boundaries(arguments)?, truncate: arguments.flag("truncate")? };
        let value = padding(arguments, item(array.data_type())?.data_type())?.to_array()?;
        let step = |row: usize| arguments.step_length(row);
        match array.data_type() {
            DataType::List(item) => pad(array.as_list::<i32>(), item, &lengths, step, &value),
            DataType::LargeList(item) => pad(array.as_list::<i64>(), item, &lengths, step, &value),
            other => internal_err!("pad_to got {other}, which its type class refuses"),
        }
    }
}

fn item(list: &DataType) -> Result<&FieldRef> {
    match list {
        DataType::List(item) | DataType::LargeList(item) => Ok(item),
        other => internal_err!("pad_to got {other}, which its type class refuses"),
    }
}

fn boundaries(arguments: &Arguments) -> Result<Vec<usize>> {
    let numbers = arguments.numbers("boundaries")?;
    let is_length = |number: &f64| number.fract() == 0.0 && (1.0..=f64::from(i32::MAX)).contains(number);
    match numbers.is_empty() || !numbers.iter().all(is_length) || numbers.windows(2).any(|pair| pair[0] >= pair[1]) {
        true => arguments.refuse("boundaries", format_args!("must be ascending positive integers, got {numbers:?}")),
        false => Ok(numbers.into_iter().map(|number| number as usize).collect()),
    }
}

/// Returns the constant "value" as a value of this type.
pub(crate) fn padding(arguments: &Arguments, item: &DataType) -> Result<ScalarValue> {
    let number = arguments.number("value")?;
    let value = match item.is_integer() {
        false => Some(ScalarValue::Float64(Some(number))),
        // A float such as 5.0 is accepted if it is an integer small enough to be exact.
        true => {
            let exact = number.fract() == 0.0 && number.abs() <= (1u64 << 53) as f64;
            let integer = arguments.integer("value").ok().or(exact.then_some(number as i64));
            integer.map(|integer| ScalarValue::Int64(Some(integer)))
        }
    };
    let cast = value.and_then(|value| value.cast_to(item).ok());
    // A float that is too large becomes infinity instead of null.
    let holds = |value: &ScalarValue| match value {
        ScalarValue::Float16(Some(value)) => value.is_infinite() == number.is_infinite(),
        ScalarValue::Float32(Some(value)) => value.is_infinite() == number.is_infinite(),
        value => !value.is_null(),
    };
    match cast.filter(holds) {
        Some(value) => Ok(value),
        None => arguments.refuse("value", format_args!("must be a value that {item} can hold, got {number}")),
    }
}

struct PaddedLengths {
    boundaries: Vec<usize>,
    truncate: bool,
}

impl PaddedLengths {
    /// Returns the padded length of a list, in a step whose lists have at most `step` values.
    fn padded(&self, length: usize, step: u64) -> Result<usize> {
        let last = self.boundaries[self.boundaries.len() - 1];
        let needed = step.max(length as u64);
        match self.boundaries.get(self.boundaries.partition_point(|&boundary| (boundary as u64) < needed)) {
            Some(&boundary) => Ok(boundary),
            // Other lists of the step may be longer than the last boundary, but this one is not.
            None if self.truncate || length <= last => Ok(last),
            None => exec_err!(
                "pad_to: a list of {length} values is longer than the last boundary, {last}; truncate => true would cut it"
            ),
        }
    }
}

fn pad<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    item: &FieldRef,
    lengths: &PaddedLengths,
    step: impl Fn(usize) -> u64,
    value: &ArrayRef,
) -> Result<ArrayRef> {
    let mut padded = Vec::with_capacity(list.len());
    for row in 0..list.len() {
        let is_null = list.is_null(row);
        padded.push(if is_null { 0 } else { lengths.padded(list.value_length(row).as_usize(), step(row))? });
    }
    if O::from_usize(padded.iter().sum()).is_none() {
        return resources_err!("pad_to: a batch has more values than one array holds; lower the batch size");
    }
    let values = list.values().as_ref();
    let values = downcast_primitive_array!(
        values => pad_values(list, values, &padded, value),
        other => return internal_err!("pad_to got a list of {other}, which its type class refuses")
    );
    let offsets = OffsetBuffer::<O>::from_lengths(padded);
    Ok(Arc::new(GenericListArray::try_new(Arc::clone(item), offsets, values, list.nulls().cloned())?))
}

/// Returns the values of all rows, each padded to its length.
fn pad_values<T: ArrowPrimitiveType, O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    values: &PrimitiveArray<T>,
    padded: &[usize],
    value: &ArrayRef,
) -> ArrayRef {
    let total = padded.iter().sum();
    let mut out = vec![value.as_primitive::<T>().value(0); total];
    let mut valid = values.nulls().map(|nulls| (nulls, BooleanBufferBuilder::new(total)));
    let mut at = 0;
    for (row, &length) in padded.iter().enumerate() {
        let first = list.value_offsets()[row].as_usize();
        // A truncated row copies less than its length. A null row copies nothing.
        let taken = list.value_length(row).as_usize().min(length);
        out[at..at + taken].copy_from_slice(&values.values()[first..first + taken]);
        if let Some((nulls, valid)) = &mut valid {
            valid.append_buffer(&nulls.inner().slice(first, taken));
            valid.append_n(length - taken, true);
        }
        at += length;
    }
    let nulls = valid.map(|(_, mut valid)| NullBuffer::new(valid.finish()));
    Arc::new(PrimitiveArray::<T>::new(out.into(), nulls).with_data_type(values.data_type().clone()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{FixedSizeListArray, GenericListBuilder, LargeListArray, ListArray, StringBuilder, UInt64Array};
    use arrow::datatypes::{Float32Type, Int32Type, UInt8Type};

    use datafusion::logical_expr::{Expr, lit};
    use datafusion::prelude::col;

    use super::*;
    use crate::testing::{Column, column, select, udf};

    /// Calls `pad_to(x, boundaries, …)`. SQL without the engine's planner has no list constants.
    fn pad_to(column: Column, boundaries: &[f64], more: &[Expr]) -> std::result::Result<Column, String> {
        let boundaries: Vec<_> = boundaries.iter().map(|bound| ScalarValue::Float64(Some(*bound))).collect();
        let boundaries = lit(ScalarValue::List(ScalarValue::new_list(&boundaries, &DataType::Float64, true)));
        let arguments = [col("x"), boundaries].into_iter().chain(more.iter().cloned()).collect();
        select(udf("pad_to").call(arguments), vec![column])
    }

    fn check(column: Column, boundaries: &[f64], more: &[Expr], expect: impl Array + 'static) {
        let (_, got) = pad_to(column, boundaries, more).unwrap();
        let expect: ArrayRef = Arc::new(expect);
        assert_eq!(&got, &expect, "{boundaries:?} {more:?}");
    }

    fn integers(rows: &[Option<&[i32]>]) -> ListArray {
        let rows = rows.iter().map(|row| row.map(|row| row.iter().copied().map(Some).collect::<Vec<_>>()));
        ListArray::from_iter_primitive::<Int32Type, _, _>(rows)
    }

    #[test]
    fn lists_become_as_long_as_the_next_boundary() {
        let lists = || column("x", integers(&[Some(&[1, 2, 3]), Some(&[]), None, Some(&[4; 4]), Some(&[5; 5])]));
        let padded: &[Option<&[i32]>] =
            &[Some(&[1, 2, 3, 0]), Some(&[0, 0]), None, Some(&[4; 4]), Some(&[5, 5, 5, 5, 5, 0, 0, 0])];
        check(lists(), &[2.0, 4.0, 8.0], &[], integers(padded));
        let padded: &[Option<&[i32]>] =
            &[Some(&[1, 2, 3, -1]), Some(&[-1; 2]), None, Some(&[4; 4]), Some(&[5, 5, 5, 5, 5, -1, -1, -1])];
        check(lists(), &[2.0, 4.0, 8.0], &[lit(-1)], integers(padded));
        let cut: &[Option<&[i32]>] = &[Some(&[1, 2]), Some(&[0]), None, Some(&[4; 2]), Some(&[5; 2])];
        check(lists(), &[1.0, 2.0], &[lit(0), lit(true)], integers(cut));
        let wrong = pad_to(lists(), &[2.0, 4.0], &[]).unwrap_err();
        let expect = "pad_to: a list of 5 values is longer than the last boundary, 4; truncate => true would cut it";
        assert_eq!(wrong, expect);
    }

    #[test]
    fn a_step_decides_where_there_is_one() {
        let check = |steps: [u64; 4], truncate: bool, expect: &[Option<&[i32]>]| {
            let lists = column("x", integers(&[Some(&[1]), Some(&[2, 2]), None, Some(&[3; 3])]));
            let steps = (Field::new("step", DataType::UInt64, false), Arc::new(UInt64Array::from(steps.to_vec())) as _);
            let bounds = [2, 4].map(|bound| ScalarValue::Int64(Some(bound)));
            let bounds = lit(ScalarValue::List(ScalarValue::new_list(&bounds, &DataType::Int64, true)));
            let call = udf("pad_to").call(vec![col("x"), bounds, lit(0), lit(truncate), col("step")]);
            let (_, got) = select(call, vec![lists, steps]).unwrap();
            assert_eq!(got.as_list::<i32>(), &integers(expect));
        };
        let long: &[Option<&[i32]>] = &[Some(&[1, 0, 0, 0]), Some(&[2, 2, 0, 0]), None, Some(&[3, 3, 3, 0])];
        check([4; 4], false, long);
        check([3, 4, 3, 4], false, long);
        // Longer than every boundary of the feed.
        check([u64::MAX; 4], false, long);
        check([u64::MAX; 4], true, long);
        check([0; 4], false, &[Some(&[1, 0]), Some(&[2, 2]), None, Some(&[3, 3, 3, 0])]);
    }

    #[test]
    fn types_are_kept() {
        let floats = LargeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.5), None])]);
        let padded = [Some([Some(1.5), None, Some(0.25), Some(0.25)])];
        let padded = LargeListArray::from_iter_primitive::<Float32Type, _, _>(padded);
        check(column("x", floats), &[4.0], &[lit(0.25)], padded);
        let pairs = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>([Some([Some(1), Some(2)]), None], 2);
        let padded = [Some([Some(1), Some(2), Some(255)]), None];
        let padded = ListArray::from_iter_primitive::<UInt8Type, _, _>(padded);
        check(column("x", pairs), &[3.0], &[lit(255)], padded);
    }

    #[test]
    fn a_slice_and_what_lies_under_a_null_do_not_matter() {
        let lists = integers(&[Some(&[9; 9]), Some(&[1, 2, 3]), Some(&[7; 30]), Some(&[4])]);
        let nulls = NullBuffer::from(vec![true, true, false, true]);
        let (item, offsets, values, _) = lists.into_parts();
        let hidden = ListArray::new(item, offsets, values, Some(nulls)).slice(1, 3);
        check(column("x", hidden), &[4.0], &[], integers(&[Some(&[1, 2, 3, 0]), None, Some(&[4, 0, 0, 0])]));
    }

    #[test]
    fn constants_that_make_no_sense_are_refused() {
        let bytes = || column("x", ListArray::from_iter_primitive::<UInt8Type, _, _>([Some([Some(1)])]));
        let check = |boundaries: &[f64], more: &[Expr], expect: &str| {
            assert_eq!(pad_to(bytes(), boundaries, more).err().as_deref(), Some(expect));
        };
        let must = "pad_to: \"boundaries\" must be ascending positive integers, got";
        check(&[4.0, 2.0], &[], &format!("{must} [4.0, 2.0]"));
        check(&[4.0, 4.0], &[], &format!("{must} [4.0, 4.0]"));
        check(&[0.0, 4.0], &[], &format!("{must} [0.0, 4.0]"));
        check(&[1.5], &[], &format!("{must} [1.5]"));
        let must = "pad_to: \"value\" must be a value that UInt8 can hold, got";
        check(&[4.0], &[lit(256)], &format!("{must} 256"));
        check(&[4.0], &[lit(-1)], &format!("{must} -1"));
        check(&[4.0], &[lit(0.5)], &format!("{must} 0.5"));
        let must = "pad_to: \"list\" must be a list of numbers, got";
        let wrong = |column: Column| pad_to(column, &[4.0], &[]).unwrap_err();
        assert_eq!(wrong(column("x", UInt64Array::from(vec![1]))), format!("{must} UInt64"));
        let texts = GenericListBuilder::<i32, _>::new(StringBuilder::new()).finish();
        assert_eq!(wrong(column("x", texts)), format!("{must} List(Utf8)"));
    }
}
