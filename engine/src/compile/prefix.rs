//! Cuts a query where its samples stop being the same in every epoch.
//!
//! The part below the cut is the *prefix*: the filters, the largest calls that depend only on their row, and the
//! columns that the rest needs besides. It becomes a layer that derives each row from itself, so that its results can
//! be kept. The rest computes the same samples from them, bit for bit:
//!
//! - Nothing is taken out of an expression that may not be computed, such as a branch of CASE.
//! - A picture that is decoded at the size of the call around it stays with that call.
//! - The last `normalize` of a column stays above the cut: it makes samples larger, and its reader may compute it.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Column;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::expr::Alias;
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Projection};
use forebay_operators::image_chain::is_last_step;

use super::change::Change;
use super::hidden::{FeedTable, Woven, WovenLayer};
use super::hidden_columns::{HIDDEN, RANDOM_KEY, STEP_LENGTH, hidden_columns};
use super::reduced_decode::is_reduced;
use crate::error::{Error, Result};

/// The name of the table that the rest of the query reads.
const TABLE: &str = "prefix";
/// The most nodes of expressions: what several columns share is written out for each.
const NODES_MAX: usize = 20_000;
const NAME: &str = "\"cache\"";

/// A place in a query where its samples may be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrefixCut {
    /// The most calls below it that each contain the next.
    pub(crate) depth: usize,
    /// The calls directly below it, such as `resize`.
    pub(crate) after: String,
}

/// The places where `woven` may be cut, from the table upwards. The last is that of all that can be kept.
///
/// # Errors
/// `Invalid` if nothing can be kept.
pub(super) fn cuts(woven: Woven) -> Result<Vec<PrefixCut>> {
    if let Some(lowest) = woven.layers.first() {
        return Ok(vec![PrefixCut { depth: usize::MAX, after: format!("all below {}", lowest.change.name()) }]);
    }
    let (mut cuts, mut last) = (Vec::new(), Vec::new());
    let deepest = Cut::of(&woven, false, usize::MAX)?.kept.iter().map(|(expr, _)| depth(expr)).max().unwrap_or(0);
    for most in 1..=deepest {
        let Ok(Cut { kept, .. }) = Cut::of(&woven, false, most) else { continue };
        let highest: BTreeSet<String> =
            kept.iter().filter(|(expr, _)| depth(expr) == most).map(|(e, _)| name(e)).collect();
        if kept != last && !highest.is_empty() {
            cuts.push(PrefixCut { depth: most, after: highest.into_iter().collect::<Vec<_>>().join(", ") });
            last = kept;
        }
    }
    Ok(cuts)
}

/// Cuts `woven` above what can be kept, calls nested at most `depth` deep. With `draws_once`, random calls draw the
/// same in every epoch. A query that derives rows is cut where it first does.
///
/// # Errors
/// `Invalid` if nothing can be kept.
pub(super) fn cut(woven: Woven, draws_once: bool, depth: usize) -> Result<Woven> {
    if !woven.layers.is_empty() {
        return Ok(woven);
    }
    let Cut { scan, filters, kept, rest } = Cut::of(&woven, draws_once, depth)?;
    let mut input = scan;
    for filter in filters {
        input = LogicalPlan::Filter(Filter::try_new(filter, Arc::new(input))?);
    }
    let mut exprs: Vec<Expr> = kept.into_iter().map(|(expr, name)| expr.alias(name)).collect();
    let width = exprs.len();
    exprs.extend(hidden_columns(&input)?);
    let input = LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(input))?);
    let made = Arc::new(Schema::new(input.schema().fields().iter().take(width).cloned().collect::<Vec<_>>()));
    let table = FeedTable::widened(TABLE, &made);
    let scan = LogicalPlanBuilder::scan(TABLE, provider_as_source(Arc::new(table)), None)?.build()?;
    let top = LogicalPlan::Projection(Projection::try_new(rest, Arc::new(scan))?);
    Ok(Woven { layers: vec![WovenLayer { input, change: Change::Keep, made }], top, moves: woven.moves })
}

/// A query without layers in two parts.
struct Cut {
    scan: LogicalPlan,
    filters: Vec<Expr>,
    /// Expressions over the table, and the name of each.
    kept: Vec<(Expr, String)>,
    /// The query's columns over these.
    rest: Vec<Expr>,
}

impl Cut {
    fn of(woven: &Woven, draws_once: bool, depth: usize) -> Result<Self> {
        let flat = flat(&woven.top)?;
        let varies = |expr: &Expr| depends_on(expr, STEP_LENGTH) || (!draws_once && depends_on(expr, RANDOM_KEY));
        if flat.filters.iter().any(varies) {
            return Err(Error::invalid(format!(
                "{NAME} has nothing to keep: the query's condition draws random values"
            ))
            .with_hint("select rows with TABLESAMPLE or by a hash of a column, which is the same in every epoch"));
        }
        let mut kept = Kept { exprs: Vec::new(), depth, varies: &varies };
        let mut rest = Vec::with_capacity(flat.columns.len());
        for ((qualifier, field), expr) in woven.top.schema().iter().zip(flat.columns) {
            rest.push(kept.root(expr)?.alias_qualified(qualifier.cloned(), field.name()));
        }
        if kept.exprs.iter().all(|(expr, _)| matches!(expr, Expr::Column(_))) {
            return Err(Error::invalid(format!(
                "{NAME} has nothing to keep: no call of the query is the same in every epoch"
            ))
            .with_hint("put a call before the first random one, such as resize before random_crop"));
        }
        Ok(Self { scan: flat.scan, filters: flat.filters, kept: kept.exprs, rest })
    }
}

/// A query without layers, as expressions over its table.
struct Flat {
    scan: LogicalPlan,
    columns: Vec<Expr>,
    /// The lowest first.
    filters: Vec<Expr>,
}

fn flat(plan: &LogicalPlan) -> Result<Flat> {
    match plan {
        LogicalPlan::TableScan(_) => {
            let columns = plan.schema().columns().into_iter().map(Expr::Column).collect();
            Ok(Flat { scan: plan.clone(), columns, filters: Vec::new() })
        }
        LogicalPlan::SubqueryAlias(alias) => flat(&alias.input),
        LogicalPlan::Projection(projection) => {
            let below = flat(&projection.input)?;
            let over = |expr: &Expr| below.over_table(expr, &projection.input);
            let columns = projection.expr.iter().map(over).collect::<PlanResult<Vec<_>>>()?;
            check_size(&columns)?;
            Ok(Flat { columns, ..below })
        }
        LogicalPlan::Filter(filter) => {
            let mut below = flat(&filter.input)?;
            let predicate = below.over_table(&filter.predicate, &filter.input)?;
            below.filters.push(predicate);
            check_size(&below.filters)?;
            Ok(below)
        }
        other => Err(Error::internal(format!("{} cannot be kept", other.display()))),
    }
}

impl Flat {
    /// An expression over the columns of `input`, which are these, as one over the table.
    fn over_table(&self, expr: &Expr, input: &LogicalPlan) -> PlanResult<Expr> {
        let schema = input.schema();
        let expr = expr.clone().transform_down(|expr| match &expr {
            Expr::Column(column) => {
                let expr = self.columns[schema.index_of_column(column)?].clone();
                Ok(Transformed::new(expr, true, TreeNodeRecursion::Jump))
            }
            _ => Ok(Transformed::no(expr)),
        });
        expr.data()
    }
}

fn check_size(exprs: &[Expr]) -> Result<()> {
    let mut nodes = 0;
    for expr in exprs {
        expr.apply(|_| {
            nodes += 1;
            Ok(if nodes > NODES_MAX { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
    }
    match nodes > NODES_MAX {
        true => Err(Error::invalid(format!("{NAME} cannot be used: the query is too large"))),
        false => Ok(()),
    }
}

fn depends_on(expr: &Expr, hidden: &str) -> bool {
    expr.column_refs().iter().any(|column| column.name == hidden)
}

/// What is kept: expressions over the table, and the name of each.
struct Kept<'a> {
    exprs: Vec<(Expr, String)>,
    /// The most calls in it that each contain the next.
    depth: usize,
    varies: &'a dyn Fn(&Expr) -> bool,
}

impl Kept<'_> {
    /// An output column over what is kept.
    fn root(&mut self, expr: Expr) -> PlanResult<Expr> {
        match expr {
            Expr::Alias(Alias { expr, relation, name, metadata }) => {
                let expr = Box::new(self.root(*expr)?);
                Ok(Expr::Alias(Alias { expr, relation, name, metadata }))
            }
            Expr::ScalarFunction(call) if is_last_step(call.name()) => self.arguments(Expr::ScalarFunction(call)),
            other => self.over(other),
        }
    }

    /// An expression over what is kept.
    fn over(&mut self, expr: Expr) -> PlanResult<Expr> {
        match &expr {
            Expr::Column(_) => self.columns(expr),
            Expr::Literal(..) => Ok(expr),
            _ if !(self.varies)(&expr) && (1..=self.depth).contains(&depth(&expr)) && !is_reduced(&expr) => {
                Ok(self.keep(expr))
            }
            _ if is_lazy(&expr) || is_reduced(&expr) => self.columns(expr),
            _ => self.arguments(expr),
        }
    }

    fn arguments(&mut self, expr: Expr) -> PlanResult<Expr> {
        expr.map_children(|argument| Ok(Transformed::yes(self.over(argument)?))).data()
    }

    /// The same expression, computed above the cut.
    fn columns(&mut self, expr: Expr) -> PlanResult<Expr> {
        let over_kept = |expr: Expr| match &expr {
            Expr::Column(column) if HIDDEN.contains(&column.name.as_str()) => {
                Ok(Transformed::yes(Expr::Column(Column::new(Some(TABLE), column.name.as_str()))))
            }
            Expr::Column(_) => Ok(Transformed::new(self.keep(expr), true, TreeNodeRecursion::Jump)),
            _ => Ok(Transformed::no(expr)),
        };
        expr.transform_down(over_kept).data()
    }

    /// Keeps an expression, and returns its column.
    fn keep(&mut self, expr: Expr) -> Expr {
        let known = self.exprs.iter().find(|(known, _)| *known == expr).map(|(_, name)| name.clone());
        let name = known.unwrap_or_else(|| {
            let name = format!("kept_{}", self.exprs.len());
            self.exprs.push((expr, name.clone()));
            name
        });
        Expr::Column(Column::new(Some(TABLE), name))
    }
}

/// The most calls of functions in the expression that each contain the next. Without a call, it is cheaper to compute
/// than to keep.
fn depth(expr: &Expr) -> usize {
    let mut below = 0;
    let of_children = expr.apply_children(|child| {
        below = below.max(depth(child));
        Ok(TreeNodeRecursion::Continue)
    });
    // The closure never fails.
    debug_assert!(of_children.is_ok());
    below + usize::from(matches!(expr, Expr::ScalarFunction(_) | Expr::HigherOrderFunction(_)))
}

/// The name of the topmost call in the expression.
fn name(expr: &Expr) -> String {
    let mut name = String::new();
    let found = expr.apply(|expr| match expr {
        Expr::ScalarFunction(call) => {
            call.name().clone_into(&mut name);
            Ok(TreeNodeRecursion::Stop)
        }
        Expr::HigherOrderFunction(call) => {
            call.name().clone_into(&mut name);
            Ok(TreeNodeRecursion::Stop)
        }
        _ => Ok(TreeNodeRecursion::Continue),
    });
    debug_assert!(found.is_ok());
    name
}

/// Whether some parts of the expression are not computed for all rows.
fn is_lazy(expr: &Expr) -> bool {
    match expr {
        Expr::Case(_) | Expr::HigherOrderFunction(_) | Expr::Lambda(_) => true,
        // Planned as AND, and as a search that ends when all rows are found.
        Expr::Between(_) | Expr::InList(_) => true,
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::And | Operator::Or),
        Expr::ScalarFunction(call) => call.func.short_circuits(),
        _ => false,
    }
}
