//! Table operators: what is called in FROM and makes rows of rows; and samples of tables.
//!
//! Named arguments and defaults have become positions, and a table's name a subquery, by the time this plans a call: see
//! `calls`. The result is a node of
//! DataFusion's plan that the engine knows.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, DFSchemaRef, TableReference, internal_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::{Expr, Extension, LogicalPlan, LogicalPlanBuilder, UserDefinedLogicalNodeCore};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, TableFactor, TableFunctionArgs, TableSampleKind,
};
use forebay_operators::pack::columns::Column as PackColumn;
use forebay_operators::pack::{self, Pack, Strategy, list_field};

use crate::sample::{self, sample_percent, sample_seed};
use crate::{calls, nearest};

/// The longest sequence: a slip of the keyboard should not ask for terabytes.
const LENGTH_MAX: i64 = 1 << 24;

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
            TableFactor::Table { name, args: Some(args), alias, .. } if calls::table_operator(&name).is_some() => {
                let plan = plan_pack(args, context)?;
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

fn plan_pack(args: TableFunctionArgs, context: &mut dyn RelationPlannerContext) -> Result<LogicalPlan> {
    let mut args = args.args.into_iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Ok(expr),
        _ => internal_err!("the arguments of pack were not put into position"),
    });
    let Some(rows) = args.next().transpose()? else { return plan_err!("pack: \"rows\" is missing") };
    let constants: Vec<ScalarValue> =
        args.map(|expr| Ok(calls::literal(&expr?).unwrap_or(ScalarValue::Null))).collect::<Result<_>>()?;
    let [length, strategy, column, separator, pad_id, ignore_index] = &constants[..] else {
        return internal_err!("pack is called with {} constants", constants.len());
    };
    let length = match integer(length) {
        Some(length) if (1..=LENGTH_MAX).contains(&length) => length as usize,
        _ => return plan_err!("pack: \"length\" must be between 1 and {LENGTH_MAX}, got {length}"),
    };
    let strategy = match text(strategy) {
        Some("concat") => Strategy::Concat,
        Some("best_fit") => Strategy::BestFit,
        other => {
            return plan_err!("pack: \"strategy\" must be 'concat' or 'best_fit', got '{}'", other.unwrap_or_default());
        }
    };
    let token = |name: &str, value: &ScalarValue| match integer(value).map(i32::try_from) {
        Some(Ok(token)) => Ok(token),
        _ => plan_err!("pack: \"{name}\" must be a 32-bit integer, got {value}"),
    };
    let pack = Pack {
        length,
        strategy,
        separator: if separator.is_null() { None } else { Some(token("separator", separator)?) },
        pad_id: token("pad_id", pad_id)?,
        ignore_index: token("ignore_index", ignore_index)?,
    };
    let input = context.plan(relation_of(rows)?)?;
    let node = PackNode::try_new(pack, text(column), input)?;
    Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }))
}

fn relation_of(rows: SqlExpr) -> Result<TableFactor> {
    match rows {
        SqlExpr::Subquery(subquery) => Ok(TableFactor::Derived { lateral: false, subquery, alias: None, sample: None }),
        other => internal_err!("pack is called with `{other}`, which was not made a subquery"),
    }
}

fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int64(value) => *value,
        _ => None,
    }
}

fn text(value: &ScalarValue) -> Option<&str> {
    match value {
        ScalarValue::Utf8(text) => text.as_deref(),
        _ => None,
    }
}

/// A call of `pack` in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackNode {
    pack: Pack,
    column: usize,
    input: Arc<LogicalPlan>,
    schema: DFSchemaRef,
}

impl PackNode {
    fn try_new(pack: Pack, column: Option<&str>, input: LogicalPlan) -> Result<Self> {
        let lists: Vec<(usize, &str)> = input
            .schema()
            .fields()
            .iter()
            .enumerate()
            .filter(|(_, field)| is_tokens(field.data_type()))
            .map(|(at, field)| (at, field.name().as_str()))
            .collect();
        let names = || lists.iter().map(|(_, name)| *name);
        let column = match (column, &lists[..]) {
            (Some(column), lists) => match lists.iter().find(|(_, name)| *name == column) {
                Some((at, _)) => *at,
                None if input.schema().fields().iter().any(|field| field.name() == column) => {
                    return plan_err!("pack: \"column\" must name a list of integers, and \"{column}\" is none");
                }
                None => {
                    let near = nearest(column, names()).map(|near| format!(". Did you mean \"{near}\"?"));
                    return plan_err!("pack: there is no column \"{column}\"{}", near.unwrap_or_default());
                }
            },
            (None, [(at, _)]) => *at,
            (None, []) => return plan_err!("pack: \"rows\" has no column with a list of integers"),
            (None, _) => {
                let names = names().collect::<Vec<_>>().join(", ");
                return plan_err!(
                    "pack: \"rows\" has several lists of integers ({names}). Name one of them with column"
                );
            }
        };
        let [input_ids, labels, position_ids, tokens] = PackColumn::OUTPUTS.map(|column| column.field(&pack));
        let fields = [input_ids, labels, position_ids, list_field(BOUNDS), tokens];
        let qualifier = TableReference::bare(pack::DESCRIPTOR.name);
        let qualified = fields.into_iter().map(|field| (Some(qualifier.clone()), field)).collect();
        let schema = DFSchema::new_with_metadata(qualified, Default::default())?;
        Ok(Self { pack, column, input: Arc::new(input), schema: Arc::new(schema) })
    }

    /// What is called.
    pub fn pack(&self) -> &Pack {
        &self.pack
    }

    /// Which column of the input holds the lists.
    pub fn column(&self) -> usize {
        self.column
    }

    /// What is packed.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }
}

/// The name of the column of bounds.
pub const BOUNDS: &str = "cu_seq_lens";

fn is_tokens(data_type: &DataType) -> bool {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_integer()
        }
        _ => false,
    }
}

impl PartialOrd for PackNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        (self.pack, self.column, &self.input).partial_cmp(&(other.pack, other.column, &other.input))
    }
}

impl UserDefinedLogicalNodeCore for PackNode {
    fn name(&self) -> &'static str {
        "Pack"
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
        let column = self.input.schema().field(self.column).name();
        write!(f, "Pack: version={}, column={column:?}, {:?}", pack::DESCRIPTOR.version, self.pack)
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self { input: Arc::new(input), ..self.clone() }),
            _ => internal_err!("pack has one input"),
        }
    }
}
