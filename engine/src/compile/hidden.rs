//! Hidden columns: row identity and randomness, woven into a plan behind the user's back.
//!
//! The rewrite widens the scan by a row's `sample_id`, its random key and the length of its global step, carries them
//! through every projection, and hands each keyed-random call the key of its row and the number of its call site, and
//! each call that depends on the step its length. After it, a plan is an ordinary
//! deterministic one: the optimizer may move, merge and prune as it likes.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Column, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    Expr, Filter, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias, TableType, lit,
};
use datafusion::physical_plan::ExecutionPlan;
use forebay_operators::Determinism;
use xxhash_rust::xxh3::xxh3_64;

use super::window_exec::WindowExec;

pub(crate) const SAMPLE_ID: &str = "__forebay_sample_id";
pub(crate) const RANDOM_KEY: &str = "__forebay_random_key";
/// How long rows of the same global step may be. Only known once a window's rows are grouped, so only when transforming.
pub(crate) const STEP_LENGTH: &str = "__forebay_step_length";
/// All of them: names that no table may have.
pub(crate) const HIDDEN: [&str; 3] = [SAMPLE_ID, RANDOM_KEY, STEP_LENGTH];

/// A table that can be planned over, with or without the hidden columns. Reading it is the feed's work.
#[derive(Debug)]
pub(crate) struct FeedTable {
    name: String,
    schema: SchemaRef,
}

impl FeedTable {
    pub(crate) fn new(name: &str, schema: SchemaRef) -> Self {
        Self { name: name.to_owned(), schema }
    }

    fn widened(name: &str, schema: &Schema) -> Self {
        let hidden = HIDDEN.map(|name| Arc::new(Field::new(name, DataType::UInt64, false)));
        let fields: Vec<_> = schema.fields().iter().cloned().chain(hidden).collect();
        Self::new(name, Arc::new(Schema::new(fields)))
    }
}

#[async_trait::async_trait]
impl TableProvider for FeedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => Arc::clone(&self.schema),
        };
        Ok(Arc::new(WindowExec::new(self.name.clone(), schema)))
    }
}

/// Weaves the hidden columns into `plan`, whose output then has them as well.
///
/// A call site is the operator's name and its ordinal among the calls of that operator, so that adding a flip to a
/// pipeline leaves its crops as they were.
pub(crate) fn weave(plan: &LogicalPlan) -> Result<LogicalPlan> {
    Weaver { calls: HashMap::new() }.plan(plan)
}

struct Weaver {
    calls: HashMap<String, u64>,
}

impl Weaver {
    fn plan(&mut self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        match plan {
            LogicalPlan::TableScan(scan) => {
                let widened = FeedTable::widened(scan.table_name.table(), &scan.source.schema());
                LogicalPlanBuilder::scan(scan.table_name.clone(), provider_as_source(Arc::new(widened)), None)?.build()
            }
            LogicalPlan::Projection(projection) => {
                let input = self.plan(&projection.input)?;
                if let Some(taken) = projection.schema.field_names().iter().find(|name| {
                    let name = name.rsplit('.').next().unwrap_or(name);
                    HIDDEN.contains(&name)
                }) {
                    return plan_err!("column \"{taken}\" has a name that Forebay keeps for itself");
                }
                let mut exprs =
                    projection.expr.iter().map(|expr| self.expr(expr.clone(), &input)).collect::<Result<Vec<_>>>()?;
                for hidden in HIDDEN {
                    exprs.push(Expr::Column(hidden_column(&input, hidden)?));
                }
                Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
            }
            LogicalPlan::Filter(filter) => {
                let input = self.plan(&filter.input)?;
                let predicate = self.expr(filter.predicate.clone(), &input)?;
                Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(input))?))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = self.plan(&alias.input)?;
                Ok(LogicalPlan::SubqueryAlias(SubqueryAlias::try_new(Arc::new(input), alias.alias.clone())?))
            }
            other => plan_err!("{} cannot run in a feed stage", other.display()),
        }
    }

    /// Gives each call in `expr` what its operator depends on beside its arguments.
    fn expr(&mut self, expr: Expr, input: &LogicalPlan) -> Result<Expr> {
        let name = expr.schema_name().to_string();
        let (key, step) = (hidden_column(input, RANDOM_KEY)?, hidden_column(input, STEP_LENGTH)?);
        let woven = expr
            .transform_up(|expr| {
                let Expr::ScalarFunction(call) = expr else { return Ok(Transformed::no(expr)) };
                let mut args = call.args.clone();
                match forebay_operators::find(call.name()).map(|operator| operator.descriptor().determinism) {
                    Some(Determinism::KeyedRandom) => {
                        args.extend([Expr::Column(key.clone()), lit(self.site(call.name()))]);
                    }
                    Some(Determinism::StepLength) => args.push(Expr::Column(step.clone())),
                    Some(Determinism::Deterministic) | None => {
                        return Ok(Transformed::no(Expr::ScalarFunction(call)));
                    }
                }
                Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(call.func, args))))
            })
            .data()?;
        // An output column is named by its text; the arguments added here must not show in it.
        if woven.schema_name().to_string() == name { Ok(woven) } else { Ok(woven.alias(name)) }
    }

    fn site(&mut self, operator: &str) -> u64 {
        let ordinal = self.calls.entry(operator.to_owned()).or_insert(0);
        let site = xxh3_64(format!("{operator}#{ordinal}").as_bytes());
        *ordinal += 1;
        site
    }
}

/// The hidden column `name` as the output of `plan` qualifies it.
pub(crate) fn hidden_column(plan: &LogicalPlan, name: &str) -> Result<Column> {
    let (qualifier, field) = plan.schema().qualified_field_with_unqualified_name(name)?;
    Ok(Column::from((qualifier, field)))
}
