//! A batch's digest, independent of where and how the batch was computed.
//!
//! Arrow allows equal values to differ in memory (slices, offsets that do not start at zero, bytes under a null, a
//! missing or an all-true validity buffer), and a transfer changes these details. The digest covers only the fields and
//! the values: for each column its name, type, nullability and metadata, its validity and, for valid rows, the bytes. A
//! tensor's shape is in the metadata. The schema's own metadata is left out, because no value depends on it.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, make_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Fields, Schema, UInt64Type};

/// The digest of a batch: 32 hexadecimal digits of BLAKE3 over its fields and values.
pub fn digest(batch: &RecordBatch) -> String {
    let mut hasher = blake3::Hasher::new();
    fields(&mut hasher, batch.schema_ref().fields());
    hasher.update(&(batch.num_rows() as u64).to_le_bytes());
    batch.columns().iter().for_each(|column| values(&mut hasher, column));
    hasher.finalize().to_hex()[..32].to_owned()
}

/// The digest of a schema's fields, which tells tables without rows apart.
pub fn schema_digest(schema: &Schema) -> String {
    let mut hasher = blake3::Hasher::new();
    fields(&mut hasher, schema.fields());
    hasher.finalize().to_hex()[..32].to_owned()
}

fn fields(hasher: &mut blake3::Hasher, fields: &Fields) {
    hasher.update(&(fields.len() as u64).to_le_bytes());
    fields.iter().for_each(|one| field(hasher, one));
}

fn field(hasher: &mut blake3::Hasher, field: &Field) {
    text(hasher, field.name());
    hasher.update(&[u8::from(field.is_nullable())]);
    data_type(hasher, field.data_type());
    let metadata: BTreeMap<_, _> = field.metadata().iter().collect();
    hasher.update(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(hasher, key);
        text(hasher, value);
    }
}

/// The text of a type has no metadata of its children, so these are hashed after it.
fn data_type(hasher: &mut blake3::Hasher, data_type: &DataType) {
    text(hasher, &data_type.to_string());
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => field(hasher, item),
        DataType::Struct(children) => fields(hasher, children),
        DataType::Union(children, _) => children.iter().for_each(|(_, child)| field(hasher, child)),
        DataType::RunEndEncoded(ends, values) => [ends, values].into_iter().for_each(|child| field(hasher, child)),
        _ => {}
    }
}

fn text(hasher: &mut blake3::Hasher, text: &str) {
    hasher.update(&(text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

fn values(hasher: &mut blake3::Hasher, array: &ArrayRef) {
    let array = match array.nulls() {
        Some(nulls) if nulls.null_count() > 0 => {
            let valid: Vec<u8> = nulls.iter().map(u8::from).collect();
            hasher.update(&valid);
            // The bytes under a null are not part of the value.
            let indices = arrow::array::PrimitiveArray::<UInt64Type>::from_iter_values(
                nulls.valid_indices().map(|index| index as u64),
            );
            take(array, &indices, None).expect("indices come from the array")
        }
        _ => array.clone(),
    };
    hasher.update(&(array.len() as u64).to_le_bytes());
    match array.data_type() {
        DataType::Null => {}
        DataType::Boolean => {
            let bits: Vec<u8> = array.as_boolean().values().iter().map(u8::from).collect();
            hasher.update(&bits);
        }
        DataType::Utf8 => variable(hasher, array.as_string::<i32>().offsets(), array.as_string::<i32>().value_data()),
        DataType::LargeUtf8 => {
            variable(hasher, array.as_string::<i64>().offsets(), array.as_string::<i64>().value_data())
        }
        DataType::Binary => variable(hasher, array.as_binary::<i32>().offsets(), array.as_binary::<i32>().value_data()),
        DataType::LargeBinary => {
            variable(hasher, array.as_binary::<i64>().offsets(), array.as_binary::<i64>().value_data())
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            lengths(hasher, list.offsets());
            values(hasher, &slice(list.values(), list.offsets()));
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            lengths(hasher, list.offsets());
            values(hasher, &slice(list.values(), list.offsets()));
        }
        DataType::FixedSizeList(_, _) => {
            let list = array.as_fixed_size_list();
            let width = list.value_length() as usize;
            let first = list.value_offset(0) as usize;
            values(hasher, &list.values().slice(first, list.len() * width));
        }
        DataType::Struct(_) => array.as_struct().columns().iter().for_each(|column| values(hasher, column)),
        DataType::Map(_, _) => {
            let map = array.as_map();
            lengths(hasher, map.offsets());
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            values(hasher, &slice(&entries, map.offsets()));
        }
        fixed => {
            let data = array.to_data();
            match fixed.primitive_width().or(match fixed {
                DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
                _ => None,
            }) {
                Some(width) => {
                    let bytes = data.buffers()[0].as_slice();
                    hasher.update(&bytes[data.offset() * width..(data.offset() + data.len()) * width]);
                }
                // Rare types (unions, run-end encoding, views): by their text.
                None => (0..array.len()).for_each(|row| {
                    let shown = arrow::util::display::array_value_to_string(&make_array(data.clone()), row);
                    text(hasher, &shown.unwrap_or_default());
                }),
            }
        }
    }
}

fn variable<O: Into<i64> + Copy>(hasher: &mut blake3::Hasher, offsets: &[O], data: &[u8]) {
    lengths(hasher, offsets);
    let (first, last) = bounds(offsets);
    hasher.update(&data[first..last]);
}

fn lengths<O: Into<i64> + Copy>(hasher: &mut blake3::Hasher, offsets: &[O]) {
    for pair in offsets.windows(2) {
        hasher.update(&(pair[1].into() - pair[0].into()).to_le_bytes());
    }
}

fn bounds<O: Into<i64> + Copy>(offsets: &[O]) -> (usize, usize) {
    let at = |offset: Option<&O>| offset.map_or(0, |&offset| offset.into() as usize);
    (at(offsets.first()), at(offsets.last()))
}

fn slice<O: Into<i64> + Copy>(array: &ArrayRef, offsets: &[O]) -> ArrayRef {
    let (first, last) = bounds(offsets);
    array.slice(first, last - first)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{FixedSizeListArray, Float32Array, Int32Array, ListArray, StringArray, StructArray};
    use arrow::buffer::NullBuffer;
    use arrow::compute::{concat_batches, filter_record_batch};
    use arrow::datatypes::{Field, Int32Type};

    use super::*;
    use crate::FixedShapeTensor;

    fn batch() -> RecordBatch {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>(
            (0..10).map(|i| (i % 4 != 3).then(|| vec![Some(i); i as usize])),
        );
        let item = Arc::new(Field::new("item", DataType::Float32, true));
        let floats = Arc::new(Float32Array::from_iter_values((0..20).map(|i| i as f32)));
        let pairs = FixedSizeListArray::new(item, 2, floats, Some(NullBuffer::from_iter((0..10).map(|i| i != 4))));
        let strings: ArrayRef = Arc::new(StringArray::from_iter((0..10).map(|i| (i != 5).then(|| "x".repeat(i)))));
        let nested = StructArray::from(vec![(Arc::new(Field::new("s", DataType::Utf8, true)), Arc::clone(&strings))]);
        RecordBatch::try_from_iter_with_nullable([
            ("list", Arc::new(list) as ArrayRef, true),
            ("pairs", Arc::new(pairs), true),
            ("strings", strings, true),
            ("nested", Arc::new(nested), true),
            ("flags", Arc::new(arrow::array::BooleanArray::from_iter((0..10).map(|i| Some(i % 3 == 0)))), true),
        ])
        .expect("columns of one length")
    }

    #[test]
    fn layout_does_not_enter_the_digest() {
        let batch = batch();
        let all = arrow::array::BooleanArray::from(vec![true; 10]);
        let cut: Vec<_> = [(0, 3), (3, 1), (4, 6)].iter().map(|&(at, len)| batch.slice(at, len)).collect();
        let joined = concat_batches(&batch.schema(), &cut).expect("one schema");
        assert_eq!(digest(&batch), digest(&joined));
        assert_eq!(digest(&batch), digest(&filter_record_batch(&batch, &all).expect("one length")));
        let tail = filter_record_batch(&batch, &(0..10).map(|i| Some(i >= 4)).collect()).expect("one length");
        assert_eq!(digest(&batch.slice(4, 6)), digest(&tail));
    }

    #[test]
    fn values_names_and_types_enter_the_digest() {
        let of =
            |name: &str, values: ArrayRef| digest(&RecordBatch::try_from_iter([(name, values)]).expect("one column"));
        let numbers = |values: Vec<Option<i32>>| Arc::new(Int32Array::from(values)) as ArrayRef;
        let base = of("a", numbers(vec![Some(1), None]));
        assert_ne!(base, of("b", numbers(vec![Some(1), None])));
        assert_ne!(base, of("a", numbers(vec![None, Some(1)])));
        assert_ne!(base, of("a", numbers(vec![Some(1), Some(0)])));
        assert_ne!(of("a", numbers(vec![Some(1)])), of("a", Arc::new(Float32Array::from(vec![1.0]))));
        assert_ne!(
            of("a", Arc::new(StringArray::from(vec!["ab", "c"]))),
            of("a", Arc::new(StringArray::from(vec!["a", "bc"])))
        );
    }

    #[test]
    fn an_empty_batch_has_a_digest() {
        assert_eq!(digest(&batch().slice(0, 0)).len(), 32);
    }

    /// Without rows, and so by the fields alone.
    #[test]
    fn fields_enter_the_digest() {
        let of = |field: Field| {
            let schema = Schema::new(vec![field]);
            let digests = (schema_digest(&schema), digest(&RecordBatch::new_empty(Arc::new(schema))));
            assert_ne!(digests.0, digests.1);
            digests
        };
        let tensor = |shape: Vec<usize>| FixedShapeTensor::new(DataType::UInt8, shape).field("a", true).expect("small");
        let list = |item: Field| Field::new("a", DataType::List(Arc::new(item)), true);
        let within = |item: Field| Field::new("a", DataType::Struct(vec![list(item)].into()), true);
        let note = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
        let number = || Field::new("a", DataType::Int32, true);
        let fields = [
            number(),
            number().with_name("b"),
            number().with_nullable(false),
            number().with_data_type(DataType::UInt32),
            number().with_metadata(note("unit", "m")),
            number().with_metadata(note("unit", "s")),
            number().with_metadata(note("uni", "ts")),
            tensor(vec![2, 6]),
            tensor(vec![6, 2]),
            list(number()),
            list(number().with_nullable(false)),
            list(number().with_metadata(note("unit", "m"))),
            list(tensor(vec![2, 6])),
            list(tensor(vec![6, 2])),
            within(tensor(vec![2, 6])),
            within(tensor(vec![6, 2])),
        ];
        let digests: std::collections::BTreeSet<_> = fields.iter().cloned().map(of).collect();
        assert_eq!(digests.len(), fields.len());
    }

    #[test]
    fn the_order_of_metadata_does_not_enter_the_digest() {
        let of = |keys: [&str; 8]| {
            let metadata = keys.map(|key| (key.to_owned(), "value".to_owned())).into();
            schema_digest(&Schema::new(vec![Field::new("a", DataType::Int32, true).with_metadata(metadata)]))
        };
        let mut keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let expected = of(keys);
        for _ in 0..8 {
            keys.rotate_left(1);
            assert_eq!(of(keys), expected);
        }
    }
}
