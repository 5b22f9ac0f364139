//! `image_height`, `image_width`, `image_format`: properties in a file's header, read without decoding pixels.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err};

use super::image_format::format;
use super::{Files, ImageHeader, header, is_nullable};
use crate::descriptor::{Commutes, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};
use crate::operator::{Arguments, Operator};

/// An operator that reads headers.
#[derive(Debug)]
pub(crate) struct Property {
    descriptor: &'static Descriptor,
    function: PropertyFunction,
}

#[derive(Debug)]
enum PropertyFunction {
    Side(fn(ImageHeader) -> usize),
    Format,
}

impl Operator for Property {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let data_type = match self.function {
            PropertyFunction::Side(_) => DataType::Int32,
            PropertyFunction::Format => DataType::Utf8,
        };
        Ok(Field::new(self.descriptor.name, data_type, is_nullable(arguments.field("bytes")?)))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let files = Files::try_new(arguments.array("bytes")?)?;
        let named = |problem| exec_datafusion_err!("{}: {problem}", self.descriptor.name);
        let rows = (0..files.len()).map(|row| files.get(row));
        match self.function {
            PropertyFunction::Side(side) => {
                let sides = rows.map(|file| Ok(file.map(header).transpose().map_err(named)?.map(|h| side(h) as i32)));
                Ok(Arc::new(sides.collect::<Result<Int32Array>>()?))
            }
            PropertyFunction::Format => {
                let names = rows.map(|file| Ok(file.map(format).transpose().map_err(named)?.map(|f| f.name())));
                Ok(Arc::new(names.collect::<Result<StringArray>>()?))
            }
        }
    }
}

macro_rules! properties {
    ($($constant:ident $name:literal $function:expr, $returns:literal, $summary:literal, $docs:literal, $result:literal;)+) => {
        $(pub(crate) static $constant: Property = Property {
            descriptor: {
                static DESCRIPTOR: Descriptor = Descriptor {
                    name: $name,
                    version: 1,
                    category: "image",
                    summary: $summary,
                    parameters: &[Parameter::input("bytes", TypeClass::Binary, "The files' contents, or `struct{bytes, path}`")],
                    returns: $returns,
                    determinism: Determinism::Deterministic,
                    rows: Rows::OneToOne,
                    nulls: Nulls::Kept,
                    size_ratio: 0.001,
                    commutes: Commutes::NONE,
                    docs: concat!($docs, " Null in, null out."),
                    source: "the formats' specifications, as in `decode_image`",
                    examples: &[Example { sql: concat!($name, "(bytes)"), result: $result }],
                };
                &DESCRIPTOR
            },
            function: $function,
        };)+
    };
}

properties! {
    IMAGE_FORMAT "image_format" PropertyFunction::Format, "Utf8",
        "Returns the format of an image file, from its first bytes",
        "Returns `jpeg`, `png`, `webp`, `gif`, `bmp` or `tiff`. Other bytes are an error. The rest of the file is not \
         checked.", "jpeg";
    IMAGE_HEIGHT "image_height" PropertyFunction::Side(|header| header.shown().height), "Int32",
        "Returns the height of an image file, from its header",
        "The height of the image that `decode_image` returns, with EXIF orientation applied. Only the header is read, \
         so a filter on sizes decodes nothing, and a file with damaged pixels still has a height. Bytes that are not \
         an image are an error.", "375";
    IMAGE_WIDTH "image_width" PropertyFunction::Side(|header| header.shown().width), "Int32",
        "Returns the width of an image file, from its header",
        "The width of the image that `decode_image` returns, with EXIF orientation applied. Only the header is read, \
         so a filter on sizes decodes nothing, and a file with damaged pixels still has a width. Bytes that are not an \
         image are an error.", "500";
}
