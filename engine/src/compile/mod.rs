//! Compiles a logical plan to a [`Stage`]: checked, woven, cut in two, optimized and planned once.
//!
//! A feed stage runs as two physical plans over the same leaf. *Select* is the part of the query below the topmost
//! filter. It returns the ids of the rows that pass. It is cheap, and it determines a window's row count and therefore
//! every offset. *Transform* is the query without its filters, a one-to-one function of rows. It is expensive, and runs
//! only for the rows that a reader is about to receive. A feed that groups rows by length has a third plan,
//! [`lengths()`], which runs for the whole window.
//!
//! What needs whole tables is no part of a feed stage. [`cut()`] makes stages of it that run once, before.
//!
//! Operators that derive rows run below these two plans. Each is a [`Layer`], which runs when a window is prepared; the
//! two plans read the rows of the topmost layer. Joins are layers too. They look up rows in a table that the feed holds
//! in memory.

mod change;
mod checks;
mod cut;
mod deferred;
mod dictionary;
mod filters;
mod fitted;
mod hidden;
mod hidden_columns;
mod identity;
mod join;
mod layer;
mod leaf_plan;
mod lengths;
mod lift;
mod lookup;
mod output;
mod prefix;
mod pruning;
mod reduced_decode;
mod source_rows;
mod stage;
mod table_call;
mod unknown;
mod unnest;
mod unrunnable;
mod window_exec;

use std::collections::BTreeMap;

use arrow::datatypes::SchemaRef;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use forebay_protocol::CallOrder;
use forebay_storage::Dataset;

pub(crate) use cut::{Cut, Joins, StagePlan, cut, tables};
pub(crate) use fitted::{PlanValue, fits, kept_name, with_fits};
pub(crate) use hidden::FeedTable;
pub(crate) use identity::{
    VERSION as IDENTITY_VERSION, files, fingerprint, function_versions, operator_versions, uncacheable_calls,
};
pub(crate) use layer::{Layer, MadeSoFar};
pub(crate) use leaf_plan::fused;
pub(crate) use lengths::{Lengths, check as check_length, lengths};
pub(crate) use lookup::{Lookup, LookupPlan};
pub(crate) use prefix::PrefixCut;
pub(crate) use pruning::Pruning;
pub(crate) use source_rows::SourceRows;
pub(crate) use stage::{BadRow, Stage, Transformed as TransformedRows};
pub(crate) use unrunnable::{Unrunnable, check_analyzed, check_planned};

use crate::error::{Error, Result};
use filters::{conjuncts, ids, topmost_filter, unfiltered};
use leaf_plan::{LeafPlan, Select};
use output::output;

/// Returns the name of the driving table of `plan`. Refuses a plan that a feed stage cannot run.
pub(crate) fn driving_table(plan: &LogicalPlan) -> Result<String> {
    checks::driving_table(plan)
}

/// The number of leading rows of its table that `plan` reads, or `None` if it reads all.
pub(crate) fn limit(plan: &LogicalPlan) -> Result<Option<u64>> {
    checks::limit(plan)
}

/// Resolves the types of expressions in `plan`.
pub(crate) fn analyzed(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    Ok(state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})?)
}

/// Rewrites subqueries in conditions of an analyzed plan as joins. The rest of this module expects such a plan.
pub(crate) fn resolved(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(join::resolved(plan)?)
}

/// A hash of a query, by its plan as it was planned, and as it was cut.
pub(crate) fn query_fingerprint(planned: &LogicalPlan, feed: &LogicalPlan) -> Result<String> {
    let fingerprint = fingerprint(planned)?;
    // -0 and 0 used to differ, as did NaNs of both signs: tokens of such feeds are those of other samples.
    let are_keys = join::looks_up_floats(feed)? || forebay_sql::tells_floats_apart(feed)?;
    Ok(if are_keys { format!("{fingerprint} float keys") } else { fingerprint })
}

/// What a stage keeps for later epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeping {
    /// Nothing.
    Nothing,
    /// The part that is the same in every epoch, as far as calls of calls go: what is nested deeper stays above.
    Prefix {
        /// The most calls that each contain the next: [`Keeping::WHOLE_PREFIX`] for all.
        depth: usize,
    },
    /// All that does not depend on other rows: random calls draw the same in every epoch.
    All,
}

impl Keeping {
    /// All that is the same in every epoch.
    pub(crate) const WHOLE_PREFIX: Self = Self::Prefix { depth: usize::MAX };
}

/// The places in a query where its samples may be kept: see [`PrefixCut`].
///
/// # Errors
/// `Invalid` if nothing can be kept.
pub(crate) fn prefix_cuts(plan: &LogicalPlan, order: CallOrder) -> Result<Vec<PrefixCut>> {
    prefix::cuts(hidden::weave(plan, order)?)
}

/// The reader of a stage's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Audience {
    /// The program that opened the feed.
    User,
    /// A trainer over the wire, which computes the last steps itself: see
    /// [`finish_deferred`](forebay_arrays::finish_deferred).
    Trainer,
}

/// What a stage is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageUse<'a> {
    /// The columns to compute, by index; `None` for all.
    pub(crate) only: Option<&'a [usize]>,
    /// Whether the stage reads what all columns need.
    pub(crate) reads_all: bool,
    pub(crate) audience: Audience,
    pub(crate) keeping: Keeping,
    /// The order in which calls on images run.
    pub(crate) order: CallOrder,
}

impl StageUse<'_> {
    /// All columns, in the written order, with nothing kept.
    pub(crate) fn plain(audience: Audience) -> Self {
        Self { only: None, reads_all: true, audience, keeping: Keeping::Nothing, order: CallOrder::Exact }
    }
}

/// Plans the feed stage of `plan` over `tables`.
///
/// A stage of some columns has the same rows. It still reads, filters and derives rows for all columns. A bad row takes
/// one offset, at whatever stage it fails. So rows that fail before they become samples must not depend on the
/// requested columns. A stage with one sample per row reads only the columns it computes, unless `reads_all` is set.
///
/// A stage that keeps something has a layer at the bottom whose input is what is kept.
pub(crate) async fn compile(
    plan: &LogicalPlan,
    StageUse { only, reads_all, audience, keeping, order }: StageUse<'_>,
    tables: &BTreeMap<String, Dataset>,
    state: &SessionState,
) -> Result<Stage> {
    let table = checks::driving_table(plan)?;
    let source = tables.get(&table).ok_or_else(|| Error::internal("the plan reads a missing table"))?.schema();
    let woven = hidden::weave(plan, order)?;
    let woven = match keeping {
        Keeping::Nothing => woven,
        Keeping::Prefix { depth } => prefix::cut(woven, false, depth)?,
        Keeping::All => prefix::cut(woven, true, usize::MAX)?,
    };
    let leaf = woven.leaf(source).clone();
    let select = match topmost_filter(&woven.top) {
        Some(filter) => {
            let whole = LeafPlan::new(state.create_physical_plan(&ids(filter.clone())?).await?, &leaf)?;
            Some(Select { whole, conjuncts: conjuncts(&filter, &leaf, state).await? })
        }
        None => None,
    };
    // Weave the whole query, so that call sites do not depend on the requested columns.
    let is_one_to_one = select.is_none() && woven.layers.is_empty();
    let narrow = match only {
        Some(_) => {
            let transform = output(unfiltered(woven.top.clone())?, plan, only)?;
            Some(LeafPlan::new(state.create_physical_plan(&transform).await?, &leaf)?)
        }
        None => None,
    };
    let whole = output(unfiltered(woven.top)?, plan, None)?;
    let whole = state.create_physical_plan(&whole).await?;
    let whole = match audience {
        Audience::User => LeafPlan::new(whole, &leaf)?,
        Audience::Trainer => LeafPlan::sending(whole, &leaf)?,
    };
    let mut stage = match narrow {
        Some(narrow) if is_one_to_one && !reads_all => Stage::new(None, narrow, state.task_ctx()),
        Some(narrow) => Stage::new(select, whole, state.task_ctx()).giving(narrow),
        None => Stage::new(select, whole, state.task_ctx()),
    };
    // From the top down: a layer produces only the columns that are read above it.
    let mut made = stage.columns().to_vec();
    let sources: Vec<SchemaRef> =
        std::iter::once(source).chain(woven.layers.iter().map(|layer| &layer.made)).cloned().collect();
    for (layer, source) in woven.layers.into_iter().zip(sources).rev() {
        let layer = Layer::plan(layer, made, &source, tables, state).await?;
        made = layer.columns().to_vec();
        stage.push_below(layer);
    }
    let stage = stage.with_moves(woven.moves);
    let stage = match tables[&table].has_dictionaries() {
        true => stage.with_categories()?,
        false => stage,
    };
    stage.measured()
}
