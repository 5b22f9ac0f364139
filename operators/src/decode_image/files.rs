//! A column of files.

use arrow::array::{Array, AsArray, BinaryArray, BinaryViewArray, LargeBinaryArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};

use crate::descriptor::media_bytes;

/// The files of a batch, in any Arrow layout of binary values.
pub(crate) struct Files<'a> {
    bytes: Bytes<'a>,
    nulls: Option<NullBuffer>,
}

enum Bytes<'a> {
    Small(&'a BinaryArray),
    Large(&'a LargeBinaryArray),
    View(&'a BinaryViewArray),
}

impl<'a> Files<'a> {
    pub(crate) fn try_new(array: &'a dyn Array) -> Result<Self> {
        let (bytes, outer) = match (array.as_struct_opt(), media_bytes(array.data_type())) {
            (Some(media), Some(position)) => (media.column(position).as_ref(), media.nulls()),
            _ => (array, None),
        };
        let nulls = NullBuffer::union(bytes.nulls(), outer);
        let bytes = match bytes.data_type() {
            DataType::Binary => Bytes::Small(bytes.as_binary()),
            DataType::LargeBinary => Bytes::Large(bytes.as_binary()),
            DataType::BinaryView => Bytes::View(bytes.as_binary_view()),
            other => return internal_err!("decode_image got {other}, which its type class refuses"),
        };
        Ok(Self { bytes, nulls })
    }

    pub(crate) fn nulls(&self) -> Option<&NullBuffer> {
        self.nulls.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        match self.bytes {
            Bytes::Small(array) => array.len(),
            Bytes::Large(array) => array.len(),
            Bytes::View(array) => array.len(),
        }
    }

    pub(crate) fn get(&self, row: usize) -> Option<&'a [u8]> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        Some(match self.bytes {
            Bytes::Small(array) => array.value(row),
            Bytes::Large(array) => array.value(row),
            Bytes::View(array) => array.value(row),
        })
    }
}
