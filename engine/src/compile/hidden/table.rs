//! The table that a feed stage is planned over.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::compile::hidden_columns::HIDDEN;
use crate::compile::window_exec::WindowExec;

/// A table for planning, with or without the hidden columns. The feed supplies its rows.
#[derive(Debug)]
pub(crate) struct FeedTable {
    name: String,
    schema: SchemaRef,
}

impl FeedTable {
    pub(crate) fn new(name: &str, schema: SchemaRef) -> Self {
        Self { name: name.to_owned(), schema }
    }

    /// The table with the hidden columns appended.
    pub(crate) fn widened(name: &str, schema: &Schema) -> Self {
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
