//! Cuts a query where it needs whole tables.
//!
//! A feed computes each row of one table separately, and looks up rows of others. The topmost node that needs more,
//! such as an aggregate, an order or a window function, ends the part of a query that a feed can compute. That node,
//! with all that is below it, becomes a *stage*: it runs once, and its rows are a table like any other. The rest of the
//! query reads that table. The second table of a join may be a stage, and so may a subquery that stands for a value.
//!
//! A stage has the columns that are read above it. [`lift`](super::lift) keeps images and lists out of it that it only
//! passes on.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::expr::{FieldMetadata, Placeholder, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{self as plan, Expr, LogicalPlan, LogicalPlanBuilder, Projection, lit};
use datafusion::scalar::ScalarValue;
use forebay_arrays::without_views;
use forebay_operators::Determinism;
use forebay_sql::{RowsNode, SAMPLE};

use super::hidden::FeedTable;
use super::lift::{lifted, reads_draws};
use super::unknown::unknown;
use super::unrunnable::Unrunnable;
use super::{checks, fitted, join, unnest};
use crate::error::{Error, Result};
use crate::function::FunctionUdf;

/// A query as a feed runs it, and the stages below it.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// The query over the tables that the stages give. A value that a stage gives is a placeholder.
    pub(crate) plan: LogicalPlan,
    /// The stages, none of which reads another.
    pub(crate) stages: Vec<StagePlan>,
}

/// A part of a query that runs once, over whole tables.
#[derive(Clone, Debug)]
pub(crate) struct StagePlan {
    /// The name of its table or its value.
    pub(crate) name: String,
    pub(crate) plan: LogicalPlan,
    /// The columns of its rows, without views.
    pub(crate) schema: SchemaRef,
    /// Whether its one row is a value in an expression.
    pub(crate) is_value: bool,
}

/// How joins run that a feed could look up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Joins {
    /// The feed looks up rows of the second table, which it holds in memory.
    #[default]
    LookUp,
    /// They are stages.
    Precompute,
}

impl Joins {
    pub(crate) const WORDS: &[&str] = &["lookup", "precompute"];

    /// The way with this name among [`Self::WORDS`].
    pub(crate) fn of(word: &str) -> Option<Self> {
        match word {
            "lookup" => Some(Self::LookUp),
            "precompute" => Some(Self::Precompute),
            _ => None,
        }
    }

    /// Whether the feed looks up the second table of a join.
    fn looks_up(self, join: &plan::Join) -> bool {
        self == Self::LookUp && join::refusal_of_lookup(join).is_none()
    }
}

/// Cuts a [resolved](super::resolved) plan. A plan that a feed can run stays as it is.
pub(crate) fn cut(plan: LogicalPlan, joins: Joins) -> Result<Cut, Unrunnable> {
    let mut stages = Vec::new();
    let has_join = plan.exists(|node| Ok(matches!(node, LogicalPlan::Join(_))))?;
    if checks::driving_table(&plan).is_ok() && (joins == Joins::LookUp || !has_join) {
        return Ok(Cut { plan, stages });
    }
    let mut cutter = Cutter { tables: tables(&plan)?, joins, stages: &mut stages };
    let plan = cutter.row_by_row(plan, None)?;
    stages.iter().try_for_each(check)?;
    Ok(Cut { plan, stages })
}

impl Cut {
    /// The query with these values of stages. Without a value it can be planned, and not be run.
    pub(crate) fn with_values(&self, value_of: &dyn Fn(&str) -> Option<ScalarValue>) -> PlanResult<LogicalPlan> {
        self.plan
            .clone()
            .transform_up(|node| {
                let first = node.inputs().first().and_then(|input| input.schema().columns().into_iter().next());
                let names = NamePreserver::new(&node);
                node.map_expressions(|expr| {
                    if !expr.exists(|expr| Ok(matches!(expr, Expr::Placeholder(_))))? {
                        return Ok(Transformed::no(expr));
                    }
                    let name = names.save(&expr);
                    // Each condition of a join stays one of the side that it reads.
                    let parts = split_conjunction_owned(expr).into_iter();
                    let filled = parts.map(|part| with_values(part, first.as_ref(), value_of));
                    let filled = conjunction(filled.collect::<PlanResult<Vec<_>>>()?).unwrap_or(lit(true));
                    Ok(Transformed::yes(name.restore(filled)))
                })
            })
            .data()
    }
}

/// An expression with these values, or with unknown ones that depend on a column that it reads, or else on `first`.
fn with_values(expr: Expr, first: Option<&Column>, value_of: &dyn Fn(&str) -> Option<ScalarValue>) -> PlanResult<Expr> {
    let column = expr.column_refs().into_iter().min().or(first).cloned();
    let filled = expr.transform_up(|expr| match expr {
        Expr::Placeholder(Placeholder { id, field: Some(field) }) => {
            let metadata = Some(FieldMetadata::new_from_field(&field)).filter(|metadata| !metadata.is_empty());
            Ok(Transformed::yes(match (value_of(&id), &column) {
                (Some(value), _) if fitted::is_fitted(field.data_type()) => Expr::Literal(value, metadata),
                (Some(value), _) => Expr::Literal(value.cast_to(field.data_type())?, metadata),
                (None, Some(column)) => unknown(field, Expr::Column(column.clone())),
                (None, None) => Expr::Literal(ScalarValue::try_from(field.data_type())?, metadata),
            }))
        }
        other => fitted::with_constant(other),
    });
    filled.data()
}

impl StagePlan {
    /// The tables that it reads.
    pub(crate) fn tables(&self) -> PlanResult<BTreeSet<String>> {
        tables(&self.plan)
    }
}

/// The names of the tables that `plan` reads, in subqueries too.
pub(crate) fn tables(plan: &LogicalPlan) -> PlanResult<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node {
            names.insert(scan.table_name.table().to_owned());
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(names)
}

/// The columns of a node that are read above it; `None` for all.
type Needed = Option<HashSet<Column>>;

struct Cutter<'a> {
    /// The names of the tables that the query reads.
    tables: BTreeSet<String>,
    joins: Joins,
    stages: &'a mut Vec<StagePlan>,
}

impl Cutter<'_> {
    /// The plan over the tables of its stages: row by row, down to the topmost nodes that are not.
    fn row_by_row(&mut self, plan: LogicalPlan, needed: Needed) -> PlanResult<LogicalPlan> {
        match plan {
            LogicalPlan::TableScan(_) => Ok(plan),
            LogicalPlan::Limit(_) if checks::is_limit_of_table(&plan) => self.over_inputs(plan),
            LogicalPlan::Projection(ref projection)
                if matches!(projection.input.as_ref(), LogicalPlan::EmptyRelation(_)) =>
            {
                self.stage(plan, needed)
            }
            LogicalPlan::Projection(projection) => {
                let is_needed = |column: &Column| needed.as_ref().is_none_or(|needed| needed.contains(column));
                let columns = projection.schema.columns();
                let exprs = projection.expr.into_iter().zip(&columns).filter(|(_, column)| is_needed(column));
                let exprs = exprs.map(|(expr, _)| self.with_values(expr)).collect::<PlanResult<Vec<_>>>()?;
                let read = read_by(&exprs);
                let input = self.row_by_row(Arc::unwrap_or_clone(projection.input), Some(read))?;
                Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
            }
            // What chooses rows of a stage belongs to it: HAVING, QUALIFY and their like.
            LogicalPlan::Filter(ref filter)
                if compares_with_rows(&filter.predicate)
                    || is_over_stage(&plan, self.joins) && !reads_draws(filter)? =>
            {
                self.cut(plan, needed)
            }
            LogicalPlan::Filter(filter) => {
                let predicate = self.with_values(filter.predicate)?;
                let needed = with(needed, [&predicate]);
                let input = self.row_by_row(Arc::unwrap_or_clone(filter.input), needed)?;
                Ok(LogicalPlan::Filter(plan::Filter::try_new(predicate, Arc::new(input))?))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let below = alias.input.schema().columns();
                let pairs = alias.schema.columns().into_iter().zip(below);
                let needed = needed.map(|needed| {
                    pairs.filter(|(column, _)| needed.contains(column)).map(|(_, below)| below).collect()
                });
                let input = self.row_by_row(Arc::unwrap_or_clone(alias.input), needed)?;
                Ok(LogicalPlan::SubqueryAlias(plan::SubqueryAlias::try_new(Arc::new(input), alias.alias)?))
            }
            LogicalPlan::Unnest(ref unnest) if unnest::refusal(unnest).is_none() => self.over_inputs(plan),
            LogicalPlan::Extension(ref extension) if extension.node.as_any().is::<RowsNode>() => self.over_inputs(plan),
            LogicalPlan::Join(join) if self.joins.looks_up(&join) => self.lookup(join, needed),
            other => self.cut(other, needed),
        }
    }

    fn over_inputs(&mut self, plan: LogicalPlan) -> PlanResult<LogicalPlan> {
        let inputs = plan.inputs().into_iter().cloned().map(|input| self.row_by_row(input, None));
        let inputs = inputs.collect::<PlanResult<Vec<_>>>()?;
        plan.with_new_exprs(plan.expressions(), inputs)
    }

    fn lookup(&mut self, mut join: plan::Join, needed: Needed) -> PlanResult<LogicalPlan> {
        join.filter = join.filter.map(|condition| self.with_values(condition)).transpose()?;
        let keys = join.on.iter().flat_map(|(left, right)| [left, right]);
        let needed = with(needed, keys.chain(join.filter.as_ref()));
        let of = |side: &DFSchema| {
            needed.as_ref().map(|needed| needed.iter().filter(|column| side.has_column(column)).cloned().collect())
        };
        let (of_left, of_right) = (of(join.left.schema()), of(join.right.schema()));
        let left = self.row_by_row(join.left.as_ref().clone(), of_left)?;
        let right = match join::right_side(&join.right).and_then(|()| checks::driving_table(&join.right)) {
            Ok(_) => join.right.as_ref().clone(),
            // A table, or a projection of one.
            Err(_) => match lifted(join.right.as_ref().clone())? {
                LogicalPlan::Projection(projection) => {
                    let read = read_by(&projection.expr);
                    let stage = self.stage(Arc::unwrap_or_clone(projection.input), Some(read))?;
                    LogicalPlan::Projection(Projection::try_new(projection.expr, Arc::new(stage))?)
                }
                right => self.stage(right, of_right)?,
            },
        };
        let plan = LogicalPlan::Join(join);
        plan.with_new_exprs(plan.expressions(), vec![left, right])
    }

    /// Makes a stage of `plan`, or of the part that must be below what it passes on. Returns what reads its table.
    fn cut(&mut self, plan: LogicalPlan, needed: Needed) -> PlanResult<LogicalPlan> {
        match lifted(plan)? {
            LogicalPlan::Projection(projection) if needs_tables(&projection.input, self.joins) => {
                self.row_by_row(LogicalPlan::Projection(projection), needed)
            }
            plan => self.stage(plan, needed),
        }
    }

    fn stage(&mut self, plan: LogicalPlan, needed: Needed) -> PlanResult<LogicalPlan> {
        let name = self.name("stage");
        let is_needed = |column: &Column| needed.as_ref().is_none_or(|needed| needed.contains(column));
        let all = plan.schema().columns();
        let mut columns: Vec<Column> = all.iter().filter(|column| is_needed(column)).cloned().collect();
        if columns.is_empty() {
            columns.extend(all.into_iter().next());
        }
        let mut taken = HashSet::new();
        let named = columns.iter().map(|column| {
            let mut name = column.name.clone();
            while !taken.insert(name.clone()) {
                name.push_str("_2");
            }
            Expr::Column(column.clone()).alias(name)
        });
        let plan = Projection::try_new(named.collect(), Arc::new(plan))?;
        let schema = plain(&plan.schema);
        let table = FeedTable::new(&name, Arc::clone(&schema));
        let scan = LogicalPlanBuilder::scan(&*name, provider_as_source(Arc::new(table)), None)?.build()?;
        let read = columns.into_iter().zip(schema.fields()).zip(plan.schema.fields()).map(|((column, kept), field)| {
            let read = Expr::Column(Column::new(Some(name.as_str()), kept.name()));
            let read =
                if kept.data_type() == field.data_type() { read } else { plan::cast(read, field.data_type().clone()) };
            read.alias_qualified(column.relation, column.name)
        });
        let read = Projection::try_new(read.collect(), Arc::new(scan))?;
        self.stages.push(StagePlan { name, plan: LogicalPlan::Projection(plan), schema, is_value: false });
        Ok(LogicalPlan::Projection(read))
    }

    /// The expression with placeholders for the subqueries that are values.
    fn with_values(&mut self, expr: Expr) -> PlanResult<Expr> {
        let name = NamePreserver::new_for_projection().save(&expr);
        let replaced = expr.transform_down(|expr| match expr {
            Expr::ScalarSubquery(of) if of.outer_ref_columns.is_empty() => {
                // The second row is one too many.
                let plan = LogicalPlanBuilder::from(Arc::clone(&of.subquery)).limit(0, Some(2))?.build()?;
                let column = Expr::Column(plan.schema().columns().swap_remove(0)).alias("value");
                let plan = Projection::try_new(vec![column], Arc::new(plan))?;
                let (field, schema) = (plan.schema.field(0).as_ref().clone(), plain(&plan.schema));
                let plan = LogicalPlan::Projection(plan);
                let same = self.stages.iter().find(|stage| stage.is_value && stage.plan == plan);
                let name = same.map_or_else(|| self.name("value"), |stage| stage.name.clone());
                let is_new = same.is_none();
                let value = Expr::Placeholder(Placeholder {
                    id: name.clone(),
                    field: Some(Arc::new(field.with_nullable(true))),
                });
                if is_new {
                    self.stages.push(StagePlan { name, plan, schema, is_value: true });
                }
                Ok(Transformed::new(value, true, TreeNodeRecursion::Jump))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(if replaced.transformed { name.restore(replaced.data) } else { replaced.data })
    }

    /// A name that no table of the query has.
    fn name(&self, kind: &str) -> String {
        let name = |number| format!("{kind}_{number}");
        let is_free =
            |name: &String| !self.tables.contains(name) && self.stages.iter().all(|stage| stage.name != *name);
        (1usize..).map(name).find(is_free).unwrap_or_else(|| kind.to_owned())
    }
}

/// Whether a query whose rows a feed should compute has a part that needs whole tables, not counting subqueries.
fn needs_tables(plan: &LogicalPlan, joins: Joins) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => false,
        LogicalPlan::Limit(_) => !checks::is_limit_of_table(plan),
        LogicalPlan::Filter(filter) if compares_with_rows(&filter.predicate) => true,
        LogicalPlan::Projection(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().iter().any(|input| needs_tables(input, joins))
        }
        LogicalPlan::Unnest(unnest) if unnest::refusal(unnest).is_none() => needs_tables(&unnest.input, joins),
        LogicalPlan::Extension(extension) if extension.node.as_any().is::<RowsNode>() => {
            plan.inputs().iter().any(|input| needs_tables(input, joins))
        }
        LogicalPlan::Join(join) if joins.looks_up(join) => needs_tables(&join.left, joins),
        _ => true,
    }
}

/// Whether a filter chooses among rows of what must be a stage, with nothing between but names and projections.
fn is_over_stage(filter: &LogicalPlan, joins: Joins) -> bool {
    let mut node = filter;
    loop {
        node = match node {
            LogicalPlan::Filter(_) | LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) => {
                if node.expressions().iter().any(|expr| call_of_feed(expr).is_some()) {
                    return false;
                }
                node.inputs()[0]
            }
            LogicalPlan::Join(join) => return !joins.looks_up(join),
            LogicalPlan::Unnest(_) | LogicalPlan::Extension(_) => return false,
            other => return needs_tables(other, joins),
        }
    }
}

/// Whether a condition has a subquery that is neither a value nor, as a join, looked up.
fn compares_with_rows(condition: &Expr) -> bool {
    let is_it = |expr: &Expr| {
        Ok(matches!(expr, Expr::InSubquery(_) | Expr::Exists(_) | Expr::SetComparison(_))
            || matches!(expr, Expr::ScalarSubquery(of) if !of.outer_ref_columns.is_empty()))
    };
    condition.exists(is_it).unwrap_or(true)
}

fn read_by<'a>(exprs: impl IntoIterator<Item = &'a Expr>) -> HashSet<Column> {
    exprs.into_iter().flat_map(|expr| expr.column_refs()).cloned().collect()
}

fn with<'a>(needed: Needed, exprs: impl IntoIterator<Item = &'a Expr>) -> Needed {
    needed.map(|mut needed| {
        needed.extend(read_by(exprs));
        needed
    })
}

/// The columns without views. All may be null, as those of any table that is read from files.
fn plain(schema: &DFSchema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let data_type = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref().clone(),
            other => without_views(other, true),
        };
        field.as_ref().clone().with_data_type(data_type).with_nullable(true)
    });
    Arc::new(Schema::new(fields.collect::<Vec<Field>>()))
}

/// Refuses a stage whose rows would depend on more than its tables.
fn check(stage: &StagePlan) -> Result<(), Unrunnable> {
    let mut found = None;
    stage.plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Extension(extension) = node
            && let Some(call) = extension.node.as_any().downcast_ref::<RowsNode>()
        {
            found = Some(call.operator().descriptor().name.to_owned());
        }
        for expr in node.expressions() {
            found = found.take().or_else(|| call_of_feed(&expr));
        }
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    let Some(call) = found else { return Ok(()) };
    let what = if call == SAMPLE { "TABLESAMPLE" } else { call.as_str() };
    let error = Error::invalid(format!(
        "\"{what}\" runs in a feed, row by row or in its windows, and the query reads it below a part that needs whole \
         tables and runs once before"
    ));
    let is_scalar = call != SAMPLE && forebay_operators::find_table_operator(&call).is_none();
    let error = error.with_hint(match is_scalar {
        true => {
            "call it in the outermost SELECT, and not in its WHERE or ORDER BY, as in `SELECT operator(column) FROM \
             (SELECT … ORDER BY …)`; or write the rows to files first, with MATERIALIZE"
        }
        false => "write the rows to files first, with MATERIALIZE",
    });
    Err(Unrunnable { word: Some(what.to_owned()), error })
}

/// The name of a function in `expr` that only a feed can call.
pub(super) fn call_of_feed(expr: &Expr) -> Option<String> {
    let mut found = None;
    let walked = expr.apply(|expr| {
        if let Expr::ScalarFunction(call) = expr
            && is_of_feed(call)
        {
            found = Some(call.name().to_owned());
        }
        Ok(if found.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.ok().and(found)
}

fn is_of_feed(call: &ScalarFunction) -> bool {
    let operator = forebay_operators::find(call.name());
    operator.is_some_and(|operator| operator.descriptor().determinism != Determinism::Deterministic)
        || FunctionUdf::of_call(call).is_some_and(FunctionUdf::draws)
        || call.name() == SAMPLE
}
