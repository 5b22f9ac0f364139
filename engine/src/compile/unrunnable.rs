//! Plans that neither engine can run, though DataFusion makes them: the reason, and the word of the text that it is
//! about.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, Union};
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

/// Refuses a UNION of tensors of different types. DataFusion would describe the rows of all parts as those of the last.
pub(crate) fn check_unions(plan: &LogicalPlan) -> Result<(), Unrunnable> {
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

/// Refuses a plan with a subquery that refers to the outer query, if DataFusion cannot rewrite it as a join.
pub(crate) fn check_subqueries(plan: &LogicalPlan, state: &SessionState) -> Result<(), Unrunnable> {
    // The optimizer rewrites all others. Its errors are reported when the query runs.
    if !has_correlated(plan)? || !state.optimize(plan).is_ok_and(|plan| has_correlated(&plan).unwrap_or(false)) {
        return Ok(());
    }
    let error = Error::invalid("a subquery that refers to the outer query cannot be rewritten as a join").with_hint(
        "compare the columns of both queries with `=` in its WHERE, and leave out LIMIT and UNION; or join and group: \
         `SELECT a.id, count(b.x) FROM a LEFT JOIN b ON b.time < a.time GROUP BY a.id`",
    );
    Err(Unrunnable { word: None, error })
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
