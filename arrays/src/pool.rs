//! A memory pool for arrays: reuses buffers after their arrays are dropped.
//!
//! Large allocations use fresh pages, and the page faults cost more than copying the bytes. A loop frees about as many
//! bytes as it allocates next, so a few buffers suffice.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::mem::take;
use std::sync::{Arc, LazyLock};

use arrow::buffer::Buffer;
use bytes::Bytes;
use parking_lot::Mutex;

/// The alignment that Arrow's readers require.
const ALIGNMENT: usize = 64;
/// Smaller allocations are fast in the allocator.
const POOLED_FROM: usize = 32 << 10;
/// Announced sizes are trusted up to this limit. Beyond it, buffers grow as their bytes arrive.
const BELIEVED: usize = 64 << 20;
/// The largest allocation that adjusts glibc's thresholds; see [`settle_allocator`].
const LEARNT_FROM: usize = (32 << 20) - (64 << 10);

/// Maximum idle bytes of the pool for operators' results: a few batches.
const OUTPUTS_IDLE_BYTES: usize = 128 << 20;

/// The pool for operators' results. It is shared by the process, because a batch may be dropped on any thread.
pub fn outputs() -> &'static Arc<Pool> {
    static OUTPUTS: LazyLock<Arc<Pool>> = LazyLock::new(|| Pool::new(OUTPUTS_IDLE_BYTES));
    &OUTPUTS
}

/// Idle buffers, ready for reuse.
#[derive(Debug)]
pub struct Pool {
    idle_limit_bytes: usize,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Buffers by capacity.
    buffers: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Pool {
    /// Creates a pool that keeps at most `idle_limit_bytes`.
    pub fn new(idle_limit_bytes: usize) -> Arc<Self> {
        settle_allocator();
        Arc::new(Self { idle_limit_bytes, idle: Mutex::default() })
    }

    /// Takes an empty buffer for `bytes`. The number may come from an untrusted source.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Filling {
        let capacity = bytes.min(BELIEVED).saturating_add(ALIGNMENT);
        let mut bytes = self.find(capacity).unwrap_or_else(|| Vec::with_capacity(capacity));
        bytes.clear();
        let start = align(&bytes);
        bytes.resize(start, 0);
        Filling { bytes, start, pool: Arc::clone(self) }
    }

    /// Takes a buffer of `len` bytes with arbitrary content: an earlier user's bytes, or zeros.
    pub fn take_filled(self: &Arc<Self>, len: usize) -> Filling {
        let capacity = len + ALIGNMENT;
        let mut bytes = self.find(capacity).unwrap_or_else(|| vec![0; capacity]);
        let start = align(&bytes);
        // Within the capacity, so the memory does not move.
        bytes.resize(start + len, 0);
        Filling { bytes, start, pool: Arc::clone(self) }
    }

    fn find(&self, capacity: usize) -> Option<Vec<u8>> {
        (capacity >= POOLED_FROM).then(|| self.idle.lock().take(capacity)).flatten()
    }
}

/// Makes glibc keep pages for allocations outside the pool: received frames of a few hundred kilobytes.
///
/// glibc returns free memory to the system, and requests large allocations from it, above thresholds that start low and
/// follow the largest allocation ever freed. With a pool that frees none, the thresholds would stay low, and every
/// frame would use fresh pages, which doubles the cost of receiving. So this frees one large allocation, without
/// touching its pages. Tables without a pool gain as much.
pub fn settle_allocator() {
    drop(black_box(Vec::<u8>::with_capacity(LEARNT_FROM)));
}

impl Idle {
    /// Takes a buffer of about this capacity. A much larger buffer would be wasted half empty.
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
        // Evict buffers of sizes no longer requested, the largest first.
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

/// The offset of the first aligned address in a vector's memory.
fn align(bytes: &[u8]) -> usize {
    bytes.as_ptr().addr().wrapping_neg() % ALIGNMENT
}

/// A buffer being filled. It returns to its pool when its last user drops it.
#[derive(Debug)]
pub struct Filling {
    bytes: Vec<u8>,
    /// The offset where it is aligned.
    start: usize,
    pool: Arc<Pool>,
}

impl Filling {
    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The content as numbers, whose size divides the buffer's.
    pub fn values<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.bytes[self.start..])
    }

    /// Appends bytes.
    pub fn extend(&mut self, more: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < more.len() {
            self.grow(more.len());
        }
        self.bytes.extend_from_slice(more);
    }

    fn grow(&mut self, more: usize) {
        let mut larger = self.pool.take(0);
        // Not `take`, which distrusts large numbers: these bytes have already arrived.
        larger.bytes = Vec::with_capacity((self.len() + more).max(2 * self.len()) + ALIGNMENT);
        larger.start = align(&larger.bytes);
        larger.bytes.resize(larger.start, 0);
        larger.bytes.extend_from_slice(&self.bytes[self.start..]);
        *self = larger;
    }

    /// Converts the content to a buffer that arrays can share.
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
        // Buffers of new sizes replace buffers that are no longer requested.
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
