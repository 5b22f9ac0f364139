//! SQL's mathematical functions with the same results on every machine.
//!
//! DataFusion's call the C library's, which picks its code by the processor and changes it between versions, so that
//! the last bit of `ln(x)` may differ between two workers of one feed. The functions here have DataFusion's names,
//! signatures, nulls and errors, and compute with the `libm` crate, a port of musl's library: the same code everywhere.
//!
//! Functions that IEEE 754 defines to the last bit, such as `sqrt`, `round`, `floor` and `%`, stay DataFusion's.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float64Array, PrimitiveArray};
use arrow::compute::{binary, cast, try_binary};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float32Type, Float64Type};
use arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::functions::math;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

/// The version of all of these functions. Raise it whenever a result changes.
const VERSION: u32 = 1;

/// Returns DataFusion's functions in their portable form, to be registered under the same names.
pub fn portable_math() -> Vec<ScalarUDF> {
    let unary = [
        (math::acos(), libm::acos as fn(f64) -> f64, libm::acosf as fn(f32) -> f32),
        // `libm::acoshf` returns numbers for arguments that have no result.
        (math::acosh(), libm::acosh, |x| if x < 1.0 { f32::NAN } else { libm::acoshf(x) }),
        (math::asin(), libm::asin, libm::asinf),
        (math::asinh(), libm::asinh, libm::asinhf),
        (math::atan(), libm::atan, libm::atanf),
        (math::atanh(), libm::atanh, libm::atanhf),
        (math::cbrt(), libm::cbrt, libm::cbrtf),
        (math::cos(), libm::cos, libm::cosf),
        (math::cosh(), libm::cosh, libm::coshf),
        (math::cot(), |x| 1.0 / libm::tan(x), |x| 1.0 / libm::tanf(x)),
        (math::exp(), libm::exp, libm::expf),
        (math::ln(), libm::log, libm::logf),
        (math::log10(), libm::log10, libm::log10f),
        (math::log2(), libm::log2, libm::log2f),
        (math::sin(), libm::sin, libm::sinf),
        (math::sinh(), libm::sinh, libm::sinhf),
        (math::tan(), libm::tan, libm::tanf),
        (math::tanh(), libm::tanh, libm::tanhf),
    ];
    let unary = unary.map(|(original, of_f64, of_f32)| (original, Kernel::Unary(of_f64, of_f32)));
    let others = [(math::atan2(), Kernel::Atan2), (math::log(), Kernel::Log), (math::power(), Kernel::Power)];
    unary
        .into_iter()
        .chain(others)
        .map(|(original, kernel)| ScalarUDF::from(PortableMath { original, kernel }))
        .collect()
}

/// Returns the version of a function's portable form, if it has one.
pub fn portable_version(function: &ScalarUDF) -> Option<u32> {
    function.inner().is::<PortableMath>().then_some(VERSION)
}

#[derive(Clone, Copy, Debug)]
enum Kernel {
    Unary(fn(f64) -> f64, fn(f32) -> f32),
    Atan2,
    Log,
    Power,
}

/// A function of DataFusion that computes with `libm`.
#[derive(Debug)]
struct PortableMath {
    original: Arc<ScalarUDF>,
    kernel: Kernel,
}

impl PartialEq for PortableMath {
    fn eq(&self, other: &Self) -> bool {
        self.original == other.original
    }
}

impl Eq for PortableMath {}

impl std::hash::Hash for PortableMath {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.original.name().hash(state);
    }
}

impl ScalarUDFImpl for PortableMath {
    fn name(&self) -> &str {
        self.original.name()
    }

    fn aliases(&self) -> &[String] {
        self.original.aliases()
    }

    fn signature(&self) -> &Signature {
        self.original.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.original.return_type(types)
    }

    fn is_strict(&self) -> bool {
        self.original.inner().is_strict()
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.original.output_ordering(inputs)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.documentation()
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let returns = arguments.return_type().clone();
        if arguments.arg_fields.iter().any(|field| field.data_type().is_null()) {
            return ColumnarValue::Scalar(ScalarValue::Null).cast_to(&returns, None);
        }
        let is_scalar = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if is_scalar { 1 } else { arguments.number_rows };
        let arrays =
            arguments.args.into_iter().map(|argument| argument.into_array(rows)).collect::<Result<Vec<_>>>()?;
        let result = match (self.kernel, &arrays[..]) {
            (Kernel::Unary(of_f64, of_f32), [x]) => match x.data_type() {
                DataType::Float32 => unary::<Float32Type>(x, of_f32),
                DataType::Float64 => unary::<Float64Type>(x, of_f64),
                other => return internal_err!("{} of {other}", self.name()),
            },
            (Kernel::Atan2, [y, x]) => match (y.data_type(), x.data_type()) {
                (DataType::Float32, DataType::Float32) => {
                    Arc::new(binary::<_, _, _, Float32Type>(singles(y), singles(x), libm::atan2f)?)
                }
                _ => Arc::new(binary::<_, _, _, Float64Type>(&floats(y)?, &floats(x)?, libm::atan2)?) as ArrayRef,
            },
            (Kernel::Power, [base, exponent]) => {
                Arc::new(try_binary::<_, _, _, Float64Type>(&floats(base)?, &floats(exponent)?, power)?)
            }
            (Kernel::Log, [x]) => Arc::new(floats(x)?.unary::<_, Float64Type>(libm::log10)),
            (Kernel::Log, [base, x]) => {
                Arc::new(binary::<_, _, _, Float64Type>(&floats(base)?, &floats(x)?, logarithm)?)
            }
            (_, arrays) => return internal_err!("{} of {} arguments", self.name(), arrays.len()),
        };
        let result = cast(&result, &returns)?;
        match is_scalar {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?)),
            false => Ok(ColumnarValue::Array(result)),
        }
    }
}

fn unary<T: ArrowPrimitiveType>(x: &ArrayRef, of: impl Fn(T::Native) -> T::Native) -> ArrayRef {
    let x: &PrimitiveArray<T> = x.as_primitive();
    Arc::new(x.unary::<_, T>(of))
}

fn singles(x: &ArrayRef) -> &PrimitiveArray<Float32Type> {
    x.as_primitive()
}

/// The values as 64-bit floats. Decimals are divided by their scale.
fn floats(x: &ArrayRef) -> Result<Float64Array> {
    Ok(cast(x, &DataType::Float64)?.as_primitive::<Float64Type>().clone())
}

/// As in PostgreSQL, a negative power of zero is an error.
fn power(base: f64, exponent: f64) -> Result<f64, ArrowError> {
    match base == 0.0 && exponent < 0.0 {
        true => Err(ArrowError::ComputeError("zero raised to a negative power is undefined".to_owned())),
        false => Ok(libm::pow(base, exponent)),
    }
}

/// The logarithm of `x` to a base: an integer where `x` is a power of the base.
fn logarithm(base: f64, x: f64) -> f64 {
    if base == 10.0 {
        return libm::log10(x);
    }
    if base == 2.0 {
        return libm::log2(x);
    }
    let quotient = libm::log(x) / libm::log(base);
    let nearest = libm::rint(quotient);
    if nearest != quotient && libm::pow(base, nearest) == x { nearest } else { quotient }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::RecordBatch;
    use arrow::array::{Array, Float32Array, Float64Array, Int64Array};
    use arrow::datatypes::{Field, Schema};
    use datafusion::prelude::SessionContext;

    use super::*;
    use crate::keyed::Draws;

    async fn compute(portable: bool, sql: &str, rows: &RecordBatch) -> std::result::Result<ArrayRef, String> {
        let context = SessionContext::new();
        if portable {
            portable_math().into_iter().for_each(|function| context.register_udf(function));
        }
        context.register_batch("t", rows.clone()).unwrap();
        let found = context.sql(&format!("SELECT {sql} AS y FROM t")).await.map_err(|e| e.to_string())?;
        let batches = found.collect().await.map_err(|e| e.find_root().to_string())?;
        Ok(Arc::clone(batches[0].column(0)))
    }

    fn rows() -> RecordBatch {
        let mut draws = Draws::new(7, 0);
        let mut x: Vec<Option<f64>> = vec![Some(0.0), Some(-0.0), Some(1.0), Some(-1.0), Some(f64::NAN), None];
        x.extend([f64::INFINITY, f64::NEG_INFINITY, 1e308, 5e-324, 1000.0, 81.0].map(Some));
        x.extend((0..500).map(|_| Some((draws.below(2_000_000) as f64 - 1e6) / 1e4)));
        let single: Vec<Option<f32>> = x.iter().map(|x| x.map(|x| x as f32)).collect();
        let integers: Vec<i64> = (0..x.len() as i64).map(|row| row % 7 + 1).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("x", Arc::new(Float64Array::from(x))),
            ("f", Arc::new(Float32Array::from(single))),
            ("n", Arc::new(Int64Array::from(integers))),
        ];
        let fields: Vec<Field> =
            columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, column)| column).collect())
            .unwrap()
    }

    /// The portable functions differ from the C library's in the last bits, and in nothing else.
    #[tokio::test]
    async fn portable_functions_agree_with_datafusion() {
        let rows = rows();
        let unary: Vec<String> = portable_math().iter().map(|function| function.name().to_owned()).collect();
        let unary = unary.iter().filter(|name| !["atan2", "power"].contains(&&***name));
        let calls = unary.flat_map(|name| ["x", "f", "n", "1.5", "NULL"].map(|of| format!("{name}({of})")));
        let others = ["atan2(x, 2)", "atan2(f, f)", "power(x, 2)", "power(x, n)", "pow(n, x)", "power(f, 0.5)"];
        let logs = ["log(n + 1, x)", "log(3, n)", "log(f, x)", "log(2, CAST(n AS DECIMAL(10, 0)))", "log(10, 1000)"];
        for sql in calls.chain(others.into_iter().chain(logs).map(str::to_owned)) {
            let (ours, theirs) = (compute(true, &sql, &rows).await, compute(false, &sql, &rows).await);
            let (ours, theirs) = match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => (ours, theirs),
                (Err(ours), Err(theirs)) => {
                    assert_eq!(ours, theirs, "{sql}");
                    continue;
                }
                (ours, theirs) => panic!("{sql}: {ours:?}, and {theirs:?}"),
            };
            assert_eq!(ours.data_type(), theirs.data_type(), "{sql}");
            let relative = if *ours.data_type() == DataType::Float32 { 1e-6 } else { 1e-13 };
            let (ours, theirs) = (floats(&ours).unwrap(), floats(&theirs).unwrap());
            for (row, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
                let same = match (ours, theirs) {
                    (Some(a), Some(b)) => {
                        a == b
                            || (a.is_nan() && b.is_nan())
                            || (a - b).abs() <= relative * a.abs().max(b.abs()).max(1e-300)
                    }
                    (a, b) => a == b,
                };
                assert!(same, "{sql}, row {row}: {ours:?}, and {theirs:?}");
            }
        }
    }

    #[tokio::test]
    async fn errors_are_datafusions() {
        let rows = rows();
        let error = compute(true, "power(x * 0, -1)", &rows).await.unwrap_err();
        assert_eq!(error, compute(false, "power(x * 0, -1)", &rows).await.unwrap_err());
        assert!(error.contains("zero raised to a negative power"), "{error}");
    }

    #[test]
    fn logarithms_of_powers_are_integers() {
        for (base, x, expected) in [(10.0, 1000.0, 3.0), (2.0, 8.0, 3.0), (3.0, 81.0, 4.0), (5.0, 0.2, -1.0)] {
            assert_eq!(logarithm(base, x), expected, "log({base}, {x})");
        }
        assert!(logarithm(3.0, -1.0).is_nan());
    }
}
