//! The expressions of a query that an error of computing may come from.
//!
//! Such an error has the values that failed. It does not have the expression: one that runs does not know its text. So
//! the expressions of the plan are searched for those that fail with such a message.

use std::collections::HashSet;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan};
use datafusion::sql::unparser::Unparser;

use crate::error::Error;

/// If more expressions may have failed, none is named.
const NAMED_MAX: usize = 3;
/// A longer expression is cut off.
const CHARS_MAX: usize = 80;

/// The error of running `plan`, whose types are resolved, after the expressions that it may come from.
pub(super) fn named(error: Error, plan: &LogicalPlan) -> Error {
    match suspects(error.message(), plan) {
        Ok(texts) if (1..=NAMED_MAX).contains(&texts.len()) => {
            let message = format!("in {}: {}", texts.join(" or "), error.message());
            error.with_message(message)
        }
        _ => error,
    }
}

/// What failed, as far as a message says.
enum Failed<'a> {
    /// Arithmetic on these types, such as `Int64 / Int64` and `sum(Int64)`.
    Arithmetic(&'a str),
    /// A cast to a type that this text names.
    Cast(&'a str),
    /// A text that is not a time.
    Time,
    /// The call of this function, if it is one.
    Call(&'a str),
}

impl<'a> Failed<'a> {
    fn of(message: &'a str) -> Option<Self> {
        const OF_CASTS: &[&str] = &["cannot cast ", "can't cast value "];
        if message.starts_with("cannot divide by zero: ") {
            // The values, and then the types in parentheses.
            let types = message.split(" (").nth(1)?;
            return Some(Self::Arithmetic(types.split("); ").next()?));
        }
        if let Some(operation) = message.strip_prefix("overflow in ") {
            return Some(Self::Arithmetic(operation.split(": ").next()?));
        }
        if OF_CASTS.iter().any(|start| message.starts_with(start)) || message.contains(" is too large to store in a ") {
            return Some(Self::Cast(message));
        }
        match message.starts_with("error parsing timestamp from ") {
            true => Some(Self::Time),
            false => message.split_once(": ").map(|(name, _)| Self::Call(name)),
        }
    }

    /// Whether an expression over these columns may fail so.
    fn may_be(&self, expr: &Expr, schema: &DFSchema) -> PlanResult<bool> {
        Ok(match (self, expr) {
            (Self::Arithmetic(types), Expr::BinaryExpr(BinaryExpr { left, op, right })) => {
                *types == format!("{} {op} {}", left.get_type(schema)?, right.get_type(schema)?)
            }
            (Self::Arithmetic(types), Expr::Negative(of)) => *types == format!("-({})", of.get_type(schema)?),
            (Self::Arithmetic(types), Expr::AggregateFunction(AggregateFunction { func, params })) => {
                let [argument] = &params.args[..] else { return Ok(false) };
                *types == format!("{}({})", func.name(), argument.get_type(schema)?)
            }
            (Self::Arithmetic(types), Expr::WindowFunction(call)) => {
                let [argument] = &call.params.args[..] else { return Ok(false) };
                *types == format!("{}({})", call.fun.name(), argument.get_type(schema)?)
            }
            (Self::Cast(message), Expr::Cast(Cast { field, .. })) => {
                let names: HashSet<&str> = words(message).collect();
                // Also the types within lists and structs.
                words(&field.data_type().to_string()).any(|word| is_type(word) && names.contains(word))
            }
            (Self::Cast(_), Expr::ScalarFunction(call)) => call.name() == "arrow_cast",
            (Self::Time, Expr::Cast(Cast { field, .. })) => field.data_type().is_temporal(),
            (Self::Time, Expr::ScalarFunction(call)) => call.name().starts_with("to_") || call.name() == "arrow_cast",
            (Self::Call(name), Expr::ScalarFunction(call)) => call.name() == *name,
            _ => false,
        })
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// Whether a word of a type's text is the name of a type, and no number.
fn is_type(word: &str) -> bool {
    word.starts_with(|char: char| char.is_ascii_uppercase())
}

/// The texts of the expressions of `plan` that fail with such a message.
fn suspects(message: &str, plan: &LogicalPlan) -> PlanResult<Vec<String>> {
    let Some(failed) = Failed::of(message) else { return Ok(Vec::new()) };
    let mut texts = Vec::new();
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        for expr in node.expressions() {
            expr.apply(|expr| {
                if failed.may_be(expr, &schema)? {
                    let text = text(expr);
                    if !texts.contains(&text) {
                        texts.push(text);
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(texts)
}

/// An expression as SQL, or in DataFusion's words if SQL has no type of that kind.
fn text(expr: &Expr) -> String {
    let sql = Unparser::default().with_pretty(true).expr_to_sql(expr);
    let text = sql.map_or_else(|_| expr.to_string(), |sql| sql.to_string());
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
