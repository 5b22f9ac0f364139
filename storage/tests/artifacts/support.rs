//! A small job, and what every test asks of its artifact.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, Schema, SchemaRef};
use bytes::Bytes;
use forebay_storage::artifact::{Artifact, Catalog, Job, JobState, Lineage, Part};
use forebay_storage::{Dataset, DatasetSpec, PathColumns, Result, Stores, TableFormat};
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

pub(crate) const FINGERPRINT: &str = "f00d";
pub(crate) const PARTS: u64 = 3;
/// Rows of a part.
pub(crate) const ROWS: u64 = 40;

/// A number of the environment.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Waiting takes no time.
pub(crate) fn at_once(_: Duration) -> BoxFuture<'static, ()> {
    std::future::ready(()).boxed()
}

pub(crate) fn rows(part: u64) -> RecordBatch {
    let numbers = || (part * ROWS) as i64..((part + 1) * ROWS) as i64;
    let texts = StringArray::from_iter(numbers().map(|n| (n % 7 != 3).then(|| format!("00{n}"))));
    let columns: [(&str, ArrayRef); 2] =
        [("n", Arc::new(Int64Array::from_iter_values(numbers()))), ("text", Arc::new(texts))];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

/// The bytes of a part's file, in pieces.
pub(crate) fn encoded(part: u64, format: &str) -> Vec<Bytes> {
    let rows = rows(part);
    let mut bytes = Vec::new();
    match format {
        "parquet" => {
            let properties = WriterProperties::builder().set_max_row_group_row_count(Some(16)).build();
            let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties)).unwrap();
            writer.write(&rows).unwrap();
            writer.close().unwrap();
        }
        "csv" => arrow_csv::Writer::new(&mut bytes).write(&rows).unwrap(),
        "jsonl" => {
            let mut writer = arrow_json::LineDelimitedWriter::new(&mut bytes);
            writer.write(&rows).unwrap();
            writer.finish().unwrap();
        }
        _ => unreachable!("{format}"),
    }
    Bytes::from(bytes).chunks(300).map(Bytes::copy_from_slice).collect()
}

pub(crate) fn lineage() -> Lineage {
    Lineage {
        fingerprint: FINGERPRINT.to_owned(),
        schema: rows(0).schema(),
        folders: Schema::empty().into(),
        sources: BTreeMap::from([("query".to_owned(), "SELECT 1".to_owned())]),
        costs: json!({"seconds": 1.5}),
    }
}

pub(crate) async fn write_part(job: &Job, part: u64, format: &str) -> Result<Part> {
    let mut file = job.create(&format!("part-{part:06}"), format)?;
    for piece in encoded(part, format) {
        file.write(piece).await?;
    }
    let files = vec![job.complete(part, file, ROWS).await?];
    let bad_reasons = BTreeMap::from([("not a number".to_owned(), 1)]);
    let part = Part { files, rows_in: ROWS + 1, bad_rows: 1, bad_reasons, costs: Value::Null, facts: Value::Null };
    Ok(part)
}

/// The index of a job with these parts.
pub(crate) fn index(parts: &BTreeMap<u64, Part>) -> Vec<(String, Bytes)> {
    let names: Vec<&str> = parts.values().flat_map(|part| &part.files).map(|file| file.name.as_str()).collect();
    vec![("index.json".to_owned(), json!({ "shards": names }).to_string().into())]
}

/// Runs the job `id` from wherever it is to its end, as the process `holder`.
pub(crate) async fn run(stores: &Stores, root: &str, url: &str, id: &str, holder: &str) -> Result<Artifact> {
    run_as(stores, root, url, id, holder, "parquet").await
}

pub(crate) async fn run_as(
    stores: &Stores,
    root: &str,
    url: &str,
    id: &str,
    holder: &str,
    format: &str,
) -> Result<Artifact> {
    let job = match Job::open(stores, url, id).await? {
        JobState::Committed(artifact) => return Ok(artifact),
        JobState::Open(job) => job,
    };
    let mut claim = job.claim(holder, &at_once).await?.expect("nobody else gives a sign");
    let mut parts = job.parts().await?;
    for number in 0..PARTS {
        if let Entry::Vacant(missing) = parts.entry(number) {
            let part = write_part(&job, number, format).await?;
            missing.insert(job.record(number, part).await?);
            claim.beat().await?;
        }
    }
    Catalog::new(stores, root)?.record(FINGERPRINT, url).await?;
    let artifact = job.commit(job.manifest(&parts, lineage())?, index(&parts)).await?;
    claim.release().await?;
    Ok(artifact)
}

pub(crate) fn spec(url: &str, format: &str) -> DatasetSpec {
    DatasetSpec {
        location: url.to_owned(),
        format: TableFormat::named(format).unwrap(),
        schema: None,
        path_columns: PathColumns::Inferred,
        path_column: None,
    }
}

/// All rows, with their sample ids.
pub(crate) async fn read(dataset: &Dataset) -> Result<Vec<(u64, i64, Option<String>)>> {
    let mut read = Vec::new();
    for range in dataset.row_ranges(200) {
        let rows = dataset.read(&range, &[0, 1]).await?;
        assert_eq!(rows.bad, []);
        let (numbers, texts) = (rows.batch.column(0).as_primitive::<Int64Type>(), rows.batch.column(1));
        for (at, id) in rows.sample_ids.values().iter().enumerate() {
            let text = texts.as_string::<i32>();
            let text = (!arrow::array::Array::is_null(text, at)).then(|| text.value(at).to_owned());
            read.push((*id, numbers.value(at), text));
        }
    }
    Ok(read)
}

pub(crate) async fn open_and_read(stores: &Stores, url: &str) -> Result<Vec<(u64, i64, Option<String>)>> {
    read(&Dataset::open(stores, &spec(url, "parquet")).await?).await
}

pub(crate) fn expected() -> Vec<(u64, i64, Option<String>)> {
    let row = |n: u64| (n, n as i64, (n % 7 != 3).then(|| format!("00{n}")));
    (0..PARTS * ROWS).map(row).collect()
}

pub(crate) fn schema() -> SchemaRef {
    rows(0).schema()
}

/// Fails if a folder has objects beside the artifact, generations, and records of the artifact's job.
pub(crate) async fn no_orphans(stores: &Stores, url: &str) -> std::result::Result<(), String> {
    let names = stores.list(url).await.map_err(|error| error.to_string())?;
    let names = names.into_iter().map(|object| object.name).filter(|name| !name.starts_with("_forebay/generations/"));
    let names: BTreeSet<String> = names.collect();
    let artifact = match Artifact::find(stores, url).await {
        Ok(Some(artifact)) => artifact,
        Ok(None) | Err(_) => return if names.is_empty() { Ok(()) } else { Err(format!("left in {url}: {names:?}")) },
    };
    let manifest = artifact.manifest();
    let own = format!("_forebay/jobs/{}/{}/", manifest.job, artifact.generation());
    let files = manifest.files.iter().flat_map(|file| [file.name.clone(), format!("_forebay/blocks/{}", file.name)]);
    let expected: BTreeSet<String> = files.chain(manifest.index.iter().map(|file| file.name.clone())).collect();
    let found: BTreeSet<String> = names.into_iter().filter(|name| !name.starts_with(&own)).collect();
    if found == expected { Ok(()) } else { Err(format!("in {url} are {found:?} instead of {expected:?}")) }
}

/// Copies all objects below a folder.
pub(crate) async fn copy(stores: &Stores, from: &str, to: &str) {
    for object in stores.list(from).await.unwrap() {
        let bytes = stores.get(&format!("{from}/{}", object.name)).await.unwrap();
        stores.put(&format!("{to}/{}", object.name), bytes).await.unwrap();
    }
}
