//! Random numbers: `random_uniform`, `random_int`, `random_normal`.
//!
//! All are one struct: a descriptor, and a function from constants to a distribution.

use std::f64::consts::TAU;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter};
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};

/// An operator that draws a number for each row.
#[derive(Debug)]
pub(crate) struct RandomNumber {
    descriptor: &'static Descriptor,
    prepare: fn(&Arguments) -> Result<Distribution>,
}

/// A distribution of numbers.
#[derive(Debug)]
enum Distribution {
    Uniform { low: f64, high: f64 },
    Below(u64),
    Normal { mean: f64, std: f64 },
}

impl Operator for RandomNumber {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let data_type = match (self.prepare)(arguments)? {
            Distribution::Below(_) => DataType::Int64,
            Distribution::Uniform { .. } | Distribution::Normal { .. } => DataType::Float64,
        };
        Ok(Field::new("number", data_type, false))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let draws = (0..arguments.rows()).map(|row| arguments.draws(row));
        Ok(match (self.prepare)(arguments)? {
            Distribution::Below(n) => {
                let numbers = draws.map(|draws| Ok(draws?.below(n) as i64)).collect::<Result<Vec<_>>>()?;
                Arc::new(Int64Array::from(numbers))
            }
            Distribution::Uniform { low, high } => {
                let numbers = draws.map(|draws| Ok(uniform(&mut draws?, low, high))).collect::<Result<Vec<_>>>()?;
                Arc::new(Float64Array::from(numbers))
            }
            Distribution::Normal { mean, std } => {
                let numbers = draws.map(|draws| Ok(mean + std * normal(&mut draws?))).collect::<Result<Vec<_>>>()?;
                Arc::new(Float64Array::from(numbers))
            }
        })
    }
}

/// Draws a number of at least `low` and below `high`. Rounding alone would give `high` at times.
fn uniform(draws: &mut Draws, low: f64, high: f64) -> f64 {
    draws.uniform_in(low, high).min(high.next_down()).max(low)
}

/// Draws from the normal distribution by the transform of Box and Muller, whose second number is not used. The `libm`
/// crate gives the same bits on every processor.
pub(crate) fn normal(draws: &mut Draws) -> f64 {
    // The logarithm of zero has no value, and 1 - uniform is above zero.
    let radius = (-2.0 * libm::log(1.0 - draws.uniform())).sqrt();
    radius * libm::cos(TAU * draws.uniform())
}

/// The descriptor fields that these operators share.
const NUMBER: Descriptor =
    Descriptor { category: "random", determinism: Determinism::KeyedRandom, nulls: Nulls::Filled, ..Descriptor::BASE };

pub(crate) static RANDOM_UNIFORM: RandomNumber = RandomNumber {
    descriptor: &Descriptor {
        name: "random_uniform",
        summary: "Draws a number from a range for each row, with all numbers equally likely",
        parameters: &[
            Parameter::constant("low", ConstantKind::Number, "The minimum").or("0.0"),
            Parameter::constant("high", ConstantKind::Number, "The limit, which is above all numbers").or("1.0"),
            Parameter::KEY,
        ],
        returns: "Float64, at least low and below high",
        docs: "One draw. The number depends only on the feed's seed, the epoch, the sample and the call, so a feed \
               draws it again after a restart and on any rank. It has 53 random bits. The number is never null.",
        source: "NumPy's `Generator.uniform`, with the draws of the row's random key",
        examples: &[
            Example { sql: "random_uniform()", result: "a number from 0 to below 1" },
            Example { sql: "random_uniform() < 0.1", result: "true for a tenth of the rows" },
        ],
        ..NUMBER
    },
    prepare: |arguments| {
        let (low, high) = (arguments.number("low")?, arguments.number("high")?);
        if low >= high {
            return arguments.refuse("low", format_args!("must be below \"high\", got {low} and {high}"));
        }
        if !(high - low).is_finite() {
            return arguments.refuse("high", format_args!("is too far from \"low\", got {low} and {high}"));
        }
        Ok(Distribution::Uniform { low, high })
    },
};

pub(crate) static RANDOM_INT: RandomNumber = RandomNumber {
    descriptor: &Descriptor {
        name: "random_int",
        summary: "Draws an integer from 0 to n - 1 for each row, each equally likely",
        parameters: &[
            Parameter::constant("n", ConstantKind::PositiveInteger, "The number of integers").like("10"),
            Parameter::KEY,
        ],
        returns: "Int64, from 0 to n - 1",
        docs: "The integer depends only on the feed's seed, the epoch, the sample and the call. It is exactly uniform, \
               for which a draw may be repeated. The integer is never null.",
        source: "NumPy's `Generator.integers`, with the draws of the row's random key",
        examples: &[Example { sql: "random_int(6) + 1", result: "a die" }],
        ..NUMBER
    },
    prepare: |arguments| Ok(Distribution::Below(arguments.positive("n")? as u64)),
};

pub(crate) static RANDOM_NORMAL: RandomNumber = RandomNumber {
    descriptor: &Descriptor {
        name: "random_normal",
        summary: "Draws a number from a normal distribution for each row",
        parameters: &[
            Parameter::constant("mean", ConstantKind::Number, "The mean").or("0.0"),
            Parameter::constant("std", ConstantKind::Number, "The standard deviation, at least 0").or("1.0"),
            Parameter::KEY,
        ],
        returns: "Float64",
        docs: "Two draws a and b: the number is mean + std * sqrt(-2 ln(1 - a)) * cos(2 pi b), with the same bits on \
               every processor. It depends only on the feed's seed, the epoch, the sample and the call. The number is \
               never null.",
        source: "Box and Muller, A Note on the Generation of Random Normal Deviates (1958)",
        examples: &[Example { sql: "x + random_normal(std => 0.01)", result: "x with noise" }],
        ..NUMBER
    },
    prepare: |arguments| {
        let (mean, std) = (arguments.number("mean")?, arguments.number("std")?);
        if std < 0.0 {
            return arguments.refuse("std", format_args!("must be at least 0, got {std}"));
        }
        Ok(Distribution::Normal { mean, std })
    },
};

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Float64Type, Int64Type};
    use datafusion::logical_expr::{Expr, lit};

    use crate::testing::{keyed, keys, noise, select, sql};

    fn floats(name: &str, arguments: Vec<Expr>, rows: u64) -> Vec<f64> {
        let (_, array) = select(keyed(name, arguments), vec![keys(rows)]).unwrap();
        array.as_primitive::<Float64Type>().values().to_vec()
    }

    // The expected numbers come from golden/random_numbers.py, an implementation in Python.

    #[test]
    fn numbers_are_known() {
        let golden = crate::testing::golden("random_numbers");
        let expect = |name: &str| -> Vec<f64> {
            golden[name].as_array().unwrap().iter().map(|number| number.as_str().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(floats("random_uniform", vec![], 8), expect("uniform"));
        assert_eq!(floats("random_uniform", vec![lit(-2.0), lit(3.0)], 8), expect("uniform_in"));
        // Python's logarithm and cosine are the platform's, which may differ in the last bit.
        for (got, expect) in floats("random_normal", vec![lit(5.0), lit(2.0)], 8).iter().zip(expect("normal")) {
            assert!((got - expect).abs() <= 1e-14 * expect.abs(), "{got} and {expect}");
        }
        let (_, array) = select(keyed("random_int", vec![lit(10)]), vec![keys(8)]).unwrap();
        let integers: Vec<f64> = array.as_primitive::<Int64Type>().values().iter().map(|n| *n as f64).collect();
        assert_eq!(integers, expect("int"));
    }

    #[test]
    fn the_normal_has_its_bits_on_every_processor() {
        let bits: Vec<u64> = floats("random_normal", vec![], 2).into_iter().map(f64::to_bits).collect();
        assert_eq!(bits, NORMAL_BITS);
    }

    const NORMAL_BITS: [u64; 2] = [4606018796618818661, 4602683606594944853];

    #[test]
    fn moments_are_those_of_the_distribution() {
        let rows = 8_000;
        let moments = |numbers: &[f64]| {
            let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
            (mean, numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / numbers.len() as f64)
        };
        let (mean, variance) = moments(&floats("random_normal", vec![lit(1.0), lit(3.0)], rows));
        assert!((mean - 1.0).abs() < 0.1 && (variance - 9.0).abs() < 0.5, "{mean} {variance}");
        let uniform = floats("random_uniform", vec![], rows);
        let (mean, variance) = moments(&uniform);
        assert!((mean - 0.5).abs() < 0.01 && (variance - 1.0 / 12.0).abs() < 0.002, "{mean} {variance}");
        assert!(uniform.iter().all(|x| (0.0..1.0).contains(x)));
    }

    #[test]
    fn the_limit_is_never_drawn() {
        // Here nearly all sums round to one of two numbers.
        let (low, high) = (1.0, 1.0_f64.next_up());
        assert!(floats("random_uniform", vec![lit(low), lit(high)], 100).iter().all(|x| *x == low));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).err().as_deref(), Some(expect));
        check("random_uniform(1, 1)", "random_uniform: \"low\" must be below \"high\", got 1 and 1");
        check("random_int(0)", "random_int: \"n\" must be a positive integer, got 0");
        check("random_normal(0, -1)", "random_normal: \"std\" must be at least 0, got -1");
        check("random_uniform()", "random_uniform draws from a feed's key, so it only runs inside a pipeline");
    }
}
