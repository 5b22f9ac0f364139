//! The formats of image files, told from the first bytes.

/// The format of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ImageFormat {
    Jpeg,
    Png,
    WebP,
    Gif,
    Bmp,
    Tiff,
}

impl ImageFormat {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::WebP => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Tiff => "tiff",
        }
    }
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
        })
    }
}

/// The format of a file.
pub(super) fn format(file: &[u8]) -> Result<ImageFormat, String> {
    match file {
        [0xFF, 0xD8, ..] => Ok(ImageFormat::Jpeg),
        [0x89, b'P', b'N', b'G', 0x0D, 0x0A, 0x1A, 0x0A, ..] => Ok(ImageFormat::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Ok(ImageFormat::WebP),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Ok(ImageFormat::Gif),
        // Two bytes are a weak signature, so the next field must also match. It is always 0.
        [b'B', b'M', _, _, _, _, 0, 0, 0, 0, ..] => Ok(ImageFormat::Bmp),
        [b'I', b'I', 42, 0, ..] | [b'M', b'M', 0, 42, ..] => Ok(ImageFormat::Tiff),
        [] => Err("not an image of a known format (no bytes)".to_owned()),
        _ => {
            let start = file[..file.len().min(9)].escape_ascii();
            Err(format!("not an image of a known format (starts with \"{start}\")"))
        }
    }
}
