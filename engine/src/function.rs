//! Functions registered by the embedding program, such as Python.
//!
//! A query calls them like any other function, with exactly the declared types. Tensors must have the declared element
//! type and shape: see [`TensorParameter`]. A function's version enters the identity of the feeds that call it. The
//! results of a function without a version must not be stored.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use datafusion::common::{Result, exec_err, internal_err, plan_err, resources_err};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use forebay_operators::{Draws, KEY_ARGUMENTS, waiting};

use crate::tensor_parameter::TensorParameter;

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
    /// The types of its arguments. Metadata may make one a tensor.
    pub inputs: Vec<FieldRef>,
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
#[derive(Clone, Debug)]
pub(crate) struct FunctionUdf {
    function: Function,
    /// The arguments that are tensors.
    tensors: Vec<Option<TensorParameter>>,
    signature: Signature,
}

impl FunctionUdf {
    pub(crate) fn of(function: Function) -> ScalarUDF {
        let tensors: Vec<_> = function.inputs.iter().map(|field| TensorParameter::of(field)).collect();
        let signature = match &function.inputs[..] {
            [] if !function.draws => Signature::nullary(Volatility::Immutable),
            [] => Signature::one_of(
                vec![TypeSignature::Nullary, TypeSignature::Exact(vec![DataType::UInt64; KEY_ARGUMENTS.len()])],
                Volatility::Immutable,
            ),
            _ if function.draws || tensors.iter().any(Option::is_some) => {
                Signature::user_defined(Volatility::Immutable)
            }
            inputs => exact(inputs.iter().map(|field| field.data_type().clone()).collect()),
        };
        ScalarUDF::new_from_impl(Self { function, tensors, signature })
    }

    /// The function that a call names, unless it is one of the engine's.
    pub(crate) fn of_call(call: &ScalarFunction) -> Option<&Self> {
        call.func.inner().downcast_ref()
    }

    /// Whether the engine appends its arguments for random draws ([`KEY_ARGUMENTS`]) to each call.
    pub(crate) fn draws(&self) -> bool {
        self.function.draws
    }

    /// Divides what belongs to the arguments of a call into the call's own, and those that the engine appends.
    fn own<'a, T>(&self, given: &'a [T]) -> (&'a [T], &'a [T]) {
        let own = self.function.inputs.len();
        match self.draws() && given.len() == own + KEY_ARGUMENTS.len() {
            true => given.split_at(own),
            false => (given, &[]),
        }
    }

    /// The version, for a feed's identity.
    pub(crate) fn version(&self) -> Option<&str> {
        self.function.version.as_deref()
    }
}

fn exact(types: Vec<DataType>) -> Signature {
    Signature::exact(types, Volatility::Immutable)
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

    /// Arguments other than tensors are coerced like those of a function without tensors. `return_field_from_args` says
    /// what is wrong: it also knows the metadata, which has the shapes of tensors.
    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let (given, hidden) = self.own(given);
        let declared = self.function.inputs.iter().zip(&self.tensors).zip(given);
        let types = declared.map(|((input, tensor), given)| if tensor.is_some() { given } else { input.data_type() });
        let plain = Self { signature: exact(types.cloned().collect()), ..self.clone() };
        let fields: Vec<FieldRef> = given.iter().map(|given| Arc::new(Field::new("", given.clone(), true))).collect();
        let mut types = match fields_with_udf(&fields, &ScalarUDF::new_from_impl(plain)) {
            Ok(coerced) => coerced.iter().map(|field| field.data_type().clone()).collect(),
            Err(_) => given.to_vec(),
        };
        types.extend_from_slice(hidden);
        Ok(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let Function { name, inputs, output, .. } = &self.function;
        let (own, _) = self.own(args.arg_fields);
        if own.len() != inputs.len() {
            let plural = if inputs.len() == 1 { "" } else { "s" };
            return plan_err!("{name} takes {} argument{plural}, got {}", inputs.len(), own.len());
        }
        for (at, ((input, tensor), given)) in inputs.iter().zip(&self.tensors).zip(own).enumerate() {
            let refusal = match tensor {
                Some(tensor) => tensor.refusal(given),
                None if input.data_type() == given.data_type() => None,
                None => Some(format!("must be {}, got {}", input.data_type(), given.data_type())),
            };
            if let Some(refusal) = refusal {
                return plan_err!("{name}: argument {} {refusal}", at + 1);
            }
        }
        Ok(Arc::clone(output))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Function { name, output, call, .. } = &self.function;
        let number_rows = args.number_rows;
        let given = args.args.into_iter().map(|value| value.into_array(number_rows)).collect::<Result<Vec<_>>>()?;
        let (own, hidden) = self.own(&given);
        let passed = own.iter().zip(self.tensors.iter().zip(&args.arg_fields));
        let mut arrays: Vec<ArrayRef> = passed
            .map(|(array, (tensor, field))| match tensor {
                Some(tensor) => tensor.passed(array, field),
                None => Arc::clone(array),
            })
            .collect();
        if self.draws() {
            let [keys, sites] = hidden else {
                return exec_err!("{name} draws from a feed's key, so it only runs inside a pipeline");
            };
            let (keys, sites) = (keys.as_primitive::<UInt64Type>(), sites.as_primitive::<UInt64Type>());
            let seeds = keys.values().iter().zip(sites.values()).map(|(key, site)| Draws::new(*key, *site).bits());
            arrays.push(Arc::new(UInt64Array::from_iter_values(seeds)));
        }
        let result = match waiting(|| call(&arrays)) {
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
