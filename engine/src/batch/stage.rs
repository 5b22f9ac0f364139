//! A stage of a pipeline over its tables: the query to run, and the fingerprint of its rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::plan_datafusion_err;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result as PlanResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use forebay_protocol::OnError;
use forebay_storage::Dataset;
use forebay_storage::writers::OutputFormat;

use super::left_out::LeftOut;
use super::order_free::order_free;
use super::places::in_order;
use super::{BatchLimits, BatchTable, Query, check_fits};
use crate::compile::{self, StagePlan};
use crate::error::{Error, Result};
use crate::executor::Executor;

/// Raise this when the same plan over the same files gives other rows, another order or other files.
const STAGE_VERSION: u32 = 4;

/// The format of the files that keep its rows.
pub(super) const FORMAT: &str = "parquet";

/// The same, to write with.
pub(super) fn output_format() -> Result<OutputFormat> {
    Ok(OutputFormat::new(FORMAT, &[])?)
}

/// A stage over its tables.
pub(crate) struct TableStage {
    pub(crate) name: String,
    /// The columns of its rows.
    pub(crate) schema: SchemaRef,
    pub(crate) is_value: bool,
    /// The same for stages whose rows are the same.
    pub(crate) fingerprint: String,
    pub(crate) query: Query,
    /// The plan, as it is shown.
    pub(crate) plan: String,
    /// The versions of the operators and functions that it calls.
    pub(crate) versions: BTreeMap<String, String>,
    /// Its tables, for the record of where rows come from.
    pub(crate) tables: BTreeMap<String, Dataset>,
    /// What it leaves out, if that is no error.
    pub(super) left_out: Option<LeftOut>,
}

impl TableStage {
    /// The stage of a pipeline over some of `tables`. `on_error` says what happens to rows that cannot be read.
    ///
    /// # Errors
    /// `Invalid` if it calls functions without a version, functions that depend on the order in which rows arrive, or
    /// what has no order, and if a column cannot be kept.
    pub(crate) fn new(
        stage: &StagePlan,
        tables: &BTreeMap<String, Dataset>,
        on_error: OnError,
        planner: SessionState,
        limits: BatchLimits,
        executor: &Arc<Executor>,
    ) -> Result<Self> {
        let versions = compile::function_versions(&stage.plan)?;
        if let Some((name, _)) = versions.iter().find(|(_, version)| version.is_none()) {
            let message = format!("rows of {} must not be stored, since \"{name}\" has no version", stage.name);
            return Err(Error::invalid(message).with_hint("declare the function with a version"));
        }
        output_format()?.check(&stage.schema)?;
        let missing = |name: &String| Error::internal(format!("the table \"{name}\" of {} is missing", stage.name));
        let read = stage.tables()?.into_iter().map(|name| match tables.get(&name) {
            Some(dataset) => Ok((name, dataset.clone())),
            None => Err(missing(&name)),
        });
        let tables = read.collect::<Result<BTreeMap<_, _>>>()?;
        let mut hash = blake3::Hasher::new();
        let mut add = |text: &str| {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        add(&STAGE_VERSION.to_string());
        add(&compile::fingerprint(&stage.plan)?);
        for (name, dataset) in &tables {
            add(name);
            add(dataset.snapshot().id());
        }
        for (name, version) in &versions {
            add(name);
            add(version.as_deref().unwrap_or_default());
        }
        let left_out = LeftOut::new(on_error);
        if left_out.is_some() {
            add(&format!("on_error {on_error}"));
        }
        let fingerprint = hash.finalize().to_hex()[..32].to_owned();
        let operators = compile::operator_versions(&stage.plan)?;
        let operators = operators.into_iter().map(|(name, version)| (name, version.to_string()));
        let functions = versions.into_iter().map(|(name, version)| (name, version.unwrap_or_default()));
        let plan = over_tables(stage.plan.clone(), &tables, executor.threads(), left_out.as_ref())?;
        let plan = in_order(order_free(plan)?).map_err(|error| {
            let error = Error::from(error);
            let hint = match error.message().contains("without ORDER BY") {
                true => "name the order inside the call, as in `array_agg(x ORDER BY x)`",
                false => "a stage's rows must be the same whenever it runs; a bare query may call it: `forebay sql`",
            };
            Error::invalid(error.message()).with_hint(hint)
        })?;
        check_fits(&plan)?;
        let query = Query::new(stage.name.clone(), plan, planner, limits, Arc::clone(executor));
        Ok(Self {
            name: stage.name.clone(),
            schema: Arc::clone(&stage.schema),
            is_value: stage.is_value,
            fingerprint,
            query,
            plan: stage.plan.display_indent().to_string(),
            versions: operators.chain(functions).collect(),
            tables,
            left_out,
        })
    }
}

/// `plan` over the tables themselves, in place of those that it was planned over.
fn over_tables(
    plan: LogicalPlan,
    tables: &BTreeMap<String, Dataset>,
    threads: usize,
    left_out: Option<&LeftOut>,
) -> PlanResult<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::TableScan(scan) => {
            let name = scan.table_name.table();
            let dataset = tables.get(name).ok_or_else(|| plan_datafusion_err!("the table {name} is missing"))?;
            let table = BatchTable::new(name, dataset.clone(), threads).leaving_out(left_out.cloned());
            let table = Arc::new(table);
            let scan = LogicalPlanBuilder::scan(scan.table_name, provider_as_source(table), scan.projection)?;
            Ok(Transformed::yes(scan.build()?))
        }
        // The columns of these tables may be null.
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    })
    .data()
}
