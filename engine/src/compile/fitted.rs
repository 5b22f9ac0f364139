//! Constants that were fitted, in a plan.
//!
//! A fit is a call `get_field(value, name)` among the arguments of an operator. Its value is a subquery whose row is a
//! struct of the constants of all fits to the same rows: see `forebay_sql`. When the value is known, a constant takes
//! the place of the call.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::logical_expr::expr::{Exists, InSubquery, ScalarFunction, SetComparison};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::scalar::ScalarValue;
use forebay_operators::fits::FittedList;
use forebay_sql::FittedField;

use super::unknown::field_of_unknown;
use crate::error::{Error, ErrorKind, Result};

/// The value of a stage or a subquery, as plans have it.
#[derive(Clone, Debug)]
pub(crate) struct PlanValue {
    pub(crate) scalar: ScalarValue,
    /// The lists that it names.
    _lists: Vec<Arc<FittedList>>,
}

impl PlanValue {
    /// The value of a column of one row.
    ///
    /// # Errors
    /// `Data` for a fit to rows that have no value.
    pub(crate) fn of(row: &RecordBatch) -> Result<Self> {
        let column = row.column(0);
        if !is_fitted(column.data_type()) {
            let scalar = ScalarValue::try_from_array(column, 0).map_err(Error::from)?;
            return Ok(Self { scalar, _lists: Vec::new() });
        }
        let (fields, columns, _) = column.as_struct().clone().into_parts();
        let mut lists = Vec::new();
        let mut constants: Vec<(Arc<Field>, ArrayRef)> = Vec::new();
        for (field, column) in fields.iter().zip(columns) {
            if column.is_null(0) {
                let call = FittedField::parse(field.name()).map_or_else(String::new, |field| field.constant);
                let message = format!("{call} is fitted to rows that have no value");
                return Err(Error::new(ErrorKind::Data, message)
                    .with_hint("look at the conditions in WHERE and in fit_on, and at nulls"));
            }
            constants.push(match field.data_type() {
                DataType::List(item) if !item.data_type().is_floating() => {
                    let list = FittedList::provide(column.as_list::<i32>().value(0));
                    let text: ArrayRef = Arc::new(StringArray::from(vec![list.text()]));
                    lists.push(list);
                    (Arc::new(Field::new(field.name(), DataType::Utf8, true)), text)
                }
                _ => (Arc::clone(field), column),
            });
        }
        let scalar = ScalarValue::Struct(Arc::new(StructArray::from(constants)));
        Ok(Self { scalar, _lists: lists })
    }
}

/// Whether values of a type are those of fits.
pub(crate) fn is_fitted(data_type: &DataType) -> bool {
    match data_type {
        DataType::Struct(fields) => fields.first().is_some_and(|field| FittedField::is_name(field.name())),
        _ => false,
    }
}

/// The name of a list among fitted values that continues its last version.
pub(crate) fn kept_name(data_type: &DataType) -> Option<String> {
    let DataType::Struct(fields) = data_type else { return None };
    fields.iter().find_map(|field| Some(FittedField::parse(field.name())?.kept?.name))
}

/// The constant that a call takes from a fitted value, if it is known, or that is not known yet. Otherwise the
/// expression itself.
pub(super) fn with_constant(expr: Expr) -> PlanResult<Transformed<Expr>> {
    let Expr::ScalarFunction(ScalarFunction { args, .. }) = &expr else { return Ok(Transformed::no(expr)) };
    let [value, Expr::Literal(name, _)] = &args[..] else { return Ok(Transformed::no(expr)) };
    let Some(name) = name.try_as_str().flatten().filter(|name| FittedField::is_name(name)) else {
        return Ok(Transformed::no(expr));
    };
    let constant = match value {
        Expr::Literal(ScalarValue::Struct(value), _) => value
            .column_by_name(name)
            .filter(|_| value.is_valid(0))
            .map(|column| Ok::<_, DataFusionError>(Expr::Literal(ScalarValue::try_from_array(column, 0)?, None)))
            .transpose()?,
        value => field_of_unknown(value, name),
    };
    Ok(match constant {
        Some(constant) => Transformed::yes(constant),
        None => Transformed::no(expr),
    })
}

/// The subqueries of a plan whose rows are fitted values, without those within others of them.
pub(crate) fn fits(plan: &LogicalPlan) -> PlanResult<Vec<Arc<LogicalPlan>>> {
    let mut found: Vec<Arc<LogicalPlan>> = Vec::new();
    collect(plan, &mut found)?;
    Ok(found)
}

fn collect(plan: &LogicalPlan, found: &mut Vec<Arc<LogicalPlan>>) -> PlanResult<()> {
    plan.apply(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                match expr {
                    Expr::ScalarSubquery(of) if is_fit(&of.subquery) => {
                        if !found.contains(&of.subquery) {
                            found.push(Arc::clone(&of.subquery));
                        }
                        return Ok(TreeNodeRecursion::Jump);
                    }
                    Expr::ScalarSubquery(of)
                    | Expr::Exists(Exists { subquery: of, .. })
                    | Expr::InSubquery(InSubquery { subquery: of, .. })
                    | Expr::SetComparison(SetComparison { subquery: of, .. }) => collect(&of.subquery, found)?,
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(())
}

fn is_fit(plan: &LogicalPlan) -> bool {
    plan.schema().fields().first().is_some_and(|field| is_fitted(field.data_type()))
}

/// A plan with other expressions for its [`fits`], and constants where these are values.
pub(crate) fn with_fits(
    plan: LogicalPlan,
    by: impl Fn(&Arc<LogicalPlan>) -> PlanResult<Option<Expr>>,
) -> PlanResult<LogicalPlan> {
    // From above, since a fit is known by its whole plan.
    let replaced = plan.transform_down_with_subqueries(|node| {
        node.map_expressions(|expr| {
            expr.transform_down(|expr| match expr {
                Expr::ScalarSubquery(of) if is_fit(&of.subquery) => Ok(match by(&of.subquery)? {
                    Some(expr) => Transformed::new(expr, true, TreeNodeRecursion::Jump),
                    None => Transformed::no(Expr::ScalarSubquery(of)),
                }),
                other => Ok(Transformed::no(other)),
            })
        })
    })?;
    let with_constants = replaced
        .data
        .transform_up_with_subqueries(|node| node.map_expressions(|expr| expr.transform_up(with_constant)))?;
    Ok(with_constants.data)
}
