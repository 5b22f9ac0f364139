//! A checker of Thrift's compact protocol, the encoding of Parquet's footers, indexes and page headers.
//!
//! The decoder of the crate `parquet` allocates memory for as many elements as a list claims, and reads each known
//! field as its own type, whatever type the file declares. So [`Walk`] reads the same bytes first, in one pass and
//! without memory of its own. It accepts only what both readers understand in the same way: known fields have their
//! type, no field occurs twice, and numbers, lengths and nesting are bounded by the bytes that are there.

/// Why bytes are not a valid struct.
pub(super) type Problem = String;

/// The most levels of structs and lists inside each other. Parquet's own structs need eight.
const DEPTH_MAX: usize = 32;

/// The longest encoding of a 64-bit number.
const VARINT_BYTES_MAX: usize = 10;

/// Types on the wire.
const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// The type of a field, as the decoder reads it.
#[derive(Debug)]
pub(super) enum Kind {
    /// A field that the decoder skips, of any type.
    Skipped,
    Bool,
    Byte,
    /// A number of 16, 32 or 64 bits, or an enum. All have the same encoding.
    Number,
    Double,
    Binary,
    Struct(&'static Struct),
    List(&'static Kind),
}

/// A struct of the format.
#[derive(Debug)]
pub(super) struct Struct {
    pub(super) name: &'static str,
    /// The fields with the ids 1, 2 and so on, with their names. The decoder skips all others.
    pub(super) fields: &'static [(&'static str, Kind)],
}

impl Struct {
    fn field(&self, id: i16) -> Option<&'static (&'static str, Kind)> {
        self.fields.get(usize::try_from(id).ok()?.checked_sub(1)?)
    }
}

impl Kind {
    fn fits(&self, wire: u8) -> bool {
        match self {
            Self::Skipped => true,
            Self::Bool => matches!(wire, TRUE | FALSE),
            Self::Byte => wire == BYTE,
            Self::Number => matches!(wire, I16 | I32 | I64),
            Self::Double => wire == DOUBLE,
            Self::Binary => wire == BINARY,
            Self::Struct(_) => wire == STRUCT,
            Self::List(_) => wire == LIST,
        }
    }
}

/// A cursor over the bytes of a struct.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    rest: &'a [u8],
    depth: usize,
    /// The struct and the field that are being read, for messages.
    place: Option<(&'static Struct, i16)>,
    /// The type on the wire of the field that is being read.
    wire: u8,
}

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, depth: 0, place: None, wire: STOP }
    }

    /// Names the field that a problem is about.
    pub(super) fn placed(&self, problem: &Problem) -> Problem {
        match self.place {
            Some((of, id)) => match of.field(id) {
                Some((name, _)) => format!("{}.{name}: {problem}", of.name),
                None => format!("{}.{id}: {problem}", of.name),
            },
            None => problem.clone(),
        }
    }

    /// The number of bytes that are not yet read.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Reads a struct.
    pub(super) fn structure(&mut self, of: &'static Struct) -> Result<(), Problem> {
        self.fields(of, |_, _| Ok(false))
    }

    /// Reads a struct. `own` is called with the id of each known field before its value. It may read the value, and
    /// then returns `true`.
    pub(super) fn fields(
        &mut self,
        of: &'static Struct,
        mut own: impl FnMut(&mut Self, i16) -> Result<bool, Problem>,
    ) -> Result<(), Problem> {
        self.enter()?;
        let (mut last, mut seen) = (0_i16, 0_u64);
        while let Some((id, wire)) = self.field(last)? {
            last = id;
            self.place = Some((of, id));
            let Some((_, kind)) = of.field(id) else {
                self.skip(wire)?;
                continue;
            };
            // Known ids are small.
            if seen & 1 << id != 0 {
                return Err("it occurs twice".to_owned());
            }
            seen |= 1 << id;
            if !kind.fits(wire) {
                return Err("it has the wrong type".to_owned());
            }
            self.wire = wire;
            if !own(self, id)? {
                self.value(kind, wire)?;
            }
        }
        self.place = None;
        self.depth -= 1;
        Ok(())
    }

    /// Reads the beginning of a list of structs or numbers, and returns the number of its elements.
    pub(super) fn list(&mut self, of: &Kind) -> Result<usize, Problem> {
        let (len, wire) = self.list_header()?;
        match len == 0 || of.fits(wire) {
            true => Ok(len),
            false => Err("its elements have the wrong type".to_owned()),
        }
    }

    /// Reads a number that has 32 bits.
    pub(super) fn i32(&mut self) -> Result<i32, Problem> {
        let number = self.number()?;
        i32::try_from(number).map_err(|_| format!("{number} is no 32-bit number"))
    }

    /// Reads a boolean, which is the value of a field of a struct.
    pub(super) fn bool(&self) -> bool {
        self.wire == TRUE
    }

    /// Reads a text or bytes, and returns their length.
    pub(super) fn binary(&mut self) -> Result<usize, Problem> {
        let len = self.varint()?;
        let len = usize::try_from(len).ok().filter(|len| *len <= self.rest.len());
        let len = len.ok_or_else(|| format!("a text is longer than the {} bytes after it", self.rest.len()))?;
        self.rest = &self.rest[len..];
        Ok(len)
    }

    fn value(&mut self, kind: &'static Kind, wire: u8) -> Result<(), Problem> {
        match kind {
            Kind::Struct(of) => self.structure(of),
            Kind::List(Kind::Bool) => self.flags(),
            Kind::List(of) => {
                self.enter()?;
                let wire = element(of);
                for _ in 0..self.list(of)? {
                    self.value(of, wire)?;
                }
                self.depth -= 1;
                Ok(())
            }
            _ => self.skip(wire),
        }
    }

    /// Reads a value of a type on the wire.
    fn skip(&mut self, wire: u8) -> Result<(), Problem> {
        match wire {
            TRUE | FALSE => Ok(()),
            BYTE => self.bytes(1),
            I16 | I32 | I64 => self.varint().map(drop),
            DOUBLE => self.bytes(8),
            BINARY => self.binary().map(drop),
            UUID => self.bytes(16),
            LIST | SET => {
                self.enter()?;
                let (len, wire) = self.list_header()?;
                for _ in 0..len {
                    self.skip(wire)?;
                }
                self.depth -= 1;
                Ok(())
            }
            MAP => {
                self.enter()?;
                let len = self.varint()?;
                if len > 0 {
                    let [types, ..] = *self.rest else { return Err(cut_short()) };
                    self.bytes(1)?;
                    let (key, value) = (types >> 4, types & 15);
                    let len = self.len(len, key)?;
                    self.len(len as u64, value)?;
                    for _ in 0..len {
                        self.skip(key)?;
                        self.skip(value)?;
                    }
                }
                self.depth -= 1;
                Ok(())
            }
            STRUCT => {
                self.enter()?;
                while let Some((_, wire)) = self.field(0)? {
                    self.skip(wire)?;
                }
                self.depth -= 1;
                Ok(())
            }
            _ => Err(format!("there is no type {wire}")),
        }
    }

    /// Reads the id and the type of the next field, unless the struct ends.
    #[inline]
    fn field(&mut self, last: i16) -> Result<Option<(i16, u8)>, Problem> {
        let [header, ref rest @ ..] = *self.rest else { return Err(cut_short()) };
        self.rest = rest;
        let wire = header & 15;
        if wire == STOP {
            return Ok(None);
        }
        let id = match header >> 4 {
            0 => i16::try_from(self.number()?).ok(),
            step => last.checked_add(i16::from(step)),
        };
        id.map(|id| Some((id, wire))).ok_or_else(|| "the number of a field has over 16 bits".to_owned())
    }

    fn list_header(&mut self) -> Result<(usize, u8), Problem> {
        let (len, wire) = self.claimed_list()?;
        Ok((self.len(len, wire)?, wire))
    }

    /// Reads a list of booleans, which take a byte each.
    fn flags(&mut self) -> Result<(), Problem> {
        let (len, wire) = self.claimed_list()?;
        match usize::try_from(len) {
            Ok(0) => Ok(()),
            Ok(len) if matches!(wire, TRUE | FALSE) => self.bytes(len),
            _ => Err("its elements have the wrong type".to_owned()),
        }
    }

    /// Reads how many elements a list claims, and their type on the wire.
    fn claimed_list(&mut self) -> Result<(u64, u8), Problem> {
        let [header, ..] = *self.rest else { return Err(cut_short()) };
        self.bytes(1)?;
        let len = match header >> 4 {
            15 => self.varint()?,
            len => u64::from(len),
        };
        Ok((len, header & 15))
    }

    /// Checks the number of elements of a type.
    fn len(&self, len: u64, wire: u8) -> Result<usize, Problem> {
        // The decoder skips unknown ones without reading a byte, so that any number of them fits into a short file.
        if len > 0 && matches!(wire, TRUE | FALSE) {
            return Err("a list of booleans, which is no part of the format".to_owned());
        }
        let fits = usize::try_from(len).ok().filter(|len| *len <= self.rest.len() && i32::try_from(*len).is_ok());
        fits.ok_or_else(|| format!("a list claims {len} elements in {} bytes", self.rest.len()))
    }

    fn enter(&mut self) -> Result<(), Problem> {
        self.depth += 1;
        match self.depth > DEPTH_MAX {
            true => Err(format!("structs and lists are nested over {DEPTH_MAX} levels deep")),
            false => Ok(()),
        }
    }

    /// Reads a signed number.
    fn number(&mut self) -> Result<i64, Problem> {
        let zigzag = self.varint()?;
        Ok((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Problem> {
        match *self.rest {
            [byte @ 0..0x80, ref rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Problem> {
        let mut value = 0;
        for (at, byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * at);
            if *byte < 0x80 {
                self.rest = &self.rest[at + 1..];
                return Ok(value);
            }
        }
        match self.rest.len() < VARINT_BYTES_MAX {
            true => Err(cut_short()),
            false => Err("a number has over 64 bits".to_owned()),
        }
    }

    fn bytes(&mut self, len: usize) -> Result<(), Problem> {
        self.rest = self.rest.get(len..).ok_or_else(cut_short)?;
        Ok(())
    }
}

/// The type on the wire of a list's elements that are neither structs nor lists.
fn element(kind: &Kind) -> u8 {
    match kind {
        Kind::Byte => BYTE,
        Kind::Double => DOUBLE,
        Kind::Binary => BINARY,
        _ => I64,
    }
}

fn cut_short() -> Problem {
    "it is cut short".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    static INNER: Struct = Struct { name: "Inner", fields: &[("name", Kind::Binary)] };
    static OUTER: Struct = Struct {
        name: "Outer",
        fields: &[("number", Kind::Number), ("list", Kind::List(&Kind::Struct(&INNER))), ("flag", Kind::Bool)],
    };

    fn check(bytes: &[u8], expect: &str) {
        let mut walk = Walk::new(bytes);
        let got = match walk.structure(&OUTER) {
            Ok(()) => format!("{} bytes left", walk.left()),
            Err(problem) => walk.placed(&problem),
        };
        assert_eq!(got, expect, "{bytes:?}");
    }

    #[test]
    fn known_and_unknown_fields_are_read() {
        check(&[0], "0 bytes left");
        // A number, a list of two structs with a text each, a flag, and one byte after the struct.
        check(&[0x15, 2, 0x19, 0x2C, 0x18, 1, b'a', 0, 0x18, 0, 0, 0x11, 0, 7], "1 bytes left");
        // Unknown: a map of one text to one number, a struct with a list of two doubles.
        let unknown = [&[0xFB, 1, 0x85, 1, b'k', 2, 0x1C, 0x19, 0x27][..], &[0; 16], &[0, 0]].concat();
        check(&unknown, "0 bytes left");
        // The id 40 in full.
        check(&[0x05, 80, 2, 0], "0 bytes left");
    }

    #[test]
    fn what_the_decoder_would_trust_is_refused() {
        check(&[], "it is cut short");
        check(&[0x15], "Outer.number: it is cut short");
        check(&[0x18, 0, 0], "Outer.number: it has the wrong type");
        check(&[0x15, 2, 0x05, 2, 2, 0], "Outer.number: it occurs twice");
        let long = &[0x29, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 7, 0];
        check(long, "Outer.list: a list claims 2147483647 elements in 1 bytes");
        check(&[0x29, 0x15, 2, 0], "Outer.list: its elements have the wrong type");
        check(&[0x29, 0x1C, 0x18, 9, 0, 0], "Inner.name: a text is longer than the 2 bytes after it");
        check(&[0x05, 0x80, 0x80, 8, 2, 0], "the number of a field has over 16 bits");
        check(&[&[0x15][..], &[0xFF; 10], &[0]].concat(), "Outer.number: a number has over 64 bits");
        let booleans = &[0x49, 0xF1, 0xFF, 0xFF, 3, 0];
        check(booleans, "Outer.4: a list of booleans, which is no part of the format");
        check(&[0x4E, 0], "Outer.4: there is no type 14");
        let deep = "Outer.4: structs and lists are nested over 32 levels deep";
        check(&[&[0x4C][..], &[0x1C; 100]].concat(), deep);
        check(&[&[0x49][..], &[0x19; 100]].concat(), deep);
    }
}
