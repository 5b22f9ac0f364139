//! The checks of operators over one row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt64Array, new_null_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field};
use datafusion::scalar::ScalarValue;

use super::case::{Case, TestArgument, constant, permutation};
use super::columns::{ROWS, columns, damaged_files, lying_images, sides};
use super::complete::complete;
use super::sizes;
use crate::descriptor::{Determinism, Nulls, ParameterKind, STEP_ARGUMENT, TypeClass};
use crate::image_column;
use crate::keyed::{Draws, random_key};
use crate::operator::Operator;

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
        // `take` copies, so here the operator is the only owner of its input.
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

    /// Checks that a keyed-random call without keys can be planned, with the same result type, but not run.
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

    /// Returns whether an array is a key column. Key columns are `UInt64`, never null, and follow the parameters.
    fn is_key(&self, array: &ArrayRef) -> bool {
        self.arguments
            .iter()
            .skip(self.operator.descriptor().parameters.len())
            .any(|argument| matches!(argument, TestArgument::Column(_, key) if key.to_data().ptr_eq(&array.to_data())))
    }
}

/// Returns a call per column type that the first input accepts. Other inputs have their first type.
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
            (ParameterKind::Input(_), Some(null)) if defaults => TestArgument::Constant(null),
            (ParameterKind::Input(class), _) => {
                let mut columns = columns(class, draws);
                let (field, array) = columns.swap_remove(variant % columns.len());
                name = image_column::wording(&field);
                coerced(operator, i, field, array)
            }
            (ParameterKind::Constant(_), Some(value)) if defaults => TestArgument::Constant(value),
            (ParameterKind::Constant(kind), default) => TestArgument::Constant(constant(kind, i, default, draws)),
            (ParameterKind::Rows, _) => unreachable!("only table operators have rows"),
        });
    }
    let class = |class| descriptor.parameters.iter().position(|p| p.kind == ParameterKind::Input(class));
    if let (Some(image), Some(side)) = (class(TypeClass::Image), class(TypeClass::Side)) {
        name_sides(&mut arguments, image, side);
    }
    if descriptor.determinism == Determinism::KeyedRandom {
        let keys = UInt64Array::from_iter_values((0..ROWS as u64).map(|row| random_key(17, 3, row)));
        let field = Arc::new(Field::new("random_key", DataType::UInt64, false));
        arguments.push(TestArgument::Column(field, Arc::new(keys)));
        arguments.push(TestArgument::Constant(ScalarValue::UInt64(Some(99))));
    }
    // Such a call also runs without its appended argument.
    if descriptor.determinism == Determinism::StepLength && !defaults {
        let lengths = UInt64Array::from_iter_values((0..ROWS as u64).map(|row| row % 4));
        let field = Arc::new(Field::new(STEP_ARGUMENT, DataType::UInt64, false));
        arguments.push(TestArgument::Column(field, Arc::new(lengths)));
    }
    Case { name, operator, arguments }
}

/// Replaces the height at `side` and the width after it by those of the images, since other sizes may be errors.
fn name_sides(arguments: &mut [TestArgument], image: usize, side: usize) {
    let TestArgument::Column(field, images) = &arguments[image] else { return };
    let Ok(sides) = sides(field, images) else { unreachable!("generated images have sizes") };
    for (argument, side) in arguments[side..].iter_mut().zip(sides) {
        let field = Field::new("input", side.data_type().clone(), true);
        *argument = TestArgument::Column(Arc::new(field), side);
    }
}

/// Returns a column after the cast that DataFusion inserts.
fn coerced(operator: &'static dyn Operator, position: usize, field: Field, array: ArrayRef) -> TestArgument {
    let mut types = vec![DataType::Null; operator.descriptor().parameters.len()];
    types[position] = field.data_type().clone();
    let types = operator.coerce(&types).unwrap_or(types);
    match cast(&array, &types[position]) {
        Ok(array) => TestArgument::Column(Arc::new(field.with_data_type(array.data_type().clone())), array),
        Err(_) => TestArgument::Column(Arc::new(field), array),
    }
}

/// Runs damaged files and images with wrong shapes. Any error passes, a panic fails.
fn garbage(operator: &'static dyn Operator, draws: &mut Draws) -> Result<(), String> {
    for _ in 0..200 {
        let mut case = case(operator, 0, true, draws);
        for (parameter, argument) in operator.descriptor().parameters.iter().zip(&mut case.arguments) {
            let ParameterKind::Input(class) = parameter.kind else { continue };
            let (field, array) = match class {
                TypeClass::Binary | TypeClass::Mask => damaged_files(draws),
                TypeClass::Image => lying_images(draws),
                TypeClass::Side => continue,
                _ => return Ok(()),
            };
            *argument = TestArgument::Column(Arc::new(field), array);
        }
        match case.run(|array| array) {
            Err(problem) if problem == "panicked" => return Err(problem),
            _ => {}
        }
    }
    Ok(())
}
