//! Digests of files, such that each block of a file is verified by itself.
//!
//! A file is cut into blocks of 16 KiB, and each block has a digest of 16 bytes. The digest of the file is a hash of
//! its length and of the digests of its blocks. So the short digest of a file vouches for the list of its blocks, which
//! is kept beside the file, and the list for any range of bytes: 1 MiB of digests for 1 GiB of data.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes of a block. Reading a few bytes of a file reads one or two blocks.
const BLOCK_BYTES: u64 = 16 << 10;
/// Bytes of a block's digest.
const DIGEST_BYTES: usize = 16;

/// The digest of a file's content. As text, 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    pub(super) fn of_content(content: &[u8]) -> Self {
        let mut hasher = FileHasher::default();
        hasher.update(content);
        hasher.finish().1
    }

    fn of(bytes: u64, blocks: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes.to_le_bytes());
        hasher.update(blocks);
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContentDigest {
    type Err = blake3::HexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        blake3::Hash::from_hex(text).map(|hash| Self(*hash.as_bytes()))
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// Digests a file as it is written.
#[derive(Debug, Default)]
pub(super) struct FileHasher {
    block: blake3::Hasher,
    bytes: u64,
    blocks: Vec<u8>,
}

impl FileHasher {
    pub(super) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = BLOCK_BYTES - self.bytes % BLOCK_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            self.block.update(now);
            self.bytes += now.len() as u64;
            if self.bytes.is_multiple_of(BLOCK_BYTES) {
                self.end_block();
            }
            bytes = later;
        }
    }

    /// The length and the digest of the file, and the digests of its blocks.
    pub(super) fn finish(mut self) -> (u64, ContentDigest, Bytes) {
        if !self.bytes.is_multiple_of(BLOCK_BYTES) {
            self.end_block();
        }
        (self.bytes, ContentDigest::of(self.bytes, &self.blocks), self.blocks.into())
    }

    fn end_block(&mut self) {
        self.blocks.extend_from_slice(&self.block.finalize().as_bytes()[..DIGEST_BYTES]);
        self.block.reset();
    }
}

/// The digests of a file's blocks.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    digests: Bytes,
    bytes: u64,
}

impl Blocks {
    /// The digests of the blocks of a file with this length and digest, or `None` if they are of another file.
    pub(super) fn of(digests: Bytes, bytes: u64, digest: ContentDigest) -> Option<Self> {
        (ContentDigest::of(bytes, &digests) == digest).then_some(Self { digests, bytes })
    }

    /// The size in memory.
    pub(super) fn size(&self) -> u64 {
        self.digests.len() as u64
    }

    /// The range of whole blocks around a range of a file of `bytes` bytes.
    pub(super) fn around(range: &Range<u64>, bytes: u64) -> Range<u64> {
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        start..range.end.next_multiple_of(BLOCK_BYTES).min(bytes)
    }

    /// The first block of `content` that is not the file's. `content` begins at `start`, which is the start of a block.
    pub(super) fn find_wrong(&self, start: u64, content: &[u8]) -> Option<Range<u64>> {
        let first = (start / BLOCK_BYTES) as usize;
        let blocks = content.chunks(BLOCK_BYTES as usize).enumerate();
        let is_wrong = |(at, block): &(usize, &[u8])| {
            let place = (first + at) * DIGEST_BYTES;
            self.digests.get(place..place + DIGEST_BYTES) != Some(&blake3::hash(block).as_bytes()[..DIGEST_BYTES])
        };
        blocks.into_iter().find(is_wrong).map(|(at, block)| {
            let start = start + at as u64 * BLOCK_BYTES;
            start..(start + block.len() as u64).min(self.bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at * 7 / 3) as u8).collect()
    }

    fn digested(content: &[u8], piece: usize) -> (u64, ContentDigest, Bytes) {
        let mut hasher = FileHasher::default();
        content.chunks(piece).for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    #[test]
    fn a_digest_does_not_depend_on_the_pieces_written() {
        for bytes in [0, 1, 16_383, 16_384, 16_385, 100_000] {
            let content = file(bytes);
            let whole = digested(&content, 1 << 20);
            assert_eq!(whole.0, bytes as u64);
            assert_eq!(whole.2.len(), bytes.div_ceil(16_384) * 16);
            for piece in [1, 1000, 16_384, 20_000] {
                assert_eq!(digested(&content, piece), whole, "{bytes} {piece}");
            }
            assert_eq!(whole.1.to_string().parse::<ContentDigest>().unwrap(), whole.1);
        }
    }

    #[test]
    fn a_changed_byte_is_found_in_its_block() {
        let content = file(50_000);
        let (bytes, digest, digests) = digested(&content, 1 << 20);
        assert!(Blocks::of(digests.clone(), bytes + 1, digest).is_none());
        assert!(Blocks::of(digests.slice(16..), bytes, digest).is_none());
        let blocks = Blocks::of(digests, bytes, digest).unwrap();
        assert_eq!(blocks.find_wrong(0, &content), None);
        assert_eq!(blocks.find_wrong(16_384, &content[16_384..32_768]), None);
        for (at, wrong) in [(0, 0..16_384), (16_383, 0..16_384), (16_384, 16_384..32_768), (49_999, 49_152..50_000)] {
            let mut changed = content.clone();
            changed[at] ^= 1;
            assert_eq!(blocks.find_wrong(0, &changed), Some(wrong), "{at}");
        }
        let swapped = [&content[16_384..32_768], &content[..16_384]].concat();
        assert_eq!(blocks.find_wrong(0, &swapped), Some(0..16_384));
        assert_eq!(blocks.find_wrong(0, &[&content[..], &[0; 40_000]].concat()), Some(49_152..50_000));
    }

    #[test]
    fn ranges_are_widened_to_blocks() {
        assert_eq!(Blocks::around(&(5..6), 50_000), 0..16_384);
        assert_eq!(Blocks::around(&(16_384..32_768), 50_000), 16_384..32_768);
        assert_eq!(Blocks::around(&(16_383..49_153), 50_000), 0..50_000);
    }
}
