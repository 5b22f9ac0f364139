//! Plans the query of a pipeline, or one whose rows are looked at.
//!
//! There are three steps: refuse SQL that a feed cannot run, or that DataFusion would ignore; rewrite the calls of
//! operators; and let DataFusion plan the rest. The first two steps collect all mistakes and report the first in the
//! text, so that a user fixes a query from top to bottom. `diagnosis` rewords and locates the mistakes that DataFusion
//! finds.

use std::path::Path;

use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::parser::Statement as ParsedStatement;
use datafusion::sql::sqlparser::ast::{Query, Statement as SqlStatement};

use crate::arithmetic::check_constants;
use crate::error::{Place, Result};
use crate::refusals::Purpose;
use crate::statement::{PipelineDefinition, QueryDefinition};
use crate::tokens::Tokens;
use crate::{access, calls, diagnosis, refusals};

/// Plans a pipeline's query against the tables and functions of a session. The session must have
/// [`crate::expr_planner`] among its expression planners, and the operators among its functions.
///
/// Parts of the plan may need whole tables. They are for the caller to find.
///
/// Relative file paths in calls of operators are relative to `base`.
///
/// The plan is DataFusion's: types are checked, but it is neither coerced nor optimized yet.
///
/// # Errors
///
/// The first unsupported, unknown or mistyped part of the query, with its place.
pub async fn plan(pipeline: &PipelineDefinition, base: &Path, state: &SessionState) -> Result<LogicalPlan> {
    let PipelineDefinition { query, text, place, .. } = pipeline;
    planned(Purpose::Feed, query, text, *place, base, state).await
}

/// The place of the first occurrence of a word, such as the name of a function, in the text of a query that begins at
/// `start`.
pub fn place_of(word: &str, text: &str, start: Place) -> Option<Place> {
    Tokens::of_part(text, start).ok()?.next(start, &[word])
}

/// Plans a query whose rows are computed once, from whole tables. Otherwise like [`plan()`].
///
/// # Errors
///
/// Those of [`plan()`], but for what only a feed cannot run.
pub async fn plan_query(query: &QueryDefinition, base: &Path, state: &SessionState) -> Result<LogicalPlan> {
    let QueryDefinition { query, text, place } = query;
    planned(Purpose::Rows, query, text, *place, base, state).await
}

/// Whether a query can be run only over whole tables: a feed cannot, and that can.
///
/// # Errors
///
/// A text that cannot be split into tokens.
pub fn needs_all_rows(query: &QueryDefinition, state: &SessionState) -> Result<bool> {
    let QueryDefinition { query, text, place } = query;
    let tokens = Tokens::of_part(text, *place)?;
    let runs = refusals::find(query, Purpose::Rows, state, &tokens, *place).is_empty();
    Ok(runs && refusals::is_for_all_rows(query, state, &tokens, *place))
}

async fn planned(
    purpose: Purpose,
    query: &Query,
    text: &str,
    place: Place,
    base: &Path,
    state: &SessionState,
) -> Result<LogicalPlan> {
    let tokens = Tokens::of_part(text, place)?;
    let mut errors = refusals::find(query, purpose, state, &tokens, place);
    let mut query = query.clone();
    access::rewrite(&mut query);
    let refusals = |query: &Query, tokens: &Tokens| refusals::find(query, purpose, state, tokens, Place::START);
    let calls = calls::resolve(&mut query, base, &tokens, &refusals, &mut errors);
    if let Some(first) = errors.into_iter().min_by_key(|error| error.place()) {
        return Err(first);
    }
    // Disable spans: in a plan they would make two texts of the same pipeline differ.
    let mut state = state.clone();
    state.config_mut().options_mut().sql_parser.collect_spans = false;
    match attempt(&query, &state).await {
        Ok(plan) => match diagnosis::twice(&plan) {
            Some(error) => Err(error.with_place(place)),
            None => Ok(plan),
        },
        Err(error) => Err(diagnosis::diagnose(error, &query, state, &calls).await.or_place(Some(place))),
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
