//! What a stage leaves to whoever reads its samples from a worker: floats are made of pixels after the wire.

use std::any::Any;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use forebay_operators::image_chain::Later;

use crate::error::{Error, Result};

/// `plan` without the last steps of its outputs that a reader can do, and the schema that says so; `None` if there are none.
pub(super) fn without_later(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<(Arc<dyn ExecutionPlan>, SchemaRef)>> {
    let Some(projection) = (plan.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>() else { return Ok(None) };
    let input = projection.input();
    let (mut exprs, mut laters) = (Vec::new(), Vec::new());
    for output in projection.expr() {
        let taken = Later::take(&output.expr, &input.schema())?;
        let (expr, later) = taken.map_or((Arc::clone(&output.expr), None), |(expr, later)| (expr, Some(later)));
        exprs.push(ProjectionExpr { expr, alias: output.alias.clone() });
        laters.push(later);
    }
    if laters.iter().all(Option::is_none) {
        return Ok(None);
    }
    let plan = ProjectionExec::try_new(exprs, Arc::clone(input))?;
    let schema = plan.schema();
    let left = |(field, later): (&FieldRef, &Option<Later>)| match later {
        Some(later) => Arc::new(later.left_in(field)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().zip(&laters).map(left).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    Ok(Some((Arc::new(plan), schema)))
}

/// The samples with all done that was left.
///
/// # Errors
/// `Internal` for columns that say wrongly what is left, or are then not those of `schema`.
pub fn finish(records: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let wrong = |error: &dyn std::fmt::Display| Error::internal(format!("samples cannot be finished: {error}"));
    let columns = records.schema_ref().fields().iter().zip(records.columns()).map(|(field, column)| {
        match Later::of(field).map_err(|error| wrong(&error))? {
            // As `normalize` itself fails: with too many pixels for one column.
            Some(later) => later.apply(field, column).map_err(Error::from),
            None => Ok(Arc::clone(column)),
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(|error| wrong(&error))
}

/// Whether a column of `field` is one of `expected` once all is done that was left.
pub fn becomes(field: &Field, expected: &Field) -> bool {
    let finished = match Later::of(field) {
        Ok(Some(later)) => later.done_in(field).ok(),
        Ok(None) => Some(field.clone()),
        Err(_) => None,
    };
    finished.is_some_and(|finished| finished.name() == expected.name() && finished.data_type() == expected.data_type())
}
