//! The declaration of an operator: the one description of its properties.
//!
//! The planner, the cache, reordering, documentation and error texts all read the [`Descriptor`]. No other list of
//! operators or of their properties exists. All its data are `'static`, so a descriptor is one `static` item at the top
//! of the operator's file.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::scalar::ScalarValue;
use forebay_arrays::FixedShapeTensor;

use crate::constants;
pub use crate::constants::ConstantKind;
use crate::image_column;
use crate::keyed::KEY_ARGUMENTS;

/// The name of the argument that the engine appends to a call that depends on the step. It is a column of the maximum
/// length of rows in each row's step: 0 if there is no step, and the greatest integer if there is no maximum.
pub const STEP_ARGUMENT: &str = "step_length";

/// The properties of an operator that are known without running it.
#[derive(Debug)]
pub struct Descriptor {
    /// The function's name in SQL.
    pub name: &'static str,
    /// The version, raised whenever the output for the same input changes. It enters fingerprints, so artifacts of an
    /// older version are not reused.
    pub version: u32,
    /// The operator's section in the reference: "image", "number", "category".
    pub category: &'static str,
    /// One sentence without a final period.
    pub summary: &'static str,
    /// The parameters in the order of their positions. Parameters with a default come last.
    pub parameters: &'static [Parameter],
    /// The returned type, in words.
    pub returns: &'static str,
    /// What the output depends on.
    pub determinism: Determinism,
    /// The keyed-random operator whose draws a call with the same `key` repeats; empty for the operator itself.
    pub draws_like: &'static str,
    /// The effect on the number of rows.
    pub rows: Rows,
    /// Whether a row whose inputs are null stays null.
    pub nulls: Nulls,
    /// Bounds on the bytes of a result.
    pub size_ratio: SizeRatio,
    /// The pixels of an image that determine each pixel of the result.
    pub pixels: Pixels,
    /// Whether a call may decode images at a reduced size, or lets its input do so.
    pub reduced_decode: ReducedDecode,
    /// Whether the operator also accepts texts as views, although plans declare them plain, and is cheap per text. It
    /// then runs once over the distinct texts of a source that knows them.
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
    /// The accepted arguments.
    pub kind: ParameterKind,
    /// The default as an SQL literal, such as `0.08` or `[0.485, 0.456, 0.406]`; `None` if the argument is required. An
    /// input with the default `NULL` is optional.
    pub default: Option<&'static str>,
    /// A value for the hint of an error, if the example for [constants of its kind](ConstantKind::example) does not
    /// fit.
    pub example: Option<&'static str>,
    /// Whether a [fit](crate::fits) may give the constant, which is then not known while a query is planned.
    pub is_fitted: bool,
    /// One sentence without a final period.
    pub docs: &'static str,
}

/// The arguments that a parameter accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParameterKind {
    /// A value per row.
    Input(TypeClass),
    /// One value for the whole call, known when the query is planned.
    Constant(ConstantKind),
    /// The input rows of a table operator: its first parameter.
    Rows,
}

/// The types that an input accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TypeClass {
    /// Bytes, or encoded media as `struct{bytes, path}`.
    Binary,
    /// Like `Binary`: a file of a format that keeps numbers exactly.
    Mask,
    /// A uint8 tensor of height x width x 3, of fixed or variable shape.
    Image,
    /// An integer or a float.
    Numeric,
    /// An integer, float, boolean, string or binary value.
    Hashable,
    /// A tensor of numbers of any type and any shape, fixed or variable.
    Tensor,
    /// A tensor of height x width x 3, of numbers and all of one height and width.
    FixedImage,
    /// A tensor of numbers of one fixed shape; a list of fixed size is one.
    FixedTensor,
    /// Like `FixedTensor`, or a number.
    TensorOrNumber,
    /// Like `FixedTensor`, or a list of integers or floats.
    TensorOrList,
    /// A list of integers or floats, of any length.
    NumberList,
    /// A list of any values, of any length.
    List,
    /// A value of any type.
    Any,
    /// A list of boxes: float32 of 4.
    Boxes,
    /// A list of points: float32 of 2, or of 3 with a visibility.
    Points,
    /// The height or the width of an image, an integer.
    Side,
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
    /// A string or a binary value.
    TextOrBinary,
    /// A string that is JSON.
    Json,
    /// A string of hexadecimal digits.
    Hexadecimal,
    /// An integer or a string.
    Category,
    /// A list of structs with a role and a content, or a JSON text.
    Messages,
    /// A list of structs of a text and whether it is trained on.
    Segments,
}

/// What an operator's output depends on, apart from its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Determinism {
    /// Nothing.
    Deterministic,
    /// The row's random key and the call site. See [`crate::keyed`].
    KeyedRandom,
    /// The maximum length in the row's global step, if the feed groups rows by length.
    StepLength,
    /// The rows of the window and their order, which the feed may shuffle. Only table operators declare this.
    WindowOrder,
}

/// An operator's effect on the number of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row out for each row in.
    OneToOne,
    /// At most one row out for each row in.
    Shrinks,
    /// Any number of rows out for each row in.
    Grows,
}

/// An operator's treatment of nulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Nulls {
    /// The result is null if all inputs are null.
    Kept,
    /// The result is never null.
    Filled,
}

/// Bounds on the bytes of values in a result, per byte of values in the only input.
///
/// Nulls, offsets and the shapes of tensors do not count, nor do rows that are null in the input or in the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizeRatio {
    /// The result is not smaller.
    pub least: f64,
    /// The result is not larger.
    pub most: f64,
}

/// The pixels of an image that determine each pixel of a result.
///
/// Of two consecutive operators, one [`Pointwise`](Self::Pointwise) and one [`Moved`](Self::Moved), either may run
/// first if the types allow both orders. The result is the same, bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pixels {
    /// Any pixels, or the operator does not map images to images.
    Any,
    /// Only the pixel at the same position, whatever the position: `posterize`.
    Pointwise,
    /// One pixel, copied from a position that does not depend on pixel values: `random_hflip`.
    Moved,
}

/// An operator's part in decoding images at a reduced size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReducedDecode {
    /// The operator has no part in it.
    Unrelated,
    /// The operator decodes images. A call whose constant of this name is true accepts a reduced size.
    Decodes(&'static str),
    /// The operator shrinks its first input, so it can use images of a reduced size.
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
    /// The properties that most operators share. A descriptor states its differences and ends with
    /// `..Descriptor::BASE`.
    pub const BASE: Self = Self {
        name: "",
        version: 1,
        category: "",
        summary: "",
        parameters: &[],
        returns: "",
        determinism: Determinism::Deterministic,
        draws_like: "",
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

    /// Returns whether consecutive calls of both operators may swap without changing a bit of the result, if the types
    /// allow both orders.
    pub fn commutes_with(&self, other: &Self) -> bool {
        matches!((self.pixels, other.pixels), (Pixels::Pointwise, Pixels::Moved) | (Pixels::Moved, Pixels::Pointwise))
    }

    /// Returns the name that calls with one `key` have in common: see [`shared_site`](crate::shared_site).
    pub fn draws_as(&self) -> &'static str {
        if self.draws_like.is_empty() { self.name } else { self.draws_like }
    }

    /// Returns the position of the parameter with this name.
    pub fn position(&self, parameter: &str) -> Option<usize> {
        self.parameters.iter().position(|p| p.name == parameter)
    }

    /// Returns the number of arguments without a default.
    pub fn required(&self) -> usize {
        self.parameters.iter().filter(|p| p.default.is_none()).count()
    }
}

impl SizeRatio {
    /// The size depends on values, constants or several inputs.
    pub const UNKNOWN: Self = Self { least: 0.0, most: f64::INFINITY };

    /// Makes the bounds of an exactly known size.
    pub const fn exactly(ratio: f64) -> Self {
        Self { least: ratio, most: ratio }
    }

    /// Makes the bounds of a result that is at most this many times as large.
    pub const fn at_most(most: f64) -> Self {
        Self { least: 0.0, most }
    }
}

impl Parameter {
    /// The parameter by which calls share their draws. Every keyed-random function ends its parameters with it.
    pub const KEY: Self = Self::constant(
        "key",
        ConstantKind::Text,
        "Calls with an equal key draw equally for a sample; `''` draws by itself",
    )
    .or("''");

    /// Makes a required input with a value per row.
    pub const fn input(name: &'static str, class: TypeClass, docs: &'static str) -> Self {
        Self { name, kind: ParameterKind::Input(class), default: None, example: None, is_fitted: false, docs }
    }

    /// Makes the rows parameter of a table operator. `docs` describes the columns that the rows need.
    pub const fn rows(docs: &'static str) -> Self {
        Self { name: "rows", kind: ParameterKind::Rows, default: None, example: None, is_fitted: false, docs }
    }

    /// Makes a required constant.
    pub const fn constant(name: &'static str, kind: ConstantKind, docs: &'static str) -> Self {
        Self { name, kind: ParameterKind::Constant(kind), default: None, example: None, is_fitted: false, docs }
    }

    /// Adds a value for the hint of an error, as an SQL literal.
    pub const fn like(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// Lets a fit give the constant.
    pub const fn fitted(mut self) -> Self {
        self.is_fitted = true;
        self
    }

    /// Adds a default, as an SQL literal.
    pub const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    /// Returns the default as a value: `Int64`, `Float64`, `Utf8`, `Boolean`, a list of `Float64`, or `Null`.
    pub fn default_value(&self) -> Option<ScalarValue> {
        self.default.and_then(constants::parse_literal)
    }
}

impl ParameterKind {
    /// Returns the wording of the accepted arguments after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::Input(class) => class.wording(),
            Self::Constant(kind) => kind.wording(),
            Self::Rows => "a subquery or a table",
        }
    }

    /// Checks the value of a constant. The error text continues the parameter's name:
    /// `must be a positive integer, got -3`. Inputs accept every value of their type.
    pub fn check(&self, value: &ScalarValue) -> Result<(), String> {
        let fits = match self {
            Self::Input(_) | Self::Rows => true,
            Self::Constant(kind) => kind.accepts(value),
        };
        if fits {
            return Ok(());
        }
        let got = match constants::text(value) {
            Some(text) => format!("\"{text}\""),
            None => value.to_string(),
        };
        Err(format!("must be {}, got {got}", self.wording()))
    }
}

impl TypeClass {
    /// Returns the wording of the accepted arguments after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::Binary | Self::Mask => "binary",
            Self::Image => "an image (uint8 tensor of height x width x 3)",
            Self::Numeric => "a number",
            Self::Hashable => "an integer, float, boolean, string or binary value",
            Self::NumberList => "a list of numbers",
            Self::List => "a list",
            Self::Any => "a value",
            Self::Boxes => "a list of boxes, each a list of 4 numbers",
            Self::Points => "a list of points, each a list of 2 numbers, or a fixed-size list of 2 or 3",
            Self::Side => "a number of pixels",
            Self::Tensor => "a tensor of numbers",
            Self::FixedImage => "a tensor of height x width x 3, all of one height and width",
            Self::FixedTensor => "a tensor of one fixed shape",
            Self::TensorOrNumber => "a tensor of one fixed shape or a number",
            Self::TensorOrList => "a tensor of one fixed shape or a list of numbers",
            Self::NumericOrList => "a number or a list of numbers",
            Self::Integer => "an integer",
            Self::IntegerList => "a list of integers",
            Self::IntegerOrList => "an integer or a list of integers",
            Self::Text => "a string",
            Self::TextOrBinary => "a string or a binary value",
            Self::Json => "a string of JSON",
            Self::Hexadecimal => "a string of hexadecimal digits",
            Self::Category => "an integer or a string",
            Self::Messages => "a list of structs or a JSON text",
            Self::Segments => "a list of structs of text and train",
        }
    }

    /// Returns whether a column of this field is accepted.
    pub fn accepts(&self, field: &Field) -> bool {
        let data_type = field.data_type();
        match self {
            Self::Binary | Self::Mask => is_binary(data_type) || media_bytes(data_type).is_some(),
            Self::Image => image_column::is_image(field),
            Self::Tensor => {
                image_column::value_type(field).is_some_and(|value| value.is_integer() || value.is_floating())
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
            Self::Boxes => *data_type == groups(4),
            Self::Points => [2, 3].map(groups).contains(data_type),
            Self::Side => data_type.is_integer(),
            Self::List => matches!(data_type, DataType::List(_) | DataType::LargeList(_)),
            Self::Any => *data_type != DataType::Null,
            Self::NumericOrList => Self::Numeric.accepts(field) || Self::NumberList.accepts(field),
            Self::Integer => data_type.is_integer(),
            Self::IntegerList => match data_type {
                DataType::List(item) | DataType::LargeList(item) => Self::Integer.accepts(item),
                _ => false,
            },
            Self::IntegerOrList => Self::Integer.accepts(field) || Self::IntegerList.accepts(field),
            Self::Text | Self::Hexadecimal | Self::Json => data_type.is_string(),
            Self::TextOrBinary => data_type.is_string() || is_binary(data_type),
            Self::Category => data_type.is_string() || data_type.is_integer(),
            Self::Messages => data_type.is_string() || list_of_structs(data_type).is_some(),
            Self::Segments => list_of_structs(data_type).is_some_and(|fields| {
                let is = |name: &str, fits: &dyn Fn(&DataType) -> bool| {
                    fields.find(name).is_some_and(|(_, field)| fits(field.data_type()))
                };
                is("text", &DataType::is_string) && is("train", &|train| *train == DataType::Boolean)
            }),
        }
    }

    /// Returns the type to cast to before the operator runs. A type that does not fit is returned unchanged: DataFusion
    /// wraps coercion errors in two sentences of its own, so [`Self::accepts`] reports them a moment later.
    pub fn coerce(&self, data_type: &DataType) -> DataType {
        match (self, data_type) {
            (Self::Binary | Self::Mask | Self::Hashable, DataType::Null) => DataType::Binary,
            (Self::Numeric, DataType::Null) => DataType::Float64,
            (Self::Numeric | Self::Hashable, DataType::Float16) => DataType::Float32,
            (Self::Numeric | Self::Hashable, data_type) if data_type.is_decimal() => DataType::Float64,
            (Self::NumberList, DataType::Null) => DataType::new_list(DataType::Int64, true),
            (Self::NumberList, DataType::List(item)) => DataType::List(Self::coerce_item(item)),
            (Self::NumberList, DataType::LargeList(item)) => DataType::LargeList(Self::coerce_item(item)),
            (Self::NumberList, DataType::FixedSizeList(item, _)) => DataType::List(Self::coerce_item(item)),
            (Self::Boxes, DataType::Null) => groups(4),
            (Self::Points, DataType::Null) => groups(2),
            (Self::Boxes | Self::Points, DataType::List(item) | DataType::LargeList(item)) => match item.data_type() {
                DataType::FixedSizeList(number, width) if Self::Numeric.accepts(number) => groups(*width),
                DataType::List(number) | DataType::LargeList(number) if Self::Numeric.accepts(number) => {
                    groups(if *self == Self::Boxes { 4 } else { 2 })
                }
                _ => data_type.clone(),
            },
            (Self::Side, DataType::Null) => DataType::Int64,
            (Self::List, DataType::Null) => DataType::new_list(DataType::Int64, true),
            (Self::List, DataType::FixedSizeList(item, _)) => DataType::List(Arc::clone(item)),
            (Self::TensorOrNumber, data_type) if !data_type.is_nested() => Self::Numeric.coerce(data_type),
            (Self::TensorOrList, DataType::List(_) | DataType::LargeList(_)) => Self::NumberList.coerce(data_type),
            (Self::Integer | Self::IntegerOrList, DataType::Null) => DataType::Int64,
            (
                Self::Text | Self::TextOrBinary | Self::Json | Self::Hexadecimal | Self::Category | Self::Messages,
                DataType::Null,
            ) => DataType::Utf8,
            (Self::Segments, DataType::Null) => {
                let fields =
                    vec![Field::new("text", DataType::Utf8, true), Field::new("train", DataType::Boolean, true)];
                DataType::new_list(DataType::Struct(fields.into()), true)
            }
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

impl Determinism {
    /// Returns the names of the arguments that the engine appends to a call. Each is `UInt64`.
    pub fn hidden_arguments(&self) -> &'static [&'static str] {
        match self {
            Self::Deterministic | Self::WindowOrder => &[],
            Self::KeyedRandom => &KEY_ARGUMENTS,
            Self::StepLength => &[STEP_ARGUMENT],
        }
    }

    /// Returns whether a row may differ in each epoch although its window has the same rows in the same order.
    pub fn varies_by_epoch(&self) -> bool {
        matches!(self, Self::KeyedRandom | Self::StepLength)
    }

    /// Returns the wording of the property in the reference.
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
    /// Returns the wording of the property in the reference.
    pub fn wording(&self) -> &'static str {
        match self {
            Self::OneToOne => "one-to-one",
            Self::Shrinks => "shrinking",
            Self::Grows => "growing",
        }
    }
}

/// Returns the type of lists of boxes or points, each of `width` numbers.
fn groups(width: i32) -> DataType {
    DataType::new_list(DataType::new_fixed_size_list(DataType::Float32, width, true), true)
}

/// Returns the fields of a list's structs.
fn list_of_structs(data_type: &DataType) -> Option<&Fields> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => match item.data_type() {
            DataType::Struct(fields) => Some(fields),
            _ => None,
        },
        _ => None,
    }
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// Returns the position of the binary child `bytes` in encoded media, `struct{bytes, path}`.
pub(crate) fn media_bytes(data_type: &DataType) -> Option<usize> {
    let DataType::Struct(fields) = data_type else { return None };
    fields.iter().position(|f| f.name() == "bytes" && is_binary(f.data_type()))
}
