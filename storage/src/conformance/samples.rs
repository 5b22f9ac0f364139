//! The place of a format's samples, and how checks fail.

use crate::Stores;
use crate::formats::table_format::TableFormat;

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err(format!($($message)+)),
        }
    };
}
pub(super) use ensure;

/// Where the samples of a format are written.
pub(super) struct Samples<'a> {
    pub(super) stores: &'a Stores,
    pub(super) folder: String,
    pub(super) format: TableFormat,
}
