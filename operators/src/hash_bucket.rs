//! `hash_bucket`: maps values to a fixed number of buckets.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, UInt64Type};
use datafusion::common::{Result, internal_err};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hash_bucket",
    version: 1,
    category: "category",
    summary: "Maps values to a fixed number of buckets with a hash",
    parameters: &[
        Parameter::input("value", TypeClass::Hashable, "The values"),
        Parameter::constant("buckets", ConstantKind::PositiveInteger, "The number of buckets"),
        Parameter::constant("seed", ConstantKind::Integer, "A different seed gives an independent mapping").or("0"),
    ],
    returns: "Int64, from 0 to buckets - 1",
    docs: "The bucket is XXH3 (64 bits, with the seed) of the value's bytes, modulo the number of buckets. Integers of \
           any width are hashed as 8 little-endian bytes in two's complement, booleans as the integers 0 and 1, floats \
           as the bits of a float64 (-0.0 as 0.0, all NaNs as one), strings as UTF-8, binary values as their bytes. So \
           values keep their buckets when a column changes from Int32 to Int64, or from string to string view. Null \
           in, null out.",
    source: "the hashing trick (Weinberger et al., 2009), with XXH3 as the hash",
    examples: &[
        Example { sql: "hash_bucket('berlin', buckets => 1000)", result: "472" },
        Example { sql: "hash_bucket(42, buckets => 1000, seed => 7)", result: "957" },
    ],
    takes_views: true,
    ..Descriptor::BASE
};

/// The operator `hash_bucket`.
#[derive(Debug)]
pub(crate) struct HashBucket;

impl Operator for HashBucket {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Ok(Field::new("bucket", DataType::Int64, arguments.field("value")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (buckets, seed) = (arguments.positive("buckets")? as u64, arguments.integer("seed")? as u64);
        let hashes = hashes(arguments.array("value")?, seed)?;
        Ok(Arc::new(hashes.unary::<_, Int64Type>(|hash| (hash % buckets) as i64)))
    }
}

/// Returns the hash of each value.
pub(crate) fn hashes(array: &ArrayRef, seed: u64) -> Result<UInt64Array> {
    let hash = Hash { seed };
    Ok(match array.data_type() {
        DataType::Utf8 => hash.all(array.as_string::<i32>(), str::as_bytes),
        DataType::LargeUtf8 => hash.all(array.as_string::<i64>(), str::as_bytes),
        DataType::Utf8View => hash.all(array.as_string_view(), str::as_bytes),
        DataType::Binary => hash.all(array.as_binary::<i32>(), |v| v),
        DataType::LargeBinary => hash.all(array.as_binary::<i64>(), |v| v),
        DataType::BinaryView => hash.all(array.as_binary_view(), |v| v),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().unary(|v| hash.one(&v.to_le_bytes())),
        DataType::Float32 | DataType::Float64 => {
            let floats = cast(array, &DataType::Float64)?;
            floats.as_primitive::<Float64Type>().unary(|v| hash.one(&canonical(v).to_le_bytes()))
        }
        other if other.is_integer() || *other == DataType::Boolean => {
            let integers = cast(array, &DataType::Int64)?;
            integers.as_primitive::<Int64Type>().unary(|v| hash.one(&v.to_le_bytes()))
        }
        other => return internal_err!("{other} cannot be hashed, and its type class refuses it"),
    })
}

struct Hash {
    seed: u64,
}

impl Hash {
    fn one(&self, bytes: &[u8]) -> u64 {
        xxh3_64_with_seed(bytes, self.seed)
    }

    fn all<'a, T: ?Sized + 'a>(
        &self,
        values: impl IntoIterator<Item = Option<&'a T>>,
        bytes: impl Fn(&T) -> &[u8],
    ) -> UInt64Array {
        values.into_iter().map(|value| value.map(|value| self.one(bytes(value)))).collect()
    }
}

/// Maps equal floats to equal bits. SQL groups -0.0 with 0.0, and NaN with NaN.
fn canonical(value: f64) -> f64 {
    if value.is_nan() { f64::NAN } else { value + 0.0 }
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryArray, Int8Array, Int64Array, StringArray, StringViewArray};

    use super::*;
    use crate::testing::{Column, column, sql};

    fn check(call: &str, column: Column, expect: &[Option<i64>]) {
        let (_, got) = sql(call, vec![column]).unwrap();
        assert_eq!(got.as_primitive::<Int64Type>(), &Int64Array::from(expect.to_vec()), "{call}");
    }

    // The expected buckets come from Python's `xxhash` package.

    #[test]
    fn buckets_are_known() {
        check("hash_bucket('berlin', 1000)", column("x", Int8Array::from(vec![0])), &[Some(472)]);
        check("hash_bucket('', 1000)", column("x", Int8Array::from(vec![0])), &[Some(138)]);
        check("hash_bucket(x, 1000, 7)", column("x", Int8Array::from(vec![Some(42), None])), &[Some(957), None]);
        check("hash_bucket(x, 1000000)", column("x", Int64Array::from(vec![-1])), &[Some(748_627)]);
        check("hash_bucket(1.5, 1000)", column("x", Int8Array::from(vec![0])), &[Some(384)]);
        check(
            "hash_bucket(arrow_cast(18446744073709551615, 'UInt64'), 1000)",
            column("x", Int8Array::from(vec![0])),
            &[Some(627)],
        );
    }

    #[test]
    fn a_value_keeps_its_bucket_when_its_type_changes() {
        let berlin = [Some(472), None];
        check("hash_bucket(x, 1000)", column("x", StringArray::from(vec![Some("berlin"), None])), &berlin);
        check("hash_bucket(x, 1000)", column("x", StringViewArray::from(vec![Some("berlin"), None])), &berlin);
        check("hash_bucket(x, 1000)", column("x", BinaryArray::from(vec![Some(b"berlin".as_ref()), None])), &berlin);
        for data_type in ["Int8", "UInt16", "Int64", "UInt64"] {
            let call = format!("hash_bucket(arrow_cast(x, '{data_type}'), 1000, 7)");
            check(&call, column("x", Int8Array::from(vec![42])), &[Some(957)]);
        }
        check("hash_bucket(arrow_cast(x, 'Float32') + 1.5, 1000)", column("x", Int8Array::from(vec![0])), &[Some(384)]);
    }

    #[test]
    fn equal_floats_share_a_bucket() {
        let hash = Hash { seed: 0 };
        let bucket = |x: f64| hash.one(&canonical(x).to_le_bytes());
        assert_eq!(bucket(-0.0), bucket(0.0));
        assert_eq!(bucket(f64::NAN), bucket(-f64::NAN));
    }

    #[test]
    fn other_types_are_refused() {
        let expect =
            "hash_bucket: \"value\" must be an integer, float, boolean, string or binary value, got List(Int64)";
        let got = sql("hash_bucket([1], 10)", vec![column("x", Int8Array::from(vec![0]))]).unwrap_err();
        assert_eq!(got, expect);
    }
}
