//! Pipelines that are written as DataFrames of DataFusion.
//!
//! A pipeline is a text, which workers plan again. So the plan of a frame is written as SQL, which is compared with the
//! frame, and is then a query like any other: its calls are checked, and its files are pinned.

use std::any::Any;
use std::fmt::Write as _;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::error::Result as PlanResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Projection, Window};
use datafusion::prelude::DataFrame;
use datafusion::sql::unparser::Unparser;
use datafusion::sql::unparser::dialect::CustomDialectBuilder;

use super::Session;
use super::catalog::reference;
use crate::batch::BatchTable;
use crate::error::{Error, Result};

impl Session {
    /// The rows of table `name`. Derive others from them with DataFusion, and make a pipeline of these with
    /// [`define_frame`](Self::define_frame). Collecting a frame computes its rows once. The limits of a
    /// [`query`](Self::query) do not apply.
    ///
    /// # Errors
    /// `NotFound` for an unknown table.
    pub async fn data_frame(&self, name: &str) -> Result<DataFrame> {
        self.catalog.table_schema(name)?;
        Ok(self.over_whole_tables()?.table(reference(name)).await?)
    }

    /// A call of an operator or an SQL function. Arguments that are left out have their defaults.
    ///
    /// # Errors
    /// `NotFound` for an unknown function, `Invalid` for an argument without a default.
    pub fn call(&self, function: &str, mut arguments: Vec<Expr>) -> Result<Expr> {
        let state = self.catalog.state();
        let Some(udf) = state.scalar_functions().get(&function.to_lowercase()) else {
            return Err(super::catalog::unknown(
                "function",
                function,
                state.scalar_functions().keys().cloned().collect(),
            ));
        };
        if let Some(descriptor) = forebay_operators::descriptor(udf.name()) {
            for parameter in descriptor.parameters.iter().skip(arguments.len()) {
                let Some(default) = parameter.default else {
                    let message = format!("{}: \"{}\" is missing", descriptor.name, parameter.name);
                    return Err(Error::invalid(message));
                };
                arguments.push(state.create_logical_expr(default, &DFSchema::empty())?);
            }
        }
        Ok(udf.call(arguments))
    }

    /// Like [`define`](Self::define), with the rows of a DataFrame over [tables](Self::data_frame) of this session. The
    /// pipeline is that of an SQL query with the same plan. Integers of any type become `Int64`, as in SQL, and
    /// functions are those of this session with their names.
    ///
    /// # Errors
    /// `Invalid` for a frame over other tables, for one that SQL does not express, and those of
    /// [`define`](Self::define).
    pub async fn define_frame(&self, name: &str, rows: &DataFrame) -> Result<()> {
        self.define(name, &self.query_of(rows).await?).await
    }

    /// Like [`define_frame`](Self::define_frame), with the bytes of a plan of Substrait that reads tables of this
    /// session by their names.
    ///
    /// # Errors
    /// Those of [`define_frame`](Self::define_frame), and `Invalid` for what is no plan, or none that DataFusion reads.
    #[cfg(feature = "substrait")]
    pub async fn define_substrait(&self, name: &str, plan: &[u8]) -> Result<()> {
        use datafusion_substrait::{logical_plan::consumer::from_substrait_plan, serializer::deserialize_bytes};

        let unread = |error: datafusion::error::DataFusionError| {
            Error::invalid(format!("the plan of Substrait cannot be read: {}", Error::from(error).message()))
        };
        let state = self.over_whole_tables()?.state();
        let plan = deserialize_bytes(plan).map_err(unread)?;
        let plan = from_substrait_plan(&state, &plan).await.map_err(unread)?;
        self.define_frame(name, &DataFrame::new(state, plan)).await
    }

    /// Refuses tables that are not those of this session.
    fn check_tables(&self, plan: &LogicalPlan) -> Result<()> {
        let tables = self.catalog.tables();
        let mut foreign = None;
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                let provider = source_as_provider(&scan.source)?;
                let read = (provider.as_ref() as &dyn Any).downcast_ref::<BatchTable>().map(BatchTable::dataset);
                let own = tables.get(scan.table_name.table());
                let is_own = read.zip(own).is_some_and(|(read, own)| {
                    read.snapshot().id() == own.snapshot().id() && read.schema() == own.schema()
                });
                if !is_own {
                    foreign = Some(scan.table_name.to_string());
                }
            }
            Ok(if foreign.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        let Some(table) = foreign else { return Ok(()) };
        let message = format!("the DataFrame reads \"{table}\", which is no table of this session");
        Err(Error::invalid(message).with_hint("derive it from Session::data_frame"))
    }

    /// The SQL of a frame.
    async fn query_of(&self, rows: &DataFrame) -> Result<String> {
        let state = self.over_whole_tables()?.state();
        self.check_tables(rows.logical_plan())?;
        let plan = as_in_sql(rows.logical_plan().clone()).map_err(|error| not_sql(error.message()))?;
        let dialect = CustomDialectBuilder::new().with_identifier_quote_style('"').build();
        let query = Unparser::new(&dialect).plan_to_sql(&plan).map_err(|error| not_sql(&error.to_string()))?;
        let query = query.to_string();
        let again = state.create_logical_plan(&query).await.map_err(|error| not_sql(&error.to_string()))?;
        match (meaning(&plan, &state)?, meaning(&again, &state)?) {
            (meant, written) if meant == written => Ok(query),
            (meant, written) => {
                tracing::debug!(query, meant, written, "a frame became another query");

                Err(not_sql(&format!("it would be another query: {query}")))
            }
        }
    }
}

fn not_sql(why: &str) -> Error {
    Error::invalid(format!("the DataFrame cannot be written as SQL: {why}")).with_hint("write the query as SQL instead")
}

/// The plan with names where SQL has them, above aggregates, window functions and conditions, and with numbers of one
/// type.
fn as_in_sql(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries(|node| {
        let node = node.map_expressions(|expr| expr.transform_up(|expr| Ok(with_long_integer(expr))))?.data;
        let node = node.recompute_schema()?;
        let names = node.schema().columns();
        let plain = match node {
            LogicalPlan::Aggregate(Aggregate { input, group_expr, aggr_expr, .. }) => {
                LogicalPlan::Aggregate(Aggregate::try_new(input, group_expr, unnamed(aggr_expr))?)
            }
            LogicalPlan::Window(Window { input, window_expr, .. }) => {
                LogicalPlan::Window(Window::try_new(unnamed(window_expr), input)?)
            }
            // WHERE knows no names of its SELECT.
            LogicalPlan::Filter(filter) if matches!(*filter.input, LogicalPlan::Projection(_)) => {
                LogicalPlan::Filter(filter)
            }
            other => return Ok(Transformed::yes(other)),
        };
        let named = plain.schema().columns().into_iter().zip(names).map(|(column, name)| match column == name {
            true => Expr::Column(column),
            false => Expr::Column(column).alias_qualified(name.relation, name.name),
        });
        Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(named.collect(), Arc::new(plain))?)))
    });
    Ok(plan.data()?)
}

fn unnamed(exprs: Vec<Expr>) -> Vec<Expr> {
    exprs.into_iter().map(Expr::unalias).collect()
}

fn with_long_integer(expr: Expr) -> Transformed<Expr> {
    match &expr {
        Expr::Literal(value, metadata) if value.data_type().is_integer() && value.data_type() != DataType::Int64 => {
            match value.cast_to(&DataType::Int64) {
                Ok(value) => Transformed::yes(Expr::Literal(value, metadata.clone())),
                // It is larger than numbers of SQL.
                Err(_) => Transformed::no(expr),
            }
        }
        _ => Transformed::no(expr),
    }
}

/// The optimized plan as a text without the names of its subqueries, which SQL needs and frames do not have.
fn meaning(plan: &LogicalPlan, state: &SessionState) -> Result<String> {
    let mut text = String::new();
    let plan = state.optimize(plan).map_err(|error| not_sql(&error.to_string()))?;
    write_meaning(&plan, &mut text)?;
    Ok(text)
}

fn write_meaning(plan: &LogicalPlan, text: &mut String) -> PlanResult<()> {
    let inputs = plan.inputs();
    if matches!(plan, LogicalPlan::SubqueryAlias(_)) {
        return inputs.into_iter().try_for_each(|input| write_meaning(input, text));
    }
    let mut node = plan.display().to_string();
    if let LogicalPlan::Join(join) = plan {
        // Whether nulls are equal is not displayed.
        let _ = write!(node, " {:?}", join.null_equality);
    }
    let columns: Vec<_> = inputs.iter().flat_map(|input| input.schema().iter()).collect();
    for (at, (relation, field)) in columns.iter().enumerate() {
        let is_ambiguous = columns.iter().filter(|(_, other)| other.name() == field.name()).count() > 1;
        if let (Some(relation), true) = (relation, is_ambiguous) {
            node = node.replace(&format!("{relation}.{}", field.name()), &format!("{}#{at}", field.name()));
        }
    }
    for (relation, _) in &columns {
        if let Some(relation) = relation {
            node = node.replace(&format!("{relation}."), "");
        }
    }
    let _ = write!(text, "{node} (");
    plan.apply_subqueries(|subquery| {
        write_meaning(subquery, text)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    inputs.into_iter().try_for_each(|input| write_meaning(input, text))?;
    text.push(')');
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
    use datafusion::functions_aggregate::expr_fn::{count, sum};
    use datafusion::functions_window::expr_fn::row_number;
    use datafusion::logical_expr::{ExprFunctionExt, JoinType};
    use datafusion::prelude::{SessionContext, col, lit};
    use forebay_protocol::{FeedOptions, ReadOptions};

    use super::*;

    async fn session() -> Session {
        let session = Session::builder().threads(1).root("memory:///root").build().unwrap();
        let clicks: [(&str, ArrayRef); 4] = [
            ("id", Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]))),
            ("price", Arc::new(Float64Array::from(vec![0.5, 20.0, 3.0, 7.0, 2.0]))),
            ("site", Arc::new(StringArray::from(vec!["a", "b", "a", "c", "b"]))),
            ("Label", Arc::new(Int64Array::from(vec![0, 1, 0, 1, 1]))),
        ];
        let sites: [(&str, ArrayRef); 2] =
            [("name", Arc::new(StringArray::from(vec!["a", "b"]))), ("rank", Arc::new(Int64Array::from(vec![10, 20])))];
        for (table, rows) in [
            ("clicks", RecordBatch::try_from_iter_with_nullable(clicks.map(|(name, column)| (name, column, true)))),
            ("sites", RecordBatch::try_from_iter_with_nullable(sites.map(|(name, column)| (name, column, true)))),
        ] {
            let rows = rows.unwrap();
            session.register(Some(table), rows.schema(), vec![rows]).await.unwrap();
        }
        session
    }

    /// The samples of pipeline `p`, and the identity of its query.
    async fn samples(session: &Session) -> (String, Vec<RecordBatch>) {
        session.prepare("p").await.unwrap();
        let feed = session.open("p", &FeedOptions::default()).unwrap();
        let mut reader = feed.read(&ReadOptions { batch_size: Some(100), ..ReadOptions::default() }).unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = reader.next().await {
            batches.push(batch.unwrap().records);
        }
        (session.pipeline("p").unwrap().fingerprint().to_owned(), batches)
    }

    #[tokio::test]
    async fn a_frame_is_the_same_pipeline_as_its_sql() {
        let session = session().await;
        let clicks = || async { session.data_frame("clicks").await.unwrap() };
        let label = || Expr::Column(datafusion::common::Column::new(Some("clicks"), "Label"));
        let clamped = session.call("clamp", vec![col("price"), lit(1.0), lit(10.0)]).unwrap();
        let shown = session.call("one_hot", vec![label(), lit(2)]).unwrap();
        for (frame, query) in [
            (clicks().await, "SELECT * FROM clicks"),
            (
                clicks()
                    .await
                    .filter(col("price").gt(lit(1.0)))
                    .unwrap()
                    .select(vec![col("id"), label().alias("y")])
                    .unwrap(),
                "SELECT id, \"Label\" AS y FROM clicks WHERE price > 1.0",
            ),
            (
                clicks().await.select(vec![clamped.alias("p"), shown.alias("shown")]).unwrap(),
                "SELECT clamp(price, 1.0, 10.0) AS p, one_hot(\"Label\", 2) AS shown FROM clicks",
            ),
        ] {
            session.define_frame("p", &frame).await.unwrap();
            let of_frame = samples(&session).await;
            session.define("p", query).await.unwrap();
            assert_eq!(of_frame, samples(&session).await, "{query}");
        }
    }

    #[tokio::test]
    async fn frames_over_whole_tables_have_the_rows_of_their_sql() {
        let session = session().await;
        let clicks = || async { session.data_frame("clicks").await.unwrap() };
        let sites = session.data_frame("sites").await.unwrap();
        let by_site = clicks()
            .await
            .aggregate(vec![col("site")], vec![sum(col("price")).alias("spent"), count(col("id")).alias("n")])
            .unwrap();
        let numbered =
            row_number().partition_by(vec![col("site")]).order_by(vec![col("price").sort(true, false)]).build();
        let above = clicks().await.select(vec![col("id"), (col("price") * lit(2.0)).alias("twice")]).unwrap();
        for (frame, query) in [
            (by_site.clone(), "SELECT site, sum(price) AS spent, count(id) AS n FROM clicks GROUP BY site"),
            (
                by_site.filter(col("n").gt(lit(1))).unwrap().select(vec![col("spent")]).unwrap(),
                "SELECT sum(price) AS spent FROM clicks GROUP BY site HAVING count(id) > 1",
            ),
            (
                clicks().await.sort(vec![col("price").sort(false, false)]).unwrap().limit(0, Some(3)).unwrap(),
                "SELECT * FROM clicks ORDER BY price DESC LIMIT 3",
            ),
            (clicks().await.select(vec![col("site")]).unwrap().distinct().unwrap(), "SELECT DISTINCT site FROM clicks"),
            (
                clicks()
                    .await
                    .join(sites, JoinType::Left, &["site"], &["name"], None)
                    .unwrap()
                    .select(vec![col("id"), col("rank")])
                    .unwrap(),
                "SELECT id, rank FROM clicks LEFT JOIN sites ON site = name",
            ),
            (
                clicks()
                    .await
                    .select(vec![col("id")])
                    .unwrap()
                    .union(clicks().await.select(vec![col("id")]).unwrap())
                    .unwrap(),
                "SELECT id FROM clicks UNION ALL SELECT id FROM clicks",
            ),
            (
                clicks()
                    .await
                    .window(vec![numbered.unwrap().alias("n")])
                    .unwrap()
                    .select(vec![col("id"), col("n")])
                    .unwrap(),
                "SELECT id, row_number() OVER (PARTITION BY site ORDER BY price NULLS LAST) AS n FROM clicks",
            ),
            (
                above.filter(col("twice").gt(lit(6.0))).unwrap(),
                "SELECT * FROM (SELECT id, price * 2 AS twice FROM clicks) WHERE twice > 6",
            ),
        ] {
            session.define_frame("p", &frame).await.unwrap();
            let (_, of_frame) = samples(&session).await;
            session.define("p", query).await.unwrap();
            assert_eq!(of_frame, samples(&session).await.1, "{query}");
        }
    }

    #[tokio::test]
    async fn frames_that_cannot_be_pipelines_are_refused() {
        let session = session().await;
        let error = session.data_frame("click").await.unwrap_err();
        assert_eq!(error.to_string(), "there is no table \"click\"\nhint: did you mean \"clicks\"?");
        let error = session.call("clampp", vec![col("price")]).unwrap_err();
        assert!(error.to_string().contains("did you mean \"clamp\"?"), "{error}");
        let error = session.call("resize", vec![col("image")]).unwrap_err();
        assert!(error.to_string().contains("resize: \"height\" is missing"), "{error}");
        let other = SessionContext::new();
        other
            .register_batch(
                "clicks",
                RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap(),
            )
            .unwrap();
        let error = session.define_frame("p", &other.table("clicks").await.unwrap()).await.unwrap_err();
        assert!(error.message().contains("which is no table of this session"), "{error}");
        assert!(session.pipeline("p").is_err());
        let mut other = session.over_whole_tables().unwrap().table("clicks").await.unwrap();
        session.catalog.remove_table("clicks").unwrap();
        let error = session.define_frame("p", &other).await.unwrap_err();
        assert!(error.message().contains("which is no table of this session"), "{error}");
        let other_session = super::tests::session().await;
        other = other.limit(0, Some(2)).unwrap();
        let error = other_session.define_frame("p", &other.filter(col("id").gt(lit(1))).unwrap()).await.unwrap_err();
        assert!(error.message().starts_with("the DataFrame cannot be written as SQL: "), "{error}");
        let clicks = other_session.data_frame("clicks").await.unwrap();
        assert_eq!(clicks.clone().count().await.unwrap(), 5);
        // Nulls are equal here, and not in SQL.
        let ids = || clicks.clone().select(vec![col("id")]).unwrap();
        let error = other_session.define_frame("p", &ids().intersect(ids()).unwrap()).await.unwrap_err();
        assert!(error.message().starts_with("the DataFrame cannot be written as SQL: "), "{error}");
    }

    #[cfg(feature = "substrait")]
    #[tokio::test]
    async fn a_plan_of_substrait_is_the_same_pipeline_as_its_sql() {
        use datafusion_substrait::serializer::serialize_bytes;

        let session = session().await;
        let context = session.over_whole_tables().unwrap();
        for query in [
            "SELECT id, price * 2.0 AS twice FROM clicks WHERE price > 1.0",
            "SELECT clamp(price, 1.0, 10.0) AS p FROM clicks",
            "SELECT site, count(id) AS n FROM clicks GROUP BY site",
            "SELECT id, rank FROM clicks LEFT JOIN sites ON site = name",
        ] {
            let bytes = serialize_bytes(query, &context).await.unwrap();
            session.define_substrait("p", &bytes).await.unwrap();
            let (_, of_plan) = samples(&session).await;
            session.define("p", query).await.unwrap();
            assert_eq!(of_plan, samples(&session).await.1, "{query}");
        }
        let error = session.define_substrait("p", b"no plan").await.unwrap_err();
        assert!(error.message().starts_with("the plan of Substrait cannot be read: "), "{error}");
        let other = SessionContext::new();
        let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        other.register_batch("others", RecordBatch::try_from_iter([("id", one)]).unwrap()).unwrap();
        let bytes = serialize_bytes("SELECT id FROM others", &other).await.unwrap();
        let error = session.define_substrait("p", &bytes).await.unwrap_err();
        assert!(error.message().contains("others"), "{error}");
    }
}
