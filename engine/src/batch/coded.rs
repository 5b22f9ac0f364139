//! Vocabularies of text columns, counted by the dictionaries of files.
//!
//! A Parquet file stores each text of a category once, and a number for each row. A vocabulary that reads these numbers
//! counts in an array, and hashes each text once for thousands of rows.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, replace_children_if_necessary};
use forebay_operators::fits::VOCABULARY;

use super::scan::ScanExec;

/// The same plan, whose vocabularies of whole text columns read dictionaries.
pub(super) fn coded(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    plan.transform_up(|node| {
        let aggregate = (node.as_ref() as &dyn Any).downcast_ref::<AggregateExec>();
        // Each of many groups would count the keys of its few rows in an array for all texts.
        let Some(aggregate) = aggregate.filter(|aggregate| aggregate.group_expr().is_empty()) else {
            return Ok(Transformed::no(node));
        };
        match coded_input(aggregate.input(), &uses(aggregate))? {
            Some(input) => Ok(Transformed::yes(replace_children_if_necessary(node, vec![input])?)),
            None => Ok(Transformed::no(node)),
        }
    })
    .data()
}

fn uses(aggregate: &AggregateExec) -> Uses {
    let mut uses = Uses::default();
    for called in aggregate.aggr_expr() {
        let mut arguments = called.expressions();
        if called.fun().name() == VOCABULARY {
            uses.count(&arguments.remove(0));
        }
        arguments.iter().chain(called.order_bys().iter().map(|by| &by.expr)).for_each(|read| uses.read(read));
    }
    aggregate.filter_expr().iter().flatten().for_each(|filter| uses.read(filter));
    uses
}

/// The plan that an aggregate reads, with dictionaries. `None` if it is more than a choice of a table's columns:
/// batches are larger than those of texts, and what computes from them might need much memory.
fn coded_input(plan: &Arc<dyn ExecutionPlan>, uses: &Uses) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let node = plan.as_ref() as &dyn Any;
    if let Some(scan) = node.downcast_ref::<ScanExec>() {
        let schema = scan.schema();
        let mut counted = uses.counted();
        counted.retain(|at| *schema.field(*at).data_type() == DataType::Utf8);
        return Ok(scan.with_dictionaries(&counted).map(|scan| Arc::new(scan) as Arc<dyn ExecutionPlan>));
    }
    if let Some(same) = node.downcast_ref::<CooperativeExec>() {
        return coded_input(same.input(), uses);
    }
    let Some(projection) = node.downcast_ref::<ProjectionExec>() else { return Ok(None) };
    if !projection.expr().iter().all(|output| output.expr.is::<Column>()) {
        return Ok(None);
    }
    let (mut of_input, counted) = (Uses::default(), uses.counted());
    for (at, output) in projection.expr().iter().enumerate() {
        if counted.contains(&at) { of_input.count(&output.expr) } else { of_input.read(&output.expr) }
    }
    let Some(input) = coded_input(projection.input(), &of_input)? else { return Ok(None) };
    Ok(Some(Arc::new(ProjectionExec::try_new(projection.expr().to_vec(), input)?)))
}

/// The columns of an input that vocabularies count, and those that other expressions read.
#[derive(Default)]
struct Uses {
    by_vocabularies: BTreeSet<usize>,
    by_others: BTreeSet<usize>,
}

impl Uses {
    fn count(&mut self, values: &Arc<dyn PhysicalExpr>) {
        match values.downcast_ref::<Column>() {
            Some(column) => _ = self.by_vocabularies.insert(column.index()),
            None => self.read(values),
        }
    }

    fn read(&mut self, expr: &Arc<dyn PhysicalExpr>) {
        self.by_others.extend(collect_columns(expr).iter().map(Column::index));
    }

    fn counted(&self) -> BTreeSet<usize> {
        self.by_vocabularies.difference(&self.by_others).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use arrow::compute::concat_batches;
    use datafusion::execution::{SessionStateBuilder, TaskContext};
    use datafusion::physical_plan::execute_stream;
    use datafusion::prelude::SessionContext;
    use forebay_operators::Draws;
    use forebay_storage::{Stores, write_parquet};
    use futures::TryStreamExt;

    use super::super::artifact::opened;
    use super::super::{BatchTable, without_tables};
    use super::*;
    use crate::planner::planner;

    const FILES: u64 = 3;
    const ROWS: usize = 500;

    /// Texts of so many categories, of which some are long, and nulls.
    fn texts(draws: &mut Draws, categories: u64) -> ArrayRef {
        let text = |draws: &mut Draws| match draws.below(categories) {
            0 => String::new(),
            n if n % 3 == 0 => format!("category number {n}"),
            n => n.to_string(),
        };
        Arc::new((0..ROWS).map(|_| (draws.below(9) > 0).then(|| text(draws))).collect::<StringArray>())
    }

    async fn session(folder: &str) -> SessionContext {
        let stores = Stores::new();
        let mut draws = Draws::new(7, 0);
        for file in 0..FILES {
            let columns = [("a", 9), ("b", 9 + 300 * file), ("c", 1 << 40), ("d", 20)];
            let columns = columns.map(|(name, categories)| (name, texts(&mut draws, categories), true));
            let rows = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
            write_parquet(&stores, &format!("{folder}/{file}.parquet"), &rows).await.unwrap();
        }
        let planner = without_tables(planner().state());
        let config = planner.config().clone().with_target_partitions(2).with_batch_size(64);
        let state = SessionStateBuilder::new_from_existing(planner).with_config(config).build();
        let session = SessionContext::new_with_state(state);
        let table = BatchTable::new("t", opened(&stores, folder).await.unwrap(), 2).numbered();
        session.register_table("t", Arc::new(table)).unwrap();
        session
    }

    /// The columns of scans that are dictionaries.
    fn dictionaries(plan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
        let schema = plan.schema();
        let is_coded = |data_type: &DataType| matches!(data_type, DataType::Dictionary(..));
        let own = schema.fields().iter().filter(|field| is_coded(field.data_type()));
        let own = own.map(|field| field.name().clone()).collect::<Vec<_>>();
        let below = plan.children().into_iter().flat_map(dictionaries);
        own.into_iter().chain(below).collect()
    }

    #[tokio::test]
    async fn vocabularies_are_the_same_by_texts_and_by_dictionaries() {
        let folder = tempfile::tempdir().unwrap();
        let session = session(folder.path().to_str().unwrap()).await;
        let of = |column: &str, order: &str| match order {
            "first_seen" => format!("__forebay_vocabulary({column}, 1, 99999, 'first_seen', __forebay_row)"),
            _ => format!("__forebay_vocabulary({column}, 2, 500, 'frequency')"),
        };
        let all = |order: &str| ["a", "b", "c", "d"].map(|column| of(column, order)).join(", ");
        for (query, expected) in [
            (format!("SELECT {} FROM t", all("frequency")), &["a", "b", "c", "d"][..]),
            (format!("SELECT {} FROM t", all("first_seen")), &["a", "b", "c", "d"]),
            (format!("SELECT {}, max(b), {} FROM t", of("a", "frequency"), of("b", "frequency")), &["a"]),
            (format!("SELECT {} FILTER (WHERE d > '1'), {} FROM t", of("d", ""), of("c", "")), &["c"]),
            (format!("SELECT {}, first_value(c ORDER BY a, c) FROM t", of("a", "")), &[]),
            (format!("SELECT {}, {} FROM (SELECT d, b AS v FROM t)", of("v", ""), of("d", "")), &["d", "v", "b", "d"]),
            (format!("SELECT {}, {} FROM (SELECT d, upper(a) AS u FROM t)", of("u", ""), of("d", "")), &[]),
            (format!("SELECT {} FROM t WHERE b > '1'", of("a", "")), &[]),
            (format!("SELECT d, {} FROM t GROUP BY d ORDER BY d", of("a", "")), &[]),
        ] {
            let planned = async || session.sql(&query).await.unwrap().create_physical_plan().await.unwrap();
            let coded = coded(planned().await).unwrap();
            assert_eq!(dictionaries(&coded), expected, "{query}");
            let mut results = Vec::new();
            for plan in [planned().await, coded] {
                let schema = plan.schema();
                let batches = execute_stream(plan, Arc::new(TaskContext::from(&session.state()))).unwrap();
                let batches: Vec<RecordBatch> = batches.try_collect().await.unwrap();
                results.push(concat_batches(&schema, &batches).unwrap());
            }
            assert_eq!(results[0], results[1], "{query}");
            assert!(results[0].num_rows() > 0 && !results[0].column(0).is_empty());
        }
    }
}
