//! From a pipeline's query to a logical plan.
//!
//! Three steps: refuse what a feed cannot do, rewrite the calls of operators, and let DataFusion plan the rest. All
//! mistakes of the first two steps are found together and the first in the text is reported, so that a user fixes a
//! query from top to bottom. A mistake that DataFusion finds is worded and located in `diagnosis`.

use std::path::Path;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Query, Statement as SqlStatement};

use crate::error::Result;
use crate::statement::PipelineDefinition;
use crate::tokens::Tokens;
use crate::{calls, diagnosis, refusals};

/// Plans a pipeline's query against the tables and functions of a session, which has [`crate::expr_planner`] among its
/// planners of expressions and the operators among its functions.
///
/// Relative paths of files that operators are called with begin at `base`.
///
/// The plan is as DataFusion made it: types are checked, but nothing is coerced or optimized yet.
///
/// # Errors
///
/// The first thing in the query that a feed cannot do, that is not there, or that does not fit, with its place.
pub async fn plan(pipeline: &PipelineDefinition, base: &Path, state: &SessionState) -> Result<LogicalPlan> {
    let tokens = Tokens::of_part(&pipeline.text, pipeline.place)?;
    let mut errors = refusals::find(&pipeline.query, state, &tokens, pipeline.place);
    let mut query = pipeline.query.clone();
    let calls = calls::resolve(&mut query, base, &tokens, &mut errors);
    if let Some(first) = errors.into_iter().min_by_key(|error| error.place()) {
        return Err(first);
    }
    // Without spans: in a plan they would be one more thing that differs between two texts of the same pipeline.
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
    // Coercion finds types that do not fit. Its result is thrown away: whoever optimizes the plan analyzes it again.
    state.analyzer().execute_and_check(plan.clone(), state.config_options(), |_, _| {})?;
    Ok(plan)
}
