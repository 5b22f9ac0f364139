//! `index_of`: the index of a value in a list.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::vocabulary::Vocabulary;
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "index_of",
    version: 1,
    category: "category",
    summary: "Maps values to their indices in a list, such as classes to labels",
    parameters: &[
        Parameter::input("value", TypeClass::Category, "The values"),
        Parameter::constant("values", ConstantKind::Categories, "The values in the order of their indices"),
        Parameter::constant("other", ConstantKind::Integer, "The result for values that are not in the list").or("-1"),
    ],
    returns: "Int64, from 0",
    docs: "The first index is 0; SQL's `array_position` begins with 1. Values are compared like by `vocab_apply`: \
           strings byte by byte, and the integer 7 equals the string '7'. A list with a repeated value is refused. For \
           a list that is too long to write out, use a file with `vocab_apply`. Null in, null out.",
    source: "Python's `list.index`, with a result for missing values",
    examples: &[
        Example { sql: "index_of('dog', values => ['cat', 'dog'])", result: "1" },
        Example { sql: "index_of(30, values => [10, 20, 30])", result: "2" },
        Example { sql: "index_of('cow', values => ['cat', 'dog'], other => -100)", result: "-100" },
    ],
    takes_views: true,
    ..Descriptor::BASE
};

/// The operator `index_of`.
#[derive(Debug)]
pub(crate) struct IndexOf;

impl Operator for IndexOf {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        vocabulary(arguments)?;
        Ok(Field::new("index", DataType::Int64, arguments.field("value")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let other = arguments.integer("other")?;
        let array = arguments.array("value")?;
        let places = vocabulary(arguments)?.places(array, |place| place.map_or(other, i64::from))?;
        Ok(Arc::new(Int64Array::try_new(places.into(), array.nulls().cloned())?))
    }
}

fn vocabulary(arguments: &Arguments) -> Result<Vocabulary> {
    let values = match arguments.texts("values") {
        Ok(texts) => texts,
        Err(_) => arguments.numbers("values")?.iter().map(|number| (*number as i64).to_string()).collect(),
    };
    Vocabulary::new(values.iter().map(String::as_str)).or_else(|problem| arguments.refuse("values", problem))
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, StringViewArray, UInt64Array};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::operator::OperatorUdf;
    use crate::testing::{Column, column, select};
    use datafusion::logical_expr::{Expr, ScalarUDF, lit};
    use datafusion::prelude::col;
    use datafusion::scalar::ScalarValue;

    fn run(values: &[ScalarValue], x: Column) -> std::result::Result<Vec<Option<i64>>, String> {
        let list: Expr = lit(ScalarValue::List(ScalarValue::new_list(values, &values[0].data_type(), true)));
        let udf = ScalarUDF::from(OperatorUdf::new(&IndexOf));
        let (_, got) = select(udf.call(vec![col("x"), list, lit(-9)]), vec![x])?;
        Ok(got.as_primitive::<Int64Type>().iter().collect())
    }

    #[test]
    fn places_begin_with_zero() {
        let words = ["cat", "dog", "7"].map(ScalarValue::from);
        let x = column("x", StringViewArray::from(vec![Some("dog"), None, Some("cow"), Some("cat"), Some("")]));
        assert_eq!(run(&words, x).unwrap(), [Some(1), None, Some(-9), Some(0), Some(-9)]);
        let x = || column("x", UInt64Array::from(vec![7, 20, u64::MAX]));
        assert_eq!(run(&words, x()).unwrap(), [Some(2), Some(-9), Some(-9)]);
        let numbers = [20, 7].map(|n| ScalarValue::Int64(Some(n)));
        assert_eq!(run(&numbers, x()).unwrap(), [Some(1), Some(0), Some(-9)]);
    }

    #[test]
    fn a_list_counts_each_value_once() {
        let x = || column("x", UInt64Array::from(vec![7]));
        let twice = ["a", "a"].map(ScalarValue::from);
        assert_eq!(run(&twice, x()).unwrap_err(), "index_of: \"values\" has the entry \"a\" twice");
        let fraction = [ScalarValue::Float64(Some(0.5))];
        let expect = "index_of: \"values\" must be a list of strings or of integers, got [0.5]";
        assert_eq!(run(&fraction, x()).unwrap_err(), expect);
    }
}
