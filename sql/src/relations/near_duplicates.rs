//! `drop_near_duplicates`: its constants. Its rows have the columns that they had.

use std::sync::Arc;

use datafusion::common::{DFSchema, DFSchemaRef, TableReference, plan_err};
use datafusion::error::Result;
use forebay_operators::near_duplicates::NearDuplicates;

use super::{Constants, RowsCall};

pub(super) fn plan(constants: &Constants, rows: &DFSchema) -> Result<(RowsCall, DFSchemaRef)> {
    let what = "a signature of minhash_signature";
    let column = constants.column("column", what, NearDuplicates::is_signature, rows)?;
    let (name, threshold) = (constants.descriptor.name, constants.number("threshold")?);
    let Some(call) = NearDuplicates::new(threshold, rows.field(column)) else {
        return plan_err!("{name}: \"threshold\" must be above 0 and at most 1, got {threshold}");
    };
    let fields = rows.fields().iter().map(|field| (Some(TableReference::bare(name)), Arc::clone(field))).collect();
    let schema = DFSchema::new_with_metadata(fields, rows.metadata().clone())?;
    Ok((RowsCall::NearDuplicates { call, column }, Arc::new(schema)))
}
