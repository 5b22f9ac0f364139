//! Counts the rows and bytes that streams send, by feed, as messages are made.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use forebay_engine::arrays::batch_bytes;
use parking_lot::Mutex;

use super::page::{Page, feed_labels};

/// Maximum number of feeds with counters. Beyond it, the feed that was opened first loses its counters.
const FEEDS_MAX: usize = 256;

/// Counters by feed.
pub(crate) struct ByFeed<T> {
    feeds: Mutex<BTreeMap<Arc<str>, Numbered<T>>>,
}

struct Numbered<T> {
    /// The feed's position in the order of opening.
    number: u64,
    counts: Arc<T>,
}

impl<T> Default for ByFeed<T> {
    fn default() -> Self {
        Self { feeds: Mutex::default() }
    }
}

impl<T> ByFeed<T> {
    /// The counters of a feed, created with `new`.
    pub(crate) fn get(&self, feed: &str, new: impl FnOnce() -> T) -> Arc<T> {
        let mut feeds = self.feeds.lock();
        if let Some(known) = feeds.get(feed) {
            return Arc::clone(&known.counts);
        }
        let number = feeds.values().map(|known| known.number + 1).max().unwrap_or(0);
        if feeds.len() >= FEEDS_MAX
            && let Some(first) = feeds.iter().min_by_key(|(_, known)| known.number).map(|(feed, _)| Arc::clone(feed))
        {
            feeds.remove(&first);
        }
        let counts = Arc::new(new());
        feeds.insert(feed.into(), Numbered { number, counts: Arc::clone(&counts) });
        counts
    }

    /// The counters of a feed, if it has any.
    pub(crate) fn known(&self, feed: &str) -> Option<Arc<T>> {
        self.feeds.lock().get(feed).map(|known| Arc::clone(&known.counts))
    }

    pub(crate) fn all(&self) -> Vec<(Arc<str>, Arc<T>)> {
        self.feeds.lock().iter().map(|(feed, known)| (Arc::clone(feed), Arc::clone(&known.counts))).collect()
    }
}

/// Rows and bytes sent.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl Sent {
    pub(crate) fn rows(&self) -> f64 {
        self.rows.load(Ordering::Relaxed) as f64
    }

    pub(crate) fn bytes(&self) -> f64 {
        self.bytes.load(Ordering::Relaxed) as f64
    }
}

/// Counts a stream as open while it lives.
pub(crate) struct OpenStream<T: AsRef<Sent>> {
    counts: Arc<T>,
    open: Arc<AtomicU64>,
}

impl<T: AsRef<Sent>> OpenStream<T> {
    pub(crate) fn new(counts: Arc<T>, open: &Arc<AtomicU64>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self { counts, open: Arc::clone(open) }
    }

    /// Counts rows as sent.
    pub(crate) fn sent(&self, records: &[RecordBatch]) {
        let sent: &Sent = (*self.counts).as_ref();
        for records in records {
            sent.rows.fetch_add(records.num_rows() as u64, Ordering::Relaxed);
            sent.bytes.fetch_add(batch_bytes(records), Ordering::Relaxed);
        }
    }
}

impl<T: AsRef<Sent>> Drop for OpenStream<T> {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The streams of whole feeds, for clients that only speak Flight.
#[derive(Default)]
pub(crate) struct StreamCounts {
    feeds: ByFeed<FeedSent>,
    open: Arc<AtomicU64>,
}

/// The counters of one feed's streams.
pub(crate) struct FeedSent {
    pipeline: String,
    sent: Sent,
}

impl AsRef<Sent> for FeedSent {
    fn as_ref(&self) -> &Sent {
        &self.sent
    }
}

impl StreamCounts {
    /// Starts counting a stream.
    pub(crate) fn open(&self, feed: &str, pipeline: &str) -> OpenStream<FeedSent> {
        let new = || FeedSent { pipeline: pipeline.to_owned(), sent: Sent::default() };
        OpenStream::new(self.feeds.get(feed, new), &self.open)
    }
}

pub(super) fn write(page: &mut Page<'_>, streams: &StreamCounts) -> fmt::Result {
    let open = streams.open.load(Ordering::Relaxed) as f64;
    page.single("forebay_streams", "Streams of whole feeds that are open, to clients that only speak Flight", open)?;
    let feeds = streams.feeds.all();
    let of = |value: fn(&Sent) -> f64| {
        feeds.iter().map(move |(feed, counts)| (feed_labels(feed, &counts.pipeline), value(&counts.sent)))
    };
    page.counter("forebay_stream_sent_rows", "Rows sent in streams of whole feeds", of(Sent::rows))?;
    page.counter("forebay_stream_sent_bytes", "Bytes of Arrow data sent in streams of whole feeds", of(Sent::bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feeds_that_were_opened_first_are_forgotten() {
        let by_feed = ByFeed::default();
        for feed in 0..FEEDS_MAX + 2 {
            by_feed.get(&format!("{feed:04}"), || feed);
        }
        assert_eq!(by_feed.all().len(), FEEDS_MAX);
        assert!(by_feed.known("0001").is_none() && by_feed.known("0002").is_some());
        assert_eq!(*by_feed.get("0002", || 0), 2);
    }
}
