//! Bytes in pieces of a fixed size.
//!
//! A buffer that grows to the size of a row group is copied each time it grows, and the kernel clears its memory anew.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// Bytes of a piece.
const PIECE_BYTES: usize = 1 << 20;

/// Bytes that were written, in order.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    whole: VecDeque<Bytes>,
    open: Vec<u8>,
    bytes: usize,
}

impl Pieces {
    /// The number of bytes that are not yet taken.
    pub(super) fn left(&self) -> usize {
        self.bytes
    }

    /// The next bytes, if there are any.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        let piece = self.whole.pop_front().unwrap_or_else(|| std::mem::take(&mut self.open).into());
        self.bytes -= piece.len();
        (!piece.is_empty()).then_some(piece)
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.open.capacity() == 0 {
            self.open.reserve_exact(PIECE_BYTES);
        }
        let count = bytes.len().min(self.open.capacity() - self.open.len());
        self.open.extend(bytes.iter().take(count));
        self.bytes += count;
        if self.open.len() == self.open.capacity() {
            self.whole.push_back(std::mem::take(&mut self.open).into());
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Pieces {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.whole.is_empty() && !self.open.is_empty() {
            self.whole.push_back(std::mem::take(&mut self.open).into());
        }
        let Some(first) = self.whole.front_mut() else { return Ok(0) };
        let count = into.len().min(first.len());
        first.copy_to_slice(&mut into[..count]);
        self.bytes -= count;
        if first.is_empty() {
            self.whole.pop_front();
        }
        Ok(count)
    }
}

/// Bytes that are read once, from their beginning. What is read is freed, so a row group is not in memory twice.
pub(super) struct ReadOnce(Mutex<Pieces>);

impl ReadOnce {
    pub(super) fn new(pieces: Pieces) -> Self {
        Self(Mutex::new(pieces))
    }
}

impl Length for ReadOnce {
    fn len(&self) -> u64 {
        self.0.lock().left() as u64
    }
}

impl ChunkReader for ReadOnce {
    type T = Pieces;

    fn get_read(&self, start: u64) -> Result<Pieces> {
        match start {
            0 => Ok(std::mem::take(&mut self.0.lock())),
            _ => Err(ParquetError::General("pieces are read from their beginning".to_owned())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = vec![0; length];
        self.get_read(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_in_order() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
        let mut pieces = Pieces::default();
        bytes.chunks(70_001).for_each(|part| pieces.write_all(part).unwrap());
        assert_eq!(pieces.left(), bytes.len());
        let mut read = Vec::new();
        ReadOnce::new(pieces).get_read(0).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        let mut pieces = Pieces::default();
        pieces.write_all(&bytes).unwrap();
        let taken: Vec<u8> = std::iter::from_fn(|| pieces.pop()).flatten().collect();
        assert!(taken == bytes);
        assert_eq!(pieces.left(), 0);
    }
}
