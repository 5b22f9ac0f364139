//! The bits of a scan.
//!
//! Entropy-coded data has a zero byte stuffed after each 0xFF byte, and markers between restart intervals (T.81,
//! B.1.1.5). [`Entropy::read`] removes both once, so reading bits is a load and two shifts, without a branch.

use crate::cpu::Cpu;
use crate::error::{CUT_SHORT, Error};
use crate::markers::{RST0, RST7};

/// Zero bytes after the data. They exceed the size of any block, so one check per block is enough.
const PADDING: usize = 512;

/// The entropy-coded data of a scan, without stuffing and markers.
#[derive(Debug, Default)]
pub(crate) struct Entropy {
    bytes: Vec<u8>,
    /// The end of each restart interval.
    ends: Vec<u32>,
}

impl Entropy {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<u32>()
    }

    /// Reads the data that begin at `at`. Returns the position of the next marker.
    pub(crate) fn read(&mut self, cpu: Cpu, file: &[u8], mut at: usize, restarts: bool) -> Result<usize, Error> {
        self.ends.clear();
        let needed = file.len().saturating_sub(at) + PADDING;
        if self.bytes.len() < needed {
            self.bytes.resize(needed, 0);
        }
        let out = self.bytes.as_mut_slice();
        let mut len = 0;
        loop {
            let plain = cpu.copy(file.get(at..).ok_or(CUT_SHORT)?, &mut out[len..]);
            at += plain;
            len += plain;
            match (*file.get(at).ok_or(CUT_SHORT)?, file.get(at + 1)) {
                (0xFF, Some(0)) => {
                    out[len] = 0xFF;
                    len += 1;
                    at += 2;
                }
                (0xFF, Some(0xFF)) => at += 1,
                (0xFF, Some(code @ RST0..=RST7)) if restarts => {
                    if usize::from(code - RST0) != self.ends.len() % 8 {
                        return Err(Error::Damaged("restart markers out of order"));
                    }
                    self.ends.push(u32::try_from(len).map_err(|_| Error::Unsupported("4 GiB of data"))?);
                    at += 2;
                }
                (0xFF, Some(_)) => break,
                _ => return Err(CUT_SHORT),
            }
        }
        self.ends.push(u32::try_from(len).map_err(|_| Error::Unsupported("4 GiB of data"))?);
        out[len..len + PADDING].fill(0);
        Ok(at)
    }

    /// Returns the bits of a restart interval.
    pub(crate) fn interval(&self, number: usize) -> Result<Bits<'_>, Error> {
        let start = if number == 0 { 0 } else { *self.ends.get(number - 1).ok_or(CUT_SHORT)? };
        let end = *self.ends.get(number).ok_or(CUT_SHORT)?;
        Ok(Bits { bytes: &self.bytes, at: start as usize, end: end as usize, word: 0, count: 0 })
    }
}

/// Copies bytes up to the first 0xFF byte. Returns their number. The output has room for eight more bytes.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = from[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*chunk);
        to[at..at + 8].copy_from_slice(chunk);
        let ones = (!word).wrapping_sub(0x0101_0101_0101_0101) & word & 0x8080_8080_8080_8080;
        if ones != 0 {
            return at + ones.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < from.len() && from[at] != 0xFF {
        to[at] = from[at];
        at += 1;
    }
    at
}

/// A reader of bits, most significant bit first. Bits read past the end are meaningless; `check` detects this.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    /// The first byte of the next load.
    at: usize,
    end: usize,
    /// The next bits, left-aligned.
    pub(crate) word: u64,
    /// The number of valid bits in `word`. Lower bits are correct too, but the next refill loads them again.
    pub(crate) count: u32,
}

impl Bits<'_> {
    /// Raises `count` to at least 56. The load's address depends only on the previous refill, so it waits for no code.
    #[inline(always)]
    pub(crate) fn refill(&mut self) {
        let next = match self.bytes.get(self.at..).and_then(<[u8]>::first_chunk::<8>) {
            Some(bytes) => u64::from_be_bytes(*bytes),
            None => 0,
        };
        self.word |= next >> self.count;
        self.at += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    /// Drops `count` bits. Only the lowest six bits of `count` matter.
    #[inline(always)]
    pub(crate) fn consume(&mut self, count: u32) {
        self.word <<= count & 63;
        self.count -= count & 63;
    }

    /// Returns `count` consumed bits to the reader.
    pub(crate) fn give_back(&mut self, count: usize) {
        let at = self.at * 8 - self.count as usize - count;
        (self.at, self.word, self.count) = (at / 8, 0, 0);
        self.refill();
        self.consume(at as u32 % 8);
    }

    /// Takes the next `count` bits as a number. `count` is at most 16 and at most the number of valid bits.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: u32) -> u32 {
        let value = (self.word >> 1 >> (63 - count)) as u32;
        self.consume(count);
        value
    }

    /// Takes the next bit.
    #[inline(always)]
    pub(crate) fn bit(&mut self) -> bool {
        if self.count == 0 {
            self.refill();
        }
        self.take(1) == 1
    }

    /// Checks that the reader is not far past its data. Call it before each block.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), Error> {
        // A refill may have loaded eight bytes that nobody consumed.
        if self.at > self.end + 8 { Err(CUT_SHORT) } else { Ok(()) }
    }

    /// Checks that all consumed bits were part of the data.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.at * 8 - self.count as usize > self.end * 8 { Err(CUT_SHORT) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuffing_and_markers_go() {
        let mut file = b"abcdefgh\xFF\0ij\xFF\0\xFF\xFF\xD0klmnopqrst\xFF\xD1\xFF\0".to_vec();
        file.extend([0xFF, 0xFF, 0xD9]);
        let mut entropy = Entropy::default();
        assert_eq!(entropy.read(Cpu::default(), &file, 0, true), Ok(file.len() - 2));
        assert_eq!(entropy.ends, [12, 22, 23]);
        assert_eq!(&entropy.bytes[..23], b"abcdefgh\xFFij\xFFklmnopqrst\xFF");
        assert_eq!(entropy.read(Cpu::default(), &file, 0, false), Ok(15));
        for len in 0..file.len() {
            assert_eq!(entropy.read(Cpu::Portable, &file[..len], 0, true), Err(CUT_SHORT));
        }
        file[16] = 0xD1;
        assert_eq!(entropy.read(Cpu::default(), &file, 0, true), Err(Error::Damaged("restart markers out of order")));
    }

    #[test]
    fn bits_come_in_order_and_their_end_is_noticed() {
        let file = [&(0..40).map(|i| i * 5 + 1).collect::<Vec<u8>>()[..], &[0xFF, 0xD9]].concat();
        let mut entropy = Entropy::default();
        entropy.read(Cpu::default(), &file, 0, false).unwrap();
        let mut bits = entropy.interval(0).unwrap();
        let mut at = 0;
        for count in [5, 3, 1, 11, 0, 7, 13, 0, 16, 2].into_iter().cycle().take(50) {
            bits.refill();
            let place = |bit: u32| u32::from(file[bit as usize / 8] >> (7 - bit % 8) & 1);
            assert_eq!(bits.take(count), (at..at + count).fold(0, |value, bit| value << 1 | place(bit)), "bit {at}");
            if at % 3 == 0 {
                // Go back and return to the same position.
                bits.give_back(count as usize);
                bits.refill();
                bits.take(count);
            }
            at += count;
        }
        assert_eq!((at, bits.finish()), (290, Ok(())));
        bits.refill();
        bits.take(16);
        bits.take(14);
        assert_eq!(bits.finish(), Ok(()));
        bits.refill();
        bits.take(1);
        assert_eq!(bits.finish(), Err(CUT_SHORT));
        assert_eq!(bits.check(), Ok(()));
        for _ in 0..8 {
            bits.refill();
            bits.take(16);
        }
        assert_eq!(bits.check(), Err(CUT_SHORT));
        assert!(entropy.interval(1).is_err());
    }
}
