//! The state of an open feed, and its bad rows.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_protocol::{CacheMode, FeedSettings};
use forebay_storage::artifact::Artifact;
use forebay_storage::{Dataset, PieceCache, Stores};
use tokio::sync::OnceCell;

use super::costs::CostMeter;
use super::demand::Demand;
use super::memo::Memo;
use super::plan::FeedPlan;
use super::quarantine::{self, QuarantinedRow};
use super::reads::Reads;
use crate::compile::{BadRow, Lengths, Lookup, Stage};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::pipeline::StageResults;
use crate::sealed::Sealed;

/// The state that all parts of an open feed share.
pub(crate) struct FeedCore {
    pub(crate) id: Arc<str>,
    pub(crate) settings: FeedSettings,
    pub(crate) dataset: Dataset,
    pub(crate) stage: Sealed<Stage>,
    pub(crate) cache: CacheMode,
    /// Where pieces of remote files are kept, if they are.
    pub(crate) pieces: Option<Arc<PieceCache>>,
    /// The results of the query's stages: calls name lists among them.
    pub(super) _results: Option<StageResults>,
    /// Whether stages whose rows are not kept may run.
    pub(super) runs_stages: bool,
    /// What the feed may keep of its rows for later epochs. It keeps none of them, or one.
    pub(super) memos: Vec<Arc<Memo>>,
    /// The index of the one that it keeps, once that is chosen.
    pub(super) kept: OnceLock<usize>,
    /// How many row ranges it reads at a time.
    pub(super) reads: Reads,
    /// How fast its readers in this process take samples.
    pub(super) demand: Demand,
    /// The plan of rows' lengths, if the feed groups rows by length.
    pub(crate) lengths: Option<Lengths>,
    /// The lookup table of each layer that joins, read when a window first needs it.
    pub(super) lookups: OnceCell<Vec<Option<Lookup>>>,
    pub(super) lookup_bytes_max: u64,
    /// The most bytes of results that pieces of a reader may have beyond those of one per thread.
    pub(super) waiting_bytes_max: u64,
    pub(crate) plan: Arc<FeedPlan>,
    /// Counts what its windows cost.
    pub(crate) meter: CostMeter,
    /// Rows of the dataset from this row on are not read.
    pub(crate) limit: u64,
    pub(crate) executor: Arc<Executor>,
    pub(crate) stores: Stores,
    pub(crate) root: String,
    pub(crate) quarantine_url: String,
}

impl FeedCore {
    /// The error for a bad row: file, row and reason.
    pub(crate) fn bad_row_error(&self, bad: &BadRow) -> Error {
        let (file, row) = self.place(bad.origin);
        Error::new(ErrorKind::Data, format!("\"{file}\", row {row}: {}", bad.reason))
            .with_hint("fix the file or the query, or leave such rows out: on_error 'skip' or 'quarantine'")
    }

    /// What the feed keeps of its rows now.
    pub(crate) fn memo(&self) -> Option<&Arc<Memo>> {
        self.memos.get(*self.kept.get()?)
    }

    /// Counts a read of a row range, and learns from it how many should be under way.
    pub(super) fn read_in(&self, took: Duration) {
        let computing = self.meter.count_read(took, self.reads.now());
        self.reads.learn(took, computing);
    }

    /// The file of a sample and its row in the file, from 0.
    pub(super) fn place(&self, sample_id: u64) -> (&str, u64) {
        let (file, row) = self.dataset.snapshot().locate(sample_id);
        (&self.dataset.snapshot().files()[file].path, row)
    }

    /// Records bad rows of an epoch under a name: see [`quarantine`].
    pub(crate) async fn quarantine(&self, bad: &[BadRow], epoch: u64, name: &str) -> Result<()> {
        self.quarantine_in(&self.quarantine_url, bad, epoch, name).await
    }

    /// Like [`quarantine`](Self::quarantine), in another folder.
    pub(crate) async fn quarantine_in(&self, folder: &str, bad: &[BadRow], epoch: u64, name: &str) -> Result<()> {
        let rows: Vec<_> = bad
            .iter()
            .map(|bad| {
                let (file, row) = self.place(bad.origin);
                QuarantinedRow { file, row, reason: &bad.reason }
            })
            .collect();
        let url = quarantine::url(folder, epoch, name);
        let records = quarantine::records(&self.id, epoch, &rows)?;
        forebay_storage::write_parquet(&self.stores, &url, &records).await.map_err(|error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("cannot write quarantined rows: {}", error.message()))
                .with_hint("choose a writable folder or URL with the option \"root\", or use on_error => 'skip'")
        })?;
        tracing::warn!(feed = %self.id, epoch, name, rows = rows.len(), "rows quarantined");
        Ok(())
    }

    /// Retires the artifact of a stage in which a read found damage, so that the next opening computes its rows again.
    /// Returns the error with a hint that says so.
    pub(super) async fn after_failed_read(&self, error: Error) -> Error {
        let Some((url, file)) = self.damaged_file(&error).filter(|_| self.runs_stages) else { return error };
        let retired = async {
            let artifact = Artifact::open(&self.stores, url).await?;
            // Another process may have written the artifact anew, with files of other names.
            let is_same = artifact.manifest().files.iter().any(|of_artifact| of_artifact.name == file);
            Ok::<_, Error>(!is_same || artifact.retire().await?)
        };
        match retired.await {
            Ok(true) => error.with_hint("open the feed again: its rows are then computed again"),
            Ok(false) => error,
            Err(why) => {
                tracing::warn!(url, %why, "a damaged artifact cannot be retired");
                error
            }
        }
    }

    /// The folder of a stage's artifact and the file in it that is damaged or gone, if that is the error.
    fn damaged_file<'a>(&'a self, error: &'a Error) -> Option<(&'a str, &'a str)> {
        let kept = format!("{}/artifacts/", self.root.trim_end_matches('/'));
        let lookups = self.stage.lookups().map(|lookup| &lookup.dataset);
        let urls = std::iter::once(&self.dataset).chain(lookups).map(|dataset| dataset.spec().location.as_str());
        let is_gone = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound);
        urls.filter(|url| url.starts_with(&kept)).find_map(|url| {
            let of_artifact = error.message().strip_prefix('"')?.strip_prefix(url)?.strip_prefix('/')?;
            let (file, what) = of_artifact.split_once('"')?;
            (is_gone || what.starts_with(" is damaged")).then_some((url, file))
        })
    }

    /// The epoch whose random values are drawn in `epoch`.
    pub(crate) fn drawing_epoch(&self, epoch: u64) -> u64 {
        if self.settings.draws_once { 0 } else { epoch }
    }
}
