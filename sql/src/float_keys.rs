//! Makes 0 and -0 one value, and all NaNs another, where DataFusion compares the bits of floats: see [`float_key`].
//!
//! These are windows, aggregates with DISTINCT, IN, CASE with an operand, and `nullif`. In comparisons, groups and
//! joins, DataFusion itself takes -0 for 0, and NaNs have signs. Sorts see the bits, so that an order is complete.

use std::collections::HashSet;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, Case, InList, ScalarFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use datafusion::optimizer::optimizer::{ApplyOrder, OptimizerRule};
use forebay_operators::float_key;

use crate::arithmetic::read_schema;

/// The rule of the optimizer that makes keys of floats. Types must be resolved.
#[derive(Debug)]
pub(crate) struct FloatKeys;

impl OptimizerRule for FloatKeys {
    fn name(&self) -> &str {
        "float_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let schema = read_schema(&plan);
        // DataFusion makes groups of the values.
        let are_groups = matches!(&plan, LogicalPlan::Aggregate(aggregate) if is_of_one_distinct(&aggregate.aggr_expr));
        if are_groups {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        let keyed = |expr: Expr| {
            let name = names.save(&expr);
            let keyed = keys_within(expr, &schema)?;
            Ok(if keyed.transformed { keyed.update_data(|expr| name.restore(expr)) } else { keyed })
        };
        plan.map_expressions(|expr| match expr {
            // Its parts have names, and it must stay what it is.
            Expr::GroupingSet(_) => expr.map_children(keyed),
            expr => keyed(expr),
        })
    }
}

/// Whether a plan of a feed tells floats apart within its expressions.
///
/// # Errors
/// DataFusion's, for expressions without a type.
pub fn tells_floats_apart(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let schema = read_schema(node);
        for expr in node.expressions() {
            if keys_within(expr, &schema)?.transformed {
                return Ok(true);
            }
        }
        Ok(false)
    })
}

/// Whether DataFusion's optimizer makes groups of the only values that are distinct in these aggregates.
fn is_of_one_distinct(aggregates: &[Expr]) -> bool {
    let mut distinct = HashSet::new();
    let are_simple = aggregates.iter().all(|expr| match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            distinct.extend(params.args.iter().filter(|_| params.distinct));
            let is_simple = params.distinct || ["sum", "min", "max"].contains(&func.name());
            is_simple && params.filter.is_none() && params.order_by.is_empty()
        }
        _ => false,
    });
    are_simple && distinct.len() == 1
}

/// Makes keys of the floats that an expression tells apart.
fn keys_within(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| match expr {
        Expr::InList(InList { expr, list, negated }) if list.iter().any(has_many_forms) => {
            let expr = key(*expr, schema)?;
            let list = keys(list, schema)?;
            let is_changed = expr.transformed || list.transformed;
            let expr = Expr::InList(InList { expr: Box::new(expr.data), list: list.data, negated });
            Ok(Transformed::new(expr, is_changed, TreeNodeRecursion::Continue))
        }
        Expr::Case(Case { expr: Some(operand), when_then_expr, else_expr })
            if when_then_expr.iter().any(|(when, _)| has_many_forms(when)) =>
        {
            let operand = key(*operand, schema)?;
            let (whens, thens): (Vec<_>, Vec<_>) = when_then_expr.into_iter().map(|(when, then)| (*when, then)).unzip();
            let whens = keys(whens, schema)?;
            let is_changed = operand.transformed || whens.transformed;
            let when_then_expr = whens.data.into_iter().map(Box::new).zip(thens).collect();
            let expr = Expr::Case(Case { expr: Some(Box::new(operand.data)), when_then_expr, else_expr });
            Ok(Transformed::new(expr, is_changed, TreeNodeRecursion::Continue))
        }
        Expr::ScalarFunction(ScalarFunction { func, args })
            if func.name() == "nullif" && args.last().is_some_and(has_many_forms) =>
        {
            keys(args, schema)?.map_data(|args| Ok(Expr::ScalarFunction(ScalarFunction { func, args })))
        }
        Expr::AggregateFunction(AggregateFunction { func, mut params }) if params.distinct => {
            let args = keys(std::mem::take(&mut params.args), schema)?;
            let mut is_changed = args.transformed;
            params.args = args.data;
            // ORDER BY must name an argument.
            for sort in &mut params.order_by {
                let keyed = key(std::mem::take(&mut sort.expr), schema)?;
                is_changed |= keyed.transformed;
                sort.expr = keyed.data;
            }
            let call = Expr::AggregateFunction(AggregateFunction { func, params });
            Ok(Transformed::new(call, is_changed, TreeNodeRecursion::Continue))
        }
        Expr::WindowFunction(mut call) => {
            let WindowFunction { params, .. } = call.as_mut();
            let mut is_changed = false;
            let mut keyed = |expr: Expr| -> Result<Expr> {
                let keyed = key(expr, schema)?;
                is_changed |= keyed.transformed;
                Ok(keyed.data)
            };
            for expr in &mut params.partition_by {
                *expr = keyed(std::mem::take(expr))?;
            }
            for sort in &mut params.order_by {
                sort.expr = keyed(std::mem::take(&mut sort.expr))?;
            }
            if params.distinct {
                for expr in &mut params.args {
                    *expr = keyed(std::mem::take(expr))?;
                }
            }
            Ok(Transformed::new(Expr::WindowFunction(call), is_changed, TreeNodeRecursion::Continue))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// Whether an expression may be a float that equals others with other bits.
fn has_many_forms(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => match value.cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(Some(x))) => x.is_nan() || x == 0.0,
            _ => false,
        },
        _ => true,
    }
}

fn keys(exprs: Vec<Expr>, schema: &DFSchema) -> Result<Transformed<Vec<Expr>>> {
    let mut is_changed = false;
    let keys = exprs.into_iter().map(|expr| {
        let key = key(expr, schema)?;
        is_changed |= key.transformed;
        Ok(key.data)
    });
    let keys = keys.collect::<Result<Vec<_>>>()?;
    Ok(Transformed::new(keys, is_changed, TreeNodeRecursion::Continue))
}

/// The key of an expression, if that is a float.
fn key(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !expr.get_type(schema)?.is_floating() {
        return Ok(Transformed::no(expr));
    }
    let key = float_key(expr.clone());
    Ok(if key == expr { Transformed::no(expr) } else { Transformed::yes(key) })
}
