//! Functions registered by the embedding program, such as Python.
//!
//! A query calls them like any other function, with exactly the declared types. A function's version enters the
//! identity of the feeds that call it. The results of a function without a version must not be stored.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{DataType, FieldRef, UInt64Type};
use datafusion::common::{Result, exec_err, internal_err, resources_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use forebay_operators::Draws;
#[cfg(doc)]
use forebay_operators::KEY_ARGUMENTS;

/// Computes one result per row from arrays of equal length, or returns the reason for a failure.
pub type BatchFn = dyn Fn(&[ArrayRef]) -> std::result::Result<ArrayRef, CallError> + Send + Sync;

/// The reason that a function returned no result.
#[derive(Clone, Debug)]
pub enum CallError {
    /// These rows cannot be processed, for this reason.
    Rows(String),
    /// The machine ran out of a resource, such as memory or disk space. The rows are not at fault: fewer of them, or
    /// the same later, may succeed.
    Exhausted(String),
    /// The program wants to exit, for example with Python's `SystemExit`. The rows are not at fault, so reading ends
    /// for every `on_error`. [`Error::stopped`](crate::Error::stopped) returns the value.
    Stop(Arc<dyn std::error::Error + Send + Sync>),
}

/// [`CallError::Stop`] while it passes through a plan.
#[derive(Debug)]
struct Stopped(Arc<dyn std::error::Error + Send + Sync>);

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a function ended the program: {}", self.0)
    }
}

impl std::error::Error for Stopped {}

/// The value with which a function ended the program, if that caused the error.
pub(crate) fn stopped(error: &DataFusionError) -> Option<Arc<dyn std::error::Error + Send + Sync>> {
    match error.find_root() {
        DataFusionError::External(external) => external.downcast_ref::<Stopped>().map(|stopped| Arc::clone(&stopped.0)),
        _ => None,
    }
}

/// A function of rows that a program registers with [`Session::add_function`](crate::Session::add_function).
#[derive(Clone)]
pub struct Function {
    /// Its name in queries, in lower case.
    pub name: String,
    /// The version. Change it when the results change.
    pub version: Option<String>,
    /// The types of its arguments.
    pub inputs: Vec<DataType>,
    /// Whether the function also gets a number for each row, a `UInt64` array after its arguments, as the seed of a
    /// generator. It depends on the feed's seed, the epoch, the row and the call only.
    pub draws: bool,
    /// Its result: type, nullability, and metadata such as a tensor's shape.
    pub output: FieldRef,
    /// The function itself.
    pub call: Arc<BatchFn>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

/// A [`Function`] as DataFusion calls it.
#[derive(Debug)]
pub(crate) struct FunctionUdf {
    function: Function,
    signature: Signature,
}

impl FunctionUdf {
    pub(crate) fn of(function: Function) -> ScalarUDF {
        let signature = match &function.inputs[..] {
            [] => TypeSignature::Nullary,
            inputs => TypeSignature::Exact(inputs.to_vec()),
        };
        let signature = match function.draws {
            false => Signature::new(signature, Volatility::Immutable),
            true => {
                let keyed = function.inputs.iter().cloned().chain([DataType::UInt64, DataType::UInt64]).collect();
                Signature::one_of(vec![signature, TypeSignature::Exact(keyed)], Volatility::Immutable)
            }
        };
        ScalarUDF::new_from_impl(Self { function, signature })
    }

    /// The function that a call names, unless it is one of the engine's.
    pub(crate) fn of_call(call: &ScalarFunction) -> Option<&Self> {
        call.func.inner().downcast_ref()
    }

    /// Whether the engine appends its arguments for random draws ([`KEY_ARGUMENTS`]) to each call.
    pub(crate) fn draws(&self) -> bool {
        self.function.draws
    }

    /// The version, for a feed's identity.
    pub(crate) fn version(&self) -> Option<&str> {
        self.function.version.as_deref()
    }
}

impl PartialEq for FunctionUdf {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function.call, &other.function.call)
    }
}

impl Eq for FunctionUdf {}

impl Hash for FunctionUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
    }
}

impl ScalarUDFImpl for FunctionUdf {
    fn name(&self) -> &str {
        &self.function.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("{} has a return field, not a return type", self.function.name)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::clone(&self.function.output))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Function { name, inputs, output, call, draws, .. } = &self.function;
        let mut arrays: Vec<ArrayRef> =
            args.args.into_iter().map(|value| value.into_array(args.number_rows)).collect::<Result<_>>()?;
        if *draws {
            let [keys, sites] = &arrays[inputs.len()..] else {
                return exec_err!("{name} draws from a feed's key, so it only runs inside a pipeline");
            };
            let (keys, sites) = (keys.as_primitive::<UInt64Type>(), sites.as_primitive::<UInt64Type>());
            let seeds = keys.values().iter().zip(sites.values()).map(|(key, site)| Draws::new(*key, *site).bits());
            let seeds: ArrayRef = Arc::new(UInt64Array::from_iter_values(seeds));
            arrays.splice(inputs.len().., [seeds]);
        }
        let result = match call(&arrays) {
            Ok(result) => result,
            Err(CallError::Rows(why)) => return exec_err!("{name}: {why}"),
            Err(CallError::Exhausted(why)) => return resources_err!("{name}: {why}"),
            Err(CallError::Stop(by)) => return Err(DataFusionError::External(Box::new(Stopped(by)))),
        };
        if result.len() != args.number_rows {
            return exec_err!("{name}: returned {} rows for {}", result.len(), args.number_rows);
        }
        if result.data_type() != output.data_type() {
            return exec_err!("{name}: returned {}, and declares {}", result.data_type(), output.data_type());
        }
        if !output.is_nullable() && result.null_count() > 0 {
            return exec_err!("{name}: returned nulls, and declares that it returns none");
        }
        Ok(ColumnarValue::Array(result))
    }
}
