//! `cast_tensor`: converts the values of tensors to another type.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, PrimitiveArray, StructArray};
use arrow::datatypes::{
    DataType, Field, Fields, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::common::{Result, internal_err};
use forebay_arrays::{BFLOAT16, DTYPE_KEY};
use half::{bf16, f16};

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, Pixels, TypeClass};
use crate::image_column;
use crate::operator::{Arguments, Operator};
use crate::table::on_values;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "cast_tensor",
    version: 1,
    category: "tensor",
    summary: "Converts the values of tensors to another type",
    parameters: &[
        Parameter::input("tensor", TypeClass::Tensor, "The tensors"),
        Parameter::constant(
            "type",
            ConstantKind::Text,
            "`'int8'` to `'int64'`, `'uint8'` to `'uint64'`, `'float16'`, `'bfloat16'`, `'float32'` or `'float64'`",
        )
        .or("'float32'"),
    ],
    returns: "a tensor of that type and the same shape, fixed or variable",
    pixels: Pixels::Pointwise,
    docs: "Values are neither scaled nor shifted: 255 becomes 255.0; use `normalize` to scale. Conversion to float16 \
           and bfloat16 goes through float32, as in PyTorch, and rounds to nearest, ties to even; float16 becomes \
           infinite from 65520. Conversion to integers truncates the fraction and clamps to the least and the \
           greatest value of the type; NaN becomes 0. PyTorch and NumPy wrap integers around instead, and leave \
           floats out of range undefined. There is no bool: Arrow keeps booleans as single bits, which no tensor \
           shares. Cast to uint8.\n\nArrow has no bfloat16. Its bits are stored \
           as uint16, and the column's field has the metadata `forebay:dtype` = `bfloat16`. The Python package makes \
           bfloat16 tensors from it; a reader that does not know this metadata sees integers. Of the other operators, \
           `reshape`, `stack`, `tensor_concat` and `to_chw` accept it. Null in, null out.",
    source: "NumPy's `astype` and PyTorch's `to` for floats, Rust's saturating `as` to integers",
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
        let is_bfloat16 = image_column::is_bfloat16(arguments.field("tensor")?);
        let cast = |values: &ArrayRef| cast(values, is_bfloat16, target);
        let array = arguments.array("tensor")?;
        if let Some(list) = array.as_fixed_size_list_opt() {
            let values = cast(list.values())?;
            let item = Arc::new(Field::new_list_field(value, false));
            let list = FixedSizeListArray::try_new(item, list.value_length(), values, list.nulls().cloned())?;
            return Ok(Arc::new(list));
        }
        let Some(rows) = array.as_struct_opt() else {
            return internal_err!("a tensor is stored as {}", array.data_type());
        };
        let list = on_values(rows.column(0), |values| cast(values))?;
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
    Stored(&'static DataType),
    BFloat16,
}

/// The names of the types, as PyTorch and NumPy spell them.
const TYPES: [(&str, TargetType); 12] = [
    ("int8", TargetType::Stored(&DataType::Int8)),
    ("int16", TargetType::Stored(&DataType::Int16)),
    ("int32", TargetType::Stored(&DataType::Int32)),
    ("int64", TargetType::Stored(&DataType::Int64)),
    ("uint8", TargetType::Stored(&DataType::UInt8)),
    ("uint16", TargetType::Stored(&DataType::UInt16)),
    ("uint32", TargetType::Stored(&DataType::UInt32)),
    ("uint64", TargetType::Stored(&DataType::UInt64)),
    ("float16", TargetType::Stored(&DataType::Float16)),
    ("bfloat16", TargetType::BFloat16),
    ("float32", TargetType::Stored(&DataType::Float32)),
    ("float64", TargetType::Stored(&DataType::Float64)),
];

impl TargetType {
    fn stored(self) -> DataType {
        match self {
            Self::Stored(data_type) => data_type.clone(),
            Self::BFloat16 => DataType::UInt16,
        }
    }
}

fn target(arguments: &Arguments) -> Result<TargetType> {
    let name = arguments.text("type")?;
    match TYPES.iter().find(|(known, _)| *known == name) {
        Some((_, target)) => Ok(*target),
        None if name == "bool" => {
            let instead =
                "got \"bool\": Arrow keeps booleans as single bits. Cast to 'uint8' and call .bool() on the batch";
            arguments.refuse("type", format_args!("{}, {instead}", must()))
        }
        None => arguments.refuse("type", format_args!("{}, got \"{name}\"", must())),
    }
}

fn must() -> String {
    let names: Vec<_> = TYPES.iter().map(|(name, _)| format!("'{name}'")).collect();
    let (last, others) = names.split_last().expect("there are twelve types");
    format!("must be {} or {last}", others.join(", "))
}

/// Converts values. 64-bit integers go through i128 and all other values through float64, since these hold every value
/// of the type.
fn cast(values: &ArrayRef, is_bfloat16: bool, to: TargetType) -> Result<ArrayRef> {
    use DataType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    Ok(match values.data_type() {
        UInt16 if is_bfloat16 && to == TargetType::BFloat16 => Arc::clone(values),
        UInt16 if is_bfloat16 => floats::<UInt16Type>(values, |bits| bf16::from_bits(bits).to_f64(), to)?,
        from if to != TargetType::BFloat16 && *from == to.stored() => Arc::clone(values),
        UInt8 => floats::<UInt8Type>(values, f64::from, to)?,
        UInt16 => floats::<UInt16Type>(values, f64::from, to)?,
        UInt32 => floats::<UInt32Type>(values, f64::from, to)?,
        Int8 => floats::<Int8Type>(values, f64::from, to)?,
        Int16 => floats::<Int16Type>(values, f64::from, to)?,
        Int32 => floats::<Int32Type>(values, f64::from, to)?,
        Float16 => floats::<Float16Type>(values, f16::to_f64, to)?,
        Float32 => floats::<Float32Type>(values, f64::from, to)?,
        Float64 => floats::<Float64Type>(values, |x| x, to)?,
        Int64 => integers::<Int64Type>(values, i128::from, to)?,
        UInt64 => integers::<UInt64Type>(values, i128::from, to)?,
        other => return internal_err!("cast_tensor got a tensor of {other}, which its type class refuses"),
    })
}

/// Rust's `as` from floats to integers truncates and clamps, and makes 0 of NaN.
fn floats<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    wide: impl Fn(T::Native) -> f64,
    to: TargetType,
) -> Result<ArrayRef> {
    let values: &PrimitiveArray<T> = values.as_primitive();
    let TargetType::Stored(data_type) = to else {
        return Ok(Arc::new(values.unary::<_, UInt16Type>(|x| bf16::from_f32(wide(x) as f32).to_bits())));
    };
    Ok(match data_type {
        DataType::Int8 => Arc::new(values.unary::<_, Int8Type>(|x| wide(x) as i8)),
        DataType::Int16 => Arc::new(values.unary::<_, Int16Type>(|x| wide(x) as i16)),
        DataType::Int32 => Arc::new(values.unary::<_, Int32Type>(|x| wide(x) as i32)),
        DataType::Int64 => Arc::new(values.unary::<_, Int64Type>(|x| wide(x) as i64)),
        DataType::UInt8 => Arc::new(values.unary::<_, UInt8Type>(|x| wide(x) as u8)),
        DataType::UInt16 => Arc::new(values.unary::<_, UInt16Type>(|x| wide(x) as u16)),
        DataType::UInt32 => Arc::new(values.unary::<_, UInt32Type>(|x| wide(x) as u32)),
        DataType::UInt64 => Arc::new(values.unary::<_, UInt64Type>(|x| wide(x) as u64)),
        DataType::Float16 => Arc::new(values.unary::<_, Float16Type>(|x| f16::from_f32(wide(x) as f32))),
        DataType::Float32 => Arc::new(values.unary::<_, Float32Type>(|x| wide(x) as f32)),
        DataType::Float64 => Arc::new(values.unary::<_, Float64Type>(wide)),
        other => return internal_err!("cast_tensor has no target {other}"),
    })
}

fn integers<T: ArrowPrimitiveType>(
    values: &ArrayRef,
    wide: impl Fn(T::Native) -> i128,
    to: TargetType,
) -> Result<ArrayRef> {
    let values: &PrimitiveArray<T> = values.as_primitive();
    let clamped = |x: T::Native, least: i128, most: i128| wide(x).clamp(least, most);
    let TargetType::Stored(data_type) = to else {
        return Ok(Arc::new(values.unary::<_, UInt16Type>(|x| bf16::from_f32(wide(x) as f32).to_bits())));
    };
    Ok(match data_type {
        DataType::Int8 => Arc::new(values.unary::<_, Int8Type>(|x| clamped(x, i8::MIN.into(), i8::MAX.into()) as i8)),
        DataType::Int16 => {
            Arc::new(values.unary::<_, Int16Type>(|x| clamped(x, i16::MIN.into(), i16::MAX.into()) as i16))
        }
        DataType::Int32 => {
            Arc::new(values.unary::<_, Int32Type>(|x| clamped(x, i32::MIN.into(), i32::MAX.into()) as i32))
        }
        DataType::Int64 => {
            Arc::new(values.unary::<_, Int64Type>(|x| clamped(x, i64::MIN.into(), i64::MAX.into()) as i64))
        }
        DataType::UInt8 => Arc::new(values.unary::<_, UInt8Type>(|x| clamped(x, 0, u8::MAX.into()) as u8)),
        DataType::UInt16 => Arc::new(values.unary::<_, UInt16Type>(|x| clamped(x, 0, u16::MAX.into()) as u16)),
        DataType::UInt32 => Arc::new(values.unary::<_, UInt32Type>(|x| clamped(x, 0, u32::MAX.into()) as u32)),
        DataType::UInt64 => Arc::new(values.unary::<_, UInt64Type>(|x| clamped(x, 0, u64::MAX.into()) as u64)),
        DataType::Float16 => Arc::new(values.unary::<_, Float16Type>(|x| f16::from_f32(wide(x) as f32))),
        DataType::Float32 => Arc::new(values.unary::<_, Float32Type>(|x| wide(x) as f32)),
        DataType::Float64 => Arc::new(values.unary::<_, Float64Type>(|x| wide(x) as f64)),
        other => return internal_err!("cast_tensor has no target {other}"),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float16Array, Float32Array};
    use arrow::util::display::array_value_to_string;
    use forebay_arrays::{FixedShapeTensor, TensorType, item};

    use super::*;
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

    fn tensors<T: ArrowPrimitiveType>(values: Vec<T::Native>) -> Column {
        let tensor = FixedShapeTensor::new(T::DATA_TYPE, vec![values.len()]);
        let items = Arc::new(PrimitiveArray::<T>::from_iter_values(values));
        let list = FixedSizeListArray::try_new(item(T::DATA_TYPE), items.len() as i32, items, None).unwrap();
        (tensor.field("x", true).unwrap(), Arc::new(list))
    }

    fn shown(call: &str, column: Column) -> String {
        let (field, array) = sql(call, vec![column]).unwrap();
        assert!(TensorType::of(&field).is_some());
        let items = array.as_fixed_size_list().values();
        (0..items.len()).map(|at| array_value_to_string(items, at).unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn integers_are_clamped_and_never_wrap() {
        let ints = || tensors::<Int64Type>(vec![i64::MIN, -129, -1, 0, 127, 300, 65_536, 1 << 40, i64::MAX]);
        let check = |to: &str, expect: &str| assert_eq!(shown(&format!("cast_tensor(x, '{to}')"), ints()), expect);
        check("int8", "-128 -128 -1 0 127 127 127 127 127");
        check("int16", "-32768 -129 -1 0 127 300 32767 32767 32767");
        check("int32", "-2147483648 -129 -1 0 127 300 65536 2147483647 2147483647");
        check("int64", "-9223372036854775808 -129 -1 0 127 300 65536 1099511627776 9223372036854775807");
        check("uint8", "0 0 0 0 127 255 255 255 255");
        check("uint16", "0 0 0 0 127 300 65535 65535 65535");
        check("uint32", "0 0 0 0 127 300 65536 4294967295 4294967295");
        check("uint64", "0 0 0 0 127 300 65536 1099511627776 9223372036854775807");
        check(
            "float64",
            "-9.223372036854776e18 -129.0 -1.0 0.0 127.0 300.0 65536.0 1099511627776.0 9.223372036854776e18",
        );
        let most = || tensors::<UInt64Type>(vec![u64::MAX, 1]);
        assert_eq!(shown("cast_tensor(x, 'int64')", most()), "9223372036854775807 1");
        // torch.tensor([2**24 + 1, 16_777_219]).to(torch.float32) rounds to even.
        let odd = tensors::<Int32Type>(vec![16_777_217, 16_777_219]);
        assert_eq!(shown("cast_tensor(x)", odd), "16777216.0 16777220.0");
    }

    #[test]
    fn floats_become_integers_without_surprise() {
        let x = vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -2.99, 2.99, 1e30, -0.5, 9_007_199_254_740_993.0];
        let check = |to: &str, expect: &str| {
            assert_eq!(shown(&format!("cast_tensor(x, '{to}')"), tensors::<Float64Type>(x.clone())), expect);
        };
        check("int8", "0 127 -128 -2 2 127 0 127");
        check("int64", "0 9223372036854775807 -9223372036854775808 -2 2 9223372036854775807 0 9007199254740992");
        check("uint32", "0 4294967295 0 0 2 4294967295 0 4294967295");
        check("uint64", "0 18446744073709551615 0 0 2 18446744073709551615 0 9007199254740992");
    }

    #[test]
    fn every_type_goes_to_every_type_and_back() {
        let types = TYPES.map(|(name, _)| name);
        for from in types {
            for to in types {
                let call = format!("cast_tensor(cast_tensor(cast_tensor(x, '{from}'), '{to}'), 'int64')");
                assert_eq!(shown(&call, tensors::<Int64Type>(vec![0, 1, 100])), "0 1 100", "{from} to {to}");
            }
        }
        let ids = tensors::<UInt16Type>(vec![16_256, 7]);
        assert_eq!(shown("cast_tensor(x, 'int32')", ids), "16256 7", "not the bits of a bfloat16");
    }

    #[test]
    fn other_types_are_refused() {
        let check = |call: &str, expect: &str| assert_eq!(sql(call, vec![noise()]).unwrap_err(), expect);
        check(
            "cast_tensor(image, 'int4')",
            "cast_tensor: \"type\" must be 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', \
             'float16', 'bfloat16', 'float32' or 'float64', got \"int4\"",
        );
        assert!(sql("cast_tensor(image, 'bool')", vec![noise()]).unwrap_err().ends_with(
            "got \"bool\": Arrow keeps booleans as single bits. Cast to 'uint8' and call .bool() on the batch"
        ));
        check("cast_tensor(1, 'uint8')", "cast_tensor: \"tensor\" must be a tensor of numbers, got Int64");
    }
}
