//! Table operators: what is called in FROM and makes rows of rows; and samples of tables.
//!
//! Named arguments and defaults have become positions, and a table's name a subquery, by the time this plans a call: see
//! `calls`. The result is a node of DataFusion's plan that the engine knows.

mod mix;
mod near_duplicates;
mod pack;

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::common::{DFSchema, DFSchemaRef, internal_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, TableFactor, TableFunctionArgs, TableSampleKind,
};
use forebay_operators::Descriptor;
use forebay_operators::mix::Mix;
use forebay_operators::near_duplicates::NearDuplicates;
use forebay_operators::pack::Pack;

use crate::sample::{self, sample_percent, sample_seed};
use crate::{calls, nearest};

pub use pack::BOUNDS;

/// The planner of table operators, for every session that plans pipelines.
pub fn relation_planner() -> Arc<dyn RelationPlanner> {
    Arc::new(TableOperators)
}

#[derive(Debug)]
struct TableOperators;

impl RelationPlanner for TableOperators {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        match relation {
            TableFactor::Table { name, args: Some(args), alias, sample, .. }
                if calls::table_operator(&name).is_some() =>
            {
                if sample.is_some() {
                    return plan_err!(
                        "TABLESAMPLE takes rows of a table by their number, and {name} makes rows: sample its input"
                    );
                }
                let Some(descriptor) = calls::table_operator(&name) else { return internal_err!("looked at above") };
                let plan = plan_call(descriptor, args, context)?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation { plan, alias })))
            }
            TableFactor::Table { sample: Some(kind), name, alias, args, with_hints, version, .. } => {
                let (TableSampleKind::BeforeTableAlias(sample) | TableSampleKind::AfterTableAlias(sample)) = kind;
                let (Some(percent), Some(seed)) = (sample_percent(&sample), sample_seed(&sample)) else {
                    return internal_err!("a TABLESAMPLE was not checked");
                };
                // What else a table may have is refused before this.
                let table = TableFactor::Table {
                    name,
                    alias,
                    args,
                    with_hints,
                    version,
                    sample: None,
                    with_ordinality: false,
                    partitions: Vec::new(),
                    json_path: None,
                    index_hints: Vec::new(),
                };
                let table = context.plan(table)?;
                let plan = LogicalPlanBuilder::from(table).filter(sample::condition(percent, seed))?.build()?;
                Ok(RelationPlanning::Planned(Box::new(PlannedRelation { plan, alias: None })))
            }
            other => Ok(RelationPlanning::Original(Box::new(other))),
        }
    }
}

fn plan_call(
    descriptor: &'static Descriptor,
    args: TableFunctionArgs,
    context: &mut dyn RelationPlannerContext,
) -> Result<LogicalPlan> {
    let mut args = args.args.into_iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Ok(expr),
        _ => internal_err!("the arguments of {} were not put into position", descriptor.name),
    });
    let Some(rows) = args.next().transpose()? else { return plan_err!("{}: \"rows\" is missing", descriptor.name) };
    let values: Vec<ScalarValue> =
        args.map(|expr| Ok(calls::literal(&expr?).unwrap_or(ScalarValue::Null))).collect::<Result<_>>()?;
    let input = context.plan(relation_of(rows, descriptor)?)?;
    let constants = Constants { descriptor, values };
    let (call, schema) = match descriptor.name {
        "pack" => pack::plan(&constants, input.schema())?,
        "mixup" | "cutmix" => mix::plan(&constants, input.schema())?,
        "drop_near_duplicates" => near_duplicates::plan(&constants, input.schema())?,
        other => return internal_err!("nothing plans {other}"),
    };
    let node = RowsNode { call, input: Arc::new(input), schema };
    Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
}

fn relation_of(rows: SqlExpr, descriptor: &Descriptor) -> Result<TableFactor> {
    match rows {
        SqlExpr::Subquery(subquery) => Ok(TableFactor::Derived { lateral: false, subquery, alias: None, sample: None }),
        other => internal_err!("{} is called with `{other}`, which was not made a subquery", descriptor.name),
    }
}

/// What a table operator is called with, beside its rows.
struct Constants {
    descriptor: &'static Descriptor,
    values: Vec<ScalarValue>,
}

impl Constants {
    fn value(&self, name: &str) -> Result<&ScalarValue> {
        let constants = &self.descriptor.parameters[1..];
        let at = constants.iter().position(|parameter| parameter.name == name);
        match at.and_then(|at| self.values.get(at)) {
            Some(value) => Ok(value),
            None => internal_err!("{} is called without {name}", self.descriptor.name),
        }
    }

    fn integer(&self, name: &str) -> Result<Option<i64>> {
        match self.value(name)? {
            ScalarValue::Int64(value) => Ok(*value),
            value if value.is_null() => Ok(None),
            value => plan_err!("{}: \"{name}\" must be an integer, got {value}", self.descriptor.name),
        }
    }

    fn number(&self, name: &str) -> Result<f64> {
        match self.value(name)? {
            ScalarValue::Int64(Some(value)) => Ok(*value as f64),
            ScalarValue::Float64(Some(value)) => Ok(*value),
            value => plan_err!("{}: \"{name}\" must be a number, got {value}", self.descriptor.name),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>> {
        match self.value(name)? {
            ScalarValue::Utf8(text) => Ok(text.as_deref()),
            _ => Ok(None),
        }
    }

    /// Where the column is that `name` names, or the only one that `fits`, which is `what`.
    fn column(&self, name: &str, what: &str, fits: impl Fn(&Field) -> bool, rows: &DFSchema) -> Result<usize> {
        let operator = self.descriptor.name;
        let fitting: Vec<(usize, &str)> = (rows.fields().iter().enumerate())
            .filter(|(_, field)| fits(field))
            .map(|(at, field)| (at, field.name().as_str()))
            .collect();
        let names = || fitting.iter().map(|(_, name)| *name);
        match (self.text(name)?, &fitting[..]) {
            (Some(column), fitting) => match fitting.iter().find(|(_, name)| *name == column) {
                Some((at, _)) => Ok(*at),
                None if rows.fields().iter().any(|field| field.name() == column) => {
                    plan_err!("{operator}: \"{name}\" must name {what}, and \"{column}\" is none")
                }
                None => {
                    let near = nearest(column, names()).map(|near| format!(". Did you mean \"{near}\"?"));
                    plan_err!("{operator}: \"{name}\" names no column: \"{column}\"{}", near.unwrap_or_default())
                }
            },
            (None, [(at, _)]) => Ok(*at),
            (None, []) => plan_err!("{operator}: \"rows\" has no column with {what}"),
            (None, _) => {
                let names = names().collect::<Vec<_>>().join(", ");
                plan_err!(
                    "{operator}: \"rows\" has several columns with {what} ({names}). Name one of them with {name}"
                )
            }
        }
    }
}

/// What a table operator is called to do, with places of columns in its input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Hash)]
pub enum RowsCall {
    /// `pack`, of a column of lists.
    Pack {
        /// The call.
        pack: Pack,
        /// The lists.
        column: usize,
    },
    /// `mixup` or `cutmix`.
    Mix {
        /// The call.
        mix: Mix,
        /// The images.
        image: usize,
        /// The labels.
        label: usize,
    },
    /// `drop_near_duplicates`.
    NearDuplicates {
        /// The call.
        call: NearDuplicates,
        /// The signatures.
        column: usize,
    },
}

/// A call of a table operator in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowsNode {
    call: RowsCall,
    input: Arc<LogicalPlan>,
    schema: DFSchemaRef,
}

impl RowsNode {
    /// What is called.
    pub fn call(&self) -> &RowsCall {
        &self.call
    }

    /// What it makes rows of.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }
}

impl PartialOrd for RowsNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (&self.call, &self.input).partial_cmp(&(&other.call, &other.input))
    }
}

impl UserDefinedLogicalNodeCore for RowsNode {
    fn name(&self) -> &'static str {
        match &self.call {
            RowsCall::Pack { .. } => "Pack",
            RowsCall::Mix { mix, .. } => mix.descriptor().name,
            RowsCall::NearDuplicates { .. } => "drop_near_duplicates",
        }
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// It identifies the call, since it enters a query's fingerprint.
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (column, schema) = (|at: usize| self.input.schema().field(at).name(), self.name());
        let version = |descriptor: &Descriptor| descriptor.version;
        match &self.call {
            RowsCall::Pack { pack, column: at } => {
                let version = version(&forebay_operators::pack::DESCRIPTOR);
                write!(f, "{schema}: version={version}, column={:?}, {pack:?}", column(*at))
            }
            RowsCall::Mix { mix, image, label } => {
                let version = version(mix.descriptor());
                write!(
                    f,
                    "{schema}: version={version}, image={:?}, label={:?}, {mix:?}",
                    column(*image),
                    column(*label)
                )
            }
            RowsCall::NearDuplicates { call, column: at } => {
                let version = version(&forebay_operators::near_duplicates::DESCRIPTOR);
                write!(f, "{schema}: version={version}, column={:?}, {call:?}", column(*at))
            }
        }
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self { input: Arc::new(input), ..self.clone() }),
            _ => internal_err!("a table operator has one input"),
        }
    }
}
