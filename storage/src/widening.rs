//! Unifies the types that a column has in several files, and converts values to the unified type.
//!
//! A type is widened only where every value of both types keeps its value: integers to longer ones, floats to longer
//! ones, timestamps to finer units, structs to all fields of both. Integers never become floats.

use std::sync::Arc;

use arrow::array::new_null_array;
use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, StructArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields, TimeUnit};
use arrow::error::ArrowError;

use crate::text_types::unified;

/// What may differ between files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drift {
    /// Columns and fields of structs may be missing, and are null there.
    pub(crate) missing: bool,
    /// Types may differ in their width.
    pub(crate) widen: bool,
}

impl Drift {
    pub(crate) const ALL: Self = Self { missing: true, widen: true };

    /// The type that holds the values of both types, or `None`.
    pub(crate) fn unify(self, one: &DataType, other: &DataType) -> Option<DataType> {
        use DataType::{FixedSizeList, LargeList, List, Struct};
        if let Some(layout) = unified(one, other) {
            return Some(layout);
        }
        match (one, other) {
            (List(one), List(other)) => Some(List(self.unify_fields(one, other)?)),
            (LargeList(one), LargeList(other)) => Some(LargeList(self.unify_fields(one, other)?)),
            (FixedSizeList(one, length), FixedSizeList(other, same)) if length == same => {
                Some(FixedSizeList(self.unify_fields(one, other)?, *length))
            }
            (Struct(one), Struct(other)) => self.unify_structs(one, other),
            _ if self.widen => wider(one, other),
            _ => None,
        }
    }

    fn unify_fields(self, one: &FieldRef, other: &FieldRef) -> Option<FieldRef> {
        let data_type = self.unify(one.data_type(), other.data_type())?;
        let same = one.name() == other.name() && one.metadata() == other.metadata();
        let nullable = one.is_nullable() || other.is_nullable();
        same.then(|| Arc::new(one.as_ref().clone().with_data_type(data_type).with_nullable(nullable)))
    }

    fn unify_structs(self, one: &Fields, other: &Fields) -> Option<DataType> {
        let mut fields: Vec<FieldRef> = Vec::new();
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        for field in one {
            match other.find(field.name()) {
                Some((_, found)) => fields.push(self.unify_fields(field, found)?),
                None if self.missing => fields.push(nullable(field)),
                None => return None,
            }
        }
        let further: Vec<&FieldRef> = other.iter().filter(|field| one.find(field.name()).is_none()).collect();
        if !further.is_empty() && !self.missing {
            return None;
        }
        fields.extend(further.into_iter().map(nullable));
        Some(DataType::Struct(fields.into()))
    }
}

/// The wider of two numbers or timestamps.
fn wider(one: &DataType, other: &DataType) -> Option<DataType> {
    use DataType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, Timestamp, UInt8, UInt16, UInt32, UInt64};
    const SIGNED: [DataType; 4] = [Int8, Int16, Int32, Int64];
    const UNSIGNED: [DataType; 4] = [UInt8, UInt16, UInt32, UInt64];
    const FLOATS: [DataType; 3] = [Float16, Float32, Float64];
    const UNITS: [TimeUnit; 4] = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
    let of = |types: &[DataType]| {
        let at = |wanted: &DataType| types.iter().position(|data_type| data_type == wanted);
        Some(types[at(one)?.max(at(other)?)].clone())
    };
    let mixed = |unsigned: &DataType, signed: &DataType| {
        let bits = UNSIGNED.iter().position(|data_type| data_type == unsigned)?;
        let signed = SIGNED.iter().position(|data_type| data_type == signed)?;
        SIGNED.get(signed.max(bits + 1)).cloned()
    };
    if let (Timestamp(one, zone), Timestamp(other, same)) = (one, other) {
        let at = |wanted: &TimeUnit| UNITS.iter().position(|unit| unit == wanted);
        return (zone == same).then_some(Timestamp(UNITS[at(one)?.max(at(other)?)], zone.clone()));
    }
    of(&SIGNED)
        .or_else(|| of(&UNSIGNED))
        .or_else(|| of(&FLOATS))
        .or_else(|| mixed(one, other))
        .or_else(|| mixed(other, one))
}

/// Converts values to a type that [`Drift::unify`] made from theirs. Fails for a value that does not fit, such as a
/// distant timestamp in a finer unit.
pub(crate) fn conform(array: &ArrayRef, target: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == target {
        return Ok(Arc::clone(array));
    }
    match (array.data_type(), target) {
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let array = array.as_struct();
            let column = |field: &FieldRef| match array.column_by_name(field.name()) {
                Some(column) => conform(column, field.data_type()),
                None => Ok(new_null_array(field.data_type(), array.len())),
            };
            let columns = fields.iter().map(column).collect::<Result<Vec<_>, _>>()?;
            let nulls = array.nulls().cloned();
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, array.len())?))
        }
        (DataType::List(_), DataType::List(item)) => list(array.as_list::<i32>(), item),
        (DataType::LargeList(_), DataType::LargeList(item)) => list(array.as_list::<i64>(), item),
        (DataType::FixedSizeList(..), DataType::FixedSizeList(item, length)) => {
            let array = array.as_fixed_size_list();
            let values = conform(array.values(), item.data_type())?;
            let nulls = array.nulls().cloned();
            Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *length, values, nulls)?))
        }
        _ => cast_with_options(array, target, &CastOptions { safe: false, ..CastOptions::default() }),
    }
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let values = conform(array.values(), item.data_type())?;
    let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, nulls)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_widened_where_values_stay() {
        use DataType::{Date32, Float16, Float32, Float64, Int8, Int32, Int64, UInt8, UInt32, UInt64, Utf8};
        let check = |one: DataType, other: DataType, expect: Option<DataType>| {
            assert_eq!(Drift::ALL.unify(&one, &other), expect, "{one} and {other}");
            assert_eq!(Drift::ALL.unify(&other, &one), expect, "{other} and {one}");
            if one != other {
                let strict = Drift { widen: false, missing: true };
                assert_eq!(strict.unify(&one, &other), None, "{one} and {other}");
            }
        };
        let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        check(Int32, Int64, Some(Int64));
        check(UInt8, Int8, Some(DataType::Int16));
        check(UInt32, Int8, Some(Int64));
        check(UInt64, Int64, None);
        check(Float32, Float64, Some(Float64));
        check(Float16, Float64, Some(Float64));
        check(Int32, Float64, None);
        check(time(TimeUnit::Second, None), time(TimeUnit::Nanosecond, None), Some(time(TimeUnit::Nanosecond, None)));
        check(time(TimeUnit::Second, None), time(TimeUnit::Millisecond, Some("UTC")), None);
        check(Utf8, Int64, None);
        check(Date32, Int32, None);
    }
}
