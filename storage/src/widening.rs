//! Unifies the types that a column has in several files, and converts values to the unified type.
//!
//! A type is widened only where every value of both types keeps its value: integers to longer ones, floats to longer
//! ones, timestamps to finer units, structs to all fields of both. Integers never become floats. What carries no value
//! may differ: the length of offsets, the name of a list's item, ids of fields, and how UTC is written.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, LargeListArray, OffsetSizeTrait, StructArray,
    new_null_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Fields, TimeUnit};
use arrow::error::ArrowError;
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use crate::text_types::unified;

/// The names of the time zone.
const UTC: [&str; 4] = ["UTC", "+00:00", "Z", "Etc/UTC"];

/// What may differ between files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drift {
    /// Columns and fields of structs may be missing, and are null there.
    pub(crate) missing: bool,
    /// A name that is missing may differ only by case from one that is not.
    pub(crate) alike: bool,
    /// Types may differ in their width.
    pub(crate) widen: bool,
}

impl Drift {
    pub(crate) const ALL: Self = Self { missing: true, alike: true, widen: true };

    /// The type that holds the values of both types, or `None`.
    pub(crate) fn unify(self, one: &DataType, other: &DataType) -> Option<DataType> {
        use DataType::{FixedSizeList, LargeList, List, Struct};
        if let Some(layout) = unified(one, other) {
            return Some(layout);
        }
        match (one, other) {
            (List(one), List(other)) => Some(List(self.unify_items(one, other)?)),
            (LargeList(one) | List(one), LargeList(other) | List(other)) => {
                Some(LargeList(self.unify_items(one, other)?))
            }
            (FixedSizeList(one, length), FixedSizeList(other, same)) if length == same => {
                Some(FixedSizeList(self.unify_items(one, other)?, *length))
            }
            // Writers that see only nulls know no type.
            (DataType::Null, known) | (known, DataType::Null) if self.missing => Some(known.clone()),
            (Struct(one), Struct(other)) => self.unify_structs(one, other),
            _ if self.widen => wider(one, other),
            _ => None,
        }
    }

    /// The item of lists. Writers call it "item", "element" or "array".
    fn unify_items(self, one: &FieldRef, other: &FieldRef) -> Option<FieldRef> {
        let data_type = self.unify(one.data_type(), other.data_type())?;
        let metadata = |field: &FieldRef| {
            let mut metadata = field.metadata().clone();
            metadata.remove(PARQUET_FIELD_ID_META_KEY);
            metadata
        };
        let nullable = [one, other].iter().any(|field| field.is_nullable() || field.data_type().is_null());
        let unified = || Arc::new(one.as_ref().clone().with_data_type(data_type).with_nullable(nullable));
        (metadata(one) == metadata(other)).then(unified)
    }

    fn unify_structs(self, one: &Fields, other: &Fields) -> Option<DataType> {
        // Fields are matched by name.
        if [one, other].into_iter().any(has_repeated_names) {
            return None;
        }
        let mut fields: Vec<FieldRef> = Vec::new();
        let nullable = |field: &FieldRef| Arc::new(field.as_ref().clone().with_nullable(true));
        for field in one {
            match other.find(field.name()) {
                Some((_, found)) => fields.push(self.unify_items(field, found)?),
                None if self.missing => fields.push(nullable(field)),
                None => return None,
            }
        }
        let further: Vec<&FieldRef> = other.iter().filter(|field| one.find(field.name()).is_none()).collect();
        if !further.is_empty() && !self.missing {
            return None;
        }
        let is_alike = |field: &&FieldRef| alike(field.name(), one, other).is_some();
        if !self.alike && further.iter().any(is_alike) {
            return None;
        }
        fields.extend(further.into_iter().map(nullable));
        Some(DataType::Struct(fields.into()))
    }
}

/// The field of `known` that differs from `name` only by case and that `other` lacks.
pub(crate) fn alike<'a>(name: &str, known: &'a Fields, other: &Fields) -> Option<&'a FieldRef> {
    let lower = name.to_lowercase();
    known.iter().find(|field| {
        field.name() != name && field.name().to_lowercase() == lower && other.find(field.name()).is_none()
    })
}

fn has_repeated_names(fields: &Fields) -> bool {
    let mut names = HashSet::with_capacity(fields.len());
    !fields.iter().all(|field| names.insert(field.name()))
}

/// The memory per row of the nulls that fill up `target` where a file has `found`, or nothing. Only types whose nulls
/// take the memory of many values count.
pub(crate) fn null_bytes(target: &DataType, found: Option<&DataType>) -> u64 {
    let found = found.filter(|found| !found.is_null());
    match (target, found) {
        (DataType::Struct(fields), Some(DataType::Struct(others))) => {
            let of =
                |field: &FieldRef| null_bytes(field.data_type(), others.find(field.name()).map(|it| it.1.data_type()));
            fields.iter().map(of).fold(0, u64::saturating_add)
        }
        (DataType::FixedSizeList(item, length), Some(DataType::FixedSizeList(other, _))) => {
            null_bytes(item.data_type(), Some(other.data_type())).saturating_mul((*length).max(0) as u64)
        }
        (_, Some(_)) => 0,
        (DataType::FixedSizeList(item, length), None) => {
            let item = item.data_type();
            let bytes = item.primitive_width().map_or(1, |width| width as u64).max(null_bytes(item, None));
            bytes.saturating_mul((*length).max(0) as u64)
        }
        (DataType::FixedSizeBinary(length), None) => (*length).max(0) as u64,
        (DataType::Struct(fields), None) => {
            fields.iter().map(|field| null_bytes(field.data_type(), None)).fold(0, u64::saturating_add)
        }
        _ => 0,
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
        let is_utc = |zone: &Option<Arc<str>>| zone.as_deref().is_some_and(|zone| UTC.contains(&zone));
        let zone = match zone == same {
            true => zone.clone(),
            false if is_utc(zone) && is_utc(same) => Some(UTC[0].into()),
            false => return None,
        };
        return Some(Timestamp(UNITS[at(one)?.max(at(other)?)], zone));
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
        (DataType::List(_), DataType::LargeList(item)) => {
            let array = array.as_list::<i32>();
            let values = conform(array.values(), item.data_type())?;
            let offsets = array.offsets().iter().map(|offset| i64::from(*offset)).collect::<ScalarBuffer<i64>>();
            let nulls = array.nulls().cloned();
            Ok(Arc::new(LargeListArray::try_new(Arc::clone(item), OffsetBuffer::new(offsets), values, nulls)?))
        }
        (DataType::Null, target) => Ok(new_null_array(target, array.len())),
        (DataType::FixedSizeList(..), DataType::FixedSizeList(item, length)) => {
            let array = array.as_fixed_size_list();
            let values = conform(array.values(), item.data_type())?;
            let nulls = array.nulls().cloned();
            Ok(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *length, values, nulls)?))
        }
        _ => cast_with_options(array, target, &CastOptions { safe: false, ..CastOptions::default() }),
    }
}

/// The rows whose values do not fit, with the reason.
pub(crate) fn unfit(array: &ArrayRef, target: &DataType) -> Vec<(usize, ArrowError)> {
    let mut todo = vec![(0, array.len())];
    let mut found = Vec::new();
    while let Some((start, length)) = todo.pop() {
        match conform(&array.slice(start, length), target) {
            Err(error) if length == 1 => found.push((start, error)),
            Err(_) => todo.extend([(start + length / 2, length - length / 2), (start, length / 2)]),
            Ok(_) => {}
        }
    }
    found
}

fn list<O: OffsetSizeTrait>(array: &GenericListArray<O>, item: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let values = conform(array.values(), item.data_type())?;
    let (offsets, nulls) = (array.offsets().clone(), array.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, nulls)?))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ListArray, NullArray, TimestampSecondArray};
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    #[test]
    fn types_are_widened_where_values_stay() {
        use DataType::{Date32, Float16, Float32, Float64, Int8, Int32, Int64, UInt8, UInt32, UInt64, Utf8};
        let check = |one: DataType, other: DataType, expect: Option<DataType>| {
            assert_eq!(Drift::ALL.unify(&one, &other), expect, "{one} and {other}");
            assert_eq!(Drift::ALL.unify(&other, &one), expect, "{other} and {one}");
            if one != other {
                let strict = Drift { widen: false, ..Drift::ALL };
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
        check(
            time(TimeUnit::Second, Some("Z")),
            time(TimeUnit::Second, Some("+00:00")),
            Some(time(TimeUnit::Second, Some("UTC"))),
        );
        check(time(TimeUnit::Second, Some("UTC")), time(TimeUnit::Second, Some("+01:00")), None);
        check(Utf8, Int64, None);
        check(Date32, Int32, None);
    }

    #[test]
    fn what_carries_no_value_may_differ() {
        use DataType::{Int32, Int64, Null, Utf8};
        let strict = Drift { missing: false, alike: false, widen: false };
        let field = |name: &str, data_type: DataType| Field::new(name, data_type, true);
        let list = |name: &str| DataType::List(Arc::new(field(name, Int64)));
        let large = |name: &str| DataType::LargeList(Arc::new(field(name, Int64)));
        let structure = |id: &str| {
            let id = [(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_owned())].into();
            DataType::Struct(vec![field("a", Int64).with_metadata(id)].into())
        };
        assert_eq!(strict.unify(&list("item"), &list("element")), Some(list("item")));
        assert_eq!(strict.unify(&list("item"), &large("element")), Some(large("item")));
        assert_eq!(strict.unify(&large("item"), &list("item")), Some(large("item")));
        assert_eq!(strict.unify(&structure("1"), &structure("2")), Some(structure("1")));
        assert_eq!(Drift::ALL.unify(&Null, &Utf8), Some(Utf8));
        assert_eq!(Drift::ALL.unify(&list("item"), &Null), Some(list("item")));
        assert_eq!(strict.unify(&Null, &Utf8), None);
        let numbers =
            ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
        let wide = conform(&(Arc::new(numbers) as ArrayRef), &large("element")).unwrap();
        assert_eq!(wide.data_type(), &large("element"));
        assert_eq!((wide.len(), wide.null_count(), wide.as_list::<i64>().value_length(0)), (3, 1, 2));
        let nulls = conform(&(Arc::new(NullArray::new(2)) as ArrayRef), &Int32).unwrap();
        assert_eq!((nulls.len(), nulls.null_count()), (2, 2));
    }

    #[test]
    fn fields_are_matched_by_their_names() {
        use DataType::{Int32, Int64};
        let structure = |fields: &[(&str, DataType)]| {
            DataType::Struct(fields.iter().map(|(name, it)| Field::new(*name, it.clone(), true)).collect())
        };
        let repeated = |data_type: DataType| structure(&[("a", data_type.clone()), ("a", data_type)]);
        assert_eq!(Drift::ALL.unify(&repeated(Int32), &repeated(Int64)), None);
        assert_eq!(Drift::ALL.unify(&repeated(Int32), &repeated(Int32)), Some(repeated(Int32)));
        let (one, other) = (structure(&[("id", Int64), ("A", Int64)]), structure(&[("id", Int64), ("a", Int64)]));
        let unlike = Drift { alike: false, ..Drift::ALL };
        assert_eq!(unlike.unify(&one, &other), None);
        assert!(Drift::ALL.unify(&one, &other).is_some());
        let both = structure(&[("A", Int64), ("a", Int64)]);
        assert!(unlike.unify(&one, &both).is_some() && unlike.unify(&both, &one).is_some());
    }

    #[test]
    fn nulls_of_wide_types_take_memory() {
        let floats = |length| DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Float32, true)), length);
        let within = |fields: &[(&str, DataType)]| {
            DataType::Struct(fields.iter().map(|(name, it)| Field::new(*name, it.clone(), true)).collect())
        };
        assert_eq!(null_bytes(&floats(10), None), 40);
        assert_eq!(null_bytes(&floats(10), Some(&DataType::Null)), 40);
        assert_eq!(null_bytes(&floats(10), Some(&floats(10))), 0);
        assert_eq!(null_bytes(&DataType::Int64, None), 0);
        let (whole, part) =
            (within(&[("a", floats(3)), ("b", DataType::FixedSizeBinary(9))]), within(&[("a", floats(3))]));
        assert_eq!((null_bytes(&whole, None), null_bytes(&whole, Some(&part))), (21, 9));
    }

    #[test]
    fn rows_that_do_not_fit_are_found() {
        let seconds: ArrayRef =
            Arc::new(TimestampSecondArray::from(vec![Some(1), Some(i64::MAX), None, Some(1 << 40)]));
        let found = unfit(&seconds, &DataType::Timestamp(TimeUnit::Nanosecond, None));
        assert_eq!(found.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 3]);
    }
}
