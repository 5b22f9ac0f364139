//! The hidden columns' names.

use datafusion::common::Column;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan};

pub(crate) const SAMPLE_ID: &str = "__forebay_sample_id";
pub(crate) const RANDOM_KEY: &str = "__forebay_random_key";
/// The longest length of rows in the same global step. It is known once a window's rows are grouped, so only during
/// transforms.
pub(crate) const STEP_LENGTH: &str = "__forebay_step_length";
/// All hidden columns. These names are reserved.
pub(crate) const HIDDEN: [&str; 3] = [SAMPLE_ID, RANDOM_KEY, STEP_LENGTH];

/// The hidden column `name`, qualified as in the output of `plan`.
pub(crate) fn hidden_column(plan: &LogicalPlan, name: &str) -> Result<Column> {
    let (qualifier, field) = plan.schema().qualified_field_with_unqualified_name(name)?;
    Ok(Column::from((qualifier, field)))
}

/// All hidden columns of `plan`.
pub(crate) fn hidden_columns(plan: &LogicalPlan) -> Result<[Expr; 3]> {
    let [id, key, length] = HIDDEN.map(|name| hidden_column(plan, name).map(Expr::Column));
    Ok([id?, key?, length?])
}
