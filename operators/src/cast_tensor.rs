//! `cast_tensor`: converts the values of tensors to another type.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, PrimitiveArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Float16Type, Float32Type, UInt8Type, UInt16Type};
use datafusion::common::{Result, internal_err};
use forebay_arrays::{BFLOAT16, DTYPE_KEY};
use half::{bf16, f16};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, Pixels, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::table::on_values;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "cast_tensor",
    version: 1,
    category: "tensor",
    summary: "Converts the values of tensors to another type",
    parameters: &[
        Parameter::input("tensor", TypeClass::Tensor, "The tensors"),
        Parameter::constant("type", ConstantKind::Text, "`'uint8'`, `'float16'`, `'bfloat16'` or `'float32'`")
            .or("'float32'"),
    ],
    returns: "a tensor of that type and the same shape, fixed or variable",
    pixels: Pixels::Pointwise,
    docs: "Values are neither scaled nor shifted: 255 becomes 255.0; use `normalize` to scale. Conversion to float16 \
           and bfloat16 rounds to nearest, ties to even; float16 becomes infinite from 65520. Conversion to uint8 \
           truncates the fraction and clamps to 0 to 255; NaN becomes 0.\n\nArrow has no bfloat16. Its bits are stored \
           as uint16, and the column's field has the metadata `forebay:dtype` = `bfloat16`. The Python package makes \
           bfloat16 tensors from it; a reader that does not know this metadata sees integers. Of the other operators, \
           `reshape`, `stack`, `tensor_concat` and `to_chw` accept it. Null in, null out.",
    source: "NumPy's `astype` and PyTorch's `to` for floats, Rust's saturating `as` to bytes",
    examples: &[Example {
        sql: "cast_tensor(normalize(image), type => 'float16')",
        result: "a float16 tensor of the same shape",
    }],
    ..Descriptor::BASE
};

/// The operator `cast_tensor`.
#[derive(Debug)]
pub(crate) struct CastTensor;

impl Operator for CastTensor {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("tensor")?;
        let target = target(arguments)?;
        let item = Arc::new(Field::new_list_field(target.stored(), false));
        let data_type = match field.data_type() {
            DataType::FixedSizeList(_, size) => DataType::FixedSizeList(item, *size),
            DataType::Struct(fields) => {
                let data = Field::new(fields[0].name(), DataType::List(item), fields[0].is_nullable());
                DataType::Struct(Fields::from(vec![data, fields[1].as_ref().clone()]))
            }
            other => return internal_err!("a tensor is stored as {other}"),
        };
        // Keep the shape and the names of the dimensions.
        let mut metadata = field.metadata().clone();
        metadata.remove(DTYPE_KEY);
        if let TargetType::BFloat16 = target {
            metadata.insert(DTYPE_KEY.to_owned(), BFLOAT16.to_owned());
        }
        Ok(field.as_ref().clone().with_name("tensor").with_data_type(data_type).with_metadata(metadata))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let target = target(arguments)?;
        let value = target.stored();
        let array = arguments.array("tensor")?;
        if let Some(list) = array.as_fixed_size_list_opt() {
            let values = cast(list.values(), target)?;
            let item = Arc::new(Field::new_list_field(value, false));
            let list = FixedSizeListArray::try_new(item, list.value_length(), values, list.nulls().cloned())?;
            return Ok(Arc::new(list));
        }
        let Some(rows) = array.as_struct_opt() else {
            return internal_err!("a tensor is stored as {}", array.data_type());
        };
        let list = on_values(rows.column(0), |values| cast(values, target))?;
        // The items of a tensor are never null. The shared function for lists does not know this.
        let (_, offsets, values, nulls) = list.as_list::<i32>().clone().into_parts();
        let item = Arc::new(Field::new_list_field(value, false));
        let list = arrow::array::ListArray::try_new(item, offsets, values, nulls)?;
        let data = Field::new(rows.fields()[0].name(), list.data_type().clone(), rows.fields()[0].is_nullable());
        let fields = Fields::from(vec![data, rows.fields()[1].as_ref().clone()]);
        let columns = vec![Arc::new(list) as ArrayRef, Arc::clone(rows.column(1))];
        Ok(Arc::new(StructArray::try_new(fields, columns, rows.nulls().cloned())?))
    }
}

/// The target type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetType {
    UInt8,
    Float16,
    BFloat16,
    Float32,
}

impl TargetType {
    fn stored(self) -> DataType {
        match self {
            Self::UInt8 => DataType::UInt8,
            Self::Float16 => DataType::Float16,
            Self::BFloat16 => DataType::UInt16,
            Self::Float32 => DataType::Float32,
        }
    }
}

fn target(arguments: &Arguments) -> Result<TargetType> {
    match arguments.text("type")?.as_str() {
        "uint8" => Ok(TargetType::UInt8),
        "float16" => Ok(TargetType::Float16),
        "bfloat16" => Ok(TargetType::BFloat16),
        "float32" => Ok(TargetType::Float32),
        other => {
            let problem = format!("must be 'uint8', 'float16', 'bfloat16' or 'float32', got \"{other}\"");
            arguments.refuse("type", problem)
        }
    }
}

/// Converts values through float32, which holds all values of every type. 16-bit integers are bfloat16, since the type
/// class accepts no others.
fn cast(values: &ArrayRef, to: TargetType) -> Result<ArrayRef> {
    match values.data_type() {
        from if *from == to.stored() => Ok(Arc::clone(values)),
        DataType::UInt8 => from(values.as_primitive::<UInt8Type>(), f32::from, to),
        DataType::UInt16 => from(values.as_primitive::<UInt16Type>(), |bits| bf16::from_bits(bits).to_f32(), to),
        DataType::Float16 => from(values.as_primitive::<Float16Type>(), f16::to_f32, to),
        DataType::Float32 => from(values.as_primitive::<Float32Type>(), |x| x, to),
        other => internal_err!("cast_tensor got a tensor of {other}, which its type class refuses"),
    }
}

fn from<T: ArrowPrimitiveType>(
    values: &PrimitiveArray<T>,
    float: impl Fn(T::Native) -> f32,
    to: TargetType,
) -> Result<ArrayRef> {
    Ok(match to {
        TargetType::UInt8 => Arc::new(values.unary::<_, UInt8Type>(|x| float(x) as u8)),
        TargetType::Float16 => Arc::new(values.unary::<_, Float16Type>(|x| f16::from_f32(float(x)))),
        TargetType::BFloat16 => Arc::new(values.unary::<_, UInt16Type>(|x| bf16::from_f32(float(x)).to_bits())),
        TargetType::Float32 => Arc::new(values.unary::<_, Float32Type>(float)),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float16Array, Float32Array};

    use super::*;
    use crate::image_column;
    use crate::testing::{Column, decoded, noise, sql};

    fn floats(values: Vec<f32>) -> Column {
        let field = image_column::fixed_field("image", DataType::Float32, 1, values.len() / 3, true).unwrap();
        let width = values.len() / 3;
        (field, image_column::fixed_array::<Float32Type>(values.into(), 1, width, None).unwrap())
    }

    fn values((_, array): &Column) -> ArrayRef {
        Arc::clone(array.as_fixed_size_list().values())
    }

    // The expected values come from NumPy's `astype`, and for uint8 from the definition.
    #[test]
    fn values_are_rounded_and_saturate() {
        let x = vec![0.1, -1.5, 65504.0, 65519.9, 65520.0, 1e-8, 300.0, 2.99, f32::NAN];
        let half = sql("cast_tensor(image, 'float16')", vec![floats(x.clone())]).unwrap();
        let half = values(&half);
        let bits: Vec<_> =
            half.as_any().downcast_ref::<Float16Array>().unwrap().values().iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits[..8], [0x2E66, 0xBE00, 0x7BFF, 0x7BFF, 0x7C00, 0, 0x5CB0, 0x41FB]);
        let bytes = values(&sql("cast_tensor(image, 'uint8')", vec![floats(x)]).unwrap());
        assert_eq!(bytes.as_primitive::<UInt8Type>().values()[..], [0, 0, 255, 255, 255, 0, 255, 2, 0]);
    }

    #[test]
    fn there_and_back_is_the_same_image_of_either_shape() {
        for source in [noise(), decoded(&["colour.jpg", "grey16.png"])] {
            for through in ["float16", "bfloat16", "float32"] {
                let call = format!("cast_tensor(cast_tensor(image, '{through}'), 'uint8')");
                let (field, array) = sql(&call, vec![source.clone()]).unwrap();
                assert_eq!(&array, &source.1);
                assert_eq!(field.metadata(), source.0.metadata());
            }
        }
        let one = sql("cast_tensor(image, 'float32')", vec![floats(vec![1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(values(&one).as_primitive::<Float32Type>(), &Float32Array::from(vec![1.0, 2.0, 3.0]));
    }

    // The expected values come from torch.tensor([...]).to(torch.bfloat16).view(torch.uint16).
    #[test]
    fn bfloat16_is_rounded_as_pytorch_rounds_and_marked() {
        let x = vec![0.1, -1.5, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 3.4e38, 1e-40, f32::INFINITY, 255.0, f32::NAN];
        let (field, got) = sql("cast_tensor(image, 'bfloat16')", vec![floats(x)]).unwrap();
        let bits = Arc::clone(got.as_fixed_size_list().values());
        let bits = bits.as_primitive::<UInt16Type>();
        assert_eq!(bits.values()[..8], [0x3dcd, 0xbfc0, 0x3f80, 0x3f82, 0x7f80, 0x0001, 0x7f80, 0x437f]);
        assert!(bf16::from_bits(bits.value(8)).is_nan());
        assert_eq!(field.metadata()["forebay:dtype"], "bfloat16");
        let back = sql("cast_tensor(image)", vec![(field.with_name("image"), got)]).unwrap();
        assert!(!back.0.metadata().contains_key("forebay:dtype"));
        assert_eq!(values(&back).as_primitive::<Float32Type>().value(1), -1.5);
    }

    #[test]
    fn other_types_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check(
            "cast_tensor(image, 'int4')",
            "cast_tensor: \"type\" must be 'uint8', 'float16', 'bfloat16' or 'float32', got \"int4\"",
        );
        check(
            "cast_tensor(1, 'uint8')",
            "cast_tensor: \"tensor\" must be a tensor of uint8, float16, bfloat16 or float32, got Int64",
        );
    }
}
