//! What identifies a query: its plan as text, and everything that the text does not say.
//!
//! DataFusion shows plans to people: it neither quotes identifiers nor escapes strings nor marks the elements of a
//! list, so two plans may look the same and differ. The literals, columns and aliases are therefore listed beside the
//! text, in the plan's order and unambiguously, with the versions of the operators that are called.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

use forebay_sql::RowsNode;

use crate::function::FunctionUdf;
use forebay_arrays::digest;

/// Raised when a new DataFusion may plan or compute something else of the same plan.
const DATAFUSION: u32 = 55;

/// A text that is equal for equal queries only.
pub(crate) fn fingerprint(plan: &LogicalPlan) -> Result<String> {
    let mut named = Vec::new();
    visit(plan, &mut |expr| {
        named.push(match expr {
            Expr::Literal(value, _) => {
                let values = RecordBatch::try_from_iter_with_nullable([("literal", value.to_array()?, true)])?;
                digest(&values)
            }
            Expr::Column(column) => format!("{:?} {:?}", column.relation, column.name),
            Expr::Alias(alias) => format!("{:?} {:?}", alias.relation, alias.name),
            _ => return Ok(()),
        });
        Ok(())
    })?;
    let mut identity = serde_json::json!({
        "datafusion": DATAFUSION,
        "plan": plan.display_indent().to_string(),
        "named": named,
        "operators": operator_versions(plan)?,
    });
    let functions = function_versions(plan)?;
    // Left out where there are none: ids stay what they were.
    if !functions.is_empty() {
        identity["functions"] = serde_json::json!(functions);
    }
    Ok(identity.to_string())
}

/// Every function of the embedding program that `plan` calls, with its version if it has one.
pub(crate) fn function_versions(plan: &LogicalPlan) -> Result<BTreeMap<String, Option<String>>> {
    let mut versions = BTreeMap::new();
    visit(plan, &mut |expr| {
        if let Expr::ScalarFunction(call) = expr
            && let Some(function) = call.func.inner().downcast_ref::<FunctionUdf>()
        {
            versions.insert(call.name().to_owned(), function.version().map(str::to_owned));
        }
        Ok(())
    })?;
    Ok(versions)
}

/// Every operator that `plan` calls, with its version.
pub(crate) fn operator_versions(plan: &LogicalPlan) -> Result<BTreeMap<String, u32>> {
    let mut versions = BTreeMap::new();
    visit(plan, &mut |expr| {
        if let Expr::ScalarFunction(call) = expr
            && let Some(operator) = forebay_operators::find(call.name())
        {
            versions.insert(call.name().to_owned(), operator.descriptor().version);
        }
        Ok(())
    })?;
    plan.apply(|node| {
        if let LogicalPlan::Extension(extension) = node
            && let Some(node) = extension.node.as_any().downcast_ref::<RowsNode>()
        {
            let descriptor = node.operator().descriptor();
            versions.insert(descriptor.name.to_owned(), descriptor.version);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(versions)
}

/// Calls whose results differ from epoch to epoch, and calls of functions without a version.
pub(crate) fn uncacheable_calls(plan: &LogicalPlan) -> Result<Vec<String>> {
    let mut calls = BTreeSet::new();
    visit(plan, &mut |expr| {
        if let Expr::ScalarFunction(call) = expr
            && forebay_operators::find(call.name())
                .is_some_and(|operator| operator.descriptor().determinism.varies_by_epoch())
        {
            calls.insert(call.name().to_owned());
        }
        Ok(())
    })?;
    plan.apply(|node| {
        if let LogicalPlan::Extension(extension) = node
            && let Some(node) = extension.node.as_any().downcast_ref::<RowsNode>()
            && node.operator().descriptor().determinism.varies_by_epoch()
        {
            calls.insert(node.operator().descriptor().name.to_owned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let unversioned = function_versions(plan)?.into_iter().filter(|(_, version)| version.is_none());
    calls.extend(unversioned.map(|(name, _)| name));
    Ok(calls.into_iter().collect())
}

/// Visits every expression of every node, in an order that only the plan decides.
fn visit(plan: &LogicalPlan, visitor: &mut impl FnMut(&Expr) -> Result<()>) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| visitor(expr).map(|()| TreeNodeRecursion::Continue))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
