//! `random_choice`: one element of each list.

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, OffsetSizeTrait, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "random_choice",
    category: "random",
    summary: "Draws one element of each row's list, each equally likely",
    parameters: &[Parameter::input("list", TypeClass::List, "The lists, such as captions or crops"), Parameter::KEY],
    returns: "the type of the list's elements",
    determinism: Determinism::KeyedRandom,
    docs: "The position depends only on the feed's seed, the epoch, the sample and the call. With one key, calls on \
           lists of one length take the same position. An empty list gives null. A null element may be drawn. Null \
           in, null out.",
    source: "Python's `random.choice`, with the draws of the row's random key",
    examples: &[
        Example { sql: "random_choice(captions)", result: "another caption in each epoch" },
        Example { sql: "random_choice([0.5, 1.0, 2.0])", result: "one of three scales" },
    ],
    ..Descriptor::BASE
};

/// The operator `random_choice`.
#[derive(Debug)]
pub(crate) struct RandomChoice;

impl Operator for RandomChoice {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("list")?;
        let (DataType::List(item) | DataType::LargeList(item)) = field.data_type() else {
            return internal_err!("random_choice got {}, which its type class refuses", field.data_type());
        };
        Ok(item.as_ref().clone().with_name("choice").with_nullable(true))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.array("list")?;
        match array.data_type() {
            DataType::List(_) => choices(arguments, array.as_list::<i32>()),
            DataType::LargeList(_) => choices(arguments, array.as_list::<i64>()),
            other => internal_err!("random_choice got {other}, which its type class refuses"),
        }
    }
}

fn choices<O: OffsetSizeTrait>(arguments: &Arguments, list: &GenericListArray<O>) -> Result<ArrayRef> {
    let offsets = list.value_offsets();
    let position = |row: usize| {
        let (start, end) = (offsets[row].as_usize(), offsets[row + 1].as_usize());
        if list.is_null(row) || start == end {
            return Ok(None);
        }
        Ok(Some(start as u64 + arguments.draws(row)?.below((end - start) as u64)))
    };
    let positions = (0..list.len()).map(position).collect::<Result<UInt64Array>>()?;
    Ok(take(list.values(), &positions, None)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, ListArray};
    use arrow::datatypes::Int32Type;
    use datafusion::prelude::col;

    use super::*;
    use crate::testing::{column, keyed, keys, select};

    #[test]
    fn every_element_is_drawn_equally_often() {
        let lists = (0..6_000).map(|_| Some([Some(3), Some(5), None]));
        let lists = column("x", ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let (_, got) = select(keyed("random_choice", vec![col("x")]), vec![lists, keys(6_000)]).unwrap();
        let count = |value| got.as_primitive::<Int32Type>().iter().filter(|got| *got == value).count();
        for value in [Some(3), Some(5), None] {
            assert!((1_850..2_150).contains(&count(value)), "{value:?}: {}", count(value));
        }
    }

    #[test]
    fn no_element_is_null() {
        let lists = [Some(vec![]), None, Some(vec![Some(7)])];
        let lists = column("x", ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let (field, got) = select(keyed("random_choice", vec![col("x")]), vec![lists, keys(3)]).unwrap();
        assert!(field.is_nullable());
        assert_eq!(got.as_primitive::<Int32Type>(), &Int32Array::from(vec![None, None, Some(7)]));
    }
}
