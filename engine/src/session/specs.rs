//! Opens feeds from specs, of this process or of another.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_storage::Dataset;

use super::Session;
use super::catalog::check_columns;
use crate::compile::Audience;
use crate::error::{ErrorKind, Result};
use crate::feed::{Feed, FeedSpec, SnapshotSource, SpecTable, fetch_snapshot};
use crate::pipeline::Pipeline;

/// Number of compiled specs to keep, for a worker that opens the feeds of a few jobs repeatedly.
const SPECS_KEPT: usize = 16;

impl Session {
    /// Opens the feed of a [`Feed::spec`], created in this session or in another process, to send its samples. Creates
    /// no table and no pipeline, and reads no file. Opening the same spec again is cheap; equal feeds share their
    /// windows. The receiver computes the deferred steps, which make samples larger:
    /// [`finish_deferred`](crate::arrays::finish_deferred).
    ///
    /// `source` sends the snapshots that this session does not have yet.
    ///
    /// # Errors
    /// `Conflict` with the differences if the feed would not be the same here; `Invalid` for a spec that describes no
    /// feed; errors of `source`.
    pub async fn open_spec(&self, spec: &FeedSpec, source: &dyn SnapshotSource) -> Result<Feed> {
        if let Some(pipeline) = self.known_spec(spec) {
            return self.open_compiled(spec, pipeline);
        }
        // One at a time, so that feeds over one dataset fetch and keep its snapshot once.
        let _opening = self.opening_spec.lock().await;
        let pipeline = match self.known_spec(spec) {
            Some(pipeline) => pipeline,
            None => Arc::new(self.compile_spec(spec, source).await?),
        };
        self.open_compiled(spec, pipeline)
    }

    fn known_spec(&self, spec: &FeedSpec) -> Option<Arc<Pipeline>> {
        self.specs.lock().iter().find(|(known, _)| known == spec).map(|(_, pipeline)| Arc::clone(pipeline))
    }

    fn open_compiled(&self, spec: &FeedSpec, pipeline: Arc<Pipeline>) -> Result<Feed> {
        let feed = self.open_feed(Arc::clone(&pipeline), spec.settings.clone(), spec.cache, &spec.root, None)?;
        let mut specs = self.specs.lock();
        specs.retain(|(known, _)| known != spec);
        specs.push((spec.clone(), pipeline));
        if specs.len() > SPECS_KEPT {
            specs.remove(0);
        }
        Ok(feed)
    }

    /// Compiles a spec's query in a separate catalog, so that specs may use any table names.
    async fn compile_spec(&self, spec: &FeedSpec, source: &dyn SnapshotSource) -> Result<Pipeline> {
        spec.check()?;
        let mut tables = BTreeMap::new();
        for table in spec.tables() {
            let dataset = match self.opened_dataset(&table) {
                Some(dataset) => dataset,
                None => {
                    let snapshot = fetch_snapshot(source, table.snapshot).await;
                    let snapshot = snapshot.map_err(|error| match error.kind() {
                        ErrorKind::Invalid | ErrorKind::Conflict => spec.unreadable_snapshot(error),
                        _ => error,
                    })?;
                    spec.open_dataset(&table, snapshot, &self.stores)?
                }
            };
            check_columns(&dataset)?;
            tables.insert(table.name.to_owned(), dataset);
        }
        let definition = spec.definition()?;
        let state = self.catalog.state_over(&tables, &spec.stage_tables)?;
        let (results, base) = (spec.results(&tables).await?, spec.base.as_ref());
        let compiled = Pipeline::compile(&definition, Audience::Trainer, &tables, Some(&results), base, &state).await;
        let pipeline = compiled.map_err(|refusal| spec.uncompiled(refusal))?;
        spec.check_opened(&pipeline)?;
        Ok(pipeline)
    }

    /// The table of a spec, if this session has opened it before. Its snapshot was verified then.
    fn opened_dataset(&self, table: &SpecTable<'_>) -> Option<Dataset> {
        let is_it = |dataset: &Dataset| {
            let is_same = dataset.spec() == table.dataset && dataset.schema() == table.schema;
            dataset.snapshot().id() == table.snapshot && (is_same || dataset.is_in_memory())
        };
        let specs = self.specs.lock();
        let opened = specs.iter().flat_map(|(_, pipeline)| pipeline.datasets()).find(|dataset| is_it(dataset)).cloned();
        drop(specs);
        opened.or_else(|| self.catalog.find_dataset(is_it))
    }
}
