//! The lookup tables of a feed's joins: read once, when the first window is prepared, and kept by the feed.
//!
//! They are pinned like the driving table, so a changed file is refused. An unreadable row is an error for every
//! `on_error`: skipping it would change the samples that look it up.

use std::sync::Arc;

use arrow::array::{RecordBatch, UInt64Array};
use forebay_storage::{BadRead, RowRange};
use futures::{StreamExt, TryStreamExt, stream};

use super::feed_core::FeedCore;
use super::reads::READS_LEAST;
use super::rows_read::limited;
use crate::compile::{BadRow, Lookup, LookupPlan, SourceRows, Stage};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a table to read at a time, so that all cores take part.
const RANGE_BYTES: u64 = 16 << 20;

impl FeedCore {
    /// The lookup table of each layer that joins. The first caller reads the tables; the others wait.
    pub(crate) async fn lookups(self: &Arc<Self>) -> Result<&[Option<Lookup>]> {
        let lookups = self.lookups.get_or_try_init(|| async {
            let mut lookups = Vec::with_capacity(self.stage.layers().len());
            let mut bytes = 0;
            for (index, layer) in self.stage.layers().iter().enumerate() {
                lookups.push(match layer.lookup() {
                    Some(plan) => Some(self.look_up(index, plan, &mut bytes).await?),
                    None => None,
                });
            }
            Ok::<_, Error>(lookups)
        });
        Ok(lookups.await?.as_slice())
    }

    /// Reads the lookup table of the join at `layer`. `bytes` counts the memory of all joins of the feed so far.
    async fn look_up(self: &Arc<Self>, layer: usize, plan: &LookupPlan, bytes: &mut u64) -> Result<Lookup> {
        let mut ranges = plan.dataset.row_ranges(RANGE_BYTES);
        let files = plan.dataset.snapshot().files();
        let limit = plan.limit.unwrap_or(u64::MAX);
        ranges.retain(|range| files[range.file as usize].first_sample_id + range.first_row < limit);
        let mut reads = stream::iter(ranges)
            .map(|range| {
                let core = Arc::clone(self);
                let mut task = self.executor.spawn(async move { core.looked_up(layer, &range).await });
                async move { task.join().await? }
            })
            .buffered(READS_LEAST);
        let mut batches = Vec::new();
        while let Some(read) = reads.try_next().await? {
            *bytes = bytes.saturating_add(plan.bytes(&read));
            if *bytes > self.lookup_bytes_max {
                return Err(self.too_large(plan, *bytes));
            }
            batches.extend(read);
        }
        tracing::debug!(feed = %self.id, table = %plan.table, bytes, "table of a join read");
        plan.index(&batches)
    }

    /// Runs the plan of a join over some rows of its lookup table.
    async fn looked_up(&self, layer: usize, range: &RowRange) -> Result<Vec<RecordBatch>> {
        let lookup = self.stage.layers().get(layer).and_then(|layer| layer.lookup());
        let plan = lookup.ok_or_else(|| Error::internal("a layer is no join"))?;
        let read = limited(plan.dataset.read(range, &plan.read).await?, plan.limit.unwrap_or(u64::MAX));
        if let Some(BadRead { sample_id, reason }) = read.bad.first() {
            return Err(bad_row(plan, *sample_id, reason));
        }
        let none = UInt64Array::from_value(0, read.sample_ids.len());
        let rows = SourceRows {
            batch: read.batch,
            sample_ids: read.sample_ids,
            random_keys: none,
            origins: None,
            step_lengths: None,
        };
        let stage: &Stage = &self.stage;
        let done = stage.run(&plan.plan, &plan.read, &rows, true).await?;
        match done.bad.first() {
            Some(BadRow { origin, reason, .. }) => Err(bad_row(plan, *origin, reason)),
            None => Ok(done.batches),
        }
    }

    fn too_large(&self, plan: &LookupPlan, bytes: u64) -> Error {
        let message = format!(
            "table \"{}\" is joined, and the tables of joins take more than {} in memory: {} so far",
            plan.table,
            size(self.lookup_bytes_max),
            size(bytes),
        );
        Error::new(ErrorKind::Exhausted, message).with_hint(
            "join fewer of its columns or rows, `JOIN (SELECT id, name FROM … WHERE …)`; put the large table first; \
             raise the session's lookup memory; or join beforehand and write the result to files",
        )
    }
}

fn size(bytes: u64) -> String {
    if bytes < 10 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

fn bad_row(plan: &LookupPlan, sample_id: u64, reason: &str) -> Error {
    let snapshot = plan.dataset.snapshot();
    let (file, row) = snapshot.locate(sample_id);
    Error::new(ErrorKind::Data, format!("\"{}\", row {row}: {reason}", snapshot.files()[file].path))
        .with_hint("fix the file or the query: a table that is joined is read whole, whatever on_error says")
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int32Array, Int64Array, LargeStringArray, StringArray};
    use arrow::util::display::array_value_to_string;
    use datafusion::prelude::{SessionConfig, SessionContext};
    use forebay_operators::random_key;

    use super::*;
    use forebay_protocol::{FeedOptions, ReadOptions};

    use crate::session::Session;

    /// Queries whose joins must give DataFusion's results.
    const QUERIES: &[&str] = &[
        "SELECT s.id, l.name FROM samples s JOIN labels l ON s.k = l.k",
        "SELECT s.id, l.name, l.w FROM samples s LEFT JOIN labels l ON s.k = l.k",
        "SELECT id, k, name FROM samples JOIN (SELECT k, name FROM labels) AS l USING (k)",
        "SELECT id, k, t, w FROM samples LEFT JOIN labels USING (k, t)",
        "SELECT s.id, l.w FROM samples s JOIN labels l ON l.k = s.k AND l.w > s.id",
        "SELECT s.id, l.w FROM samples s LEFT JOIN labels l ON s.k = l.k AND l.w > 3",
        "SELECT s.id, a.name AS one, b.name AS two
         FROM samples s JOIN labels a ON s.k = a.k LEFT JOIN labels b ON a.w = b.k WHERE s.id % 5 <> 1",
        "SELECT s.id, l.name FROM samples s LEFT JOIN (SELECT k + 1 AS next, name FROM labels WHERE t <> 't1') l
         ON s.k = l.next WHERE s.id % 3 <> 0",
        "SELECT s.id, l.w FROM samples s JOIN labels l ON upper(s.t) = upper(l.t) AND s.k + 0 = l.k",
        "SELECT s.id, o.id AS other FROM samples s JOIN samples o ON s.k = o.k AND s.t = o.t WHERE o.id < 20",
        "SELECT s.id FROM samples s LEFT JOIN labels l ON s.k = l.k WHERE l.k IS NULL",
        "SELECT id FROM samples WHERE k IN (SELECT k FROM labels)",
        "SELECT id FROM samples WHERE k NOT IN (SELECT k FROM labels)",
        "SELECT id FROM samples WHERE k NOT IN (SELECT k FROM labels WHERE k IS NOT NULL) AND id > 3",
        "SELECT id FROM samples WHERE k NOT IN (SELECT k FROM labels WHERE w > 1000)",
        "SELECT id FROM samples WHERE NOT (k IN (SELECT k FROM labels WHERE k > 2)) AND t IN (SELECT t FROM labels)",
        "SELECT s.id FROM samples s WHERE EXISTS (SELECT * FROM labels l WHERE l.k = s.k AND l.w > 5) AND s.id > 2",
        "SELECT s.id FROM samples s WHERE NOT EXISTS (SELECT 1 FROM labels l WHERE l.k = s.k AND l.t = s.t)",
        "SELECT s.id FROM samples s LEFT ANTI JOIN labels l ON s.k = l.k",
        "SELECT s.id FROM samples s LEFT SEMI JOIN labels l ON s.k = l.k AND l.t = 't2'",
    ];

    /// Random keys below `keys`, about an eighth of them null.
    fn keys(seed: u64, stream: u64, rows: u64, keys: u64) -> Vec<Option<i64>> {
        let draw = |row| random_key(seed, stream, row);
        (0..rows).map(|row| (draw(row) % 8 > 0).then(|| (draw(row) / 8 % keys) as i64)).collect()
    }

    fn samples(seed: u64, rows: u64) -> RecordBatch {
        let texts = keys(seed, 2, rows, 4).into_iter().map(|key| key.map(|key| format!("t{key}")));
        let columns: [(&str, ArrayRef); 3] = [
            ("id", Arc::new(Int64Array::from_iter_values(0..rows as i64))),
            ("k", Arc::new(Int64Array::from(keys(seed, 1, rows, 12)))),
            ("t", Arc::new(texts.collect::<StringArray>())),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("a batch")
    }

    /// The key type differs from the key type of [`samples`], so both are coerced to a third type.
    fn labels(seed: u64, rows: u64) -> RecordBatch {
        let texts = keys(seed, 4, rows, 4).into_iter().map(|key| key.map(|key| format!("t{key}")));
        let numbers = keys(seed, 3, rows, 12).into_iter().map(|key| key.map(|key| key as i32));
        let columns: [(&str, ArrayRef); 4] = [
            ("k", Arc::new(numbers.collect::<Int32Array>())),
            ("t", Arc::new(texts.collect::<LargeStringArray>())),
            ("name", Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("label {row}"))))),
            ("w", Arc::new(Int64Array::from(keys(seed, 5, rows, 12)))),
        ];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).expect("a batch")
    }

    fn sorted(batches: &[RecordBatch]) -> Vec<String> {
        let cell = |column: &ArrayRef, row| match column.is_null(row) {
            true => "null".to_owned(),
            false => array_value_to_string(column, row).expect("a value"),
        };
        let row = |batch: &RecordBatch, row| {
            batch.columns().iter().map(|column| cell(column, row)).collect::<Vec<_>>().join(" | ")
        };
        let rows = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(|at| row(batch, at)));
        let mut rows: Vec<String> = rows.collect();
        rows.sort_unstable();
        rows
    }

    async fn fed(session: &Session, query: &str) -> Result<Vec<RecordBatch>> {
        session.define("p", query).await?;
        let options = FeedOptions {
            shuffle: Some(true),
            window_rows: Some(13),
            window_bytes: Some(512),
            ..FeedOptions::default()
        };
        let feed = session.open("p", &options)?;
        let mut reader = feed.read(&ReadOptions { batch_size: Some(7), ..ReadOptions::default() })?;
        let mut batches = Vec::new();
        while let Some(batch) = reader.next().await {
            batches.push(batch?.records);
        }
        Ok(batches)
    }

    #[tokio::test]
    async fn a_feed_joins_as_datafusion_does() {
        let seed = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(17u64);
        for (round, rows) in [(0, 0), (1, 1), (2, 9), (3, 40), (4, 300)] {
            let session = Session::builder().threads(2).root("memory:///root").build().expect("a session");
            let reference = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
            for (name, batch) in [("samples", samples(seed + round, 100)), ("labels", labels(seed + round, rows))] {
                reference.register_batch(name, batch.clone()).expect("a table");
                session.register(Some(name), batch.schema(), vec![batch]).await.expect("a table");
            }
            for query in QUERIES {
                let expected = reference.sql(query).await.expect(query).collect().await.expect(query);
                let expected = sorted(&expected);
                let joined = fed(&session, query).await.unwrap_or_else(|error| panic!("{query}: {error}"));
                assert_eq!(sorted(&joined), expected, "FOREBAY_SEED={seed}, {rows} labels: {query}");
                let is_anti = query.contains(" NOT ") || query.contains("ANTI") || query.contains("IS NULL");
                assert!(rows < 40 || is_anti || !expected.is_empty(), "the test is about rows that are found: {query}");
            }
        }
    }

    #[tokio::test]
    async fn a_table_that_is_too_large_to_join_is_named_with_the_limit() {
        let session = Session::builder().threads(2).root("memory:///root").lookup_memory_bytes(64 << 10);
        let session = session.build().expect("a session");
        for (name, batch) in [("samples", samples(1, 100)), ("labels", labels(1, 5_000))] {
            session.register(Some(name), batch.schema(), vec![batch]).await.expect("a table");
        }
        let few = "SELECT id, w FROM samples JOIN (SELECT k, w FROM labels WHERE w = 3) l USING (k)";
        assert!(!fed(&session, few).await.expect("few rows").is_empty());
        let error =
            fed(&session, "SELECT id, name FROM samples JOIN labels USING (k)").await.expect_err("it is too large");
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        assert!(
            error.message().starts_with("table \"labels\" is joined") && error.message().contains("64 KiB"),
            "{error}"
        );
        assert!(error.hint().is_some_and(|hint| hint.contains("lookup memory")), "{error:?}");
    }
}
