//! Bounds on the lengths of delta-encoded texts, checked before the decoder trusts them.
//!
//! The decoder takes memory for as many lengths as the beginning of a page claims. They are integers in blocks of
//! miniblocks: the number of values in a block, of miniblocks in a block, of values, and the first value; then, for
//! each block, its smallest difference, the width of each miniblock's differences, and the differences.

use super::thrift::Problem;

/// The longest encoding of a 64-bit number.
const VARINT_BYTES_MAX: usize = 10;

/// Checks lengths of at most `values` texts, of which each has one number, or a prefix and a suffix.
pub(super) fn check_lengths(page: &[u8], values: u64, has_prefixes: bool) -> Result<(), Problem> {
    let bounded = |lengths: &mut Lengths<'_>| match lengths.count()? {
        count if count > values => Some(Err(format!("a page of {values} values has {count} lengths"))),
        count => Some(Ok(count)),
    };
    // What is cut short is an error of the decoder, after it has taken memory for this many lengths.
    let mut lengths = Lengths { rest: page, block: 0, miniblocks: 0 };
    let Some(count) = bounded(&mut lengths).transpose()? else { return Ok(()) };
    if has_prefixes && lengths.skip(count).is_some() {
        bounded(&mut lengths).transpose()?;
    }
    Ok(())
}

struct Lengths<'a> {
    rest: &'a [u8],
    block: u64,
    miniblocks: u64,
}

impl Lengths<'_> {
    /// Reads the beginning, and returns the number of values.
    fn count(&mut self) -> Option<u64> {
        self.block = self.varint()?;
        self.miniblocks = self.varint()?;
        let count = self.varint()?;
        self.varint()?;
        Some(count)
    }

    /// Skips the blocks of `count` values, of which the beginning has the first.
    fn skip(&mut self, count: u64) -> Option<()> {
        let per_miniblock = self.block.checked_div(self.miniblocks)?;
        let mut left = count.saturating_sub(1);
        while left > 0 {
            self.varint()?;
            let (widths, mut rest) = self.rest.split_at_checked(usize::try_from(self.miniblocks).ok()?)?;
            for width in widths {
                // Miniblocks without values have no bytes, whatever their width.
                let bytes = if left == 0 { 0 } else { per_miniblock.checked_mul(u64::from(*width))? / 8 };
                rest = rest.get(usize::try_from(bytes).ok()?..)?;
                left = left.saturating_sub(per_miniblock.max(1));
            }
            self.rest = rest;
        }
        Some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let len = self.rest.iter().take(VARINT_BYTES_MAX).position(|byte| *byte < 0x80)? + 1;
        let (number, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7F)))
    }
}
