//! A stream of bytes, compressed in pieces of a fixed size, so that the result does not depend on how the bytes came.

use std::io::Write;

use bytes::Bytes;
use flate2::write::GzEncoder;
use zstd::stream::write::Encoder as ZstdEncoder;

use crate::formats::{FormatOption, FormatOptionKind};
use crate::{Error, Result};

/// Bytes that are compressed at a time.
const PIECE_BYTES: usize = 1 << 20;
/// zstd's default. Others compress further, at several times the CPU.
pub(super) const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;

/// The name of the option that chooses the compression.
pub(super) const COMPRESSION: &str = "compression";

/// The option that chooses the compression of a format.
pub(super) const fn compression(of: &'static [&'static str], default: &'static str) -> FormatOption {
    FormatOption {
        name: COMPRESSION,
        kind: FormatOptionKind::OneOf(of),
        default,
        docs: "how the data are compressed",
        only_columns: false,
    }
}

/// Compresses a stream of bytes.
pub(super) struct Compressed {
    codec: Codec,
    plain: Vec<u8>,
    plain_bytes: u64,
}

enum Codec {
    None,
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(ZstdEncoder<'static, Vec<u8>>),
    Done(Vec<u8>),
}

impl Compressed {
    /// A stream with the compression `none`, `gzip` or `zstd`. If it is known how many bytes will come, the compressed
    /// stream says so, which some readers need.
    pub(super) fn new(compression: &str, plain_bytes: Option<u64>) -> Result<Self> {
        let codec = match compression {
            // Its header has neither a time nor a name.
            "gzip" => Codec::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL))),
            "zstd" => {
                let mut encoder = ZstdEncoder::new(Vec::new(), ZSTD_LEVEL).map_err(failed)?;
                encoder.set_pledged_src_size(plain_bytes).map_err(failed)?;
                Codec::Zstd(encoder)
            }
            _ => Codec::None,
        };
        Ok(Self { codec, plain: Vec::new(), plain_bytes: 0 })
    }

    /// The bytes before compression that are not yet compressed, for appending to. Call [`advance`](Self::advance)
    /// afterwards.
    pub(super) fn plain(&mut self) -> &mut Vec<u8> {
        &mut self.plain
    }

    /// Compresses whole pieces.
    pub(super) fn advance(&mut self) -> Result<()> {
        if matches!(self.codec, Codec::None) {
            return Ok(());
        }
        let whole = self.plain.len() / PIECE_BYTES * PIECE_BYTES;
        for piece in self.plain[..whole].chunks(PIECE_BYTES) {
            self.codec.write(piece)?;
        }
        self.plain_bytes += whole as u64;
        self.plain.drain(..whole);
        Ok(())
    }

    /// Compresses the rest.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.advance()?;
        self.codec.write(&self.plain)?;
        let rest = match std::mem::replace(&mut self.codec, Codec::Done(Vec::new())) {
            Codec::None => {
                self.codec = Codec::None;
                return Ok(());
            }
            Codec::Gzip(encoder) => encoder.finish().map_err(failed)?,
            Codec::Zstd(encoder) => encoder.finish().map_err(failed)?,
            Codec::Done(rest) => rest,
        };
        self.plain_bytes += self.plain.len() as u64;
        self.plain.clear();
        self.codec = Codec::Done(rest);
        Ok(())
    }

    /// Compressed bytes that were not taken yet.
    pub(super) fn take(&mut self) -> Option<Bytes> {
        let ready = match &mut self.codec {
            Codec::None => {
                self.plain_bytes += self.plain.len() as u64;
                &mut self.plain
            }
            Codec::Gzip(encoder) => encoder.get_mut(),
            Codec::Zstd(encoder) => encoder.get_mut(),
            Codec::Done(rest) => rest,
        };
        (!ready.is_empty()).then(|| Bytes::from(std::mem::take(ready)))
    }

    /// Bytes before compression so far.
    pub(super) fn plain_bytes(&self) -> u64 {
        self.plain_bytes + self.plain.len() as u64
    }
}

impl Codec {
    fn write(&mut self, piece: &[u8]) -> Result<()> {
        match self {
            Self::Gzip(encoder) => encoder.write_all(piece).map_err(failed),
            Self::Zstd(encoder) => encoder.write_all(piece).map_err(failed),
            Self::None | Self::Done(_) => Ok(()),
        }
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::internal(format!("cannot compress in memory: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream of `bytes` that came in parts of `part` bytes.
    fn stream(compression: &str, bytes: &[u8], part: usize) -> Vec<u8> {
        let mut stream = Compressed::new(compression, Some(bytes.len() as u64)).unwrap();
        let mut all = Vec::new();
        for part in bytes.chunks(part) {
            stream.plain().extend_from_slice(part);
            stream.advance().unwrap();
            all.extend(stream.take().unwrap_or_default());
        }
        stream.finish().unwrap();
        all.extend(stream.take().unwrap_or_default());
        assert_eq!(stream.plain_bytes(), bytes.len() as u64);
        all
    }

    #[test]
    fn parts_do_not_show_and_the_bytes_come_back() {
        let bytes: Vec<u8> = (0..2_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 28) as u8).collect();
        for compression in ["none", "gzip", "zstd"] {
            let whole = stream(compression, &bytes, bytes.len());
            for part in [999_999, 4096 * 3, 1 << 20] {
                assert_eq!(stream(compression, &bytes, part), whole, "{compression} in parts of {part}");
            }
            let back = match compression {
                "gzip" => std::io::read_to_string(flate2::read::GzDecoder::new(&whole[..])).unwrap().into_bytes(),
                "zstd" => zstd::bulk::decompress(&whole, bytes.len()).unwrap(),
                _ => whole,
            };
            assert!(back == bytes, "{compression}");
        }
    }
}
