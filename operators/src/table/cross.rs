//! `cross`: combines two categories into one.

use std::sync::Arc;

use arrow::array::Array;
use arrow::array::{ArrayRef, Int64Array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::hash_bucket::hashes;
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "cross",
    version: 1,
    category: "category",
    summary: "Maps pairs of values to a fixed number of buckets with a hash",
    parameters: &[
        Parameter::input("a", TypeClass::Hashable, "The first values"),
        Parameter::input("b", TypeClass::Hashable, "The second values"),
        Parameter::constant("buckets", ConstantKind::PositiveInteger, "The number of buckets"),
        Parameter::constant("seed", ConstantKind::Integer, "A different seed gives an independent mapping").or("0"),
    ],
    returns: "Int64, from 0 to buckets - 1",
    docs: "The bucket is XXH3 (64 bits, with the seed) of the two values' hashes as 16 little-endian bytes, modulo the \
           number of buckets. Each value is hashed like by `hash_bucket` with the same seed. The order of the two \
           matters. To cross more than two values, nest calls with many buckets inside. Null if either value is null.",
    source: "TensorFlow's `crossed_column`, with XXH3 as the hash",
    examples: &[Example { sql: "cross('berlin', 42, buckets => 1000)", result: "813" }],
    ..Descriptor::BASE
};

/// The operator `cross`.
#[derive(Debug)]
pub(crate) struct Cross;

impl Operator for Cross {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let is_nullable = arguments.field("a")?.is_nullable() || arguments.field("b")?.is_nullable();
        Ok(Field::new("bucket", DataType::Int64, is_nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (buckets, seed) = (arguments.positive("buckets")? as u64, arguments.integer("seed")? as u64);
        let (a, b) = (hashes(arguments.array("a")?, seed)?, hashes(arguments.array("b")?, seed)?);
        let pairs = a.values().iter().zip(b.values());
        let crossed = pairs.map(|(a, b)| {
            let bytes = (u128::from(*b) << 64 | u128::from(*a)).to_le_bytes();
            (xxh3_64_with_seed(&bytes, seed) % buckets) as i64
        });
        let nulls = NullBuffer::union(a.nulls(), b.nulls());
        Ok(Arc::new(Int64Array::try_new(crossed.collect(), nulls)?))
    }
}
