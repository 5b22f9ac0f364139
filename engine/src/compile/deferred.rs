//! The plan of a feed whose readers compute the last steps of its columns.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use forebay_arrays::DeferredStep;
use forebay_operators::image_chain::defer;

use crate::error::Result;

/// Splits off the last steps of `plan`'s outputs that a reader can compute. Returns the remaining plan and the schema
/// that names these steps, or `None` if there are no such steps.
pub(super) fn defer_last_steps(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<(Arc<dyn ExecutionPlan>, SchemaRef)>> {
    let Some(projection) = (plan.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>() else { return Ok(None) };
    let input = projection.input();
    let (mut exprs, mut steps) = (Vec::new(), Vec::new());
    for output in projection.expr() {
        let deferred = defer(&output.expr, &input.schema())?;
        let (expr, step) = deferred.map_or((Arc::clone(&output.expr), None), |(expr, step)| (expr, Some(step)));
        exprs.push(ProjectionExpr { expr, alias: output.alias.clone() });
        steps.push(step);
    }
    if steps.iter().all(Option::is_none) {
        return Ok(None);
    }
    let plan = ProjectionExec::try_new(exprs, Arc::clone(input))?;
    let schema = plan.schema();
    let with_step = |(field, step): (&FieldRef, &Option<DeferredStep>)| match step {
        Some(step) => Arc::new(step.defer_in(field)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().zip(&steps).map(with_step).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    Ok(Some((Arc::new(plan), schema)))
}
