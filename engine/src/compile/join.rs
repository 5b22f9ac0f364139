//! Translates DataFusion's join nodes into lookups, and refuses the joins that a feed cannot run.
//!
//! The left side is the query so far; its rows become samples. Each row looks up its keys in the right side, which is
//! read whole: see [`lookup`](super::lookup). Conditions on the right side alone filter it when it is read. Other
//! conditions filter the matches.

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, NullEquality, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::utils::{conjunction, find_valid_equijoin_key_pair, split_conjunction_owned};
use datafusion::logical_expr::{self as plan, BinaryExpr, Expr, LogicalPlan, Operator};
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::eliminate_cross_join::EliminateCrossJoin;
use datafusion::optimizer::scalar_subquery_to_join::ScalarSubqueryToJoin;
use datafusion::optimizer::{OptimizerContext, OptimizerRule};
use forebay_operators::Determinism;

use super::lookup::{JoinKind, can_be_key};
use crate::error::Error;
use crate::function::FunctionUdf;

/// The condition of a join, split by the sides it reads.
pub(crate) struct Condition {
    pub(crate) kind: JoinKind,
    /// Pairs of a left and a right expression of the same type that must be equal.
    pub(crate) keys: Vec<(Expr, Expr)>,
    /// The condition on the right side alone.
    pub(crate) right: Option<Expr>,
    /// The condition on the matches.
    pub(crate) residual: Option<Expr>,
}

impl Condition {
    pub(crate) fn of(join: &plan::Join) -> Result<Self> {
        let kind = match (join.join_type, join.null_aware) {
            (JoinType::Inner, _) => JoinKind::Inner,
            (JoinType::Left, _) => JoinKind::Left,
            (JoinType::LeftSemi, _) => JoinKind::Semi,
            (JoinType::LeftAnti, false) => JoinKind::Anti,
            (JoinType::LeftAnti, true) => JoinKind::NotIn,
            (other, _) => return plan_err!("{other} joins are not looked up"),
        };
        let (left, right) = (join.left.schema(), join.right.schema());
        let (mut keys, mut of_right, mut residual) = (join.on.clone(), Vec::new(), Vec::new());
        for condition in join.filter.clone().map(split_conjunction_owned).unwrap_or_default() {
            match pair(&condition, left, right)? {
                Some(pair) => keys.push(pair),
                None if condition.column_refs().iter().all(|column| right.has_column(column)) => {
                    of_right.push(condition);
                }
                None => residual.push(condition),
            }
        }
        Ok(Self { kind, keys, right: conjunction(of_right), residual: conjunction(residual) })
    }
}

/// The two sides of an equality between a column of the left side and one of the right.
fn pair(condition: &Expr, left: &DFSchema, right: &DFSchema) -> Result<Option<(Expr, Expr)>> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left: one, op: Operator::Eq, right: other }) => {
            find_valid_equijoin_key_pair(one, other, left, right)
        }
        _ => Ok(None),
    }
}

/// `plan` with subqueries in conditions, and those that refer to the outer query, rewritten as joins.
pub(crate) fn resolved(plan: LogicalPlan) -> Result<LogicalPlan> {
    let context = OptimizerContext::new();
    plan.transform_down(|node| match node {
        LogicalPlan::Filter(ref filter) => {
            // `FROM a, b WHERE a.x = b.x` is a join by keys.
            let node = match is_product(&filter.input) {
                true => EliminateCrossJoin::new().rewrite(node, &context)?,
                false => Transformed::no(node),
            };
            let joined = DecorrelatePredicateSubquery::new().rewrite(node.data.clone(), &context)?;
            // A mark join is no lookup, so the condition stays whole, and its rows are those of a stage.
            let joined = if marks(&joined.data) { node } else { joined };
            joined.transform_data(|node| ScalarSubqueryToJoin::new().rewrite(node, &context))
        }
        LogicalPlan::Projection(_) => ScalarSubqueryToJoin::new().rewrite(node, &context),
        other => Ok(Transformed::no(other)),
    })
    .data()
}

/// Whether a plan that is cut looks rows up by floats.
pub(super) fn looks_up_floats(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        let LogicalPlan::Join(join) = node else { return Ok(false) };
        // Another kind of join is none of a feed.
        let Ok(Condition { keys, .. }) = Condition::of(join) else { return Ok(false) };
        let type_of = |key: &Expr| plan::ExprSchemable::get_type(key, join.left.schema().as_ref());
        Ok(keys.iter().any(|(key, _)| type_of(key).is_ok_and(|data_type| data_type.is_floating())))
    })
}

/// Whether a filter has become one over a mark join.
fn marks(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => marks(plan.inputs()[0]),
        LogicalPlan::Join(join) => join.join_type == JoinType::LeftMark || marks(&join.left),
        _ => false,
    }
}

/// Whether a node joins every row of a table with every row of another, beside other inner joins.
fn is_product(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            let is_cross = join.on.is_empty() && join.filter.is_none();
            is_cross || is_product(&join.left) || is_product(&join.right)
        }
        _ => false,
    }
}

/// The reason that a feed cannot run this join, or `None`.
pub(crate) fn refusal(join: &plan::Join) -> Option<Error> {
    refusal_of_lookup(join).or_else(|| right_side(&join.right).err())
}

/// The reason that a feed cannot look up rows for this join, or `None`. The right side may be any query.
pub(super) fn refusal_of_lookup(join: &plan::Join) -> Option<Error> {
    let refuse = |message: &str, hint: &str| Some(Error::invalid(message.to_owned()).with_hint(hint.to_owned()));
    let condition = match join.join_type {
        JoinType::Inner | JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => match Condition::of(join) {
            Ok(condition) => condition,
            Err(error) => return Some(error.into()),
        },
        JoinType::LeftMark => {
            return refuse("a subquery must be a condition of its own, alone or combined with AND", BESIDE);
        }
        other => return refuse(&format!("a {other} join keeps rows of its second table"), SIDES),
    };
    let Condition { kind, keys, residual, .. } = condition;
    let matches_nulls = join.null_equality == NullEquality::NullEqualsNull;
    if keys.is_empty() || matches_nulls {
        return refuse("a join needs an equality between columns of both tables, and this one has none", KEYS);
    }
    if kind == JoinKind::NotIn && keys.len() > 1 {
        return refuse(
            "NOT IN compares one column, and its subquery references columns of the outer query",
            NOT_EXISTS,
        );
    }
    if residual.is_some() && kind != JoinKind::Inner {
        return refuse("only an inner JOIN accepts a condition over both tables that is not an equality", ON);
    }
    for (key, _) in &keys {
        match plan::ExprSchemable::get_type(key, join.left.schema().as_ref()) {
            Ok(data_type) if can_be_key(&data_type) => {}
            Ok(data_type) => return refuse(&format!("{key} cannot be a join key: its type is {data_type}"), KEYS),
            Err(error) => return Some(error.into()),
        }
    }
    None
}

const BESIDE: &str = "write `WHERE id IN (SELECT id FROM other) AND …`";
const SIDES: &str = "swap the tables: samples are rows of the first one, and the others are looked up by key";
const KEYS: &str = "write `FROM table JOIN other ON table.id = other.id`";
const NOT_EXISTS: &str = "write `NOT EXISTS (SELECT * FROM other WHERE other.id = table.id AND …)`";
const ON: &str = "filter the second table, `LEFT JOIN (SELECT * FROM other WHERE …)`, or the samples with WHERE";

/// Refuses a right side other than a projection and filter of one table.
pub(super) fn right_side(right: &LogicalPlan) -> crate::error::Result<()> {
    let refuse = |what: &str| {
        Err(Error::invalid(format!("{what} inside the second table of a join")).with_hint(
            "join a table, or `(SELECT columns FROM table WHERE …)`; join several tables one after the other, and \
             compute the rest beforehand",
        ))
    };
    let mut node = right;
    loop {
        node = match node {
            LogicalPlan::TableScan(_) => return Ok(()),
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Limit(_) => {
                if node.expressions().iter().any(depends_on_the_sample) {
                    return refuse("an operator whose result depends on the sample");
                }
                node.inputs()[0]
            }
            LogicalPlan::Join(_) => return refuse("a join"),
            _ => return refuse("this query"),
        }
    }
}

/// Whether `expr` calls an operator that depends on more than its arguments.
fn depends_on_the_sample(expr: &Expr) -> bool {
    let mut found = false;
    let walked = expr.apply(|expr| {
        if let Expr::ScalarFunction(call) = expr {
            let operator = forebay_operators::find(call.name());
            found |= operator.is_some_and(|operator| operator.descriptor().determinism != Determinism::Deterministic)
                || FunctionUdf::of_call(call).is_some_and(FunctionUdf::draws);
        }
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    found || walked.is_err()
}
