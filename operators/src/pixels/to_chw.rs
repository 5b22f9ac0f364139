//! `to_chw`: the channels of images as separate planes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::buffer::Buffer;
use arrow::datatypes::{ArrowNativeType, Field};
use datafusion::common::{Result, internal_err};
use forebay_arrays::FixedShapeTensor;

use crate::descriptor::{Descriptor, Example, Parameter, Pixels, SizeRatio, TypeClass};
use crate::image_column::{CHANNELS, Shape, shape};
use crate::operator::{Arguments, Operator};
use crate::tensors::{self, bytes, values};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "to_chw",
    version: 1,
    category: "image",
    summary: "Stores the channels of images as separate planes",
    parameters: &[Parameter::input("image", TypeClass::FixedImage, "The images")],
    returns: "a tensor of fixed shape 3 x height x width, of the same type",
    pixels: Pixels::Moved,
    size_ratio: SizeRatio::exactly(1.0),
    docs: "The values may have any type, including bfloat16. Most models do not need this operator: in PyTorch, \
           `permute(0, 3, 1, 2)` gives the same shape as a view, in the layout `channels_last`, which is also faster \
           for convolutions. Operators on images need height x width x 3, so apply this one last. Null in, null out.",
    source: "NumPy's `transpose(2, 0, 1)` as a copy",
    examples: &[Example { sql: "to_chw(normalize(image))", result: "a tensor of 3 x height x width" }],
    ..Descriptor::BASE
};

/// The operator `to_chw`.
#[derive(Debug)]
pub(crate) struct ToChw;

impl Operator for ToChw {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let field = arguments.field("image")?;
        let (Some(images), Shape::Fixed { height, width }) = (FixedShapeTensor::of_numbers(field), shape(field)?)
        else {
            return internal_err!("to_chw got {}, which its type class refuses", field.data_type());
        };
        let planes = images.with_shape(vec![CHANNELS, height, width]).named(&["C", "H", "W"]);
        tensors::field(&planes, "image", field.is_nullable())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let list = arguments.array("image")?.as_fixed_size_list();
        let size = list.value_length() as usize;
        let (bytes, width) = bytes(list.values())?;
        // The values are moved as bytes of their width, whatever their type.
        let moved = match width {
            1 => planes::<u8>(&bytes, size),
            2 => planes::<u16>(&bytes, size),
            4 => planes::<u32>(&bytes, size),
            8 => planes::<u64>(&bytes, size),
            _ => return internal_err!("to_chw got values of {width} bytes, which its type class refuses"),
        };
        let values = values(&list.value_type(), moved, width)?;
        let item = Arc::new(Field::new_list_field(list.value_type(), false));
        Ok(Arc::new(FixedSizeListArray::try_new(item, list.value_length(), values, list.nulls().cloned())?))
    }
}

fn planes<T: ArrowNativeType>(bytes: &Buffer, size: usize) -> Buffer {
    let values = bytes.typed_data::<T>();
    let mut out = vec![T::default(); values.len()];
    let plane = size / CHANNELS;
    for (image, out) in values.chunks_exact(size).zip(out.chunks_exact_mut(size)) {
        let (red, others) = out.split_at_mut(plane);
        let (green, blue) = others.split_at_mut(plane);
        let planes = red.iter_mut().zip(green).zip(blue);
        for ([r, g, b], ((red, green), blue)) in image.as_chunks::<CHANNELS>().0.iter().zip(planes) {
            (*red, *green, *blue) = (*r, *g, *b);
        }
    }
    Buffer::from_vec(out)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Float16Type, Float32Type, UInt8Type};

    use super::*;
    use crate::testing::{decoded, fixed, noise, sql};

    #[test]
    fn channels_follow_each_other() {
        let pixels: Vec<u8> = (1..=24).collect();
        let (field, got) = sql("to_chw(image)", vec![fixed(2, 2, pixels)]).unwrap();
        let values = got.as_fixed_size_list().values();
        let expect: Vec<u8> =
            [0, 12].iter().flat_map(|i| [1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12].map(|x| x + i)).collect();
        assert_eq!(values.as_primitive::<UInt8Type>().values()[..], expect);
        let metadata = &field.metadata()["ARROW:extension:metadata"];
        assert_eq!(metadata, r#"{"shape":[3,2,2],"dim_names":["C","H","W"]}"#);
    }

    #[test]
    fn floats_move_as_bytes_do() {
        let of = |call: &str| sql(call, vec![noise()]).unwrap();
        let bytes = of("to_chw(image)").1;
        let floats = of("to_chw(cast_tensor(image, 'float32'))").1;
        let halves = of("to_chw(cast_tensor(image, 'float16'))").1;
        let bytes = bytes.as_fixed_size_list().values().as_primitive::<UInt8Type>().clone();
        let floats = floats.as_fixed_size_list().values().as_primitive::<Float32Type>().clone();
        let halves = halves.as_fixed_size_list().values().as_primitive::<Float16Type>().clone();
        assert!(bytes.values().iter().zip(floats.values()).all(|(a, b)| f32::from(*a) == *b));
        assert!(bytes.values().iter().zip(halves.values()).all(|(a, b)| f32::from(*a) == b.to_f32()));
    }

    #[test]
    fn images_of_many_sizes_are_refused() {
        let expect = "to_chw: \"image\" must be a tensor of height x width x 3, all of one height and width, got a UInt8 tensor of \
                      variable shape";
        assert_eq!(sql("to_chw(image)", vec![decoded(&["colour.jpg"])]).unwrap_err(), expect);
    }
}
