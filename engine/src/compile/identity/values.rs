//! The form of types and constants.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::error::Result;

use super::form::{Form, without_form};

/// Writes a constant: its type, then its value.
pub(super) fn value(form: &mut Form, value: &ScalarValue) -> Result<()> {
    data_type(form, &value.data_type())?;
    item(form, value)
}

/// Writes a value whose type is already known.
fn item(form: &mut Form, value: &ScalarValue) -> Result<()> {
    form.flag(value.is_null());
    if value.is_null() {
        return Ok(());
    }
    match value {
        ScalarValue::Null => {}
        ScalarValue::Boolean(value) => form.flag(value == &Some(true)),
        ScalarValue::Utf8(Some(text)) | ScalarValue::LargeUtf8(Some(text)) | ScalarValue::Utf8View(Some(text)) => {
            form.text(text);
        }
        ScalarValue::Binary(Some(bytes))
        | ScalarValue::LargeBinary(Some(bytes))
        | ScalarValue::BinaryView(Some(bytes))
        | ScalarValue::FixedSizeBinary(_, Some(bytes)) => form.bytes(bytes),
        ScalarValue::List(list) => items(form, &list.value(0))?,
        ScalarValue::LargeList(list) => items(form, &list.value(0))?,
        ScalarValue::FixedSizeList(list) => items(form, &list.value(0))?,
        ScalarValue::Struct(fields) => fields.columns().iter().try_for_each(|column| items(form, column))?,
        ScalarValue::Map(map) => map.value(0).columns().iter().try_for_each(|column| items(form, column))?,
        ScalarValue::Dictionary(_, value) => item(form, value)?,
        fixed => match (fixed.data_type().primitive_width(), fixed.to_array()?.to_data().buffers()) {
            (Some(width), [bytes]) if bytes.len() >= width => form.bytes(&bytes.as_slice()[..width]),
            _ => return without_form(format_args!("a constant of type {}", fixed.data_type())),
        },
    }
    Ok(())
}

/// Writes each value of an array.
fn items(form: &mut Form, array: &ArrayRef) -> Result<()> {
    form.list(0..array.len(), |form, at| item(form, &ScalarValue::try_from_array(array, at)?))
}

/// Writes a field: its name, type, nullability and metadata.
pub(super) fn field(form: &mut Form, field: &Field) -> Result<()> {
    form.text(field.name());
    form.flag(field.is_nullable());
    data_type(form, field.data_type())?;
    metadata(form, &field.metadata().iter().map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// Writes metadata, ordered by key.
pub(super) fn metadata(form: &mut Form, metadata: &BTreeMap<String, String>) -> Result<()> {
    form.list(metadata, |form, (key, value)| {
        form.text(key);
        form.text(value);
        Ok(())
    })
}

/// Writes the number of fields, then each field.
pub(super) fn fields<'a>(
    form: &mut Form,
    fields: impl IntoIterator<Item = &'a FieldRef, IntoIter: ExactSizeIterator>,
) -> Result<()> {
    form.list(fields, |form, it| field(form, it))
}

/// Writes a type.
pub(super) fn data_type(form: &mut Form, data_type: &DataType) -> Result<()> {
    let simple = match data_type {
        DataType::Null => "null",
        DataType::Boolean => "boolean",
        DataType::Int8 => "int8",
        DataType::Int16 => "int16",
        DataType::Int32 => "int32",
        DataType::Int64 => "int64",
        DataType::UInt8 => "uint8",
        DataType::UInt16 => "uint16",
        DataType::UInt32 => "uint32",
        DataType::UInt64 => "uint64",
        DataType::Float16 => "float16",
        DataType::Float32 => "float32",
        DataType::Float64 => "float64",
        DataType::Date32 => "date32",
        DataType::Date64 => "date64",
        DataType::Binary => "binary",
        DataType::LargeBinary => "large binary",
        DataType::BinaryView => "binary view",
        DataType::Utf8 => "utf8",
        DataType::LargeUtf8 => "large utf8",
        DataType::Utf8View => "utf8 view",
        compound => return compound_type(form, compound),
    };
    form.tag(simple);
    Ok(())
}

fn compound_type(form: &mut Form, compound: &DataType) -> Result<()> {
    match compound {
        DataType::Timestamp(unit, zone) => {
            form.tag("timestamp");
            form.tag(time_unit(*unit));
            form.optional(zone.as_deref(), |form, zone| {
                form.text(zone);
                Ok(())
            })
        }
        DataType::Time32(unit) => tags(form, "time32", time_unit(*unit)),
        DataType::Time64(unit) => tags(form, "time64", time_unit(*unit)),
        DataType::Duration(unit) => tags(form, "duration", time_unit(*unit)),
        DataType::Interval(IntervalUnit::YearMonth) => tags(form, "interval", "year month"),
        DataType::Interval(IntervalUnit::DayTime) => tags(form, "interval", "day time"),
        DataType::Interval(IntervalUnit::MonthDayNano) => tags(form, "interval", "month day nano"),
        DataType::Decimal32(precision, scale) => decimal(form, "decimal32", *precision, *scale),
        DataType::Decimal64(precision, scale) => decimal(form, "decimal64", *precision, *scale),
        DataType::Decimal128(precision, scale) => decimal(form, "decimal128", *precision, *scale),
        DataType::Decimal256(precision, scale) => decimal(form, "decimal256", *precision, *scale),
        DataType::FixedSizeBinary(width) => {
            form.tag("fixed binary");
            form.bytes(&width.to_le_bytes());
            Ok(())
        }
        DataType::List(item) => nested(form, "list", [item]),
        DataType::LargeList(item) => nested(form, "large list", [item]),
        DataType::ListView(item) => nested(form, "list view", [item]),
        DataType::LargeListView(item) => nested(form, "large list view", [item]),
        DataType::FixedSizeList(item, length) => {
            form.tag("fixed list");
            form.bytes(&length.to_le_bytes());
            field(form, item)
        }
        DataType::Struct(of) => nested(form, "struct", of),
        DataType::Map(entries, is_sorted) => {
            form.tag("map");
            form.flag(*is_sorted);
            field(form, entries)
        }
        DataType::Dictionary(keys, values) => {
            form.tag("dictionary");
            data_type(form, keys)?;
            data_type(form, values)
        }
        other => without_form(format_args!("the type {other}")),
    }
}

fn tags(form: &mut Form, tag: &'static str, detail: &'static str) -> Result<()> {
    form.tag(tag);
    form.tag(detail);
    Ok(())
}

fn decimal(form: &mut Form, tag: &'static str, precision: u8, scale: i8) -> Result<()> {
    form.tag(tag);
    form.bytes(&precision.to_le_bytes());
    form.bytes(&scale.to_le_bytes());
    Ok(())
}

fn nested<'a>(
    form: &mut Form,
    tag: &'static str,
    of: impl IntoIterator<Item = &'a FieldRef, IntoIter: ExactSizeIterator>,
) -> Result<()> {
    form.tag(tag);
    fields(form, of)
}

fn time_unit(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "second",
        TimeUnit::Millisecond => "millisecond",
        TimeUnit::Microsecond => "microsecond",
        TimeUnit::Nanosecond => "nanosecond",
    }
}
