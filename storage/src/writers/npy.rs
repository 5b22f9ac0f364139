//! The heads of numpy's `.npy` files.

use std::io::Write;

use super::cells::Number;

/// What comes before the text of a head: a mark, version 1.0 and a length of 16 bits.
const BEFORE: usize = 10;
/// Values begin at a multiple of this.
const ALIGNMENT: usize = 64;

/// Appends the head of a file with an array of this shape, in C's order.
pub(super) fn append_head(number: Number, shape: &[u64], out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(b"\x93NUMPY\x01\x00\x00\x00");
    // Writing to memory cannot fail.
    _ = write!(out, "{{'descr': '{}', 'fortran_order': False, 'shape': (", number.description);
    for (at, side) in shape.iter().enumerate() {
        _ = write!(out, "{}{side}", if at > 0 { ", " } else { "" });
    }
    // A tuple of one element ends with a comma.
    out.extend_from_slice(if shape.len() == 1 { b",), }" } else { b"), }" });
    let end = (out.len() + 1 - begin).next_multiple_of(ALIGNMENT);
    out.resize(begin + end - 1, b' ');
    out.push(b'\n');
    // Shapes of 32 dimensions, numpy's limit, have far fewer than 65,536 characters.
    let length = (end - BEFORE) as u16;
    out[begin + BEFORE - 2..begin + BEFORE].copy_from_slice(&length.to_le_bytes());
}
