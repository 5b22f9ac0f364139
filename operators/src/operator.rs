//! The trait of operators, and the adaptor that makes any of them a DataFusion function.
//!
//! An operator reads its arguments by name, through [`Arguments`]: fields and constants while a query is planned, and
//! arrays when it runs. Named arguments in SQL and their defaults are resolved before planning. A call that was built
//! by hand may leave out trailing arguments that have a default.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

pub use crate::arguments::Arguments;
use crate::arguments::Keys;
use crate::descriptor::{Descriptor, Determinism, Parameter, ParameterKind};
use crate::image_chain::Step;

/// A preprocessing function of one row.
pub trait Operator: Debug + Send + Sync {
    /// Returns the operator's declaration.
    fn descriptor(&self) -> &'static Descriptor;

    /// Returns the types to which the arguments are cast first. The default casts nulls, half floats and decimals, and
    /// unpacks dictionaries. It leaves all other types, including wrong ones, to [`Operator::return_field`].
    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let parameters = self.descriptor().parameters;
        let coerced = types.iter().enumerate().map(|(i, data_type)| match parameters.get(i).map(|p| p.kind) {
            Some(ParameterKind::Input(class)) => class.coerce(data_type),
            _ => data_type.clone(),
        });
        Ok(coerced.collect())
    }

    /// Returns the result's type, nullability and extension type. The field's name does not matter. Each constant has
    /// been checked; this method rejects wrong combinations of constants.
    fn return_field(&self, arguments: &Arguments) -> Result<Field>;

    /// Computes the result, one value per row. Arguments are mutable, so an operator can take an array and change it in
    /// place if it has no other owner.
    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef>;

    /// Returns the number of first arguments of which a plan computes only those that a row needs. The default is none.
    fn conditional_arguments(&self) -> usize {
        0
    }

    /// Returns the operator's work on one image, if it is an operator on images. Chains of such operators then run as
    /// one.
    fn image_step(&self, _arguments: &Arguments) -> Result<Option<Step>> {
        Ok(None)
    }
}

/// Any [`Operator`] as a DataFusion function.
///
/// The function is immutable: its arguments determine its result, including the two that the engine appends for
/// keyed-random operators ([`KEY_ARGUMENTS`](crate::KEY_ARGUMENTS)). Without these two, a keyed-random call can be
/// planned but not run.
#[derive(Debug)]
pub struct OperatorUdf {
    operator: &'static dyn Operator,
    signature: Signature,
}

impl OperatorUdf {
    /// Makes the function of this operator.
    pub fn new(operator: &'static dyn Operator) -> Self {
        Self { operator, signature: Signature::user_defined(Volatility::Immutable) }
    }

    /// Returns the function's operator, for code that has a plan and needs the descriptor.
    pub fn operator(&self) -> &'static dyn Operator {
        self.operator
    }

    fn descriptor(&self) -> &'static Descriptor {
        self.operator.descriptor()
    }
}

impl PartialEq for OperatorUdf {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor().name == other.descriptor().name
    }
}

impl Eq for OperatorUdf {}

impl Hash for OperatorUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.descriptor().name.hash(state);
    }
}

impl ScalarUDFImpl for OperatorUdf {
    fn name(&self) -> &str {
        self.descriptor().name
    }

    /// Omits the arguments that the engine appends, so its rewrite does not rename the column, and a `key` that is not
    /// given.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let descriptor = self.descriptor();
        let shown = match descriptor.determinism {
            Determinism::KeyedRandom
                if descriptor.position(Parameter::KEY.name).is_some_and(|at| is_empty(args.get(at))) =>
            {
                descriptor.parameters.len() - 1
            }
            Determinism::KeyedRandom | Determinism::StepLength => args.len().min(descriptor.parameters.len()),
            Determinism::Deterministic | Determinism::WindowOrder => args.len(),
        };
        let names = args[..shown].iter().map(|arg| Ok(arg.schema_name().to_string())).collect::<Result<Vec<_>>>()?;
        Ok(format!("{}({})", descriptor.name, names.join(",")))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("{} has a return field, not a return type", self.name())
    }

    fn short_circuits(&self) -> bool {
        self.operator.conditional_arguments() > 0
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        let conditional = self.operator.conditional_arguments();
        let (lazy, eager) = args.split_at_checked(conditional).filter(|_| conditional > 0)?;
        Some((eager.iter().collect(), lazy.iter().collect()))
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.operator.coerce(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let (arguments, _) = Arguments::resolve(self.descriptor(), args.arg_fields, args.scalar_arguments)?;
        Ok(Arc::new(self.operator.return_field(&arguments)?))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let descriptor = self.descriptor();
        let scalars: Vec<_> = args
            .args
            .iter()
            .map(|arg| match arg {
                ColumnarValue::Scalar(value) => Some(value),
                ColumnarValue::Array(_) => None,
            })
            .collect();
        let all_scalar = scalars.iter().all(Option::is_some);
        let rows = if all_scalar { 1 } else { args.number_rows };
        let (mut arguments, is_complete) = Arguments::resolve(descriptor, &args.arg_fields, &scalars)?;
        arguments.rows = rows;
        match descriptor.determinism {
            Determinism::KeyedRandom if is_complete => {
                arguments.keys = Some(Keys::read(descriptor, &args.args[descriptor.parameters.len()..], rows)?);
            }
            // Check here and not on the first draw. Otherwise an empty or all-null batch would hide the mistake.
            Determinism::KeyedRandom => {
                arguments.draws(0)?;
            }
            Determinism::StepLength if is_complete => {
                let lengths = args.args[descriptor.parameters.len()].to_array(rows)?;
                arguments.step_lengths = Some(lengths.as_primitive::<UInt64Type>().clone());
            }
            Determinism::StepLength | Determinism::Deterministic | Determinism::WindowOrder => {}
        }
        // Move the values instead of cloning them. An operator may change an array in place if it is the only owner.
        arguments.arrays = descriptor
            .parameters
            .iter()
            .zip(args.args)
            .map(|(parameter, value)| match parameter.kind {
                ParameterKind::Input(_) => value.into_array(rows).map(Some),
                ParameterKind::Constant(_) | ParameterKind::Rows => Ok(None),
            })
            .collect::<Result<_>>()?;
        let result = self.operator.evaluate(&mut arguments)?;
        if result.len() != rows {
            return internal_err!("{} returned {} rows for {rows}", descriptor.name, result.len());
        }
        Ok(match all_scalar {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?),
            false => ColumnarValue::Array(result),
        })
    }
}

/// Whether an argument is an empty string.
fn is_empty(argument: Option<&Expr>) -> bool {
    matches!(argument, Some(Expr::Literal(value, _)) if value.try_as_str() == Some(Some("")))
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use crate::testing::{image, keyed, keys, noise, select, udf};

    #[test]
    fn trailing_arguments_with_a_default_may_be_left_out() {
        let short = select(udf("normalize").call(vec![col("image")]), vec![noise()]).unwrap();
        assert_eq!(short.0.data_type().to_string().matches("Float32").count(), 1);
    }

    #[test]
    fn keys_do_not_rename_a_column() {
        let plain = udf("random_hflip").call(vec![col("image"), lit(0.5)]);
        let with_keys = keyed("random_hflip", vec![col("image"), lit(0.5)]);
        assert_eq!(with_keys.schema_name().to_string(), plain.schema_name().to_string());
    }

    #[test]
    fn calls_nest_and_keep_their_extension_types() {
        let flipped = keyed("random_hflip", vec![col("image"), lit(1.0)]);
        let twice = keyed("random_hflip", vec![flipped, lit(1.0)]);
        let resized = udf("resize").call(vec![twice, lit(9), lit(13)]);
        let got = select(resized, vec![noise(), keys(1)]).unwrap();
        assert_eq!(image(&got, 0), image(&noise(), 0));
    }

    #[test]
    fn functions_are_equal_by_name() {
        assert_eq!(udf("resize"), udf("resize"));
        assert_ne!(udf("resize"), udf("center_crop"));
    }
}
