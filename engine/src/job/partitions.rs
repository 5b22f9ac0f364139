//! The folders of a job's files: rows with different values of some columns are in different folders.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{cast, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, SortField};
use forebay_storage::folder_of;
use forebay_storage::writers::OutputFormat;

use crate::error::{Error, Result};

/// The most folders that the rows of one file of a job may be divided into. Each has a file of its own.
pub(super) const FOLDERS_PER_FILE_MAX: usize = 1000;

/// Rows by the paths of their folders, which end with a slash.
pub(super) type Divided = BTreeMap<String, Vec<RecordBatch>>;

/// Which columns of a feed's samples are names of folders.
#[derive(Debug)]
pub(super) struct Partitions {
    /// Their indices among the columns of samples, outermost folder first.
    columns: Vec<usize>,
    /// The indices of the others, which are in the files.
    in_files: Vec<usize>,
    /// The columns of the files.
    pub(super) file_schema: SchemaRef,
    /// The columns of the folders, with the types that readers give them.
    pub(super) folder_schema: SchemaRef,
}

impl Partitions {
    /// The division of samples with `schema` by the columns that `names` lists, separated by commas.
    ///
    /// # Errors
    /// `Invalid` for a column that does not exist, comes twice or has no values that a folder can be named by, if no
    /// column is left for the files, and for a format whose readers know no folders.
    pub(super) fn new(schema: &SchemaRef, names: Option<&str>, format: &OutputFormat) -> Result<Self> {
        let names: Vec<&str> = names.into_iter().flat_map(|names| names.split(',')).map(str::trim).collect();
        let descriptor = format.descriptor();
        if !names.is_empty() && !descriptor.may_be_partitioned {
            return Err(Error::invalid(format!("readers of {} files know no folders of values", descriptor.name))
                .with_hint("leave out \"partition_by\", or write parquet, arrow, csv or jsonl"));
        }
        let mut columns: Vec<usize> = Vec::new();
        for name in names {
            let column = column(schema, name)?;
            if columns.contains(&column) {
                return Err(Error::invalid(format!("\"partition_by\" names the column \"{name}\" twice")));
            }
            check_type(schema.field(column))?;
            columns.push(column);
        }
        let in_files: Vec<usize> = (0..schema.fields().len()).filter(|index| !columns.contains(index)).collect();
        if in_files.is_empty() && !columns.is_empty() {
            return Err(Error::invalid("\"partition_by\" names all columns, and files need at least one"));
        }
        let of_folder = |index: &usize| {
            let field = schema.field(*index);
            Field::new(field.name(), value_type(field.data_type()).clone(), field.is_nullable())
        };
        let folder_schema = Arc::new(Schema::new(columns.iter().map(of_folder).collect::<Vec<_>>()));
        let file_schema = Arc::new(schema.project(&in_files).map_err(undivided)?);
        Ok(Self { columns, in_files, file_schema, folder_schema })
    }

    /// The rows of some samples by their folders, without the folders' columns. Rows keep their order.
    ///
    /// # Errors
    /// `Invalid` for a value that cannot be the name of a folder, and for too many values.
    pub(super) fn divided(&self, batches: Vec<RecordBatch>) -> Result<Divided> {
        let mut divided = Divided::new();
        if self.columns.is_empty() {
            divided.insert(String::new(), batches);
            return Ok(divided);
        }
        for batch in batches {
            let rows = self.in_files(&batch)?;
            for (folder, indices) in self.folders(&batch)? {
                divided.entry(folder).or_default().push(take_record_batch(&rows, &indices).map_err(undivided)?);
            }
            self.check_count(divided.len())?;
        }
        Ok(divided)
    }

    /// The columns of a batch that are in files.
    pub(super) fn in_files(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        batch.project(&self.in_files).map_err(undivided)
    }

    /// The names of the folders' columns.
    pub(super) fn names(&self) -> Vec<String> {
        self.folder_schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Refuses so many folders that each would have few rows.
    pub(super) fn check_count(&self, folders: usize) -> Result<()> {
        if folders <= FOLDERS_PER_FILE_MAX {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "consecutive samples have more than {FOLDERS_PER_FILE_MAX} values of \"{}\", and each would be a folder",
            self.names().join("\", \"")
        ))
        .with_hint("partition by a column with fewer values, such as the day of a time or hash_bucket(user, 100)"))
    }

    /// The rows of a batch by their folders, in the order in which these come.
    fn folders(&self, batch: &RecordBatch) -> Result<Vec<(String, UInt32Array)>> {
        let columns = self.columns.iter().zip(self.folder_schema.fields());
        let values: Result<Vec<_>, _> =
            columns.map(|(column, field)| cast(batch.column(*column), field.data_type())).collect();
        let values = values.map_err(undivided)?;
        let sort = self.folder_schema.fields().iter().map(|field| SortField::new(field.data_type().clone()));
        let keys = RowConverter::new(sort.collect()).and_then(|converter| converter.convert_columns(&values));
        let keys = keys.map_err(undivided)?;
        let mut seen: HashMap<_, usize> = HashMap::new();
        let mut folders: Vec<Vec<u32>> = Vec::new();
        for (row, key) in (0u32..).zip(keys.iter()) {
            match seen.entry(key) {
                Entry::Occupied(folder) => folders[*folder.get()].push(row),
                Entry::Vacant(folder) => {
                    folder.insert(folders.len());
                    folders.push(vec![row]);
                }
            }
        }
        self.check_count(folders.len())?;
        let texts: Result<Vec<_>, _> = values.iter().map(|values| cast(values, &DataType::Utf8)).collect();
        let texts = texts.map_err(undivided)?;
        let named = folders.into_iter().map(|rows| {
            let row = rows[0] as usize;
            let mut path = String::new();
            for (field, texts) in self.folder_schema.fields().iter().zip(&texts) {
                let texts = texts.as_string::<i32>();
                path += &folder_of(field.name(), texts.is_valid(row).then(|| texts.value(row)))?;
                path.push('/');
            }
            Ok((path, UInt32Array::from(rows)))
        });
        named.collect()
    }
}

/// The index of the column with exactly this name.
fn column(schema: &SchemaRef, name: &str) -> Result<usize> {
    schema.index_of(name).map_err(|_| {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        Error::invalid(format!("\"partition_by\" names the column \"{name}\", which is not there"))
            .with_hint(format!("columns: {}", names.join(", ")))
    })
}

fn check_type(field: &Field) -> Result<()> {
    let (name, data_type) = (field.name(), field.data_type());
    if name.starts_with(['.', '_']) || name.is_empty() {
        return Err(Error::invalid(format!(
            "\"partition_by\" names the column \"{name}\", whose folders would be hidden"
        ))
        .with_hint("give the column another name in the query"));
    }
    let value = value_type(data_type);
    if value.is_integer() || matches!(value, DataType::Utf8 | DataType::Boolean | DataType::Date32) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "\"partition_by\" takes columns of texts, integers, booleans and dates, and \"{name}\" is {data_type}"
    ))
    .with_hint("give a time's date: CAST(t AS DATE); a float's bucket: bucketize(x, [1, 2]); a text of other values"))
}

/// The type of the values that readers find in the names of folders.
fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => value_type(values),
        DataType::LargeUtf8 | DataType::Utf8View => &DataType::Utf8,
        other => other,
    }
}

fn undivided(error: ArrowError) -> Error {
    Error::internal(format!("samples cannot be divided into folders: {error}"))
}
