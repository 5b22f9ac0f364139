//! Tables that a program creates without SQL, from rows in memory or from files.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use forebay_arrays::{TensorType, digest, schema_digest, without_views};
use forebay_storage::{Dataset, DatasetSpec, TableFormat, format_at, formats};

use crate::error::{Error, Result};
use crate::session::{Session, misplaced};
use crate::table_format::{of_options, path_column_of_options, path_columns_of_options, with_hint};
use crate::table_pieces::{PieceLimits, in_pieces};

impl Session {
    /// Creates or replaces the table `name` over the files at `location`, like `CREATE OR REPLACE EXTERNAL TABLE`.
    /// Without the name of a [format](crate::formats), the files' extensions determine it. `options` are those of SQL.
    ///
    /// # Errors
    /// `Invalid` for an unknown or undetermined format; errors of listing the files; errors for column names that no
    /// table may have.
    pub async fn add_files(
        &self,
        name: &str,
        location: &str,
        format: Option<&str>,
        options: &[(String, String)],
    ) -> Result<()> {
        let _executing = self.executing.lock().await;
        let format = match format {
            Some(format) => formats::find(format),
            None => format_at(&self.stores, location).await,
        };
        let format = of_options(format.map_err(with_hint)?, location, options)?;
        let path_columns = path_columns_of_options(options)?;
        let path_column = path_column_of_options(options);
        let spec = DatasetSpec { location: location.to_owned(), format, schema: None, path_columns, path_column };
        let dataset = self.open_dataset(&spec).await.map_err(|error| misplaced(Error::from(error)))?;
        self.catalog.add_table(name, dataset)
    }

    /// Creates or replaces the table `name` over the files at all of these locations, in the order of their paths. The
    /// files have one format and the same columns.
    ///
    /// # Errors
    /// Those of [`add_files`](Self::add_files), and `Invalid` for locations of several formats or stores, and for a
    /// file at two of them.
    pub async fn add_all_files(
        &self,
        name: &str,
        locations: &[String],
        format: Option<&str>,
        options: &[(String, String)],
    ) -> Result<()> {
        let _executing = self.executing.lock().await;
        let mut found: Option<(&String, TableFormat)> = None;
        let mut unknown = None;
        for location in locations {
            let format = match format {
                Some(format) => formats::find(format),
                None => format_at(&self.stores, location).await,
            };
            let format = match format {
                Ok(format) => of_options(format, location, options)?,
                // The listing says whether the location exists, and has files of the others' format.
                Err(error) => {
                    unknown.get_or_insert(error);
                    continue;
                }
            };
            let (first, known) = found.get_or_insert((location, format.clone()));
            if known.descriptor().name != format.descriptor().name {
                return Err(Error::invalid(format!(
                    "the files of a table have one format, and \"{first}\" has {} and \"{location}\" has {}",
                    known.descriptor().name,
                    format.descriptor().name
                )));
            }
        }
        let Some((_, format)) = found else {
            let none = || Error::invalid("a table needs at least one location");
            return Err(unknown.map_or_else(none, with_hint));
        };
        let path_columns = path_columns_of_options(options)?;
        let (path_column, keeping) = (path_column_of_options(options), Some(self.keeping()));
        let dataset = Dataset::open_all(&self.stores, locations, &format, path_columns, path_column, keeping).await;
        self.catalog.add_table(name, dataset.map_err(|error| misplaced(Error::from(error)))?)
    }

    /// Creates or replaces the table `name` from rows in memory, which exists in this process only, and returns the
    /// name. Without a name, the table is named by its content, so equal rows are the same table in every process. It
    /// exists until every holder has [released](Self::release) it.
    ///
    /// # Errors
    /// `Invalid` for column names that no table may have, or rows that do not match `schema`.
    pub async fn register(&self, name: Option<&str>, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<String> {
        let _executing = self.executing.lock().await;
        let (schema, batches) = plain_rows(&schema, batches)
            .and_then(|(schema, batches)| {
                Ok((Arc::clone(&schema), in_pieces(&schema, &batches, PieceLimits::DEFAULT)?))
            })
            .map_err(|error| Error::invalid(format!("cannot create a table from these rows: {error}")))?;
        // Tables without rows have no batches.
        let mut content = blake3::Hasher::new();
        content.update(schema_digest(&schema).as_bytes());
        batches.iter().for_each(|batch| {
            content.update(digest(batch).as_bytes());
        });
        let content = content.finalize().to_hex();
        let table = name.map_or_else(|| format!("frame_{}", &content[..10]), str::to_owned);
        let dataset = Dataset::in_memory(&table, schema, batches, content.as_str())?;
        match name {
            Some(_) => self.catalog.add_table(&table, dataset)?,
            None => self.catalog.add_unnamed(&table, dataset)?,
        }
        Ok(table)
    }

    /// Releases one holder of a table that was [registered](Self::register) without a name; the last one removes the
    /// table. Pipelines over it keep its rows. Does not wait for running statements.
    pub fn release(&self, table: &str) {
        self.catalog.release(table);
    }
}

/// Replaces Arrow's view types, which other libraries' frames use and few readers support. Tensors without a null
/// among their numbers have the type that operators give them.
fn plain_rows(schema: &Schema, batches: Vec<RecordBatch>) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
    // A frame may have more bytes in one array than 32-bit offsets can address.
    let plain = |(index, field): (usize, &FieldRef)| {
        let data_type = match field.data_type() {
            DataType::FixedSizeList(numbers, count) if TensorType::of(field).is_some() => {
                let has_nulls =
                    |batch: &RecordBatch| batch.column(index).as_fixed_size_list().values().null_count() > 0;
                let nullable = batches.iter().any(has_nulls);
                DataType::FixedSizeList(Arc::new(numbers.as_ref().clone().with_nullable(nullable)), *count)
            }
            other => without_views(other, true),
        };
        field.as_ref().clone().with_data_type(data_type)
    };
    let fields: Vec<Field> = schema.fields().iter().enumerate().map(plain).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let cast_rows = |batch: RecordBatch| {
        let columns =
            batch.columns().iter().zip(schema.fields()).map(|(column, field)| cast(column, field.data_type()));
        RecordBatch::try_new(Arc::clone(&schema), columns.collect::<Result<_, _>>()?)
    };
    let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0).map(cast_rows).collect::<Result<_, _>>()?;
    Ok((schema, batches))
}
