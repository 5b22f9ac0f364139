//! Explains how a pipeline will run, and displays types.

use std::collections::BTreeMap;
use std::fmt;

use forebay_arrays::type_name;
use forebay_protocol::{FeedSettings, LengthBuckets};
use serde::Serialize;

use crate::compile::LookupPlan;
use crate::feed::{CacheReport, Feed};
use crate::pipeline::Pipeline;

/// An epoch that reads more than this many times its bytes is worth a note.
const READ_AGAIN_WARNED: f64 = 1.2;

/// How a pipeline will run, as shown by `EXPLAIN PIPELINE` and `forebay explain`.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// The pipeline.
    pub pipeline: String,
    /// What runs once over whole tables, before the feed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageState>,
    /// Its feed, unless a stage has not run.
    #[serde(flatten)]
    pub feed: Option<FeedExplanation>,
}

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
    /// What differs from the nearest stage that is kept, if this one is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<String>,
    /// The plan, optimized.
    pub plan: String,
}

/// The rows of a stage that are kept.
#[derive(Clone, Debug, Serialize)]
pub struct KeptStage {
    /// The folder of the files.
    pub url: String,
    /// The number of rows.
    pub rows: u64,
    /// Source rows that could not be read, and were left out.
    pub bad_rows: u64,
    /// The bytes of the files.
    pub bytes: u64,
    /// The seconds that it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
}

/// How a feed will run.
#[derive(Clone, Debug, Serialize)]
pub struct FeedExplanation {
    /// The id of the pipeline's feed with these settings.
    pub feed: String,
    /// The resolved settings.
    pub settings: FeedSettings,
    /// The driving table.
    pub table: String,
    /// Files of the snapshot.
    pub files: usize,
    /// Rows of the snapshot.
    pub rows: u64,
    /// The joined tables, with their files and rows.
    pub joins: Vec<(String, usize, u64)>,
    /// Samples per epoch, if known before reading.
    pub samples_per_epoch: Option<u64>,
    /// Whether the query derives rows.
    pub makes_rows: bool,
    /// Row ranges, the units of reading.
    pub row_ranges: usize,
    /// Windows of the first epoch.
    pub windows: u32,
    /// The stored bytes of the columns that an epoch reads, and the bytes that it reads, if the format tells. Filters
    /// may skip some.
    pub bytes: Option<(u64, u64)>,
    /// The calls that run in another order than written, in words.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<String>,
    /// What the feed keeps, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheReport>,
    /// Operators and their versions.
    pub operators: BTreeMap<String, u32>,
    /// The samples' columns and types.
    pub columns: Vec<(String, String)>,
    /// The physical plans of the feed stage.
    pub plan: String,
}

impl FeedExplanation {
    pub(crate) fn new(pipeline: &Pipeline, feed: &Feed) -> Self {
        let (rows, row_ranges, windows) = feed.extent();
        Self {
            feed: feed.id().to_owned(),
            settings: feed.settings().clone(),
            table: pipeline.table().to_owned(),
            files: pipeline.dataset.snapshot().files().len(),
            rows,
            joins: pipeline.stage.lookups().map(joined).collect(),
            samples_per_epoch: feed.samples_per_epoch(),
            makes_rows: !pipeline.stage.layers().is_empty(),
            row_ranges,
            windows,
            bytes: None,
            moves: feed.shown_stage().moves().to_vec(),
            cache: None,
            operators: pipeline.operators().clone(),
            columns: pipeline.schema().fields().iter().map(|field| (field.name().clone(), type_name(field))).collect(),
            plan: match feed.lengths() {
                Some(lengths) => format!("{}{}", lengths.display(), feed.shown_stage().display()),
                None => feed.shown_stage().display(),
            },
        }
    }
}

/// The bytes that an epoch reads beside those that its columns have, with a note if there is something to do.
///
/// `is_exact` says that no filter skips any.
fn bytes_lines(stored: u64, read: u64, is_exact: bool) -> String {
    let times = read as f64 / stored.max(1) as f64;
    let note = match times > READ_AGAIN_WARNED {
        true => "  note     pieces of row groups read pages again: raise window_bytes, or write smaller row groups\n",
        false => "",
    };
    let most = if is_exact { "" } else { "at most " };
    format!("  bytes    {most}{read} to read an epoch, {times:.2} times the {stored} of its columns\n{note}")
}

fn joined(lookup: &LookupPlan) -> (String, usize, u64) {
    let snapshot = lookup.dataset.snapshot();
    (lookup.table.clone(), snapshot.files().len(), snapshot.rows())
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pipeline, stages, feed } = self;
        match feed {
            Some(feed) => writeln!(f, "pipeline {pipeline} (feed {})", feed.feed)?,
            None => writeln!(f, "pipeline {pipeline}")?,
        }
        stages.iter().try_for_each(|stage| stage.fmt(f))?;
        match feed {
            Some(feed) => feed.fmt(f),
            None => writeln!(f, "  feed     its rows are known once its stages have run, which opening it does"),
        }
    }
}

impl fmt::Display for StageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reads, kept, differences, plan, .. } = self;
        let reads = reads.iter().map(|(table, files, rows)| format!("{table} ({files} files, {rows} rows)"));
        let reads = reads.collect::<Vec<_>>().join(", ");
        let kept = match kept {
            Some(KeptStage { url, rows, bad_rows, bytes, seconds }) => {
                let took = seconds.map(|seconds| format!(", computed in {seconds:.1} s")).unwrap_or_default();
                let bad = if *bad_rows > 0 { format!("; {bad_rows} bad rows left out") } else { String::new() };
                format!("kept: {rows} rows, {bytes} bytes{took}, in \"{url}\"{bad}")
            }
            None => "not kept: opening the pipeline runs it".to_owned(),
        };
        writeln!(f, "  stage    {name} reads {reads}; {kept}")?;
        for difference in differences {
            writeln!(f, "  differs  from what is kept: {difference}")?;
        }
        plan.lines().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

impl fmt::Display for FeedExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { settings, .. } = self;
        let samples = match self.samples_per_epoch {
            Some(samples) => format!("{samples} samples an epoch"),
            None if !self.joins.is_empty() => {
                "rows are joined, so the number of samples is known only after reading".to_owned()
            }
            None if self.makes_rows => {
                "rows are derived, so the number of samples is known only after reading".to_owned()
            }
            None => "filtered, so the number of samples is known only after reading".to_owned(),
        };
        writeln!(f, "  reads    {}: {} files, {} rows; {samples}", self.table, self.files, self.rows)?;
        for (table, files, rows) in &self.joins {
            writeln!(f, "  joins    {table}: {files} files, {rows} rows, held in memory")?;
        }
        writeln!(
            f,
            "  windows  {} an epoch of up to {} bytes or {} rows, from {} row ranges",
            self.windows, settings.window_bytes, settings.window_rows, self.row_ranges
        )?;
        if let Some((stored, read)) = self.bytes {
            f.write_str(&bytes_lines(stored, read, self.samples_per_epoch.is_some()))?;
        }
        let order = if settings.shuffle { "shuffled" } else { "file order" };
        writeln!(f, "  order    {order}, seed {}; bad rows: {}", settings.seed, settings.on_error)?;
        for moved in &self.moves {
            writeln!(f, "  order    relaxed: {moved}")?;
        }
        if let Some(LengthBuckets { by, boundaries, global_batch_size }) = &settings.buckets {
            writeln!(
                f,
                "  buckets  by length of {by}: {boundaries} and longer; global steps of {global_batch_size} from one \
                 bucket"
            )?;
        }
        if let Some(cache) = &self.cache {
            cache.fmt(f, &self.table, self.rows)?;
        }
        let operators: Vec<_> = self.operators.iter().map(|(name, version)| format!("{name} v{version}")).collect();
        if !operators.is_empty() {
            writeln!(f, "  calls    {}", operators.join(", "))?;
        }
        for (name, data_type) in &self.columns {
            writeln!(f, "  column   {name}: {data_type}")?;
        }
        writeln!(f, "  feed stage")?;
        self.plan.lines().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_read_stand_beside_those_of_the_columns() {
        let note =
            "  note     pieces of row groups read pages again: raise window_bytes, or write smaller row groups\n";
        for (stored, read, times, has_note) in [
            (1000, 1000, "1.00", false),
            (1000, 1200, "1.20", false),
            (1000, 1201, "1.20", true),
            (1000, 12_500, "12.50", true),
            (1000, 0, "0.00", false),
            (0, 0, "0.00", false),
        ] {
            let line = format!("{read} to read an epoch, {times} times the {stored} of its columns\n");
            let line = line + if has_note { note } else { "" };
            assert_eq!(bytes_lines(stored, read, true), format!("  bytes    {line}"));
            assert_eq!(bytes_lines(stored, read, false), format!("  bytes    at most {line}"));
        }
    }
}
