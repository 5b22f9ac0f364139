//! `convert_boxes`: boxes of another format.

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use super::column::{Groups, GroupsBuilder};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, SizeRatio, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "convert_boxes",
    category: "box",
    summary: "Converts boxes from one format to another",
    parameters: &[
        Parameter::input("boxes", TypeClass::Boxes, "The boxes"),
        Parameter::constant("from", ConstantKind::Text, "`'xyxy'`, `'xywh'` or `'cxcywh'`").or("'xywh'"),
        Parameter::constant("to", ConstantKind::Text, "`'xyxy'`, `'xywh'` or `'cxcywh'`").or("'xyxy'"),
    ],
    returns: "a list of float32 of 4, with as many boxes",
    docs: "'xyxy' is left, top, right, bottom, which the other operators on boxes take. 'xywh' is left, top, width, \
           height, the format of COCO. 'cxcywh' is the centre, width, height. Computed in float32. A null box becomes \
           `[0, 0, 0, 0]`. Null in, null out.",
    source: "torchvision's `v2.ConvertBoundingBoxFormat`",
    examples: &[Example {
        sql: "convert_boxes([[10, 20, 3, 4]], from => 'xywh')",
        result: "[[10.0, 20.0, 13.0, 24.0]]",
    }],
    size_ratio: SizeRatio::exactly(1.0),
    ..Descriptor::BASE
};

/// The operator `convert_boxes`.
#[derive(Debug)]
pub(crate) struct ConvertBoxes;

#[derive(Debug, Clone, Copy)]
enum Format {
    Xyxy,
    Xywh,
    Cxcywh,
}

impl Operator for ConvertBoxes {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Format::read(arguments, "from")?;
        Format::read(arguments, "to")?;
        Ok(arguments.field("boxes")?.as_ref().clone())
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (from, to) = (Format::read(arguments, "from")?, Format::read(arguments, "to")?);
        let boxes = Groups::try_new(arguments.array("boxes")?)?;
        let mut out = GroupsBuilder::new(DESCRIPTOR.name, 4, boxes.len(), boxes.values());
        for row in 0..boxes.len() {
            if boxes.nulls().is_none_or(|nulls| nulls.is_valid(row)) {
                for group in boxes.row(row) {
                    out.push(&match group {
                        Some(&[a, b, c, d]) => to.of(from.corners([a, b, c, d])),
                        _ => [0.0; 4],
                    });
                }
            }
            out.end_row()?;
        }
        out.finish(boxes.nulls().cloned())
    }
}

impl Format {
    fn read(arguments: &Arguments, name: &str) -> Result<Self> {
        match arguments.text(name)?.as_str() {
            "xyxy" => Ok(Self::Xyxy),
            "xywh" => Ok(Self::Xywh),
            "cxcywh" => Ok(Self::Cxcywh),
            other => arguments.refuse(name, format_args!("must be 'xyxy', 'xywh' or 'cxcywh', got \"{other}\"")),
        }
    }

    /// Returns left, top, right, bottom of a box of this format.
    fn corners(self, [a, b, c, d]: [f32; 4]) -> [f32; 4] {
        match self {
            Self::Xyxy => [a, b, c, d],
            Self::Xywh => [a, b, a + c, b + d],
            Self::Cxcywh => [a - c * 0.5, b - d * 0.5, a + c * 0.5, b + d * 0.5],
        }
    }

    /// Returns the box with these corners in this format.
    fn of(self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let (width, height) = (right - left, bottom - top);
        match self {
            Self::Xyxy => [left, top, right, bottom],
            Self::Xywh => [left, top, width, height],
            Self::Cxcywh => [(left + right) * 0.5, (top + bottom) * 0.5, width, height],
        }
    }
}
