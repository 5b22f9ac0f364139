//! A query that is cut into layers where rows are made.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Projection};

use super::calls::CallSites;
use super::table::FeedTable;
use crate::compile::change::Change;
use crate::compile::hidden_columns::{HIDDEN, hidden_columns};

/// A query with its hidden columns, cut where rows are made.
pub(crate) struct Woven {
    /// From the table upwards.
    pub(crate) layers: Vec<WovenLayer>,
    /// The part above the topmost operator that makes rows; the whole query, if there is none.
    pub(crate) top: LogicalPlan,
}

/// An operator that makes rows, and the part of the query between it and the one below.
pub(crate) struct WovenLayer {
    pub(crate) input: LogicalPlan,
    pub(crate) change: Change,
    /// The columns that it makes.
    pub(crate) made: SchemaRef,
}

impl Woven {
    /// The columns that `top` reads, where the driving table has those of `source`.
    pub(crate) fn leaf<'a>(&'a self, source: &'a SchemaRef) -> &'a SchemaRef {
        self.layers.last().map_or(source, |layer| &layer.made)
    }
}

/// The layers of a query while it is woven, with its call sites.
#[derive(Default)]
pub(super) struct Layers {
    calls: CallSites,
    closed: Vec<WovenLayer>,
}

impl Layers {
    /// The layers that are closed so far.
    pub(super) fn len(&self) -> usize {
        self.closed.len()
    }

    /// The query whose part above the last layer is `top`.
    pub(super) fn woven(self, top: LogicalPlan) -> Woven {
        Woven { layers: self.closed, top }
    }

    /// Gives each call in `expr` over `input` the hidden columns that its operator depends on.
    pub(super) fn expr(&mut self, expr: Expr, input: &LogicalPlan) -> Result<Expr> {
        self.calls.weave(expr, input, self.closed.is_empty())
    }

    /// The number of the next call site of `operator`.
    pub(super) fn site(&mut self, operator: &str) -> u64 {
        self.calls.site(operator)
    }

    /// Closes a layer. Returns a plan over the rows that it makes, with the columns of `schema` under their names.
    pub(super) fn cut(&mut self, input: LogicalPlan, change: Change, schema: &DFSchema) -> Result<LogicalPlan> {
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
        let table = format!("{}_{}", change.name(), self.closed.len() + 1);
        let widened = FeedTable::widened(&table, &made);
        let scan = LogicalPlanBuilder::scan(&table, provider_as_source(Arc::new(widened)), None)?.build()?;
        let named = made.fields().iter().zip(schema.iter()).map(|(field, (qualifier, original))| {
            let column = Expr::Column(Column::new(Some(table.as_str()), field.name()));
            column.alias_qualified(qualifier.cloned(), original.name())
        });
        let mut exprs: Vec<Expr> = named.collect();
        exprs.extend(hidden_columns(&scan)?);
        self.closed.push(WovenLayer { input, change, made });
        Ok(LogicalPlan::Projection(Projection::try_new(exprs, Arc::new(scan))?))
    }
}
