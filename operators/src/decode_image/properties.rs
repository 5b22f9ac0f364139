//! `image_height`, `image_width`, `image_format`: properties in a file's header, read without decoding pixels.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err};

use super::image_format::format;
use super::{Files, ImageHeader, header, is_nullable};
use crate::descriptor::{Descriptor, Example, Parameter, TypeClass};
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

/// What all properties declare alike.
const PROPERTY: Descriptor = Descriptor {
    category: "image",
    parameters: &[Parameter::input("bytes", TypeClass::Binary, "The files' contents, or `struct{bytes, path}`")],
    source: "the formats' specifications, as in `decode_image`",
    ..Descriptor::BASE
};

pub(crate) static IMAGE_FORMAT: Property = Property {
    descriptor: &Descriptor {
        name: "image_format",
        summary: "Returns the format of an image file, from its first bytes",
        returns: "Utf8",
        docs: "Returns `jpeg`, `png`, `webp`, `gif`, `bmp` or `tiff`. Other bytes are an error. The rest of the \
             file is not checked. Null in, null out.",
        examples: &[Example { sql: "image_format(bytes)", result: "jpeg" }],
        ..PROPERTY
    },
    function: PropertyFunction::Format,
};

pub(crate) static IMAGE_HEIGHT: Property = Property {
    descriptor: &Descriptor {
        name: "image_height",
        summary: "Returns the height of an image file, from its header",
        returns: "Int32",
        docs: "The height of the image that `decode_image` returns, with EXIF orientation applied. Only the header \
             is read, so a filter on sizes decodes nothing, and a file with damaged pixels still has a height. \
             Bytes that are not an image are an error. Null in, null out.",
        examples: &[Example { sql: "image_height(bytes)", result: "375" }],
        ..PROPERTY
    },
    function: PropertyFunction::Side(|header| header.shown().height),
};

pub(crate) static IMAGE_WIDTH: Property = Property {
    descriptor: &Descriptor {
        name: "image_width",
        summary: "Returns the width of an image file, from its header",
        returns: "Int32",
        docs: "The width of the image that `decode_image` returns, with EXIF orientation applied. Only the header \
             is read, so a filter on sizes decodes nothing, and a file with damaged pixels still has a width. \
             Bytes that are not an image are an error. Null in, null out.",
        examples: &[Example { sql: "image_width(bytes)", result: "500" }],
        ..PROPERTY
    },
    function: PropertyFunction::Side(|header| header.shown().width),
};
