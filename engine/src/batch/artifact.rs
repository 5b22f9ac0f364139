//! The rows of a stage as an artifact, which any process finds by the stage's fingerprint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{RecordBatch, new_null_array};
use arrow::datatypes::Schema;
use forebay_protocol::OnError;
use forebay_storage::artifact::{self, Artifact, ArtifactFile, Catalog, Lineage, Part};
use forebay_storage::writers::OutputFormat;
use forebay_storage::{Dataset, DatasetSpec, PathColumns, Stores, TableFormat, formats};
use serde_json::{Value, json};

use super::left_out::BadRows;
use super::miss::sources;
use super::progress::StageProgress;
use super::query::of_schema;
use super::stage::{FORMAT, TableStage, output_format};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::feed::CostMeter;
use crate::job::{Claimed, OpenFile, claim};

/// About the bytes of a file.
const FILE_BYTES: u64 = 64 << 20;
/// A file ends after a multiple of so many rows. Its size is known only there, so that it does not depend on batches.
const ROWS_AT_ONCE: usize = 1024;

const NO_ROWS: Part = Part {
    files: Vec::new(),
    rows_in: 0,
    bad_rows: 0,
    bad_reasons: BTreeMap::new(),
    costs: Value::Null,
    facts: Value::Null,
};

/// The name of the seconds that a stage took, among an artifact's costs.
const SECONDS: &str = "seconds";

/// Where artifacts are found and kept, and who computes.
pub(crate) struct Keeper<'a> {
    pub(crate) stores: &'a Stores,
    pub(crate) root: &'a str,
    pub(crate) executor: &'a Executor,
}

impl Keeper<'_> {
    /// The artifact of a stage, if there is one.
    pub(crate) async fn find(&self, stage: &TableStage) -> Result<Option<Artifact>> {
        Ok(Catalog::new(self.stores, self.root)?.find(&stage.fingerprint).await?)
    }

    /// The artifact of a stage. With `may_retire`, one that lacks a file is retired, and is none.
    pub(crate) async fn find_whole(&self, stage: &TableStage, may_retire: bool) -> Result<Option<Artifact>> {
        let Some(artifact) = self.find(stage).await? else { return Ok(None) };
        if !may_retire {
            return Ok(Some(artifact));
        }
        // A root that cannot be listed may still be read.
        match artifact.missing_file().await {
            Ok(None) => return Ok(Some(artifact)),
            Ok(Some(file)) => tracing::warn!(url = artifact.url(), file, "a file of a stage's rows is lost"),
            Err(error) => {
                tracing::warn!(url = artifact.url(), %error, "the files of a stage's rows cannot be listed");
                return Ok(Some(artifact));
            }
        }
        Ok(if artifact.retire().await? { None } else { self.find(stage).await? })
    }

    /// Runs a stage and keeps its rows. If another process does so, waits until that has finished, or is silent for 30
    /// seconds.
    ///
    /// # Errors
    /// Errors of reading, computing and writing.
    pub(crate) async fn make(&self, stage: &TableStage, progress: &StageProgress) -> Result<Artifact> {
        let catalog = Catalog::new(self.stores, self.root)?;
        let (id, url) = (stage.fingerprint.as_str(), catalog.kept(&stage.fingerprint));
        let state = artifact::Job::open(self.stores, &url, id).await;
        let state = state.map_err(Error::from).map_err(|error| match error.kind() {
            ErrorKind::Data => error.with_hint(format!("remove the folder \"{url}\": the stage then runs again")),
            _ => error,
        })?;
        let artifact = match claim(self.stores, &state, id, |waits| progress.set_waits(waits)).await? {
            Claimed::Found(artifact) => {
                catalog.record(id, &url).await?;
                *artifact
            }
            Claimed::Held(job, held) => {
                let begun = Instant::now();
                let work = async {
                    let parts = self.write(stage, job, progress).await?;
                    let manifest = job.manifest(&parts, lineage(stage, begun))?;
                    catalog.record(id, &url).await?;
                    Ok(job.commit(manifest, Vec::new()).await?)
                };
                held.while_alive(work).await?
            }
        };
        Ok(artifact)
    }

    /// Writes all rows to files. There is one at least.
    async fn write(
        &self,
        stage: &TableStage,
        job: &artifact::Job,
        progress: &StageProgress,
    ) -> Result<BTreeMap<u64, Part>> {
        let mut output = Output {
            keeper: self,
            stage,
            job,
            format: output_format()?,
            meter: CostMeter::new(&[]),
            open: None,
            parts: BTreeMap::new(),
        };
        match self.write_rows(stage, &mut output, progress).await {
            Ok(()) => Ok(output.parts),
            Err(error) => {
                output.abort().await;
                Err(error)
            }
        }
    }

    async fn write_rows(&self, stage: &TableStage, output: &mut Output<'_>, progress: &StageProgress) -> Result<()> {
        let mut rows = stage.query.rows()?;
        while let Some(batch) = rows.next().await {
            let mut batch = of_schema(&batch?, &stage.schema)?;
            if stage.is_value && batch.num_rows() > 0 {
                batch = self.with_kept_ids(stage, batch).await?;
            }
            progress.add_rows(batch.num_rows() as u64);
            output.write(batch).await?;
        }
        let bad = stage.left_out.as_ref().map(|left_out| (left_out.on_error, left_out.so_far()));
        let bad = bad.filter(|(_, rows)| rows.count() > 0);
        if let Some((OnError::Quarantine, rows)) = &bad {
            self.quarantine(stage, rows).await?;
        }
        output.finish(bad.map(|(_, rows)| rows)).await
    }

    /// Records the rows that a stage has left out.
    async fn quarantine(&self, stage: &TableStage, bad: &BadRows) -> Result<()> {
        let url = format!("{}/quarantine/{}/stage.parquet", self.root.trim_end_matches('/'), stage.fingerprint);
        let written = forebay_storage::write_parquet(self.stores, &url, &bad.records(&stage.fingerprint)?).await;
        written.map_err(Error::from).map_err(|error| {
            let message = format!("cannot write quarantined rows: {}", error.message());
            error.with_message(message)
        })
    }

    /// The table of a stage's artifact.
    ///
    /// # Errors
    /// `Data` for a damaged artifact, `Internal` for one with other columns.
    pub(crate) async fn table(&self, stage: &TableStage, artifact: &Artifact) -> Result<Dataset> {
        let table = opened(self.stores, artifact.url()).await?;
        let columns = |schema: &Schema| -> Vec<_> {
            schema.fields().iter().map(|field| (field.name().clone(), field.data_type().clone())).collect()
        };
        let (found, expected) = (columns(table.schema()), columns(&stage.schema));
        match found == expected {
            true => Ok(table),
            false => Err(Error::internal(format!(
                "\"{}\" has the columns {found:?}, and {} has {expected:?}",
                artifact.url(),
                stage.name
            ))),
        }
    }
}

/// The table of the artifact of some stage.
pub(super) async fn opened(stores: &Stores, url: &str) -> Result<Dataset> {
    let spec = DatasetSpec {
        location: url.to_owned(),
        format: TableFormat::new(formats::find(FORMAT)?, url, &[])?,
        schema: None,
        path_columns: PathColumns::Ignored,
        path_column: None,
    };
    Ok(Dataset::open(stores, &spec).await?)
}

/// The only row of a stage's table of one column, with a null if the table has none.
///
/// # Errors
/// `Data` if there are several rows.
pub(crate) async fn only_row(table: &Dataset) -> Result<RecordBatch> {
    let rows = table.snapshot().rows();
    if rows > 1 {
        return Err(Error::new(ErrorKind::Data, "a subquery that stands for a value has more than one row")
            .with_hint("select one row: with an aggregate, or with ORDER BY … LIMIT 1"));
    }
    match table.row_ranges(u64::MAX).first() {
        Some(range) if rows == 1 => Ok(table.read(range, &[0]).await?.batch),
        _ => {
            let column = new_null_array(table.schema().field(0).data_type(), 1);
            Ok(RecordBatch::try_new(Arc::clone(table.schema()), vec![column]).expect("its column may be null"))
        }
    }
}

/// The files of a stage as they are written.
struct Output<'a> {
    keeper: &'a Keeper<'a>,
    stage: &'a TableStage,
    job: &'a artifact::Job,
    format: OutputFormat,
    meter: CostMeter,
    open: Option<Open>,
    parts: BTreeMap<u64, Part>,
}

struct Open {
    file: OpenFile,
    rows: usize,
    bytes: u64,
}

impl Output<'_> {
    fn number(&self) -> u64 {
        self.parts.len() as u64
    }

    fn open(&mut self) -> Result<&mut Open> {
        if self.open.is_none() {
            let number = self.number();
            let writer = self.format.writer(&self.stage.schema, &format!("{number:06}-"))?;
            let file = self.job.create(&format!("part-{number:06}"), self.format.extension())?;
            self.open = Some(Open { file: OpenFile::new(writer, file), rows: 0, bytes: 0 });
        }
        Ok(self.open.as_mut().expect("it is open now"))
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let (mut first, executor, meter) = (0, self.keeper.executor, self.meter.clone());
        while first < batch.num_rows() {
            let open = self.open()?;
            let rows = (ROWS_AT_ONCE - open.rows % ROWS_AT_ONCE).min(batch.num_rows() - first);
            open.bytes += open.file.write(executor, &meter, vec![batch.slice(first, rows)], false).await?;
            (open.rows, first) = (open.rows + rows, first + rows);
            if open.rows.is_multiple_of(ROWS_AT_ONCE) && open.bytes >= FILE_BYTES {
                self.close().await?;
            }
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        let number = self.number();
        self.open()?;
        let Some(Open { mut file, rows, .. }) = self.open.take() else { return Ok(()) };
        file.write(self.keeper.executor, &self.meter, Vec::new(), true).await?;
        let files = vec![file.complete(self.job, number).await?];
        self.record(Part { files, rows_in: rows as u64, ..NO_ROWS }).await
    }

    async fn record(&mut self, part: Part) -> Result<()> {
        let number = self.number();
        self.parts.insert(number, self.job.record(number, part).await?);
        Ok(())
    }

    /// Ends the last file, and records what was left out of all of them.
    async fn finish(&mut self, bad: Option<BadRows>) -> Result<()> {
        if self.open.is_some() || self.parts.is_empty() {
            self.close().await?;
        }
        if let Some(bad) = bad {
            let (bad_rows, bad_reasons) = (bad.count(), bad.reasons());
            self.record(Part { rows_in: bad_rows, bad_rows, bad_reasons, ..NO_ROWS }).await?;
        }
        Ok(())
    }

    async fn abort(self) {
        if let Some(open) = self.open {
            open.file.abort().await;
        }
    }
}

fn lineage(stage: &TableStage, begun: Instant) -> Lineage {
    Lineage {
        fingerprint: stage.fingerprint.clone(),
        schema: Arc::clone(&stage.schema),
        folders: Arc::new(Schema::empty()),
        sources: sources(stage),
        costs: json!({ SECONDS: begun.elapsed().as_secs_f64() }),
    }
}

/// The rows and bytes of an artifact's files.
pub(crate) fn extent(artifact: &Artifact) -> (u64, u64) {
    let manifest = artifact.manifest();
    (manifest.rows_out, manifest.files.iter().map(|ArtifactFile { bytes, .. }| bytes).sum())
}

/// The seconds that a stage took.
pub(crate) fn seconds(artifact: &Artifact) -> Option<f64> {
    artifact.manifest().costs.get(SECONDS)?.as_f64()
}
