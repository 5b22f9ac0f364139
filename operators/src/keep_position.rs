//! `keep_position`: a value as it is, at its place in the order of calls.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{Descriptor, Example, Parameter, SizeRatio, TypeClass};
use crate::operator::{Arguments, Operator};

/// The function's name, by which planning finds its calls.
pub const KEEP_POSITION: &str = "keep_position";

static DESCRIPTOR: Descriptor = Descriptor {
    name: KEEP_POSITION,
    category: "image",
    summary: "Returns a value unchanged, and keeps calls from moving across it",
    parameters: &[Parameter::input("value", TypeClass::Any, "The values")],
    returns: "the values, as they were given",
    size_ratio: SizeRatio::exactly(1.0),
    docs: "With the option `order => 'relaxed'`, calls on images move to where images are smallest, but none moves \
           across this call. It costs nothing: planning takes it out. Null in, null out.",
    source: "Pecan's `keep_position`",
    examples: &[Example {
        sql: "center_crop(keep_position(gaussian_blur(image)), 224, 224)",
        result: "the image is blurred before it is cropped",
    }],
    ..Descriptor::BASE
};

/// The operator `keep_position`.
#[derive(Debug)]
pub(crate) struct KeepPosition;

impl Operator for KeepPosition {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Ok(arguments.field("value")?.as_ref().clone())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        arguments.take_array("value")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::testing::{noise, sql};

    #[test]
    fn a_value_stays_as_it_is() {
        let (field, images) = noise();
        let (got_field, got) = sql("keep_position(image)", vec![(field.clone(), Arc::clone(&images))]).unwrap();
        assert_eq!((got_field.with_name("image"), &got), (field, &images));
    }
}
