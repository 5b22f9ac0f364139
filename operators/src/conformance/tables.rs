//! The checks that every table operator passes.
//!
//! A feed may compute a window again at any time and place. So the rows that an operator makes must depend on the
//! window's rows only, and not on the parts or the order in which they arrive. [`check`] runs an operator over
//! generated windows like the engine does, and compares runs by the identities of the new rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, UInt32Array, UInt64Array};
use arrow::compute::{interleave, take};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;

use super::case::{constant, permutation};
use super::columns::{ROWS, TABLE_CLASSES, columns};
use super::complete::complete;
use crate::descriptor::{ConstantKind, Determinism, ParameterKind, Rows};
use crate::keyed::{Draws, random_key};
use crate::made_rows::{InputPart, InputRows, Made, RowAt};
use crate::row_operator::{ColumnValue, RowArguments, RowOperator, RowPlan, RowScope};

/// Runs all checks on one table operator. The error says what differs and for which input.
pub fn check(operator: &'static dyn RowOperator, seed: u64) -> Result<(), String> {
    let descriptor = operator.descriptor();
    let named = |problem: String| format!("{} (seed {seed}): {problem}", descriptor.name);
    complete(descriptor).map_err(named)?;
    let rows = descriptor.parameters.first().map(|parameter| parameter.kind);
    let only = descriptor.parameters.iter().filter(|parameter| parameter.kind == ParameterKind::Rows).count();
    ensure!(rows == Some(ParameterKind::Rows) && only == 1, "{}: the first parameter is not its rows", descriptor.name);
    let mut draws = Draws::new(seed, 0);
    let mut made = 0;
    for defaults in [true, false] {
        for window in windows(&mut draws) {
            let constants = constants(operator, defaults, &mut draws);
            // An operator without a usable column rejects the window.
            let Ok(plan) = operator.plan(&RowArguments::new(descriptor, &constants, &window.fields)) else { continue };
            let case = TableCase { operator, plan, window };
            let wording = crate::image_column::wording(&case.window.fields[0]);
            made += case.check(&mut draws).map_err(|problem| named(format!("for {wording}: {problem}")))?;
        }
    }
    ensure!(made > 0, "{} (seed {seed}): no generated window has rows that it can use", descriptor.name);
    Ok(())
}

/// Returns windows with a column of every tested type, a label and an id.
fn windows(draws: &mut Draws) -> Vec<GeneratedWindow> {
    let tested: Vec<_> = TABLE_CLASSES.iter().flat_map(|class| columns(*class, draws)).collect();
    let mut windows = Vec::with_capacity(tested.len());
    for (field, array) in tested {
        let labels: ArrayRef = Arc::new(Int64Array::from_iter_values((0..ROWS).map(|_| draws.below(7) as i64)));
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
        let number = |name: &str| Field::new(name, DataType::Int64, false);
        windows.push(GeneratedWindow {
            fields: vec![field, number("label"), number("id")].into(),
            columns: vec![array, labels, ids],
            epoch: 3,
            is_shuffled: false,
        });
    }
    windows
}

fn constants(operator: &dyn RowOperator, defaults: bool, draws: &mut Draws) -> Vec<ScalarValue> {
    let parameters = operator.descriptor().parameters.iter().enumerate().skip(1);
    let constant = |(at, parameter): (usize, &crate::Parameter)| match (parameter.kind, parameter.default_value()) {
        (ParameterKind::Constant(_), Some(default)) if defaults => default,
        // A required text names a column.
        (ParameterKind::Constant(ConstantKind::Text), None) => ScalarValue::from("label"),
        (ParameterKind::Constant(kind), default) => constant(kind, at, default, draws),
        (ParameterKind::Input(_) | ParameterKind::Rows, _) => ScalarValue::Null,
    };
    parameters.map(constant).collect()
}

/// The rows of one window, with the engine's data about them.
#[derive(Clone)]
struct GeneratedWindow {
    fields: Fields,
    columns: Vec<ArrayRef>,
    epoch: u64,
    is_shuffled: bool,
}

/// A planned call over a generated window.
struct TableCase {
    operator: &'static dyn RowOperator,
    plan: RowPlan,
    window: GeneratedWindow,
}

/// The rows that a call made, in the order of their identities.
#[derive(Debug, PartialEq)]
struct CallOutcome {
    /// Parent and ordinal of each row.
    identities: Vec<(u32, Option<u64>)>,
    columns: Vec<ArrayRef>,
}

/// A generated row's parent, ordinal and partner, as indices in the window.
type Derived = (u32, Option<u64>, Option<u32>);

impl GeneratedWindow {
    fn random_key(&self, row: u32) -> u64 {
        random_key(17, self.epoch, u64::from(row))
    }

    /// Returns some rows of a column.
    fn rows(&self, column: usize, rows: &[u32]) -> Result<ArrayRef, String> {
        take(&self.columns[column], &UInt32Array::from(rows.to_vec()), None).map_err(|error| error.to_string())
    }
}

impl TableCase {
    /// Runs all checks. Returns the number of rows made.
    fn check(&self, draws: &mut Draws) -> Result<usize, String> {
        self.check_plan()?;
        let window = &self.window;
        let good = self.good_rows(window)?;
        let parts = |rows: &[u32]| vec![rows.to_vec()];
        let whole = self.run(window, &parts(&good))?;
        self.check_identities(&whole, &good)?;
        let same = |what: &str, got: CallOutcome, expect: &CallOutcome| match got == *expect {
            true => Ok(()),
            false => Err(format!("{what} differs\n got {got:?}\nwant {expect:?}")),
        };
        same("a second run", self.run(window, &parts(&good))?, &whole)?;
        for size in [1, 4] {
            let divided: Vec<Vec<u32>> = good.chunks(size).map(<[u32]>::to_vec).collect();
            same(&format!("a window in parts of {size}"), self.run(window, &divided)?, &whole)?;
        }
        let order: Vec<u32> = permutation(draws).values().to_vec();
        let permuted: Vec<u32> = order.into_iter().filter(|row| good.contains(row)).collect();
        same("a window whose rows arrive in another order", self.run(window, &parts(&permuted))?, &whole)?;
        let shuffled = GeneratedWindow { is_shuffled: true, ..window.clone() };
        let shuffled_whole = self.run(&shuffled, &parts(&good))?;
        self.check_identities(&shuffled_whole, &good)?;
        same("a shuffled window in parts", self.run(&shuffled, &[permuted, vec![]])?, &shuffled_whole)?;
        let other_epoch = GeneratedWindow { epoch: 4, ..window.clone() };
        match self.operator.descriptor().determinism {
            Determinism::KeyedRandom | Determinism::StepLength => {}
            Determinism::WindowOrder => same("another epoch", self.run(&other_epoch, &parts(&good))?, &whole)?,
            Determinism::Deterministic => {
                let other_epoch = GeneratedWindow { is_shuffled: true, ..other_epoch };
                same("another epoch, shuffled,", self.run(&other_epoch, &parts(&good))?, &whole)?;
            }
        }
        for empty in [vec![], vec![vec![]]] {
            let none = self.run(window, &empty)?;
            ensure!(none.identities.is_empty(), "an empty window became {} rows", none.identities.len());
        }
        for &row in &good {
            let alone = self.run(window, &[vec![row]])?;
            self.check_identities(&alone, &[row])?;
            if self.operator.scope() == RowScope::Row {
                same(&format!("row {row} alone"), alone, &whole.of_parent(row)?)?;
            }
        }
        Ok(whole.identities.len())
    }

    /// Checks that the plan refers only to existing columns.
    fn check_plan(&self) -> Result<(), String> {
        let Self { operator, plan, window } = self;
        let columns = window.fields.len();
        ensure!(plan.reads.iter().all(|read| read.column < columns), "the plan reads a column that is not there");
        ensure!(
            plan.columns.iter().all(|(_, column)| *column < columns),
            "an argument names a column that is not there"
        );
        let declared = |name: &str| operator.descriptor().position(name).is_some();
        ensure!(plan.columns.iter().all(|(name, _)| declared(name)), "an argument that is not declared names a column");
        ensure!(!plan.results.is_empty(), "the result has no column");
        Ok(())
    }

    /// Checks that the number of rows matches the declaration, and that identities are unique.
    fn check_identities(&self, outcome: &CallOutcome, input: &[u32]) -> Result<(), String> {
        let identities = &outcome.identities;
        ensure!(identities.windows(2).all(|pair| pair[0] < pair[1]), "two rows have one identity: {identities:?}");
        let keep_theirs = identities.iter().all(|(_, ordinal)| ordinal.is_none());
        match self.operator.descriptor().rows {
            Rows::OneToOne => {
                let mut input = input.to_vec();
                input.sort_unstable();
                let parents: Vec<u32> = identities.iter().map(|(parent, _)| *parent).collect();
                ensure!(keep_theirs && parents == input, "one-to-one, but {input:?} became {identities:?}");
            }
            Rows::Shrinks => ensure!(keep_theirs, "shrinking, but rows have new identities: {identities:?}"),
            Rows::Grows => {}
        }
        Ok(())
    }

    /// Returns the rows that can be read. Each other row must fail by itself too, so that the engine can name it.
    fn good_rows(&self, window: &GeneratedWindow) -> Result<Vec<u32>, String> {
        let all: Vec<u32> = (0..ROWS as u32).collect();
        let reads_of = |rows: &[u32]| self.reads(window, rows);
        let readable: Vec<u32> = all.iter().copied().filter(|row| reads_of(&[*row]).is_ok()).collect();
        let together =
            reads_of(&readable).map_err(|error| format!("rows that can be read alone fail together: {error}"))?;
        for (at, row) in readable.iter().enumerate() {
            let alone = reads_of(&[*row])?;
            let same = alone.iter().zip(&together).all(|(alone, together)| *alone == together.slice(at, 1));
            ensure!(same, "what is read of row {row} depends on other rows");
        }
        Ok(readable)
    }

    /// Returns the values that the plan reads from some rows.
    fn reads(&self, window: &GeneratedWindow, rows: &[u32]) -> Result<Vec<ArrayRef>, String> {
        let read = |read: &crate::ReadColumn| {
            let array = window.rows(read.column, rows)?;
            match &read.function {
                None => Ok(array),
                Some(function) => call(function, &[(Arc::clone(&window.fields[read.column]), array)], rows.len()),
            }
        };
        self.plan.reads.iter().map(read).collect()
    }

    /// Runs the call over parts of a window, like the engine does.
    fn run(&self, window: &GeneratedWindow, parts: &[Vec<u32>]) -> Result<CallOutcome, String> {
        let groups: Vec<&[Vec<u32>]> = match self.operator.scope() {
            RowScope::Row => parts.chunks(1).collect(),
            RowScope::Window => vec![parts],
        };
        let (mut derived, mut made): (Vec<Derived>, Vec<Vec<ArrayRef>>) = (Vec::new(), Vec::new());
        let wanted: Vec<usize> = (0..self.plan.made.len()).collect();
        for group in groups {
            for rows in self.make(window, group, &wanted)? {
                derived.extend(self.derived(group, &rows)?);
                made.push(rows.columns);
            }
            self.check_pruning(window, group)?;
        }
        let made = (0..self.plan.made.len()).map(|at| {
            let columns: Vec<&dyn Array> = made.iter().map(|columns| columns[at].as_ref()).collect();
            match columns.is_empty() {
                true => Ok(arrow::array::new_empty_array(self.plan.made[at].data_type())),
                false => arrow::compute::concat(&columns).map_err(|error| error.to_string()),
            }
        });
        self.outcome(window, derived, &made.collect::<Result<Vec<_>, _>>()?)
    }

    fn make(&self, window: &GeneratedWindow, parts: &[Vec<u32>], wanted: &[usize]) -> Result<Vec<Made>, String> {
        let inputs: Vec<(Vec<ArrayRef>, UInt64Array, UInt64Array)> = parts
            .iter()
            .map(|rows| {
                let numbers = |of: &dyn Fn(u32) -> u64| UInt64Array::from_iter_values(rows.iter().map(|row| of(*row)));
                let (keys, ids) = (numbers(&|row| window.random_key(row)), numbers(&|row| 100 + u64::from(row)));
                Ok((self.reads(window, rows)?, keys, ids))
            })
            .collect::<Result<_, String>>()?;
        let order = |key: u64| if window.is_shuffled { random_key(key, 5, 5) } else { 0 };
        let parts = inputs.iter().map(|(reads, keys, ids)| InputPart { reads, random_keys: keys, origins: ids, ids });
        let input = InputRows { parts: parts.collect(), wanted, order: &order, call: 1, bytes_max: 1 << 30 };
        let made = self.plan.rows.make(&input).map_err(|error| error.strip_backtrace())?;
        made.map(|rows| rows.map_err(|error| error.strip_backtrace())).collect()
    }

    /// Checks that each computed column is the same when it is the only requested one.
    fn check_pruning(&self, window: &GeneratedWindow, parts: &[Vec<u32>]) -> Result<(), String> {
        let all: Vec<usize> = (0..self.plan.made.len()).collect();
        let whole = self.make(window, parts, &all)?;
        for &column in &all {
            let alone = self.make(window, parts, &[column])?;
            let same = alone.len() == whole.len()
                && alone.iter().zip(&whole).all(|(alone, whole)| {
                    alone.parents == whole.parents && alone.columns[..] == whole.columns[column..=column]
                });
            ensure!(same, "column {column} is another if it alone is asked for");
        }
        Ok(())
    }

    /// Returns the rows made from `parts`, as indices in the window.
    fn derived(&self, parts: &[Vec<u32>], rows: &Made) -> Result<Vec<Derived>, String> {
        let count = rows.parents.len();
        ensure!(rows.ordinals.len() == count, "{count} rows have {} ordinals", rows.ordinals.len());
        let partners = if self.plan.has_partners() { count } else { 0 };
        ensure!(rows.partners.len() == partners, "{count} rows have {} partners", rows.partners.len());
        ensure!(rows.columns.len() == self.plan.made.len(), "{} columns were made", rows.columns.len());
        for (column, field) in rows.columns.iter().zip(&self.plan.made) {
            ensure!(column.len() == count, "a column of {count} rows has {}", column.len());
            ensure!(
                column.data_type() == field.data_type(),
                "{} was planned, {}",
                field.data_type(),
                column.data_type()
            );
        }
        let place = |row: &RowAt| {
            let part: Option<&Vec<u32>> = parts.get(row.part as usize);
            part.and_then(|part| part.get(row.row as usize)).copied().ok_or_else(|| format!("{row:?} is no input row"))
        };
        let row = |at: usize| {
            let partner = rows.partners.get(at).map(place).transpose()?;
            Ok((place(&rows.parents[at])?, rows.ordinals[at], partner))
        };
        (0..count).map(row).collect()
    }

    /// Returns the result's columns, in the order of identities. Leaves out rows on which a function fails, if it also
    /// fails for each of them alone.
    fn outcome(
        &self,
        window: &GeneratedWindow,
        derived: Vec<Derived>,
        made: &[ArrayRef],
    ) -> Result<CallOutcome, String> {
        let mut order: Vec<usize> = (0..derived.len()).collect();
        order.sort_by_key(|&at| (derived[at].0, derived[at].1));
        let results = |rows: &[usize]| -> Result<Vec<ArrayRef>, String> {
            let derived: Vec<Derived> = rows.iter().map(|&at| derived[at]).collect();
            let indices: Vec<(usize, usize)> = rows.iter().map(|&at| (0, at)).collect();
            let made = made.iter().map(|column| interleave(&[column.as_ref()], &indices).map_err(|e| e.to_string()));
            let of = MadeWindow { case: self, window, derived: &derived, made: &made.collect::<Result<Vec<_>, _>>()? };
            self.plan.results.iter().map(|result| of.result(result)).collect()
        };
        order.retain(|&at| results(&[at]).is_ok());
        let columns = results(&order).map_err(|error| format!("rows that succeed alone fail together: {error}"))?;
        for (index, &at) in order.iter().enumerate() {
            let same = results(&[at])?.iter().zip(&columns).all(|(alone, all)| *alone == all.slice(index, 1));
            ensure!(same, "the result of row {:?} depends on other rows", derived[at]);
        }
        Ok(CallOutcome { identities: order.iter().map(|&at| (derived[at].0, derived[at].1)).collect(), columns })
    }
}

impl CallOutcome {
    /// Returns the rows that derive from one row.
    fn of_parent(&self, parent: u32) -> Result<Self, String> {
        let rows: Vec<u32> =
            (0..self.identities.len()).filter(|&at| self.identities[at].0 == parent).map(|at| at as u32).collect();
        let indices = UInt32Array::from(rows.clone());
        let column = |column: &ArrayRef| take(column, &indices, None).map_err(|error| error.to_string());
        Ok(Self {
            identities: rows.iter().map(|&at| self.identities[at as usize]).collect(),
            columns: self.columns.iter().map(column).collect::<Result<_, _>>()?,
        })
    }
}

/// The new rows from which results are computed.
struct MadeWindow<'a> {
    case: &'a TableCase,
    window: &'a GeneratedWindow,
    derived: &'a [Derived],
    made: &'a [ArrayRef],
}

impl MadeWindow<'_> {
    /// Returns a column of the result, and compares it with its planned field.
    fn result(&self, result: &crate::ResultColumn) -> Result<ArrayRef, String> {
        let (_, array) = self.value(&result.value)?;
        let field = &result.field;
        ensure!(
            array.data_type() == field.data_type(),
            "\"{}\" was planned as {} and is {}",
            field.name(),
            field.data_type(),
            array.data_type()
        );
        ensure!(field.is_nullable() || array.null_count() == 0, "\"{}\" has nulls, planned without", field.name());
        Ok(array)
    }

    fn value(&self, value: &ColumnValue) -> Result<(FieldRef, ArrayRef), String> {
        let rows = self.derived.len();
        let number = |numbers: UInt64Array| -> (FieldRef, ArrayRef) {
            (Arc::new(Field::new("number", DataType::UInt64, false)), Arc::new(numbers))
        };
        Ok(match value {
            ColumnValue::Parent(column) => {
                let parents: Vec<u32> = self.derived.iter().map(|(parent, ..)| *parent).collect();
                (Arc::clone(&self.window.fields[*column]), self.window.rows(*column, &parents)?)
            }
            ColumnValue::Partner(column) => {
                let partners: Vec<u32> = self.derived.iter().map(|(.., partner)| partner.unwrap_or(0)).collect();
                (Arc::clone(&self.window.fields[*column]), self.window.rows(*column, &partners)?)
            }
            ColumnValue::Made(column) => (Arc::clone(&self.case.plan.made[*column]), Arc::clone(&self.made[*column])),
            ColumnValue::RandomKey => {
                let key = |(parent, ordinal, _): &Derived| match ordinal {
                    Some(ordinal) => random_key(self.window.random_key(*parent), 6, *ordinal),
                    None => self.window.random_key(*parent),
                };
                number(UInt64Array::from_iter_values(self.derived.iter().map(key)))
            }
            ColumnValue::Site => number(UInt64Array::from_value(99, rows)),
            ColumnValue::Call(function, values) => {
                let arguments = values.iter().map(|value| self.value(value)).collect::<Result<Vec<_>, _>>()?;
                let fields: Vec<FieldRef> = arguments.iter().map(|(field, _)| Arc::clone(field)).collect();
                let result = call(function, &arguments, rows)?;
                (return_field(function, &fields)?, result)
            }
        })
    }
}

fn return_field(function: &ScalarUDF, fields: &[FieldRef]) -> Result<FieldRef, String> {
    let scalars = vec![None; fields.len()];
    let args = ReturnFieldArgs { arg_fields: fields, scalar_arguments: &scalars };
    function.return_field_from_args(args).map_err(|error| error.strip_backtrace())
}

fn call(function: &ScalarUDF, arguments: &[(FieldRef, ArrayRef)], rows: usize) -> Result<ArrayRef, String> {
    let fields: Vec<FieldRef> = arguments.iter().map(|(field, _)| Arc::clone(field)).collect();
    let args = ScalarFunctionArgs {
        args: arguments.iter().map(|(_, array)| ColumnarValue::Array(Arc::clone(array))).collect(),
        return_field: return_field(function, &fields)?,
        arg_fields: fields,
        number_rows: rows,
        config_options: Arc::new(ConfigOptions::default()),
    };
    let result = function.invoke_with_args(args).and_then(|value| value.into_array(rows));
    result.map_err(|error| error.strip_backtrace())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::TABLE_OPERATORS;

    #[test]
    fn every_table_operator_conforms() {
        let seeds = TABLE_OPERATORS.iter().flat_map(|operator| [1, 2, 3].map(|seed| (*operator, seed)));
        let problems: Vec<_> = seeds.filter_map(|(operator, seed)| check(operator, seed).err()).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
