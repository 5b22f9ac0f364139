//! Runs the stages of pipelines that need whole tables.

use arrow::array::RecordBatch;
use forebay_storage::Dataset;
use forebay_storage::artifact::Artifact;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Session;
use crate::batch::{Keeper, RunningStage, TableStage, differences, extent, only_row, seconds, without_tables};
use crate::error::{Error, ErrorKind, Result};
use crate::explain::{KeptStage, StageState};
use crate::pipeline::{Pipeline, StageResults};

impl Session {
    /// Runs the stages of pipeline `name` whose rows are not kept under the root, so that the pipeline can be opened. A
    /// pipeline that needs no whole table has none.
    ///
    /// If another process runs the same stage, waits until that has finished, or is silent for 30 seconds.
    ///
    /// # Errors
    /// `NotFound` for an unknown pipeline, errors of running a stage, and `Conflict` for a session that must not run
    /// stages.
    pub async fn prepare(&self, name: &str) -> Result<()> {
        let pipeline = self.pipeline(name)?;
        if let Some(ready) = self.ready(&pipeline).await? {
            self.catalog.set_ready(&pipeline, ready);
        }
        Ok(())
    }

    /// Whether pipeline `name` has stages.
    ///
    /// # Errors
    /// `NotFound` for an unknown pipeline.
    pub fn has_stages(&self, name: &str) -> Result<bool> {
        Ok(!self.pipeline(name)?.stages().is_empty())
    }

    /// The stage that this session runs at the moment, if there is one.
    pub fn running_stage(&self) -> Option<RunningStage> {
        self.stage_progress.now()
    }

    /// The stages of pipeline `name`. Runs none of them.
    ///
    /// # Errors
    /// `NotFound` for an unknown pipeline, and errors of the store.
    pub async fn stages(&self, name: &str) -> Result<Vec<StageState>> {
        let pipeline = self.pipeline(name)?;
        let mut states = Vec::new();
        for stage in self.table_stages(&pipeline)? {
            let kept = self.keeper().find(&stage).await?.map(|artifact| {
                let ((rows, bytes), bad_rows) = (extent(&artifact), artifact.manifest().bad_rows);
                KeptStage { url: artifact.url().to_owned(), rows, bad_rows, bytes, seconds: seconds(&artifact) }
            });
            let differences = match kept {
                Some(_) => None,
                None => differences(&self.stores, &self.root, &stage).await?,
            };
            let reads = stage.tables.iter().map(|(name, dataset)| {
                let snapshot = dataset.snapshot();
                (name.clone(), snapshot.files().len(), snapshot.rows())
            });
            let plan = pipeline.stages().iter().find(|plan| plan.name == stage.name);
            let optimized = plan.and_then(|stage| self.catalog.state().optimize(&stage.plan).ok());
            states.push(StageState {
                reads: reads.collect(),
                plan: optimized.map_or(stage.plan, |plan| plan.display_indent().to_string()),
                differences: differences.unwrap_or_default(),
                name: stage.name,
                fingerprint: stage.fingerprint,
                kept,
            });
        }
        Ok(states)
    }

    /// The pipeline with the results of its stages, unless it has them. Runs the stages whose rows are not kept.
    /// Boxed like the future of a statement.
    pub(super) fn ready<'a>(&'a self, pipeline: &'a Pipeline) -> BoxFuture<'a, Result<Option<Pipeline>>> {
        self.with_results(pipeline).boxed()
    }

    async fn with_results(&self, pipeline: &Pipeline) -> Result<Option<Pipeline>> {
        if pipeline.stages().is_empty() {
            return Ok(None);
        }
        let mut artifacts = Vec::new();
        for stage in self.table_stages(pipeline)? {
            let artifact = match self.keeper().find_whole(&stage, self.runs_stages).await? {
                Some(artifact) => artifact,
                None => self.run_stage(pipeline, &stage).await?,
            };
            let result = match self.result(&stage, &artifact).await {
                Err(error) if self.runs_stages && error.message().contains(" is damaged") => {
                    tracing::warn!(url = artifact.url(), %error, "the rows of a stage are damaged: it runs again");
                    artifact.retire().await?;
                    let artifact = self.run_stage(pipeline, &stage).await?;
                    self.result(&stage, &artifact).await.map(|result| (artifact, result))
                }
                result => result.map(|result| (artifact, result)),
            };
            let (artifact, result) = result.map_err(|error| of_stage(pipeline, &stage, &error))?;
            artifacts.push((stage, artifact, result));
        }
        let found =
            artifacts.iter().map(|(_, artifact, _)| (artifact.url().to_owned(), artifact.generation())).collect();
        if pipeline.artifacts() == Some(&found) {
            return Ok(None);
        }
        for (stage, artifact, _) in &artifacts {
            let bad_rows = artifact.manifest().bad_rows;
            if bad_rows > 0 {
                tracing::warn!(pipeline = pipeline.name(), stage = stage.name, bad_rows, "a stage leaves out bad rows");
            }
        }
        let bad_rows = artifacts.iter().map(|(_, artifact, _)| artifact.manifest().bad_rows).sum();
        let mut results = StageResults { artifacts: found, bad_rows, ..StageResults::default() };
        for (stage, _, (table, row)) in artifacts {
            let name = stage.name.clone();
            match row {
                Some(row) => {
                    let added = results.add_value(name, row, Some(table));
                    added.map_err(|error| of_stage(pipeline, &stage, &error))?;
                }
                None => {
                    results.tables.insert(name, table);
                }
            }
        }
        pipeline.with_results(results, &self.catalog.state()).map(Some)
    }

    /// The table of a stage's artifact, and its row if that is a value.
    async fn result(&self, stage: &TableStage, artifact: &Artifact) -> Result<(Dataset, Option<RecordBatch>)> {
        let table = self.keeper().table(stage, artifact).await?;
        let row = if stage.is_value { Some(only_row(&table).await?) } else { None };
        Ok((table, row))
    }

    async fn run_stage(&self, pipeline: &Pipeline, stage: &TableStage) -> Result<Artifact> {
        let (name, stage_name) = (pipeline.name(), &stage.name);
        if !self.runs_stages {
            let tables: Vec<&str> = stage.tables.keys().map(String::as_str).collect();
            let tables = tables.join(", ");
            return Err(Error::new(
                ErrorKind::Conflict,
                format!("\"{name}\" needs the rows of {stage_name} over {tables}, and they are not kept"),
            )
            .with_hint("run it where stages may run: without the option \"no_precompute\""));
        }
        let _running = self.stage_progress.begin(name, stage_name).await;
        tracing::info!(pipeline = name, stage = stage_name, fingerprint = stage.fingerprint, "running a stage");
        let artifact = self.keeper().make(stage, &self.stage_progress).await;
        let artifact = artifact.map_err(|error| of_stage(pipeline, stage, &error))?;
        let (rows, bytes) = extent(&artifact);
        tracing::info!(pipeline = name, stage = stage_name, rows, bytes, "a stage is kept");
        Ok(artifact)
    }

    pub(super) fn table_stages(&self, pipeline: &Pipeline) -> Result<Vec<TableStage>> {
        if pipeline.stages().is_empty() {
            return Ok(Vec::new());
        }
        let mut planner = without_tables(self.catalog.state());
        // It compares floats of groups as they arrive.
        planner.config_mut().options_mut().optimizer.enable_topk_aggregation = false;
        let on_error = pipeline.feed_options().on_error.unwrap_or_default();
        let stages = pipeline.stages().iter().map(|stage| {
            TableStage::new(stage, pipeline.tables(), on_error, planner.clone(), self.batch.clone(), &self.executor)
        });
        stages.collect()
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper { stores: &self.stores, root: &self.root, executor: &self.executor }
    }
}

/// The error of a stage, with its name.
fn of_stage(pipeline: &Pipeline, stage: &TableStage, error: &Error) -> Error {
    error.clone().with_message(format!("{} of pipeline \"{}\": {}", stage.name, pipeline.name(), error.message()))
}
