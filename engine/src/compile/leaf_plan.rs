//! A physical plan over some rows of a window.

use std::any::Any;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use forebay_operators::image_chain::fuse;
use forebay_operators::{CallCost, measured, pick_lazily};

use super::deferred::defer_last_steps;
use super::dictionary;
use super::hidden_columns::{RANDOM_KEY, SAMPLE_ID, STEP_LENGTH};
use super::source_rows::SourceRows;
use super::window_exec::WindowExec;
use crate::error::{Error, Result};

/// A physical plan over a [`WindowExec`], and the origin of each column of that leaf.
pub(crate) struct LeafPlan {
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    /// The schema of its rows with the last steps, which a reader computes; `None` if there are none.
    pub(super) unfinished: Option<SchemaRef>,
    pub(super) leaf_schema: SchemaRef,
    pub(super) inputs: Vec<LeafColumn>,
}

#[derive(PartialEq, Eq)]
pub(super) enum LeafColumn {
    Column(usize),
    SampleId,
    RandomKey,
    StepLength,
}

impl LeafColumn {
    /// The index of the column in the table or layer, unless the column is hidden.
    pub(super) fn column(&self) -> Option<usize> {
        match self {
            Self::Column(column) => Some(*column),
            Self::SampleId | Self::RandomKey | Self::StepLength => None,
        }
    }
}

impl LeafPlan {
    pub(crate) fn new(plan: Arc<dyn ExecutionPlan>, source: &SchemaRef) -> Result<Self> {
        Self::of(plan, None, source)
    }

    /// The plan for a reader that computes the last steps itself.
    pub(crate) fn sending(plan: Arc<dyn ExecutionPlan>, source: &SchemaRef) -> Result<Self> {
        match defer_last_steps(&plan)? {
            Some((plan, schema)) => Self::of(plan, Some(schema), source),
            None => Self::of(plan, None, source),
        }
    }

    fn of(plan: Arc<dyn ExecutionPlan>, unfinished: Option<SchemaRef>, source: &SchemaRef) -> Result<Self> {
        let plan = fused(plan)?;
        let mut leaf = &plan;
        while let [child] = leaf.children()[..] {
            leaf = child;
        }
        if !leaf.is::<WindowExec>() {
            // An optimizer that proves a filter false produces a plan without a leaf.
            return Err(Error::invalid("no row of the table can pass this query's filters"));
        }
        let leaf_schema = leaf.schema();
        let inputs = leaf_schema
            .fields()
            .iter()
            .map(|field| match field.name().as_str() {
                SAMPLE_ID => Ok(LeafColumn::SampleId),
                RANDOM_KEY => Ok(LeafColumn::RandomKey),
                STEP_LENGTH => Ok(LeafColumn::StepLength),
                name => source.index_of(name).map(LeafColumn::Column),
            })
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::internal(format!("a planned column is not in the table: {error}")))?;
        Ok(Self { plan, unfinished, leaf_schema, inputs })
    }

    /// The same plan, whose calls count what they cost. Nothing may rewrite it afterwards.
    pub(super) fn measured(self, costs: &mut Vec<Arc<CallCost>>) -> Result<Self> {
        let plan = self.plan.transform_up(|node| {
            let any = node.as_ref() as &dyn Any;
            let plan: Arc<dyn ExecutionPlan> = if let Some(projection) = any.downcast_ref::<ProjectionExec>() {
                let input = projection.input();
                let exprs = projection.expr().iter().map(|output| {
                    let expr = measured(Arc::clone(&output.expr), &input.schema(), costs)?;
                    Ok(ProjectionExpr { expr, alias: output.alias.clone() })
                });
                let exprs = exprs.collect::<datafusion::error::Result<Vec<_>>>()?;
                Arc::new(ProjectionExec::try_new_with_schema_metadata(exprs, Arc::clone(input), &projection.schema())?)
            } else if let Some(filter) = any.downcast_ref::<FilterExec>() {
                let predicate = measured(Arc::clone(filter.predicate()), &filter.input().schema(), costs)?;
                Arc::new(FilterExecBuilder::from(filter).with_predicate(predicate).build()?)
            } else {
                return Ok(Transformed::no(node));
            };
            Ok(Transformed::yes(plan))
        });
        Ok(Self { plan: plan.data()?, ..self })
    }

    pub(crate) fn display(&self) -> String {
        displayable(self.plan.as_ref()).indent(false).to_string()
    }

    /// The leaf columns that it reads.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().filter_map(LeafColumn::column)
    }

    pub(super) fn leaf_rows(&self, rows: &SourceRows, read: &[usize], start: usize, len: usize) -> Result<RecordBatch> {
        let columns = self.inputs.iter().map(|input| -> ArrayRef {
            match input {
                LeafColumn::Column(index) => {
                    let at = read.binary_search(index).expect("a stage reads every column of its plans");
                    rows.batch.column(at).slice(start, len)
                }
                LeafColumn::SampleId => Arc::new(rows.sample_ids.slice(start, len)),
                LeafColumn::RandomKey => Arc::new(rows.random_keys.slice(start, len)),
                LeafColumn::StepLength => Arc::new(match &rows.step_lengths {
                    Some(lengths) => lengths.slice(start, len),
                    None => UInt64Array::from_value(0, len),
                }),
            }
        });
        // Two plans may read the same column, one as a dictionary and one as plain text.
        let columns = columns.zip(self.leaf_schema.fields()).map(|(column, field)| match field.data_type() {
            DataType::Utf8 => dictionary::plain(&column),
            _ => Ok(column),
        });
        RecordBatch::try_new_with_options(
            Arc::clone(&self.leaf_schema),
            columns.collect::<std::result::Result<_, _>>().map_err(|error| Error::internal(error.to_string()))?,
            &RecordBatchOptions::new().with_row_count(Some(len)),
        )
        .map_err(|error| Error::internal(format!("rows read do not fit the plan: {error}")))
    }
}

/// Fuses each chain of image operators into one call, and computes of alternatives only the one that is drawn. This
/// runs after the optimizer, which ensures that a call shared by several chains is computed once.
pub(crate) fn fused(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let fused = plan.transform_up(|node| {
        let Some(projection) = (node.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>() else {
            return Ok(Transformed::no(node));
        };
        let input = projection.input();
        let exprs = projection.expr().iter().map(|output| {
            let expr = pick_lazily(Arc::clone(&output.expr), &input.schema())?;
            let expr = fuse(expr, &input.schema())?;
            Ok(ProjectionExpr { expr, alias: output.alias.clone() })
        });
        let exprs = exprs.collect::<datafusion::error::Result<Vec<_>>>()?;
        let fused = ProjectionExec::try_new_with_schema_metadata(exprs, Arc::clone(input), &projection.schema())?;
        Ok(Transformed::yes(Arc::new(fused) as Arc<dyn ExecutionPlan>))
    });
    Ok(fused.data()?)
}

/// A plan that outputs the rows that pass the filters.
pub(crate) struct Select {
    /// All conditions together, in the optimizer's order. Whether a row fails may depend on that order.
    pub(crate) whole: LeafPlan,
    /// Each condition separately, for rows that fail.
    pub(crate) conjuncts: Vec<LeafPlan>,
}

impl Select {
    /// Whether it draws random values.
    pub(crate) fn is_random(&self) -> bool {
        self.whole.inputs.contains(&LeafColumn::RandomKey)
    }

    /// The same conditions, whose calls count what they cost. Those of single conditions, which only run for bad rows,
    /// do not count.
    pub(super) fn measured(self, costs: &mut Vec<Arc<CallCost>>) -> Result<Self> {
        Ok(Self { whole: self.whole.measured(costs)?, ..self })
    }

    /// The leaf columns that it reads.
    pub(crate) fn columns(&self) -> impl Iterator<Item = usize> {
        self.conjuncts.iter().chain([&self.whole]).flat_map(LeafPlan::columns)
    }
}

/// These columns in ascending order, without duplicates.
pub(crate) fn ascending(columns: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut columns: Vec<usize> = columns.collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}
