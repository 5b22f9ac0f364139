//! Memory for arrays, used again when the arrays are gone.
//!
//! Large allocations come from fresh pages, whose faults cost more than copying the bytes into them. A loop lets go of
//! about as many bytes as come next, so a few buffers go round.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::mem::take;
use std::sync::{Arc, LazyLock};

use arrow::buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;

/// What arrow's readers want buffers to begin at.
const ALIGNMENT: usize = 64;
/// Smaller ones the allocator has at hand.
const POOLED_FROM: usize = 32 << 10;
/// What is announced is believed up to this; the rest of a buffer is allocated as its bytes come.
const BELIEVED: usize = 64 << 20;
/// The largest allocation that glibc learns from; see [`settle_allocator`].
const LEARNT_FROM: usize = (32 << 20) - (64 << 10);

/// What operators' results may leave behind: a few batches.
const OUTPUTS_IDLE_BYTES: usize = 128 << 20;

/// The pool of what operators make, one for the process: a batch may end on any thread.
pub fn outputs() -> &'static Arc<Pool> {
    static OUTPUTS: LazyLock<Arc<Pool>> = LazyLock::new(|| Pool::new(OUTPUTS_IDLE_BYTES));
    &OUTPUTS
}

/// Buffers that wait to be used again.
#[derive(Debug)]
pub struct Pool {
    idle_limit_bytes: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// By capacity.
    buffers: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Pool {
    /// A pool that keeps `idle_limit_bytes` at most.
    pub fn new(idle_limit_bytes: usize) -> Arc<Self> {
        settle_allocator();
        Arc::new(Self { idle_limit_bytes, idle: Mutex::default() })
    }

    /// An empty buffer that is to take `bytes`, a number that may come from elsewhere.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Filling {
        let capacity = bytes.min(BELIEVED).saturating_add(ALIGNMENT);
        let mut bytes = self.find(capacity).unwrap_or_else(|| Vec::with_capacity(capacity));
        bytes.clear();
        let start = align(&bytes);
        bytes.resize(start, 0);
        Filling { bytes, start, pool: Arc::clone(self) }
    }

    /// A buffer of `len` bytes that hold anything: what an earlier user left, or zeros.
    pub fn take_filled(self: &Arc<Self>, len: usize) -> Filling {
        let capacity = len + ALIGNMENT;
        let mut bytes = self.find(capacity).unwrap_or_else(|| vec![0; capacity]);
        let start = align(&bytes);
        // Never beyond the capacity, so it stays where it is.
        bytes.resize(start + len, 0);
        Filling { bytes, start, pool: Arc::clone(self) }
    }

    fn find(&self, capacity: usize) -> Option<Vec<u8>> {
        (capacity >= POOLED_FROM).then(|| self.idle.lock().take(capacity)).flatten()
    }
}

/// Lets glibc keep pages for what goes round outside the pool: the frames that come, of some hundred kilobytes.
///
/// It gives free memory back, and takes large allocations from the system, above thresholds that begin low and follow
/// the largest allocation that was ever freed. A pool that frees none would leave them low, and every frame would come
/// from fresh pages, which doubles what receiving costs. So one is freed here; no page of it is touched. Tables without
/// a pool gain as much.
pub fn settle_allocator() {
    drop(black_box(Vec::<u8>::with_capacity(LEARNT_FROM)));
}

impl Idle {
    /// One of about this capacity: a much larger one would lie about half empty.
    fn take(&mut self, capacity: usize) -> Option<Vec<u8>> {
        let (&found, buffers) = self.buffers.range_mut(capacity..=capacity.saturating_mul(2)).next()?;
        let buffer = buffers.pop();
        if buffers.is_empty() {
            self.buffers.remove(&found);
        }
        self.bytes -= found;
        buffer
    }

    fn put(&mut self, buffer: Vec<u8>, limit: usize) {
        let capacity = buffer.capacity();
        if capacity > limit {
            return;
        }
        // Those of sizes that are no longer asked for make room, the largest first.
        while self.bytes + capacity > limit {
            let Some(mut largest) = self.buffers.last_entry() else { break };
            self.bytes -= largest.key();
            largest.get_mut().pop();
            if largest.get().is_empty() {
                largest.remove();
            }
        }
        self.bytes += capacity;
        self.buffers.entry(capacity).or_default().push(buffer);
    }
}

/// How far into a vector's memory the first aligned address is.
fn align(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT
}

/// A buffer that is being filled; goes back to its pool when nobody uses it any more.
#[derive(Debug)]
pub struct Filling {
    bytes: Vec<u8>,
    /// Where it is aligned.
    start: usize,
    pool: Arc<Pool>,
}

impl Filling {
    /// The bytes that are in it.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is in it as numbers, whose size divides the buffer's.
    pub fn values<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.bytes[self.start..])
    }

    /// Appends.
    pub fn extend(&mut self, more: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < more.len() {
            self.grow(more.len());
        }
        self.bytes.extend_from_slice(more);
    }

    fn grow(&mut self, more: usize) {
        let mut larger = self.pool.take(0);
        // Not by `take`, which does not believe large numbers: these bytes are here.
        larger.bytes = Vec::with_capacity((self.len() + more).max(2 * self.len()) + ALIGNMENT);
        larger.start = align(&larger.bytes);
        larger.bytes.resize(larger.start, 0);
        larger.bytes.extend_from_slice(&self.bytes[self.start..]);
        *self = larger;
    }

    /// What was filled in, for arrays to share.
    pub fn freeze(self) -> Buffer {
        Buffer::from(Bytes::from_owner(self))
    }
}

impl AsRef<[u8]> for Filling {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let bytes = take(&mut self.bytes);
        if bytes.capacity() >= POOLED_FROM {
            self.pool.idle.lock().put(bytes, self.pool.idle_limit_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KB: usize = 1 << 10;

    fn filled(pool: &Arc<Pool>, bytes: usize) -> Buffer {
        let mut filling = pool.take(bytes);
        filling.extend(&vec![7; bytes]);
        filling.freeze()
    }

    #[test]
    fn buffers_are_aligned_and_used_again() {
        let pool = Pool::new(KB * KB);
        let (first, second) = (filled(&pool, 100 * KB), filled(&pool, 100 * KB));
        let addresses = [first.as_ptr(), second.as_ptr()];
        assert!(addresses.iter().all(|address| address.addr() % ALIGNMENT == 0));
        let slice = first.slice(50 * KB);
        drop(first);
        assert_eq!(pool.idle.lock().bytes, 0, "a part is still in use");
        drop((slice, second));
        let (third, fourth) = (filled(&pool, 90 * KB), filled(&pool, 90 * KB));
        assert!(addresses.contains(&third.as_ptr()) && addresses.contains(&fourth.as_ptr()));
        assert_eq!(pool.idle.lock().bytes, 0);
    }

    #[test]
    fn a_filled_buffer_has_its_length_whatever_it_was_before() {
        let pool = Pool::new(KB * KB);
        for len in [100 * KB, 60 * KB, 0, 3, 100 * KB] {
            let mut filling = pool.take_filled(len);
            assert_eq!((filling.len(), filling.values::<u8>().len()), (len, len));
            assert_eq!(filling.as_ref().as_ptr().addr() % ALIGNMENT, 0);
            filling.values::<u8>().fill(9);
        }
        let recycled = pool.take_filled(100 * KB);
        assert!(recycled.as_ref().iter().all(|byte| *byte == 9), "nothing is spent on zeros");
        drop(recycled);
        assert_eq!(filled(&pool, 100 * KB).as_ref(), vec![7; 100 * KB]);
        assert_eq!(pool.take_filled(400 * KB).values::<f32>().len(), 100 * KB);
    }

    #[test]
    fn little_is_kept() {
        let pool = Pool::new(300 * KB);
        drop([filled(&pool, 100 * KB), filled(&pool, 100 * KB), filled(&pool, 100 * KB), filled(&pool, 400 * KB)]);
        let kept = |pool: &Pool| pool.idle.lock().buffers.values().flatten().map(Vec::capacity).sum::<usize>();
        assert!((200 * KB..=300 * KB).contains(&kept(&pool)), "{}", kept(&pool));
        // Other sizes than before take the place of what is not asked for.
        drop(filled(&pool, 250 * KB));
        assert!((250 * KB..=300 * KB).contains(&kept(&pool)), "{}", kept(&pool));
        assert_eq!(kept(&pool), pool.idle.lock().bytes);
        drop(filled(&pool, 10));
        assert_eq!(kept(&pool), pool.idle.lock().bytes);
    }

    #[test]
    fn announcements_are_not_believed_beyond_measure() {
        let pool = Pool::new(KB * KB);
        let mut filling = pool.take(usize::MAX);
        assert!(filling.bytes.capacity() <= BELIEVED + ALIGNMENT);
        filling = Pool::new(0).take(3);
        for byte in 0..200u8 {
            filling.extend(&[byte; 3]);
        }
        let frozen = filling.freeze();
        assert_eq!(frozen.as_ptr().addr() % ALIGNMENT, 0);
        assert!(frozen.chunks(3).zip(0u8..).all(|(bytes, byte)| bytes == [byte; 3]) && frozen.len() == 600);
    }
}
