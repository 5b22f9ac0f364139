//! Plain types in the place of view types.
//!
//! A view is a layout in memory, not a property of the data, and few readers of Arrow know it.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef};

/// The type with plain types in the place of view types, at any depth. Views of texts and bytes become types of 64-bit
/// offsets if `large`.
pub fn without_views(data_type: &DataType, large: bool) -> DataType {
    let field = |field: &FieldRef| {
        let data_type = without_views(field.data_type(), large);
        match data_type == *field.data_type() {
            true => Arc::clone(field),
            false => Arc::new(field.as_ref().clone().with_data_type(data_type)),
        }
    };
    match data_type {
        DataType::Utf8View if large => DataType::LargeUtf8,
        DataType::BinaryView if large => DataType::LargeBinary,
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) | DataType::ListView(item) => DataType::List(field(item)),
        DataType::LargeList(item) | DataType::LargeListView(item) => DataType::LargeList(field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn views_become_plain_at_any_depth() {
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        let nested = |item| DataType::Struct(vec![Field::new("a", list(item), true)].into());
        assert_eq!(without_views(&nested(DataType::Utf8View), false), nested(DataType::Utf8));
        assert_eq!(without_views(&nested(DataType::BinaryView), true), nested(DataType::LargeBinary));
        let view = DataType::ListView(Arc::new(Field::new("item", DataType::Int32, true)));
        assert_eq!(without_views(&view, false), list(DataType::Int32));
        assert_eq!(without_views(&nested(DataType::LargeUtf8), false), nested(DataType::LargeUtf8));
    }
}
