//! Skips rows that a condition excludes by bounds on their values, without reading them.
//!
//! Only a single condition decides, as for bad rows: a row that one condition excludes is neither a sample nor a bad
//! row, whatever the others are.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column as PhysicalColumn, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use forebay_storage::{ColumnStatistics, Dataset, Of, RangeStatistics, RowRange};

use super::leaf_plan::LeafPlan;
use super::window_exec::WindowExec;
use crate::error::Result;

/// A condition on columns of the driving table that bounds on their values can refute.
#[derive(Debug)]
pub(crate) struct Pruning {
    predicate: Arc<PruningPredicate>,
    /// The columns with bounds: their names and their indices in the table.
    columns: Vec<(String, usize)>,
}

impl Pruning {
    /// The condition of a plan of one condition, unless no bounds can refute it.
    pub(crate) fn of(conjunct: &LeafPlan) -> Option<Self> {
        let filter = filter_of_leaf(&conjunct.plan)?;
        let read = collect_columns(filter.predicate());
        let columns = read.iter().filter_map(|column| {
            let at = conjunct.inputs.get(column.index())?.column()?;
            Some((column.name().to_owned(), at))
        });
        Self::over(Arc::clone(filter.predicate()), columns.collect(), &conjunct.leaf_schema)
    }

    /// A condition on the columns of a table, unless no bounds can refute it.
    pub(crate) fn of_table(condition: Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Option<Self> {
        let columns = collect_columns(&condition);
        let columns = columns.iter().map(|column| (column.name().to_owned(), column.index())).collect();
        Self::over(condition, columns, schema)
    }

    fn over(condition: Arc<dyn PhysicalExpr>, columns: Vec<(String, usize)>, schema: &SchemaRef) -> Option<Self> {
        if !follows_from_bounds(&condition, schema) {
            return None;
        }
        let predicate = PruningPredicateBuilder::new().with_file_schema(Arc::clone(schema)).build(condition)?;
        (!columns.is_empty() && !predicate.always_true()).then_some(Self { predicate, columns })
    }

    /// The parts of `range` whose rows may pass the condition.
    pub(crate) async fn possible(&self, dataset: &Dataset, range: &RowRange) -> Result<Vec<RowRange>> {
        let columns: Vec<usize> = self.columns.iter().map(|(_, column)| *column).collect();
        let possible = self.refute(dataset.statistics(range, &columns, Of::Groups).await?);
        if possible.is_empty() || columns.iter().all(|column| dataset.is_path_column(*column)) {
            return Ok(possible);
        }
        Ok(self.refute(dataset.statistics(range, &columns, Of::Pages).await?))
    }

    /// The parts that the bounds do not refute.
    fn refute(&self, statistics: RangeStatistics) -> Vec<RowRange> {
        let bounds = Bounds { statistics, columns: &self.columns };
        // Nothing is known from bounds that cannot be compared.
        let possible = self.predicate.prune(&bounds).unwrap_or_else(|_| vec![true; bounds.num_containers()]);
        let parts = bounds.statistics.parts.into_iter().zip(possible);
        parts.filter(|(_, possible)| *possible).map(|(part, _)| part).collect()
    }
}

/// Whether bounds on columns say what the condition gives for all values between them, and it fails for none.
/// Functions, and casts that lose something or may fail, do not: a row that they fail on is a bad row.
fn follows_from_bounds(condition: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    use Operator::{And, Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq, Or};

    let own = if let Some(binary) = condition.downcast_ref::<BinaryExpr>() {
        matches!(binary.op(), And | Or | Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
    } else if let Some(like) = condition.downcast_ref::<LikeExpr>() {
        !like.case_insensitive()
    } else if let Some(cast) = condition.downcast_ref::<CastExpr>() {
        cast.expr().data_type(schema).is_ok_and(|from| is_widened(&from, cast.cast_type()))
    } else {
        condition.is::<PhysicalColumn>()
            || condition.is::<Literal>()
            || condition.is::<NotExpr>()
            || condition.is::<IsNullExpr>()
            || condition.is::<IsNotNullExpr>()
            || condition.is::<InListExpr>()
    };
    own && condition.children().into_iter().all(|part| follows_from_bounds(part, schema))
}

/// Whether all integers of one type are integers of the other.
fn is_widened(from: &DataType, to: &DataType) -> bool {
    let width = |data_type: &DataType| data_type.primitive_width().unwrap_or(0);
    let is_signed = |data_type: &DataType| data_type.is_signed_integer();
    from.is_integer() && to.is_integer() && width(from) < width(to) && (is_signed(to) || !is_signed(from))
}

/// The filter directly above the leaf.
fn filter_of_leaf(plan: &Arc<dyn ExecutionPlan>) -> Option<&FilterExec> {
    let children = plan.children();
    let [child] = children[..] else { return None };
    match plan.downcast_ref::<FilterExec>() {
        Some(filter) if is_leaf(child) => Some(filter),
        _ => filter_of_leaf(child),
    }
}

fn is_leaf(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<WindowExec>().is_some()
        || plan.downcast_ref::<CooperativeExec>().is_some_and(|above| is_leaf(above.input()))
}

struct Bounds<'a> {
    statistics: RangeStatistics,
    columns: &'a [(String, usize)],
}

impl Bounds<'_> {
    fn of<T>(&self, column: &Column, bound: impl Fn(&ColumnStatistics) -> T) -> Option<T> {
        let at = self.columns.iter().position(|(name, _)| *name == column.name)?;
        self.statistics.columns.get(at).map(bound)
    }
}

impl PruningStatistics for Bounds<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column, |bounds| Arc::clone(&bounds.min))
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column, |bounds| Arc::clone(&bounds.max))
    }

    fn num_containers(&self) -> usize {
        self.statistics.parts.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        self.of(column, |bounds| Arc::new(bounds.nulls.clone()) as ArrayRef)
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(UInt64Array::from_iter_values(self.statistics.parts.iter().map(|part| part.rows))))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
