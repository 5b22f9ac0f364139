//! `ngram`: maps runs of list values to categories.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericListArray, Int64Array, ListArray, OffsetSizeTrait};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, internal_err};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::hash_bucket::hashes;
use crate::operator::{Arguments, Operator};
use crate::text::offset;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "ngram",
    version: 1,
    category: "list",
    summary: "Maps each run of n values in a list to a fixed number of buckets with a hash",
    parameters: &[
        Parameter::input("list", TypeClass::IntegerList, "The lists, such as ids"),
        Parameter::constant("n", ConstantKind::PositiveInteger, "The number of values in a run"),
        Parameter::constant("buckets", ConstantKind::PositiveInteger, "The number of buckets"),
        Parameter::constant("seed", ConstantKind::Integer, "A different seed gives an independent mapping").or("0"),
    ],
    returns: "a list of Int64, from 0 to buckets - 1",
    docs: "A list of m values has m - n + 1 runs, in order; a shorter list has none. The bucket is XXH3 (64 bits, with \
           the seed) of the values' hashes, 8 little-endian bytes each, modulo the number of buckets. Each value is \
           hashed like by `hash_bucket` with the same seed. So a run of two values has the bucket that `cross` gives \
           them. A run with a null is left out. Null in, null out.",
    source: "DPP's NGram (Zhao et al., 2022), with XXH3 as the hash",
    examples: &[Example { sql: "ngram([42, 7, 42], n => 2, buckets => 1000)", result: "[298, 263]" }],
    ..Descriptor::BASE
};

/// The operator `ngram`.
#[derive(Debug)]
pub(crate) struct Ngram;

impl Operator for Ngram {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let item = Field::new_list_field(DataType::Int64, false);
        Ok(Field::new("buckets", DataType::List(Arc::new(item)), arguments.field("list")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (n, buckets) = (arguments.positive("n")?, arguments.positive("buckets")? as u64);
        let seed = arguments.integer("seed")? as u64;
        let array = arguments.array("list")?;
        match array.data_type() {
            DataType::List(_) => ngrams(array.as_list::<i32>(), n, buckets, seed),
            DataType::LargeList(_) => ngrams(array.as_list::<i64>(), n, buckets, seed),
            other => internal_err!("ngram got {other}, which its type class refuses"),
        }
    }
}

fn ngrams<O: OffsetSizeTrait>(list: &GenericListArray<O>, n: usize, buckets: u64, seed: u64) -> Result<ArrayRef> {
    let offsets = list.value_offsets();
    let first = offsets[0].as_usize();
    let values = list.values().slice(first, offsets[offsets.len() - 1].as_usize() - first);
    let hashes = hashes(&values, seed)?;
    // The hashes of a run are contiguous, so they are hashed without a copy.
    let bytes: Vec<u8> = hashes.values().iter().flat_map(|hash| hash.to_le_bytes()).collect();
    let mut runs = Vec::with_capacity(values.len());
    let mut ends = Vec::with_capacity(list.len() + 1);
    ends.push(0);
    for row in 0..list.len() {
        if !list.is_null(row) {
            let (start, end) = (offsets[row].as_usize() - first, offsets[row + 1].as_usize() - first);
            // The position after the last null so far, or the start of the list.
            let mut after_null = start;
            for last in start..end {
                if values.is_null(last) {
                    after_null = last + 1;
                } else if last + 1 - after_null >= n {
                    let run = &bytes[8 * (last + 1 - n)..8 * (last + 1)];
                    runs.push((xxh3_64_with_seed(run, seed) % buckets) as i64);
                }
            }
        }
        ends.push(offset(DESCRIPTOR.name, runs.len())?);
    }
    let item = Arc::new(Field::new_list_field(DataType::Int64, false));
    let runs = Arc::new(Int64Array::from(runs));
    Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::new(ends.into()), runs, list.nulls().cloned())?))
}

#[cfg(test)]
mod tests {
    use arrow::array::LargeListArray;
    use arrow::datatypes::{Int32Type, Int64Type};

    use super::*;
    use crate::testing::{column, sql};

    fn rows(array: &ArrayRef) -> Vec<Option<Vec<i64>>> {
        let rows = array.as_list::<i32>().iter();
        rows.map(|row| row.map(|row| row.as_primitive::<Int64Type>().values().to_vec())).collect()
    }

    // The expected buckets come from the definition in Python, with the `xxhash` package.
    #[test]
    fn runs_have_the_buckets_of_the_definition() {
        let lists = || {
            let lists = [Some(vec![Some(9); 9]), Some(vec![Some(42), Some(7), Some(-1), Some(42), Some(7)])];
            let more = [None, Some(vec![Some(1), None, Some(42), Some(7)]), Some(vec![]), Some(vec![Some(5)])];
            let lists = lists.into_iter().chain(more);
            column("x", LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists).slice(1, 5))
        };
        let (_, pairs) = sql("ngram(x, 2, 1000)", vec![lists()]).unwrap();
        assert_eq!(rows(&pairs), [Some(PAIRS.to_vec()), None, Some(vec![PAIRS[0]]), Some(vec![]), Some(vec![])]);
        let (_, threes) = sql("ngram(x, 3, 1000000, 7)", vec![lists()]).unwrap();
        assert_eq!(rows(&threes), [Some(THREES.to_vec()), None, Some(vec![]), Some(vec![]), Some(vec![])]);
        let (_, crossed) = sql("cross(42, 7, 1000)", vec![lists()]).unwrap();
        assert_eq!(crossed.as_primitive::<Int64Type>().value(0), PAIRS[0]);
    }

    const PAIRS: [i64; 4] = [298, 787, 102, 298];
    const THREES: [i64; 3] = [129414, 20748, 83187];
}
