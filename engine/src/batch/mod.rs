//! Queries over whole tables: plain DataFusion, on all threads, within a memory limit, spilling to the local disk.
//!
//! A feed computes each row separately, window by window. What needs all rows, such as an aggregate, a join of two
//! large tables or an order, is computed here, once. [`table`] gives DataFusion the tables' pinned files, and [`scan`]
//! reads them by row ranges, as feeds do: every format, with what bounds exclude left out.
//!
//! A [`query`] gives its rows to its reader, and keeps none. Its vocabularies count [`coded`] texts. The rows of a
//! pipeline's [`stage`] are kept as an [`artifact`], which is a function of query and data: [`places`] gives its rows
//! one order, and [`order_free`] sums floats exactly. Only vocabularies that [keep ids](kept_ids) depend on an earlier
//! artifact too. Errors of computing name [`suspects`].

mod artifact;
mod coded;
mod exact_sum;
mod kept_ids;
mod left_out;
mod miss;
mod order_free;
mod places;
mod progress;
mod query;
mod scan;
mod stage;
mod suspects;
mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::Spans;
use datafusion::error::{DataFusionError, Result as PlanResult};
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, TrackConsumersPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};
use tempfile::{Builder, TempDir};

pub(crate) use self::artifact::{Keeper, extent, only_row, seconds};
pub(crate) use self::miss::differences;
pub use self::progress::RunningStage;
pub(crate) use self::progress::StageProgress;
pub use self::query::{Query, QueryRows};
use self::scan::CODED_RANGE_BYTES;
pub(crate) use self::stage::TableStage;
pub(crate) use self::table::BatchTable;
use crate::compile;
use crate::error::{Error, Result};

/// The consumers of memory that an error names.
const CONSUMERS_NAMED: NonZeroUsize = NonZeroUsize::new(3).expect("not zero");
/// The most bytes that each sort reserves for merging what it spilled.
const SORT_RESERVATION_BYTES: usize = 10 << 20;
/// The part of its memory that a sort may reserve so.
const SORT_RESERVATION_SHARE: usize = 16;

/// The beginning of the name of a folder for what a query spills.
const SPILL: &str = "forebay-spill-";
/// The folder in it that DataFusion spills to, and makes if it is missing. It does not make the one around it, which
/// is gone when a query was dropped whose task still runs.
const SPILLED_ROWS: &str = "rows";
/// The memory of a partition below which there are fewer partitions, and batches of fewer rows.
const PARTITION_BYTES: u64 = 32 << 20;
const FEW_ROWS: usize = 1024;
/// The row ranges with dictionaries for which each partition must have memory. It reads a few ahead, and texts that
/// differ take more memory as dictionaries.
const CODED_RANGES: u64 = 8;

/// Memory and disk of queries over whole tables.
#[derive(Clone, Debug)]
pub(crate) struct BatchLimits {
    pub(crate) memory_bytes: u64,
    /// Where rows go that do not fit; the system's folder for temporary files by default.
    pub(crate) spill_folder: Option<PathBuf>,
}

impl BatchLimits {
    /// The number of parallel parts that have enough memory: each of so many threads has one at most.
    fn partitions(&self, threads: usize) -> usize {
        let fit = self.memory_bytes / PARTITION_BYTES;
        threads.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
    }

    /// Whether each of so many parallel parts has memory for dictionaries that are read ahead.
    fn fits_dictionaries(&self, partitions: usize) -> bool {
        self.memory_bytes / (partitions as u64) >= CODED_RANGES * CODED_RANGE_BYTES
    }

    /// The state of DataFusion that runs a plan in so many parallel parts and in batches of so many rows, with the
    /// functions and rules of `planner`. Joins by hash are the fastest, and cannot spill.
    fn state(
        &self,
        planner: SessionState,
        partitions: usize,
        batch_rows: usize,
        spills_joins: bool,
        spill_folder: &Path,
    ) -> Result<SessionState, DataFusionError> {
        let memory_bytes = usize::try_from(self.memory_bytes).unwrap_or(usize::MAX);
        let disk = DiskManagerBuilder::default()
            .with_max_temp_directory_size(u64::MAX)
            .with_mode(DiskManagerMode::Directories(vec![spill_folder.join(SPILLED_ROWS)]));
        let pool = TrackConsumersPool::new(FairSpillPool::new(memory_bytes), CONSUMERS_NAMED);
        let runtime =
            RuntimeEnvBuilder::new().with_disk_manager_builder(disk).with_memory_pool(Arc::new(pool)).build_arc()?;
        let has_little = self.memory_bytes / (partitions as u64) < PARTITION_BYTES;
        let batch_rows = if has_little { batch_rows.min(FEW_ROWS) } else { batch_rows };
        let config = planner.config().clone().with_target_partitions(partitions).with_batch_size(batch_rows);
        let mut config = config.set_bool("datafusion.optimizer.prefer_hash_join", !spills_joins);
        let execution = &mut config.options_mut().execution;
        // DataFusion's two plans may differ in whether a value may be null, as that of CASE WHEN a > b THEN b.
        execution.skip_physical_aggregate_schema_check = true;
        execution.sort_spill_reservation_bytes =
            SORT_RESERVATION_BYTES.min(memory_bytes / partitions / SORT_RESERVATION_SHARE);
        Ok(SessionStateBuilder::new_from_existing(planner).with_config(config).with_runtime_env(runtime).build())
    }

    /// A folder for what one run of a query spills. Dropping it removes it.
    fn spill(&self) -> Result<TempDir> {
        let folder = self.spill_folder.clone().unwrap_or_else(std::env::temp_dir);
        let made = std::fs::create_dir_all(&folder).and_then(|()| Builder::new().prefix(SPILL).tempdir_in(&folder));
        made.map_err(|error| {
            let folder = folder.display();
            Error::invalid(format!("\"{folder}\" cannot hold rows that do not fit in memory: {error}"))
                .with_hint("choose a folder of the local disk with the option \"spill_folder\"")
        })
    }
}

/// Refuses a plan over whole tables among whose fits a vocabulary keeps ids: its rows would depend on earlier runs.
pub(crate) fn check_fits(plan: &LogicalPlan) -> Result<()> {
    for fit in compile::fits(plan)? {
        if let Some(name) = compile::kept_name(fit.schema().field(0).data_type()) {
            let message = format!("the vocabulary '{name}' is fitted within a query over whole tables");
            return Err(Error::invalid(message)
                .with_hint("leave out keep_ids, or call categorify in the part of a pipeline that the feed runs"));
        }
    }
    Ok(())
}

/// A plan whose fits have the same results whenever they run.
pub(crate) fn determined_fits(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let fits = compile::fits(&plan)?;
    compile::with_fits(plan, |fit| {
        if !fits.contains(fit) {
            return Ok(None);
        }
        let subquery = places::in_order(order_free::order_free(fit.as_ref().clone())?)?;
        let (subquery, outer_ref_columns, spans) = (Arc::new(subquery), Vec::new(), Spans::new());
        Ok(Some(Expr::ScalarSubquery(Subquery { subquery, outer_ref_columns, spans })))
    })
}

/// `planner` without its tables.
pub(crate) fn without_tables(planner: SessionState) -> SessionState {
    let config = planner.config().clone();
    let builder = SessionStateBuilder::new_from_existing(planner).with_config(config);
    builder.with_catalog_list(Arc::new(MemoryCatalogProviderList::new())).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::planner;

    #[test]
    fn the_folder_of_a_dropped_query_is_not_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let limits = BatchLimits { memory_bytes: 1 << 30, spill_folder: Some(folder.path().to_owned()) };
        let spill = limits.spill().unwrap();
        let path = spill.path().to_owned();
        let state = || limits.state(planner().state(), 1, 8, false, &path);
        assert!(state().is_ok());
        drop(spill);
        assert!(state().is_err() && !path.exists());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
