//! Operators on tensors of any fixed shape, and their shared parts: shapes in a field's metadata, and values as bytes.

pub(crate) mod arithmetic;
pub(crate) mod join;
pub(crate) mod reshape;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, FixedSizeListArray, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use datafusion::common::{Result, exec_err, internal_err};

use crate::tensor::{DTYPE_KEY, FIXED, extension, item};

/// The type and shape of a column's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) value: DataType,
    pub(crate) shape: Vec<usize>,
    names: Option<Vec<String>>,
    /// The values' type if Arrow has none for them: `bfloat16`.
    pub(crate) dtype: Option<String>,
}

impl Fixed {
    pub(crate) fn new(value: DataType, shape: Vec<usize>) -> Self {
        Self { value, shape, names: None, dtype: None }
    }

    /// Returns the same type and shape with these dimension names.
    pub(crate) fn named(mut self, names: &[&str]) -> Self {
        self.names = Some(names.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// Returns whether the dimensions have these names.
    pub(crate) fn has_names(&self, names: &[&str]) -> bool {
        self.names.as_ref().is_some_and(|own| own.iter().eq(names))
    }

    /// Returns the same type with another shape and without dimension names.
    pub(crate) fn with_shape(&self, shape: Vec<usize>) -> Self {
        Self { shape, names: None, ..self.clone() }
    }

    /// Returns a field's tensor type and shape. A fixed-size list is a tensor of one dimension.
    pub(crate) fn of(field: &Field) -> Option<Self> {
        let DataType::FixedSizeList(item, size) = field.data_type() else { return None };
        let (size, value) = (usize::try_from(*size).ok()?, item.data_type().clone());
        if size == 0 || !(value.is_integer() || value.is_floating()) {
            return None;
        }
        let metadata = field.metadata();
        let dtype = metadata.get(DTYPE_KEY).cloned();
        let (shape, names) = match metadata.get(EXTENSION_TYPE_NAME_KEY) {
            None => (vec![size], None),
            Some(name) if name == FIXED => {
                let json: serde_json::Value = serde_json::from_str(metadata.get(EXTENSION_TYPE_METADATA_KEY)?).ok()?;
                let shape: Vec<usize> = serde_json::from_value(json.get("shape")?.clone()).ok()?;
                let permutation: Option<Vec<usize>> =
                    json.get("permutation").and_then(|p| serde_json::from_value(p.clone()).ok());
                if permutation.is_some_and(|p| p.iter().enumerate().any(|(i, at)| i != *at)) {
                    return None;
                }
                let names = json.get("dim_names").and_then(|names| serde_json::from_value(names.clone()).ok());
                (shape, names)
            }
            Some(_) => return None,
        };
        (len(&shape) == Some(size)).then_some(Self { value, shape, names, dtype })
    }

    pub(crate) fn field(&self, name: &str, nullable: bool) -> Result<Field> {
        let size = len(&self.shape).and_then(|len| i32::try_from(len).ok()).filter(|len| *len > 0);
        let Some(size) = size else {
            return internal_err!("no fixed-shape tensor has the shape {}", words(&self.shape));
        };
        let shape: Vec<_> = self.shape.iter().map(usize::to_string).collect();
        let names = self
            .names
            .as_ref()
            .map_or(String::new(), |names| format!(r#","dim_names":{}"#, serde_json::Value::from(names.clone())));
        let field = Field::new(name, DataType::FixedSizeList(item(self.value.clone()), size), nullable);
        let field = extension(field, FIXED, format!(r#"{{"shape":[{}]{names}}}"#, shape.join(",")));
        let mut metadata = field.metadata().clone();
        metadata.extend(self.dtype.iter().map(|dtype| (DTYPE_KEY.to_owned(), dtype.clone())));
        Ok(field.with_metadata(metadata))
    }

    /// Returns the wording for an error message.
    pub(crate) fn wording(&self) -> String {
        let value = self.dtype.clone().unwrap_or_else(|| self.value.to_string());
        format!("a {value} tensor of {}", words(&self.shape))
    }
}

/// Returns the number of values in a tensor of this shape, or `None` if it overflows.
pub(crate) fn len(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |product, side| product.checked_mul(*side))
}

fn words(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// Returns a column's tensors, or an error if one of them contains a null value. A fixed-size list may contain them.
pub(crate) fn whole<'a>(operator: &str, array: &'a dyn Array) -> Result<&'a FixedSizeListArray> {
    let Some(list) = array.as_fixed_size_list_opt() else {
        return internal_err!("{operator} got {}, which its type class refuses", array.data_type());
    };
    let size = list.value_length() as usize;
    let has_null = |nulls: &NullBuffer| {
        nulls.null_count() > 0
            && (0..list.len()).any(|row| list.is_valid(row) && nulls.slice(row * size, size).null_count() > 0)
    };
    match list.values().nulls().is_some_and(has_null) {
        true => exec_err!("{operator}: a list has a null in it"),
        false => Ok(list),
    }
}

/// Returns values as bytes, and the bytes per value.
pub(crate) fn bytes(values: &dyn Array) -> Result<(Buffer, usize)> {
    let data = values.to_data();
    match data.data_type().primitive_width() {
        Some(width) => Ok((data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width), width)),
        None => internal_err!("{} has no width, and its type class refuses it", data.data_type()),
    }
}

/// Returns an array of the values in bytes.
pub(crate) fn values(data_type: &DataType, bytes: Buffer, width: usize) -> Result<ArrayRef> {
    let data = ArrayData::builder(data_type.clone()).len(bytes.len() / width).add_buffer(bytes).build()?;
    Ok(make_array(data))
}
