//! The type of a tensor column, as encoded in its field's metadata.
//!
//! A tensor column has one of Arrow's two canonical extension types:
//!
//! - `arrow.fixed_shape_tensor`: a `FixedSizeList` of the values; the metadata holds the shape.
//! - `arrow.variable_shape_tensor`: a struct of `data: List` and `shape: FixedSizeList<Int32>[rank]`.
//!
//! Fields follow the Arrow specification and the `arrow-schema` crate (children not nullable, list items named `item`),
//! so pyarrow and other readers accept them. Only rows can be null, never single values.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use serde_json::Value;

/// The metadata key that names the type of a tensor's values if Arrow has no such type.
pub const DTYPE_KEY: &str = "forebay:dtype";

/// The value of [`DTYPE_KEY`] for bfloat16 values, whose bits are stored as uint16.
pub const BFLOAT16: &str = "bfloat16";

const FIXED: &str = "arrow.fixed_shape_tensor";
const VARIABLE: &str = "arrow.variable_shape_tensor";

/// The type of a tensor column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// All rows have one shape.
    Fixed(FixedShapeTensor),
    /// Each row has its own shape.
    Variable(VariableShapeTensor),
}

/// A column whose tensors share one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedShapeTensor {
    /// The Arrow type of the values.
    pub value: DataType,
    /// The sides in memory order, outermost first.
    pub shape: Vec<usize>,
    /// The dimensions' names.
    pub names: Option<Vec<String>>,
    /// The memory dimension of each displayed dimension; `None` for memory order.
    pub permutation: Option<Vec<usize>>,
    /// The [`DTYPE_KEY`] of the values.
    pub dtype: Option<String>,
}

/// A column whose tensors each have their own shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableShapeTensor {
    /// The Arrow type of the values.
    pub value: DataType,
    /// The number of dimensions.
    pub rank: usize,
    /// The dimensions' names.
    pub names: Option<Vec<String>>,
    /// The sides that all rows share; `None` for sides that vary.
    pub uniform_shape: Option<Vec<Option<usize>>>,
    /// The memory dimension of each displayed dimension; `None` for memory order.
    pub permutation: Option<Vec<usize>>,
    /// The [`DTYPE_KEY`] of the values.
    pub dtype: Option<String>,
}

/// Metadata that names a tensor type but does not describe one. The text follows "is not a tensor: ".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedTensor(pub &'static str);

impl fmt::Display for MalformedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for MalformedTensor {}

/// Displays a field's type: `tensor<uint8>[224, 224, 3]` for tensors, otherwise Arrow's name.
pub fn type_name(field: &Field) -> String {
    let value = |data_type: &DataType| data_type.to_string().to_lowercase();
    match TensorType::of(field) {
        Some(TensorType::Fixed(tensor)) => format!("tensor<{}>{:?}", value(&tensor.value), tensor.shown_shape()),
        Some(TensorType::Variable(tensor)) => format!("tensor<{}>[variable]", value(&tensor.value)),
        None => field.data_type().to_string(),
    }
}

impl TensorType {
    /// Whether the field names a tensor's extension type, even if it is malformed.
    pub fn is_named_by(field: &Field) -> bool {
        field.metadata().get(EXTENSION_TYPE_NAME_KEY).is_some_and(|name| name == FIXED || name == VARIABLE)
    }

    /// The tensor type of a field; `None` if it has none or a malformed one.
    pub fn of(field: &Field) -> Option<Self> {
        Self::parse(field).ok().flatten()
    }

    /// The tensor type of a field; `None` for other extension types.
    ///
    /// # Errors
    /// Metadata or an Arrow type that contradicts the extension type.
    pub fn parse(field: &Field) -> Result<Option<Self>, MalformedTensor> {
        match field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str) {
            Some(FIXED) => FixedShapeTensor::parse(field).map(|tensor| Some(Self::Fixed(tensor))),
            Some(VARIABLE) => VariableShapeTensor::parse(field).map(|tensor| Some(Self::Variable(tensor))),
            _ => Ok(None),
        }
    }

    /// The Arrow type of the values.
    pub fn value(&self) -> &DataType {
        match self {
            Self::Fixed(tensor) => &tensor.value,
            Self::Variable(tensor) => &tensor.value,
        }
    }

    /// Whether the values are bfloat16.
    pub fn is_bfloat16(&self) -> bool {
        let dtype = match self {
            Self::Fixed(tensor) => &tensor.dtype,
            Self::Variable(tensor) => &tensor.dtype,
        };
        dtype.as_deref() == Some(BFLOAT16) && *self.value() == DataType::UInt16
    }
}

impl FixedShapeTensor {
    /// Tensors of this value type and shape, without names.
    pub fn new(value: DataType, shape: Vec<usize>) -> Self {
        Self { value, shape, names: None, permutation: None, dtype: None }
    }

    /// The same tensors with named dimensions.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Self {
        self.names = Some(names.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// Whether the dimensions have these names.
    pub fn has_names(&self, names: &[&str]) -> bool {
        self.names.as_ref().is_some_and(|own| own.iter().eq(names))
    }

    /// The same values with another shape. The dimensions lose their names.
    #[must_use]
    pub fn with_shape(&self, shape: Vec<usize>) -> Self {
        Self { shape, names: None, permutation: None, ..self.clone() }
    }

    /// The type of a numeric fixed-size list stored in display order: a tensor, or a plain list as a tensor of one
    /// dimension.
    pub fn of_numbers(field: &Field) -> Option<Self> {
        let DataType::FixedSizeList(item, size) = field.data_type() else { return None };
        if *size <= 0 || !(item.data_type().is_integer() || item.data_type().is_floating()) {
            return None;
        }
        if !field.metadata().contains_key(EXTENSION_TYPE_NAME_KEY) {
            let shape = vec![usize::try_from(*size).ok()?];
            return Some(Self { dtype: dtype(field), ..Self::new(item.data_type().clone(), shape) });
        }
        match TensorType::of(field)? {
            TensorType::Fixed(tensor) => tensor.permutation.is_none().then_some(tensor),
            TensorType::Variable(_) => None,
        }
    }

    fn parse(field: &Field) -> Result<Self, MalformedTensor> {
        let DataType::FixedSizeList(item, size) = field.data_type() else {
            return Err(MalformedTensor("its rows are not lists of fixed size"));
        };
        let parameters = parameters(field).ok_or(MalformedTensor("its shape cannot be read"))?;
        let shape: Vec<usize> = serde_json::from_value(parameters["shape"].clone())
            .map_err(|_| MalformedTensor("its shape cannot be read"))?;
        if values_of(&shape) != usize::try_from(*size).ok() {
            return Err(MalformedTensor("its shape is not that of its rows"));
        }
        Ok(Self {
            value: item.data_type().clone(),
            permutation: permutation(&parameters, shape.len())?,
            names: names(&parameters),
            dtype: dtype(field),
            shape,
        })
    }

    /// The number of values of one tensor.
    pub fn values(&self) -> usize {
        self.shape.iter().product()
    }

    /// The sides in display order.
    pub fn shown_shape(&self) -> Vec<usize> {
        match &self.permutation {
            Some(order) => order.iter().map(|&dimension| self.shape[dimension]).collect(),
            None => self.shape.clone(),
        }
    }

    /// The field of a column of such tensors; `None` for a shape without values, or with more values than a list can
    /// hold.
    pub fn field(&self, name: &str, nullable: bool) -> Option<Field> {
        let size = values_of(&self.shape).and_then(|len| i32::try_from(len).ok()).filter(|len| *len > 0)?;
        // The key order is pyarrow's; serde_json would sort the keys.
        let mut metadata = format!(r#"{{"shape":{}"#, Value::from(self.shape.clone()));
        if let Some(names) = &self.names {
            metadata.push_str(&format!(r#","dim_names":{}"#, Value::from(names.clone())));
        }
        if let Some(order) = &self.permutation {
            metadata.push_str(&format!(r#","permutation":{}"#, Value::from(order.clone())));
        }
        metadata.push('}');
        let field = Field::new(name, DataType::FixedSizeList(item(self.value.clone()), size), nullable);
        Some(extended(field, FIXED, metadata, self.dtype.as_deref()))
    }
}

/// Follows "got" in errors.
impl fmt::Display for FixedShapeTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.dtype {
            Some(dtype) => write!(f, "a {dtype} tensor of ")?,
            None => write!(f, "a {} tensor of ", self.value)?,
        }
        let sides: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        f.write_str(&sides.join(" x "))
    }
}

impl VariableShapeTensor {
    /// Tensors of this value type and rank, without names.
    pub fn new(value: DataType, rank: usize) -> Self {
        Self { value, rank, names: None, uniform_shape: None, permutation: None, dtype: None }
    }

    fn parse(field: &Field) -> Result<Self, MalformedTensor> {
        let DataType::Struct(fields) = field.data_type() else {
            return Err(MalformedTensor("its rows are not structs"));
        };
        // In this order, and no others: kernels read them by position.
        let [data, shape] = &fields[..] else {
            return Err(MalformedTensor("its rows are not of the fields data and shape"));
        };
        if data.name() != "data" || shape.name() != "shape" {
            return Err(MalformedTensor("its rows are not of the fields data and shape"));
        }
        let (DataType::List(item), DataType::FixedSizeList(side, rank)) = (data.data_type(), shape.data_type()) else {
            return Err(MalformedTensor("its data are not lists, or its shapes have no fixed rank"));
        };
        if *side.data_type() != DataType::Int32 {
            return Err(MalformedTensor("its shapes are not 32-bit integers"));
        }
        let rank = usize::try_from(*rank).map_err(|_| MalformedTensor("its shapes have no fixed rank"))?;
        // The metadata is optional for this type.
        let parameters = parameters(field).unwrap_or_default();
        Ok(Self {
            value: item.data_type().clone(),
            rank,
            names: names(&parameters),
            uniform_shape: serde_json::from_value(parameters["uniform_shape"].clone()).unwrap_or_default(),
            permutation: permutation(&parameters, rank)?,
            dtype: dtype(field),
        })
    }

    /// The field of a column of such tensors.
    pub fn field(&self, name: &str, nullable: bool) -> Field {
        // The key order is the specification's; serde_json would sort the keys.
        let mut parts = Vec::new();
        if let Some(names) = &self.names {
            parts.push(format!(r#""dim_names":{}"#, Value::from(names.clone())));
        }
        if let Some(order) = &self.permutation {
            parts.push(format!(r#""permutation":{}"#, Value::from(order.clone())));
        }
        if let Some(sides) = &self.uniform_shape {
            parts.push(format!(r#""uniform_shape":{}"#, Value::from(sides.clone())));
        }
        // No list has a size beyond i32, and no real tensor has so many dimensions.
        let rank = i32::try_from(self.rank).unwrap_or(i32::MAX);
        let data = Field::new("data", DataType::List(item(self.value.clone())), false);
        let shape = Field::new("shape", DataType::FixedSizeList(item(DataType::Int32), rank), false);
        let field = Field::new(name, DataType::Struct(vec![data, shape].into()), nullable);
        extended(field, VARIABLE, format!("{{{}}}", parts.join(",")), self.dtype.as_deref())
    }
}

/// The field of a tensor's list items.
pub fn item(value: DataType) -> FieldRef {
    Arc::new(Field::new_list_field(value, false))
}

fn extended(field: Field, name: &str, metadata: String, dtype: Option<&str>) -> Field {
    let mut entries =
        vec![(EXTENSION_TYPE_NAME_KEY.to_owned(), name.to_owned()), (EXTENSION_TYPE_METADATA_KEY.to_owned(), metadata)];
    entries.extend(dtype.map(|dtype| (DTYPE_KEY.to_owned(), dtype.to_owned())));
    field.with_metadata(entries.into_iter().collect())
}

fn parameters(field: &Field) -> Option<Value> {
    serde_json::from_str(field.metadata().get(EXTENSION_TYPE_METADATA_KEY)?).ok()
}

fn names(parameters: &Value) -> Option<Vec<String>> {
    serde_json::from_value(parameters.get("dim_names")?.clone()).ok()
}

fn dtype(field: &Field) -> Option<String> {
    field.metadata().get(DTYPE_KEY).cloned()
}

/// The display order of a type's dimensions; `None` for memory order.
fn permutation(parameters: &Value, rank: usize) -> Result<Option<Vec<usize>>, MalformedTensor> {
    let permutation = &parameters["permutation"];
    if permutation.is_null() {
        return Ok(None);
    }
    let malformed = MalformedTensor("its permutation is not one of its dimensions");
    let order: Vec<usize> = serde_json::from_value(permutation.clone()).map_err(|_| malformed)?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..rank) {
        return Err(malformed);
    }
    Ok((order != sorted).then_some(order))
}

/// The number of values of a tensor of this shape, if it can be represented.
fn values_of(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, side| product.checked_mul(*side))
}

#[cfg(test)]
mod tests {
    use arrow_schema::extension as canonical;

    use super::*;

    fn fixed(metadata: &str, size: i32) -> Field {
        let data_type = DataType::FixedSizeList(item(DataType::UInt8), size);
        extended(Field::new("image", data_type, false), FIXED, metadata.to_owned(), None)
    }

    #[test]
    fn fields_are_the_canonical_extension_types() {
        let names = || Some(["H", "W", "C"].map(str::to_owned).to_vec());
        let tensor = FixedShapeTensor::new(DataType::Float32, vec![224, 160, 3]).named(&["H", "W", "C"]);
        let field = tensor.field("image", false).expect("a shape with values");
        let expected = canonical::FixedShapeTensor::try_new(DataType::Float32, [224, 160, 3], names(), None).unwrap();
        assert_eq!(field.try_extension_type::<canonical::FixedShapeTensor>().unwrap(), expected);
        let tensor = VariableShapeTensor {
            names: names(),
            uniform_shape: Some(vec![None, None, Some(3)]),
            ..VariableShapeTensor::new(DataType::UInt8, 3)
        };
        let field = tensor.field("image", false);
        let uniform = Some(vec![None, None, Some(3)]);
        let expected = canonical::VariableShapeTensor::try_new(DataType::UInt8, 3, names(), None, uniform).unwrap();
        let got: canonical::VariableShapeTensor = field.try_extension_type().unwrap();
        assert_eq!(got, expected);
    }

    #[test]
    fn fields_say_what_they_were_made_of() {
        let transposed = FixedShapeTensor {
            permutation: Some(vec![2, 0, 1]),
            dtype: Some(BFLOAT16.to_owned()),
            ..FixedShapeTensor::new(DataType::UInt16, vec![2, 4, 3])
        };
        let field = transposed.field("x", true).unwrap();
        assert_eq!(field.metadata()[EXTENSION_TYPE_METADATA_KEY], r#"{"shape":[2,4,3],"permutation":[2,0,1]}"#);
        assert_eq!(transposed.shown_shape(), [3, 2, 4]);
        let parsed = TensorType::of(&field).unwrap();
        assert!(parsed.is_bfloat16());
        assert_eq!(parsed, TensorType::Fixed(transposed));
        let variable = VariableShapeTensor {
            uniform_shape: Some(vec![None, Some(3)]),
            permutation: Some(vec![1, 0]),
            ..VariableShapeTensor::new(DataType::Int8, 2)
        };
        assert_eq!(TensorType::of(&variable.field("x", false)), Some(TensorType::Variable(variable)));
    }

    #[test]
    fn metadata_that_contradicts_itself_is_named() {
        let check = |metadata: &str, size: i32, expected: &'static str| {
            assert_eq!(TensorType::parse(&fixed(metadata, size)), Err(MalformedTensor(expected)), "{metadata}");
        };
        check("damaged", 24, "its shape cannot be read");
        check(r#"{"shape":[2,-4,3]}"#, 24, "its shape cannot be read");
        check(r#"{"shape":[2,4,3]}"#, 25, "its shape is not that of its rows");
        check(r#"{"shape":[2,4,3],"permutation":[0,1]}"#, 24, "its permutation is not one of its dimensions");
        check(r#"{"shape":[2,4,3],"permutation":[0,1,1]}"#, 24, "its permutation is not one of its dimensions");
        let struct_of_nothing = Field::new("x", DataType::Struct(arrow::datatypes::Fields::empty()), false);
        let field = extended(struct_of_nothing, VARIABLE, "{}".to_owned(), None);
        assert_eq!(TensorType::parse(&field), Err(MalformedTensor("its rows are not of the fields data and shape")));
        assert!(TensorType::is_named_by(&field));
        let int64 = |name: &str| Field::new(name, DataType::FixedSizeList(item(DataType::Int64), 3), false);
        let data = Field::new("data", DataType::List(item(DataType::UInt8)), false);
        for (fields, expected) in [
            (vec![data.clone(), int64("shape")], "its shapes are not 32-bit integers"),
            (vec![int64("shape"), data], "its rows are not of the fields data and shape"),
        ] {
            let field =
                extended(Field::new("x", DataType::Struct(fields.into()), false), VARIABLE, "{}".to_owned(), None);
            assert_eq!(TensorType::parse(&field), Err(MalformedTensor(expected)));
        }
        assert_eq!(TensorType::parse(&Field::new("x", DataType::Int8, false)), Ok(None));
    }

    #[test]
    fn a_plain_list_is_a_tensor_of_one_dimension() {
        let list = Field::new("x", DataType::FixedSizeList(item(DataType::Float32), 4), false);
        let tensor = FixedShapeTensor::of_numbers(&list).unwrap();
        assert_eq!((tensor.shape.as_slice(), tensor.to_string().as_str()), ([4].as_slice(), "a Float32 tensor of 4"));
        assert_eq!(TensorType::of(&list), None);
        assert_eq!(FixedShapeTensor::of_numbers(&fixed(r#"{"shape":[2,12],"permutation":[1,0]}"#, 24)), None);
        let texts = Field::new("x", DataType::FixedSizeList(item(DataType::Utf8), 4), false);
        assert_eq!(FixedShapeTensor::of_numbers(&texts), None);
        for shape in [vec![0, 3], vec![usize::MAX, 2], vec![1 << 31]] {
            assert!(FixedShapeTensor::new(DataType::UInt8, shape).field("x", false).is_none());
        }
    }
}
