//! The leaf of a feed stage: some rows of a window.
//!
//! A stage is planned once per feed with an empty leaf. To run it over rows, [`bind`] copies the plan around a leaf
//! that holds them, without planning again. DataFusion's own sources are unsuitable: since version 54 the partitions of
//! one `DataSourceExec` steal files from each other, so a partition does not read a fixed set of rows.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties, ReplaceChildrenOptions,
};

/// Rows of one window, or none yet.
#[derive(Debug)]
pub(crate) struct WindowExec {
    table: String,
    rows: Option<RecordBatch>,
    properties: Arc<PlanProperties>,
}

impl WindowExec {
    pub(crate) fn new(table: String, schema: SchemaRef) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(schema),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Incremental,
            Boundedness::Bounded,
        ));
        Self { table, rows: None, properties }
    }

    /// The same leaf for rows of another schema.
    pub(crate) fn with_schema(&self, schema: SchemaRef) -> Self {
        Self::new(self.table.clone(), schema)
    }
}

/// The same plan over `rows`, with separate metrics: shared metrics would grow with every run.
pub(crate) fn bind(plan: &Arc<dyn ExecutionPlan>, rows: RecordBatch) -> Result<Arc<dyn ExecutionPlan>> {
    Arc::clone(plan)
        .transform_up(|node| {
            let Some(leaf) = (node.as_ref() as &dyn std::any::Any).downcast_ref::<WindowExec>() else {
                return Ok(Transformed::no(node));
            };
            let bound = WindowExec {
                table: leaf.table.clone(),
                rows: Some(rows.clone()),
                properties: Arc::clone(&leaf.properties),
            };
            Ok(Transformed::yes(Arc::new(bound) as Arc<dyn ExecutionPlan>))
        })
        .data()
}

impl DisplayAs for WindowExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<_> = self.schema().fields().iter().map(|field| field.name().clone()).collect();
        write!(f, "WindowExec: table={}, columns=[{}]", self.table, columns.join(", "))
    }
}

impl ExecutionPlan for WindowExec {
    fn name(&self) -> &'static str {
        "WindowExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let rows = self.rows.iter().cloned().collect();
        Ok(Box::pin(MemoryStream::try_new(rows, self.schema(), None)?))
    }
}
