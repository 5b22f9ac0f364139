//! SQL's arithmetic with an error instead of a wrapped result.
//!
//! DataFusion's `+`, `-` and `*` of integers wrap around: 16 * 16 is 0 in 8 bits. The rows of such results look like
//! all others, so a training job never learns of them. [`checked_arithmetic`] replaces these operators by functions
//! that fail, so that the row becomes a bad row, as with a cast that fails. The types of results are DataFusion's.
//!
//! Floats keep DataFusion's operators, because IEEE 754 defines their results: infinities and NaN.

use arrow::array::{Array, ArrayRef, AsArray, Datum, Scalar};
use arrow::compute::kernels::numeric::{add, div, mul, neg, rem, sub};
use arrow::datatypes::{DataType, Decimal128Type, Decimal256Type, DecimalType};
use arrow::error::ArrowError;
use arrow::util::display::array_value_to_string;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// Replaces arithmetic that may overflow or divide by zero in `expr`, an expression over `schema` whose types are
/// resolved.
///
/// # Errors
/// DataFusion's, for expressions without a type.
pub fn checked_arithmetic(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| {
        let function = match &expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                Function::of(*op, &left.get_type(schema)?, &right.get_type(schema)?)
            }
            Expr::Negative(of) if !of.get_type(schema)?.is_floating() => Some(Function::Negate),
            _ => None,
        };
        let Some(function) = function else { return Ok(Transformed::no(expr)) };
        let arguments = match expr {
            Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![*left, *right],
            Expr::Negative(of) => vec![*of],
            _ => return internal_err!("only these two are replaced"),
        };
        Ok(Transformed::yes(ScalarUDF::from(Checked::new(function)).call(arguments)))
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Function {
    Binary(Operator),
    Negate,
}

impl Function {
    /// The function that replaces `op` for operands of these types.
    fn of(op: Operator, left: &DataType, right: &DataType) -> Option<Self> {
        use DataType::{Date32, Date64, Duration, Interval, Timestamp};
        if !matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide | Operator::Modulo) {
            return None;
        }
        let is_checked = match (left, right) {
            (left, right) if left.is_integer() && right.is_integer() => true,
            (left, right) if left.is_decimal() && right.is_decimal() => true,
            // Numbers of days, which always fit.
            (Date32 | Date64, Date32 | Date64) => false,
            (
                Date32 | Date64 | Timestamp(..) | Duration(_) | Interval(_),
                Date32 | Date64 | Timestamp(..) | Duration(_) | Interval(_),
            ) => true,
            (Interval(_), number) | (number, Interval(_)) => number.is_integer(),
            _ => false,
        };
        is_checked.then_some(Self::Binary(op))
    }

    fn compute(self, operands: &[&dyn Datum]) -> Result<ArrayRef, ArrowError> {
        match (self, operands) {
            (Self::Negate, [of]) => neg(of.get().0),
            (Self::Binary(op), &[left, right]) => {
                let kernel = match op {
                    Operator::Plus => add,
                    Operator::Minus => sub,
                    Operator::Multiply => mul,
                    Operator::Divide => div,
                    _ => rem,
                };
                kernel(left, right).and_then(within_precision)
            }
            _ => Err(ArrowError::InvalidArgumentError(format!("{self:?} of {} operands", operands.len()))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Binary(Operator::Plus) => "checked_add",
            Self::Binary(Operator::Minus) => "checked_subtract",
            Self::Binary(Operator::Multiply) => "checked_multiply",
            Self::Binary(Operator::Divide) => "checked_divide",
            Self::Binary(_) => "checked_modulo",
            Self::Negate => "checked_negate",
        }
    }

    /// Writes the operator between or before its operands.
    fn write(self, operands: &[impl std::fmt::Display]) -> String {
        match (self, operands) {
            (Self::Binary(op), [left, right]) => format!("{left} {op} {right}"),
            (_, [of, ..]) => format!("-({of})"),
            _ => String::new(),
        }
    }
}

/// Refuses decimals with more digits than their type has. Arrow checks only that they fit their bytes.
fn within_precision(array: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let checked = match array.data_type() {
        // The result of smaller operands has a type with enough digits.
        DataType::Decimal128(digits, _) if *digits == Decimal128Type::MAX_PRECISION => {
            array.as_primitive::<Decimal128Type>().validate_decimal_precision(*digits)
        }
        DataType::Decimal256(digits, _) if *digits == Decimal256Type::MAX_PRECISION => {
            array.as_primitive::<Decimal256Type>().validate_decimal_precision(*digits)
        }
        _ => Ok(()),
    };
    checked.map_err(|error| ArrowError::ArithmeticOverflow(error.to_string()))?;
    Ok(array)
}

/// An operator of SQL as a function that fails where the operator would wrap around.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    function: Function,
    signature: Signature,
}

impl Checked {
    fn new(function: Function) -> Self {
        let operands = if function == Function::Negate { 1 } else { 2 };
        Self { function, signature: Signature::any(operands, Volatility::Immutable) }
    }

    /// The reason why the first row fails that fails.
    fn failure(&self, operands: &[ColumnarValue], rows: usize, error: ArrowError) -> Result<ColumnarValue> {
        let arrays = operands.iter().map(|operand| operand.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let types: Vec<&DataType> = arrays.iter().map(|array| array.data_type()).collect();
        let failed = (0..rows).find_map(|row| {
            let values: Vec<ArrayRef> = arrays.iter().map(|array| array.slice(row, 1)).collect();
            let scalars: Vec<Scalar<&ArrayRef>> = values.iter().map(Scalar::new).collect();
            let data: Vec<&dyn Datum> = scalars.iter().map(|scalar| scalar as &dyn Datum).collect();
            Some((row, self.function.compute(&data).err()?))
        });
        let Some((row, error)) = failed else { return Err(error.into()) };
        let values: Vec<String> =
            arrays.iter().map(|array| array_value_to_string(array, row)).collect::<Result<_, _>>()?;
        let (operation, values) = (self.function.write(&types), self.function.write(&values));
        match error {
            ArrowError::DivideByZero => {
                exec_err!("cannot divide by zero: {values} ({operation}); `nullif(divisor, 0)` gives null instead")
            }
            // Types that the kernel does not support.
            ArrowError::InvalidArgumentError(_) => Err(error.into()),
            _ => {
                let result = self.result(&types.into_iter().cloned().collect::<Vec<_>>())?;
                let wider = match result {
                    DataType::Int8 | DataType::Int16 | DataType::Int32 => "; cast an operand to BIGINT",
                    DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => "; cast an operand to BIGINT",
                    DataType::Int64 | DataType::UInt64 => "; cast an operand to DECIMAL(38, 0) or DOUBLE",
                    ref decimal if decimal.is_decimal() => "; cast an operand to fewer digits, or to DOUBLE",
                    _ => "",
                };
                exec_err!("overflow in {operation}: {values} does not fit {result}{wider}")
            }
        }
    }

    fn result(&self, types: &[DataType]) -> Result<DataType> {
        match (self.function, types) {
            (Function::Binary(op), [left, right]) => BinaryTypeCoercer::new(left, &op, right).get_result_type(),
            (_, [of, ..]) => Ok(of.clone()),
            _ => internal_err!("an operator without operands"),
        }
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.result(types)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (operands, rows) = (&arguments.args, arguments.number_rows);
        let is_scalar = operands.iter().all(|operand| matches!(operand, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { rows };
        let scalar = |operand: &ColumnarValue| match operand {
            ColumnarValue::Scalar(scalar) => Ok(Some(scalar.to_scalar()?)),
            ColumnarValue::Array(_) => Ok(None),
        };
        let scalars = operands.iter().map(scalar).collect::<Result<Vec<_>>>()?;
        let data: Vec<&dyn Datum> = operands
            .iter()
            .zip(&scalars)
            .filter_map(|(operand, scalar)| match (operand, scalar) {
                (ColumnarValue::Array(array), _) => Some(array as &dyn Datum),
                (_, Some(scalar)) => Some(scalar as &dyn Datum),
                _ => None,
            })
            .collect();
        match self.function.compute(&data) {
            Ok(result) if is_scalar => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)),
            Ok(result) => Ok(ColumnarValue::Array(result)),
            Err(error) => self.failure(operands, rows, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Date32Array, Decimal128Array, Int8Array, Int64Array, RecordBatch, UInt8Array};
    use datafusion::logical_expr::execution_props::ExecutionProps;
    use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
    use datafusion::physical_expr::create_physical_expr;
    use datafusion::prelude::SessionContext;

    use super::*;

    fn rows() -> RecordBatch {
        let huge = Decimal128Array::from(vec![10_i128.pow(38) - 1, 1, 0]).with_precision_and_scale(38, 0);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("u", Arc::new(UInt8Array::from(vec![16, 2, 0]))),
            ("t", Arc::new(Int8Array::from(vec![Some(-128), Some(3), None]))),
            ("n", Arc::new(Int64Array::from(vec![i64::MAX, 7, 0]))),
            ("d", Arc::new(huge.unwrap())),
            ("day", Arc::new(Date32Array::from(vec![20_000, 0, i32::MAX]))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// The result of an expression over a row of [`rows`], as text.
    fn compute(sql: &str, row: usize) -> std::result::Result<String, String> {
        let context = SessionContext::new();
        let rows = rows();
        let plan = context.read_batch(rows.clone()).unwrap().select_exprs(&[sql]).unwrap().into_unoptimized_plan();
        let state = context.state();
        let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).unwrap();
        let schema = plan.inputs()[0].schema().as_ref().clone();
        let expr = checked_arithmetic(plan.expressions().remove(0), &schema).unwrap().data;
        let context = PhysicalPlanningContext::default();
        let physical = create_physical_expr(&expr, &schema, &ExecutionProps::new(), &context).unwrap();
        let result = physical.evaluate(&rows.slice(row, 1)).and_then(|value| value.into_array(1));
        let result = result.map_err(|error| error.find_root().message().into_owned())?;
        Ok(array_value_to_string(&result, 0).unwrap())
    }

    fn check(sql: &str, row: usize, expected: std::result::Result<&str, &str>) {
        let got = compute(sql, row);
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{sql}");
    }

    #[test]
    fn what_fits_is_computed() {
        check("u * u", 1, Ok("4"));
        check("u - u", 0, Ok("0"));
        check("-t", 1, Ok("-3"));
        check("t + t", 2, Ok(""));
        check("n / 2", 1, Ok("3"));
        check("n % 4", 1, Ok("3"));
        check("d + 1", 1, Ok("2"));
        check("day + INTERVAL '1 day'", 0, Ok("2024-10-05"));
        check("day - day", 0, Ok("0"));
        check("n * 2.0", 0, Ok("1.8446744073709552e19"));
    }

    #[test]
    fn what_does_not_fit_names_the_operator_the_types_and_the_values() {
        check("u * u", 0, Err("overflow in UInt8 * UInt8: 16 * 16 does not fit UInt8; cast an operand to BIGINT"));
        check("-t", 0, Err("overflow in -(Int8): -(-128) does not fit Int8; cast an operand to BIGINT"));
        check(
            "n + 1",
            0,
            Err("overflow in Int64 + Int64: 9223372036854775807 + 1 does not fit Int64; cast an operand to \
                 DECIMAL(38, 0) or DOUBLE"),
        );
        check("n / 0", 1, Err("cannot divide by zero: 7 / 0 (Int64 / Int64); `nullif(divisor, 0)` gives null instead"));
        check("n % n", 2, Err("cannot divide by zero: 0 % 0 (Int64 % Int64); `nullif(divisor, 0)` gives null instead"));
        let digits = compute("d + d", 0).unwrap_err();
        assert!(digits.starts_with("overflow in Decimal128(38, 0) + Decimal128(38, 0): 9999"), "{digits}");
        let date = compute("day + INTERVAL '6000000 years'", 0).unwrap_err();
        assert!(date.starts_with("overflow in Date32 + Interval(MonthDayNano): 2024-10-04 + "), "{date}");
    }
}
