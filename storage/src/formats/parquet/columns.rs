//! Determines the columns of a dataset from the columns of its files, and reads each file with the dataset's types.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Fields, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::ParquetError;

use super::footer::FIXED_BYTES_MAX;
use crate::dictionary::retyped;
use crate::pinned::PinnedFile;
use crate::source_file::RowGroup;
use crate::text_types::unified;
use crate::widening::{Drift, alike, null_bytes};
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
        if drift.missing && !drift.alike {
            check_names(file, other.fields(), &fields, files)?;
        }
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
                ))
                .with_hint("write the files of one of these types again with the other, or name them apart"));
            };
            check_extension(field, &files[*from], found, file)?;
            // Writers may declare a column of only nulls as not null.
            let has_null_type = field.data_type().is_null() || found.data_type().is_null();
            field.set_nullable(field.is_nullable() || found.is_nullable() || has_null_type);
            if data_type != *field.data_type() {
                let described = if field.data_type().is_null() { found } else { &*field };
                (*field, *from) = (field.clone().with_metadata(described.metadata().clone()), at);
                *field = field.clone().with_data_type(data_type);
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

/// Refuses a file that looks like one of another table, whose columns would be null in half of the rows.
fn check_names(file: &PinnedFile, own: &Fields, known: &[(Field, usize)], files: &[PinnedFile]) -> Result<()> {
    let names: HashSet<&str> = known.iter().map(|(field, _)| field.name().as_str()).collect();
    let is_new = |field: &&FieldRef| !names.contains(field.name().as_str());
    let further: Vec<&FieldRef> = own.iter().filter(is_new).collect();
    if further.is_empty() {
        return Ok(());
    }
    let all: Fields = known.iter().map(|(field, _)| field.clone()).collect();
    for field in &further {
        if let Some(other) = alike(field.name(), &all, own) {
            let from = known.iter().find(|(field, _)| field.name() == other.name()).map_or(0, |(_, from)| *from);
            return Err(Error::invalid(format!(
                "\"{}\" has column \"{}\", and \"{}\" has \"{}\": the names differ only by case",
                file.path(),
                field.name(),
                files[from].path(),
                other.name()
            ))
            .with_hint(format!("write the files with one name; {NULL} makes two columns of them")));
        }
    }
    if further.len() < own.len() || all.is_empty() {
        return Ok(());
    }
    let shown = |fields: &Fields| {
        let shown: Vec<String> = fields.iter().take(3).map(|field| format!("\"{}\"", field.name())).collect();
        shown.join(", ") + if fields.len() > 3 { " …" } else { "" }
    };
    Err(Error::invalid(format!(
        "\"{}\" shares no column with \"{}\": it has {}, and the other has {}",
        file.path(),
        files[0].path(),
        shown(own),
        shown(&all)
    ))
    .with_hint(format!("make a table of each; {NULL} reads the columns that a file lacks as null")))
}

const EXTENSION_TYPE_NAME_KEY: &str = "ARROW:extension:name";
const EXTENSION_TYPE_METADATA_KEY: &str = "ARROW:extension:metadata";

const NULL: &str = "OPTIONS ('missing' 'null'), missing=\"null\" in Python,";

/// Refuses other extension types of one layout, such as tensors of other shapes.
fn check_extension(field: &Field, file: &PinnedFile, other: &Field, other_file: &PinnedFile) -> Result<()> {
    let of = |field: &Field| {
        let metadata = field.metadata();
        let parameters = metadata.get(EXTENSION_TYPE_METADATA_KEY).map(|text| {
            // Writers differ in white space.
            serde_json::from_str::<serde_json::Value>(text).unwrap_or_else(|_| text.as_str().into())
        });
        metadata.get(EXTENSION_TYPE_NAME_KEY).map(|name| (name.clone(), parameters))
    };
    let shown = |field: &Field| match of(field) {
        Some((name, Some(parameters))) => format!("{name} {parameters}"),
        Some((name, None)) => name,
        None => field.data_type().to_string(),
    };
    let is_tensor = |name: &str| name.ends_with("_shape_tensor");
    let differ = match (of(field), of(other)) {
        (Some(one), Some(other)) => one != other,
        (Some((name, _)), None) | (None, Some((name, _))) => is_tensor(&name),
        (None, None) => false,
    };
    if !differ || field.data_type().is_null() || other.data_type().is_null() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "\"{}\" has column \"{}\" as {}, but \"{}\" has it as {}; give files of one dataset the same columns",
        other_file.path(),
        field.name(),
        shown(other),
        file.path(),
        shown(field)
    ))
    .with_hint("write the files of one of these types again with the other, or name them apart"))
}

/// Adds the memory of the nulls that fill up a file's rows to its row groups.
pub(super) fn add_nulls(
    file: &PinnedFile,
    schema: &Schema,
    positions: &[Option<usize>],
    own: &Schema,
    groups: &mut [RowGroup],
) -> Result<()> {
    let of = |(field, at): (&FieldRef, &Option<usize>)| {
        null_bytes(field.data_type(), at.map(|at| own.field(at).data_type()))
    };
    let columns = || schema.fields().iter().zip(positions);
    let bytes = columns().map(of).fold(0, u64::saturating_add);
    for group in groups.iter_mut().filter(|_| bytes > 0) {
        let claimed = bytes.saturating_mul(group.rows);
        if claimed > FIXED_BYTES_MAX {
            let widest = columns().max_by_key(|column| of(*column)).map_or("", |(field, _)| field.name());
            return Err(Error::invalid(format!(
                "\"{}\" lacks column \"{widest}\" or a part of it: its nulls in a row group of {} rows would take \
                 {claimed} bytes, over the limit of {FIXED_BYTES_MAX}",
                file.path(),
                group.rows
            ))
            .with_hint("make a table of the files that have the column, or write the file with smaller row groups"));
        }
        group.bytes = group.bytes.saturating_add(claimed).min(i64::MAX as u64);
    }
    Ok(())
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
