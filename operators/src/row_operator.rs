//! The trait of table operators, and the plan of a call.
//!
//! A table operator is called in FROM and makes rows from rows. It handles a call in two steps. [`RowOperator::plan`]
//! reads the constants and the input's columns, and returns a [`RowPlan`]: the functions of each input row that run
//! first, the columns that the operator computes itself, and the source of each result column. [`MakeRows::make`] then
//! runs over actual rows. It only names the input row from which each new row derives. The engine copies columns, and
//! gives each new row its identity and its random key.
//!
//! Work that may fail because of a row's values belongs in the functions of a plan ([`ReadColumn`],
//! [`ColumnValue::Call`]). They run row by row, so the engine finds the bad row. `make` fails only when a window is too
//! large for it.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Fields};
use datafusion::common::{Result, internal_datafusion_err, plan_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::scalar::ScalarValue;
use forebay_diagnostics::nearest;

use crate::constants;
use crate::descriptor::Descriptor;
use crate::made_rows::MakeRows;

/// A function of rows, called in FROM.
pub trait RowOperator: Debug + Send + Sync {
    /// Returns the operator's declaration.
    fn descriptor(&self) -> &'static Descriptor;

    /// Returns the rows that the operator must see before it makes any.
    fn scope(&self) -> RowScope;

    /// Plans one call. Each constant has been checked; this method rejects wrong combinations of constants, and wrong
    /// columns.
    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan>;
}

/// The rows that a table operator must see before it makes any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowScope {
    /// One row at a time: the operator is called whenever rows arrive.
    Row,
    /// All rows of a window.
    Window,
}

/// A plan by which the engine runs one call of a table operator.
#[derive(Clone, Debug)]
pub struct RowPlan {
    /// The input columns that arguments name, by parameter. Together with the constants they identify the call.
    pub columns: Vec<(&'static str, usize)>,
    /// The values that [`MakeRows::make`] receives for each input row, in this order.
    pub reads: Vec<ReadColumn>,
    /// The columns that [`MakeRows::make`] computes itself.
    pub made: Vec<FieldRef>,
    /// The columns of the result.
    pub results: Vec<ResultColumn>,
    /// The call, ready to run.
    pub rows: Arc<dyn MakeRows>,
}

/// A value that a call reads from a row: an input column, or a function of it.
#[derive(Clone, Debug)]
pub struct ReadColumn {
    /// The column's index in the input.
    pub column: usize,
    /// A function of that column alone.
    pub function: Option<Arc<ScalarUDF>>,
}

/// A column of the result.
#[derive(Clone, Debug)]
pub struct ResultColumn {
    /// The column's name and type.
    pub field: FieldRef,
    /// The source of the column's values.
    pub value: ColumnValue,
}

/// The source of a result value.
#[derive(Clone, Debug)]
pub enum ColumnValue {
    /// An input column, from the row's parent.
    Parent(usize),
    /// An input column, from the row's partner: see [`Made::partners`](crate::made_rows::Made::partners).
    Partner(usize),
    /// A column in [`RowPlan::made`].
    Made(usize),
    /// The row's random key.
    RandomKey,
    /// The call's site. A site and a random key make [`Draws`](crate::keyed::Draws).
    Site,
    /// A function of these values.
    Call(Arc<ScalarUDF>, Vec<ColumnValue>),
}

impl RowPlan {
    /// Makes a plan whose result has the input's columns, unchanged, and that reads nothing.
    pub fn keeping(input: &Fields, rows: Arc<dyn MakeRows>) -> Self {
        let kept = |(at, field): (usize, &FieldRef)| ResultColumn::new(Arc::clone(field), ColumnValue::Parent(at));
        let results = input.iter().enumerate().map(kept).collect();
        Self { columns: Vec::new(), reads: Vec::new(), made: Vec::new(), results, rows }
    }

    /// Returns whether the result has columns of the input.
    pub fn keeps_columns(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Parent(_) | ColumnValue::Partner(_)))
    }

    /// Returns whether result rows also have columns of a second row.
    pub fn has_partners(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Partner(_)))
    }

    /// Returns whether the result depends on the call's site.
    pub fn has_site(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Site))
    }

    fn any(&self, is: &dyn Fn(&ColumnValue) -> bool) -> bool {
        self.results.iter().any(|result| result.value.any(is))
    }
}

impl ReadColumn {
    /// Reads the column unchanged.
    pub fn plain(column: usize) -> Self {
        Self { column, function: None }
    }
}

impl ResultColumn {
    /// Makes a column of this name and type.
    pub fn new(field: FieldRef, value: ColumnValue) -> Self {
        Self { field, value }
    }
}

impl ColumnValue {
    fn any(&self, is: &dyn Fn(&Self) -> bool) -> bool {
        match self {
            Self::Call(_, values) => values.iter().any(|value| value.any(is)),
            value => is(value),
        }
    }
}

/// The arguments of a call during planning: constants by name, and the input's columns.
#[derive(Clone, Copy, Debug)]
pub struct RowArguments<'a> {
    descriptor: &'static Descriptor,
    constants: &'a [ScalarValue],
    input: &'a Fields,
}

impl<'a> RowArguments<'a> {
    /// Makes the arguments of a call from a value for each parameter after the rows.
    pub fn new(descriptor: &'static Descriptor, constants: &'a [ScalarValue], input: &'a Fields) -> Self {
        Self { descriptor, constants, input }
    }

    /// Returns the columns of the input.
    pub fn input(&self) -> &'a Fields {
        self.input
    }

    /// Returns a column of the input.
    pub fn field(&self, column: usize) -> &'a FieldRef {
        &self.input[column]
    }

    /// Returns the value of a constant.
    ///
    /// # Errors
    /// Returns an internal error if the descriptor does not declare the constant. So do the other methods for
    /// constants.
    pub fn value(&self, name: &str) -> Result<&'a ScalarValue> {
        let at = self.descriptor.position(name).and_then(|at| at.checked_sub(1));
        at.and_then(|at| self.constants.get(at))
            .ok_or_else(|| internal_datafusion_err!("{} is called without {name}", self.descriptor.name))
    }

    /// Returns an integer, or `None` for NULL.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        match (self.value(name)?, constants::integer(self.value(name)?)) {
            (_, Some(integer)) => Ok(Some(integer)),
            (value, None) if value.is_null() => Ok(None),
            (value, None) => self.refuse(name, format_args!("must be an integer, got {value}")),
        }
    }

    /// Returns a positive integer.
    pub fn positive(&self, name: &str) -> Result<usize> {
        match self.integer(name)?.map(usize::try_from) {
            Some(Ok(integer)) if integer > 0 => Ok(integer),
            _ => self.refuse(name, format_args!("must be a positive integer, got {}", self.value(name)?)),
        }
    }

    /// Returns a finite number.
    pub fn number(&self, name: &str) -> Result<f64> {
        match constants::number(self.value(name)?) {
            Some(number) => Ok(number),
            None => self.refuse(name, format_args!("must be a number, got {}", self.value(name)?)),
        }
    }

    /// Returns a string, or `None` for NULL.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(constants::text(self.value(name)?))
    }

    /// Returns the index of the input column that the constant `name` names, or of the only one that `fits`. Errors
    /// describe such a column as `what`.
    pub fn column(&self, name: &str, what: &str, fits: impl Fn(&Field) -> bool) -> Result<usize> {
        let operator = self.descriptor.name;
        let fitting: Vec<(usize, &str)> = (self.input.iter().enumerate())
            .filter(|(_, field)| fits(field))
            .map(|(at, field)| (at, field.name().as_str()))
            .collect();
        let names = || fitting.iter().map(|(_, name)| *name);
        match (self.text(name)?, &fitting[..]) {
            (Some(column), fitting) => match fitting.iter().find(|(_, name)| *name == column) {
                Some((at, _)) => Ok(*at),
                None if self.input.iter().any(|field| field.name() == column) => {
                    plan_err!("{operator}: \"{name}\" must name {what}, and \"{column}\" is none")
                }
                None => {
                    let near = nearest(column, names()).map(|near| format!(". Did you mean \"{near}\"?"));
                    plan_err!("{operator}: \"{name}\" names no column: \"{column}\"{}", near.unwrap_or_default())
                }
            },
            (None, [(at, _)]) => Ok(*at),
            (None, []) => plan_err!("{operator}: \"rows\" has no column with {what}"),
            (None, _) => {
                let names = names().collect::<Vec<_>>().join(", ");
                plan_err!(
                    "{operator}: \"rows\" has several columns with {what} ({names}). Name one of them with {name}"
                )
            }
        }
    }

    /// Returns a planning error about one argument: `pack: "length" must be between 1 and 16777216, got 0`.
    pub fn refuse<T>(&self, name: &str, problem: impl std::fmt::Display) -> Result<T> {
        plan_err!("{}: \"{name}\" {problem}", self.descriptor.name)
    }
}
