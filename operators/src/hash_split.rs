//! `hash_split`: divides values into splits of given shares.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::hash_bucket::hashes;
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hash_split",
    category: "category",
    summary: "Divides values into splits of given shares with a hash",
    parameters: &[
        Parameter::input("value", TypeClass::Hashable, "The values; equal ones are in one split"),
        Parameter::constant("shares", ConstantKind::NumberList, "The size of each split, in proportion to the others")
            .like("[0.8, 0.1, 0.1]"),
        Parameter::constant("seed", ConstantKind::Integer, "A different seed gives an independent division").or("0"),
    ],
    returns: "Int64, the number of the split, from 0",
    docs: "The hash is that of `hash_bucket`. Its top 53 bits are a number from 0 to below 1, and the split is the first \
           one whose shares up to it, divided by the sum of all shares, are above this number. A value's split depends \
           on nothing else, so it stays when rows are added, and on every machine. Splits have their shares of the \
           distinct values on average, and so has each label. A share may be 0. Hash what must not be torn apart, such \
           as a patient, and not the row. `hash_bucket(value, k, seed)` gives k folds. Null in, null out.",
    source: "TensorFlow Datasets' splits by the hash of a key, with XXH3 as the hash",
    examples: &[
        Example { sql: "hash_split(path, [0.8, 0.1, 0.1]) = 0", result: "true for 80 % of the paths" },
        Example { sql: "hash_split('berlin', shares => [9, 1])", result: "0" },
    ],
    takes_views: true,
    ..Descriptor::BASE
};

/// The operator `hash_split`.
#[derive(Debug)]
pub(crate) struct HashSplit;

impl Operator for HashSplit {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        limits(arguments)?;
        Ok(Field::new("split", DataType::Int64, arguments.field("value")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let limits = limits(arguments)?;
        let hashes = hashes(arguments.array("value")?, arguments.integer("seed")? as u64)?;
        Ok(Arc::new(hashes.unary::<_, Int64Type>(|hash| split(hash, &limits))))
    }
}

/// Returns the end of each split in the numbers from 0 to 1, without the last one, which has no limit.
fn limits(arguments: &Arguments) -> Result<Vec<f64>> {
    shares_to_limits(arguments, "shares", &arguments.numbers("shares")?)
}

/// Returns the end of each of the shares that the constant `name` states, without the last one.
pub(crate) fn shares_to_limits(arguments: &Arguments, name: &str, shares: &[f64]) -> Result<Vec<f64>> {
    if let Some(share) = shares.iter().find(|share| **share < 0.0) {
        return arguments.refuse(name, format_args!("must be at least 0, got {share}"));
    }
    let total: f64 = shares.iter().sum();
    if total <= 0.0 || !total.is_finite() {
        return arguments.refuse(name, format_args!("must have a finite sum above 0, got {total}"));
    }
    let mut sum = 0.0;
    let mut limits: Vec<f64> = shares.iter().map(|share| (sum += share, sum / total).1).collect();
    // Rounding must not give values to a last split of share 0, and must not leave values without a split.
    while limits.last().is_some_and(|limit| *limit >= 1.0) {
        limits.pop();
    }
    Ok(limits)
}

fn split(hash: u64, limits: &[f64]) -> i64 {
    const ULP: f64 = 1.0 / (1u64 << 53) as f64;
    let number = (hash >> 11) as f64 * ULP;
    limits.iter().take_while(|limit| number >= **limit).count() as i64
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Int64Array};

    use super::*;
    use crate::testing::{call, column};

    fn counts(shares: &str, seed: i64) -> Vec<usize> {
        let values = column("x", Int64Array::from_iter_values(0..8_000));
        let (_, got) = call(&format!("hash_split(x, [{shares}], {seed})"), vec![values]).unwrap();
        assert_eq!(got.null_count(), 0);
        let splits = got.as_primitive::<Int64Type>().values().to_vec();
        (0..4).map(|split| splits.iter().filter(|got| **got == split).count()).collect()
    }

    #[test]
    fn splits_have_their_shares() {
        let check = |shares: &str, expect: [usize; 4]| {
            let got = counts(shares, 0);
            assert!(got.iter().zip(expect).all(|(got, expect)| got.abs_diff(expect) < 150), "{shares}: {got:?}");
            assert!(got.iter().zip(expect).all(|(got, expect)| (*got == 0) == (expect == 0)), "{shares}: {got:?}");
        };
        check("0.8, 0.1, 0.1", [6_400, 800, 800, 0]);
        check("8, 1, 1", [6_400, 800, 800, 0]);
        check("1, 0, 3, 0", [2_000, 0, 6_000, 0]);
        check("5", [8_000, 0, 0, 0]);
        assert_eq!(counts("8, 1, 1", 0), counts("0.8, 0.1, 0.1", 0));
        assert_ne!(counts("8, 1, 1", 1), counts("8, 1, 1", 0));
    }

    #[test]
    fn a_boundary_belongs_to_the_next_split() {
        assert_eq!(split(0, &[0.0, 0.5]), 1);
        assert_eq!(split(1 << 63, &[0.25, 0.5]), 2);
        assert_eq!(split((1 << 63) - 1, &[0.25, 0.5]), 1);
        assert_eq!(split(u64::MAX, &[0.25]), 1);
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        let check = |shares: &str, expect: &str| {
            let values = column("x", Int64Array::from(vec![1]));
            let got = call(&format!("hash_split(x, [{shares}])"), vec![values]).unwrap_err();
            assert_eq!(got, expect);
        };
        check("0.5, -0.5", "hash_split: \"shares\" must be at least 0, got -0.5");
        check("0, 0", "hash_split: \"shares\" must have a finite sum above 0, got 0");
    }
}
