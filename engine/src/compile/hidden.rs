//! Hidden columns: row identity and randomness, woven into a plan behind the user's back.
//!
//! The rewrite widens the scan by a row's `sample_id`, its random key and the length of its global step, carries them
//! through every projection, and hands each keyed-random call the key of its row and the number of its call site, and
//! each call that depends on the step its length. After it, a plan is an ordinary
//! deterministic one: the optimizer may move, merge and prune as it likes.
//!
//! At each operator that changes rows the plan is cut: what lies below it becomes a layer, and what lies above reads a
//! table of the rows that it makes, which have hidden columns of their own.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, TableReference, plan_datafusion_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    self as plan, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Projection, SubqueryAlias, TableType,
    UserDefinedLogicalNodeCore as _, lit,
};
use datafusion::physical_plan::ExecutionPlan;
use forebay_operators::Determinism;
use forebay_operators::mix::{Mix, Part};
use forebay_operators::pack::Pack;
use forebay_operators::pack::columns::Column as PackColumn;
use forebay_operators::pack::list_field;
use forebay_sql::{BOUNDS, RowsCall, RowsNode, SAMPLE};
use xxhash_rust::xxh3::xxh3_64;

use super::changes::Change;
use super::checks;
use super::fast;
use super::join::Condition;
use super::lookup::{Join, Right};
use super::near_duplicates::NearDuplicates;
use super::pair::Pair;
use super::window_exec::WindowExec;

pub(crate) const SAMPLE_ID: &str = "__forebay_sample_id";
pub(crate) const RANDOM_KEY: &str = "__forebay_random_key";
/// How long rows of the same global step may be. Only known once a window's rows are grouped, so only when transforming.
pub(crate) const STEP_LENGTH: &str = "__forebay_step_length";
/// The column of tokens between the layer that packs and what is made of them.
const TOKENS: &str = "packed";
/// What the columns of a row's partner are named, with a number, and its random key.
const PARTNER: &str = "__forebay_partner";
const PARTNER_KEY: &str = "__forebay_partner_key";
/// What the columns are named that hold the keys of joins, with a number.
const JOIN_KEY: &str = "__forebay_key";
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

/// A query with its hidden columns, cut where rows are made.
pub(crate) struct Woven {
    /// From the table upwards.
    pub(crate) layers: Vec<WovenLayer>,
    /// What lies above the topmost operator that makes rows; all of the query, where there is none.
    pub(crate) top: LogicalPlan,
}

/// An operator that makes rows, and what lies between it and the one below.
pub(crate) struct WovenLayer {
    pub(crate) input: LogicalPlan,
    pub(crate) change: Change,
    /// What it makes.
    pub(crate) made: SchemaRef,
}

impl Woven {
    /// The columns of what `top` reads, where the driving table has those of `source`.
    pub(crate) fn leaf<'a>(&'a self, source: &'a SchemaRef) -> &'a SchemaRef {
        self.layers.last().map_or(source, |layer| &layer.made)
    }
}

/// Weaves the hidden columns into `plan`, whose output then has them as well.
///
/// A call site is the operator's name and its ordinal among the calls of that operator, so that adding a flip to a
/// pipeline leaves its crops as they were.
pub(crate) fn weave(plan: &LogicalPlan) -> Result<Woven> {
    let mut weaver = Weaver::default();
    let top = weaver.plan(plan)?;
    Ok(Woven { layers: weaver.layers, top })
}

#[derive(Default)]
struct Weaver {
    calls: HashMap<String, u64>,
    /// Calls that decode reduced pictures.
    fast_calls: u64,
    layers: Vec<WovenLayer>,
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
            // The feed's row ranges end there: see `limit`.
            LogicalPlan::Limit(limit) => self.plan(&limit.input),
            LogicalPlan::Unnest(unnest) => {
                let input = self.plan(&unnest.input)?;
                self.cut(input, Change::unnest(unnest)?, &unnest.schema)
            }
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Extension(extension) if extension.node.as_any().is::<RowsNode>() => {
                let node = extension.node.as_any().downcast_ref::<RowsNode>().expect("looked at above");
                let input = self.plan(node.input())?;
                match node.call() {
                    RowsCall::Pack { pack, column } => self.pack(node, pack, *column, input),
                    RowsCall::Mix { mix, image, label } => self.mix(node, mix, (*image, *label), input),
                    RowsCall::NearDuplicates { call, column } => {
                        let distinct = NearDuplicates::new(*call, *column);
                        self.cut(input, Change::NearDuplicates(distinct), node.schema())
                    }
                }
            }
            other => plan_err!("{} cannot run in a feed stage", other.display()),
        }
    }

    /// The left side goes below with its keys; the right side is woven by itself, since its rows are no samples.
    fn join(&mut self, join: &plan::Join) -> Result<LogicalPlan> {
        let Condition { kind, keys, right, residual } = Condition::of(join)?;
        let input = self.plan(&join.left)?;
        let columns = join.left.schema().columns();
        let left = columns.len();
        let mut exprs: Vec<Expr> = columns.into_iter().map(Expr::Column).collect();
        let mut weaver = Self::default();
        let mut plan = weaver.plan(&join.right)?;
        if let Some(condition) = right {
            plan = LogicalPlan::Filter(Filter::try_new(weaver.expr(condition, &plan)?, Arc::new(plan))?);
        }
        let mut right_keys = Vec::with_capacity(keys.len());
        for (index, (left, right)) in keys.into_iter().enumerate() {
            let name = format!("{JOIN_KEY}_{index}");
            exprs.push(self.expr(left, &input)?.alias(&name));
            right_keys.push(weaver.expr(right, &plan)?.alias(&name));
        }
        for hidden in HIDDEN {
            exprs.push(Expr::Column(hidden_column(&input, hidden)?));
        }
        let input = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?);
        let right = Right {
            table: checks::driving_table(&join.right).map_err(|error| plan_datafusion_err!("{}", error.message()))?,
            limit: checks::limit(&join.right).map_err(|error| plan_datafusion_err!("{}", error.message()))?,
            plan,
            columns: join.right.schema().columns().into_iter().map(Expr::Column).collect(),
            keys: right_keys,
        };
        let change = Change::Join(Box::new(Join { kind, left, keys: right.keys.len(), right }));
        let joined = self.cut(input, change, &join.schema)?;
        match residual {
            None => Ok(joined),
            Some(condition) => {
                let condition = self.expr(condition, &joined)?;
                Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(joined))?))
            }
        }
    }

    /// Only documents go below and only tokens and their bounds come out; what a trainer sees is made of these above,
    /// row by row and when it is asked for.
    fn pack(&mut self, node: &RowsNode, pack: &Pack, column: usize, input: LogicalPlan) -> Result<LogicalPlan> {
        let column = Expr::Column(input.schema().columns()[column].clone());
        let document = PackColumn::Document.function(pack).call(vec![column]).alias(TOKENS);
        let mut exprs = vec![document];
        for hidden in HIDDEN {
            exprs.push(Expr::Column(hidden_column(&input, hidden)?));
        }
        let documents = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?);
        let made = [TOKENS, BOUNDS].map(|name| (None, list_field(name)));
        let made = DFSchema::new_with_metadata(made.into(), HashMap::new())?;
        let packed = self.cut(documents, Change::Pack(*pack), &made)?;
        let [tokens, bounds] = [TOKENS, BOUNDS].map(|name| Expr::Column(Column::from_name(name)));
        let named = |expr: Expr, (qualifier, field): (Option<&TableReference>, &FieldRef)| {
            expr.alias_qualified(qualifier.cloned(), field.name())
        };
        let mut exprs = Vec::new();
        for column in node.schema().iter() {
            let of = PackColumn::OUTPUTS.into_iter().find(|of| of.name() == column.1.name());
            let call = |args: &[&Expr]| of.map(|of| of.function(pack).call(args.iter().copied().cloned().collect()));
            let expr = match of {
                Some(PackColumn::InputIds) => call(&[&tokens]),
                Some(PackColumn::Labels) => call(&[&tokens, &bounds]),
                Some(_) => call(&[&bounds]),
                None => None,
            };
            exprs.push(named(expr.unwrap_or_else(|| bounds.clone()), column));
        }
        for hidden in HIDDEN {
            exprs.push(Expr::Column(hidden_column(&packed, hidden)?));
        }
        Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(packed))?))
    }

    /// What the subquery selects is computed above the layer, of the row's columns and again of its partner's.
    fn mix(
        &mut self,
        node: &RowsNode,
        mix: &Mix,
        (image, label): (usize, usize),
        input: LogicalPlan,
    ) -> Result<LogicalPlan> {
        let (base, selected) = flattened(input)?;
        let columns = base.schema().fields().len() - HIDDEN.len();
        let own = base.schema().iter().take(columns).map(|(qualifier, field)| (qualifier.cloned(), Arc::clone(field)));
        // Mixed rows may be mixed again, each time with others.
        let layer = self.layers.len();
        let (partner_name, partner_key) =
            (|at: usize| format!("{PARTNER}_{layer}_{at}"), format!("{PARTNER_KEY}_{layer}"));
        let partner = base.schema().fields().iter().take(columns).enumerate();
        let partner = partner.map(|(at, field)| (None, Arc::new(field.as_ref().clone().with_name(partner_name(at)))));
        let key = (None, Arc::new(Field::new(&partner_key, DataType::UInt64, false)));
        let made = DFSchema::new_with_metadata(own.chain(partner).chain([key]).collect(), HashMap::new())?;
        let below = Arc::clone(base.schema());
        let paired = self.cut(base, Change::Pair(mix.descriptor().name, Pair::new(columns, layer)), &made)?;
        let over_pair = |expr: &Expr, of_partner: bool| {
            expr.clone().transform_up(|expr| {
                let Expr::Column(column) = &expr else { return Ok(Transformed::no(expr)) };
                let at = below.index_of_column(column)?;
                let column = match below.field(at).name().as_str() {
                    RANDOM_KEY if of_partner => Column::from_name(&partner_key),
                    name if at >= columns => hidden_column(&paired, name)?,
                    _ if of_partner => Column::from_name(partner_name(at)),
                    _ => return Ok(Transformed::no(expr)),
                };
                Ok(Transformed::yes(Expr::Column(column)))
            })
        };
        let key = Expr::Column(hidden_column(&paired, RANDOM_KEY)?);
        let site = lit(self.site(mix.descriptor().name));
        let mut exprs = Vec::with_capacity(selected.len());
        for (at, ((qualifier, field), own)) in node.schema().iter().zip(&selected).enumerate() {
            let part = if at == image { Some(Part::Image) } else { (at == label).then_some(Part::Label) };
            let mut expr = over_pair(own, false)?.data;
            if let Some(part) = part {
                let partner = over_pair(own, true)?.data;
                expr = mix.function(part).call(vec![expr, partner, key.clone(), site.clone()]);
            }
            exprs.push(expr.alias_qualified(qualifier.cloned(), field.name()));
        }
        for hidden in HIDDEN {
            exprs.push(Expr::Column(hidden_column(&paired, hidden)?));
        }
        Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(paired))?))
    }

    /// Closes a layer; gives a plan over the rows that it makes, with the columns of `schema` under their names.
    fn cut(&mut self, input: LogicalPlan, change: Change, schema: &DFSchema) -> Result<LogicalPlan> {
        // A table has one name for each column, and the columns of two tables may share one.
        let mut fields: Vec<Field> = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let mut name = field.name().clone();
            while fields.iter().any(|taken| *taken.name() == name) || HIDDEN.contains(&name.as_str()) {
                name = format!("{name}:{}", fields.len());
            }
            fields.push(field.as_ref().clone().with_name(name));
        }
        let made = Arc::new(Schema::new(fields));
        let table = format!("{}_{}", change.name(), self.layers.len() + 1);
        let widened = FeedTable::widened(&table, &made);
        let scan = LogicalPlanBuilder::scan(&table, provider_as_source(Arc::new(widened)), None)?.build()?;
        let named = made.fields().iter().zip(schema.iter()).map(|(field, (qualifier, original))| {
            let column = Expr::Column(Column::new(Some(table.as_str()), field.name()));
            column.alias_qualified(qualifier.cloned(), original.name())
        });
        let mut exprs: Vec<Expr> = named.collect();
        for hidden in HIDDEN {
            exprs.push(Expr::Column(hidden_column(&scan, hidden)?));
        }
        self.layers.push(WovenLayer { input, change, made });
        Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(scan))?))
    }

    /// Gives each call in `expr` what its operator depends on beside its arguments.
    fn expr(&mut self, expr: Expr, input: &LogicalPlan) -> Result<Expr> {
        let name = expr.schema_name().to_string();
        let (key, step) = (hidden_column(input, RANDOM_KEY)?, hidden_column(input, STEP_LENGTH)?);
        let id = hidden_column(input, SAMPLE_ID)?;
        let woven = fast::settled(expr, &mut self.fast_calls)?
            .transform_up(|expr| {
                let Expr::ScalarFunction(call) = expr else { return Ok(Transformed::no(expr)) };
                let mut args = call.args.clone();
                match forebay_operators::find(call.name()).map(|operator| operator.descriptor().determinism) {
                    Some(Determinism::KeyedRandom) => {
                        args.extend([Expr::Column(key.clone()), lit(self.site(call.name()))]);
                    }
                    Some(Determinism::StepLength) => args.push(Expr::Column(step.clone())),
                    None if call.name() == SAMPLE && !self.layers.is_empty() => {
                        return plan_err!(
                            "TABLESAMPLE takes rows of a table by their number, and these were made of such rows"
                        );
                    }
                    None if call.name() == SAMPLE => args.push(Expr::Column(id.clone())),
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

/// The plan below the projections that `plan` ends with, and the columns of `plan` as expressions over it.
fn flattened(plan: LogicalPlan) -> Result<(LogicalPlan, Vec<Expr>)> {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => flattened(Arc::unwrap_or_clone(alias.input)),
        LogicalPlan::Projection(projection) => {
            let schema = Arc::clone(projection.input.schema());
            let (mut base, mut below) = flattened(projection.input.as_ref().clone())?;
            // What is computed once below and used twice stays below: else it would multiply from projection to projection.
            let mut used = vec![0; below.len()];
            for expr in &projection.expr {
                expr.apply(|expr| {
                    if let Expr::Column(column) = expr {
                        used[schema.index_of_column(column)?] += 1;
                    }
                    Ok(TreeNodeRecursion::Continue)
                })?;
            }
            if below.iter().zip(used).any(|(expr, used)| used > 1 && !matches!(expr, Expr::Column(_))) {
                base = projection.input.as_ref().clone();
                below = schema.columns().into_iter().map(Expr::Column).collect();
            }
            let over_base = |expr: Expr| {
                expr.unalias().transform_down(|expr| match &expr {
                    Expr::Column(column) => {
                        let expr = below[schema.index_of_column(column)?].clone();
                        Ok(Transformed::new(expr, true, TreeNodeRecursion::Jump))
                    }
                    _ => Ok(Transformed::no(expr)),
                })
            };
            let exprs: Vec<Expr> =
                projection.expr.into_iter().map(|expr| over_base(expr).data()).collect::<Result<_>>()?;
            Ok((base, exprs))
        }
        other => {
            let columns = other.schema().columns().into_iter().map(Expr::Column).collect();
            Ok((other, columns))
        }
    }
}

/// The hidden column `name` as the output of `plan` qualifies it.
pub(crate) fn hidden_column(plan: &LogicalPlan, name: &str) -> Result<Column> {
    let (qualifier, field) = plan.schema().qualified_field_with_unqualified_name(name)?;
    Ok(Column::from((qualifier, field)))
}
