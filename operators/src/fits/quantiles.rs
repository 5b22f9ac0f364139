//! `quantile_bucketize`: `bucketize` with the quantiles of rows as borders.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

use super::fit::{FIT_ON, Fit};
use super::scales::NUMBERS;
use super::{lists, literals};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};

/// The most buckets. Their borders are a part of the plan.
const BUCKETS_MOST: u64 = 65_536;

/// The name of the aggregate.
pub const QUANTILES: &str = "__forebay_quantiles";

pub(super) static QUANTILE_BUCKETIZE: Fit = Fit {
    descriptor: &Descriptor {
        name: "quantile_bucketize",
        category: "number",
        summary: "Maps numbers to the index of the bucket that holds them, with buckets of equally many rows",
        parameters: &[
            Parameter::input("x", TypeClass::NumericOrList, "The numbers. Unnest lists before"),
            Parameter::constant("n", ConstantKind::PositiveInteger, "The number of buckets, 65,536 at most").like("10"),
            FIT_ON,
        ],
        returns: "Int32, from 0 to n - 1",
        docs: "The borders are the n - 1 quantiles of the fitted rows, each interpolated linearly between two numbers. \
               Equal borders are one, and a border at the least or the greatest number is left out, so there may be \
               fewer buckets. A border belongs to the bucket that it ends. Numbers outside the fitted range are in the \
               first or the last bucket, and so is NaN: in the last. Only finite numbers are fitted to. The quantiles are \
               exact: fitting holds 8 bytes per row in memory. Null in, null out.",
        source: "pandas' `qcut` with `duplicates='drop'`, and `bucketize`",
        examples: &[Example { sql: "quantile_bucketize(x, 4)", result: "0 to 3, for a quarter of the rows each" }],
        ..Descriptor::BASE
    },
    operator: "bucketize",
    constants: &[("borders", "__forebay_quantiles(x, n)")],
    input: NUMBERS,
    choices: &[],
    greatest: &[("n", BUCKETS_MOST)],
    one_less: &[],
    kept: None,
};

/// The aggregate of the borders: ascending, without repetition, and at least one. Null without numbers.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Quantiles {
    signature: Signature,
}

impl Quantiles {
    pub(super) fn udaf() -> AggregateUDF {
        let signature = Signature::exact(vec![DataType::Float64, DataType::Int64], Volatility::Immutable);
        AggregateUDF::from(Self { signature })
    }
}

fn list() -> DataType {
    DataType::new_list(DataType::Float64, true)
}

impl AggregateUDFImpl for Quantiles {
    fn name(&self) -> &'static str {
        QUANTILES
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(list())
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let buckets = literals::positive(args.exprs, 1)?;
        Ok(Box::new(Numbers { buckets, numbers: Vec::new() }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        Ok(vec![Arc::new(Field::new(format!("{}[numbers]", args.name), list(), true))])
    }
}

/// The numbers of all rows.
#[derive(Debug)]
struct Numbers {
    buckets: u64,
    numbers: Vec<f64>,
}

impl Accumulator for Numbers {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let numbers = values[0].as_primitive::<Float64Type>();
        match numbers.null_count() {
            0 => self.numbers.extend_from_slice(numbers.values()),
            _ => self.numbers.extend(numbers.iter().flatten()),
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let numbers: ArrayRef = Arc::new(Float64Array::from(std::mem::take(&mut self.numbers)));
        Ok(vec![lists::scalar(numbers)])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for list in states[0].as_list::<i32>().iter().flatten() {
            self.numbers.extend_from_slice(list.as_primitive::<Float64Type>().values());
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.numbers.is_empty() {
            return ScalarValue::try_from(&list());
        }
        self.numbers.sort_unstable_by(f64::total_cmp);
        let borders: ArrayRef = Arc::new(Float64Array::from(borders(&self.numbers, self.buckets)));
        Ok(lists::scalar(borders))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.numbers.capacity() * size_of::<f64>()
    }
}

/// The borders of buckets of these numbers, which are sorted.
fn borders(sorted: &[f64], buckets: u64) -> Vec<f64> {
    let (least, greatest) = (sorted[0], sorted[sorted.len() - 1]);
    let quantile = |k: u64| {
        let at = (sorted.len() - 1) as u128 * u128::from(k);
        let (below, part) = ((at / u128::from(buckets)) as usize, (at % u128::from(buckets)) as f64 / buckets as f64);
        let (a, b) = (sorted[below], sorted[(below + 1).min(sorted.len() - 1)]);
        // As NumPy interpolates, which is exact for equal numbers.
        if part < 0.5 { a + (b - a) * part } else { b - (b - a) * (1.0 - part) }
    };
    let mut borders: Vec<f64> = Vec::new();
    for k in 1..buckets {
        let border = quantile(k);
        if border > *borders.last().unwrap_or(&least) && border < greatest {
            borders.push(border);
        }
    }
    if borders.is_empty() {
        borders.push(greatest);
    }
    borders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_those_of_pandas() {
        // pandas.qcut(x, n, duplicates="drop", retbins=True)[1][1:-1]
        assert_eq!(borders(&[1.0, 2.0, 3.0, 4.0, 5.0], 4), [2.0, 3.0, 4.0]);
        assert_eq!(borders(&[0.0, 1.0, 4.0, 9.0], 3), [1.0, 4.0]);
        assert_eq!(borders(&[0.0, 10.0], 4), [2.5, 5.0, 7.5]);
        assert_eq!(borders(&[1.0, 1.0, 1.0, 2.0, 3.0], 4), [2.0]);
        assert_eq!(borders(&[1.0, 2.0, 3.0, 3.0, 3.0], 4), [2.0]);
        assert_eq!(borders(&[7.0, 7.0], 10), [7.0]);
        assert_eq!(borders(&[7.0], 1), [7.0]);
        let (mut equal, mut more) = (vec![0.1; 9], vec![0.3; 12]);
        equal.push(5.0);
        assert_eq!(borders(&equal, 5), [5.0]);
        more.extend([0.0, 9.0]);
        more.sort_unstable_by(f64::total_cmp);
        assert_eq!(borders(&more, 7), [0.3]);
    }
}
