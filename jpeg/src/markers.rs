//! Marker segments (T.81, annex B): the parts of a file between its entropy-coded data.

use crate::error::{CUT_SHORT, Error};

pub(crate) const DHT: u8 = 0xC4;
pub(crate) const JPG: u8 = 0xC8;
pub(crate) const DAC: u8 = 0xCC;
pub(crate) const RST0: u8 = 0xD0;
pub(crate) const RST7: u8 = 0xD7;
pub(crate) const SOI: u8 = 0xD8;
pub(crate) const EOI: u8 = 0xD9;
pub(crate) const SOS: u8 = 0xDA;
pub(crate) const DQT: u8 = 0xDB;
pub(crate) const DRI: u8 = 0xDD;
pub(crate) const APP0: u8 = 0xE0;
pub(crate) const APP1: u8 = 0xE1;
pub(crate) const APP14: u8 = 0xEE;
const TEM: u8 = 0x01;

/// A marker and the content of its segment. A marker without a segment has empty content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marker<'a> {
    pub(crate) code: u8,
    pub(crate) content: &'a [u8],
}

/// A cursor over the markers of a file from a given byte.
#[derive(Debug)]
pub(crate) struct Markers<'a> {
    file: &'a [u8],
    /// The first unread byte.
    pub(crate) at: usize,
}

impl<'a> Markers<'a> {
    /// Starts at the first marker of a file.
    pub(crate) fn new(file: &'a [u8]) -> Result<Self, Error> {
        match file {
            [0xFF, SOI, ..] => Ok(Self { file, at: 2 }),
            [] | [0xFF] => Err(CUT_SHORT),
            _ => Err(Error::Damaged("no JPEG marker at the start")),
        }
    }

    /// Returns the next marker. Skips bytes between segments, like libjpeg.
    pub(crate) fn next(&mut self) -> Result<Marker<'a>, Error> {
        loop {
            let rest = self.file.get(self.at..).ok_or(CUT_SHORT)?;
            let start = rest.iter().position(|byte| *byte == 0xFF).ok_or(CUT_SHORT)?;
            let fill = rest[start..].iter().position(|byte| *byte != 0xFF).ok_or(CUT_SHORT)?;
            let code = rest[start + fill];
            self.at += start + fill + 1;
            match code {
                0x00 => {}
                TEM | RST0..=EOI => return Ok(Marker { code, content: &[] }),
                _ => return Ok(Marker { code, content: self.content()? }),
            }
        }
    }

    fn content(&mut self) -> Result<&'a [u8], Error> {
        let rest = &self.file[self.at..];
        let length = usize::from(u16_at(rest, 0).ok_or(CUT_SHORT)?);
        if length < 2 {
            return Err(Error::Damaged("a segment is shorter than its length field"));
        }
        let content = rest.get(2..length).ok_or(CUT_SHORT)?;
        self.at += length;
        Ok(content)
    }
}

/// Reads a big-endian 16-bit number.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_behind_fill_bytes_and_foreign_bytes() {
        let file = [0xFF, 0xD8, 7, 0xFF, 0, 0xFF, 0xFF, 0xE1, 0, 4, 0xFF, 0xD9, 0xFF, 0xDA, 0, 2, 0xFF, 0xD9];
        let mut markers = Markers::new(&file).unwrap();
        let first = markers.next().unwrap();
        assert_eq!((first.code, first.content), (APP1, [0xFF, 0xD9].as_slice()));
        assert_eq!(markers.next().unwrap().code, SOS);
        assert_eq!(markers.next().unwrap().code, EOI);
        assert_eq!(markers.next().unwrap_err(), CUT_SHORT);
    }
}
