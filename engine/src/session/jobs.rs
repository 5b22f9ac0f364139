//! Jobs that write the samples of a session's pipelines.

use std::sync::Arc;

use forebay_protocol::{FeedOptions, JobOptions, OptionSet, OptionSpec};
use forebay_sql::{MaterializeDefinition, MaterializeSource, PipelineDefinition, PipelineOption};
use forebay_storage::artifact::{self, Catalog, Garbage};
use futures::future::BoxFuture;

use super::Session;
use super::ordered::Order;
use super::outputs::Output;
use super::statements::Failure;
use crate::error::{Error, Result};
use crate::job::{self, Job, JobProgress, Materialized};
use crate::pipeline::{self, JOIN, Pipeline};

impl Session {
    /// The job that writes the samples of the first epoch of pipeline `name` to files in the folder or URL `to`. Runs
    /// the stages whose rows are not kept. Then computes a few samples to divide the epoch into files, and writes
    /// nothing.
    ///
    /// # Errors
    /// Those of [`prepare`](Self::prepare) and [`open`](Self::open). `Conflict` if the folder holds anything but files
    /// of the same job. `Invalid` for an unknown format, for a column that the format cannot hold or that has no order
    /// to sort by, and if the query calls functions without a version.
    pub async fn job(&self, name: &str, feed: &FeedOptions, to: &str, options: &JobOptions) -> Result<Job> {
        self.job_of(self.pipeline(name)?, feed, to, options).await
    }

    /// The samples of pipeline `name`, in the order of its files, as Parquet files that this session keeps under its
    /// root. Writes them if the [catalog](forebay_storage::artifact::Catalog) has none.
    ///
    /// # Errors
    /// Those of [`job`](Self::job). `Invalid` if the query calls random operators, whose results would be the same in
    /// every epoch.
    pub async fn cached(&self, name: &str) -> Result<Materialized> {
        self.prepare(name).await?;
        let feed = self.open(name, &FeedOptions { shuffle: Some(false), ..FeedOptions::default() })?;
        let calls = feed.uncacheable_calls();
        if !calls.is_empty() {
            return Err(Error::invalid(format!("the results of {} must not be stored", calls.join(", ")))
                .with_hint("random operators come after cache(); Python functions need a version"));
        }
        let options = JobOptions::default();
        let fingerprint = job::fingerprint(&feed, &job::output_format(&options)?, &[]);
        let catalog = Catalog::new(&self.stores, &self.root)?;
        if let Some(artifact) = catalog.find(&fingerprint).await?
            && artifact.missing_file().await?.is_none()
        {
            return Ok(Materialized::new(&artifact, true, None));
        }
        let job = Job::open(feed, &catalog.kept(&fingerprint), &options, self.memory.windows_bytes).await?;
        job.run(&JobProgress::default()).await
    }

    /// Removes what nothing names from the artifacts under the root: unfinished jobs that no process works on, and
    /// artifacts without an entry in the catalog. Waits 30 seconds if there are unfinished jobs, for signs of life.
    /// With `dry_run`, only finds them.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn collect_garbage(&self, dry_run: bool) -> Result<Garbage> {
        let wait = |duration| -> BoxFuture<'static, ()> { Box::pin(tokio::time::sleep(duration)) };
        Ok(artifact::gc(&self.stores, &self.root, dry_run, &wait).await?)
    }

    /// A path or URL as this session names it: absolute, and without parts such as `.`.
    ///
    /// # Errors
    /// `Invalid` for a scheme that is not supported, and for a path that is not a name in a store.
    pub fn absolute(&self, url: &str) -> Result<String> {
        Ok(self.stores.absolute(url)?)
    }

    async fn job_of(&self, pipeline: Arc<Pipeline>, feed: &FeedOptions, to: &str, options: &JobOptions) -> Result<Job> {
        let (pipeline, feed) = match Order::of(options, feed, &pipeline)? {
            Some((order, feed)) => (Arc::new(self.ordered(&pipeline, &order).await?), feed),
            None => (pipeline, feed.clone()),
        };
        let pipeline = self.ready(&pipeline).await?.map_or(pipeline, Arc::new);
        let feed = self.open_pipeline(pipeline, &feed)?;
        Job::open(feed, to, options, self.memory.windows_bytes).await
    }

    pub(super) async fn materialize(&self, definition: MaterializeDefinition) -> Result<Output, Failure> {
        let mut definition = definition;
        let pipeline = match &mut definition.source {
            MaterializeSource::Pipeline { name, place } => {
                self.pipeline(name).map_err(|error| Failure::At(*place, error))?
            }
            MaterializeSource::Query(query) => {
                take_options(&mut definition.options, query);
                Arc::new(self.compiled(query).await?)
            }
        };
        let (of_feed, of_job) = options(&definition)?;
        let written = async {
            let job = self.job_of(pipeline, &of_feed, &definition.url, &of_job).await?;
            job.run(&JobProgress::default()).await
        };
        let done = written.await.map_err(|error| Failure::At(definition.place, error))?;
        let found = if done.found() { ": an earlier run wrote them" } else { "" };
        let (rows, files, url) = (done.rows(), done.files().len(), done.url());
        let bad = match done.bad_rows() {
            0 => String::new(),
            bad => format!(", {bad} bad rows left out"),
        };
        Ok(Output::Done(format!("materialized {rows} samples in {files} files at \"{url}\"{bad}{found}")))
    }
}

/// The options that a query's stages depend on. They belong to the query, and not to the job.
const OF_STAGES: &[&str] = &[JOIN, "on_error"];

/// Gives `query` the options that its stages depend on.
fn take_options(options: &mut Vec<PipelineOption>, query: &mut PipelineDefinition) {
    query.options.extend(options.extract_if(.., |option| OF_STAGES.contains(&option.name.as_str())));
    if !query.options.is_empty() {
        let pairs: Vec<String> = query.options.iter().map(|it| format!("{} = {}", it.name, it.value)).collect();
        query.statement = format!("CREATE PIPELINE {} WITH ({}) AS {}", query.name, pairs.join(", "), query.text);
    }
}

/// The options of the feed and of the job in a statement's `WITH`.
fn options(definition: &MaterializeDefinition) -> Result<(FeedOptions, JobOptions), Failure> {
    let table = || FeedOptions::TABLE.iter().chain(JobOptions::TABLE);
    let (mut of_feed, mut of_job) = (Vec::new(), Vec::new());
    let others = match definition.source {
        MaterializeSource::Query(_) => &[JOIN][..],
        MaterializeSource::Pipeline { .. } => &[],
    };
    for option in &definition.options {
        let spec: &OptionSpec =
            pipeline::find(option, "option of MATERIALIZE", others, table).map_err(Failure::Refused)?;
        let values = if JobOptions::TABLE.iter().any(|it| it.name == spec.name) { &mut of_job } else { &mut of_feed };
        values.push((spec.name, pipeline::value(spec, option).map_err(Failure::Refused)?));
    }
    let placed = |error: Error| Failure::At(definition.place, error);
    Ok((FeedOptions::of(of_feed).map_err(placed)?, JobOptions::of(of_job).map_err(placed)?))
}
