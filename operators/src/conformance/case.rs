//! A call of an operator with generated arguments.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;

use super::columns::ROWS;
use crate::descriptor::ConstantKind;
use crate::keyed::Draws;
use crate::operator::{Operator, OperatorUdf};

/// A call with generated arguments.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) operator: &'static dyn Operator,
    pub(super) arguments: Vec<TestArgument>,
}

#[derive(Clone)]
pub(super) enum TestArgument {
    Column(FieldRef, ArrayRef),
    Constant(ScalarValue),
}

impl Case {
    /// Returns the columns for the operator's inputs.
    pub(super) fn columns(&self) -> Vec<&ArrayRef> {
        let arguments = self.arguments.iter().take(self.operator.descriptor().parameters.len());
        let columns = arguments.filter_map(|argument| match argument {
            TestArgument::Column(_, array) => Some(array),
            TestArgument::Constant(_) => None,
        });
        columns.collect()
    }

    fn udf(&self) -> ScalarUDF {
        ScalarUDF::from(OperatorUdf::new(self.operator))
    }

    fn fields(&self) -> Vec<FieldRef> {
        let field = |argument: &TestArgument| match argument {
            TestArgument::Column(field, _) => Arc::clone(field),
            TestArgument::Constant(value) => Arc::new(Field::new("constant", value.data_type(), false)),
        };
        self.arguments.iter().map(field).collect()
    }

    pub(super) fn plan(&self) -> Result<FieldRef, String> {
        let scalar = |argument: &'_ TestArgument| match argument {
            TestArgument::Column(..) => None,
            TestArgument::Constant(value) => Some(value.clone()),
        };
        let scalars: Vec<_> = self.arguments.iter().map(scalar).collect();
        let scalar_arguments: Vec<_> = scalars.iter().map(Option::as_ref).collect();
        let args = ReturnFieldArgs { arg_fields: &self.fields(), scalar_arguments: &scalar_arguments };
        self.udf().return_field_from_args(args).map_err(|e| e.strip_backtrace())
    }

    /// Runs the call on changed columns and compares the result with the planned field.
    pub(super) fn run(&self, change: impl Fn(ArrayRef) -> ArrayRef) -> Result<ArrayRef, String> {
        let return_field = self.plan()?;
        let mut number_rows = ROWS;
        let value = |argument: &TestArgument| match argument {
            TestArgument::Column(_, array) => {
                let array = change(Arc::clone(array));
                number_rows = array.len();
                ColumnarValue::Array(array)
            }
            TestArgument::Constant(value) => ColumnarValue::Scalar(value.clone()),
        };
        let args = self.arguments.iter().map(value).collect();
        let args = ScalarFunctionArgs {
            args,
            arg_fields: self.fields(),
            number_rows,
            return_field: Arc::clone(&return_field),
            config_options: Arc::new(ConfigOptions::default()),
        };
        let result = catch_unwind(AssertUnwindSafe(|| self.udf().invoke_with_args(args)))
            .map_err(|_| "panicked".to_owned())?
            .and_then(|value| value.into_array(number_rows))
            .map_err(|e| e.strip_backtrace())?;
        ensure!(
            result.data_type() == return_field.data_type(),
            "{} was planned, {} came",
            return_field.data_type(),
            result.data_type()
        );
        ensure!(return_field.is_nullable() || result.null_count() == 0, "nulls in a column planned without");
        Ok(result)
    }
}

/// Greater defaults of positive integers are limits.
const LIMITS_MIN: i64 = 1_000;

/// Returns a constant other than the default. Numbers rise with the position, so a minimum stays below its maximum.
/// Numbers with a default stay near it, since only the operator knows their range.
pub(super) fn constant(
    kind: ConstantKind,
    position: usize,
    default: Option<ScalarValue>,
    draws: &mut Draws,
) -> ScalarValue {
    match (kind, default) {
        // A large default is a limit, which the generated values should keep.
        (ConstantKind::PositiveInteger, Some(ScalarValue::Int64(Some(limit)))) if limit > LIMITS_MIN => {
            ScalarValue::Int64(Some(limit - draws.below(40) as i64))
        }
        (ConstantKind::PositiveInteger, _) => ScalarValue::Int64(Some(1 + draws.below(40) as i64)),
        (ConstantKind::Integer, None) => ScalarValue::Int32(Some(draws.below(1 << 30) as i32)),
        (ConstantKind::Boolean, _) => ScalarValue::Boolean(Some(draws.below(2) == 1)),
        (ConstantKind::Number, None) => ScalarValue::Int64(Some(position as i64)),
        (_, Some(default)) => default,
        (ConstantKind::NumberList, None) => {
            let ascending = [3, 5, 8].map(|number| ScalarValue::Int64(Some(number)));
            ScalarValue::List(ScalarValue::new_list(&ascending, &DataType::Int64, true))
        }
        (ConstantKind::NumberOrList, None) => ScalarValue::Int64(Some(position as i64)),
        (ConstantKind::Categories, None) => {
            let words = ["red", "Ñandú"].map(ScalarValue::from);
            ScalarValue::List(ScalarValue::new_list(&words, &DataType::Utf8, true))
        }
        (ConstantKind::Text, None) => ScalarValue::from("text"),
        (ConstantKind::Template, None) => {
            ScalarValue::from("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
        }
        (ConstantKind::File | ConstantKind::Vocabulary, None) => {
            ScalarValue::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tokenizers/gpt2.json"))
        }
    }
}

/// The numbers of all rows in a random order.
pub(super) fn permutation(draws: &mut Draws) -> UInt32Array {
    let mut order: Vec<u32> = (0..ROWS as u32).collect();
    for i in (1..ROWS).rev() {
        order.swap(i, draws.below(i as u64 + 1) as usize);
    }
    UInt32Array::from(order)
}
