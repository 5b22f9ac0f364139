//! Scripts that change while feeds are read.
//!
//! A script is run in a session [`beside`](Session::beside) the one that is served. When it has run without an error,
//! the served session [takes over](Session::take_over) its tables and pipelines. A feed of an earlier pipeline
//! continues, and its token opens it again for as long as somebody reads it.

use std::path::Path;
use std::sync::Arc;

use forebay_protocol::FeedOptions;
use parking_lot::Mutex;

use super::Session;
use super::catalog::Catalog;
use crate::error::Result;
use crate::feed::{Feed, OpenFeeds};
use crate::planner::planner;

impl Session {
    /// A session without tables and pipelines that shares the threads, stores and limits of this one. Relative
    /// locations in it begin at `base`.
    pub fn beside(&self, base: &Path) -> Self {
        let base = std::env::current_dir().map(|folder| folder.join(base)).unwrap_or_else(|_| base.to_path_buf());
        Self {
            catalog: Catalog::new(planner()),
            feeds: OpenFeeds::default(),
            specs: Mutex::default(),
            opening_spec: tokio::sync::Mutex::default(),
            executing: tokio::sync::Mutex::new(()),
            stores: self.stores.clone().with_base(&base),
            base,
            executor: Arc::clone(&self.executor),
            root: self.root.clone(),
            memory: self.memory,
            batch: self.batch.clone(),
            runs_stages: self.runs_stages,
            stage_progress: Arc::clone(&self.stage_progress),
            piece_caches: Arc::clone(&self.piece_caches),
            sql_queries: self.sql_queries.clone(),
            sql_rows_max: self.sql_rows_max,
        }
    }

    /// Replaces the tables and pipelines of this session by those of `others`, which have different names.
    ///
    /// # Errors
    /// `Internal` if the planner refuses a table.
    pub fn take_over<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Result<()> {
        let others: Vec<_> = others.into_iter().map(|other| &other.catalog).collect();
        self.catalog.take_over(&others)
    }

    /// Opens feed `id` of an earlier pipeline `name` that was replaced or removed, if somebody still reads one of its
    /// feeds.
    pub fn open_replaced(&self, name: &str, options: &FeedOptions, id: &str) -> Option<Feed> {
        let replaced = self.catalog.replaced(name);
        replaced
            .into_iter()
            .filter_map(|earlier| self.open_pipeline(earlier, options).ok())
            .find(|feed| feed.id() == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_replaced_pipeline_opens_for_as_long_as_a_feed_of_it_is_held() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rows.csv"), "id\n1\n2\n").unwrap();
        let served = Session::builder().threads(1).root("memory:///root").build().unwrap();
        let run = async |query: &str| {
            let session = served.beside(folder.path());
            let table = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';";
            session.execute("script.sql", &format!("{table} CREATE PIPELINE p AS {query}")).await.unwrap();
            session
        };
        let options = FeedOptions::default();
        served.take_over([&run("SELECT id FROM t").await]).unwrap();
        let earlier = served.open("p", &options).unwrap();
        let id = earlier.id().to_owned();
        assert!(served.open_replaced("p", &options, &id).is_none(), "it is the present one");

        served.take_over([&run("SELECT id + 1 AS id FROM t").await]).unwrap();
        assert_ne!(served.open("p", &options).unwrap().id(), id);
        assert_eq!(served.open_replaced("p", &options, &id).unwrap().id(), id);
        assert!(served.open_replaced("q", &options, &id).is_none());
        // Another feed of the same pipeline keeps it, too, and it may be removed altogether.
        let other = served.open_replaced("p", &FeedOptions { seed: Some(7), ..FeedOptions::default() }, &id);
        assert!(other.is_none(), "another seed is another feed");
        served.take_over([]).unwrap();
        assert!(served.pipelines().is_empty() && served.tables().is_empty());
        assert!(served.open_replaced("p", &options, &id).is_some());
        drop(earlier);
        assert!(served.open_replaced("p", &options, &id).is_none(), "nobody reads it");
    }
}
