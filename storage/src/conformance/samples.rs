//! A format's samples in a folder: written, damaged and opened.

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use object_store::ObjectStoreExt;

use crate::dataset::Dataset;
use crate::dataset_spec::DatasetSpec;
use crate::formats::format::{Format, SampleFile};
use crate::formats::table_format::TableFormat;
use crate::path_columns::PathColumns;
use crate::snapshot::Snapshot;
use crate::{Error, Stores};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err(format!($($message)+)),
        }
    };
}
pub(super) use ensure;

/// The folder for the samples of a format.
pub(super) struct Samples<'a> {
    pub(super) stores: &'a Stores,
    pub(super) folder: String,
    pub(super) format: TableFormat,
}

impl<'a> Samples<'a> {
    /// The samples of a format for each set of options that it tests.
    pub(super) fn all(format: &'static dyn Format, stores: &'a Stores, folder: &str) -> Result<Vec<Self>, String> {
        let of_options = |(number, options): (usize, &&[(&str, &str)])| {
            let given: Vec<_> = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let format = TableFormat::new(format, "", &given).map_err(|error| error.to_string())?;
            Ok(Samples { stores, folder: format!("{folder}/{}_{number}", format.descriptor().name), format })
        };
        format.sample_options().iter().enumerate().map(of_options).collect()
    }

    /// The name of a file with the format's first extension.
    pub(super) fn name(&self, stem: &str) -> String {
        format!("{stem}.{}", self.format.descriptor().extensions[0])
    }

    pub(super) fn sample(&self, name: &str, numbers: Range<u64>) -> SampleFile {
        self.format.format().sample(name, numbers, self.format.options())
    }

    /// The columns that tables of the format may declare: none, or the columns of `sample`.
    pub(super) fn declared(&self, sample: &SampleFile) -> Vec<Option<SchemaRef>> {
        let columns = self.format.descriptor().may_declare_columns.then(|| Some(sample.rows.schema()));
        [None].into_iter().chain(columns).collect()
    }

    pub(super) async fn put(&self, name: &str, bytes: Vec<u8>) {
        self.stores.put(&format!("{}/{name}", self.folder), bytes.into()).await.expect("the folder is writable");
    }

    pub(super) async fn delete(&self, name: &str) {
        let location = self.stores.locate(&format!("{}/{name}", self.folder)).expect("it was written");
        location.store.delete(&location.path).await.expect("it was written");
    }

    pub(super) async fn open(&self, name: &str, schema: Option<SchemaRef>) -> Result<Dataset, Error> {
        let location = format!("{}/{name}", self.folder);
        Dataset::open(
            self.stores,
            &DatasetSpec {
                location,
                format: self.format.clone(),
                schema,
                path_columns: PathColumns::Inferred,
                path_column: None,
            },
        )
        .await
    }

    /// Opens the dataset as another process does.
    pub(super) fn travelled(&self, dataset: &Dataset) -> Result<Dataset, String> {
        let text = |error: serde_json::Error| error.to_string();
        let spec = serde_json::to_string(dataset.spec()).map_err(text)?;
        let snapshot = serde_json::to_string(&**dataset.snapshot()).map_err(text)?;
        let spec: DatasetSpec = serde_json::from_str(&spec).map_err(text)?;
        let snapshot: Snapshot = serde_json::from_str(&snapshot).map_err(text)?;
        ensure!(spec == *dataset.spec() && snapshot == **dataset.snapshot(), "its JSON reads as another dataset");
        Dataset::pinned(self.stores, &spec, snapshot, Arc::clone(dataset.schema())).map_err(|error| error.to_string())
    }
}
