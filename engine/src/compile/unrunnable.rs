//! Plans that neither engine can run, though DataFusion makes them: the reason, and the word of the text that it is
//! about.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{InSubquery, WindowFunction, WindowFunctionParams};
use datafusion::logical_expr::utils::{merge_schema, split_conjunction};
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, TryCast, Union, WindowFrameBound, WindowFrameUnits,
};
use forebay_arrays::{TensorType, type_name};

use crate::error::Error;

/// A query that cannot run.
pub(crate) struct Unrunnable {
    /// The word in the text that is the reason, such as the name of a function.
    pub(crate) word: Option<String>,
    pub(crate) error: Error,
}

impl From<DataFusionError> for Unrunnable {
    fn from(error: DataFusionError) -> Self {
        Self { word: None, error: error.into() }
    }
}

/// Refuses a plan, as it was planned from its text, that cannot run.
pub(crate) fn check_planned(plan: &LogicalPlan) -> Result<(), Unrunnable> {
    check_unions(plan)?;
    check_windows(plan)
}

/// Refuses an analyzed plan that cannot run. `planned` is the plan before.
pub(crate) fn check_analyzed(
    planned: &LogicalPlan,
    analyzed: &LogicalPlan,
    state: &SessionState,
) -> Result<(), Unrunnable> {
    check_dates(planned, analyzed)?;
    check_memberships(analyzed)?;
    check_subqueries(analyzed, state)
}

/// Refuses a UNION of tensors of different types. DataFusion would describe the rows of all parts as those of the last.
fn check_unions(plan: &LogicalPlan) -> Result<(), Unrunnable> {
    if !plan.exists(|node| Ok(matches!(node, LogicalPlan::Union(_))))? {
        return Ok(());
    }
    // Until types are resolved, a UNION has those of its first part, which may be a null, and UNION BY NAME describes
    // the columns of a part as those of the whole. So the types are found again, from the tables upwards.
    let mut refusal = None;
    let typed = plan.clone().transform_up_with_subqueries(|node| match node {
        LogicalPlan::Union(union) => {
            let (schema, mixed) = columns_of_union(&union)?;
            refusal = refusal.take().or(mixed);
            Ok(Transformed::yes(LogicalPlan::Union(Union { schema: Arc::new(schema), ..union })))
        }
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    });
    match (typed, refusal) {
        (_, Some(error)) => Err(Unrunnable { word: Some("UNION".to_owned()), error }),
        (typed, None) => Ok(typed.map(|_| ())?),
    }
}

/// The columns of a UNION, each as that of the first part that is more than a null, and the reason why it cannot run.
fn columns_of_union(union: &Union) -> PlanResult<(DFSchema, Option<Error>)> {
    let mut refusal = None;
    let mut columns = Vec::new();
    for (at, (table, described)) in union.schema.iter().enumerate() {
        let mut parts = union.inputs.iter().map(|input| input.schema().field(at));
        let first = parts.find(|field| *field.data_type() != DataType::Null);
        let first = first.map_or_else(|| Arc::clone(described), Arc::clone);
        let differs = |other: &&FieldRef| *other.data_type() != DataType::Null && tensor(other) != tensor(&first);
        if let (None, Some(other)) = (&refusal, parts.find(differs)) {
            let (name, shown, other) = (described.name(), type_name(&first), type_name(other));
            let error = Error::invalid(match shown == other {
                true => format!("UNION has different tensors in its column \"{name}\", which are all shown as {shown}"),
                false => format!("UNION has {shown} and {other} in its column \"{name}\""),
            });
            let hint = "make the tensors alike in each part, with resize, reshape or cast_tensor";
            refusal = Some(error.with_hint(hint));
        }
        columns.push((table.cloned(), Arc::new(first.as_ref().clone().with_name(described.name()))));
    }
    Ok((DFSchema::new_with_metadata(columns, union.schema.metadata().clone())?, refusal))
}

/// The tensor type of a field, without the names of its dimensions.
fn tensor(field: &Field) -> Option<TensorType> {
    let mut tensor = TensorType::of(field)?;
    match &mut tensor {
        TensorType::Fixed(tensor) => tensor.names = None,
        TensorType::Variable(tensor) => tensor.names = None,
    }
    Some(tensor)
}

/// Refuses window functions outside the list of columns and QUALIFY, and frames that would be computed wrongly.
fn check_windows(plan: &LogicalPlan) -> Result<(), Unrunnable> {
    let mut refusal = None;
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| {
                let Expr::WindowFunction(call) = expr else { return Ok(TreeNodeRecursion::Continue) };
                let found = match node {
                    LogicalPlan::Window(window) => wrong_distance(call, window.input.schema())?,
                    _ => Some(Unrunnable {
                        word: Some("OVER".to_owned()),
                        error: Error::invalid("a window function is called outside the list of columns and ORDER BY")
                            .with_hint("choose rows by its result with QUALIFY, or call it in a subquery of FROM"),
                    }),
                };
                refusal = refusal.take().or(found);
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(if refusal.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    refusal.map_or(Ok(()), Err)
}

/// Refuses a distance in RANGE if values of the window's ORDER BY cannot be subtracted or if their type does not have
/// it, where DataFusion would take all rows before or after, and if they are times and the distance has no unit.
fn wrong_distance(call: &WindowFunction, input: &DFSchema) -> PlanResult<Option<Unrunnable>> {
    let WindowFunctionParams { window_frame: frame, order_by, .. } = &call.params;
    let distances: Vec<&ScalarValue> = [&frame.start_bound, &frame.end_bound]
        .into_iter()
        .filter_map(|bound| match bound {
            WindowFrameBound::Preceding(by) | WindowFrameBound::Following(by) if !by.is_null() => Some(by),
            _ => None,
        })
        .collect();
    let (WindowFrameUnits::Range, false, [sort]) = (frame.units, distances.is_empty(), &order_by[..]) else {
        return Ok(None);
    };
    let data_type = sort.expr.get_type(input)?;
    let unfit = distances.iter().find(|by| data_type.is_integer() && by.cast_to(&data_type).is_err());
    // DataFusion would take a number for months.
    let has_number = distances.iter().any(|by| by.to_string().parse::<f64>().is_ok());
    let error = match (data_type.is_temporal(), data_type.is_numeric() || data_type.is_null()) {
        _ if let Some(by) = unfit => {
            let error = Error::invalid(format!("RANGE {by} is no {data_type}, and {} is", sort.expr));
            match by.cast_to(&DataType::Float64) {
                Ok(_) => error.with_hint(format!("write ORDER BY CAST({} AS BIGINT), or AS DOUBLE", sort.expr)),
                Err(_) => error.with_hint("count in numbers, or order by a date or time"),
            }
        }
        (true, _) if has_number => Error::invalid(format!("RANGE has no unit, and {} is {data_type}", sort.expr))
            .with_hint("write the unit, as in RANGE BETWEEN INTERVAL '7' DAY PRECEDING AND CURRENT ROW"),
        (false, false) => Error::invalid(format!("RANGE counts in numbers or times, and {} is {data_type}", sort.expr))
            .with_hint("count rows with ROWS, or peers with GROUPS"),
        _ => return Ok(None),
    };
    Ok(Some(Unrunnable { word: Some("RANGE".to_owned()), error }))
}

/// Refuses integers beside dates, as in `day > 19800` and in a UNION of both: DataFusion takes them for days since
/// 1970.
fn check_dates(planned: &LogicalPlan, analyzed: &LogicalPlan) -> Result<(), Unrunnable> {
    // The analyzer adds casts within those that are written.
    let mut written = HashSet::new();
    casts_to_dates(planned, |_, from| {
        written.insert(without_casts(from)?);
        Ok(())
    })?;
    let mut refusal = None;
    casts_to_dates(analyzed, |node, from| {
        if from.get_type(&merge_schema(&node.inputs()))?.is_integer() && !written.contains(&without_casts(from)?) {
            let (shown, word) = match from {
                Expr::Literal(value, _) => (value.to_string(), None),
                Expr::Column(column) => (column.name.clone(), Some(column.name.clone())),
                other => (other.to_string(), None),
            };
            let error = Error::invalid(format!("the integer {shown} is used as a date"));
            let hint = "write which one is meant: CAST(date AS INT) is the number of days since 1970-01-01, and \
                        CAST(integer AS DATE) is the date of such a number";
            refusal = Some(Unrunnable { word, error: error.with_hint(hint) });
        }
        Ok(())
    })?;
    refusal.map_or(Ok(()), Err)
}

/// The text of an expression without its casts.
fn without_casts(expr: &Expr) -> PlanResult<String> {
    let bare = expr.clone().transform_up(|expr| match expr {
        Expr::Cast(Cast { expr, .. }) | Expr::TryCast(TryCast { expr, .. }) => Ok(Transformed::yes(*expr)),
        other => Ok(Transformed::no(other)),
    })?;
    Ok(bare.data.to_string())
}

/// Visits each expression that is cast to a date, and its node.
fn casts_to_dates(plan: &LogicalPlan, mut visit: impl FnMut(&LogicalPlan, &Expr) -> PlanResult<()>) -> PlanResult<()> {
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| {
                if let Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) = expr
                    && matches!(field.data_type(), DataType::Date32 | DataType::Date64)
                {
                    visit(node, expr)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// Refuses NOT IN over a subquery where DataFusion ignores nulls, which make it null: anywhere but as a condition of
/// WHERE that compares a column, or if the subquery refers to the outer query.
fn check_memberships(plan: &LogicalPlan) -> Result<(), Unrunnable> {
    let mut is_refused = false;
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        let ignores_null = |call: &InSubquery| {
            let items = call.subquery.subquery.schema();
            Ok(call.expr.nullable(&schema)? || items.fields().first().is_some_and(|items| items.is_nullable()))
        };
        for expr in node.expressions() {
            for condition in split_conjunction(&expr) {
                is_refused = is_refused
                    || match excluding(condition) {
                        Some(call) if matches!(node, LogicalPlan::Filter(_)) => {
                            let runs = call.subquery.outer_ref_columns.is_empty() && call.expr.any_column_refs();
                            !runs && ignores_null(call)?
                        }
                        _ => has_exclusion(condition, true, &ignores_null)?,
                    };
            }
        }
        Ok(if is_refused { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !is_refused {
        return Ok(());
    }
    let error = Error::invalid("NOT IN over a subquery cannot run here, where its nulls would be ignored");
    let error = error.with_hint(
        "write NOT EXISTS (SELECT 1 FROM … WHERE …), which is not null, or make NOT IN one of the conditions that AND \
         joins in WHERE",
    );
    Err(Unrunnable { word: Some("NOT".to_owned()), error })
}

/// The call of a condition that is NOT IN.
fn excluding(condition: &Expr) -> Option<&InSubquery> {
    match condition {
        Expr::InSubquery(call) if call.negated => Some(call),
        Expr::Not(inner) => match inner.as_ref() {
            Expr::InSubquery(call) if !call.negated => Some(call),
            _ => None,
        },
        _ => None,
    }
}

/// Whether the result of a condition differs where an IN over a subquery is null, and not false. A condition that
/// `is_kept` keeps rows if it is true, and one that is not keeps them if it is false.
fn has_exclusion(
    condition: &Expr,
    is_kept: bool,
    ignores_null: &impl Fn(&InSubquery) -> PlanResult<bool>,
) -> PlanResult<bool> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            Ok(has_exclusion(left, is_kept, ignores_null)? || has_exclusion(right, is_kept, ignores_null)?)
        }
        Expr::Not(inner) => has_exclusion(inner, !is_kept, ignores_null),
        Expr::InSubquery(call) => Ok(call.negated == is_kept && ignores_null(call)?),
        // Its value is used, and not only whether it is true.
        other => other.exists(|expr| match expr {
            Expr::InSubquery(call) => ignores_null(call),
            _ => Ok(false),
        }),
    }
}

/// Refuses a plan with a subquery that refers to the outer query, if DataFusion cannot run it as a join.
fn check_subqueries(plan: &LogicalPlan, state: &SessionState) -> Result<(), Unrunnable> {
    // The optimizer rewrites them. Its errors are reported when the query runs.
    let optimized = if has_correlated(plan)? { state.optimize(plan).ok() } else { None };
    let plan = optimized.as_ref().unwrap_or(plan);
    if optimized.is_some() && has_correlated(plan)? {
        let error = Error::invalid("a subquery that refers to the outer query cannot be rewritten as a join");
        let error = error.with_hint(
            "compare the columns of both queries with `=` in its WHERE, and leave out LIMIT and UNION; or join and \
             group: `SELECT a.id, count(b.x) FROM a LEFT JOIN b ON b.time < a.time GROUP BY a.id`",
        );
        return Err(Unrunnable { word: None, error });
    }
    Ok(())
}

/// Whether the plan has a subquery that refers to columns of the query around it, in an expression or after LATERAL.
fn has_correlated(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        // A subquery of an expression is visited as a node too.
        found = matches!(node, LogicalPlan::Subquery(subquery) if !subquery.outer_ref_columns.is_empty());
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}
