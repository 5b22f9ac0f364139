//! The checks that every registered operator passes, whatever it computes.
//!
//! A feed is a function only if each operator is one: of a row, its constants and, where it declares so, the row's key.
//! [`check`] generates columns for every kind of parameter and compares the result of a whole batch with the results
//! of its rows, slices and permutations, bit for bit. It also sees to nulls, empty batches, hostile bytes, and that the
//! descriptor is complete. Everything is generated from a seed that each message names.

mod columns;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array, new_null_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;

use self::columns::{columns, damaged_files, lying_images};
use crate::descriptor::{
    ConstantKind, Descriptor, Determinism, Nulls, ParameterKind, STEP_ARGUMENT, SizeRatio, TypeClass,
};
use crate::image_column;
use crate::keyed::{Draws, random_key};
use crate::operator::{Operator, OperatorUdf};

/// Rows per generated batch: enough for several nulls, few enough to run each row alone.
const ROWS: usize = 13;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err(format!($($message)+)),
        }
    };
}

mod commutation;
mod sizes;
pub mod tables;

pub use commutation::check_pairs;

/// Runs all checks on one operator. The error says what differs and for which input.
pub fn check(operator: &'static dyn Operator, seed: u64) -> Result<(), String> {
    let descriptor = operator.descriptor();
    let named = |problem: String| format!("{} (seed {seed}): {problem}", descriptor.name);
    complete(descriptor).map_err(named)?;
    let mut draws = Draws::new(seed, 0);
    for defaults in [true, false] {
        for case in cases(operator, defaults, &mut draws) {
            case.check(&mut draws).map_err(|problem| named(format!("for {}: {problem}", case.name)))?;
        }
    }
    garbage(operator, &mut draws).map_err(named)
}

/// Whether the descriptor says everything it should.
fn complete(descriptor: &Descriptor) -> Result<(), String> {
    let Descriptor { name, version, category, summary, returns, docs, source, examples, .. } = descriptor;
    ensure!(
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
        "the name is not snake case"
    );
    ensure!(*version > 0, "versions begin with 1");
    for (what, text) in
        [("category", category), ("summary", summary), ("returns", returns), ("docs", docs), ("source", source)]
    {
        ensure!(!text.is_empty(), "no {what}");
    }
    ensure!(!summary.ends_with('.'), "the summary ends with a period");
    ensure!(!examples.is_empty(), "no example");
    ensure!(
        examples.iter().all(|e| e.sql.contains(name) && !e.result.is_empty()),
        "an example does not show the operator"
    );
    let SizeRatio { least, most } = descriptor.size_ratio;
    ensure!((0.0..=most).contains(&least) && most > 0.0, "the size ratio is no range");
    let optional = descriptor.parameters.iter().position(|p| p.default.is_some()).unwrap_or(usize::MAX);
    for (i, parameter) in descriptor.parameters.iter().enumerate() {
        let name = parameter.name;
        ensure!(descriptor.position(name) == Some(i), "two parameters are called \"{name}\"");
        ensure!(!parameter.docs.is_empty(), "no docs for \"{name}\"");
        match (parameter.default, parameter.default_value()) {
            (None, _) => ensure!(i < optional, "\"{name}\" is required, but follows a default"),
            (Some(text), None) => return Err(format!("the default of \"{name}\" is not a literal: {text}")),
            (Some(_), Some(value)) => {
                let is_constant = matches!(parameter.kind, ParameterKind::Constant(_));
                ensure!(is_constant || value.is_null(), "the input \"{name}\" has a default");
                parameter.kind.check(&value).map_err(|problem| format!("the default of \"{name}\" {problem}"))?;
            }
        }
    }
    Ok(())
}

/// A call with generated arguments.
struct Case {
    name: String,
    operator: &'static dyn Operator,
    arguments: Vec<Argument>,
}

#[derive(Clone)]
enum Argument {
    Column(FieldRef, ArrayRef),
    Constant(ScalarValue),
}

impl Case {
    fn check(&self, draws: &mut Draws) -> Result<(), String> {
        let whole = self.run(|array| array)?;
        ensure!(whole.len() == ROWS, "{} rows became {}", ROWS, whole.len());
        let same = |what: &str, got: ArrayRef, expect: ArrayRef| match got.as_ref() == expect.as_ref() {
            true => Ok(()),
            false => Err(format!("{what} differs\n got {got:?}\nwant {expect:?}")),
        };
        same("a second run", self.run(|array| array)?, Arc::clone(&whole))?;
        sizes::check(self.operator.descriptor(), &self.columns(), &whole)?;
        for row in 0..ROWS {
            same(&format!("row {row} alone"), self.run(|array| array.slice(row, 1))?, whole.slice(row, 1))?;
        }
        for (start, len) in [(3, 7), (1, ROWS - 1), (0, 5)] {
            same("a slice", self.run(|array| array.slice(start, len))?, whole.slice(start, len))?;
        }
        let order = permutation(draws);
        let ordered = |array: &ArrayRef| take(array, &order, None).map_err(|e| e.to_string());
        // Taking copies, so here the operator alone holds the memory of its input.
        same("a permutation", self.run(|array| ordered(&array).unwrap_or(array))?, ordered(&whole)?)?;
        let empty = self.run(|array| array.slice(0, 0))?;
        ensure!(empty.is_empty(), "no rows became {}", empty.len());
        let nulls = self.run(|array| match self.is_key(&array) {
            true => array,
            false => new_null_array(array.data_type(), array.len()),
        })?;
        match self.operator.descriptor().nulls {
            Nulls::Kept => ensure!(nulls.null_count() == ROWS, "nulls did not stay null"),
            Nulls::Filled => ensure!(nulls.null_count() == 0 && whole.null_count() == 0, "nulls were not filled"),
        }
        self.check_keys()
    }

    /// A keyed-random call without keys can be planned, with the same result type, and not run.
    fn check_keys(&self) -> Result<(), String> {
        let descriptor = self.operator.descriptor();
        if descriptor.determinism != Determinism::KeyedRandom {
            return Ok(());
        }
        let bare = Case {
            name: self.name.clone(),
            operator: self.operator,
            arguments: self.arguments[..descriptor.parameters.len()].to_vec(),
        };
        ensure!(bare.plan()? == self.plan()?, "keys change the result's type");
        match bare.run(|array| array) {
            Err(problem) if problem.contains("only runs inside a pipeline") => Ok(()),
            other => Err(format!("runs without keys: {other:?}")),
        }
    }

    /// Key columns are `UInt64`, never null, and stand behind the parameters.
    fn is_key(&self, array: &ArrayRef) -> bool {
        self.arguments
            .iter()
            .skip(self.operator.descriptor().parameters.len())
            .any(|argument| matches!(argument, Argument::Column(_, key) if key.to_data().ptr_eq(&array.to_data())))
    }

    /// The columns that stand for the operator's inputs.
    fn columns(&self) -> Vec<&ArrayRef> {
        let arguments = self.arguments.iter().take(self.operator.descriptor().parameters.len());
        let columns = arguments.filter_map(|argument| match argument {
            Argument::Column(_, array) => Some(array),
            Argument::Constant(_) => None,
        });
        columns.collect()
    }

    fn udf(&self) -> ScalarUDF {
        ScalarUDF::from(OperatorUdf::new(self.operator))
    }

    fn fields(&self) -> Vec<FieldRef> {
        let field = |argument: &Argument| match argument {
            Argument::Column(field, _) => Arc::clone(field),
            Argument::Constant(value) => Arc::new(Field::new("constant", value.data_type(), false)),
        };
        self.arguments.iter().map(field).collect()
    }

    fn plan(&self) -> Result<FieldRef, String> {
        let scalar = |argument: &'_ Argument| match argument {
            Argument::Column(..) => None,
            Argument::Constant(value) => Some(value.clone()),
        };
        let scalars: Vec<_> = self.arguments.iter().map(scalar).collect();
        let scalar_arguments: Vec<_> = scalars.iter().map(Option::as_ref).collect();
        let args = ReturnFieldArgs { arg_fields: &self.fields(), scalar_arguments: &scalar_arguments };
        self.udf().return_field_from_args(args).map_err(|e| e.strip_backtrace())
    }

    /// Runs the call on changed columns and holds the result against the planned field.
    fn run(&self, change: impl Fn(ArrayRef) -> ArrayRef) -> Result<ArrayRef, String> {
        let return_field = self.plan()?;
        let mut number_rows = ROWS;
        let value = |argument: &Argument| match argument {
            Argument::Column(_, array) => {
                let array = change(Arc::clone(array));
                number_rows = array.len();
                ColumnarValue::Array(array)
            }
            Argument::Constant(value) => ColumnarValue::Scalar(value.clone()),
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

/// A call per column type that the first input accepts; further inputs take their first type.
fn cases(operator: &'static dyn Operator, defaults: bool, draws: &mut Draws) -> Vec<Case> {
    let descriptor = operator.descriptor();
    let variants = descriptor.parameters.iter().map(|p| match p.kind {
        ParameterKind::Input(class) => columns(class, &mut draws.clone()).len(),
        ParameterKind::Constant(_) | ParameterKind::Rows => 1,
    });
    (0..variants.max().unwrap_or(1)).map(|variant| case(operator, variant, defaults, draws)).collect()
}

fn case(operator: &'static dyn Operator, variant: usize, defaults: bool, draws: &mut Draws) -> Case {
    let descriptor = operator.descriptor();
    let mut name = String::new();
    let mut arguments = vec![];
    for (i, parameter) in descriptor.parameters.iter().enumerate() {
        arguments.push(match (parameter.kind, parameter.default_value()) {
            (ParameterKind::Input(_), Some(null)) if defaults => Argument::Constant(null),
            (ParameterKind::Input(class), _) => {
                let mut columns = columns(class, draws);
                let (field, array) = columns.swap_remove(variant % columns.len());
                name = image_column::wording(&field);
                coerced(operator, i, field, array)
            }
            (ParameterKind::Constant(_), Some(value)) if defaults => Argument::Constant(value),
            (ParameterKind::Constant(kind), default) => Argument::Constant(constant(kind, i, default, draws)),
            (ParameterKind::Rows, _) => unreachable!("only table operators have rows"),
        });
    }
    if descriptor.determinism == Determinism::KeyedRandom {
        let keys = UInt64Array::from_iter_values((0..ROWS as u64).map(|row| random_key(17, 3, row)));
        let field = Arc::new(Field::new("random_key", DataType::UInt64, false));
        arguments.push(Argument::Column(field, Arc::new(keys)));
        arguments.push(Argument::Constant(ScalarValue::UInt64(Some(99))));
    }
    // Without its argument such a call runs as well.
    if descriptor.determinism == Determinism::StepLength && !defaults {
        let lengths = UInt64Array::from_iter_values((0..ROWS as u64).map(|row| row % 4));
        let field = Arc::new(Field::new(STEP_ARGUMENT, DataType::UInt64, false));
        arguments.push(Argument::Column(field, Arc::new(lengths)));
    }
    Case { name, operator, arguments }
}

/// A column after the cast that DataFusion inserts.
fn coerced(operator: &'static dyn Operator, position: usize, field: Field, array: ArrayRef) -> Argument {
    let mut types = vec![DataType::Null; operator.descriptor().parameters.len()];
    types[position] = field.data_type().clone();
    let types = operator.coerce(&types).unwrap_or(types);
    match cast(&array, &types[position]) {
        Ok(array) => Argument::Column(Arc::new(field.with_data_type(array.data_type().clone())), array),
        Err(_) => Argument::Column(Arc::new(field), array),
    }
}

/// A constant other than the default. Numbers rise with the position, so that a minimum stays below its maximum, and
/// numbers with a default stay near it, since only the operator knows their range.
fn constant(kind: ConstantKind, position: usize, default: Option<ScalarValue>, draws: &mut Draws) -> ScalarValue {
    match (kind, default) {
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
        (ConstantKind::File | ConstantKind::Vocabulary, None) => {
            ScalarValue::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tokenizers/gpt2.json"))
        }
    }
}

fn permutation(draws: &mut Draws) -> UInt32Array {
    let mut order: Vec<u32> = (0..ROWS as u32).collect();
    for i in (1..ROWS).rev() {
        order.swap(i, draws.below(i as u64 + 1) as usize);
    }
    UInt32Array::from(order)
}

/// Damaged files and images whose shapes lie: any error will do, a panic will not.
fn garbage(operator: &'static dyn Operator, draws: &mut Draws) -> Result<(), String> {
    for _ in 0..200 {
        let mut case = case(operator, 0, true, draws);
        for (parameter, argument) in operator.descriptor().parameters.iter().zip(&mut case.arguments) {
            let ParameterKind::Input(class) = parameter.kind else { continue };
            let (field, array) = match class {
                TypeClass::Binary => damaged_files(draws),
                TypeClass::Image => lying_images(draws),
                _ => return Ok(()),
            };
            *argument = Argument::Column(Arc::new(field), array);
        }
        match case.run(|array| array) {
            Err(problem) if problem == "panicked" => return Err(problem),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::OPERATORS;

    #[test]
    fn every_operator_conforms() {
        let seeds = OPERATORS.iter().flat_map(|operator| [1, 2, 3].map(|seed| (*operator, seed)));
        let problems: Vec<_> = seeds.filter_map(|(operator, seed)| check(operator, seed).err()).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn operators_that_say_so_commute() {
        let problems: Vec<_> = [1, 2, 3].into_iter().filter_map(|seed| check_pairs(OPERATORS, seed).err()).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
