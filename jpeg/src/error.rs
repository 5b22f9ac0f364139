//! What can be wrong with a file.

use std::fmt;

/// Why a file was not decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The bytes are no sound JPEG file.
    Damaged(&'static str),
    /// The file uses a part of the standard that is not implemented.
    Unsupported(&'static str),
    /// The region does not lie in the picture, or the output does not hold it.
    Region,
}

/// The file ends, or a part of it does, before its content is complete.
pub(crate) const CUT_SHORT: Error = Error::Damaged("the file is cut short");
/// A bit pattern that the Huffman table does not define.
pub(crate) const BAD_CODE: Error = Error::Damaged("a code that its table does not have");
/// A run of zeros that leaves the block.
pub(crate) const OVERFULL: Error = Error::Damaged("a block has more than 64 coefficients");

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged(what) => write!(f, "damaged JPEG: {what}"),
            Self::Unsupported(what) => write!(f, "unsupported JPEG: {what}"),
            Self::Region => f.write_str("the region does not fit the picture or the output"),
        }
    }
}

impl std::error::Error for Error {}
