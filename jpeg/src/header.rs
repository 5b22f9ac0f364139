//! The frame header (T.81, B.2.2), and other facts that a caller wants before it allocates memory.

use std::ops::Range;

use crate::error::Error;
use crate::markers::{self, Markers, u16_at};
use crate::{Region, Scale};

/// The properties of a file that precede its first scan. BlockSpec them allocates no memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// The coding of coefficients.
    pub coding: Coding,
    /// The meaning of the components.
    pub colour: Colour,
    /// The position of EXIF's TIFF structure in the file.
    pub exif: Option<Range<usize>>,
    components: [Component; 4],
    count: usize,
}

/// The coding of coefficients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// Whole blocks, baseline or extended.
    Sequential,
    /// Progressive: by bands of frequencies and of bits.
    Progressive,
}

/// The meaning of a file's components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// One component.
    Grey,
    /// Luma and two colour differences.
    YCbCr,
    /// Red, green and blue, without conversion.
    Rgb,
    /// Four inks, inverted, as Adobe writes them.
    Cmyk,
    /// Four inks, the first three of them as luma and differences.
    Ycck,
}

/// One component of a frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Component {
    /// The number that scans use for it.
    pub id: u8,
    /// Horizontal sampling factor.
    pub horizontal: usize,
    /// Vertical sampling factor.
    pub vertical: usize,
    /// The number of its quantization table.
    pub(crate) quantization: usize,
}

impl Header {
    /// Reads the markers before the first scan.
    pub fn read(file: &[u8]) -> Result<Self, Error> {
        let mut markers = Markers::new(file)?;
        let mut frame: Option<Self> = None;
        let (mut jfif, mut adobe, mut exif) = (false, None, None);
        loop {
            let marker = markers.next()?;
            let content = marker.content;
            match marker.code {
                0xC0..=0xCF if !matches!(marker.code, markers::DHT | markers::JPG | markers::DAC) => {
                    if frame.is_some() {
                        return Err(Error::Damaged("two frame headers"));
                    }
                    frame = Some(Self::frame(marker.code, content)?);
                }
                markers::APP0 => jfif |= content.len() >= 14 && content.starts_with(b"JFIF\0"),
                // Use the first EXIF segment, like Pillow.
                markers::APP1 if exif.is_none() && content.starts_with(b"Exif\0\0") => {
                    exif = Some(markers.at - content.len() + 6..markers.at);
                }
                markers::APP14 if content.len() >= 12 && content.starts_with(b"Adobe") => adobe = Some(content[11]),
                markers::SOS => break,
                markers::EOI => return Err(Error::Damaged("no image data")),
                _ => {}
            }
        }
        let mut header = frame.ok_or(Error::Damaged("no frame header"))?;
        header.colour = header.colour_by(jfif, adobe);
        header.exif = exif;
        Ok(header)
    }

    /// Returns the region that covers the whole image at a scale.
    pub fn scaled(&self, scale: Scale) -> Region {
        let [height, width] = [self.height, self.width].map(|side| side.div_ceil(scale.denominator()));
        Region { top: 0, left: 0, height, width }
    }

    /// Returns the frame's components.
    pub fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    fn frame(code: u8, content: &[u8]) -> Result<Self, Error> {
        let coding = match code {
            0xC0 | 0xC1 => Coding::Sequential,
            0xC2 => Coding::Progressive,
            0xC3 => return Err(Error::Unsupported("lossless coding")),
            0xC9..=0xCB => return Err(Error::Unsupported("arithmetic coding")),
            _ => return Err(Error::Unsupported("hierarchical coding")),
        };
        let short = Error::Damaged("a frame header with a wrong length");
        let [precision, _, _, _, _, count, rest @ ..] = content else { return Err(short) };
        let count = usize::from(*count);
        if rest.len() != 3 * count {
            return Err(short);
        }
        if *precision != 8 {
            return Err(Error::Unsupported("samples that are not 8 bits"));
        }
        if !matches!(count, 1 | 3 | 4) {
            return Err(Error::Unsupported("a number of components other than 1, 3 or 4"));
        }
        let side = |at| u16_at(content, at).map_or(0, usize::from);
        let (height, width) = (side(1), side(3));
        if height == 0 || width == 0 {
            // A height of 0 means that a DNL marker follows the first scan. libjpeg does not read it either.
            return Err(Error::Damaged("a width or height of 0"));
        }
        let mut components = [Component::default(); 4];
        for (component, bytes) in components.iter_mut().zip(rest.chunks_exact(3)) {
            let (horizontal, vertical) = (usize::from(bytes[1] >> 4), usize::from(bytes[1] & 15));
            if !(1..=4).contains(&horizontal) || !(1..=4).contains(&vertical) || bytes[2] > 3 {
                return Err(Error::Damaged("a sampling factor or table number out of range"));
            }
            *component = Component { id: bytes[0], horizontal, vertical, quantization: usize::from(bytes[2]) };
        }
        if count == 1 {
            // A single component has full size, whatever its factors.
            (components[0].horizontal, components[0].vertical) = (1, 1);
        }
        let used = &components[..count];
        let most = |factor: fn(&Component) -> usize| used.iter().map(factor).max().unwrap_or(1);
        let (most_h, most_v) = (most(|c| c.horizontal), most(|c| c.vertical));
        if used.iter().any(|c| most_h % c.horizontal != 0 || most_v % c.vertical != 0) {
            return Err(Error::Unsupported("sampling factors that do not divide each other"));
        }
        Ok(Self { width, height, coding, colour: Colour::Grey, exif: None, components, count })
    }

    /// Guesses the colour space like libjpeg's `default_decompress_parms`.
    fn colour_by(&self, jfif: bool, adobe: Option<u8>) -> Colour {
        match (self.count, adobe) {
            (1, _) => Colour::Grey,
            (4, None | Some(0)) => Colour::Cmyk,
            (4, _) => Colour::Ycck,
            (_, Some(0)) if !jfif => Colour::Rgb,
            (_, None) if !jfif && self.components().iter().map(|c| c.id).eq(*b"RGB") => Colour::Rgb,
            _ => Colour::YCbCr,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(code: u8, content: &[u8]) -> Vec<u8> {
        let mut file = vec![0xFF, 0xD8, 0xFF, code, 0, content.len() as u8 + 2];
        file.extend(content);
        file.extend([0xFF, 0xDA, 0, 2]);
        file
    }

    #[test]
    fn kinds_that_are_not_decoded_are_named() {
        let grey = [8, 0, 1, 0, 1, 1, 1, 0x11, 0];
        let check = |code, content: &[u8], expect: &str| {
            assert_eq!(Header::read(&frame(code, content)).unwrap_err().to_string(), expect);
        };
        assert!(Header::read(&frame(0xC1, &grey)).is_ok());
        check(0xC3, &grey, "unsupported JPEG: lossless coding");
        check(0xC9, &grey, "unsupported JPEG: arithmetic coding");
        check(0xC5, &grey, "unsupported JPEG: hierarchical coding");
        check(0xC1, &[12, 0, 1, 0, 1, 1, 1, 0x11, 0], "unsupported JPEG: samples that are not 8 bits");
        check(0xC0, &[8, 0, 0, 0, 1, 1, 1, 0x11, 0], "damaged JPEG: a width or height of 0");
        check(0xC0, &[8, 0, 1, 0, 1, 1, 1, 0x51, 0], "damaged JPEG: a sampling factor or table number out of range");
        check(
            0xC0,
            &[8, 0, 1, 0, 1, 2, 1, 0x11, 0, 2, 0x11, 0],
            "unsupported JPEG: a number of components other than 1, 3 or 4",
        );
        let thirds = [8, 0, 1, 0, 1, 3, 1, 0x31, 0, 2, 0x21, 0, 3, 0x11, 0];
        check(0xC0, &thirds, "unsupported JPEG: sampling factors that do not divide each other");
        check(0xC0, &grey[..8], "damaged JPEG: a frame header with a wrong length");
    }

    #[test]
    fn colours_are_guessed_as_libjpeg_does() {
        let components = |ids: [u8; 3]| [8, 0, 1, 0, 1, 3, ids[0], 0x11, 0, ids[1], 0x11, 0, ids[2], 0x11, 0];
        let jfif = [&[0xFF, 0xE0, 0, 16][..], b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"].concat();
        let adobe = |transform| [&[0xFF, 0xEE, 0, 14][..], b"Adobe\0\x64\0\0\0\0", &[transform]].concat();
        let colour = |ids, segments: &[u8]| {
            let mut file = frame(0xC0, &components(ids));
            file.splice(2..2, segments.iter().copied());
            Header::read(&file).unwrap().colour
        };
        assert_eq!(colour([1, 2, 3], &[]), Colour::YCbCr);
        assert_eq!(colour(*b"RGB", &[]), Colour::Rgb);
        assert_eq!(colour(*b"RGB", &jfif), Colour::YCbCr);
        assert_eq!(colour([1, 2, 3], &adobe(0)), Colour::Rgb);
        assert_eq!(colour(*b"RGB", &adobe(1)), Colour::YCbCr);
        assert_eq!(colour([1, 2, 3], &[jfif, adobe(0)].concat()), Colour::YCbCr);
    }
}
