//! A SQL script on the command line, and the options shared by all commands that run one.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use forebay_engine::{Boundaries, FeedOptions, OnError, Session, parse_bytes};

/// The script, and the session that runs it.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScriptArguments {
    /// SQL file that creates tables and pipelines; relative locations in it are relative to its folder.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) session: SessionArguments,
}

/// Options of the session.
#[derive(Args, Clone, Debug)]
pub(crate) struct SessionArguments {
    /// Number of threads that compute; all cores by default.
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Memory for windows held ahead of the reader, such as 64MiB. The window being read is always held.
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_negative_numbers = true, default_value = "128MiB")]
    pub(crate) window_memory_limit: u64,
    /// Memory for all tables that one feed joins, such as 4GiB; a feed that needs more is refused.
    #[arg(long, value_name = "SIZE", value_parser = memory, default_value = "1GiB")]
    pub(crate) lookup_memory_limit: u64,
    /// Folder or URL for what Forebay writes (quarantined rows).
    #[arg(long, value_name = "URL", env = "FOREBAY_ROOT", default_value = ".forebay")]
    pub(crate) root: String,
}

/// Options of the feed; what is not given is taken from the pipeline's WITH.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FeedArguments {
    /// Seed of order and augmentation [default: the pipeline's, else 0].
    #[arg(long, value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Whether to shuffle [default: the pipeline's, else false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub(crate) shuffle: Option<bool>,
    /// Source bytes shuffled together, such as 32MiB [default: the pipeline's, else 32MiB].
    #[arg(long, value_name = "SIZE", value_parser = bytes, allow_negative_numbers = true)]
    pub(crate) window_bytes: Option<u64>,
    /// Source rows shuffled together, about; pieces of files stay whole [default: the pipeline's, else 262144].
    #[arg(long, value_name = "ROWS", value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) window_rows: Option<u64>,
    /// What to do with rows that cannot be processed: raise, skip or quarantine [default: the pipeline's, else raise].
    #[arg(long, value_parser = on_error)]
    pub(crate) on_error: Option<OnError>,
    /// Column by whose length rows are grouped, so that each global step is of one length bucket [default: the
    /// pipeline's].
    #[arg(long, value_name = "COLUMN")]
    pub(crate) bucket_by_length: Option<String>,
    /// The longest length of each bucket, such as 64,128,256 [default: the pipeline's].
    #[arg(long, value_name = "LENGTHS", value_parser = boundaries, allow_negative_numbers = true)]
    pub(crate) bucket_boundaries: Option<Boundaries>,
    /// Samples of all ranks in a step, which rows are grouped into [default: the pipeline's].
    #[arg(long, value_name = "ROWS", value_parser = whole_number, allow_negative_numbers = true)]
    pub(crate) global_batch_size: Option<u64>,
}

impl FeedArguments {
    pub(crate) fn options(&self) -> FeedOptions {
        FeedOptions {
            seed: self.seed,
            shuffle: self.shuffle,
            window_bytes: self.window_bytes,
            window_rows: self.window_rows,
            on_error: self.on_error,
            bucket_by_length: self.bucket_by_length.clone(),
            bucket_boundaries: self.bucket_boundaries.clone(),
            global_batch_size: self.global_batch_size,
        }
    }
}

impl ScriptArguments {
    /// Reads the script and runs it in a new session.
    pub(crate) async fn open(&self) -> Result<Session> {
        let session = self.session.open(self.file.parent().unwrap_or(Path::new("")))?;
        let text = read(&self.file)?;
        session.execute(&self.file.display().to_string(), &text).await?;
        Ok(session)
    }
}

impl SessionArguments {
    pub(crate) fn open(&self, base: &Path) -> Result<Session> {
        let mut builder = Session::builder().base(base).root(&self.root).window_memory_bytes(self.window_memory_limit);
        builder = builder.lookup_memory_bytes(self.lookup_memory_limit);
        if let Some(threads) = self.threads {
            builder = builder.threads(threads);
        }
        Ok(builder.build()?)
    }
}

pub(crate) fn read(file: &Path) -> Result<String> {
    let text = match std::fs::read_to_string(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = std::env::current_dir().unwrap_or_default();
            anyhow::bail!(
                "the script \"{}\" does not exist\nhint: check the path; relative paths begin at \"{}\"",
                file.display(),
                folder.display()
            )
        }
        read => read.with_context(|| format!("cannot read the script \"{}\"", file.display()))?,
    };
    // Some editors write a byte order mark at the beginning of a file.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Returns the pipeline called `named`, or the script's only pipeline.
pub(crate) fn pipeline(session: &Session, named: Option<&str>) -> Result<String> {
    match (named, &session.pipelines()[..]) {
        (Some(name), _) => Ok(session.pipeline(name)?.name().to_owned()),
        (None, [only]) => Ok(only.clone()),
        (None, []) => Err(no_pipeline()),
        (None, several) => anyhow::bail!(
            "the script creates {} pipelines\nhint: choose one with --pipeline: {}",
            several.len(),
            several.join(", ")
        ),
    }
}

pub(crate) fn no_pipeline() -> anyhow::Error {
    anyhow::anyhow!("the script creates no pipeline\nhint: add CREATE PIPELINE name AS SELECT …")
}

pub(crate) fn whole_number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "must be a whole number from 0 to 2^64 - 1".to_owned())
}

pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    parse_bytes(text).map_err(|error| error.to_string())
}

/// Like [`bytes`], but refuses 0.
pub(crate) fn memory(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("must be greater than 0, such as 1GiB".to_owned()),
        bytes => Ok(bytes),
    }
}

fn boundaries(text: &str) -> Result<Boundaries, String> {
    text.parse().map_err(|error: forebay_engine::Error| error.to_string())
}

fn on_error(text: &str) -> Result<OnError, String> {
    text.parse().map_err(|error: forebay_engine::Error| error.to_string())
}
