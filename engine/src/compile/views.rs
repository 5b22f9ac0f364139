//! Texts that are read as views, where nothing but operators that take them so looks at them.
//!
//! A Parquet file holds the texts of a category once and numbers in their place. As views they are sixteen bytes each, with
//! short texts in them, and decoding is copying numbers; as plain texts each is copied byte for byte. Users never see views:
//! only columns that no sample shows are read so.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed as Rewritten, TransformedResult, TreeNode};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::projection::ProjectionExec;

use super::window_exec::WindowExec;
use crate::error::Result;

/// The columns of the plan's leaf that may be views.
pub(super) fn viewable(plan: &Arc<dyn ExecutionPlan>) -> BTreeSet<usize> {
    let Some(bottom) = bottom(plan) else { return BTreeSet::new() };
    let mut use_of = Uses::default();
    bottom.expr().iter().for_each(|output| use_of.see(&output.expr));
    let leaf = bottom.input().schema();
    let is_text = |column: &usize| *leaf.field(*column).data_type() == DataType::Utf8;
    use_of.by_operators.difference(&use_of.by_others).copied().filter(is_text).collect()
}

/// The same plan over a leaf of which these columns are views.
pub(super) fn with_views(
    plan: Arc<dyn ExecutionPlan>,
    columns: &BTreeSet<usize>,
) -> Result<(Arc<dyn ExecutionPlan>, SchemaRef)> {
    let mut schema = plan.schema();
    let rewritten = plan.transform_up(|node| {
        let Some(leaf) = (node.as_ref() as &dyn Any).downcast_ref::<WindowExec>() else {
            return Ok(Rewritten::no(node));
        };
        schema = viewed(&leaf.schema(), |column| columns.contains(&column));
        Ok(Rewritten::yes(Arc::new(leaf.with_schema(Arc::clone(&schema))) as Arc<dyn ExecutionPlan>))
    });
    Ok((rewritten.data()?, schema))
}

fn viewed(schema: &Schema, is_view: impl Fn(usize) -> bool) -> SchemaRef {
    let view = |(at, field): (usize, &Arc<Field>)| match is_view(at) {
        true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8View)),
        false => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().enumerate().map(view).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// The projection that reads the leaf, if the plan is projections all the way down.
fn bottom(plan: &Arc<dyn ExecutionPlan>) -> Option<&ProjectionExec> {
    let projection = (plan.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>()?;
    let mut input = projection.input();
    while let Some(same) = (input.as_ref() as &dyn Any).downcast_ref::<CooperativeExec>() {
        input = same.input();
    }
    match (input.as_ref() as &dyn Any).is::<WindowExec>() {
        true => Some(projection),
        false => bottom(input),
    }
}

/// What becomes of columns.
#[derive(Default)]
struct Uses {
    by_operators: BTreeSet<usize>,
    by_others: BTreeSet<usize>,
}

impl Uses {
    fn see(&mut self, expr: &Arc<dyn PhysicalExpr>) {
        if let Some(column) = expr.downcast_ref::<Column>() {
            self.by_others.insert(column.index());
        }
        let takes_views = expr
            .downcast_ref::<ScalarFunctionExpr>()
            .and_then(|call| forebay_operators::find(call.name()))
            .is_some_and(|operator| operator.takes_views());
        for child in expr.children() {
            match child.downcast_ref::<Column>() {
                Some(column) if takes_views => _ = self.by_operators.insert(column.index()),
                _ => self.see(child),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use forebay_storage::{Stores, write_parquet};

    use super::*;
    use crate::{FeedOptions, Session};

    #[tokio::test]
    async fn only_what_operators_alone_look_at_is_read_as_views() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet").display().to_string();
        let column = || Arc::new(StringArray::from(vec!["0a", "0b"])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("a", column()), ("b", column()), ("c", column())]).unwrap();
        write_parquet(&Stores::new(), &path, &batch).await.unwrap();
        for (query, expected) in [
            ("SELECT hex_to_int(a) AS x, c FROM t", &[0][..]),
            ("SELECT clamp(hex_to_int(b), 0, 9) AS x, vocab_apply(c, ['q']) AS y FROM t", &[1, 2]),
            ("SELECT hex_to_int(a) AS x, a FROM t", &[]),
            ("SELECT hex_to_int(upper(a)) AS x FROM t", &[]),
            ("SELECT hex_to_int(a) AS x FROM t WHERE a <> b", &[]),
            ("SELECT hex_to_int(a) AS x FROM t WHERE b <> c", &[0]),
        ] {
            let session = Session::builder().threads(1).build().unwrap();
            let script =
                format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'; CREATE PIPELINE p AS {query}");
            session.execute("test", &script).await.unwrap();
            let feed = session.open("p", &FeedOptions::default()).unwrap();
            assert_eq!(feed.stage().read_views(), expected, "{query}");
        }
    }
}
