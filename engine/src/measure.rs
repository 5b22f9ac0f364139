//! Measures what a pipeline costs, by computing some of its windows.

use std::fmt::{self, Write as _};

use forebay_diagnostics::shortened;
use forebay_protocol::{CacheMode, FeedOptions, OnError};
use serde::Serialize;

use crate::error::Result;
use crate::feed::FeedCosts;
use crate::job::WindowSamples;
use crate::session::Session;

/// The most characters of a call that are shown.
const CALL_CHARS_MAX: usize = 60;

/// What the first windows of a pipeline have cost, without a cache.
#[derive(Clone, Debug, Serialize)]
pub struct Measurement {
    /// Source rows of the windows.
    pub rows: u64,
    /// Samples made of them.
    pub samples: u64,
    /// Rows that could not be computed.
    pub bad_rows: u64,
    /// What that has cost.
    #[serde(flatten)]
    pub costs: FeedCosts,
}

impl Session {
    /// Computes the samples of the first `windows` windows of pipeline `name`, and returns what they cost. Bad rows are
    /// left out, and nothing is taken from a cache.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), of reading and of computing.
    pub async fn measure(&self, name: &str, options: &FeedOptions, windows: u32) -> Result<Measurement> {
        let none = Some(CacheMode::None);
        self.prepare(name).await?;
        let feed = self.open(name, &FeedOptions { on_error: Some(OnError::Skip), cache: none, ..options.clone() })?;
        let core = feed.core();
        let before = feed.meter().costs();
        let windows = 0..core.plan.epoch(0).windows().min(windows);
        let mut next = WindowSamples::new(core.clone(), windows, core.executor.threads());
        let (mut samples, mut bad_rows) = (0, 0);
        while let Some(made) = next.next().await? {
            samples += made.batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
            bad_rows += made.bad.len() as u64;
        }
        let costs = feed.meter().costs().since(&before);
        Ok(Measurement { rows: next.source_rows(), samples, bad_rows, costs })
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, samples, bad_rows, costs } = self;
        let FeedCosts { windows, reading, preparing, transforming, calls, .. } = costs;
        write!(f, "  measured {windows} windows: {rows} rows, {samples} samples")?;
        writeln!(f, "{}", if *bad_rows > 0 { format!(", {bad_rows} bad rows") } else { String::new() })?;
        for (step, seconds) in [("reading", reading), ("preparing", preparing), ("transforming", transforming)] {
            let each = seconds * 1e6 / (*rows).max(1) as f64;
            writeln!(f, "    {step:<24} {seconds:>9.3} s {each:>9.1} us/row")?;
        }
        for call in calls.iter().filter(|call| call.rows > 0) {
            let each = call.seconds * 1e6 / call.rows as f64;
            let bytes = |bytes: u64| bytes / call.rows;
            let mut line = format!("    {:<24} {:>9.3} s {each:>9.1} us/row", call.name, call.seconds);
            write!(line, " {:>9} B/row in {:>9} B/row out", bytes(call.bytes_in), bytes(call.bytes_out))?;
            writeln!(f, "{line}  {}", shortened(&call.call, CALL_CHARS_MAX))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use forebay_protocol::FeedOptions;

    use crate::Session;

    /// A filter is evaluated before the expensive calls, wherever it is written.
    #[tokio::test]
    async fn a_filter_written_last_costs_what_one_written_first_costs() {
        let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
        let session = Session::builder().threads(2).base(photos).build().unwrap();
        let image = "random_hflip(resize(decode_image(bytes), 64, 64)) AS image";
        let filter = "WHERE path LIKE '%1.jpg'";
        let script = format!(
            "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
             CREATE PIPELINE first AS SELECT path, {image} FROM (SELECT * FROM photos {filter});
             CREATE PIPELINE last AS SELECT * FROM (SELECT path, {image} FROM photos) {filter};
             CREATE PIPELINE all_rows AS SELECT path, {image} FROM photos;"
        );
        session.execute("test", &script).await.unwrap();
        let mut rows = Vec::new();
        for name in ["first", "last", "all_rows"] {
            let measured = session.measure(name, &FeedOptions::default(), u32::MAX).await.unwrap();
            let decoded: u64 =
                measured.costs.calls.iter().filter(|call| call.name == "decode_image").map(|call| call.rows).sum();
            assert_eq!(decoded, measured.samples, "{name}");
            rows.push(decoded);
        }
        assert!(rows[0] > 0 && rows[0] == rows[1] && rows[1] < rows[2], "{rows:?}");
    }
}
