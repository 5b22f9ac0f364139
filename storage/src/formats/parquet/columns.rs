//! Determines the columns of a dataset from the columns of its files, and reads each file with the dataset's types.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;

use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::text_types::unified;
use crate::{Error, Result};

/// The first file's columns, nullable if any file has them nullable. Files may differ only in the order of columns, and
/// in the layout of texts and bytes: see [`unified`].
pub(super) fn merge_schemas(files: &[PinnedFile], footers: &[ArrowReaderMetadata]) -> Result<SchemaRef> {
    let (Some(first_file), Some(first)) = (files.first(), footers.first()) else {
        return Ok(Arc::new(Schema::empty()));
    };
    for (file, footer) in files.iter().zip(footers) {
        let fields = footer.schema().fields();
        let mut names = HashSet::with_capacity(fields.len());
        if let Some(twice) = fields.iter().find(|field| !names.insert(field.name())) {
            return Err(Error::data(format!("\"{}\" has two columns \"{}\"", file.path(), twice.name()))
                .with_hint("write the file again with another name for one of them"));
        }
    }
    let mut fields: Vec<Field> = first.schema().fields().iter().map(|f| f.as_ref().clone()).collect();
    for (file, footer) in files.iter().zip(footers).skip(1) {
        let other = footer.schema();
        for field in &mut fields {
            let Ok(found) = other.field_with_name(field.name()) else {
                return Err(Error::invalid(format!(
                    "\"{}\" lacks column \"{}\", which \"{}\" has; give files of one dataset the same columns",
                    file.path(),
                    field.name(),
                    first_file.path()
                )));
            };
            let Some(data_type) = unified(field.data_type(), found.data_type()) else {
                return Err(Error::invalid(format!(
                    "\"{}\" has column \"{}\" as {}, but \"{}\" has it as {}; give files of one dataset the same \
                     columns",
                    file.path(),
                    field.name(),
                    found.data_type(),
                    first_file.path(),
                    field.data_type()
                )));
            };
            field.set_nullable(field.is_nullable() || found.is_nullable());
            field.set_data_type(data_type);
        }
        if let Some(extra) = other.fields().iter().find(|f| first.schema().field_with_name(f.name()).is_err()) {
            return Err(Error::invalid(format!(
                "\"{}\" has column \"{}\", which \"{}\" lacks; give files of one dataset the same columns",
                file.path(),
                extra.name(),
                first_file.path()
            )));
        }
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// The position in the file of each column of `schema`, or `None` unless the file has all of them with types that can
/// be read as the schema's.
pub(super) fn positions(schema: &Schema, file: &Schema) -> Option<Vec<usize>> {
    let position = |field: &FieldRef| {
        let (at, found) = file.column_with_name(field.name())?;
        let is_layout =
            unified(field.data_type(), found.data_type()).is_some_and(|unified| unified == *field.data_type());
        let fits = is_layout && (field.is_nullable() || !found.is_nullable());
        fits.then_some(at)
    };
    schema.fields().iter().map(position).collect()
}

/// A file's metadata for reading its columns with the types of `schema`, whose columns are at these positions.
pub(super) fn with_types_of(
    schema: &Schema,
    positions: &[usize],
    file: ArrowReaderMetadata,
) -> Result<ArrowReaderMetadata, ParquetError> {
    let differs = |(field, at): (&FieldRef, &usize)| file.schema().field(*at).data_type() != field.data_type();
    if !schema.fields().iter().zip(positions).any(differs) {
        return Ok(file);
    }
    let mut types = vec![None; file.schema().fields().len()];
    for (field, at) in schema.fields().iter().zip(positions) {
        types[*at] = Some(field.data_type().clone());
    }
    let options = ArrowReaderOptions::new().with_schema(retyped(file.schema(), |at| types[at].clone()));
    ArrowReaderMetadata::try_new(Arc::clone(file.metadata()), options)
}
