//! The operators, functions and files that a query calls.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan};
use forebay_operators::ParameterKind;
use forebay_sql::RowsNode;

use crate::function::FunctionUdf;

/// Every function of the embedding program that `plan` calls, with its version, if declared.
pub(crate) fn function_versions(plan: &LogicalPlan) -> Result<BTreeMap<String, Option<String>>> {
    let mut versions = BTreeMap::new();
    visit_calls(plan, &mut |call| {
        if let Some(function) = FunctionUdf::of_call(call) {
            versions.insert(call.name().to_owned(), function.version().map(str::to_owned));
        }
    })?;
    Ok(versions)
}

/// Every operator that `plan` calls, with its version.
pub(crate) fn operator_versions(plan: &LogicalPlan) -> Result<BTreeMap<String, u32>> {
    let mut versions = BTreeMap::new();
    visit_calls(plan, &mut |call| {
        if let Some(operator) = forebay_operators::find(call.name()) {
            versions.insert(call.name().to_owned(), operator.descriptor().version);
        }
    })?;
    plan.apply_with_subqueries(|node| {
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

/// Every file named in a call of `plan`, with the digest of its content.
pub(crate) fn files(plan: &LogicalPlan) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    visit_calls(plan, &mut |call| {
        let Some(operator) = forebay_operators::find(call.name()) else { return };
        for (parameter, value) in operator.descriptor().parameters.iter().zip(&call.args) {
            if let ParameterKind::Constant(kind) = parameter.kind
                && let Expr::Literal(ScalarValue::Utf8(Some(text)), _) = value
                && kind.is_path(text)
                && let Some((path, digest)) = forebay_operators::files::pinned(text)
            {
                files.insert(path.to_owned(), digest.to_owned());
            }
        }
    })?;
    Ok(files)
}

/// The calls whose results must not be stored: calls that differ from epoch to epoch, and functions without a version.
pub(crate) fn uncacheable_calls(plan: &LogicalPlan) -> Result<Vec<String>> {
    let mut calls = BTreeSet::new();
    visit_calls(plan, &mut |call| {
        if forebay_operators::find(call.name())
            .is_some_and(|operator| operator.descriptor().determinism.varies_by_epoch())
            || FunctionUdf::of_call(call).is_some_and(FunctionUdf::draws)
        {
            calls.insert(call.name().to_owned());
        }
    })?;
    plan.apply_with_subqueries(|node| {
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

/// Visits every call of every node, in an order that depends only on the plan.
fn visit_calls(plan: &LogicalPlan, visitor: &mut impl FnMut(&ScalarFunction)) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr {
                    visitor(call);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
