//! A table of a session, as DataFusion reads it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use forebay_storage::Dataset;

use super::left_out::LeftOut;
use super::scan::{Reading, ScanExec};
use crate::compile::Pruning;

/// The last column of a [numbered](BatchTable::numbered) table.
pub(super) const ROW: &str = "__forebay_row";

/// A table over pinned files, or over rows in memory.
#[derive(Debug)]
pub(crate) struct BatchTable {
    name: String,
    dataset: Dataset,
    /// The columns, all of which may be null but for [`ROW`]. DataFusion takes a subquery's column that is never null
    /// for a value that is never null, but a subquery may have no row.
    schema: SchemaRef,
    /// Threads that read.
    threads: usize,
    /// Takes rows that cannot be read. Without it, one ends the query.
    left_out: Option<LeftOut>,
}

impl BatchTable {
    pub(crate) fn new(name: &str, dataset: Dataset, threads: usize) -> Self {
        let schema = dataset.schema();
        let fields: Vec<_> = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        Self { name: name.to_owned(), dataset, schema, threads, left_out: None }
    }

    /// The same table without the rows that cannot be read, if they are to be left out.
    pub(super) fn leaving_out(self, left_out: Option<LeftOut>) -> Self {
        Self { left_out, ..self }
    }

    /// The table's files.
    pub(crate) fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The same table with one more column at its end, [`ROW`]: each row's number in the snapshot.
    pub(super) fn numbered(&self) -> Self {
        let mut fields: Vec<FieldRef> = self.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(ROW, DataType::UInt64, false)));
        let schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
        let (name, dataset, left_out) = (self.name.clone(), self.dataset.clone(), self.left_out.clone());
        Self { name, dataset, schema, threads: self.threads, left_out }
    }

    /// About the bytes of a row in memory, with these columns or all.
    pub(super) fn bytes_per_row(&self, columns: Option<&[usize]>) -> u64 {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let mut columns = columns.unwrap_or(&all).iter().map(|column| self.schema.field(*column).data_type());
        // Numbers, and what is in no file, take little.
        if columns.all(|data_type| data_type.primitive_width().is_some() || data_type.is_null()) {
            return 8 * self.schema.fields().len() as u64;
        }
        let bytes: u64 = self.dataset.row_ranges(u64::MAX).iter().map(|range| range.bytes).sum();
        bytes / self.dataset.snapshot().rows().max(1)
    }
}

#[async_trait::async_trait]
impl TableProvider for BatchTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = &self.schema;
        let columns = projection.cloned().unwrap_or_else(|| (0..schema.fields().len()).collect());
        let of_table = DFSchema::try_from(Arc::clone(schema))?;
        let mut pruning = Vec::new();
        // The bounds of files say nothing about a row's number.
        for filter in filters.iter().filter(|filter| filter.column_refs().iter().all(|column| column.name != ROW)) {
            let condition = session.create_physical_expr(filter.clone(), &of_table)?;
            pruning.extend(Pruning::of_table(condition, schema));
        }
        let own = self.dataset.schema().fields().len();
        let row = columns.iter().position(|column| *column == own);
        let schema = Arc::new(schema.project(&columns)?);
        let columns = columns.into_iter().filter(|column| *column < own).collect();
        let dictionaries = Vec::new();
        let (dataset, left_out) = (self.dataset.clone(), self.left_out.clone());
        let reading = Reading { dataset, schema, columns, dictionaries, row, pruning, left_out };
        let partitions = session.config().target_partitions();
        Ok(Arc::new(ScanExec::new(&self.name, reading, limit, partitions, self.threads)))
    }

    /// Bounds leave out row ranges, and the rows of the others are compared above the scan.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }
}
