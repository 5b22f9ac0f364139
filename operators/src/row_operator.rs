//! The trait a table operator implements, and the plan it makes of a call.
//!
//! A table operator is called in FROM and makes rows of rows. It sees a call twice. [`RowOperator::plan`] reads the
//! constants and the input's columns, and answers with a [`RowPlan`]: what is computed of each input row before any row
//! is made, what the operator itself computes, and what each column of the result is. [`MakeRows::make`] then runs over
//! real rows. It only says which input row each new row derives from; the engine copies columns, and gives each new row
//! its identity and its random key.
//!
//! What may fail because of a row's values belongs into the functions of a plan ([`ReadColumn`],
//! [`ColumnValue::Call`]): they run row by row, so the engine finds the row that fails. `make` fails only when a window
//! is too large for it.

use std::fmt::Debug;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Fields};
use datafusion::common::{Result, internal_datafusion_err, plan_err};
use datafusion::logical_expr::ScalarUDF;
use datafusion::scalar::ScalarValue;

use crate::descriptor::{self, Descriptor};
use crate::made_rows::MakeRows;
use crate::nearest::nearest;

/// A function of rows, called in FROM.
pub trait RowOperator: Debug + Send + Sync {
    /// What the operator declares about itself.
    fn descriptor(&self) -> &'static Descriptor;

    /// Which rows the operator must see before it makes any.
    fn scope(&self) -> RowScope;

    /// Plans one call. Constants have been checked one by one; what concerns several of them, or the input's columns,
    /// is refused here.
    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan>;
}

/// Which rows a table operator must see before it makes any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowScope {
    /// One row at a time: the operator is called whenever rows arrive.
    Row,
    /// All rows of a window.
    Window,
}

/// How the engine runs one call of a table operator.
#[derive(Clone, Debug)]
pub struct RowPlan {
    /// The columns of the input that arguments name, by parameter. They identify the call, with its constants.
    pub columns: Vec<(&'static str, usize)>,
    /// What [`MakeRows::make`] sees of each input row, in this order.
    pub reads: Vec<ReadColumn>,
    /// The columns that [`MakeRows::make`] computes itself.
    pub made: Vec<FieldRef>,
    /// The columns of the result.
    pub results: Vec<ResultColumn>,
    /// The call, ready to run.
    pub rows: Arc<dyn MakeRows>,
}

/// What a call reads of a row: a column of the input, or what a function makes of it.
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
    /// Its name and type.
    pub field: FieldRef,
    /// What it holds.
    pub value: ColumnValue,
}

/// Where a value of the result comes from.
#[derive(Clone, Debug)]
pub enum ColumnValue {
    /// This column of the input, of the row's parent.
    Parent(usize),
    /// This column of the input, of the row's partner: see [`Made::partners`](crate::made_rows::Made::partners).
    Partner(usize),
    /// This one of the columns in [`RowPlan::made`].
    Made(usize),
    /// The row's random key.
    RandomKey,
    /// The call's site, which together with a random key gives [`Draws`](crate::keyed::Draws).
    Site,
    /// A function of these values.
    Call(Arc<ScalarUDF>, Vec<ColumnValue>),
}

impl RowPlan {
    /// A plan whose result has the columns of its input, unchanged, and that reads nothing.
    pub fn keeping(input: &Fields, rows: Arc<dyn MakeRows>) -> Self {
        let kept = |(at, field): (usize, &FieldRef)| ResultColumn::new(Arc::clone(field), ColumnValue::Parent(at));
        let results = input.iter().enumerate().map(kept).collect();
        Self { columns: Vec::new(), reads: Vec::new(), made: Vec::new(), results, rows }
    }

    /// Whether the result holds columns of the input.
    pub fn keeps_columns(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Parent(_) | ColumnValue::Partner(_)))
    }

    /// Whether each row of the result also holds columns of a second row.
    pub fn has_partners(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Partner(_)))
    }

    /// Whether the result depends on the call's site.
    pub fn has_site(&self) -> bool {
        self.any(&|value| matches!(value, ColumnValue::Site))
    }

    fn any(&self, is: &dyn Fn(&ColumnValue) -> bool) -> bool {
        self.results.iter().any(|result| result.value.any(is))
    }
}

impl ReadColumn {
    /// The column as it is.
    pub fn plain(column: usize) -> Self {
        Self { column, function: None }
    }
}

impl ResultColumn {
    /// A column of this name and type.
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

/// The arguments of a call while it is planned: constants by name, and the columns of the input.
#[derive(Clone, Copy, Debug)]
pub struct RowArguments<'a> {
    descriptor: &'static Descriptor,
    constants: &'a [ScalarValue],
    input: &'a Fields,
}

impl<'a> RowArguments<'a> {
    /// Arguments of a call of the operator that `descriptor` describes: a value for each parameter behind the rows.
    pub fn new(descriptor: &'static Descriptor, constants: &'a [ScalarValue], input: &'a Fields) -> Self {
        Self { descriptor, constants, input }
    }

    /// The columns of the input.
    pub fn input(&self) -> &'a Fields {
        self.input
    }

    /// A column of the input.
    pub fn field(&self, column: usize) -> &'a FieldRef {
        &self.input[column]
    }

    /// The value of a constant.
    ///
    /// # Errors
    /// An internal error if the descriptor does not declare it, as for the other constants.
    pub fn value(&self, name: &str) -> Result<&'a ScalarValue> {
        let at = self.descriptor.position(name).and_then(|at| at.checked_sub(1));
        at.and_then(|at| self.constants.get(at))
            .ok_or_else(|| internal_datafusion_err!("{} is called without {name}", self.descriptor.name))
    }

    /// An integer, or `None` for NULL.
    pub fn integer(&self, name: &str) -> Result<Option<i64>> {
        match (self.value(name)?, descriptor::integer(self.value(name)?)) {
            (_, Some(integer)) => Ok(Some(integer)),
            (value, None) if value.is_null() => Ok(None),
            (value, None) => self.refuse(name, format_args!("must be an integer, got {value}")),
        }
    }

    /// A positive integer.
    pub fn positive(&self, name: &str) -> Result<usize> {
        match self.integer(name)?.map(usize::try_from) {
            Some(Ok(integer)) if integer > 0 => Ok(integer),
            _ => self.refuse(name, format_args!("must be a positive integer, got {}", self.value(name)?)),
        }
    }

    /// A finite number.
    pub fn number(&self, name: &str) -> Result<f64> {
        match descriptor::number(self.value(name)?) {
            Some(number) => Ok(number),
            None => self.refuse(name, format_args!("must be a number, got {}", self.value(name)?)),
        }
    }

    /// A string, or `None` for NULL.
    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(descriptor::text(self.value(name)?))
    }

    /// The index of the input's column that the constant `name` names, or of the only one that `fits`. Errors word such
    /// a column as `what`.
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

    /// A planning error about one argument: `pack: "length" must be between 1 and 16777216, got 0`.
    pub fn refuse<T>(&self, name: &str, problem: impl std::fmt::Display) -> Result<T> {
        plan_err!("{}: \"{name}\" {problem}", self.descriptor.name)
    }
}
