//! Folders for tests, and files to write there.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use bytes::Bytes;
use forebay_storage::formats::{find, names};
use forebay_storage::{Dataset, DatasetSpec, PathColumns, RangeRows, Result, Stores, TableFormat};
use object_store::ObjectStoreExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use tempfile::TempDir;

/// A format with the defaults of its options.
pub(crate) fn stored_as(format: &str) -> TableFormat {
    TableFormat::named(format).unwrap()
}

/// CSV with the usual options.
pub(crate) fn csv_table() -> TableFormat {
    stored_as("csv")
}

pub(crate) fn csv_with(options: &[(&str, &str)]) -> TableFormat {
    let given: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    TableFormat::new(find("csv").unwrap(), "", &given).unwrap()
}

/// Every registered format.
pub(crate) fn all_formats() -> Vec<TableFormat> {
    names().map(stored_as).collect()
}

/// A separate folder in some store.
pub(crate) struct TestFolder {
    stores: Stores,
    root: String,
    folder: Option<TempDir>,
}

impl TestFolder {
    /// One folder in every kind of store that needs no server.
    pub(crate) fn all() -> [Self; 2] {
        [Self::file(), Self::memory()]
    }

    pub(crate) fn file() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().to_str().unwrap().to_owned();
        Self { stores: Stores::new(), root, folder: Some(folder) }
    }

    pub(crate) fn memory() -> Self {
        Self { stores: Stores::new(), root: "memory:///root".to_owned(), folder: None }
    }

    /// The path that users see for a file here.
    pub(crate) fn display(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.as_ref().unwrap().path().join(name)
    }

    pub(crate) fn stores(&self) -> Stores {
        self.stores.clone()
    }

    pub(crate) async fn put(&self, name: &str, bytes: impl Into<Bytes>) {
        self.stores.put(&self.display(name), bytes.into()).await.unwrap();
    }

    /// Backdates a local file by years, so that the next change is not within the same millisecond.
    pub(crate) fn age(&self, name: &str) {
        if self.folder.is_some() {
            let file = std::fs::File::options().append(true).open(self.path(name)).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30)).unwrap();
        }
    }

    pub(crate) async fn delete(&self, name: &str) {
        let (store, path, _) = self.stores.store(&self.display(name)).unwrap();
        store.delete(&path).await.unwrap();
    }

    pub(crate) async fn open(&self, name: &str, format: TableFormat) -> Result<Dataset> {
        self.open_with(name, format, None).await
    }

    pub(crate) async fn open_with(
        &self,
        name: &str,
        format: TableFormat,
        schema: Option<SchemaRef>,
    ) -> Result<Dataset> {
        let location = self.display(name);
        let spec = DatasetSpec { location, format, schema, path_columns: PathColumns::Inferred, path_column: None };
        Dataset::open(&self.stores, &spec).await
    }

    /// The stores of another process, except that memory stores are shared.
    pub(crate) fn stores_elsewhere(&self) -> Stores {
        self.stores.clone().with_base(std::path::Path::new("/another/base"))
    }
}

/// The numbers in one column of all rows, which must be good and have the ids 0, 1, 2 and so on.
pub(crate) async fn read_all(dataset: &Dataset, range_bytes_target: u64, column: usize) -> Vec<i64> {
    let (mut ids, mut numbers) = (Vec::new(), Vec::new());
    for range in dataset.row_ranges(range_bytes_target) {
        let rows = dataset.read(&range, &[column]).await.unwrap();
        assert_eq!(rows.bad, []);
        ids.extend(ids_of(&rows));
        numbers.extend_from_slice(rows.batch.column(0).as_primitive::<Int64Type>().values());
    }
    assert_eq!(ids, (0..dataset.snapshot().rows()).collect::<Vec<_>>());
    numbers
}

pub(crate) fn ids_of(rows: &RangeRows) -> Vec<u64> {
    rows.sample_ids.values().to_vec()
}

/// Columns `n`, a number, and `text`.
pub(crate) fn batch(numbers: Range<i64>) -> RecordBatch {
    let text: StringArray = numbers.clone().map(|n| Some(format!("text {n}"))).collect();
    let columns: [(&str, ArrayRef); 2] = [("n", Arc::new(Int64Array::from_iter(numbers))), ("text", Arc::new(text))];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// One row group, without an offset index.
pub(crate) fn parquet_bytes(numbers: Range<i64>) -> Vec<u8> {
    let properties =
        WriterProperties::builder().set_offset_index_disabled(true).set_statistics_enabled(EnabledStatistics::None);
    write(&batch(numbers), properties.build())
}

/// Several row groups of several pages, with an offset index.
pub(crate) fn parquet_bytes_split(numbers: Range<i64>, group_rows: usize) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(50);
    write(&batch(numbers), properties.build())
}

pub(crate) fn write(batch: &RecordBatch, properties: WriterProperties) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

pub(crate) fn csv(numbers: Range<i64>) -> String {
    let rows = numbers.map(|n| format!("{n},\"text\n{n}\"\r\n"));
    std::iter::once("n,text\r\n".to_owned()).chain(rows).collect()
}

pub(crate) fn jsonl(numbers: Range<i64>) -> String {
    numbers.map(|n| format!("{{\"n\": {n}, \"text\": \"text {n}\"}}\n\n")).collect()
}
