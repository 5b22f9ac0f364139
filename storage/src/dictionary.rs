//! Texts as dictionaries: their type, and schemas with it.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};

/// The type of texts that are read as a dictionary.
pub fn dictionary_of_texts() -> DataType {
    DataType::Dictionary(DataType::Int32.into(), DataType::Utf8View.into())
}

/// The schema with some types replaced.
pub fn retyped(schema: &Schema, type_of: impl Fn(usize) -> Option<DataType>) -> SchemaRef {
    let field = |(at, field): (usize, &FieldRef)| match type_of(at) {
        Some(data_type) => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        None => Arc::clone(field),
    };
    let fields: Vec<FieldRef> = schema.fields().iter().enumerate().map(field).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}
