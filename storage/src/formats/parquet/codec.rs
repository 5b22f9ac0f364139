//! Decompresses pages into a bounded memory.
//!
//! The decoder of the crate `parquet` gives a page the size that its header claims, and compares it with the real size
//! afterwards. Some codecs have no bound of their own: a page of some kilobytes can become gigabytes.

use std::borrow::Cow;
use std::io::{Read, Take, copy, sink};

use parquet::basic::Compression;

use super::thrift::Problem;

/// The most bytes that a byte of the codec can become: 258 bytes take two bits of GZIP, and one byte adds 255 to a
/// length in LZ4.
const GZIP_RATIO_MAX: u64 = 1032;
const LZ4_RATIO_MAX: u64 = 255;

/// The first bytes of the frames of LZ4, and of its legacy frames.
const LZ4_FRAMES: [[u8; 4]; 2] = [0x184D_2204_u32.to_le_bytes(), 0x184C_2102_u32.to_le_bytes()];
/// The sizes before a frame of Hadoop's LZ4: decompressed, and compressed.
const HADOOP_SIZES: usize = 2 * size_of::<u32>();

/// The first seven bits of a Brotli stream with a window of up to a gigabyte, which is no part of the standard.
const BROTLI_LARGE_WINDOW: u8 = 0x11;

/// The bytes of Brotli's input buffer.
const BROTLI_BUFFER_BYTES: usize = 4096;

/// Checks that a page has no more bytes than the `size` of its header. It is decompressed only if it could take more
/// than `bytes_max`.
pub(super) fn check_size(codec: Compression, page: &[u8], size: u64, bytes_max: u64) -> Result<(), Problem> {
    let ratio = match codec {
        Compression::GZIP(_) => GZIP_RATIO_MAX,
        Compression::LZ4 if LZ4_FRAMES.iter().any(|magic| page.starts_with(magic)) => LZ4_RATIO_MAX,
        Compression::BROTLI(_) if page.first().is_some_and(|first| first & 0x7F == BROTLI_LARGE_WINDOW) => {
            return Err("a page of Brotli with a large window, which is no part of the format".to_owned());
        }
        Compression::BROTLI(_) => u64::MAX,
        // Their decoders write into a buffer of the claimed size.
        _ => return Ok(()),
    };
    if (page.len() as u64).saturating_mul(ratio) <= bytes_max {
        return Ok(());
    }
    // A page that cannot be decompressed is an error of the decoder.
    match stream(codec, page, size.saturating_add(1)).map(|mut bytes| copy(&mut bytes, &mut sink())) {
        Some(Ok(real)) if real > size => Err(format!("a page decompresses to over the {size} bytes that it claims")),
        _ => Ok(()),
    }
}

/// The content of a page of `size` bytes. `None` if it has another size or is damaged, which the decoder refuses.
pub(super) fn decompressed(codec: Compression, page: &[u8], size: u64) -> Option<Cow<'_, [u8]>> {
    let len = usize::try_from(size).ok()?;
    let whole = |write: &dyn Fn(&mut [u8]) -> Option<usize>| {
        let mut content = vec![0; len];
        (write(&mut content)? == len).then_some(Cow::Owned(content))
    };
    match codec {
        Compression::UNCOMPRESSED => (page.len() == len).then_some(Cow::Borrowed(page)),
        Compression::SNAPPY => whole(&|to| snap::raw::Decoder::new().decompress(page, to).ok()),
        Compression::LZ4_RAW => whole(&|to| lz4_flex::block::decompress_into(page, to).ok()),
        Compression::ZSTD(_) => whole(&|to| zstd::bulk::decompress_to_buffer(page, to).ok()),
        Compression::LZ4 => whole(&|to| hadoop_lz4(page, to))
            .or_else(|| streamed(codec, page, size))
            .or_else(|| decompressed(Compression::LZ4_RAW, page, size)),
        _ => streamed(codec, page, size),
    }
}

fn streamed(codec: Compression, page: &[u8], size: u64) -> Option<Cow<'_, [u8]>> {
    let mut content = Vec::new();
    stream(codec, page, size.checked_add(1)?)?.read_to_end(&mut content).ok()?;
    (content.len() as u64 == size).then_some(Cow::Owned(content))
}

/// The first bytes of a page.
fn stream(codec: Compression, page: &[u8], bytes_max: u64) -> Option<Take<Box<dyn Read + '_>>> {
    let stream: Box<dyn Read> = match codec {
        Compression::GZIP(_) => Box::new(flate2::read::MultiGzDecoder::new(page)),
        Compression::BROTLI(_) => Box::new(brotli::Decompressor::new(page, BROTLI_BUFFER_BYTES)),
        Compression::LZ4 => Box::new(lz4_flex::frame::FrameDecoder::new(page)),
        _ => return None,
    };
    Some(stream.take(bytes_max))
}

/// Decompresses frames of Hadoop's LZ4, and returns the number of bytes.
fn hadoop_lz4(mut page: &[u8], content: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    while let Some((sizes, rest)) = page.split_first_chunk::<HADOOP_SIZES>() {
        let [decoded, encoded] =
            [&sizes[..4], &sizes[4..]].map(|size| size.iter().fold(0, |n, b| n << 8 | usize::from(*b)));
        let (frame, rest) = rest.split_at_checked(encoded)?;
        let written = lz4_flex::block::decompress_into(frame, content.get_mut(at..)?).ok()?;
        at += (written == decoded).then_some(written)?;
        page = rest;
    }
    page.is_empty().then_some(at)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        writer.write_all(content).unwrap();
        writer.finish().unwrap()
    }

    fn brotli(content: &[u8]) -> Vec<u8> {
        let mut writer = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
        writer.write_all(content).unwrap();
        writer.into_inner()
    }

    fn lz4_frame(content: &[u8]) -> Vec<u8> {
        let mut writer = lz4_flex::frame::FrameEncoder::new(Vec::new());
        writer.write_all(content).unwrap();
        writer.finish().unwrap()
    }

    fn hadoop(content: &[u8]) -> Vec<u8> {
        let frame = |content: &[u8]| {
            let encoded = lz4_flex::block::compress(content);
            [&(content.len() as u32).to_be_bytes()[..], &(encoded.len() as u32).to_be_bytes(), &encoded].concat()
        };
        let (first, second) = content.split_at(content.len() / 3);
        [frame(first), frame(second)].concat()
    }

    #[test]
    fn every_codec_gives_back_a_page_of_the_claimed_size() {
        let content: Vec<u8> = (0..3000_u32).map(|n| ((n * n) >> 7) as u8).collect();
        let codec = |codec, page| (codec, page);
        let pages = [
            codec(Compression::UNCOMPRESSED, content.clone()),
            codec(Compression::SNAPPY, snap::raw::Encoder::new().compress_vec(&content).unwrap()),
            codec(Compression::GZIP(Default::default()), gzip(&content)),
            codec(Compression::BROTLI(Default::default()), brotli(&content)),
            codec(Compression::ZSTD(Default::default()), zstd::bulk::compress(&content, 1).unwrap()),
            codec(Compression::LZ4_RAW, lz4_flex::block::compress(&content)),
            codec(Compression::LZ4, hadoop(&content)),
            codec(Compression::LZ4, lz4_frame(&content)),
            codec(Compression::LZ4, lz4_flex::block::compress(&content)),
        ];
        for (codec, page) in pages {
            assert_eq!(decompressed(codec, &page, 3000).as_deref(), Some(&content[..]), "{codec}");
            assert_eq!(check_size(codec, &page, 3000, 0), Ok(()), "{codec}");
            if codec != Compression::UNCOMPRESSED {
                assert_eq!(decompressed(codec, &page, 2999), None, "{codec}");
                assert_eq!(decompressed(codec, &page, 3001), None, "{codec}");
            }
        }
    }

    #[test]
    fn a_page_that_becomes_larger_than_it_claims_is_found() {
        let zeros = vec![0; 1 << 20];
        let pages = [
            (Compression::GZIP(Default::default()), [gzip(&[1]), gzip(&zeros)].concat()),
            (Compression::BROTLI(Default::default()), brotli(&zeros)),
            (Compression::LZ4, lz4_frame(&zeros)),
        ];
        for (codec, page) in pages {
            let expect = Err("a page decompresses to over the 100 bytes that it claims".to_owned());
            assert_eq!(check_size(codec, &page, 100, 1000), expect, "{codec}");
            assert!(decompressed(codec, &page, 100).is_none());
        }
        let large = check_size(Compression::BROTLI(Default::default()), &[0x11, 30], 100, 1 << 30);
        assert_eq!(large.unwrap_err(), "a page of Brotli with a large window, which is no part of the format");
    }
}
