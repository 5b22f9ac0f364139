//! Columns whose values are in the names of folders, as Hive and Spark write them:
//! `dt=2026-01-01/country=ch/x.parquet`.
//!
//! They follow from the files' paths alone, so a worker that pins a dataset finds them again without opening a file,
//! and every format has them. They stand after the columns of the files, and change neither row numbers nor sample ids.
//! On request, a last column has the path itself.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch, RecordBatchOptions, StringArray, UInt32Array,
};
use arrow::compute::{CastOptions, cast, cast_with_options, take};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use serde::{Deserialize, Serialize};

use crate::pinned::PinnedFile;
use crate::{Error, Result};

/// The name of a null, as Hive writes it.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";
/// The most bytes of a folder's name on common file systems.
const NAME_BYTES_MAX: usize = 255;

/// Which columns a table takes from the names of folders such as `dt=2026-01-01`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathColumns {
    /// All that the paths have, with inferred types.
    #[default]
    Inferred,
    /// None.
    Ignored,
    /// These. The type of a column of type `Null` is inferred.
    Declared(#[serde(with = "crate::schema::schema_text")] SchemaRef),
}

impl PathColumns {
    pub(crate) fn is_inferred(&self) -> bool {
        *self == Self::Inferred
    }

    /// The same, but none where columns are inferred and the files' folders do not name the same ones. For files whose
    /// folders need not be a table's.
    pub(crate) fn where_common(self, files: &[PinnedFile]) -> Self {
        let are_common = || {
            let texts = files.iter().map(pairs).collect::<Result<Vec<_>>>();
            texts.and_then(|texts| check_same(files, &texts)).is_ok()
        };
        if self.is_inferred() && !are_common() { Self::Ignored } else { self }
    }
}

/// The columns from the paths of some files, with a value for each file.
#[derive(Debug)]
pub(crate) struct PathValues {
    fields: Vec<Field>,
    values: Vec<ArrayRef>,
    /// The name of the last one, if it has the paths.
    path_column: Option<String>,
}

impl PathValues {
    pub(crate) fn none() -> Self {
        Self { fields: Vec::new(), values: Vec::new(), path_column: None }
    }

    /// The columns of these files: those of folders, and one of their paths if it has a name.
    pub(crate) fn of(columns: &PathColumns, path_column: Option<&str>, files: &[PinnedFile]) -> Result<Self> {
        let mut found = Self::of_folders(columns, files)?;
        let Some(name) = path_column else { return Ok(found) };
        if name.trim().is_empty() {
            return Err(Error::invalid("\"path_column\" must be the name of a column, got ''"));
        }
        if let Some(field) = found.fields.iter().find(|field| field.name().eq_ignore_ascii_case(name)) {
            let file = files.first().map_or("the table", PinnedFile::path);
            return Err(clash_of_path_column(
                name,
                &format!("\"{file}\" has a folder \"{}=…\" in its path", field.name()),
            ));
        }
        found.values.push(Arc::new(files.iter().map(|file| Some(file.relative())).collect::<StringArray>()));
        found.fields.push(Field::new(name, DataType::Utf8, false));
        found.path_column = Some(name.to_owned());
        Ok(found)
    }

    fn of_folders(columns: &PathColumns, files: &[PinnedFile]) -> Result<Self> {
        let texts = match columns {
            PathColumns::Ignored => return Ok(Self::none()),
            PathColumns::Inferred => {
                let texts = files.iter().map(pairs).collect::<Result<Vec<_>>>()?;
                check_same(files, &texts)?;
                texts
            }
            PathColumns::Declared(schema) => files.iter().map(|file| declared(schema, file)).collect::<Result<_>>()?,
        };
        let names: Vec<String> = texts.first().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        let mut found = Self::none();
        for (at, name) in names.into_iter().enumerate() {
            let texts: StringArray = texts.iter().map(|pairs| pairs[at].1.as_deref()).collect();
            let declared = match columns {
                PathColumns::Declared(schema) => Some(schema.field(at)),
                _ => None,
            };
            let data_type = declared.map(Field::data_type).filter(|it| !it.is_null()).cloned();
            let data_type = data_type.unwrap_or_else(|| inferred(&texts));
            let nullable = declared.is_none_or(Field::is_nullable);
            if let Some(null) = (0..texts.len()).find(|at| texts.is_null(*at) && !nullable) {
                return Err(Error::invalid(format!(
                    "\"{}\": column \"{name}\" of its path is null, and the table declares it as NOT NULL",
                    files[null].path()
                )));
            }
            found.values.push(typed(&name, &texts, &data_type, files)?);
            found.fields.push(Field::new(name, data_type, nullable));
        }
        Ok(found)
    }

    pub(crate) fn count(&self) -> usize {
        self.fields.len()
    }

    /// The columns among `generated` ones, which are made of the files' names, that none of these replaces.
    pub(crate) fn not_replaced(&self, generated: &SchemaRef) -> SchemaRef {
        let of_folders = &self.fields[..self.fields.len() - usize::from(self.path_column.is_some())];
        let is_kept = |field: &&Arc<Field>| of_folders.iter().all(|other| other.name() != field.name());
        Arc::new(Schema::new(generated.fields().iter().filter(is_kept).cloned().collect::<Vec<_>>()))
    }

    /// The columns of the files, followed by these.
    pub(crate) fn with_columns_of(&self, files: &SchemaRef, first: Option<&PinnedFile>) -> Result<SchemaRef> {
        if self.fields.is_empty() {
            return Ok(Arc::clone(files));
        }
        let found = |field: &Field| {
            let alike = files.fields().iter().filter(|other| other.name().eq_ignore_ascii_case(field.name()));
            alike.map(|other| other.name()).min_by_key(|name| *name != field.name())
        };
        if let Some((in_path, in_file)) = self.fields.iter().find_map(|it| Some((it.name(), found(it)?))) {
            if self.path_column.as_ref() == Some(in_path) {
                let file = first.map_or("the table", PinnedFile::path);
                return Err(clash_of_path_column(in_path, &format!("\"{file}\" has a column \"{in_file}\"")));
            }
            let in_path = if in_path == in_file { "another".to_owned() } else { format!("\"{in_path}\"") };
            return Err(Error::invalid(format!(
                "\"{}\" has a column \"{in_file}\" in the file and {in_path} in its path",
                first.map_or("the table", PinnedFile::path)
            ))
            .with_hint(format!("{IGNORE} reads the file's; or write the files without that column")));
        }
        let fields = files.fields().iter().map(|field| field.as_ref().clone()).chain(self.fields.iter().cloned());
        Ok(Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), files.metadata().clone())))
    }

    /// The columns of the files, of `all` columns that [`with_columns_of`](Self::with_columns_of) returned.
    pub(crate) fn without(&self, all: &SchemaRef) -> Result<SchemaRef> {
        let fields = all.fields();
        let own = fields
            .len()
            .checked_sub(self.count())
            .filter(|own| fields[*own..].iter().zip(&self.fields).all(|(field, expected)| field.as_ref() == expected));
        let Some(own) = own else {
            return Err(Error::invalid("the schema lacks the columns that the files' paths have"));
        };
        match self.count() {
            0 => Ok(Arc::clone(all)),
            _ => Ok(Arc::new(Schema::new_with_metadata(fields[..own].to_vec(), all.metadata().clone()))),
        }
    }

    /// The value of column `at` of these in file `file`, as an array of one.
    pub(crate) fn value(&self, at: usize, file: u32) -> ArrayRef {
        self.values[at].slice(file as usize, 1)
    }

    /// The requested columns, in their order and with the types of `output`: those of the file from `batch`, and those
    /// of the path of file `file`. Columns from `own` on are of the path.
    pub(crate) fn complete(
        &self,
        batch: &RecordBatch,
        own: usize,
        columns: &[usize],
        file: u32,
        output: &SchemaRef,
    ) -> Result<RecordBatch, ArrowError> {
        let mut next = batch.columns().iter();
        let at = UInt32Array::from_value(file, batch.num_rows());
        let complete = columns.iter().zip(output.fields()).map(|(column, field)| match column.checked_sub(own) {
            Some(of_path) => match field.data_type() {
                DataType::Dictionary(..) => self.as_dictionary(of_path, file, batch.num_rows()),
                _ => take(&self.values[of_path], &at, None),
            },
            None => next.next().cloned().ok_or_else(|| ArrowError::ComputeError("a column is missing".to_owned())),
        });
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(output), complete.collect::<Result<_, _>>()?, &options)
    }

    /// The text of a file in all of its rows.
    fn as_dictionary(&self, column: usize, file: u32, rows: usize) -> Result<ArrayRef, ArrowError> {
        let text = cast(&self.values[column].slice(file as usize, 1), &DataType::Utf8View)?;
        Ok(Arc::new(DictionaryArray::try_new(Int32Array::from_value(0, rows), text)?))
    }
}

fn clash_of_path_column(name: &str, other: &str) -> Error {
    Error::invalid(format!("the column of the files' paths is called \"{name}\", and {other}"))
        .with_hint("give the column of the paths another name in the option \"path_column\"")
}

/// A name and a value.
type Pair = (String, Option<String>);

/// The pairs in the folders of a file: those below the table's location, and those directly above it, so that a
/// location inside a partition has its columns.
fn pairs(file: &PinnedFile) -> Result<Vec<Pair>> {
    let folders = |path: &str| path.matches('/').count();
    let path = file.location.as_ref();
    let all: Vec<&str> = path.split('/').take(folders(path)).collect();
    let below = all.len().saturating_sub(folders(file.relative()));
    let is_pair = |folder: &&&str| folder.split_once('=').is_some_and(|(name, _)| !name.is_empty());
    let above = all[..below].iter().rev().take_while(is_pair).count();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for (name, value) in all[below - above..].iter().filter(is_pair).filter_map(|folder| folder.split_once('=')) {
        let (name, value) = (decoded(name), decoded(value));
        if !seen.insert(name.clone()) {
            return Err(Error::invalid(format!("\"{}\" has two folders \"{name}=…\" in its path", file.path()))
                .with_hint(ignore()));
        }
        found.push((name, Some(value).filter(|value| value != NULL)));
    }
    Ok(found)
}

const IGNORE: &str = "OPTIONS ('hive_partitioning' 'false'), hive_partitioning=False in Python,";

fn ignore() -> String {
    format!("{IGNORE} reads the files without columns of folders' names")
}

fn check_same(files: &[PinnedFile], texts: &[Vec<Pair>]) -> Result<()> {
    let names = |pairs: &[Pair]| pairs.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let shown = |pairs: &[Pair]| match pairs.is_empty() {
        true => "no folder of a column".to_owned(),
        false => pairs.iter().map(|(name, _)| format!("{name}=…")).collect::<Vec<_>>().join("/"),
    };
    let (Some(first_file), Some(first)) = (files.first(), texts.first()) else { return Ok(()) };
    match files.iter().zip(texts).find(|(_, other)| names(other) != names(first)) {
        Some((file, other)) => Err(Error::invalid(format!(
            "the path of \"{}\" has {}, but that of \"{}\" has {}",
            file.path(),
            shown(other),
            first_file.path(),
            shown(first)
        ))
        .with_hint(ignore())),
        None => Ok(()),
    }
}

/// The pairs of the declared columns.
fn declared(schema: &SchemaRef, file: &PinnedFile) -> Result<Vec<Pair>> {
    let found = pairs(file)?;
    let column = |field: &Arc<Field>| {
        let pair = found.iter().find(|(name, _)| name == field.name());
        pair.cloned().ok_or_else(|| {
            let name = field.name();
            let error = Error::invalid(format!("the path of \"{}\" has no folder \"{name}=…\"", file.path()));
            match found.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)) {
                Some((other, _)) => error.with_hint(format!("write \"{other}\", with the quotes: it has capitals")),
                None => error,
            }
        })
    };
    schema.fields().iter().map(column).collect()
}

/// The name of the folder for the rows whose column `name` has this value, as text.
///
/// # Errors
/// `Invalid` for the text that stands for nulls, and for a name that no file system takes.
pub fn folder_of(name: &str, value: Option<&str>) -> Result<String> {
    if value == Some(NULL) {
        return Err(Error::invalid(format!("column \"{name}\" has the text \"{NULL}\", which means null in a path")));
    }
    let folder = format!("{}={}", encoded(name), value.map_or_else(|| NULL.to_owned(), encoded));
    match folder.len() <= NAME_BYTES_MAX {
        true => Ok(folder),
        false => Err(Error::invalid(format!(
            "column \"{name}\" has a value of {} bytes, which is too long for the name of a folder",
            value.unwrap_or_default().len()
        ))),
    }
}

/// The text with percent escapes for all that has a meaning in paths, globs or URLs.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_alphanumeric() || matches!(character, '-' | '_' | '.') {
            true => encoded.push(character),
            false => character.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| encoded += &format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Integers, dates or texts.
fn inferred(texts: &StringArray) -> DataType {
    let all = |fits: fn(&str) -> bool| texts.null_count() < texts.len() && texts.iter().flatten().all(fits);
    // The zeros of the postal code 00501 are a part of it.
    let is_integer = |text: &str| text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    if all(is_integer) {
        DataType::Int64
    } else if all(is_date) {
        DataType::Date32
    } else {
        DataType::Utf8
    }
}

/// Whether the text is a date as in `2026-01-31`.
fn is_date(text: &str) -> bool {
    let digit = |at: usize, byte: u8| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() };
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| digit(at, byte))
        && cast_strictly(&StringArray::from(vec![text]), &DataType::Date32).is_ok()
}

/// Whether a value of this type keeps all of the text's value. Arrow's casts round and cut off.
fn keeps(text: &str, data_type: &DataType) -> bool {
    // A time zone may follow the digits.
    let fraction = text.rsplit_once('.').map_or("", |(_, it)| it);
    let end = fraction.find(|character: char| !character.is_ascii_digit()).unwrap_or(fraction.len());
    let places = fraction[..end].trim_end_matches('0').len();
    let digits = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    match data_type {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => {
            !text.contains(['e', 'E']) && usize::try_from(*scale).is_ok_and(|scale| places <= scale)
        }
        DataType::Date32 | DataType::Date64 => is_date(text),
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => places <= digits(unit),
        // Fractions are rounded in every reader, but numbers are ids.
        DataType::Float32 => text.parse::<i64>().map_or(true, |it| it as f32 as i128 == i128::from(it)),
        DataType::Float64 => text.parse::<i64>().map_or(true, |it| it as f64 as i128 == i128::from(it)),
        _ => true,
    }
}

/// The texts as values of a type that keeps them.
fn cast_exactly(texts: &StringArray, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    match texts.iter().flatten().find(|text| !keeps(text, data_type)) {
        Some(text) => Err(ArrowError::CastError(format!("\"{text}\" would lose digits"))),
        None => cast_strictly(texts, data_type),
    }
}

fn cast_strictly(texts: &StringArray, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(texts, data_type, &CastOptions { safe: false, ..CastOptions::default() })
}

fn typed(name: &str, texts: &StringArray, data_type: &DataType, files: &[PinnedFile]) -> Result<ArrayRef> {
    cast_exactly(texts, data_type).map_err(|error| {
        // The cast's error has the value but not the file.
        let bad = (0..texts.len()).find(|at| cast_exactly(&texts.slice(*at, 1), data_type).is_err());
        match bad.and_then(|at| files.get(at).map(|file| (file.path(), texts.value(at)))) {
            Some((file, value)) => Error::invalid(format!(
                "\"{file}\": the value \"{value}\" of column \"{name}\" in its path is not of type {data_type}"
            ))
            .with_hint("declare the column with another type, such as VARCHAR, in PARTITIONED BY"),
            None => Error::invalid(format!("column \"{name}\" of the paths cannot be read as {data_type}: {error}")),
        }
    })
}

/// The text without percent escapes. What is not an escape stays.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |offset: usize| bytes.get(at + offset).and_then(|byte| char::from(*byte).to_digit(16));
        match (bytes[at], digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, ..) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}
