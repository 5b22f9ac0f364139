//! One order for the rows of a query, on any number of threads.
//!
//! Threads finish in any order, so rows arrive in any order, and what SQL leaves open is chosen by chance: which rows
//! pass LIMIT, which of two equal rows is the first. Here each row gets a *place*: columns that no other row of its
//! node has, or only rows that are equal in all columns. A row of a table is at its number in the snapshot, a row of a
//! join at the places of both of its rows, a group at what its rows have in common. Sorting adds keys before the place.
//! So each node has its rows in one order, by their places, without sorting them. Rows are sorted only where the order
//! is used: below LIMIT, in [functions of several rows](calls), and at the end. There the columns of places go away.
//!
//! The plan has its types resolved and is not optimized: optimizing may lose what the order of rows was.

mod branch;
mod calls;
mod subqueries;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use arrow::row::{RowConverter, SortField};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, JoinType, plan_err};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::error::Result;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::functions_nested::length::array_length;
use datafusion::functions_nested::range::range_udf;
use datafusion::functions_window::row_number::row_number_udwf;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::generate_sort_key;
use datafusion::logical_expr::{
    Aggregate, Distinct, DistinctOn, Expr, Filter, Join, Limit, LogicalPlan, Projection, Repartition, Sort, SortExpr,
    SubqueryAlias, TableScan, TableScanBuilder, Union, Unnest, Values, Window, WindowFrame, cast, lit,
};

use super::BatchTable;
use super::table::ROW;

/// The beginning of the names of columns that hold places.
const PLACE: &str = "__forebay_place_";

/// A plan with the same columns, whose rows and their order depend on the tables alone. All tables of `plan` are
/// [`BatchTable`]s.
///
/// # Errors
/// `Plan` for nodes without an order, and for functions that depend on the order in which rows arrive.
pub(crate) fn in_order(plan: LogicalPlan) -> Result<LogicalPlan> {
    check_names(&plan)?;
    let schema = Arc::clone(plan.schema());
    Places::default().place(plan)?.sorted().only(&schema)
}

/// The order for which DataFusion sorts the rows of window functions.
type SortKeys = Vec<(SortExpr, bool)>;

/// Gives rows their places, and numbers the columns of places.
#[derive(Default)]
struct Places {
    columns: usize,
}

/// A plan with columns that hold the places of its rows. The columns that it had have kept their names.
struct Placed {
    plan: LogicalPlan,
    /// The first key orders rows first. Without any, there is one row at most.
    place: Vec<Key>,
}

/// A column of a place.
struct Key {
    column: Column,
    asc: bool,
    nulls_first: bool,
}

impl Key {
    fn ascending(column: Column) -> Self {
        Self { column, asc: true, nulls_first: true }
    }

    fn sort(&self) -> SortExpr {
        SortExpr::new(Expr::Column(self.column.clone()), self.asc, self.nulls_first)
    }
}

impl Placed {
    /// The plan with its rows in the order of their places.
    fn sorted(self) -> Self {
        let Self { plan, place } = self;
        if place.is_empty() || is_sorted(&plan) {
            return Self { plan, place };
        }
        let expr = place.iter().map(Key::sort).collect();
        Self { plan: LogicalPlan::Sort(Sort { expr, input: Arc::new(plan), fetch: None }), place }
    }

    /// The plan with these of its columns alone.
    fn only(self, schema: &DFSchema) -> Result<LogicalPlan> {
        let columns = schema.columns();
        if self.plan.schema().columns() == columns {
            return Ok(self.plan);
        }
        projection(columns.into_iter().map(Expr::Column).collect(), self.plan)
    }
}

impl Places {
    fn place(&mut self, plan: LogicalPlan) -> Result<Placed> {
        match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan),
            LogicalPlan::Values(values) => self.values(values),
            LogicalPlan::EmptyRelation(_) => Ok(Placed { plan, place: Vec::new() }),
            LogicalPlan::Projection(projection) => self.projection(projection),
            LogicalPlan::Filter(filter) => {
                let Placed { plan, place } = self.input(filter.input)?;
                let filter = Filter::try_new(self.expr(filter.predicate)?, Arc::new(plan))?;
                Ok(Placed { plan: LogicalPlan::Filter(filter), place })
            }
            LogicalPlan::SubqueryAlias(alias) => self.alias(alias),
            LogicalPlan::Repartition(Repartition { input, partitioning_scheme }) => {
                let Placed { plan, place } = self.input(input)?;
                let plan = LogicalPlan::Repartition(Repartition { input: Arc::new(plan), partitioning_scheme });
                Ok(Placed { plan, place })
            }
            LogicalPlan::Sort(sort) => self.sort(sort),
            LogicalPlan::Limit(Limit { skip, fetch, input }) => {
                let placed = self.input(input)?;
                // In a subquery of EXISTS, DataFusion leaves out a limit above a column of the outer query, unless it
                // finds a sort below. Other queries with such a limit cannot be run.
                let is_correlated = !placed.plan.all_out_ref_exprs().is_empty();
                let Placed { plan, place } = if is_correlated { placed } else { placed.sorted() };
                Ok(Placed { plan: LogicalPlan::Limit(Limit { skip, fetch, input: Arc::new(plan) }), place })
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Window(window) => self.window(window),
            LogicalPlan::Distinct(Distinct::All(input)) => {
                let schema = Arc::clone(input.schema());
                let input = self.input(input)?.only(&schema)?;
                let place = first_columns(input.schema(), schema.fields().len())?;
                Ok(Placed { plan: LogicalPlan::Distinct(Distinct::All(Arc::new(input))), place })
            }
            LogicalPlan::Distinct(Distinct::On(distinct)) => self.distinct_on(distinct),
            LogicalPlan::Union(union) => self.union(union),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Unnest(unnest) => self.unnest(unnest),
            other => plan_err!("the rows of this node have no order: {}", other.display()),
        }
    }

    fn input(&mut self, input: Arc<LogicalPlan>) -> Result<Placed> {
        self.place(Arc::unwrap_or_clone(input))
    }

    /// A new name.
    fn name(&mut self) -> String {
        self.columns += 1;
        format!("{PLACE}{}", self.columns)
    }

    fn scan(&mut self, scan: TableScan) -> Result<Placed> {
        let provider = source_as_provider(&scan.source)?;
        let Some(table) = (provider.as_ref() as &dyn Any).downcast_ref::<BatchTable>() else {
            return plan_err!("the rows of \"{}\" have no numbers", scan.table_name);
        };
        let mut exprs: Vec<Expr> = scan.projected_schema.columns().into_iter().map(Expr::Column).collect();
        let name = self.name();
        exprs.push(Expr::Column(Column::new(Some(scan.table_name.clone()), ROW)).alias(&name));
        let row = scan.source.schema().fields().len();
        let columns = scan.projection.map(|mut columns| {
            columns.push(row);
            columns
        });
        let scan = TableScanBuilder::new(scan.table_name, provider_as_source(Arc::new(table.numbered())))
            .with_projection(columns)
            .with_filters(scan.filters)
            .with_fetch(scan.fetch)
            .build()?;
        let plan = projection(exprs, LogicalPlan::TableScan(scan))?;
        Ok(Placed { plan, place: vec![Key::ascending(Column::new_unqualified(name))] })
    }

    /// A row of VALUES is at its number there.
    fn values(&mut self, values: Values) -> Result<Placed> {
        let Values { schema, values } = values;
        let name = self.name();
        let mut fields: Vec<_> = schema.iter().map(|(table, field)| (table.cloned(), Arc::clone(field))).collect();
        fields.push((None, Arc::new(Field::new(&name, DataType::UInt64, false))));
        let schema = Arc::new(DFSchema::new_with_metadata(fields, schema.metadata().clone())?);
        let numbered = values.into_iter().enumerate().map(|(row, mut exprs)| {
            exprs.push(lit(row as u64));
            exprs
        });
        let values = Values { schema, values: numbered.collect() };
        let place = vec![Key::ascending(Column::new_unqualified(name))];
        Ok(Placed { plan: LogicalPlan::Values(values), place })
    }

    fn projection(&mut self, of: Projection) -> Result<Placed> {
        let Placed { plan, place } = self.input(of.input)?;
        let mut exprs = self.exprs(of.expr)?;
        let place = place.into_iter().map(|key| self.kept(&mut exprs, key)).collect();
        Ok(Placed { plan: projection(exprs, plan)?, place })
    }

    /// The key above a projection, which keeps its column.
    fn kept(&mut self, exprs: &mut Vec<Expr>, key: Key) -> Key {
        let Key { column, asc, nulls_first } = key;
        let is_it = |expr: &Expr| matches!(expr, Expr::Column(other) if *other == column);
        let kept = exprs.iter().find_map(|expr| match expr {
            Expr::Alias(alias) if is_it(&alias.expr) => Some(Column::new(alias.relation.clone(), &alias.name)),
            expr if is_it(expr) => Some(column.clone()),
            _ => None,
        });
        let column = match kept {
            Some(kept) => kept,
            None if column.name.starts_with(PLACE) => {
                exprs.push(Expr::Column(column.clone()));
                column
            }
            // Another column of the projection may have its name.
            None => {
                let name = self.name();
                exprs.push(Expr::Column(column).alias(&name));
                Column::new_unqualified(name)
            }
        };
        Key { column, asc, nulls_first }
    }

    fn alias(&mut self, alias: SubqueryAlias) -> Result<Placed> {
        let Placed { plan, place } = self.input(alias.input)?;
        let inside = Arc::clone(plan.schema());
        let alias = SubqueryAlias::try_new(Arc::new(plan), alias.alias)?;
        let renamed = |key: Key| -> Result<Key> {
            let at = inside.index_of_column(&key.column)?;
            Ok(Key { column: Column::from(alias.schema.qualified_field(at)), ..key })
        };
        let place = place.into_iter().map(renamed).collect::<Result<_>>()?;
        Ok(Placed { plan: LogicalPlan::SubqueryAlias(alias), place })
    }

    /// The keys come before the place. Rows are sorted here only if some of them are to be left out.
    fn sort(&mut self, sort: Sort) -> Result<Placed> {
        let Sort { expr: sorts, input, fetch } = sort;
        let Placed { mut plan, place: within } = self.input(input)?;
        let mut exprs = columns_of(&plan);
        let columns = exprs.len();
        let mut place: Vec<Key> = Vec::new();
        for SortExpr { expr, asc, nulls_first } in sorts {
            let column = match self.expr(expr)? {
                Expr::Column(column) => column,
                computed => {
                    let name = self.name();
                    exprs.push(computed.alias(&name));
                    Column::new_unqualified(name)
                }
            };
            place.push(Key { column, asc, nulls_first });
        }
        if exprs.len() > columns {
            plan = projection(exprs, plan)?;
        }
        place.extend(within);
        let mut seen = HashSet::new();
        place.retain(|key| seen.insert(key.column.clone()));
        if fetch.is_some() {
            let expr = place.iter().map(Key::sort).collect();
            plan = LogicalPlan::Sort(Sort { expr, input: Arc::new(plan), fetch });
        }
        Ok(Placed { plan, place })
    }

    /// A group is at its columns. Groups of several grouping sets may have the same, and differ in the set's id.
    fn aggregate(&mut self, aggregate: Aggregate) -> Result<Placed> {
        let Placed { mut plan, place } = self.input(aggregate.input)?;
        let groups = self.exprs(aggregate.group_expr)?;
        let calls = self.exprs(aggregate.aggr_expr)?;
        let mut number = None;
        if calls.iter().map(calls::needs_numbers).collect::<Result<Vec<_>>>()?.contains(&true) {
            let (numbered, of_row) = self.numbered(plan, &place)?;
            (plan, number) = (numbered, Some(of_row));
        }
        let calls = calls::aggregates(calls, &place, number.as_ref(), plan.schema())?;
        let aggregate = Aggregate::try_new(Arc::new(plan), groups, calls)?;
        let place = first_columns(&aggregate.schema, aggregate.group_expr_len()?)?;
        Ok(Placed { plan: LogicalPlan::Aggregate(aggregate), place })
    }

    /// The plan with a number of each row that orders rows as their places do.
    fn numbered(&mut self, plan: LogicalPlan, place: &[Key]) -> Result<(LogicalPlan, Expr)> {
        let schema = Arc::clone(plan.schema());
        let is_number = |key: &Key| -> Result<bool> {
            let field = schema.field(schema.index_of_column(&key.column)?);
            let is_number = *field.data_type() == DataType::UInt64 && !field.is_nullable();
            Ok(key.asc && is_number && key.column.name.starts_with(PLACE))
        };
        match place {
            [] => Ok((plan, lit(0_u64))),
            [key] if is_number(key)? => Ok((plan, Expr::Column(key.column.clone()))),
            _ => {
                let mut call = WindowFunction::new(row_number_udwf(), Vec::new());
                call.params.order_by = place.iter().map(Key::sort).collect();
                call.params.window_frame = WindowFrame::new(Some(true));
                let name = self.name();
                let number = Expr::WindowFunction(Box::new(call)).alias(&name);
                let plan = LogicalPlan::Window(Window::try_new(vec![number], Arc::new(plan))?);
                Ok((plan, Expr::Column(Column::new_unqualified(name))))
            }
        }
    }

    fn window(&mut self, window: Window) -> Result<Placed> {
        let Placed { mut plan, place } = self.input(window.input)?;
        let names = NamePreserver::new_for_projection();
        // DataFusion sorts once for a node.
        let mut nodes: Vec<(SortKeys, Vec<Expr>)> = Vec::new();
        for expr in window.window_expr {
            let name = names.save(&expr);
            let call = match unaliased(self.expr(expr)?) {
                Expr::WindowFunction(call) => calls::window(*call, &place, plan.schema())?,
                other => return plan_err!("{other} is not a window function"),
            };
            let order = generate_sort_key(&call.params.partition_by, &call.params.order_by)?;
            let expr = name.restore(Expr::WindowFunction(Box::new(call)));
            let same = nodes.iter().position(|(of_node, _)| *of_node == order);
            match same {
                Some(at) => nodes[at].1.push(expr),
                None => nodes.push((order, vec![expr])),
            }
        }
        for (_, exprs) in nodes {
            plan = LogicalPlan::Window(Window::try_new(exprs, Arc::new(plan))?);
        }
        Ok(Placed { plan, place })
    }

    /// A row is at what it has ON. DataFusion would rewrite the node like this, and sort once more.
    fn distinct_on(&mut self, distinct: DistinctOn) -> Result<Placed> {
        let DistinctOn { on_expr, select_expr, sort_expr, input, schema } = distinct;
        let Placed { plan, place: within } = self.input(input)?;
        let on = self.exprs(on_expr)?;
        let groups = on.len();
        let sorts = sort_expr.unwrap_or_default();
        let mut order = sorts.clone();
        calls::add_place(&mut order, &[], &within);
        let mut firsts = Vec::new();
        for expr in self.exprs(select_expr)? {
            let args = vec![unaliased(expr)];
            let first = AggregateFunction::new_udf(first_value_udaf(), args, false, None, order.clone(), None);
            firsts.push(Expr::AggregateFunction(first).alias(self.name()));
        }
        let aggregate = Aggregate::try_new(Arc::new(plan), on, firsts)?;
        let mut exprs = Vec::new();
        for (at, (table, field)) in schema.iter().enumerate() {
            let first = Expr::Column(Column::from(aggregate.schema.qualified_field(groups + at)));
            exprs.push(first.alias_qualified(table.cloned(), field.name()));
        }
        let mut place = first_columns(&aggregate.schema, groups)?;
        // ORDER BY begins with what is ON.
        for (key, sort) in place.iter_mut().zip(&sorts) {
            (key.asc, key.nulls_first) = (sort.asc, sort.nulls_first);
        }
        let place = place.into_iter().map(|key| self.kept(&mut exprs, key)).collect();
        Ok(Placed { plan: projection(exprs, LogicalPlan::Aggregate(aggregate))?, place })
    }

    /// A row is at the number of its branch, and then at its place there. Branches share columns of places whose keys
    /// have the same type and direction.
    fn union(&mut self, union: Union) -> Result<Placed> {
        let Union { inputs, schema } = union;
        let mut branches = Vec::new();
        let mut shared: Vec<(Key, DataType)> = Vec::new();
        for input in inputs {
            let own = input.schema().columns();
            let Placed { plan, place } = self.input(input)?;
            // The column of each key, and which of the shared ones it is in. These must be in the same order.
            let mut held: Vec<(Column, usize)> = Vec::new();
            for Key { column, asc, nulls_first } in place {
                let data_type = plan.schema().field(plan.schema().index_of_column(&column)?).data_type().clone();
                let first = held.last().map_or(0, |(_, at)| at + 1);
                let fits =
                    |(key, of): &(Key, DataType)| key.asc == asc && key.nulls_first == nulls_first && *of == data_type;
                let fitting = shared.iter().skip(first).position(fits);
                let at = match fitting {
                    Some(after) => first + after,
                    None => {
                        let column = Column::new_unqualified(self.name());
                        shared.push((Key { column, asc, nulls_first }, data_type));
                        shared.len() - 1
                    }
                };
                held.push((column, at));
            }
            branches.push((plan, own, held));
        }
        let branch = self.name();
        let mut inputs = Vec::new();
        for (number, (plan, own, held)) in branches.into_iter().enumerate() {
            let mut exprs: Vec<Expr> = own.into_iter().map(Expr::Column).collect();
            exprs.push(branch::number(number).alias(&branch));
            for (at, (key, data_type)) in shared.iter().enumerate() {
                let expr = match held.iter().find(|(_, of)| *of == at) {
                    Some((column, _)) => branch::column(Expr::Column(column.clone())),
                    None => branch::null(data_type, at)?,
                };
                exprs.push(expr.alias(&key.column.name));
            }
            inputs.push(Arc::new(projection(exprs, plan)?));
        }
        let mut fields = Vec::new();
        for (table, field) in schema.iter() {
            fields.push((table.cloned(), Arc::new(field.as_ref().clone().with_nullable(true))));
        }
        fields.push((None, Arc::new(Field::new(&branch, DataType::UInt64, true))));
        let mut place = vec![Key::ascending(Column::new_unqualified(branch))];
        for (key, data_type) in shared {
            fields.push((None, Arc::new(Field::new(&key.column.name, data_type, true))));
            place.push(key);
        }
        let schema = Arc::new(DFSchema::new_with_metadata(fields, schema.metadata().clone())?);
        Ok(Placed { plan: LogicalPlan::Union(Union { inputs, schema }), place })
    }

    fn join(&mut self, join: Join) -> Result<Placed> {
        let Join { left, right, on, filter, join_type, join_constraint, null_equality, null_aware, .. } = join;
        let Placed { plan: left, place: of_left } = self.input(left)?;
        let Placed { plan: right, place: of_right } = self.input(right)?;
        let mut equal = Vec::new();
        for (left, right) in on {
            equal.push((self.expr(left)?, self.expr(right)?));
        }
        let filter = filter.map(|filter| self.expr(filter)).transpose()?;
        let (left, right) = (Arc::new(left), Arc::new(right));
        let join = Join::try_new(left, right, equal, filter, join_type, join_constraint, null_equality, null_aware)?;
        let place = match join_type {
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
                of_left.into_iter().chain(of_right).collect()
            }
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => of_left,
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => of_right,
        };
        Ok(Placed { plan: LogicalPlan::Join(join), place })
    }

    /// A row is at its item's number in each list. The numbers are unnested beside the items. Where a list has ended,
    /// there is none, and so these come last.
    fn unnest(&mut self, unnest: Unnest) -> Result<Placed> {
        let Unnest { input, mut exec_columns, list_type_columns, options, .. } = unnest;
        if list_type_columns.iter().any(|(_, list)| list.depth > 1) {
            return plan_err!("items of lists in lists have no order: unnest the outer lists in a subquery of FROM");
        }
        let lists: Vec<Column> =
            list_type_columns.iter().map(|(at, _)| Column::from(input.schema().qualified_field(*at))).collect();
        let Placed { plan, place: within } = self.input(input)?;
        let mut exprs = columns_of(&plan);
        let unnested = exec_columns.iter().map(|column| plan.schema().index_of_column(column));
        let unnested = unnested.collect::<Result<HashSet<_>>>()?;
        let mut place = Vec::new();
        for Key { column, asc, nulls_first } in within {
            let column = match unnested.contains(&plan.schema().index_of_column(&column)?) {
                true => {
                    let name = self.name();
                    exprs.push(Expr::Column(column).alias(&name));
                    Column::new_unqualified(name)
                }
                false => column,
            };
            place.push(Key { column, asc, nulls_first });
        }
        for list in lists {
            let name = self.name();
            let items = cast(array_length(Expr::Column(list)), DataType::Int64);
            exprs.push(range_udf().call(vec![items]).alias(&name));
            let column = Column::new_unqualified(name);
            exec_columns.push(column.clone());
            place.push(Key { column, asc: true, nulls_first: false });
        }
        let unnest = Unnest::try_new(Arc::new(projection(exprs, plan)?), exec_columns, options)?;
        Ok(Placed { plan: LogicalPlan::Unnest(unnest), place })
    }
}

/// Refuses the names of columns that are added here.
fn check_names(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        let mut names = node.schema().fields().iter().map(|field| field.name().as_str());
        match names.find(|name| *name == ROW || name.starts_with(PLACE)) {
            Some(name) => plan_err!("column \"{name}\" has a name that is reserved by Forebay"),
            None => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(())
}

/// Whether the rows are in the order of their places already. All sorts of a plan with places sort by them.
fn is_sorted(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Sort(_) => true,
        LogicalPlan::Limit(limit) => is_sorted(&limit.input),
        _ => false,
    }
}

/// So many columns as the place of rows that have no two equal ones.
fn first_columns(schema: &DFSchema, columns: usize) -> Result<Vec<Key>> {
    let key = |at| {
        let (table, field) = schema.qualified_field(at);
        match RowConverter::supports_fields(&[SortField::new(field.data_type().clone())]) {
            true => Ok(Key::ascending(Column::from((table, field)))),
            false => plan_err!("values of column \"{}\" have no order: they are {}", field.name(), field.data_type()),
        }
    };
    (0..columns).map(key).collect()
}

fn projection(exprs: Vec<Expr>, input: LogicalPlan) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?))
}

/// All columns of a plan.
fn columns_of(plan: &LogicalPlan) -> Vec<Expr> {
    plan.schema().columns().into_iter().map(Expr::Column).collect()
}

fn unaliased(expr: Expr) -> Expr {
    match expr {
        Expr::Alias(alias) => unaliased(*alias.expr),
        other => other,
    }
}
