//! Cuts a query into layers at the operators that derive rows.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{Column, DFSchema};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Projection};
use forebay_protocol::CallOrder;

use super::calls::CallSites;
use super::table::FeedTable;
use crate::compile::change::Change;
use crate::compile::hidden_columns::{HIDDEN, hidden_columns};

/// A query with its hidden columns, cut at the operators that derive rows.
pub(crate) struct Woven {
    /// From the table upwards.
    pub(crate) layers: Vec<WovenLayer>,
    /// The part above the topmost operator that derives rows, or the whole query if there is none.
    pub(crate) top: LogicalPlan,
    /// The calls that run in another order than written, in words.
    pub(crate) moves: Vec<String>,
}

/// An operator that derives rows, and the part of the query between it and the operator below.
pub(crate) struct WovenLayer {
    pub(crate) input: LogicalPlan,
    pub(crate) change: Change,
    /// The columns that the operator produces.
    pub(crate) made: SchemaRef,
}

impl Woven {
    /// The columns that `top` reads. `source` has the columns of the driving table.
    pub(crate) fn leaf<'a>(&'a self, source: &'a SchemaRef) -> &'a SchemaRef {
        self.layers.last().map_or(source, |layer| &layer.made)
    }
}

/// The layers of a query during weaving, with its call sites.
pub(super) struct Layers {
    calls: CallSites,
    closed: Vec<WovenLayer>,
}

impl Layers {
    /// Begins a query whose calls run in this order.
    pub(super) fn new(order: CallOrder) -> Self {
        Self { calls: CallSites::new(order), closed: Vec::new() }
    }

    /// The number of layers closed so far.
    pub(super) fn len(&self) -> usize {
        self.closed.len()
    }

    /// Completes the query with `top`, the part above the last layer.
    ///
    /// # Errors
    /// If annotations would not move as their image.
    pub(super) fn woven(self, top: LogicalPlan) -> Result<Woven> {
        self.calls.check()?;
        Ok(Woven { layers: self.closed, top, moves: self.calls.into_moves() })
    }

    /// Adds to each call in `expr` over `input` the hidden columns that its operator depends on.
    pub(super) fn expr(&mut self, expr: Expr, input: &LogicalPlan) -> Result<Expr> {
        self.calls.weave(expr, input, self.closed.is_empty())
    }

    /// The number of the next call site of `operator`.
    pub(super) fn site(&mut self, operator: &str) -> u64 {
        self.calls.site(operator)
    }

    /// Closes a layer. Returns a plan over the layer's rows that keeps the column names of `schema`.
    pub(super) fn cut(&mut self, input: LogicalPlan, change: Change, schema: &DFSchema) -> Result<LogicalPlan> {
        // Column names are unique within a table, but a join's two tables may share names.
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
