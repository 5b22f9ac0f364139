//! From a logical plan to a [`Stage`]: checked, woven, cut in two, optimised and planned once.
//!
//! A feed stage runs as two physical plans over the same leaf. *Select* is what lies below the topmost filter and gives
//! the ids of the rows that pass; it is cheap and tells a window's row count, hence every offset. *Transform* is the whole
//! query without its filters, a one-to-one function of rows; it is expensive and runs only for the rows that a reader
//! is about to be handed. A feed that is grouped by length has a third, [`lengths`], which runs for the whole window.
//!
//! Operators that make rows lie below these two: each is a [`Layer`] that runs when a window is prepared, and the rows of
//! the topmost are what the two plans read. So do joins, which look rows up in a table that the feed holds in memory.

mod change;
mod checks;
mod deferred;
mod distinct;
mod fast;
mod fingerprint;
mod hidden;
mod join;
mod layer;
mod lengths;
mod lookup;
mod source_rows;
mod stage;
mod table_call;
mod unnest;
mod window_exec;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::execution::SessionState;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, LogicalPlanBuilder, cast};
use forebay_storage::Dataset;

pub(crate) use fingerprint::{fingerprint, function_versions, operator_versions, uncacheable_calls};
use hidden::SAMPLE_ID;
pub(crate) use hidden::{FeedTable, HIDDEN};
pub(crate) use layer::{Layer, MadeSoFar};
pub(crate) use lengths::{Lengths, check as check_length, lengths};
pub(crate) use lookup::{Lookup, LookupPlan};
pub(crate) use source_rows::{SourceRows, slice_bytes};
pub(crate) use stage::{BadRow, Stage, Transformed as TransformedRows};

use crate::error::{Error, Result};
use stage::{LeafPlan, Select};

/// The name of the one table that `plan` reads; refuses a plan that no feed stage can run.
pub(crate) fn driving_table(plan: &LogicalPlan) -> Result<String> {
    checks::driving_table(plan)
}

/// How many of the first rows of its table `plan` reads, if not all.
pub(crate) fn limit(plan: &LogicalPlan) -> Result<Option<u64>> {
    checks::limit(plan)
}

/// `plan` as the rest of this module takes it: with the types of its expressions settled, and subqueries in conditions as
/// joins.
pub(crate) fn resolved(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    Ok(join::resolved(plan, state)?)
}

/// Who is handed a stage's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Audience {
    /// Whoever asked for them.
    User,
    /// A trainer over the wire, who does the last steps with them: see [`finish_deferred`](forebay_arrays::finish_deferred).
    Trainer,
}

/// Plans the feed stage of `plan` over `tables`; with `only` the rows are the same, and of their columns those at these
/// places are computed.
///
/// What is read, filtered and made of rows is then that of all columns: a bad row takes one offset wherever it is found to be
/// bad, so which rows are bad before they are samples must not depend on what is asked for. Only a stage of one sample a
/// row reads less, unless `reads_all`.
pub(crate) async fn compile(
    plan: &LogicalPlan,
    only: Option<&[usize]>,
    reads_all: bool,
    audience: Audience,
    tables: &BTreeMap<String, Dataset>,
    state: &SessionState,
) -> Result<Stage> {
    let table = checks::driving_table(plan)?;
    let source =
        tables.get(&table).ok_or_else(|| Error::internal("the plan reads a table that is not there"))?.schema();
    let woven = hidden::weave(plan)?;
    let leaf = woven.leaf(source).clone();
    let select = match topmost_filter(&woven.top) {
        Some(filter) => {
            let whole = LeafPlan::new(state.create_physical_plan(&ids(filter.clone())?).await?, &leaf)?;
            Some(Select { whole, conjuncts: conjuncts(&filter, &leaf, state).await? })
        }
        None => None,
    };
    // Woven as a whole, so that calls keep their sites whatever is left out.
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
    // From the top down: a layer makes only what is read above it.
    let mut made = stage.columns().to_vec();
    let sources: Vec<SchemaRef> =
        std::iter::once(source).chain(woven.layers.iter().map(|layer| &layer.made)).cloned().collect();
    for (layer, source) in woven.layers.into_iter().zip(sources).rev() {
        let layer = Layer::plan(layer, made, &source, tables, state).await?;
        made = layer.columns().to_vec();
        stage.push_below(layer);
    }
    match tables[&table].has_dictionaries() {
        true => stage.with_categories(),
        false => Ok(stage),
    }
}

/// Plans each condition that rows must meet at any level of `plan` by itself.
async fn conjuncts(plan: &LogicalPlan, source: &SchemaRef, state: &SessionState) -> Result<Vec<LeafPlan>> {
    let mut conjuncts = Vec::new();
    for conjunct in conjuncts_of(plan)? {
        conjuncts.push(LeafPlan::new(state.create_physical_plan(&ids(conjunct)?).await?, source)?);
    }
    Ok(conjuncts)
}

/// The ids of the rows that come out of `plan`.
fn ids(plan: LogicalPlan) -> Result<LogicalPlan> {
    let id = Expr::Column(hidden::hidden_column(&plan, SAMPLE_ID)?);
    Ok(LogicalPlanBuilder::from(plan).project([id])?.build()?)
}

/// Each condition that rows must meet at any level of `plan`, as a filter by itself.
fn conjuncts_of(plan: &LogicalPlan) -> Result<Vec<LogicalPlan>> {
    let mut conjuncts = Vec::new();
    plan.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let input = Arc::new(unfiltered(filter.input.as_ref().clone())?);
            for condition in split_conjunction(&filter.predicate) {
                conjuncts.push(LogicalPlan::Filter(Filter::try_new(condition.clone(), Arc::clone(&input))?));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(conjuncts)
}

fn topmost_filter(plan: &LogicalPlan) -> Option<LogicalPlan> {
    match plan {
        LogicalPlan::Filter(_) => Some(plan.clone()),
        _ => plan.inputs().into_iter().find_map(topmost_filter),
    }
}

fn unfiltered(plan: LogicalPlan) -> datafusion::error::Result<LogicalPlan> {
    plan.transform_up(|node| {
        Ok(match node {
            LogicalPlan::Filter(filter) => Transformed::yes(Arc::unwrap_or_clone(filter.input)),
            other => Transformed::no(other),
        })
    })
    .data()
}

/// The columns the user asked for, in types that every Arrow reader has: dictionaries and views become plain arrays.
fn output(woven: LogicalPlan, asked: &LogicalPlan, only: Option<&[usize]>) -> Result<LogicalPlan> {
    let mut columns: Vec<Expr> = asked.schema().iter().map(|(qualifier, field)| plain(qualifier, field)).collect();
    if let Some(only) = only {
        columns = only.iter().map(|&at| columns[at].clone()).collect();
    }
    let output = LogicalPlanBuilder::from(woven).project(columns)?.build()?;
    match output.schema().fields().iter().find(|field| is_exotic(field.data_type())) {
        Some(field) => {
            Err(Error::invalid(format!("column \"{}\" holds dictionaries inside a nested type", field.name()))
                .with_hint("cast it to a plain type in the SELECT"))
        }
        None => Ok(output),
    }
}

/// A column that the user asked for, in a type that every Arrow reader has.
fn plain(qualifier: Option<&TableReference>, field: &FieldRef) -> Expr {
    let column = Expr::Column((qualifier, field).into());
    let plain = match field.data_type() {
        DataType::Dictionary(_, values) => cast(column, values.as_ref().clone()),
        DataType::Utf8View => cast(column, DataType::Utf8),
        DataType::BinaryView => cast(column, DataType::Binary),
        _ => column,
    };
    plain.alias(field.name())
}

/// Whether a type holds what not every reader of Arrow knows.
fn is_exotic(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) | DataType::Utf8View | DataType::BinaryView => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            is_exotic(item.data_type())
        }
        DataType::Struct(fields) => fields.iter().any(|field| is_exotic(field.data_type())),
        DataType::Map(entries, _) => is_exotic(entries.data_type()),
        _ => false,
    }
}
