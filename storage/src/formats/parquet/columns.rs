//! Determines the columns of a dataset from the columns of its files, and reads each file with the dataset's types.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;

use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::text_types::unified;
use crate::widening::Drift;
use crate::{Error, Result};

/// The first file's columns, followed by those that later files add. A column is nullable if any file has it nullable
/// or lacks it. Files may differ in the order of columns, in the layout of texts and bytes, and as `drift` allows.
pub(super) fn merge_schemas(files: &[PinnedFile], footers: &[ArrowReaderMetadata], drift: Drift) -> Result<SchemaRef> {
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
    // Each field with the file that it has its type from.
    let with_file = |field: &FieldRef, at: usize| (field.as_ref().clone(), at);
    let mut fields: Vec<(Field, usize)> = first.schema().fields().iter().map(|field| with_file(field, 0)).collect();
    for (at, (file, footer)) in files.iter().zip(footers).enumerate().skip(1) {
        let other = footer.schema();
        for (field, from) in &mut fields {
            let Ok(found) = other.field_with_name(field.name()) else {
                if drift.missing {
                    field.set_nullable(true);
                    continue;
                }
                return Err(lacking(file, field, &files[*from]));
            };
            let Some(data_type) = drift.unify(field.data_type(), found.data_type()) else {
                return Err(Error::invalid(format!(
                    "\"{}\" has column \"{}\" as {}, but \"{}\" has it as {}; give files of one dataset the same \
                     columns",
                    file.path(),
                    field.name(),
                    found.data_type(),
                    files[*from].path(),
                    field.data_type()
                )));
            };
            field.set_nullable(field.is_nullable() || found.is_nullable());
            if data_type != *field.data_type() {
                (*field, *from) = (field.clone().with_data_type(data_type), at);
            }
        }
        let known: HashSet<&str> = fields.iter().map(|(field, _)| field.name().as_str()).collect();
        let further: Vec<&FieldRef> =
            other.fields().iter().filter(|field| !known.contains(field.name().as_str())).collect();
        if let Some(extra) = further.first().filter(|_| !drift.missing) {
            return Err(Error::invalid(format!(
                "\"{}\" has column \"{}\", which \"{}\" lacks; give files of one dataset the same columns",
                file.path(),
                extra.name(),
                first_file.path()
            )));
        }
        let further: Vec<(Field, usize)> = further.into_iter().map(|field| with_file(field, at)).collect();
        fields.extend(further.into_iter().map(|(field, at)| (field.with_nullable(true), at)));
    }
    Ok(Arc::new(Schema::new(fields.into_iter().map(|(field, _)| field).collect::<Vec<_>>())))
}

fn lacking(file: &PinnedFile, field: &Field, other: &PinnedFile) -> Error {
    Error::invalid(format!(
        "\"{}\" lacks column \"{}\", which \"{}\" has; give files of one dataset the same columns",
        file.path(),
        field.name(),
        other.path()
    ))
}

/// The position in the file of each column of `schema`, if it has the column, or `None` unless the file's types can be
/// read as the schema's.
pub(super) fn positions(schema: &Schema, file: &Schema) -> Option<Vec<Option<usize>>> {
    let position = |field: &FieldRef| {
        let Some((at, found)) = file.column_with_name(field.name()) else {
            return field.is_nullable().then_some(None);
        };
        let unified = Drift::ALL.unify(field.data_type(), found.data_type());
        let fits = unified.as_ref() == Some(field.data_type()) && (field.is_nullable() || !found.is_nullable());
        fits.then_some(Some(at))
    };
    schema.fields().iter().map(position).collect()
}

/// A file's metadata for reading its columns, which are at these positions, in the layouts of `schema`. Columns that
/// are narrower in the file are read as they are.
pub(super) fn with_types_of(
    schema: &Schema,
    positions: &[Option<usize>],
    file: ArrowReaderMetadata,
) -> Result<ArrowReaderMetadata, ParquetError> {
    let mut types = vec![None; file.schema().fields().len()];
    for (field, at) in schema.fields().iter().zip(positions) {
        let Some(at) = *at else { continue };
        let found = file.schema().field(at).data_type();
        if found != field.data_type() && unified(field.data_type(), found).as_ref() == Some(field.data_type()) {
            types[at] = Some(field.data_type().clone());
        }
    }
    if types.iter().all(Option::is_none) {
        return Ok(file);
    }
    let options = ArrowReaderOptions::new().with_schema(retyped(file.schema(), |at| types[at].clone()));
    ArrowReaderMetadata::try_new(Arc::clone(file.metadata()), options)
}
