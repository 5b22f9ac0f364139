//! Columns with plain types, in which the layout of a feed's batches is not visible.
//!
//! Dictionaries and views are layouts in memory: which values a batch's dictionary holds depends on the rows beside it.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use forebay_arrays::without_views;

use crate::{Error, Result};

/// Converts rows to plain types.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    from: SchemaRef,
    to: SchemaRef,
}

impl Plain {
    /// The plain types of these columns.
    pub(super) fn new(from: &SchemaRef) -> Self {
        Self { from: Arc::clone(from), to: with_types(from, &plain) }
    }

    /// The same for columns that become text: times have no zones other than UTC, because names of zones have no
    /// offset here.
    pub(super) fn for_text(from: &SchemaRef) -> Self {
        Self { from: Arc::clone(from), to: with_types(from, &|data_type| in_utc(&plain(data_type))) }
    }

    /// The plain columns.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.to
    }

    /// Checks that rows have the columns that were announced.
    pub(super) fn check(&self, rows: &RecordBatch) -> Result<()> {
        let (found, expected) = (rows.schema_ref().fields(), self.from.fields());
        let is_it = |(one, other): (&FieldRef, &FieldRef)| {
            one.name() == other.name() && one.data_type().equals_datatype(other.data_type())
        };
        match found.len() == expected.len() && found.iter().zip(expected).all(is_it) {
            true => Ok(()),
            false => Err(Error::internal("rows do not have the columns of their file")),
        }
    }

    /// The rows with plain types.
    pub(super) fn rows(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let column = |(column, field): (&ArrayRef, &FieldRef)| match column.data_type() == field.data_type() {
            true => Ok(Arc::clone(column)),
            false => cast(column, field.data_type()),
        };
        let columns = rows.columns().iter().zip(self.to.fields()).map(column).collect::<Result<_, _>>();
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        columns
            .and_then(|columns| RecordBatch::try_new_with_options(Arc::clone(&self.to), columns, &options))
            .map_err(|error| Error::internal(format!("rows have no plain form: {error}")).with_source(error))
    }
}

/// The type with values in the place of dictionaries and views, at any depth.
pub(super) fn plain(data_type: &DataType) -> DataType {
    without_views(
        &nested(data_type, &|data_type| match data_type {
            DataType::Dictionary(_, value) => plain(value),
            DataType::RunEndEncoded(_, value) => plain(value.data_type()),
            other => other.clone(),
        }),
        false,
    )
}

fn in_utc(data_type: &DataType) -> DataType {
    nested(data_type, &|data_type| match data_type {
        DataType::Timestamp(unit, Some(_)) => DataType::Timestamp(*unit, Some("+00:00".into())),
        other => other.clone(),
    })
}

/// The type with each of its innermost types replaced.
fn nested(data_type: &DataType, replace: &dyn Fn(&DataType) -> DataType) -> DataType {
    let field = |field: &FieldRef| {
        let data_type = nested(field.data_type(), replace);
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match data_type {
        DataType::List(item) => DataType::List(field(item)),
        DataType::LargeList(item) => DataType::LargeList(field(item)),
        DataType::ListView(item) => DataType::ListView(field(item)),
        DataType::LargeListView(item) => DataType::LargeListView(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => replace(other),
    }
}

fn with_types(schema: &Schema, data_type: &dyn Fn(&DataType) -> DataType) -> SchemaRef {
    let field = |field: &FieldRef| field.as_ref().clone().with_data_type(data_type(field.data_type()));
    let fields: Vec<Field> = schema.fields().iter().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}
