//! What identifies a query: its plan as text, and everything that the text does not say.
//!
//! DataFusion shows plans to people: it neither quotes identifiers nor escapes strings nor marks the elements of a list,
//! so two plans may look the same and differ. The literals, columns and aliases are therefore listed beside the text, in
//! the plan's order and unambiguously, with the versions of the operators that are called.

use std::collections::BTreeMap;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::feed::digest;

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
    let identity = serde_json::json!({
        "datafusion": DATAFUSION,
        "plan": plan.display_indent().to_string(),
        "named": named,
        "operators": operator_versions(plan)?,
    });
    Ok(identity.to_string())
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
            && let Some(operator) = forebay_operators::find_table_operator(extension.node.name())
        {
            versions.insert(operator.name.to_owned(), operator.version);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(versions)
}

/// Visits every expression of every node, in an order that only the plan decides.
fn visit(plan: &LogicalPlan, visitor: &mut impl FnMut(&Expr) -> Result<()>) -> Result<()> {
    plan.apply(|node| {
        for expr in node.expressions() {
            expr.apply(|expr| visitor(expr).map(|()| TreeNodeRecursion::Continue))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}
