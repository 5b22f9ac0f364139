//! Measures the places of a pipeline where its samples may be kept, for `forebay advise` and `forebay plan`.

use std::sync::Arc;

use forebay_protocol::{CacheMode, FeedOptions, FeedSettings, OnError};

use super::Session;
use crate::compile::Keeping;
use crate::error::Result;
use crate::feed::{Candidate, Memo, Trial};

impl Session {
    /// Measures what pipeline `name` costs, and what keeping its samples at each place of its query would save, on at
    /// most a twentieth of its rows and for about so many seconds. Bad rows are left out. Writes a few objects under
    /// the root to measure its store, and deletes them.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), of reading and computing, and of the root's store.
    pub async fn trial(&self, name: &str, options: &FeedOptions, seconds: f64) -> Result<Trial> {
        let auto = Some(CacheMode::Auto);
        let options = FeedOptions { on_error: Some(OnError::Skip), cache: auto, ..options.clone() };
        self.prepare(name).await?;
        let feed = self.open(name, &options)?;
        let core = Arc::clone(feed.core());
        let mut candidates = feed.candidates().to_vec();
        if let Some(full) = self.full_candidate(name, &core.settings)? {
            candidates.push(full);
        }
        let executor = Arc::clone(&core.executor);
        executor.spawn(async move { Trial::run(&core, &candidates, seconds).await }).join().await?
    }

    /// The place above all calls, if some of these are random.
    fn full_candidate(&self, name: &str, settings: &FeedSettings) -> Result<Option<Candidate>> {
        let pipeline = self.pipeline(name)?;
        let random = pipeline.uncacheable_calls();
        if random.is_empty() {
            return Ok(None);
        }
        let state = self.catalog.context().state();
        let memo = Memo::of(&pipeline, Keeping::All, settings, &state, &self.stores, self.root());
        let name = "all calls, random ones included".to_owned();
        Ok(memo.ok().map(|memo| Candidate { name, memo: Arc::new(memo), is_random: true }))
    }
}
