//! Functions from numbers to integers: `bucketize`, `map_id`, `positive_mod`, `quantize`, `sigrid_hash`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray};
use arrow::compute::{cast, unary};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Int64Type, UInt8Type, UInt64Type};
use datafusion::common::Result;

use super::{on_values, with_value_type};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::reuse;

/// An operator that maps numbers to integers.
#[derive(Debug)]
pub(crate) struct IntegerMap {
    descriptor: &'static Descriptor,
    value: DataType,
    prepare: fn(&Arguments) -> Result<IntegerFunction>,
}

/// A function with its constants.
#[derive(Debug)]
enum IntegerFunction {
    Bucketize(Vec<f64>),
    Replace(HashMap<i64, i64>, i64),
    PositiveMod(i64),
    Quantize(f64, f64),
    SigridHash(i64, i64),
}

impl Operator for IntegerMap {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("x")?;
        if arguments.are_known() {
            (self.prepare)(arguments)?;
        }
        Ok(with_value_type(self.descriptor.name, field, self.value.clone()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let map = (self.prepare)(arguments)?;
        let array = arguments.take_array("x")?;
        if let (IntegerFunction::PositiveMod(divisor), DataType::Int64) = (&map, array.data_type()) {
            return Ok(reuse::map::<Int64Type>(array, modulo(*divisor)));
        }
        on_values(&array, |values| match map {
            IntegerFunction::Bucketize(borders) => {
                floats::<Int32Type>(values, |x| borders.partition_point(|border| *border < x || x.is_nan()) as i32)
            }
            IntegerFunction::Quantize(scale, zero) => {
                floats::<UInt8Type>(values, |x| ((x / scale).round_ties_even() + zero) as u8)
            }
            IntegerFunction::Replace(ids, other) => integers(values, |id| ids.get(&id).copied().unwrap_or(other)),
            IntegerFunction::PositiveMod(divisor) => match values.as_primitive_opt::<UInt64Type>() {
                Some(values) => Ok(mapped::<_, Int64Type>(values, |x| (x % divisor as u64) as i64)),
                None => integers(values, modulo(divisor)),
            },
            IntegerFunction::SigridHash(salt, max) => integers(values, |id| sigrid_hash(id, salt, max)),
        })
    }
}

fn mapped<I: ArrowPrimitiveType, O: ArrowPrimitiveType>(
    values: &PrimitiveArray<I>,
    function: impl Fn(I::Native) -> O::Native,
) -> ArrayRef {
    let mapped: PrimitiveArray<O> = unary(values, function);
    Arc::new(mapped)
}

fn floats<O: ArrowPrimitiveType>(values: &ArrayRef, function: impl Fn(f64) -> O::Native) -> Result<ArrayRef> {
    Ok(mapped::<_, O>(cast(values, &DataType::Float64)?.as_primitive::<Float64Type>(), function))
}

/// Applies a function to integers. Unsigned 64-bit integers are reinterpreted by their bits, like TorchArrow's.
fn integers(values: &ArrayRef, function: impl Fn(i64) -> i64) -> Result<ArrayRef> {
    match values.as_primitive_opt::<UInt64Type>() {
        Some(values) => Ok(mapped::<_, Int64Type>(values, |x| function(x as i64))),
        None => Ok(mapped::<_, Int64Type>(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>(), function)),
    }
}

/// Returns a function that computes the non-negative remainder. For divisors of 31 bits and values of 32 bits, which
/// hashes and Criteo's columns have, it multiplies (Lemire's method, exact). A division takes 20 to 40 cycles.
pub(crate) fn modulo(divisor: i64) -> impl Fn(i64) -> i64 {
    let small = u32::try_from(divisor).unwrap_or(0);
    let magic = if small > 0 { u64::MAX / u64::from(small) } else { 0 }.wrapping_add(1);
    move |x| match u32::try_from(x) {
        Ok(x) if small > 0 => {
            let fraction = magic.wrapping_mul(u64::from(x));
            ((u128::from(fraction) * u128::from(small)) >> 64) as i64
        }
        _ => x.rem_euclid(divisor),
    }
}

fn sigrid_hash(id: i64, salt: i64, max: i64) -> i64 {
    if max == 1 {
        return 0;
    }
    combine(salt as u64, mix(id as u64)).cast_signed().rem_euclid(max)
}

/// Thomas Wang's 64-bit mix.
fn mix(mut key: u64) -> u64 {
    key = (!key).wrapping_add(key << 21);
    key ^= key >> 24;
    key = key.wrapping_mul(1 + (1 << 3) + (1 << 8));
    key ^= key >> 14;
    key = key.wrapping_mul(1 + (1 << 2) + (1 << 4));
    key ^= key >> 28;
    key.wrapping_add(key << 31)
}

/// CityHash's combination of two 64-bit hashes, as in folly's `hash_combine`.
fn combine(upper: u64, lower: u64) -> u64 {
    const MULTIPLIER: u64 = 0x9DDF_EA08_EB38_2D69;
    let a = (lower ^ upper).wrapping_mul(MULTIPLIER);
    let b = (upper ^ a ^ (a >> 47)).wrapping_mul(MULTIPLIER);
    (b ^ (b >> 47)).wrapping_mul(MULTIPLIER)
}

const NUMBERS: Parameter = Parameter::input("x", TypeClass::NumericOrList, "The numbers, or lists of numbers");

const IDS: Parameter = Parameter::input("x", TypeClass::IntegerOrList, "The ids, or lists of ids");

/// What most operators of this file declare alike.
const INTEGER_MAP: Descriptor = Descriptor { category: "category", ..Descriptor::BASE };

pub(crate) static BUCKETIZE: IntegerMap = IntegerMap {
    descriptor: &Descriptor {
        name: "bucketize",
        category: "number",
        summary: "Maps numbers to the index of the bucket that holds them",
        parameters: &[
            NUMBERS,
            Parameter::constant("borders", ConstantKind::NumberList, "The upper bounds of the buckets, ascending")
                .fitted(),
        ],
        returns: "Int32, from 0 to the number of borders; lists of it for lists",
        docs: "The index is the number of borders below x, so a border belongs to the bucket that it ends. NaN is \
             in the last bucket. Numbers are compared as float64. `quantile_bucketize` fits borders to the rows. Null \
             in, null out, in lists as well.",
        source: "PyTorch's `bucketize`, TorchArrow's `bucketize`",
        examples: &[
            Example { sql: "bucketize(3, borders => [1, 3, 5])", result: "1" },
            Example { sql: "bucketize([0.5, 9], borders => [1, 3, 5])", result: "[0, 3]" },
        ],
        ..INTEGER_MAP
    },
    value: DataType::Int32,
    prepare: bucketize,
};

pub(crate) static MAP_ID: IntegerMap = IntegerMap {
    descriptor: &Descriptor {
        name: "map_id",
        summary: "Replaces ids by others with a given table",
        parameters: &[
            IDS,
            Parameter::constant("sources", ConstantKind::NumberList, "The ids to map, each once"),
            Parameter::constant("targets", ConstantKind::NumberList, "The new id of each source"),
            Parameter::constant("other", ConstantKind::Integer, "The new id of all other ids").or("0"),
        ],
        returns: "Int64; lists of it for lists",
        docs: "sources and targets must be lists of integers of the same length. For tables of strings, or in \
             files, use `vocab_apply`. Null in, null out, in lists as well.",
        source: "TorchArrow's `map_id`, with a value for ids that are not in the table",
        examples: &[Example { sql: "map_id(7, sources => [5, 7], targets => [50, 70])", result: "70" }],
        ..INTEGER_MAP
    },
    value: DataType::Int64,
    prepare: map_id,
};

pub(crate) static POSITIVE_MOD: IntegerMap = IntegerMap {
    descriptor: &Descriptor {
        name: "positive_mod",
        summary: "Computes the non-negative remainder of a division",
        parameters: &[IDS, Parameter::constant("divisor", ConstantKind::PositiveInteger, "The number of values")],
        returns: "Int64, from 0 to divisor - 1; lists of it for lists",
        docs: "It maps ids to an embedding table of divisor rows without a hash. Null in, null out, in lists as \
             well.",
        source: "Velox's DPP function `positive_modulus`, Python's `%`",
        examples: &[Example { sql: "positive_mod(-1, divisor => 10)", result: "9" }],
        ..INTEGER_MAP
    },
    value: DataType::Int64,
    prepare: positive_mod,
};

pub(crate) static QUANTIZE: IntegerMap = IntegerMap {
    descriptor: &Descriptor {
        name: "quantize",
        category: "number",
        summary: "Converts numbers to bytes with a scale and a zero point",
        parameters: &[
            NUMBERS,
            Parameter::constant("scale", ConstantKind::Number, "The difference of x between two neighbouring results"),
            Parameter::constant("zero_point", ConstantKind::Integer, "The result for 0").or("0"),
        ],
        returns: "UInt8; lists of it for lists",
        docs: "Computes round(x / scale) + zero_point, ties to even, clamped to 0 to 255. NaN becomes 0. scale \
             must be above 0, and zero_point from 0 to 255. The inverse is (q - zero_point) * scale. Null in, \
             null out, in lists as well.",
        source: "PyTorch's `quantize_per_tensor` with quint8, in float64",
        examples: &[
            Example { sql: "quantize(0.5, scale => 0.1, zero_point => 10)", result: "15" },
            Example { sql: "quantize([-9.0, 90.0], scale => 0.1)", result: "[0, 255]" },
        ],
        ..INTEGER_MAP
    },
    value: DataType::UInt8,
    prepare: quantize,
};

pub(crate) static SIGRID_HASH: IntegerMap = IntegerMap {
    descriptor: &Descriptor {
        name: "sigrid_hash",
        summary: "Maps ids to a fixed number of values with the hash of TorchArrow and DPP",
        parameters: &[
            IDS,
            Parameter::constant("salt", ConstantKind::Integer, "A different salt gives a different mapping"),
            Parameter::constant("max_value", ConstantKind::PositiveInteger, "The number of values"),
        ],
        returns: "Int64, from 0 to max_value - 1; lists of it for lists",
        docs: "Unsigned 64-bit integers are hashed by their bits. For new models, `hash_bucket` is the faster and \
             better hash. Use this one for models whose tables were trained with it. Null in, null out, in lists \
             as well.",
        source: "TorchArrow's `sigrid_hash`: Wang's mix and CityHash's combination, as in folly",
        examples: &[Example { sql: "sigrid_hash(5, salt => 0, max_value => 100)", result: "4" }],
        ..INTEGER_MAP
    },
    value: DataType::Int64,
    prepare: sigrid,
};

fn bucketize(arguments: &Arguments) -> Result<IntegerFunction> {
    let borders = arguments.numbers("borders")?;
    match borders.is_empty() || borders.windows(2).any(|pair| pair[0] >= pair[1]) {
        true => arguments.refuse("borders", format_args!("must be ascending numbers, got {borders:?}")),
        false => Ok(IntegerFunction::Bucketize(borders)),
    }
}

fn map_id(arguments: &Arguments) -> Result<IntegerFunction> {
    let list = |name: &str| {
        let numbers = arguments.numbers(name)?;
        // Constant lists may arrive as floats, which hold integers exactly up to 2^53.
        match numbers.iter().find(|number| number.fract() != 0.0 || number.abs() > (1u64 << 53) as f64) {
            Some(number) => arguments.refuse(name, format_args!("must be integers up to 2^53, got {number}")),
            None => Ok(numbers.into_iter().map(|number| number as i64).collect::<Vec<_>>()),
        }
    };
    let (from, to) = (list("sources")?, list("targets")?);
    if from.len() != to.len() {
        return arguments.refuse(
            "targets",
            format_args!("must have as many ids as \"sources\", got {} and {}", to.len(), from.len()),
        );
    }
    let length = from.len();
    let ids: HashMap<_, _> = from.into_iter().zip(to).collect();
    match ids.len() == length {
        true => Ok(IntegerFunction::Replace(ids, arguments.integer("other")?)),
        false => arguments.refuse("sources", "must name each id once"),
    }
}

fn positive_mod(arguments: &Arguments) -> Result<IntegerFunction> {
    Ok(IntegerFunction::PositiveMod(arguments.positive("divisor")? as i64))
}

fn quantize(arguments: &Arguments) -> Result<IntegerFunction> {
    let (scale, zero) = (arguments.number("scale")?, arguments.integer("zero_point")?);
    if scale <= 0.0 {
        return arguments.refuse("scale", format_args!("must be above 0, got {scale}"));
    }
    match (0..=255).contains(&zero) {
        true => Ok(IntegerFunction::Quantize(scale, zero as f64)),
        false => arguments.refuse("zero_point", format_args!("must be from 0 to 255, got {zero}")),
    }
}

fn sigrid(arguments: &Arguments) -> Result<IntegerFunction> {
    Ok(IntegerFunction::SigridHash(arguments.integer("salt")?, arguments.positive("max_value")? as i64))
}
