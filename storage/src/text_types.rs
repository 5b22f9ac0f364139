//! The type of a column of texts or bytes whose files store it in several layouts.
//!
//! Writers choose between 32-bit and 64-bit offsets, views and dictionaries without a difference in meaning, often file
//! by file.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use forebay_arrays::without_views;

/// The type that holds the values of both types, or `None` if they differ in more than the layout of texts and bytes.
/// Equal types stay as they are. Otherwise the result has 64-bit offsets if one of them has, and neither views nor
/// dictionaries.
pub(crate) fn unified(one: &DataType, other: &DataType) -> Option<DataType> {
    use DataType::{Binary, FixedSizeList, LargeBinary, LargeList, LargeUtf8, List, Struct, Utf8};
    if one == other {
        return Some(one.clone());
    }
    match (&plain(one), &plain(other)) {
        (one, other) if one == other => Some(one.clone()),
        (Utf8 | LargeUtf8, Utf8 | LargeUtf8) => Some(LargeUtf8),
        (Binary | LargeBinary, Binary | LargeBinary) => Some(LargeBinary),
        (List(one), List(other)) => Some(List(unified_field(one, other)?)),
        (LargeList(one), LargeList(other)) => Some(LargeList(unified_field(one, other)?)),
        (FixedSizeList(one, length), FixedSizeList(other, same)) if length == same => {
            Some(FixedSizeList(unified_field(one, other)?, *length))
        }
        (Struct(ones), Struct(others)) if ones.len() == others.len() => {
            let fields = ones.iter().zip(others).map(|(one, other)| unified_field(one, other));
            Some(Struct(fields.collect::<Option<Fields>>()?))
        }
        _ => None,
    }
}

/// Fields inside a column must agree in all but the layout of their values.
fn unified_field(one: &FieldRef, other: &FieldRef) -> Option<FieldRef> {
    let data_type = unified(one.data_type(), other.data_type())?;
    let as_unified = |field: &Field| field.clone().with_data_type(data_type.clone());
    (as_unified(one) == as_unified(other)).then(|| Arc::new(as_unified(one)))
}

/// The type without views, and without a dictionary of texts or bytes.
fn plain(data_type: &DataType) -> DataType {
    match without_views(data_type, false) {
        DataType::Dictionary(keys, values) => match without_views(&values, false) {
            values @ (DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary) => values,
            _ => DataType::Dictionary(keys, values),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_of_texts_and_bytes_are_unified() {
        use DataType::{Binary, BinaryView, Int8, Int32, LargeBinary, LargeUtf8, Utf8, Utf8View};
        let dictionary = |keys: DataType, values: DataType| DataType::Dictionary(keys.into(), values.into());
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let within = |item: DataType| DataType::Struct(vec![Field::new("a", list(item), true)].into());
        let check = |one: DataType, other: DataType, expect: Option<DataType>| {
            assert_eq!(unified(&one, &other), expect, "{one} and {other}");
            assert_eq!(unified(&other, &one), expect, "{other} and {one}");
        };
        check(Utf8, LargeUtf8, Some(LargeUtf8));
        check(Utf8View, Utf8, Some(Utf8));
        check(Utf8View, LargeUtf8, Some(LargeUtf8));
        check(BinaryView, Binary, Some(Binary));
        check(Binary, LargeBinary, Some(LargeBinary));
        check(within(Utf8), within(LargeUtf8), Some(within(LargeUtf8)));
        check(dictionary(Int8, Utf8), Utf8, Some(Utf8));
        check(dictionary(Int8, Utf8), LargeUtf8, Some(LargeUtf8));
        check(dictionary(Int8, Utf8), dictionary(Int32, Utf8), Some(Utf8));
        check(dictionary(Int8, Utf8), dictionary(Int8, Utf8), Some(dictionary(Int8, Utf8)));
        check(dictionary(Int8, Int32), dictionary(Int32, Int32), None);
        check(Utf8, Binary, None);
        check(list(Utf8), Utf8, None);
        check(Utf8, Int32, None);
        let named = DataType::List(Arc::new(Field::new("element", LargeUtf8, true)));
        check(named, list(Utf8), None);
    }
}
