//! SQL's functions that make lists of any length, with a limit.
//!
//! DataFusion makes any list, and the process would end for want of memory. It computes constants while it plans.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::compute::kernels::length::length;
use arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::{Result, exec_err};
use datafusion::functions_nested::all_default_nested_functions;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use forebay_arrays::column_bytes;

/// The most elements of a list, with those of its lists.
const LIST_LENGTH_MAX: i64 = 16 << 20;
/// The size of an element of a value that is copied.
const ELEMENT_BYTES: u64 = 8;

/// Returns DataFusion's functions that make long lists in this form, to be registered under the same names.
pub fn list_functions() -> Vec<ScalarUDF> {
    let all = all_default_nested_functions().into_iter();
    let lengthening = all.filter(|function| length_of(function.name()).is_some());
    lengthening.map(|original| ScalarUDF::from(ListFunction { original })).collect()
}

/// The length of a list that a function makes, by the row's arguments: integers as they are, lists by their lengths,
/// others as `None`.
type Length = fn(&[Option<i64>]) -> Option<i64>;

fn length_of(name: &str) -> Option<Length> {
    Some(match name {
        // The first argument is the size of what is copied.
        "array_repeat" => |row| Some(row.first()?.unwrap_or(1).max(1).saturating_mul((*row.get(1)?)?)),
        "array_resize" => |row| *row.get(1)?,
        "range" | "generate_series" => |row| match row {
            [stop] => *stop,
            [start, stop, step @ ..] => {
                let [start, stop, step] = [*start, *stop, step.first().copied().unwrap_or(Some(1))];
                let length = (i128::from(stop?) - i128::from(start?)).checked_div(step?.into())?;
                Some(i64::try_from(length).unwrap_or(i64::MAX))
            }
            [] => None,
        },
        _ => return None,
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ListFunction {
    original: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for ListFunction {
    fn name(&self) -> &str {
        self.original.name()
    }

    fn aliases(&self) -> &[String] {
        self.original.aliases()
    }

    fn signature(&self) -> &Signature {
        self.original.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.original.coerce_types(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.original.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.original.return_field_from_args(arguments)
    }

    fn is_strict(&self) -> bool {
        self.original.is_strict()
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.original.simplify(arguments, context)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.documentation()
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(length) = longest(self.name(), &arguments)?.filter(|length| *length > LIST_LENGTH_MAX) {
            let name = self.name();
            return exec_err!("{name}: a list of {length} elements is too long: {LIST_LENGTH_MAX} is the most");
        }
        self.original.invoke_with_args(arguments)
    }
}

/// The greatest length of the lists that a function would make of these arguments.
fn longest(name: &str, arguments: &ScalarFunctionArgs) -> Result<Option<i64>> {
    let Some(length_of) = length_of(name) else { return Ok(None) };
    // Constants are one row.
    let rows = match arguments.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_))) {
        true => 1,
        false => arguments.number_rows,
    };
    let columns = arguments.args.iter().enumerate().map(|(at, value)| {
        let column = value.to_array(rows)?;
        if at == 0 && name == "array_repeat" { Ok(Some(sizes(&column))) } else { integers(&column) }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let of_row = |row| {
        let numbers: Vec<Option<i64>> =
            columns.iter().map(|column| column.as_ref().and_then(|of| at(of, row))).collect();
        length_of(&numbers)
    };
    Ok((0..rows).filter_map(of_row).max())
}

/// The size of each value in elements of 8 bytes, for a function that copies it.
fn sizes(column: &ArrayRef) -> ArrayRef {
    let size = |row| i64::try_from(column_bytes(&column.slice(row, 1)) / ELEMENT_BYTES).unwrap_or(i64::MAX).max(1);
    Arc::new((0..column.len()).map(size).collect::<Int64Array>())
}

/// The column as integers: of lists their lengths, and of other types nothing.
fn integers(column: &ArrayRef) -> Result<Option<ArrayRef>> {
    let numbers = match column.data_type() {
        of if of.is_integer() => Arc::clone(column),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => length(column)?,
        _ => return Ok(None),
    };
    Ok(Some(cast(&numbers, &DataType::Int64)?))
}

fn at(column: &ArrayRef, row: usize) -> Option<i64> {
    let numbers = column.as_primitive::<Int64Type>();
    numbers.is_valid(row).then(|| numbers.value(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_from_the_arguments() {
        let length = |name: &str, row: &[i64]| {
            let row: Vec<Option<i64>> = row.iter().copied().map(Some).collect();
            length_of(name).unwrap()(&row)
        };
        assert_eq!(length("array_repeat", &[3, 10]), Some(30));
        assert_eq!(length("array_resize", &[3, 10, 0]), Some(10));
        assert_eq!(length("range", &[7]), Some(7));
        assert_eq!(length("range", &[1, 11]), Some(10));
        assert_eq!(length("generate_series", &[10, 0, -2]), Some(5));
        assert_eq!(length("range", &[1, 11, 0]), None, "DataFusion refuses it");
        assert_eq!(length("range", &[i64::MAX, i64::MIN, -1]), Some(i64::MAX));
        assert_eq!(length_of("array_repeat").unwrap()(&[None, Some(4)]), Some(4));
        assert_eq!(length_of("array_resize").unwrap()(&[Some(4), None]), None);
    }

    #[test]
    fn all_functions_are_there() {
        let mut names: Vec<String> = list_functions().iter().map(|function| function.name().to_owned()).collect();
        names.sort();
        assert_eq!(names, ["array_repeat", "array_resize", "generate_series", "range"]);
    }
}
