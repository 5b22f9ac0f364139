//! Text columns of categories: expressions run once for each distinct text.
//!
//! A Parquet file stores each text of a category once, and a number for each row. A column is read as such a dictionary
//! if the samples contain only numbers that operators compute from its texts. Rows are then four-byte numbers, and an
//! expression runs over a few thousand texts instead of one text per row.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int32Array, RecordBatch, StringViewArray};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, FieldRef, Int32Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::common::tree_node::{Transformed as Rewritten, TransformedResult, TreeNode};
use datafusion::error::Result as PlanResult;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use forebay_operators::Determinism;
use forebay_storage::{dictionary_of_texts, retyped};

use super::window_exec::WindowExec;
use crate::error::Result;

/// Maximum number of texts in a window's dictionary, per row of the first piece that requests results. A piece is a
/// small part of a window, but it may be the only part that a rank takes or that passes a filter.
const TEXTS_PER_ROW_MAX: usize = 4;

/// The leaf columns that can be dictionaries.
pub(super) fn categories(plan: &Arc<dyn ExecutionPlan>) -> BTreeSet<usize> {
    let Some(bottom) = bottom(plan) else { return BTreeSet::new() };
    let leaf = bottom.input().schema();
    let mut use_of = Uses::default();
    bottom.expr().iter().for_each(|output| use_of.see(&output.expr, &leaf));
    use_of.by_operators.difference(&use_of.by_others).copied().collect()
}

/// The same plan over a leaf with dictionaries in these columns.
pub(super) fn over_dictionaries(
    plan: Arc<dyn ExecutionPlan>,
    columns: &BTreeSet<usize>,
) -> Result<(Arc<dyn ExecutionPlan>, SchemaRef)> {
    let mut schema = plan.schema();
    let rewritten = plan.transform_up(|node| {
        let Some(projection) = bottom_itself(&node) else { return Ok(Rewritten::no(node)) };
        let texts = projection.input().schema();
        schema = retyped(&texts, |at| columns.contains(&at).then(dictionary_of_texts));
        let exprs = projection.expr().iter().map(|output| {
            Ok(ProjectionExpr { expr: by_text(&output.expr, columns, &texts)?, alias: output.alias.clone() })
        });
        let exprs = exprs.collect::<PlanResult<Vec<_>>>()?;
        let input = Arc::clone(projection.input()).transform_up(|node| {
            Ok(match (node.as_ref() as &dyn Any).downcast_ref::<WindowExec>() {
                Some(leaf) => Rewritten::yes(Arc::new(leaf.with_schema(Arc::clone(&schema))) as Arc<dyn ExecutionPlan>),
                None => Rewritten::no(node),
            })
        });
        let same = ProjectionExec::try_new_with_schema_metadata(exprs, input.data()?, &projection.schema())?;
        Ok(Rewritten::yes(Arc::new(same) as Arc<dyn ExecutionPlan>))
    });
    Ok((rewritten.data()?, schema))
}

/// The projection that reads the leaf, if the plan consists of projections only.
fn bottom(plan: &Arc<dyn ExecutionPlan>) -> Option<&ProjectionExec> {
    bottom_itself(plan).or_else(|| {
        let projection = (plan.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>()?;
        bottom(below(projection))
    })
}

/// The plan, if it is the projection that reads the leaf.
fn bottom_itself(plan: &Arc<dyn ExecutionPlan>) -> Option<&ProjectionExec> {
    let projection = (plan.as_ref() as &dyn Any).downcast_ref::<ProjectionExec>()?;
    (below(projection).as_ref() as &dyn Any).is::<WindowExec>().then_some(projection)
}

fn below(projection: &ProjectionExec) -> &Arc<dyn ExecutionPlan> {
    let mut input = projection.input();
    while let Some(same) = (input.as_ref() as &dyn Any).downcast_ref::<CooperativeExec>() {
        input = same.input();
    }
    input
}

/// The columns that operators read as texts, and the columns that other expressions read.
#[derive(Default)]
struct Uses {
    by_operators: BTreeSet<usize>,
    by_others: BTreeSet<usize>,
}

impl Uses {
    fn see(&mut self, expr: &Arc<dyn PhysicalExpr>, leaf: &Schema) {
        if let Some(column) = category_of(expr, leaf) {
            self.by_operators.insert(column.index());
        } else if let Some(column) = expr.downcast_ref::<Column>() {
            self.by_others.insert(column.index());
        } else {
            expr.children().into_iter().for_each(|child| self.see(child, leaf));
        }
    }
}

/// The text column from which an expression computes a number. The expression must read no other column, and its
/// innermost operator must accept views.
fn category_of<'a>(expr: &'a Arc<dyn PhysicalExpr>, leaf: &Schema) -> Option<&'a Column> {
    let is_number = expr.data_type(leaf).is_ok_and(|it| it.is_primitive() || it == DataType::Boolean);
    let operator = expr.downcast_ref::<ScalarFunctionExpr>().and_then(|call| forebay_operators::find(call.name()));
    let is_per_text = match operator {
        Some(operator) => operator.descriptor().determinism == Determinism::Deterministic,
        None => expr.is::<CastExpr>(),
    };
    if !is_number || !is_per_text {
        return None;
    }
    let mut made_of = expr.children().into_iter().filter(|child| !child.is::<Literal>());
    let (Some(only), None) = (made_of.next(), made_of.next()) else { return None };
    match only.downcast_ref::<Column>() {
        Some(column) => {
            let is_text = *leaf.field(column.index()).data_type() == DataType::Utf8;
            (is_text && operator.is_some_and(|operator| operator.descriptor().takes_views)).then_some(column)
        }
        None => category_of(only, leaf),
    }
}

/// Replaces each part of the expression that reads only one of these columns with a [`DictionaryEval`].
fn by_text(
    expr: &Arc<dyn PhysicalExpr>,
    columns: &BTreeSet<usize>,
    leaf: &SchemaRef,
) -> PlanResult<Arc<dyn PhysicalExpr>> {
    if let Some(column) = category_of(expr, leaf).filter(|column| columns.contains(&column.index())) {
        return Ok(Arc::new(DictionaryEval::new(column, expr, leaf)?));
    }
    let children = expr.children().into_iter().map(|child| by_text(child, columns, leaf));
    match children.collect::<PlanResult<Vec<_>>>()? {
        none if none.is_empty() => Ok(Arc::clone(expr)),
        children => Arc::clone(expr).with_new_children(children),
    }
}

/// An expression over a dictionary of texts, computed once per text.
#[derive(Debug, Clone)]
struct DictionaryEval {
    column: Arc<dyn PhysicalExpr>,
    /// The same expression over a batch with only that column.
    of_text: Arc<dyn PhysicalExpr>,
    /// That batch's only field, as plain text.
    text: FieldRef,
    returns: FieldRef,
    known: Arc<Mutex<Vec<Known>>>,
}

/// The expression's results for a dictionary that is still in use: one for each text, then one for a null. The results
/// are unset while they are computed, and after a panic. They are `None` if the expression fails on any text, including
/// texts of rows that were not requested.
#[derive(Debug)]
struct Known {
    texts: Weak<dyn Array>,
    results: Arc<OnceLock<Option<ArrayRef>>>,
}

impl DictionaryEval {
    fn new(column: &Column, expr: &Arc<dyn PhysicalExpr>, leaf: &SchemaRef) -> PlanResult<Self> {
        let only = |node: Arc<dyn PhysicalExpr>| match node.downcast_ref::<Column>() {
            Some(column) => Ok(Rewritten::yes(Arc::new(Column::new(column.name(), 0)) as Arc<dyn PhysicalExpr>)),
            None => Ok(Rewritten::no(node)),
        };
        Ok(Self {
            column: Arc::new(column.clone()),
            of_text: Arc::clone(expr).transform_up(only).data()?,
            text: Arc::clone(&leaf.fields()[column.index()]),
            returns: expr.return_field(leaf)?,
            known: Arc::default(),
        })
    }

    fn evaluate_over(&self, texts: ArrayRef) -> PlanResult<ArrayRef> {
        let field = self.text.as_ref().clone().with_data_type(texts.data_type().clone());
        let rows = texts.len();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field.with_nullable(true)])), vec![texts])?;
        self.of_text.evaluate(&batch)?.into_array(rows)
    }

    /// The results for each of these texts, then the result for a null. `None` if the expression fails on one of them,
    /// if another thread is still computing them, or if there are too many texts for this number of rows.
    fn results(&self, texts: &ArrayRef, rows: usize) -> Option<ArrayRef> {
        let results = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let these = Arc::downgrade(texts);
            if let Some(known) = known.iter().find(|known| known.texts.ptr_eq(&these)) {
                return known.results.get().cloned().flatten();
            }
            if texts.len() > rows.saturating_mul(TEXTS_PER_ROW_MAX) {
                return None;
            }
            known.retain(|known| known.texts.strong_count() > 0);
            let results = Arc::default();
            known.push(Known { texts: these, results: Arc::clone(&results) });
            results
        };
        let with_null = concat(&[texts, &StringViewArray::new_null(1)]);
        let found = with_null.ok().and_then(|texts| self.evaluate_over(texts).ok());
        results.get_or_init(|| found).clone()
    }
}

/// Decodes a column that may be a dictionary into plain texts.
pub(super) fn plain(texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match texts.as_dictionary_opt() {
        Some(dictionary) => cast(&of_rows(dictionary)?, &DataType::Utf8),
        None => Ok(Arc::clone(texts)),
    }
}

/// The text of each row.
fn of_rows(texts: &DictionaryArray<Int32Type>) -> Result<ArrayRef, ArrowError> {
    let (numbers, first) = (texts.keys(), texts.keys().values().first().copied().unwrap_or(0));
    let is_run =
        numbers.null_count() == 0 && numbers.values().iter().zip(first..).all(|(number, next)| *number == next);
    match is_run {
        true => Ok(texts.values().slice(first as usize, numbers.len())),
        false => take(texts.values(), numbers, None),
    }
}

/// The results at these numbers. Nulls take the last result.
fn pick(results: &ArrayRef, numbers: &Int32Array) -> Result<ArrayRef, ArrowError> {
    let null = results.len() - 1;
    let Some(nulls) = numbers.nulls().filter(|_| results.is_valid(null)) else { return take(results, numbers, None) };
    let mut all = numbers.values().to_vec();
    for (numbers, valid) in all.chunks_mut(64).zip(nulls.inner().bit_chunks().iter_padded()) {
        for (at, number) in numbers.iter_mut().enumerate() {
            *number = if valid >> at & 1 == 1 { *number } else { null as i32 };
        }
    }
    take(results, &Int32Array::from(all), None)
}

impl PhysicalExpr for DictionaryEval {
    fn data_type(&self, _: &Schema) -> PlanResult<DataType> {
        Ok(self.returns.data_type().clone())
    }

    fn nullable(&self, _: &Schema) -> PlanResult<bool> {
        Ok(self.returns.is_nullable())
    }

    fn return_field(&self, _: &Schema) -> PlanResult<FieldRef> {
        Ok(Arc::clone(&self.returns))
    }

    fn evaluate(&self, batch: &RecordBatch) -> PlanResult<ColumnarValue> {
        let column = self.column.evaluate(batch)?.into_array(batch.num_rows())?;
        let texts = column.as_dictionary::<Int32Type>();
        let results = match self.results(texts.values(), texts.len()) {
            Some(results) => pick(&results, texts.keys())?,
            None => self.evaluate_over(of_rows(texts)?)?,
        };
        Ok(ColumnarValue::Array(results))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.column]
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> PlanResult<Arc<dyn PhysicalExpr>> {
        let column = children.pop().unwrap_or_else(|| Arc::clone(&self.column));
        Ok(Arc::new(Self { column, ..self.as_ref().clone() }))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.of_text.fmt_sql(f)
    }
}

impl Display for DictionaryEval {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "per distinct text of {}: {}", self.column, self.of_text)
    }
}

impl PartialEq for DictionaryEval {
    fn eq(&self, other: &Self) -> bool {
        self.column.eq(&other.column) && self.of_text.eq(&other.of_text)
    }
}

impl Eq for DictionaryEval {}

impl Hash for DictionaryEval {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.column.hash(state);
        self.of_text.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::Int64Type;
    use arrow::util::pretty::pretty_format_batches;
    use forebay_operators::Draws;
    use forebay_storage::{Stores, write_parquet};

    use super::*;
    use crate::{FeedOptions, OnError, ReadOptions, Session};

    #[tokio::test]
    async fn only_what_operators_alone_look_at_is_read_as_dictionaries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet").display().to_string();
        let column = || Arc::new(StringArray::from(vec!["0a", "0b"])) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("a", column()), ("b", column()), ("c", column())]).unwrap();
        write_parquet(&Stores::new(), &path, &batch).await.unwrap();
        for (query, expected) in [
            ("SELECT hex_to_int(a) AS x, c FROM t", &[0][..]),
            ("SELECT clamp(hex_to_int(b), 0, 9) AS x, vocab_apply(c, ['q']) AS y FROM t", &[1, 2]),
            (
                "SELECT hex_to_int(a) + hex_to_int(b) AS x, CASE WHEN hex_to_int(c) > 1 THEN 2 END AS y FROM t",
                &[0, 1, 2],
            ),
            (
                "SELECT hash_bucket(a, buckets => 9) + index_of(b, ['0a']) AS x, cross(c, c, buckets => 9) AS y FROM t",
                &[0, 1],
            ),
            ("SELECT one_hot(vocab_apply(a, ['q']), size => 2) AS x FROM t", &[0]),
            ("SELECT hex_to_int(a) AS x, a FROM t", &[]),
            ("SELECT hex_to_int(a) AS x, char_length(a) AS y FROM t", &[]),
            ("SELECT hex_to_int(upper(a)) AS x FROM t", &[]),
            ("SELECT hex_to_int(a) AS x FROM t WHERE a <> b", &[]),
            ("SELECT hex_to_int(a) AS x FROM t WHERE b <> c", &[0]),
        ] {
            let session = Session::builder().threads(1).build().unwrap();
            let script =
                format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}'; CREATE PIPELINE p AS {query}");
            session.execute("test", &script).await.unwrap();
            let feed = session.open("p", &FeedOptions::default()).unwrap();
            assert_eq!(feed.stage().read_categories(), expected, "{query}");
        }
    }

    /// Hexadecimal digits of few or many categories, with occasional invalid texts and nulls.
    fn texts(draws: &mut Draws, rows: usize, distinct: u64, wrong: u64) -> StringArray {
        let text = |draws: &mut Draws| match draws.below(100) {
            at if at < wrong => "not hexadecimal".to_owned(),
            at if at < 10 => "F".to_owned(),
            _ => format!("{:08x}", draws.below(distinct)),
        };
        (0..rows).map(|_| (draws.below(8) > 0).then(|| text(draws))).collect()
    }

    #[tokio::test]
    async fn dictionaries_give_what_texts_give() {
        for seed in 0..12 {
            let mut draws = Draws::new(seed, 26);
            let folder = tempfile::tempdir().unwrap();
            let (mut rows, files) = (0, 1 + draws.below(4));
            for file in 0..files {
                let len = draws.below(120) as usize;
                let ids = Int64Array::from_iter_values((rows..).take(len));
                let wrong = 3 * (seed % 2);
                let columns = [
                    ("id", Arc::new(ids) as ArrayRef),
                    ("a", Arc::new(texts(&mut draws, len, 9, wrong))),
                    ("b", Arc::new(texts(&mut draws, len, 1 << 32, wrong))),
                    ("c", Arc::new(texts(&mut draws, len, 20, 50))),
                ];
                let batch =
                    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, it)| (name, it, true))).unwrap();
                // Texts from paths are among them, and one is null.
                let of_folder = ["d=0a", "d=F", "d=__HIVE_DEFAULT_PARTITION__", "d=no"][(file % 4) as usize];
                let path = |kind| folder.path().join(format!("{kind}/{of_folder}/{file}.{kind}"));
                write_parquet(&Stores::new(), &path("parquet").display().to_string(), &batch).await.unwrap();
                let mut lines = arrow::json::LineDelimitedWriter::new(Vec::new());
                lines.write(&batch).unwrap();
                lines.finish().unwrap();
                std::fs::create_dir_all(path("jsonl").parent().unwrap()).unwrap();
                std::fs::write(path("jsonl"), lines.into_inner()).unwrap();
                rows += len as i64;
            }
            let session = Session::builder().threads(2).base(folder.path()).build().unwrap();
            let filter = if draws.below(2) == 0 { "WHERE id % 3 > 0" } else { "" };
            let columns = "(id BIGINT, a VARCHAR, b VARCHAR, c VARCHAR)";
            for kind in ["parquet", "jsonl"] {
                let columns = if kind == "jsonl" { columns } else { "" };
                let script = format!(
                    "CREATE EXTERNAL TABLE {kind}_t {columns} STORED AS {kind} LOCATION '{kind}';
                     CREATE PIPELINE {kind}_p AS
                     SELECT id, hex_to_int(a) AS x, fill_null(positive_mod(hex_to_int(b), 7)) AS y,
                     fill_null(CAST(hex_to_int(a) AS REAL), 0.5) AS r, hex_to_int(b) + coalesce(id, 0) AS s,
                     vocab_apply(c, ['F', 'not hexadecimal', '0000000a'], other => 9) AS z,
                     hash_bucket(b, buckets => 99) AS h, index_of(c, ['F']) AS i, index_of(d, ['F']) AS d,
                     hash_bucket(d, buckets => 99) AS e FROM {kind}_t {filter}"
                );
                session.execute("test", &script).await.unwrap();
            }
            let mut found = Vec::new();
            for (kind, shuffle) in [("jsonl", false), ("parquet", false), ("parquet", true)] {
                let window_rows = Some(1 + draws.below(300));
                let options = FeedOptions {
                    on_error: Some(OnError::Skip),
                    shuffle: Some(shuffle),
                    window_rows,
                    ..FeedOptions::default()
                };
                let feed = session.open(&format!("{kind}_p"), &options).unwrap();
                let is_coded = !feed.stage().read_categories().is_empty();
                assert_eq!(is_coded, kind == "parquet");
                let batch_size = Some(1 + draws.below(50));
                let mut reader = feed.read(&ReadOptions { batch_size, ..ReadOptions::default() }).unwrap();
                let mut samples: Vec<(i64, String)> = Vec::new();
                while let Some(batch) = reader.next().await {
                    let records = batch.unwrap().records;
                    let ids = records["id"].as_primitive::<Int64Type>().clone();
                    for row in 0..records.num_rows() {
                        let shown = pretty_format_batches(&[records.slice(row, 1)]).unwrap().to_string();
                        samples.push((ids.value(row), shown));
                    }
                }
                if shuffle {
                    samples.sort();
                }
                found.push(samples);
            }
            assert!(rows < 60 || !found[0].is_empty());
            assert_eq!(found[1], found[0], "seed {seed}");
            assert_eq!(found[2], found[0], "shuffled, seed {seed}");
        }
    }

    #[test]
    fn what_is_known_of_a_dictionary_goes_with_it() {
        let leaf: SchemaRef = Arc::new(Schema::new(vec![
            arrow::datatypes::Field::new("a", DataType::Int32, false),
            arrow::datatypes::Field::new("t", DataType::Utf8, true),
        ]));
        let column = Column::new("t", 1);
        let lengths: Arc<dyn PhysicalExpr> = Arc::new(CastExpr::new(Arc::new(column.clone()), DataType::Int64, None));
        let numbers = DictionaryEval::new(&column, &lengths, &leaf).unwrap();
        let texts = |texts: Vec<&str>| Arc::new(StringViewArray::from(texts)) as ArrayRef;
        let (first, wrong) = (texts(vec!["1", "2"]), texts(vec!["3", "x"]));
        let known = |texts: &ArrayRef, rows| {
            numbers.results(texts, rows).map(|it| it.as_primitive::<Int64Type>().values().to_vec())
        };
        assert_eq!(known(&texts(vec!["1"; 9]), 2), None, "not worth it");
        assert_eq!(known(&first, 1), Some(vec![1, 2, 0]));
        assert_eq!(known(&first, 0), Some(vec![1, 2, 0]), "it is known now");
        assert_eq!(known(&wrong, 9), None);
        assert_eq!(numbers.known.lock().unwrap().len(), 2);
        drop((first, wrong));
        let last = texts(vec!["4"]);
        assert_eq!(known(&last, 1), Some(vec![4, 0]));
        assert_eq!(numbers.known.lock().unwrap().len(), 1);
    }

    #[test]
    fn rows_that_lie_together_are_a_slice() {
        let values: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a"), None, Some("b"), Some("c")]));
        for numbers in [vec![Some(1), Some(2), Some(3)], vec![Some(2), Some(1)], vec![Some(0), None], vec![]] {
            let texts = DictionaryArray::try_new(Int32Array::from(numbers), Arc::clone(&values)).unwrap();
            let expected = cast(&texts, &DataType::Utf8View).unwrap();
            assert_eq!(&of_rows(&texts).unwrap(), &expected);
        }
    }
}
