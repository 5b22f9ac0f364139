//! `log1p`: ln(1 + x).

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Float32Type, Float64Type};
use datafusion::common::{Result, internal_err};

use crate::descriptor::{Descriptor, Example, Parameter, ParameterKind, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::reuse::{self, Own};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "log1p",
    version: 1,
    category: "number",
    summary: "Computes the natural logarithm of 1 + x, exact for small x",
    parameters: &[Parameter::input("x", TypeClass::Numeric, "The numbers")],
    returns: "Float32 for Float16 and Float32, otherwise Float64",
    docs: "-1 gives -infinity and smaller numbers give NaN, like in NumPy. No value is an error. Null in, null out. \
           Computed in software, so every machine returns the same bits.",
    source: "FreeBSD's msun `log1p`, through the `libm` crate; NumPy's `log1p` for special values",
    examples: &[
        Example { sql: "log1p(0.0)", result: "0.0" },
        Example { sql: "log1p(99)", result: "4.605170185988092" },
    ],
    ..Descriptor::BASE
};

/// The operator `log1p`.
#[derive(Debug)]
pub(crate) struct Log1p;

impl Operator for Log1p {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn coerce(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let ParameterKind::Input(class) = DESCRIPTOR.parameters[0].kind else {
            return internal_err!("log1p takes an input");
        };
        let coerced = types.iter().map(|data_type| match class.coerce(data_type) {
            integer if integer.is_integer() => DataType::Float64,
            other => other,
        });
        Ok(coerced.collect())
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("x")?;
        let data_type = match field.data_type() {
            DataType::Float32 => DataType::Float32,
            _ => DataType::Float64,
        };
        Ok(Field::new("log1p", data_type, field.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.take_array("x")?;
        match array.data_type() {
            DataType::Float32 => {
                let mut own = Own::take_or_copy::<Float32Type>(array);
                log1pf(own.values_mut::<Float32Type>());
                Ok(own.finish::<Float32Type>())
            }
            DataType::Float64 => Ok(reuse::map::<Float64Type>(array, libm::log1p)),
            other => internal_err!("log1p got {other}, which coercion removes"),
        }
    }
}

/// Replaces each value by its [`libm::log1pf`], bit for bit. Without negative values the loop has no branch, so it is
/// vectorized.
fn log1pf(values: &mut [f32]) {
    for values in values.chunks_mut(64) {
        let is_simple = values.iter().fold(true, |all, x| all & (x.to_bits() >> 31 == 0));
        for x in values {
            *x = if is_simple { log1pf_of_positive(*x) } else { libm::log1pf(*x) };
        }
    }
}

/// The algorithm of FreeBSD's msun, `s_log1pf.c`, with its constants: 1 + x is 2^k (1 + f), and log(1 + f) is an odd
/// polynomial of f / (2 + f). A correction adds the rounding error of 1 + x.
#[inline(always)]
#[expect(clippy::excessive_precision, reason = "the digits that msun gives")]
fn log1pf_of_positive(x: f32) -> f32 {
    const LN2_HIGH: f32 = 6.931_381_225_6e-1;
    const LN2_LOW: f32 = 9.058_000_614_5e-6;
    const POLYNOMIAL: [f32; 4] = [0.666_666_626_93, 0.400_009_721_52, 0.284_987_866_88, 0.242_790_788_41];
    const HALF_ROOT: u32 = 0x3F35_04F3;
    let bits = x.to_bits();
    let sum = 1.0 + x;
    let above = sum.to_bits().wrapping_add(0x3F80_0000 - HALF_ROOT);
    let exponent = (above >> 23) as i32 - 0x7F;
    let lost = if exponent >= 2 { 1.0 - (sum - x) } else { x - (sum - 1.0) };
    let correction = if exponent < 25 { lost / sum } else { 0.0 };
    let reduced = f32::from_bits((above & 0x007F_FFFF) + HALF_ROOT) - 1.0;
    // Below the square root of 2, less 1, x is its own remainder.
    let is_small = bits < 0x3ED4_13D0;
    let f = if is_small { x } else { reduced };
    let k = if is_small { 0.0 } else { exponent as f32 };
    let c = if is_small { 0.0 } else { correction };
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let [first, second, third, fourth] = POLYNOMIAL;
    let r = z * (first + w * third) + w * (second + w * fourth);
    let half = 0.5 * f * f;
    let result = s * (half + r) + (k * LN2_LOW + c) - half + f + k * LN2_HIGH;
    // Tiny values, infinity and NaN are returned unchanged.
    if (0x3380_0000..0x7F80_0000).contains(&bits) { result } else { x }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Float32Array, Float64Array, Int32Array};

    use super::*;
    use crate::testing::{column, sql};

    #[test]
    fn values_are_numpys() {
        let x = Float64Array::from(vec![Some(0.0), Some(1e-10), Some(1.0), Some(99.0), Some(-1.0), None]);
        let (_, got) = sql("log1p(x)", vec![column("x", x)]).unwrap();
        let expect = vec![
            Some(0.0),
            Some(9.999999999500001e-11),
            Some(std::f64::consts::LN_2),
            Some(4.605170185988092),
            Some(f64::NEG_INFINITY),
            None,
        ];
        assert_eq!(got.as_primitive::<Float64Type>(), &Float64Array::from(expect));
        let (_, got) = sql("log1p(x)", vec![column("x", Float64Array::from(vec![-1.5, f64::NAN]))]).unwrap();
        assert!(got.as_primitive::<Float64Type>().values().iter().all(|x| x.is_nan()));
    }

    #[test]
    fn several_at_once_are_those_of_libm() {
        let near = [0x3380_0000_u32, 0x3ED4_13D0, 0x3F35_04F3, 0x3F80_0000, 0x4C00_0000, 0x7F80_0000];
        let near = near.into_iter().flat_map(|bits| bits - 3000..bits + 3000);
        let all = (0..=0x7F80_1000).step_by(997).chain(near).chain([0, 1, 0x7FC0_0000]);
        let values: Vec<f32> = all.map(f32::from_bits).collect();
        let mut logarithms = values.clone();
        log1pf(&mut logarithms);
        for (x, got) in values.iter().zip(logarithms) {
            assert_eq!(got.to_bits(), libm::log1pf(*x).to_bits(), "log1p({x:e})");
        }
        let mut mixed = [1.0, -0.5, -1.0, -2.0, 3.0, f32::NAN, -0.0];
        let expected = mixed.map(|x| libm::log1pf(x).to_bits());
        log1pf(&mut mixed);
        assert_eq!(mixed.map(f32::to_bits), expected);
    }

    #[test]
    fn float32_stays_and_integers_become_float64() {
        let (_, got) = sql("log1p(x)", vec![column("x", Float32Array::from(vec![1e-5, 99.0]))]).unwrap();
        assert_eq!(got.as_primitive::<Float32Type>().values().as_ref(), [9.99995e-6, 4.6051702]);
        let (_, got) = sql("log1p(x)", vec![column("x", Int32Array::from(vec![99]))]).unwrap();
        assert_eq!(got.as_primitive::<Float64Type>().values().as_ref(), [4.605170185988092]);
        let (_, got) = sql("log1p(NULL)", vec![column("x", Int32Array::from(vec![99]))]).unwrap();
        assert_eq!(got.null_count(), 1);
    }
}
