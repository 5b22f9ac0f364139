//! The reasons for which a file cannot be decoded.

use std::fmt;

/// The reason why a file was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are not a valid JPEG file.
    Damaged(&'static str),
    /// The file uses a part of the standard that is not implemented.
    Unsupported(&'static str),
    /// The region is not within the image, or the output has the wrong size.
    Region,
}

/// The file, or a part of it, ends before its content is complete.
pub(crate) const CUT_SHORT: Error = Error::Damaged("the file is cut short");
/// A bit pattern that the Huffman table does not define.
pub(crate) const BAD_CODE: Error = Error::Damaged("a code that is not in its Huffman table");
/// A run of zeros that passes the end of the block.
pub(crate) const OVERFULL: Error = Error::Damaged("a block has more than 64 coefficients");

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) => write!(f, "damaged JPEG: {what}"),
            Self::Unsupported(what) => write!(f, "unsupported JPEG: {what}"),
            Self::Region => f.write_str("the region does not fit the image or the output"),
        }
    }
}

impl std::error::Error for Error {}
