//! Runs the stages of pipelines that need whole tables.

use forebay_storage::artifact::Artifact;
use serde::Serialize;

use super::Session;
use crate::batch::{Keeper, RunningStage, TableStage, extent, without_tables};
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{Pipeline, StageResults};

/// A stage of a pipeline, and what is kept of it.
#[derive(Clone, Debug, Serialize)]
pub struct StageState {
    /// The name of its table or its value.
    pub name: String,
    /// The tables that it reads, with their files and rows.
    pub reads: Vec<(String, usize, u64)>,
    /// The hash by which its rows are found.
    pub fingerprint: String,
    /// The rows that are kept, unless it has not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<KeptStage>,
    /// The plan.
    pub plan: String,
}

/// The rows of a stage that are kept.
#[derive(Clone, Debug, Serialize)]
pub struct KeptStage {
    /// The folder of the files.
    pub url: String,
    /// The number of rows.
    pub rows: u64,
    /// The bytes of the files.
    pub bytes: u64,
}

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
                let (rows, bytes) = extent(&artifact);
                KeptStage { url: artifact.url().to_owned(), rows, bytes }
            });
            let reads = stage.tables.iter().map(|(name, dataset)| {
                let snapshot = dataset.snapshot();
                (name.clone(), snapshot.files().len(), snapshot.rows())
            });
            let plan = pipeline.stages().iter().find(|plan| plan.name == stage.name);
            states.push(StageState {
                reads: reads.collect(),
                plan: plan.map(|stage| stage.plan.display_indent().to_string()).unwrap_or_default(),
                name: stage.name,
                fingerprint: stage.fingerprint,
                kept,
            });
        }
        Ok(states)
    }

    /// The pipeline with the results of its stages, unless it has them. Runs the stages whose rows are not kept.
    pub(super) async fn ready(&self, pipeline: &Pipeline) -> Result<Option<Pipeline>> {
        if pipeline.stages().is_empty() {
            return Ok(None);
        }
        let mut artifacts = Vec::new();
        let mut has_run = false;
        for stage in self.table_stages(pipeline)? {
            let artifact = match self.keeper().find(&stage).await? {
                Some(artifact) => artifact,
                None => {
                    has_run = true;
                    self.run_stage(pipeline, &stage).await?
                }
            };
            artifacts.push((stage, artifact));
        }
        if pipeline.is_ready() && !has_run {
            return Ok(None);
        }
        let mut results = StageResults::default();
        for (stage, artifact) in artifacts {
            let name = stage.name.clone();
            match stage.is_value {
                true => results.values.insert(name, self.keeper().value(&stage, &artifact).await?).map(drop),
                false => results.tables.insert(name, self.keeper().table(&stage, &artifact).await?).map(drop),
            };
        }
        pipeline.with_results(results, &self.catalog.state()).map(Some)
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
        tracing::info!(pipeline = name, stage = stage_name, fingerprint = stage.fingerprint, "running a stage");
        self.stage_progress.begin(name, stage_name);
        let made = self.keeper().make(stage, &self.stage_progress).await;
        self.stage_progress.end();
        let artifact = made.map_err(|error| {
            let message = format!("{stage_name} of pipeline \"{name}\": {}", error.message());
            let of_stage = Error::new(error.kind(), message);
            match error.hint() {
                Some(hint) => of_stage.with_hint(hint.to_owned()),
                None => of_stage,
            }
        })?;
        let (rows, bytes) = extent(&artifact);
        tracing::info!(pipeline = name, stage = stage_name, rows, bytes, "a stage is kept");
        Ok(artifact)
    }

    pub(super) fn table_stages(&self, pipeline: &Pipeline) -> Result<Vec<TableStage>> {
        let mut planner = without_tables(self.catalog.state());
        // It compares NaN and zeros of both signs as they arrive.
        planner.config_mut().options_mut().optimizer.enable_topk_aggregation = false;
        let stages = pipeline.stages().iter().map(|stage| {
            TableStage::new(stage, pipeline.tables(), planner.clone(), self.batch.clone(), &self.executor)
        });
        stages.collect()
    }

    fn keeper(&self) -> Keeper<'_> {
        Keeper { stores: &self.stores, root: &self.root, executor: &self.executor }
    }
}
