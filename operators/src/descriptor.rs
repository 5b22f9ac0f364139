//! What an operator declares about itself, once.
//!
//! Planner, cache, reordering, documentation and error texts all read the [`Descriptor`]; no other list of operators or
//! of their properties exists. Everything here is `'static` data, so a descriptor is written as one `static` item at
//! the top of the operator's file.

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::scalar::ScalarValue;
use forebay_arrays::FixedShapeTensor;

use crate::image_column;
use crate::keyed::KEY_ARGUMENTS;

/// The name of the argument that the engine appends to a call that depends on the step: a column of the longest length
/// that rows of each row's step may have, 0 where there is none, and the greatest integer where there is no longest.
pub const STEP_ARGUMENT: &str = "step_length";

/// Everything that is known about an operator without running it.
#[derive(Debug)]
pub struct Descriptor {
    /// The function's name in SQL.
    pub name: &'static str,
    /// Raised whenever the output for the same input changes. It enters fingerprints, so an artifact computed by an
    /// older version is not found any more.
    pub version: u32,
    /// The section of the reference that the operator appears in: "image", "number", "category".
    pub category: &'static str,
    /// One sentence without a final period.
    pub summary: &'static str,
    /// The parameters in the order of their positions. Parameters with a default come last.
    pub parameters: &'static [Parameter],
    /// The returned type, in words.
    pub returns: &'static str,
    /// What the output depends on.
    pub determinism: Determinism,
    /// What happens to the number of rows.
    pub rows: Rows,
    /// Whether a row whose inputs are null stays null.
    pub nulls: Nulls,
    /// Bounds on the bytes of a result.
    pub size_ratio: SizeRatio,
    /// Which pixels of an image each pixel of the result follows from.
    pub pixels: Pixels,
    /// Whether a call may decode images at reduced size, or lets its input do so.
    pub reduced_decode: ReducedDecode,
    /// Whether the operator takes texts as views too, though plans say that they are plain, and takes little time for a
    /// text. It then runs once over the distinct texts of a source that knows them.
    pub takes_views: bool,
    /// Shapes, dtypes, nulls and errors: what a user must know beyond the summary.
    pub docs: &'static str,
    /// The paper or the reference implementation that the output follows.
    pub source: &'static str,
    /// Calls with their results.
    pub examples: &'static [Example],
}

/// One named parameter.
#[derive(Debug)]
pub struct Parameter {
    /// The name used with `=>` and in errors.
    pub name: &'static str,
    /// What may be passed.
    pub kind: ParameterKind,
    /// The default as SQL literal text, such as `0.08` or `[0.485, 0.456, 0.406]`; `None` when the argument is
    /// required. An input may be left out where it is `NULL`.
    pub default: Option<&'static str>,
    /// A value for the hint of an error, if the one for all [constants of its kind](ConstantKind::example) does not do.
    pub example: Option<&'static str>,
    /// One sentence without a final period.
    pub docs: &'static str,
}

/// What may be passed for a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A value per row.
    Input(TypeClass),
    /// One value for the whole call, known when the query is planned.
    Constant(ConstantKind),
    /// The rows that a table operator is called with: its first parameter.
    Rows,
}

/// The types that an input accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeClass {
    /// Bytes, or encoded media as `struct{bytes, path}`.
    Binary,
    /// A uint8 tensor of height x width x 3, of fixed or variable shape.
    Image,
    /// An integer or a float.
    Numeric,
    /// An integer, float, boolean, string or binary value.
    Hashable,
    /// A tensor of uint8, float16, bfloat16 or float32, of any shape, fixed or variable.
    Tensor,
    /// A tensor of height x width x 3, of numbers and all of one height and width.
    FixedImage,
    /// A tensor of numbers of one fixed shape; a list of fixed size is one.
    FixedTensor,
    /// The same, or a number.
    TensorOrNumber,
    /// The same, or a list of integers or floats.
    TensorOrList,
    /// A list of integers or floats, of any length.
    NumberList,
    /// An integer, a float, or a list of these.
    NumericOrList,
    /// An integer.
    Integer,
    /// A list of integers, of any length.
    IntegerList,
    /// An integer or a list of these.
    IntegerOrList,
    /// A string.
    Text,
    /// A string of hexadecimal digits.
    Hexadecimal,
    /// An integer or a string.
    Category,
}

/// The values that a constant accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConstantKind {
    /// An integer above zero.
    PositiveInteger,
    /// An integer.
    Integer,
    /// A finite integer or float.
    Number,
    /// A list of finite numbers.
    NumberList,
    /// A finite number, or a list of these.
    NumberOrList,
    /// A list of strings, or a list of integers.
    Categories,
    /// A string.
    Text,
    /// The path of a file, whose content becomes part of the call. See [`crate::files`].
    File,
    /// Strings, as a list or as a file of lines.
    Vocabulary,
    /// True or false.
    Boolean,
}

/// What an operator's output depends on, apart from its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Determinism {
    /// Nothing.
    Deterministic,
    /// The row's random key and the call site. See [`crate::keyed`].
    KeyedRandom,
    /// The longest length of the row's global step, where the feed groups rows by length.
    StepLength,
    /// The rows of the window and their order, which the feed may shuffle. Only table operators do.
    WindowOrder,
}

/// What an operator does to the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row out for each row in.
    OneToOne,
    /// At most one row out for each row in.
    Shrinks,
    /// Any number of rows out for each row in.
    Grows,
}

/// What an operator makes of nulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nulls {
    /// Where all inputs are null, so is the result.
    Kept,
    /// The result is never null.
    Filled,
}

/// Bounds on the bytes of values in a result, for each byte of values in the only input.
///
/// Neither nulls nor offsets count, nor the shapes of tensors; nor do rows that are null in the input or in the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeRatio {
    /// The result is not smaller.
    pub least: f64,
    /// The result is not larger.
    pub most: f64,
}

/// Which pixels of an image each pixel of a result follows from.
///
/// Of two operators that follow each other, one [`Pointwise`](Self::Pointwise) and one [`Moved`](Self::Moved), either
/// may run first where the types allow both: the result is the same, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pixels {
    /// Any, or the operator makes no image of an image.
    Any,
    /// The pixel at the same place alone, wherever that is: `posterize`.
    Pointwise,
    /// One pixel, which is copied from a place that the values of pixels do not decide: `random_hflip`.
    Moved,
}

/// The part of an operator in decoding images at reduced size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReducedDecode {
    /// It has none.
    Unrelated,
    /// It decodes images. A call whose constant of this name is true agrees to a reduced size.
    Decodes(&'static str),
    /// It shrinks images, its first input, and so has use for images of reduced size.
    Shrinks,
}

/// A call and its result, for the reference.
#[derive(Debug)]
pub struct Example {
    /// An SQL expression.
    pub sql: &'static str,
    /// Its result, as text or in words.
    pub result: &'static str,
}

impl Descriptor {
    /// What most operators declare alike. A descriptor names what differs, and ends with `..Descriptor::BASE`.
    pub const BASE: Self = Self {
        name: "",
        version: 1,
        category: "",
        summary: "",
        parameters: &[],
        returns: "",
        determinism: Determinism::Deterministic,
        rows: Rows::OneToOne,
        nulls: Nulls::Kept,
        size_ratio: SizeRatio::UNKNOWN,
        pixels: Pixels::Any,
        reduced_decode: ReducedDecode::Unrelated,
        takes_views: false,
        docs: "",
        source: "",
        examples: &[],
    };

    /// Whether calls of both operators that follow each other may change places without changing a bit of the result,
    /// where the types allow both orders.
    pub fn commutes_with(&self, other: &Self) -> bool {
        matches!((self.pixels, other.pixels), (Pixels::Pointwise, Pixels::Moved) | (Pixels::Moved, Pixels::Pointwise))
    }

    /// The position of the parameter with this name.
    pub fn position(&self, parameter: &str) -> Option<usize> {
        self.parameters.iter().position(|p| p.name == parameter)
    }

    /// The number of arguments that have no default.
    pub fn required(&self) -> usize {
        self.parameters.iter().filter(|p| p.default.is_none()).count()
    }
}

impl SizeRatio {
    /// The size depends on values, on constants or on several inputs.
    pub const UNKNOWN: Self = Self { least: 0.0, most: f64::INFINITY };

    /// The size is known exactly.
    pub const fn exactly(ratio: f64) -> Self {
        Self { least: ratio, most: ratio }
    }

    /// The result is at most this many times as large.
    pub const fn at_most(most: f64) -> Self {
        Self { least: 0.0, most }
    }
}

impl Parameter {
    /// A required value per row.
    pub const fn input(name: &'static str, class: TypeClass, docs: &'static str) -> Self {
        Self { name, kind: ParameterKind::Input(class), default: None, example: None, docs }
    }

    /// The rows of a table operator. `docs` says which columns they need.
    pub const fn rows(docs: &'static str) -> Self {
        Self { name: "rows", kind: ParameterKind::Rows, default: None, example: None, docs }
    }

    /// A required constant.
    pub const fn constant(name: &'static str, kind: ConstantKind, docs: &'static str) -> Self {
        Self { name, kind: ParameterKind::Constant(kind), default: None, example: None, docs }
    }

    /// The same parameter with a value for the hint of an error, as SQL literal text.
    pub const fn like(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// The same parameter with a default, given as SQL literal text.
    pub const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// The default as a value: `Int64`, `Float64`, `Utf8`, `Boolean`, a list of `Float64`, or `Null`.
    pub fn default_value(&self) -> Option<ScalarValue> {
        self.default.and_then(parse_literal)
    }
}

impl ParameterKind {
    /// What may be passed, as it reads after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::Input(class) => class.wording(),
            Self::Constant(kind) => kind.wording(),
            Self::Rows => "a subquery or a table",
        }
    }

    /// Whether the value may be passed for a constant. The error reads after the parameter's name:
    /// `must be a positive integer, got -3`. Inputs accept every value of their type.
    pub fn check(&self, value: &ScalarValue) -> Result<(), String> {
        let fits = match self {
            Self::Input(_) | Self::Rows => true,
            Self::Constant(ConstantKind::PositiveInteger) => integer(value).is_some_and(|n| n > 0),
            Self::Constant(ConstantKind::Integer) => integer(value).is_some(),
            Self::Constant(ConstantKind::Number) => number(value).is_some(),
            Self::Constant(ConstantKind::NumberList) => numbers(value).is_some(),
            Self::Constant(ConstantKind::NumberOrList) => number(value).is_some() || numbers(value).is_some(),
            Self::Constant(ConstantKind::Categories) => {
                texts(value).is_some()
                    || numbers(value).is_some_and(|numbers| numbers.iter().all(|number| number.fract() == 0.0))
            }
            Self::Constant(ConstantKind::Text) => text(value).is_some(),
            Self::Constant(ConstantKind::File) => text(value).is_some_and(|path| !path.is_empty()),
            Self::Constant(ConstantKind::Vocabulary) => {
                text(value).is_some_and(|path| !path.is_empty()) || texts(value).is_some()
            }
            Self::Constant(ConstantKind::Boolean) => matches!(value, ScalarValue::Boolean(Some(_))),
        };
        if fits {
            return Ok(());
        }
        let got = match text(value) {
            Some(text) => format!("\"{text}\""),
            None => value.to_string(),
        };
        Err(format!("must be {}, got {got}", self.wording()))
    }
}

impl TypeClass {
    /// What may be passed, as it reads after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::Binary => "binary",
            Self::Image => "an image (uint8 tensor of height x width x 3)",
            Self::Numeric => "a number",
            Self::Hashable => "an integer, float, boolean, string or binary value",
            Self::NumberList => "a list of numbers",
            Self::Tensor => "a tensor of uint8, float16, bfloat16 or float32",
            Self::FixedImage => "a tensor of height x width x 3, all of one height and width",
            Self::FixedTensor => "a tensor of one fixed shape",
            Self::TensorOrNumber => "a tensor of one fixed shape or a number",
            Self::TensorOrList => "a tensor of one fixed shape or a list of numbers",
            Self::NumericOrList => "a number or a list of numbers",
            Self::Integer => "an integer",
            Self::IntegerList => "a list of integers",
            Self::IntegerOrList => "an integer or a list of integers",
            Self::Text => "a string",
            Self::Hexadecimal => "a string of hexadecimal digits",
            Self::Category => "an integer or a string",
        }
    }

    /// Whether a column of this field may be passed.
    pub fn accepts(&self, field: &Field) -> bool {
        let data_type = field.data_type();
        match self {
            Self::Binary => is_binary(data_type) || media_bytes(data_type).is_some(),
            Self::Image => image_column::is_image(field),
            Self::Tensor => {
                matches!(image_column::value_type(field), Some(DataType::UInt8 | DataType::Float16 | DataType::Float32))
                    || image_column::is_bfloat16(field)
            }
            Self::FixedImage => {
                matches!(image_column::image_type(field), Some((image_column::Shape::Fixed { .. }, _)))
                    && FixedShapeTensor::of_numbers(field).is_some()
            }
            Self::FixedTensor => FixedShapeTensor::of_numbers(field).is_some(),
            Self::TensorOrNumber => Self::FixedTensor.accepts(field) || Self::Numeric.accepts(field),
            Self::TensorOrList => Self::FixedTensor.accepts(field) || Self::NumberList.accepts(field),
            Self::Numeric => data_type.is_integer() || is_float(data_type),
            Self::Hashable => {
                data_type.is_integer()
                    || is_float(data_type)
                    || is_binary(data_type)
                    || data_type.is_string()
                    || *data_type == DataType::Boolean
            }
            Self::NumberList => match data_type {
                DataType::List(item) | DataType::LargeList(item) => Self::Numeric.accepts(item),
                _ => false,
            },
            Self::NumericOrList => Self::Numeric.accepts(field) || Self::NumberList.accepts(field),
            Self::Integer => data_type.is_integer(),
            Self::IntegerList => match data_type {
                DataType::List(item) | DataType::LargeList(item) => Self::Integer.accepts(item),
                _ => false,
            },
            Self::IntegerOrList => Self::Integer.accepts(field) || Self::IntegerList.accepts(field),
            Self::Text | Self::Hexadecimal => data_type.is_string(),
            Self::Category => data_type.is_string() || data_type.is_integer(),
        }
    }

    /// The type to cast to before the operator runs. A type that does not fit comes back unchanged: DataFusion wraps
    /// errors of coercion in two sentences of its own, so misfits are reported a moment later, by [`Self::accepts`].
    pub fn coerce(&self, data_type: &DataType) -> DataType {
        match (self, data_type) {
            (Self::Binary | Self::Hashable, DataType::Null) => DataType::Binary,
            (Self::Numeric, DataType::Null) => DataType::Float64,
            (Self::Numeric | Self::Hashable, DataType::Float16) => DataType::Float32,
            (Self::Numeric | Self::Hashable, data_type) if data_type.is_decimal() => DataType::Float64,
            (Self::NumberList, DataType::Null) => DataType::new_list(DataType::Int64, true),
            (Self::NumberList, DataType::List(item)) => DataType::List(Self::coerce_item(item)),
            (Self::NumberList, DataType::LargeList(item)) => DataType::LargeList(Self::coerce_item(item)),
            (Self::NumberList, DataType::FixedSizeList(item, _)) => DataType::List(Self::coerce_item(item)),
            (Self::TensorOrNumber, data_type) if !data_type.is_nested() => Self::Numeric.coerce(data_type),
            (Self::TensorOrList, DataType::List(_) | DataType::LargeList(_)) => Self::NumberList.coerce(data_type),
            (Self::Integer | Self::IntegerOrList, DataType::Null) => DataType::Int64,
            (Self::Text | Self::Hexadecimal | Self::Category, DataType::Null) => DataType::Utf8,
            (_, DataType::Dictionary(_, value)) => self.coerce(value),
            (Self::IntegerList, data_type) => Self::NumberList.coerce(data_type),
            (Self::NumericOrList | Self::IntegerOrList, data_type) if data_type.is_nested() => {
                Self::NumberList.coerce(data_type)
            }
            (Self::NumericOrList, data_type) => Self::Numeric.coerce(data_type),
            (_, data_type) => data_type.clone(),
        }
    }

    fn coerce_item(item: &FieldRef) -> FieldRef {
        Arc::new(item.as_ref().clone().with_data_type(Self::Numeric.coerce(item.data_type())))
    }
}

impl ConstantKind {
    /// A value that may be passed, as SQL literal text.
    pub fn example(&self) -> &'static str {
        match self {
            Self::PositiveInteger => "1024",
            Self::Integer => "0",
            Self::Number => "0.5",
            Self::NumberList => "[0.5, 0.5, 0.5]",
            Self::NumberOrList => "4",
            Self::Categories | Self::Vocabulary => "['red', 'green']",
            Self::Text => "'text'",
            Self::File => "'tokenizer.json'",
            Self::Boolean => "true",
        }
    }

    /// What may be passed, as it reads after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::PositiveInteger => "a positive integer",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::NumberList => "a list of numbers",
            Self::NumberOrList => "a number or a list of numbers",
            Self::Categories => "a list of strings or of integers",
            Self::Text => "a string",
            Self::File => "the path of a file",
            Self::Vocabulary => "a list of strings or the path of a file",
            Self::Boolean => "true or false",
        }
    }
}

impl Determinism {
    /// The names of the arguments that the engine appends to a call; each is `UInt64`.
    pub fn hidden_arguments(&self) -> &'static [&'static str] {
        match self {
            Self::Deterministic | Self::WindowOrder => &[],
            Self::KeyedRandom => &KEY_ARGUMENTS,
            Self::StepLength => &[STEP_ARGUMENT],
        }
    }

    /// Whether a row may come out differently in each epoch even though its window has the same rows in the same order.
    pub fn varies_by_epoch(&self) -> bool {
        matches!(self, Self::KeyedRandom | Self::StepLength)
    }

    /// The property as the reference words it.
    pub fn wording(&self) -> &'static str {
        match self {
            Self::Deterministic => "deterministic",
            Self::KeyedRandom => "keyed-random",
            Self::StepLength => "deterministic, with the length bucket of the row's global step",
            Self::WindowOrder => "deterministic, with the order of the window's rows",
        }
    }
}

impl Rows {
    /// The property as the reference words it.
    pub fn wording(&self) -> &'static str {
        match self {
            Self::OneToOne => "one-to-one",
            Self::Shrinks => "shrinking",
            Self::Grows => "growing",
        }
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// The position of the binary child `bytes` of encoded media, `struct{bytes, path}`.
pub(crate) fn media_bytes(data_type: &DataType) -> Option<usize> {
    let DataType::Struct(fields) = data_type else { return None };
    fields.iter().position(|f| f.name() == "bytes" && is_binary(f.data_type()))
}

pub(crate) fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int8(v) => v.map(i64::from),
        ScalarValue::Int16(v) => v.map(i64::from),
        ScalarValue::Int32(v) => v.map(i64::from),
        ScalarValue::Int64(v) => *v,
        ScalarValue::UInt8(v) => v.map(i64::from),
        ScalarValue::UInt16(v) => v.map(i64::from),
        ScalarValue::UInt32(v) => v.map(i64::from),
        ScalarValue::UInt64(v) => v.and_then(|v| i64::try_from(v).ok()),
        _ => None,
    }
}

pub(crate) fn number(value: &ScalarValue) -> Option<f64> {
    let number = match value {
        ScalarValue::Float32(v) => v.map(f64::from),
        ScalarValue::Float64(v) => *v,
        ScalarValue::Decimal128(Some(v), _, scale) => {
            // Through text, so that 0.1 becomes the nearest f64 and not a quotient that was rounded twice.
            format!("{v}e{}", -i32::from(*scale)).parse().ok()
        }
        other => integer(other).map(|v| v as f64),
    };
    number.filter(|v| v.is_finite())
}

pub(crate) fn numbers(value: &ScalarValue) -> Option<Vec<f64>> {
    let list = match value {
        ScalarValue::List(list) if list.is_valid(0) => list.value(0),
        ScalarValue::LargeList(list) if list.is_valid(0) => list.value(0),
        ScalarValue::FixedSizeList(list) if list.is_valid(0) => list.value(0),
        _ => return None,
    };
    (0..list.len()).map(|i| number(&ScalarValue::try_from_array(&list, i).ok()?)).collect()
}

/// Numbers, or the one number that is given in place of a list.
pub(crate) fn number_or_list(value: &ScalarValue) -> Option<Vec<f64>> {
    numbers(value).or_else(|| number(value).map(|number| vec![number]))
}

pub(crate) fn texts(value: &ScalarValue) -> Option<Vec<String>> {
    let list = match value {
        ScalarValue::List(list) if list.is_valid(0) => list.value(0),
        ScalarValue::LargeList(list) if list.is_valid(0) => list.value(0),
        ScalarValue::FixedSizeList(list) if list.is_valid(0) => list.value(0),
        _ => return None,
    };
    (0..list.len()).map(|i| text(&ScalarValue::try_from_array(&list, i).ok()?).map(str::to_owned)).collect()
}

pub(crate) fn text(value: &ScalarValue) -> Option<&str> {
    match value {
        ScalarValue::Utf8(v) | ScalarValue::LargeUtf8(v) | ScalarValue::Utf8View(v) => v.as_deref(),
        _ => None,
    }
}

pub(crate) fn parse_literal(text: &str) -> Option<ScalarValue> {
    let text = text.trim();
    if text == "NULL" {
        return Some(ScalarValue::Null);
    }
    if let Some(list) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let numbers = list
            .split(',')
            .map(|item| item.trim().parse().ok().map(|n| ScalarValue::Float64(Some(n))))
            .collect::<Option<Vec<_>>>()?;
        return Some(ScalarValue::List(ScalarValue::new_list(&numbers, &DataType::Float64, true)));
    }
    if let Some(quoted) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
        return Some(ScalarValue::Utf8(Some(quoted.replace("''", "'"))));
    }
    if let Ok(flag) = text.parse() {
        return Some(ScalarValue::Boolean(Some(flag)));
    }
    if let Ok(integer) = text.parse() {
        return Some(ScalarValue::Int64(Some(integer)));
    }
    text.parse().ok().map(|number| ScalarValue::Float64(Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: ConstantKind, value: ScalarValue, expect: &str) {
        let got = ParameterKind::Constant(kind).check(&value).err().unwrap_or_default();
        assert_eq!(got, expect, "{kind:?} {value:?}");
    }

    #[test]
    fn constants_are_checked_in_words() {
        use ConstantKind::*;
        check(PositiveInteger, ScalarValue::Int64(Some(224)), "");
        check(PositiveInteger, ScalarValue::UInt8(Some(1)), "");
        check(PositiveInteger, ScalarValue::Int64(Some(-3)), "must be a positive integer, got -3");
        check(PositiveInteger, ScalarValue::Float64(Some(2.5)), "must be a positive integer, got 2.5");
        check(PositiveInteger, ScalarValue::from("tall"), "must be a positive integer, got \"tall\"");
        check(PositiveInteger, ScalarValue::Int64(None), "must be a positive integer, got NULL");
        check(Integer, ScalarValue::UInt64(Some(u64::MAX)), "must be an integer, got 18446744073709551615");
        check(Number, ScalarValue::Int32(Some(1)), "");
        check(Number, ScalarValue::Decimal128(Some(15), 2, 1), "");
        check(Number, ScalarValue::Float64(Some(f64::NAN)), "must be a number, got NaN");
        check(NumberList, parse_literal("[1, 2.5]").unwrap(), "");
        check(NumberList, ScalarValue::Int64(Some(1)), "must be a list of numbers, got 1");
        check(Text, ScalarValue::from("x"), "");
        check(Boolean, ScalarValue::Int64(Some(1)), "must be true or false, got 1");
    }

    #[test]
    fn defaults_are_parsed_as_sql_literals() {
        assert_eq!(parse_literal("0.08"), Some(ScalarValue::Float64(Some(0.08))));
        assert_eq!(parse_literal("-7"), Some(ScalarValue::Int64(Some(-7))));
        assert_eq!(parse_literal("true"), Some(ScalarValue::Boolean(Some(true))));
        assert_eq!(parse_literal("'it''s'"), Some(ScalarValue::from("it's")));
        assert_eq!(numbers(&parse_literal("[0.5, 1]").unwrap()), Some(vec![0.5, 1.0]));
        assert_eq!(parse_literal("now()"), None);
    }

    #[test]
    fn a_decimal_becomes_the_nearest_float() {
        assert_eq!(number(&ScalarValue::Decimal128(Some(1), 1, 1)), Some(0.1));
    }
}
