//! Checks that operators commute as they declare.

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::scalar::ScalarValue;

use super::case::{Case, TestArgument, constant};
use super::columns::{ROWS, columns};
use crate::descriptor::{Determinism, ParameterKind, Pixels, TypeClass};
use crate::keyed::{Draws, random_key};
use crate::operator::Operator;

/// Runs each pair of operators that is declared to commute over images, in both orders, and compares the results bit
/// for bit. Each operator that declares this is checked with at least one other.
pub fn check_pairs(operators: &[&'static dyn Operator], seed: u64) -> Result<(), String> {
    let mut draws = Draws::new(seed, 1);
    for one in operators.iter().filter(|one| one.descriptor().pixels != Pixels::Any) {
        let name = one.descriptor().name;
        let mut checked = 0;
        for other in operators.iter().filter(|other| one.descriptor().commutes_with(other.descriptor())) {
            for class in [TypeClass::Image, TypeClass::FixedImage] {
                for column in columns(class, &mut draws) {
                    let calls = [call(*one, &mut draws), call(*other, &mut draws)];
                    let problem =
                        |problem: String| format!("{name} and {} (seed {seed}): {problem}", other.descriptor().name);
                    checked += usize::from(commute(&calls, column).map_err(problem)?);
                }
            }
        }
        ensure!(checked > 0, "{name} (seed {seed}): there is nothing that it commutes with");
    }
    Ok(())
}

/// A call without its first argument, the image.
struct ImageCall {
    operator: &'static dyn Operator,
    others: Vec<TestArgument>,
}

fn call(operator: &'static dyn Operator, draws: &mut Draws) -> ImageCall {
    let parameters = operator.descriptor().parameters.iter().enumerate().skip(1);
    let mut others: Vec<TestArgument> = parameters
        .map(|(at, parameter)| match (parameter.kind, parameter.default_value()) {
            (_, Some(default)) => TestArgument::Constant(default),
            (ParameterKind::Constant(kind), None) => TestArgument::Constant(constant(kind, at, None, draws)),
            (ParameterKind::Input(_) | ParameterKind::Rows, None) => TestArgument::Constant(ScalarValue::Null),
        })
        .collect();
    if operator.descriptor().determinism == Determinism::KeyedRandom {
        let keys = UInt64Array::from_iter_values((0..ROWS as u64).map(|row| random_key(17, 3, row)));
        let field = Arc::new(Field::new("random_key", DataType::UInt64, false));
        others.push(TestArgument::Column(field, Arc::new(keys)));
        others.push(TestArgument::Constant(ScalarValue::UInt64(Some(99))));
    }
    ImageCall { operator, others }
}

/// Returns whether both orders of the calls can be planned, or an error if their results differ.
fn commute([one, other]: &[ImageCall; 2], (field, array): (Field, ArrayRef)) -> Result<bool, String> {
    let column = (Arc::new(field), array);
    let in_order = |calls: [&ImageCall; 2]| -> Result<Option<(FieldRef, ArrayRef)>, String> {
        let mut column = column.clone();
        for call in calls {
            let mut arguments = vec![TestArgument::Column(column.0, column.1)];
            arguments.extend(call.others.iter().cloned());
            let case = Case { name: String::new(), operator: call.operator, arguments };
            let Ok(field) = case.plan() else { return Ok(None) };
            column = (field, case.run(|array| array)?);
        }
        Ok(Some(column))
    };
    let (Some(first), Some(second)) = (in_order([one, other])?, in_order([other, one])?) else { return Ok(false) };
    ensure!(first.0.data_type() == second.0.data_type(), "{} is {} the other way", first.0, second.0);
    ensure!(first.1 == second.1, "the results differ");
    Ok(true)
}
