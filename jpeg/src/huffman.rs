//! Huffman tables (T.81, C and F.2.2.3), laid out so that one probe decodes up to two coefficients.
//!
//! A code is followed by the bits of its value, and most codes are short. The next eleven bits therefore nearly always
//! tell a whole code, its run of zeros and how many bits its value has; and more often than not also the next code
//! with its value. An entry holds all that, so that the chain from one probe to the next is a load and a shift.

use crate::bits::Bits;
use crate::error::{BAD_CODE, Error};

/// Bits by which a table of AC codes is probed: 16 KiB, so that two tables and the block stay in the first cache.
pub(crate) const AC_BITS: u32 = 11;
/// Bits by which a table of DC codes is probed.
const DC_BITS: u32 = 9;
/// In place of a run: the block ends. Added to a place in a block, these tell what ended the loop over its symbols.
pub(crate) const END: usize = 128;
/// In place of a run: the entry does not tell.
pub(crate) const SLOW: usize = 192;

/// A code as a file defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Code {
    /// How many codes there are of each length from 1 to 16.
    counts: [u8; 16],
    symbols: [u8; 256],
}

impl Code {
    pub(crate) fn new(counts: [u8; 16], values: &[u8]) -> Result<Self, Error> {
        let mut symbols = [0; 256];
        symbols.get_mut(..values.len()).ok_or(BAD_TABLE)?.copy_from_slice(values);
        let mut next = 0_u32;
        for (shorter, count) in counts.iter().enumerate() {
            next = next * 2 + u32::from(*count);
            // The code of all ones is reserved; libjpeg refuses it as well.
            if *count > 0 && next >= 2 << shorter {
                return Err(BAD_TABLE);
            }
        }
        Ok(Self { counts, symbols })
    }

    /// Whether all symbols may be sizes of differences.
    pub(crate) fn fits_dc(&self) -> bool {
        let total: usize = self.counts.iter().map(|count| usize::from(*count)).sum();
        self.symbols[..total].iter().all(|symbol| *symbol <= 15)
    }

    /// Length and symbol for each pattern of so many bits; length 0 where the code is longer.
    fn short(&self, bits: u32, out: &mut [(u8, u8)]) {
        out.fill((0, 0));
        let (mut at, mut symbol) = (0, 0);
        for len in 1..=bits {
            let patterns = 1 << (bits - len);
            for _ in 0..self.counts[len as usize - 1] {
                out[at..at + patterns].fill((len as u8, self.symbols[symbol]));
                at += patterns;
                symbol += 1;
            }
        }
    }
}

const BAD_TABLE: Error = Error::Damaged("a Huffman table that is no code");

/// Codes of any length, found by comparing.
#[derive(Debug)]
struct Long {
    code: Code,
    /// The first pattern of 16 bits above all codes of a length.
    limits: [u32; 17],
    /// What to add to a code of a length to get the place of its symbol.
    places: [i32; 17],
}

impl Long {
    fn new(code: Code) -> Self {
        let (mut limits, mut places) = ([0; 17], [0; 17]);
        let (mut next, mut place) = (0_u32, 0);
        for len in 1..=16 {
            let count = u32::from(code.counts[len - 1]);
            places[len] = place - next as i32;
            next += count;
            place += count as i32;
            limits[len] = next << (16 - len);
            next *= 2;
        }
        Self { code, limits, places }
    }

    /// The symbol at the start of the bits, of which 16 must count.
    fn read(&self, bits: &mut Bits<'_>) -> Result<u8, Error> {
        let pattern = (bits.word >> 48) as u32;
        let len = (1..=16).find(|len| pattern < self.limits[*len]).ok_or(BAD_CODE)?;
        bits.consume(len as u32);
        let place = (pattern >> (16 - len)) as i32 + self.places[len];
        Ok(self.code.symbols[place as usize & 255])
    }
}

/// A table for DC differences. An entry: bits in all, bits of the code, bits of the value, a byte each.
#[derive(Debug)]
pub(crate) struct DcTable {
    entries: Box<[u32; 1 << DC_BITS]>,
    long: Long,
}

impl DcTable {
    fn new(code: &Code) -> Self {
        let mut short = [(0, 0); 1 << DC_BITS];
        code.short(DC_BITS, &mut short);
        let entry = |(len, size): (u8, u8)| u32::from(len + size) | u32::from(len) << 8 | u32::from(size) << 16;
        let entries = Box::new(short.map(|pair| if pair.0 == 0 { 0 } else { entry(pair) }));
        Self { entries, long: Long::new(code.clone()) }
    }

    /// A difference. At least 31 bits must count before, and 32 of 56 do afterwards.
    #[inline(always)]
    pub(crate) fn read(&self, bits: &mut Bits<'_>) -> Result<i32, Error> {
        let entry = self.entries[(bits.word >> (64 - DC_BITS)) as usize];
        if entry == 0 {
            let (after, difference) = self.read_long(*bits)?;
            *bits = after;
            return Ok(difference);
        }
        let value = extend(bits.word << (entry >> 8 & 63), entry >> 16);
        bits.consume(entry);
        Ok(value)
    }

    #[cold]
    #[inline(never)]
    fn read_long<'a>(&self, mut bits: Bits<'a>) -> Result<(Bits<'a>, i32), Error> {
        let size = u32::from(self.long.read(&mut bits)?);
        let value = extend(bits.word, size);
        bits.consume(size);
        bits.refill();
        Ok((bits, value))
    }
}

pub(crate) type Entries = [u64; 1 << AC_BITS];

/// A table for AC coefficients. An entry from its lowest byte: bits in all; how far the first coefficient lies ahead, or
/// `END` or `SLOW`; how far the second lies ahead of that, 0 for none, or `END`; bits of the first code; bits of
/// the first value; the first symbol; and in the upper two bytes the second value.
#[derive(Debug)]
pub(crate) struct AcTable {
    pub(crate) entries: Box<Entries>,
    long: Long,
}

/// A symbol of an AC table.
pub(crate) enum Symbol {
    /// The block ends.
    End,
    /// A value so far ahead.
    Value(usize, i32),
}

impl AcTable {
    fn new(code: &Code) -> Self {
        let mut short = [(0, 0); 1 << AC_BITS];
        code.short(AC_BITS, &mut short);
        let mut entries = Box::new([0; 1 << AC_BITS]);
        for (pattern, entry) in entries.iter_mut().enumerate() {
            *entry = Self::entry(&short, pattern);
        }
        Self { entries, long: Long::new(code.clone()) }
    }

    fn entry(short: &[(u8, u8); 1 << AC_BITS], pattern: usize) -> u64 {
        let (len, symbol) = short[pattern];
        let (size, ahead) = (symbol & 15, ahead(symbol));
        // Ten bits for the value at most, so that two probes fit one refill; and one bit where there is no end.
        if len == 0 || size > 10 || (size == 0 && ahead != END) {
            return (SLOW as u64) << 8;
        }
        let first = u32::from(len + size);
        let entry = u64::from(first) | (ahead as u64) << 8 | u64::from(len) << 24 | u64::from(size) << 32;
        let entry = entry | u64::from(symbol) << 40;
        if ahead == END || first >= AC_BITS {
            return entry;
        }
        let rest = (pattern << first) % (1 << AC_BITS);
        let (len, symbol) = short[rest];
        let size = symbol & 15;
        let second = u32::from(len + size);
        if len == 0 || first + second > AC_BITS {
            return entry;
        }
        let value = extend((rest as u64) << (64 - AC_BITS) << len, u32::from(size)) as i16;
        (entry + u64::from(second)) | ((self::ahead(symbol) as u64) << 16) | (u64::from(value as u16) << 48)
    }

    /// Reads one symbol, however long. At least 32 bits must count.
    pub(crate) fn read(&self, bits: &mut Bits<'_>) -> Result<Symbol, Error> {
        let symbol = self.long.read(bits)?;
        let size = u32::from(symbol & 15);
        if size == 0 && symbol != 0xF0 {
            return Ok(Symbol::End);
        }
        let value = extend(bits.word, size);
        bits.consume(size);
        Ok(Symbol::Value(ahead(symbol), value))
    }

    /// Reads a code alone. At least 16 bits must count.
    #[inline]
    pub(crate) fn symbol(&self, bits: &mut Bits<'_>) -> Result<u8, Error> {
        let entry = self.entries[(bits.word >> (64 - AC_BITS)) as usize];
        let len = (entry >> 24) as u32 & 255;
        if len == 0 {
            return self.long.read(bits);
        }
        bits.consume(len);
        Ok((entry >> 40) as u8)
    }
}

/// How far ahead a symbol's coefficient lies. A run without a value is 16 zeros, the last of which stands for it.
fn ahead(symbol: u8) -> usize {
    match symbol {
        0xF0 => 16,
        // Runs of blocks belong to progressive scans; like libjpeg, take one as the end of the block.
        _ if symbol & 15 == 0 => END,
        _ => usize::from(symbol >> 4) + 1,
    }
}

/// The value of which `size` bits are on top of the word (T.81, F.2.2.1): without a leading one it is negative.
#[inline(always)]
pub(crate) fn extend(word: u64, size: u32) -> i32 {
    let negative = !((word as i64) >> 63);
    let bits = (((word ^ negative as u64) >> 1) >> ((63 - size) & 63)) as i64;
    ((bits ^ negative) - negative) as i32
}

/// As `extend`, of one bit at least, in fewer steps: shifted down with its sign, a value is wrong by 2^size or
/// 1 - 2^size.
#[inline(always)]
pub(crate) fn extend_some(word: u64, size: u32) -> i32 {
    let word = word as i64;
    let shifted = word >> (size.wrapping_neg() & 63);
    let power = -1_i64 << (size & 63);
    (shifted + ((word >> 63) ^ power) + 1) as i32
}

/// The tables of a file. They are kept from one file to the next, since most files have the same.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dc: [Slot<DcTable>; 4],
    pub(crate) ac: [Slot<AcTable>; 4],
}

/// The table under one number.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    built: Option<(Code, T)>,
    /// Whether the current file defines it.
    defined: bool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { built: None, defined: false }
    }
}

impl<T> Slot<T> {
    fn define(&mut self, code: Code, build: impl FnOnce(&Code) -> T) {
        self.defined = true;
        if self.built.as_ref().is_none_or(|(built, _)| *built != code) {
            let table = build(&code);
            self.built = Some((code, table));
        }
    }

    pub(crate) fn get(&self) -> Result<&T, Error> {
        match &self.built {
            Some((_, table)) if self.defined => Ok(table),
            _ => Err(Error::Damaged("a scan without its Huffman table")),
        }
    }
}

impl Tables {
    /// Forgets what the last file defined.
    pub(crate) fn forget(&mut self) {
        self.dc.iter_mut().for_each(|slot| slot.defined = false);
        self.ac.iter_mut().for_each(|slot| slot.defined = false);
    }

    /// Reads a segment of definitions.
    pub(crate) fn define(&mut self, mut content: &[u8]) -> Result<(), Error> {
        while let [kind, rest @ ..] = content {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or(BAD_TABLE)?;
            let total = counts.iter().map(|count| usize::from(*count)).sum();
            let values = rest.get(..total).ok_or(BAD_TABLE)?;
            content = &rest[total..];
            let code = Code::new(*counts, values)?;
            match kind {
                0..=3 if code.fits_dc() => self.dc[usize::from(*kind)].define(code, DcTable::new),
                0x10..=0x13 => self.ac[usize::from(*kind & 15)].define(code, AcTable::new),
                _ => return Err(BAD_TABLE),
            }
        }
        Ok(())
    }

    /// Defines the tables of annex K where the file has none: frames of Motion JPEG come without.
    pub(crate) fn complete(&mut self) -> Result<(), Error> {
        use crate::standard::{AC, DC};
        for (number, (dc, ac)) in DC.iter().zip(&AC).enumerate() {
            if !self.dc[number].defined {
                self.dc[number].define(Code::new(dc.0, dc.1)?, DcTable::new);
            }
            if !self.ac[number].defined {
                self.ac[number].define(Code::new(ac.0, ac.1)?, AcTable::new);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_extended() {
        for size in 1..=15_u32 {
            for bits in [0, 1, (1 << (size - 1)) - 1, 1 << (size - 1), (1 << size) - 1] {
                let expect = if bits >> (size - 1) == 1 { bits } else { bits - (1 << size) + 1 };
                let word = (bits as u64) << (64 - size) | 0x5555_5555_5555_5555 >> size;
                assert_eq!((extend(word, size), extend_some(word, size)), (expect, expect), "{bits} of {size}");
            }
        }
        assert_eq!((extend(0, 0), extend(u64::MAX, 0)), (0, 0));
    }

    #[test]
    fn codes_that_overflow_are_refused() {
        let counts = |short: &[u8]| std::array::from_fn(|at| short.get(at).copied().unwrap_or(0));
        assert!(Code::new(counts(&[1, 1]), &[1, 2]).is_ok());
        assert!(Code::new(counts(&[2]), &[1, 2]).is_err());
        assert!(Code::new(counts(&[1, 2]), &[1, 2, 3]).is_err());
        assert!(Code::new(counts(&[1, 1, 2]), &[1, 2, 3, 4]).is_err());
        assert!(Tables::default().define(&[0; 16]).is_err());
        assert!(Tables::default().define(&[&[0x20][..], &[0; 16]].concat()).is_err());
    }
}
