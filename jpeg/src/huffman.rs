//! Huffman tables (T.81, C and F.2.2.3) in which one probe decodes up to two coefficients.
//!
//! The bits of a value follow its code, and most codes are short. So the next eleven bits nearly always contain a whole
//! code, which gives the run of zeros and the number of the value's bits. More often than not they also contain the
//! next code and its value. A table entry holds all of this, so the chain from one probe to the next is a load and a
//! shift.

use crate::bits::Bits;
use crate::error::{BAD_CODE, Error};

/// Index bits of an AC table. It takes 16 KiB, so two tables and the block stay in the first-level cache.
pub(crate) const AC_BITS: u32 = 11;
/// Index bits of a DC table.
const DC_BITS: u32 = 9;
/// End of block, in place of a run. The loop over symbols adds it to an index, so the sum shows what ended the loop.
pub(crate) const END: usize = 128;
/// Undecided entry, in place of a run.
pub(crate) const SLOW: usize = 192;

/// A Huffman code as the file defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Code {
    /// Number of codes of each length from 1 to 16.
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
            // The code of all ones is reserved. libjpeg rejects it as well.
            if *count > 0 && next >= 2 << shorter {
                return Err(BAD_TABLE);
            }
        }
        Ok(Self { counts, symbols })
    }

    /// Returns whether all symbols are valid sizes of DC differences.
    pub(crate) fn fits_dc(&self) -> bool {
        let total: usize = self.counts.iter().map(|count| usize::from(*count)).sum();
        self.symbols[..total].iter().all(|symbol| *symbol <= 15)
    }

    /// Fills a table of length and symbol for each pattern of `bits` bits. The length is 0 where the code is longer.
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

const BAD_TABLE: Error = Error::Damaged("an invalid Huffman table");

/// A decoder for codes of any length, by comparison.
#[derive(Debug)]
struct LongCodes {
    code: Code,
    /// For each length, the first 16-bit pattern above all codes of that length.
    limits: [u32; 17],
    /// For each length, the number to add to a code to get the index of its symbol.
    places: [i32; 17],
}

impl LongCodes {
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

    /// Reads a symbol. At least 16 bits must be valid.
    fn read(&self, bits: &mut Bits<'_>) -> Result<u8, Error> {
        let pattern = (bits.word >> 48) as u32;
        let len = (1..=16).find(|len| pattern < self.limits[*len]).ok_or(BAD_CODE)?;
        bits.consume(len as u32);
        let place = (pattern >> (16 - len)) as i32 + self.places[len];
        Ok(self.code.symbols[place as usize & 255])
    }
}

/// A table for DC differences. The bytes of an entry are: total bits, bits of the code, bits of the value.
#[derive(Debug)]
pub(crate) struct DcTable {
    entries: Box<[u32; 1 << DC_BITS]>,
    long: LongCodes,
}

impl DcTable {
    fn new(code: &Code) -> Self {
        let mut short = [(0, 0); 1 << DC_BITS];
        code.short(DC_BITS, &mut short);
        let entry = |(len, size): (u8, u8)| u32::from(len + size) | u32::from(len) << 8 | u32::from(size) << 16;
        let entries = Box::new(short.map(|pair| if pair.0 == 0 { 0 } else { entry(pair) }));
        Self { entries, long: LongCodes::new(code.clone()) }
    }

    /// Reads a difference. At least 31 bits must be valid before; of 56 bits, 32 are valid afterwards.
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

pub(crate) type AcEntries = [u64; 1 << AC_BITS];

/// A table for AC coefficients. The bytes of an entry, from the lowest, are: total bits; distance to the first
/// coefficient, or `END` or `SLOW`; distance from the first to the second, or 0 for none, or `END`; bits of the first
/// code; bits of the first value; the first symbol; and in the upper two bytes the second value.
#[derive(Debug)]
pub(crate) struct AcTable {
    pub(crate) entries: Box<AcEntries>,
    long: LongCodes,
}

/// A decoded symbol of an AC table.
pub(crate) enum Symbol {
    /// End of block.
    End,
    /// Distance to a coefficient, and its value.
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
        Self { entries, long: LongCodes::new(code.clone()) }
    }

    fn entry(short: &[(u8, u8); 1 << AC_BITS], pattern: usize) -> u64 {
        let (len, symbol) = short[pattern];
        let (size, ahead) = (symbol & 15, ahead(symbol));
        // A value has at most ten bits, so two probes fit one refill. An entry that does not end the block has a value.
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

    /// Reads one symbol of any length. At least 32 bits must be valid.
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

    /// Reads a code without its value. At least 16 bits must be valid.
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

/// Returns the distance to a symbol's coefficient. A run without a value is 16 zeros; the last zero is its coefficient.
fn ahead(symbol: u8) -> usize {
    match symbol {
        0xF0 => 16,
        // Runs of blocks belong to progressive scans. Treat one as the end of the block, like libjpeg.
        _ if symbol & 15 == 0 => END,
        _ => usize::from(symbol >> 4) + 1,
    }
}

/// Decodes a value from the top `size` bits of the word (T.81, F.2.2.1). Without a leading one, the value is negative.
#[inline(always)]
pub(crate) fn extend(word: u64, size: u32) -> i32 {
    let negative = !((word as i64) >> 63);
    let bits = (((word ^ negative as u64) >> 1) >> ((63 - size) & 63)) as i64;
    ((bits ^ negative) - negative) as i32
}

/// Like `extend`, for at least one bit and in fewer steps. After a sign-extending shift, a value is off by 2^size or
/// 1 - 2^size.
#[inline(always)]
pub(crate) fn extend_some(word: u64, size: u32) -> i32 {
    let word = word as i64;
    let shifted = word >> (size.wrapping_neg() & 63);
    let power = -1_i64 << (size & 63);
    (shifted + ((word >> 63) ^ power) + 1) as i32
}

/// The tables of a file. The next file reuses them, since most files have the same tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dc: [TableSlot<DcTable>; 4],
    pub(crate) ac: [TableSlot<AcTable>; 4],
}

/// The table with a given number.
#[derive(Debug)]
pub(crate) struct TableSlot<T> {
    built: Option<(Code, T)>,
    /// Whether the current file defines this table.
    defined: bool,
}

impl<T> Default for TableSlot<T> {
    fn default() -> Self {
        Self { built: None, defined: false }
    }
}

impl<T> TableSlot<T> {
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
    /// Forgets the definitions of the previous file.
    pub(crate) fn forget(&mut self) {
        self.dc.iter_mut().for_each(|slot| slot.defined = false);
        self.ac.iter_mut().for_each(|slot| slot.defined = false);
    }

    /// Reads a segment of table definitions.
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

    /// Defines the tables of annex K where the file has none. Frames of Motion JPEG have none.
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
