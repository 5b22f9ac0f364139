//! The refusal of columns that a format cannot hold.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Float64Type, Schema};
use forebay_arrays::TensorType;

use crate::{Error, Result};

/// Refuses the first column about which `advice` says what to do in its place.
pub(super) fn refuse(format: &str, schema: &Schema, advice: impl Fn(&Field) -> Option<&'static str>) -> Result<()> {
    let refused = schema.fields().iter().find_map(|field| Some((field, advice(field)?)));
    refused.map_or(Ok(()), |(field, advice)| {
        let data_type = shown(field);
        Err(Error::invalid(format!("column \"{}\" is {data_type}, which {format} files cannot hold", field.name()))
            .with_hint(advice))
    })
}

/// The refusal of a value, which only its row shows.
pub(super) fn refused_value(format: &str, column: &str, row: u64, problem: &str, advice: &str) -> Error {
    Error::invalid(format!("column \"{column}\" {problem} in row {row} of the file, which {format} files cannot hold"))
        .with_hint(advice)
}

/// What to do about a null.
pub(super) const WITHOUT_NULLS: &str = "replace nulls in the query, such as with coalesce(column, value), or filter \
                                        these rows";

/// What to do about bfloat16, which numpy and JSON do not have.
const CAST_BFLOAT16: &str = "cast it to FLOAT, or write parquet or arrow files";

/// What to do about a tensor that is no array of numpy in C's order.
pub(super) fn not_numpy(field: &Field) -> Option<&'static str> {
    let tensor = TensorType::of(field)?;
    if tensor.is_bfloat16() {
        return Some(CAST_BFLOAT16);
    }
    let permutation = match tensor {
        TensorType::Fixed(tensor) => tensor.permutation,
        TensorType::Variable(tensor) => tensor.permutation,
    };
    permutation.is_some().then_some("write parquet or arrow files, which keep the order of its dimensions")
}

/// The type as users know it.
fn shown(field: &Field) -> String {
    match TensorType::of(field) {
        Some(tensor) if tensor.is_bfloat16() => "a tensor of bfloat16".to_owned(),
        Some(TensorType::Fixed(tensor)) => tensor.to_string(),
        Some(TensorType::Variable(tensor)) => format!("a {} tensor of {} varying sides", tensor.value, tensor.rank),
        None => field.data_type().to_string(),
    }
}

/// Whether any type of a column, at any depth, is one that `is` accepts.
pub(super) fn any_type(data_type: &DataType, is: &dyn Fn(&DataType) -> bool) -> bool {
    let nested = |field: &Field| any_type(field.data_type(), is);
    is(data_type)
        || match data_type {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => nested(item),
            DataType::ListView(item) | DataType::LargeListView(item) | DataType::Map(item, _) => nested(item),
            DataType::Struct(fields) => fields.iter().any(|field| nested(field)),
            DataType::Dictionary(_, value) => any_type(value, is),
            DataType::RunEndEncoded(_, value) => nested(value),
            _ => false,
        }
}

/// What to do about types that JSON does not have.
pub(super) fn not_json(field: &Field) -> Option<&'static str> {
    let has = |is: &dyn Fn(&DataType) -> bool| any_type(field.data_type(), is);
    if TensorType::of(field).is_some_and(|tensor| tensor.is_bfloat16()) {
        return Some(CAST_BFLOAT16);
    }
    if has(&|data_type| data_type.is_binary() || matches!(data_type, DataType::FixedSizeBinary(_))) {
        return Some("leave it out of the query, or write parquet, arrow, mds or webdataset files");
    }
    if has(&|data_type| matches!(data_type, DataType::Duration(_) | DataType::Interval(_))) {
        return Some("cast it to BIGINT, or write parquet or arrow files");
    }
    if has(&|data_type| matches!(data_type, DataType::Map(_, _))) && !has_text_keys(field.data_type()) {
        return Some("give the map keys of text, or write parquet or arrow files");
    }
    has(&|data_type| matches!(data_type, DataType::Union(_, _))).then_some("make a column of each of its types")
}

fn has_text_keys(data_type: &DataType) -> bool {
    !any_type(data_type, &|data_type| match data_type {
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => fields.first().is_none_or(|key| !key.data_type().is_string()),
            _ => true,
        },
        _ => false,
    })
}

/// The first row with a number that JSON does not have: infinite, or not a number.
pub(super) fn first_not_finite(column: &ArrayRef) -> Option<usize> {
    if !has_not_finite(column) {
        return None;
    }
    (0..column.len()).find(|row| column.is_valid(*row) && is_found(column, *row))
}

/// Whether any number, even under a null, is not finite.
fn has_not_finite(column: &ArrayRef) -> bool {
    match column.data_type() {
        DataType::Float16 => column.as_primitive::<Float16Type>().values().iter().any(|value| !value.is_finite()),
        DataType::Float32 => column.as_primitive::<Float32Type>().values().iter().any(|value| !value.is_finite()),
        DataType::Float64 => column.as_primitive::<Float64Type>().values().iter().any(|value| !value.is_finite()),
        DataType::List(_) => any_item(column.as_list::<i32>().offsets(), column.as_list::<i32>().values()),
        DataType::LargeList(_) => any_item(column.as_list::<i64>().offsets(), column.as_list::<i64>().values()),
        DataType::FixedSizeList(_, _) => has_not_finite(column.as_fixed_size_list().values()),
        DataType::Struct(_) => column.as_struct().columns().iter().any(has_not_finite),
        DataType::Map(_, _) => {
            let (map, entries) = (column.as_map(), column.as_map().entries());
            entries.columns().iter().any(|items| any_item(map.offsets(), items))
        }
        _ => false,
    }
}

/// Whether any number of some lists is not finite.
fn any_item<O: OffsetSizeTrait>(offsets: &OffsetBuffer<O>, items: &ArrayRef) -> bool {
    let (first, last) = (offsets[0].as_usize(), offsets[offsets.len() - 1].as_usize());
    has_not_finite(&items.slice(first, last - first))
}

/// Whether the value of a row has a number that is not finite.
fn is_found(column: &ArrayRef, row: usize) -> bool {
    let any = |items: ArrayRef| first_not_finite(&items).is_some();
    match column.data_type() {
        DataType::List(_) => any(column.as_list::<i32>().value(row)),
        DataType::LargeList(_) => any(column.as_list::<i64>().value(row)),
        DataType::FixedSizeList(_, _) => any(column.as_fixed_size_list().value(row)),
        DataType::Struct(_) => column.as_struct().columns().iter().any(|field| any(field.slice(row, 1))),
        DataType::Map(_, _) => column.as_map().value(row).columns().iter().any(|items| any(Arc::clone(items))),
        _ => has_not_finite(&column.slice(row, 1)),
    }
}
