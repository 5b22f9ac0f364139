//! Plans a pipeline's query.
//!
//! There are three steps: refuse SQL that a feed cannot run, rewrite the calls of operators, and let DataFusion plan
//! the rest. The first two steps collect all mistakes and report the first in the text, so that a user fixes a query
//! from top to bottom. `diagnosis` rewords and locates the mistakes that DataFusion finds.

use std::path::Path;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Query, Statement as SqlStatement};

use crate::arithmetic::check_constants;
use crate::error::Result;
use crate::statement::PipelineDefinition;
use crate::tokens::Tokens;
use crate::{access, calls, diagnosis, refusals};

/// Plans a pipeline's query against the tables and functions of a session. The session must have
/// [`crate::expr_planner`] among its expression planners, and the operators among its functions.
///
/// Relative file paths in calls of operators are relative to `base`.
///
/// The plan is DataFusion's: types are checked, but it is neither coerced nor optimized yet.
///
/// # Errors
///
/// The first unsupported, unknown or mistyped part of the query, with its place.
pub async fn plan(pipeline: &PipelineDefinition, base: &Path, state: &SessionState) -> Result<LogicalPlan> {
    let tokens = Tokens::of_part(&pipeline.text, pipeline.place)?;
    let mut errors = refusals::find(&pipeline.query, state, &tokens, pipeline.place);
    let mut query = pipeline.query.clone();
    access::rewrite(&mut query);
    let calls = calls::resolve(&mut query, base, &tokens, &mut errors);
    if let Some(first) = errors.into_iter().min_by_key(|error| error.place()) {
        return Err(first);
    }
    // Disable spans: in a plan they would make two texts of the same pipeline differ.
    let mut state = state.clone();
    state.config_mut().options_mut().sql_parser.collect_spans = false;
    match attempt(&query, &state).await {
        Ok(plan) => match diagnosis::twice(&plan) {
            Some(error) => Err(error.with_place(pipeline.place)),
            None => Ok(plan),
        },
        Err(error) => Err(diagnosis::diagnose(error, &query, state, &calls).await.or_place(Some(pipeline.place))),
    }
}

/// Plans a query and checks its types.
pub(crate) async fn attempt(query: &Query, state: &SessionState) -> DataFusionResult<LogicalPlan> {
    let statement = ParsedStatement::Statement(Box::new(SqlStatement::Query(Box::new(query.clone()))));
    let plan = state.statement_to_plan(statement).await?;
    // Coercion finds types that do not fit. Its result is discarded, because optimizing the plan analyzes it again.
    let coerced = state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {})?;
    check_constants(&coerced)?;
    Ok(plan)
}
