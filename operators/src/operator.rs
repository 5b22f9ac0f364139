//! The trait of operators, and the adaptor that makes any of them a DataFusion function.
//!
//! An operator reads its arguments by name, through [`Arguments`]: fields and constants while a query is planned, and
//! arrays when it runs. Named arguments in SQL and their defaults are resolved before planning. A call that was built
//! by hand may leave out trailing arguments that have a default.

use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::{Result, exec_err, internal_datafusion_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

use crate::descriptor::{self, Descriptor, Determinism, ParameterKind};
use crate::image_chain::Step;
use crate::keyed::Draws;

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

    /// Returns the operator's work on one image, if it is an operator on images. Chains of such operators then run as
    /// one.
    fn image_step(&self, _arguments: &Arguments) -> Result<Option<Step>> {
        Ok(None)
    }
}

/// The arguments of one call, by name.
///
/// A request for a name or a kind that the descriptor does not have is a bug in the operator, and an internal error.
#[derive(Debug)]
pub struct Arguments {
    descriptor: &'static Descriptor,
    fields: Vec<FieldRef>,
    constants: Vec<Option<ScalarValue>>,
    arrays: Vec<Option<ArrayRef>>,
    keys: Option<Keys>,
    step_lengths: Option<UInt64Array>,
    rows: usize,
}

#[derive(Debug)]
struct Keys {
    keys: UInt64Array,
    site: u64,
}

impl Arguments {
    /// Returns the number of rows to compute.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the field of an input.
    pub fn field(&self, name: &str) -> Result<&FieldRef> {
        let position = self.position(name)?;
        self.fields.get(position).ok_or_else(|| self.undeclared(name, "an input"))
    }

    /// Returns whether an optional input is given.
    pub fn is_given(&self, name: &str) -> bool {
        let field = self.position(name).ok().and_then(|position| self.fields.get(position));
        field.is_some_and(|field| *field.data_type() != DataType::Null)
    }

    /// Returns the values of an input.
    pub fn array(&self, name: &str) -> Result<&ArrayRef> {
        let position = self.position(name)?;
        self.arrays.get(position).and_then(Option::as_ref).ok_or_else(|| self.undeclared(name, "an input"))
    }

    /// Takes the values of an input. A second call for the same name is an internal error.
    pub fn take_array(&mut self, name: &str) -> Result<ArrayRef> {
        let position = self.position(name)?;
        match self.arrays.get_mut(position).and_then(Option::take) {
            Some(array) => Ok(array),
            None => Err(self.undeclared(name, "an input")),
        }
    }

    /// Returns a positive integer.
    pub fn positive(&self, name: &str) -> Result<usize> {
        let value = self.constant(name, "a positive integer", descriptor::integer)?;
        usize::try_from(value).map_err(|_| self.undeclared(name, "a positive integer"))
    }

    /// Returns an integer.
    pub fn integer(&self, name: &str) -> Result<i64> {
        self.constant(name, "an integer", descriptor::integer)
    }

    /// Returns a finite number.
    pub fn number(&self, name: &str) -> Result<f64> {
        self.constant(name, "a number", descriptor::number)
    }

    /// Returns a list of finite numbers. A single number is a list of one.
    pub fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        self.constant(name, "a list of numbers", descriptor::number_or_list)
    }

    /// Returns a list of strings.
    pub fn texts(&self, name: &str) -> Result<Vec<String>> {
        self.constant(name, "a list of strings", descriptor::texts)
    }

    /// Returns a string.
    pub fn text(&self, name: &str) -> Result<String> {
        self.constant(name, "a string", |value| descriptor::text(value).map(str::to_owned))
    }

    /// Returns a boolean.
    pub fn flag(&self, name: &str) -> Result<bool> {
        self.constant(name, "true or false", |value| match value {
            ScalarValue::Boolean(flag) => *flag,
            _ => None,
        })
    }

    /// Returns the random numbers of one row. A call without keys, which means outside a feed, is an error.
    pub fn draws(&self, row: usize) -> Result<Draws> {
        match &self.keys {
            Some(Keys { keys, site }) => Ok(Draws::new(keys.value(row), *site)),
            None => exec_err!("{} draws from a feed's key, so it only runs inside a pipeline", self.descriptor.name),
        }
    }

    /// Returns the random numbers of one row, if the call has keys. A deterministic operator also gets some, and uses
    /// none.
    pub(crate) fn draws_of(&self, row: usize) -> Draws {
        self.keys.as_ref().map_or(Draws::new(0, 0), |Keys { keys, site }| Draws::new(keys.value(row), *site))
    }

    /// Returns the maximum length of rows in a row's global step, or 0 if rows are not grouped by length.
    pub fn step_length(&self, row: usize) -> u64 {
        self.step_lengths.as_ref().map_or(0, |lengths| lengths.value(row))
    }

    /// Returns a planning error about one argument: `resize: "height" must be below 16384, got 20000`.
    pub fn refuse<T>(&self, name: &str, problem: impl std::fmt::Display) -> Result<T> {
        plan_err!("{}: \"{name}\" {problem}", self.descriptor.name)
    }

    fn constant<T>(&self, name: &str, kind: &str, read: impl Fn(&ScalarValue) -> Option<T>) -> Result<T> {
        let position = self.position(name)?;
        let value = self.constants.get(position).and_then(Option::as_ref);
        value.and_then(read).ok_or_else(|| self.undeclared(name, kind))
    }

    fn position(&self, name: &str) -> Result<usize> {
        self.descriptor.position(name).ok_or_else(|| self.undeclared(name, "a parameter"))
    }

    fn undeclared(&self, name: &str, kind: &str) -> datafusion::common::DataFusionError {
        internal_datafusion_err!("{} asks for \"{name}\" as {kind}, which it does not declare", self.descriptor.name)
    }

    /// Reads a call's arguments. Checks their number, the inputs' types and each constant by itself.
    pub(crate) fn resolve(
        descriptor: &'static Descriptor,
        fields: &[FieldRef],
        scalars: &[Option<&ScalarValue>],
    ) -> Result<(Self, bool)> {
        let parameters = descriptor.parameters;
        let hidden = descriptor.determinism.hidden_arguments();
        let is_complete = !hidden.is_empty() && fields.len() == parameters.len() + hidden.len();
        if fields.len() > parameters.len() && !is_complete {
            let names: Vec<_> = parameters.iter().map(|p| p.name).collect();
            return plan_err!(
                "{}: takes {} arguments ({}), got {}",
                descriptor.name,
                parameters.len(),
                names.join(", "),
                fields.len()
            );
        }
        let mut constants = vec![None; parameters.len()];
        for (i, parameter) in parameters.iter().enumerate() {
            let name = parameter.name;
            match (parameter.kind, fields.get(i)) {
                (ParameterKind::Input(class), Some(field)) => {
                    let is_left_out = parameter.default.is_some() && *field.data_type() == DataType::Null;
                    if !is_left_out && !class.accepts(field) {
                        let got = crate::image_column::wording(field);
                        return plan_err!("{}: \"{name}\" must be {}, got {got}", descriptor.name, class.wording());
                    }
                }
                (kind @ ParameterKind::Constant(_), Some(_)) => {
                    let Some(value) = scalars.get(i).copied().flatten() else {
                        return plan_err!(
                            "{}: \"{name}\" must be {} written as a constant, got a value per row",
                            descriptor.name,
                            kind.wording()
                        );
                    };
                    if let Err(problem) = kind.check(value) {
                        return plan_err!("{}: \"{name}\" {problem}", descriptor.name);
                    }
                    constants[i] = Some(value.clone());
                }
                (ParameterKind::Rows, Some(_)) => {
                    return internal_err!("{} is called with rows: it is no table operator", descriptor.name);
                }
                (_, None) => match parameter.default_value() {
                    Some(value) => constants[i] = Some(value),
                    None => return plan_err!("{}: \"{name}\" is missing", descriptor.name),
                },
            }
        }
        if is_complete {
            for (name, field) in hidden.iter().zip(&fields[parameters.len()..]) {
                if *field.data_type() != DataType::UInt64 {
                    return internal_err!("{}: \"{name}\" must be UInt64, got {}", descriptor.name, field.data_type());
                }
            }
        }
        let fields = fields.iter().take(parameters.len()).cloned().collect();
        let arrays = vec![];
        Ok((Self { descriptor, fields, constants, arrays, keys: None, step_lengths: None, rows: 0 }, is_complete))
    }
}

impl Keys {
    fn read(descriptor: &Descriptor, arguments: &[ColumnarValue], rows: usize) -> Result<Self> {
        let [keys, ColumnarValue::Scalar(ScalarValue::UInt64(Some(site)))] = arguments else {
            return internal_err!("{}: \"site\" must be a UInt64 literal", descriptor.name);
        };
        let keys = keys.to_array(rows)?.as_primitive::<UInt64Type>().clone();
        if keys.null_count() > 0 {
            return internal_err!("{}: \"random_key\" has nulls", descriptor.name);
        }
        Ok(Self { keys, site: *site })
    }
}

/// An [`Operator`] as a DataFusion function.
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

    /// Omits the key arguments, so the engine's rewrite does not rename the column.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let descriptor = self.descriptor();
        let shown = match descriptor.determinism {
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
