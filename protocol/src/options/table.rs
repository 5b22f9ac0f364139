//! All options of feeds, of reading them, of jobs and of sessions, each declared once.
//!
//! Each row generates the field of the options' struct and of the request on the wire, the option in a query's `WITH`,
//! the command-line flag, the Python argument, and the line in each guide. `UPDATE=1 cargo test -p forebay-protocol
//! --test generated` writes the declarations in Python and the guides' tables.
//!
//! A row's documentation is one sentence for all of these places. Facts needed in only one guide belong in that guide.

use forebay_delivery::Start;
use serde::{Deserialize, Serialize};

use super::choices::{CacheMode, CallOrder, DeliveryMode, OnError};
use super::declare::declare_options;
use super::spec::{OptionKind, OptionSet, OptionSpec, Scope};
use crate::length_buckets::{Boundaries, check_global_batch_size};

declare_options! {
    feed {
        /// Seed of order and augmentation.
        seed: u64 = { kind: OptionKind::Integer, default: Some("0"), }

        /// Whether samples come in a keyed random order; otherwise they come in the files' order.
        shuffle: bool = { kind: OptionKind::Boolean, default: Some("false"), }

        /// Source bytes that are shuffled together.
        window_bytes: u64 = { kind: OptionKind::Bytes, default: Some("32MiB"), guide: Some(WINDOWS), }

        /// Approximate number of source rows that are shuffled together; a window never splits a row range.
        window_rows: u64 = {
            kind: OptionKind::Count,
            unit: Some("rows"),
            default: Some("262144"),
            guide: Some(WINDOWS),
        }

        /// What to do with rows that cannot be processed.
        on_error: OnError = { kind: OptionKind::Choice(OnError::WORDS), default: Some("raise"), guide: Some(BAD_ROWS), }

        /// Column whose length selects a row's bucket; each global step has rows of one bucket.
        bucket_by_length: String = { kind: OptionKind::Column, guide: Some(BUCKETS), }

        /// The longest length of each bucket, ascending.
        bucket_boundaries: Boundaries = { kind: OptionKind::Lengths, guide: Some(BUCKETS), }

        /// Samples per global step over all ranks; rows are grouped by this number.
        global_batch_size: u64 = {
            kind: OptionKind::Count,
            unit: Some("samples"),
            guide: Some(BUCKETS),
            check: Some(check_global_batch_size),
        }

        /// What to keep for later epochs, ranks and jobs: nothing, what is read of remote files, the part of each
        /// sample that is the same in every epoch, all of it, random results included, or what is measured to pay off.
        cache: CacheMode = { kind: OptionKind::Choice(CacheMode::WORDS), default: Some("none"), guide: Some(CACHE), }

        /// Whether calls on images keep their written order (exact), or run where images are smallest (relaxed), which
        /// changes the samples.
        order: CallOrder = { kind: OptionKind::Choice(CallOrder::WORDS), default: Some("exact"), guide: Some(ORDER), }
    }

    read {
        /// Samples per batch of one rank; with length buckets, the rank's share of the global batch.
        batch_size: u64 = { kind: OptionKind::Count, unit: Some("samples"), default: Some("32"), }

        /// The epoch to stop before, counted from 0.
        epochs: u64 = { kind: OptionKind::Count, default: Some("1"), in_python: false, }

        /// Whether to leave out an incomplete global batch at the end of an epoch.
        drop_last: bool = { kind: OptionKind::Switch, default: Some("false"), }
    }

    rank {
        /// This rank, counted from 0.
        #[serde(default)]
        rank: u64 = 0, { kind: OptionKind::Integer, default: Some("0"), environment: Some("RANK"), in_python: false, }

        /// The number of ranks that share the samples.
        #[serde(default = "one")]
        world_size: u64 = 1, {
            kind: OptionKind::Count,
            unit: Some("ranks"),
            default: Some("1"),
            environment: Some("WORLD_SIZE"),
            in_python: false,
        }

        /// Where to begin: an offset, an epoch and an offset, or the token of a batch.
        #[serde(default)]
        from: Start = Start::default(), { kind: OptionKind::Start, default: Some("0"), in_python: false, }
    }

    delivery {
        /// Which batches a rank gets: its share of each step (ordered), or the next that no rank has taken (dynamic).
        delivery: DeliveryMode = {
            kind: OptionKind::Choice(DeliveryMode::WORDS),
            default: Some("ordered"),
            guide: Some(SEVERAL_RANKS),
        }

        /// Name of the job; all its ranks give the same name, and no other job does. Dynamic delivery needs it; with
        /// ordered delivery, it lets the dispatcher refuse a second process of a rank, and ranks that do not fit.
        job: String = { kind: OptionKind::Name, guide: Some(SEVERAL_RANKS), }
    }

    job {
        /// Format of the files, such as parquet, arrow, csv, jsonl, mds or webdataset.
        format: String = { kind: OptionKind::Name, default: Some("parquet"), guide: Some(JOBS), }

        /// Approximate size of a file before compression.
        file_size: u64 = { kind: OptionKind::Bytes, default: Some("64MiB"), guide: Some(JOBS), }

        /// Compression of the files, such as zstd or none; the default is the format's.
        compression: String = { kind: OptionKind::Name, guide: Some(JOBS), }

        /// Columns whose values become names of folders, such as dt=2026-01-01.
        partition_by: String = { kind: OptionKind::Columns, guide: Some(JOBS), }

        /// Whether to write the samples in a random order of all rows, by seed; shuffle mixes the rows of a window.
        global_shuffle: bool = { kind: OptionKind::Switch, default: Some("false"), guide: Some(JOBS), }

        /// Columns to sort the samples by, as in ORDER BY, such as label, price DESC.
        sort_by: String = { kind: OptionKind::Columns, guide: Some(JOBS), }
    }

    session {
        /// Number of threads that compute, and of pieces of work under way; by default as many as keep all cores busy.
        threads: usize = { kind: OptionKind::Count, unit: Some("threads"), }

        /// Most cores to compute on; by default all that the process may use. Unlike threads, it does not limit how
        /// much work waits.
        cpu_limit: usize = { kind: OptionKind::Count, unit: Some("cores"), guide: Some(UNDER_WAY), }

        /// Memory for the rows of one feed: half for windows held ahead, a quarter for joined tables, an eighth for
        /// results under way; by default half of the container's or unit's limit.
        memory_limit: u64 = { kind: OptionKind::Memory, guide: Some(UNDER_WAY), }

        /// Folder that relative locations are relative to; the current folder by default.
        base: String = { kind: OptionKind::Folder, in_cli: false, }

        /// Folder or URL for what Forebay writes, such as quarantined rows.
        root: String = { kind: OptionKind::Folder, default: Some(".forebay"), environment: Some("FOREBAY_ROOT"), }

        /// Memory for windows held ahead of the reader; the window being read is always held.
        window_memory_limit: u64 = { kind: OptionKind::Bytes, default: Some("128MiB"), guide: Some(WINDOWS), }

        /// Memory for all tables that one feed joins; a feed that needs more is refused.
        lookup_memory_limit: u64 = { kind: OptionKind::Memory, default: Some("1GiB"), guide: Some(JOINS), }

        /// Memory for a query or a stage over whole tables; by default half of what the process may use.
        batch_memory_limit: u64 = { kind: OptionKind::Memory, guide: Some(QUERIES), }

        /// Folder of the local disk for rows of such a query or stage that do not fit in memory; that of temporary
        /// files by default.
        spill_folder: String = {
            kind: OptionKind::Folder,
            environment: Some("FOREBAY_SPILL_FOLDER"),
            guide: Some(QUERIES),
        }

        /// Refuses to run stages over whole tables: a pipeline that needs one is opened only if its rows are kept.
        no_precompute: bool = { kind: OptionKind::Switch, default: Some("false"), guide: Some(STAGES), }

        /// Folder of the local disk for what cache = 'source' keeps; "source" below the root by default.
        cache_folder: String = { kind: OptionKind::Folder, environment: Some("FOREBAY_CACHE_FOLDER"), guide: Some(SOURCE), }

        /// Most bytes that cache = 'source' keeps on the local disk, or cache = 'auto' under the root.
        cache_limit: u64 = { kind: OptionKind::Bytes, default: Some("10GiB"), guide: Some(SOURCE), }

        /// Lets clients of Flight SQL run any query over the tables, two at a time; otherwise they see rows of tables
        /// and pipelines.
        sql_queries: bool = { kind: OptionKind::Switch, default: Some("false"), guide: Some(SQL), }

        /// Most rows that one statement of Flight SQL returns; a longer result ends with an error.
        sql_rows_limit: u64 = {
            kind: OptionKind::Count,
            unit: Some("rows"),
            default: Some("1000000"),
            guide: Some(SQL),
        }
    }
}

const WINDOWS: (&str, &str) = ("windows", "guide.md#windows-how-well-it-shuffles-how-much-memory-it-takes");
const UNDER_WAY: (&str, &str) = ("work under way", "guide.md#what-a-process-does-by-itself");
const QUERIES: (&str, &str) = ("queries", "guide.md#look-at-whole-tables-select");
const STAGES: (&str, &str) = ("stages over whole tables", "guide.md#whole-tables-in-a-pipeline");
const CACHE: (&str, &str) = ("the cache", "guide.md#the-cache-nothing-is-computed-twice");
const ORDER: (&str, &str) = ("the order of operators", "guide.md#the-order-of-operators");
const SOURCE: (&str, &str) = ("remote files", "guide.md#remote-files-on-the-local-disk");
const BAD_ROWS: (&str, &str) = ("bad rows", "guide.md#bad-rows");
const BUCKETS: (&str, &str) = ("length buckets", "guide.md#padded-batches-length-buckets");
const SEVERAL_RANKS: (&str, &str) = ("several ranks", "cluster.md#several-readers-several-ranks");
const SQL: (&str, &str) = ("Flight SQL", "flight.md#tables-and-previews-flight-sql");
const JOBS: (&str, &str) = ("MATERIALIZE", "guide.md#write-samples-as-files-materialize");
const JOINS: (&str, &str) = ("joins", "guide.md#labels-and-features-of-other-tables-join");

fn one() -> u64 {
    1
}
