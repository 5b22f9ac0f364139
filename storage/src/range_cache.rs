//! Rows that were computed from row ranges of a dataset, kept for the next process that needs them.
//!
//! A cache is a folder of *segments*. A segment has a block for each of some row ranges: the rows that were made of the
//! range, their ids, and its bad rows. After the blocks comes a list of them. Segments are written as whole objects and
//! never changed. Any number of processes write and read a cache at a time: rows follow from what the cache is named
//! after, so equal ranges have equal rows, by any writer.
//!
//! A cache is never needed. Each block has a digest. What is damaged, missing or unreadable is computed again, and
//! anybody may delete segments, or the folder, at any time.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use bytes::Bytes;
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::dataset::{BadRead, RangeRows};
use crate::{Error, Result, Stores};

/// The last bytes of a segment. Another form of segments has another mark.
const MARK: &[u8; 8] = b"FBRANGE1";
/// Length of the list, digest of the list, and mark.
const TRAILER_BYTES: u64 = 8 + DIGEST_BYTES as u64 + MARK.len() as u64;
const DIGEST_BYTES: usize = 16;
/// A segment that is larger ends, and the next begins, so that little of a window is in memory twice.
const SEGMENT_BYTES: usize = if cfg!(test) { 4 << 10 } else { 32 << 20 };
/// Lists that are read at a time.
const LISTS_AT_ONCE: usize = 32;
/// Blocks that are looked at for one that has a row.
const BLOCKS_BEFORE_MAX: usize = 64;
/// Segments of other processes are looked for at most this often.
const LOOK_PAUSE: Duration = Duration::from_secs(10);
/// The column of the rows' ids in a block.
const IDS: &str = "__forebay_sample_id";

/// A cache of rows by the row ranges that they were computed from.
#[derive(Debug)]
pub struct RangeCache {
    stores: Stores,
    folder: String,
    schema: SchemaRef,
    known: Mutex<Known>,
    /// Held while segments are looked for.
    looking: tokio::sync::Mutex<Option<Instant>>,
}

/// What a cache holds, as far as this process knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCacheUsage {
    /// Source rows whose results are kept.
    pub rows: u64,
    /// Bytes of their segments.
    pub bytes: u64,
    /// Segments.
    pub segments: u64,
}

#[derive(Debug, Default)]
struct Known {
    /// Segments and their bytes.
    segments: HashMap<Arc<str>, u64>,
    /// By the first id of the range.
    blocks: BTreeMap<u64, KeptBlock>,
    /// Whether segments that are known may have blocks that are not.
    is_stale: bool,
}

#[derive(Clone, Debug)]
struct KeptBlock {
    /// The id after the range's last.
    end: u64,
    segment: Arc<str>,
    at: Range<u64>,
    digest: [u8; DIGEST_BYTES],
}

/// A block in a segment's list.
#[derive(Serialize, Deserialize)]
struct Listed {
    rows: Range<u64>,
    at: Range<u64>,
    digest: [u8; DIGEST_BYTES],
}

/// The part of a block that is read for some rows.
#[derive(Clone, Debug)]
struct Piece {
    rows: Range<u64>,
    block: KeptBlock,
}

/// Kept rows that were found: where to read them.
#[derive(Clone, Debug)]
pub struct FoundRange(Vec<Piece>);

impl RangeCache {
    /// The cache `name` under the folder or URL `root`, of rows with these columns. The name must be different for
    /// rows of other data or another query.
    ///
    /// # Errors
    /// `Invalid` for a folder that no store has.
    pub fn new(stores: &Stores, root: &str, name: &str, schema: &SchemaRef) -> Result<Self> {
        let folder = stores.locate(root)?.join(&format!("cache/{name}"))?.display();
        let ids = Field::new(IDS, DataType::UInt64, false);
        let fields: Vec<_> = schema.fields().iter().cloned().chain([Arc::new(ids)]).collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(Self {
            stores: stores.clone(),
            folder,
            schema,
            known: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
        })
    }

    /// The folder of the segments.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// What is kept, as far as this process knows.
    pub fn usage(&self) -> RangeCacheUsage {
        let known = self.known.lock();
        let rows = known.blocks.iter().map(|(first, block)| block.end - first).sum();
        RangeCacheUsage { rows, bytes: known.segments.values().sum(), segments: known.segments.len() as u64 }
    }

    /// Bytes of the segments that are kept, as far as this process knows.
    pub fn bytes(&self) -> u64 {
        self.known.lock().segments.values().sum()
    }

    /// Learns of segments that this process does not know, unless it looked a moment ago.
    ///
    /// # Errors
    /// Those of listing the folder. A segment that cannot be read is passed over.
    pub async fn look(&self) -> Result<()> {
        let mut looked = self.looking.lock().await;
        if looked.is_some_and(|at| at.elapsed() < LOOK_PAUSE) {
            return Ok(());
        }
        *looked = Some(Instant::now());
        let listed = self.stores.list(&self.folder).await?;
        let lists_all = std::mem::take(&mut self.known.lock().is_stale);
        let is_new = |name: &str| lists_all || !self.known.lock().segments.contains_key(name);
        let new = listed.into_iter().filter(|object| is_new(&object.name));
        let mut lists = stream::iter(new)
            .map(|object| async move {
                let blocks = self.list_of(&object.name, object.bytes).await;
                (object, blocks)
            })
            .buffer_unordered(LISTS_AT_ONCE);
        while let Some((object, blocks)) = lists.next().await {
            match blocks {
                Ok(blocks) => self.known.lock().add(&object.name, object.bytes, blocks),
                // Another process may be deleting it.
                Err(error) => {
                    let segment = object.name;
                    tracing::debug!(folder = self.folder, segment, %error, "a segment of a cache is passed over");
                }
            }
        }
        Ok(())
    }

    /// Where to read what was made of the source rows with these ids; `None` if some are not kept.
    pub fn find(&self, rows: Range<u64>) -> Option<FoundRange> {
        let known = self.known.lock();
        let mut pieces = Vec::new();
        let mut at = rows.start;
        while at < rows.end {
            // Blocks of other ranges may begin between this row and the block that has it.
            let mut before = known.blocks.range(..=at).rev().take(BLOCKS_BEFORE_MAX);
            let (_, block) = before.find(|(_, block)| block.end > at)?;
            let end = block.end.min(rows.end);
            pieces.push(Piece { rows: at..end, block: block.clone() });
            at = end;
        }
        Some(FoundRange(pieces))
    }

    /// Reads what was [found](Self::find). Returns `None` if it is damaged or gone. Forgets its segment then.
    pub async fn read(&self, found: &FoundRange) -> Option<RangeRows> {
        let mut batches = Vec::with_capacity(found.0.len());
        let mut bad = Vec::new();
        for piece in &found.0 {
            match self.piece(piece).await {
                Ok((batch, of_piece)) => {
                    batches.push(batch);
                    bad.extend(of_piece);
                }
                Err(error) => {
                    self.forget(&piece.block.segment, &error).await;
                    return None;
                }
            }
        }
        let batch = match &mut batches[..] {
            [one] => one.clone(),
            several => concat_batches(&self.schema, several.iter()).ok()?,
        };
        Some(self.rows_of(&batch, bad))
    }

    /// Keeps what was made of row ranges. Each has its source rows' ids; the ids of what was made of it ascend.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn keep(&self, ranges: &[(Range<u64>, RangeRows)]) -> Result<()> {
        let (mut segment, mut list) = (Vec::new(), Vec::new());
        for (rows, made) in ranges {
            let first = segment.len() as u64;
            self.write_block(&mut segment, made)?;
            let at = first..segment.len() as u64;
            list.push(Listed { rows: rows.clone(), digest: digest(&segment[first as usize..]), at });
            if segment.len() >= SEGMENT_BYTES {
                self.put(std::mem::take(&mut segment), std::mem::take(&mut list)).await?;
            }
        }
        if list.is_empty() { Ok(()) } else { self.put(segment, list).await }
    }

    /// The bytes that keeping takes for what was made of a row range.
    ///
    /// # Errors
    /// `Internal` for rows of another schema.
    pub fn bytes_to_keep(&self, made: &RangeRows) -> Result<u64> {
        let mut block = Vec::new();
        self.write_block(&mut block, made)?;
        Ok(block.len() as u64)
    }

    /// Writes a segment with these blocks.
    async fn put(&self, mut segment: Vec<u8>, list: Vec<Listed>) -> Result<()> {
        let listed = serde_json::to_vec(&list).map_err(|error| Error::internal(error.to_string()))?;
        segment.extend_from_slice(&listed);
        segment.extend_from_slice(&(listed.len() as u64).to_le_bytes());
        segment.extend_from_slice(&digest(&listed));
        segment.extend_from_slice(MARK);
        // Processes that keep the same ranges write the same object.
        let mut name = blake3::Hasher::new();
        for Listed { rows, .. } in &list {
            name.update(&rows.start.to_le_bytes()).update(&rows.end.to_le_bytes());
        }
        let name = name.finalize().to_hex()[..32].to_owned();
        let bytes = segment.len() as u64;
        self.stores.put(&self.object(&name), segment.into()).await?;
        self.known.lock().add(&name, bytes, list);
        Ok(())
    }

    fn object(&self, segment: &str) -> String {
        format!("{}/{segment}", self.folder)
    }

    /// The list of a segment's blocks.
    async fn list_of(&self, segment: &str, bytes: u64) -> Result<Vec<Listed>> {
        let damaged = || Error::data(format!("\"{}\" is no segment of a cache", self.object(segment)));
        let trailer_at = bytes.checked_sub(TRAILER_BYTES).ok_or_else(damaged)?;
        // Most lists are short, so one request reads list and trailer.
        let from = bytes.saturating_sub(16 << 10);
        let mut end = self.get(segment, from..bytes).await?;
        if end.len() as u64 != bytes - from {
            return Err(damaged());
        }
        let trailer = end.split_off((trailer_at - from) as usize);
        let (length, rest) = trailer.split_first_chunk().ok_or_else(damaged)?;
        let (expected, mark) = rest.split_at(DIGEST_BYTES);
        let first = trailer_at.checked_sub(u64::from_le_bytes(*length)).filter(|_| mark == MARK).ok_or_else(damaged)?;
        let list = match first.checked_sub(from) {
            Some(within) => end.slice(within as usize..),
            None => self.get(segment, first..trailer_at).await?,
        };
        let blocks: Vec<Listed> = serde_json::from_slice(&list).map_err(|_| damaged())?;
        let is_whole = |block: &Listed| {
            block.rows.start < block.rows.end && block.at.start <= block.at.end && block.at.end <= first
        };
        match digest(&list)[..] == *expected && blocks.iter().all(is_whole) {
            true => Ok(blocks),
            false => Err(damaged()),
        }
    }

    async fn get(&self, segment: &str, range: Range<u64>) -> Result<Bytes> {
        let place = self.stores.locate(&self.object(segment))?;
        let read = place.store.get_range(&place.path, range).await;
        read.map_err(|error| Error::from_store(&place.display(), error))
    }

    async fn piece(&self, piece: &Piece) -> Result<(RecordBatch, Vec<BadRead>)> {
        let Piece { rows, block } = piece;
        let bytes = self.get(&block.segment, block.at.clone()).await?;
        let damaged = |why: &str| Error::data(format!("\"{}\" is damaged: {why}", self.object(&block.segment)));
        if digest(&bytes) != block.digest {
            return Err(damaged("a block is not what its digest says"));
        }
        let (length, rest) = bytes.split_first_chunk().ok_or_else(|| damaged("a block is too short"))?;
        let length = u64::from_le_bytes(*length) as usize;
        let (bad, batch) = rest.split_at_checked(length).ok_or_else(|| damaged("a block is too short"))?;
        let bad: Vec<(u64, String)> = serde_json::from_slice(bad).map_err(|error| damaged(&error.to_string()))?;
        let mut reader =
            StreamReader::try_new(Cursor::new(batch), None).map_err(|error| damaged(&error.to_string()))?;
        let batch = reader.next().ok_or_else(|| damaged("a block has no rows"))?;
        let batch = batch.map_err(|error| damaged(&error.to_string()))?;
        let batch = batch.with_schema(Arc::clone(&self.schema)).map_err(|error| damaged(&error.to_string()))?;
        let ids = batch.column(batch.num_columns() - 1).as_primitive::<UInt64Type>();
        let at = |id: u64| ids.values().partition_point(|&other| other < id);
        let (first, end) = (at(rows.start), at(rows.end));
        let bad = bad.into_iter().filter(|(sample_id, _)| rows.contains(sample_id));
        let bad = bad.map(|(sample_id, reason)| BadRead { sample_id, reason }).collect();
        // All columns are slices of the block's bytes. Copies hold no more than these rows, and are counted as such.
        let taken = UInt64Array::from_iter_values(first as u64..end as u64);
        let batch = take_record_batch(&batch, &taken).map_err(|error| damaged(&error.to_string()))?;
        Ok((batch, bad))
    }

    /// Forgets a segment that cannot be read, and deletes it, so that it is written again.
    async fn forget(&self, segment: &Arc<str>, error: &Error) {
        {
            let mut known = self.known.lock();
            let before = known.blocks.len();
            known.blocks.retain(|_, block| block.segment != *segment);
            if known.segments.remove(segment).is_none() && known.blocks.len() == before {
                return;
            }
            // Others may have blocks of these rows, which are taken when they are listed again.
            known.is_stale = true;
        }
        tracing::warn!(folder = self.folder, segment = &**segment, %error, "kept rows are computed again");
        if error.kind() == crate::ErrorKind::Data {
            let _ = self.stores.delete(&self.object(segment)).await;
        }
    }

    /// Appends a block: length of the bad rows, bad rows, then a stream of one batch.
    fn write_block(&self, segment: &mut Vec<u8>, made: &RangeRows) -> Result<()> {
        let cannot = |error: &dyn std::fmt::Display| Error::internal(format!("rows cannot be kept: {error}"));
        let bad: Vec<(u64, &str)> = made.bad.iter().map(|bad| (bad.sample_id, bad.reason.as_str())).collect();
        let bad = serde_json::to_vec(&bad).map_err(|error| cannot(&error))?;
        segment.extend_from_slice(&(bad.len() as u64).to_le_bytes());
        segment.extend_from_slice(&bad);
        let ids: ArrayRef = Arc::new(made.sample_ids.clone());
        let columns = made.batch.columns().iter().cloned().chain([ids]).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(|error| cannot(&error))?;
        let mut writer = StreamWriter::try_new(segment, &self.schema).map_err(|error| cannot(&error))?;
        writer.write(&batch).and_then(|()| writer.finish()).map_err(|error| cannot(&error))
    }

    fn rows_of(&self, batch: &RecordBatch, bad: Vec<BadRead>) -> RangeRows {
        let ids = batch.num_columns() - 1;
        let sample_ids: UInt64Array = batch.column(ids).as_primitive::<UInt64Type>().clone();
        let columns: Vec<usize> = (0..ids).collect();
        RangeRows { batch: batch.project(&columns).expect("all columns but the last"), sample_ids, bad }
    }
}

impl Known {
    fn add(&mut self, segment: &str, bytes: u64, blocks: Vec<Listed>) {
        let segment: Arc<str> = segment.into();
        self.segments.insert(Arc::clone(&segment), bytes);
        for Listed { rows, at, digest } in blocks {
            let block = KeptBlock { end: rows.end, segment: Arc::clone(&segment), at, digest };
            // Of two blocks that begin at one row, the longer serves more requests.
            let known = self.blocks.entry(rows.start).or_insert_with(|| block.clone());
            if known.end < block.end {
                *known = block;
            }
        }
    }
}

fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    *blake3::hash(bytes).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};

    use super::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("text", DataType::Utf8, true)]))
    }

    /// What is made of the even rows of a range. Row 13 is bad.
    fn made(ids: Range<u64>) -> RangeRows {
        let good: Vec<u64> = ids.clone().filter(|id| id % 2 == 0).collect();
        let numbers = Int64Array::from_iter_values(good.iter().map(|&id| id as i64 * 10));
        let texts: StringArray = good.iter().map(|id| (id % 3 > 0).then(|| format!("row {id}"))).collect();
        let batch = RecordBatch::try_new(schema(), vec![Arc::new(numbers), Arc::new(texts)]).unwrap();
        let bad = ids.filter(|&id| id == 13).map(|sample_id| BadRead { sample_id, reason: "unlucky".to_owned() });
        RangeRows { batch, sample_ids: good.into(), bad: bad.collect() }
    }

    fn cache(stores: &Stores) -> RangeCache {
        RangeCache::new(stores, "memory:///root", "name", &schema()).unwrap()
    }

    async fn keep(cache: &RangeCache, ranges: &[Range<u64>]) {
        let made: Vec<_> = ranges.iter().map(|ids| (ids.clone(), made(ids.clone()))).collect();
        cache.keep(&made).await.unwrap();
    }

    async fn read(cache: &RangeCache, ids: Range<u64>) -> Option<RangeRows> {
        cache.read(&cache.find(ids)?).await
    }

    fn assert_made(read: Option<RangeRows>, ids: Range<u64>) {
        let (read, made) = (read.unwrap(), made(ids));
        assert_eq!(read.sample_ids, made.sample_ids);
        assert_eq!((read.batch.columns(), read.bad), (made.batch.columns(), made.bad));
    }

    #[tokio::test]
    async fn rows_are_read_back_in_any_ranges_and_by_others() {
        let stores = Stores::new();
        let (writer, reader) = (cache(&stores), cache(&stores));
        keep(&writer, &[40..50, 0..10, 10..20]).await;
        keep(&writer, &[15..22, 22..30]).await;
        reader.look().await.unwrap();
        for cache in [&writer, &reader] {
            for ids in [0..10, 10..20, 0..30, 3..29, 12..14, 13..14, 41..50] {
                assert_made(read(cache, ids.clone()).await, ids);
            }
            for ids in [0..31, 30..40, 35..45, 50..51] {
                assert!(cache.find(ids).is_none());
            }
            assert_eq!((cache.usage().segments, cache.usage().bytes > 0), (2, true));
        }
        // A process that keeps the same ranges writes the same object.
        keep(&reader, &[15..22, 22..30]).await;
        assert_eq!(stores.list(reader.folder()).await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn much_is_kept_in_several_segments() {
        let stores = Stores::new();
        let cache = cache(&stores);
        let ranges: Vec<_> = (0..20).map(|n| n * 100..(n + 1) * 100).collect();
        keep(&cache, &ranges).await;
        let segments = stores.list(cache.folder()).await.unwrap();
        assert!(segments.len() > 2 && segments.iter().all(|segment| segment.bytes < 16 << 10), "{segments:?}");
        assert_made(read(&cache, 150..1_950).await, 150..1_950);
    }

    #[tokio::test]
    async fn a_row_is_found_behind_blocks_that_begin_later() {
        let stores = Stores::new();
        let cache = cache(&stores);
        // Of the blocks that begin before row 25, the last has neither it nor those after it.
        keep(&cache, &[0..30, 10..12, 20..22]).await;
        for ids in [25..30, 11..30, 0..30] {
            assert_made(read(&cache, ids.clone()).await, ids);
        }
        assert!(cache.find(29..31).is_none());
    }

    #[tokio::test]
    async fn rows_of_a_forgotten_segment_are_found_in_others() {
        let stores = Stores::new();
        let cache = cache(&stores);
        keep(&cache, &[0..5, 5..10]).await;
        let damaged = cache.object(&stores.list(cache.folder()).await.unwrap()[0].name);
        keep(&cache, &[0..4, 4..6]).await;
        keep(&cache, &[6..8, 8..10]).await;
        stores.put(&damaged, vec![0; 40].into()).await.unwrap();
        assert!(read(&cache, 0..10).await.is_none());
        *cache.looking.lock().await = None;
        cache.look().await.unwrap();
        assert_made(read(&cache, 0..10).await, 0..10);
    }

    #[tokio::test]
    async fn an_empty_range_is_kept_too() {
        let stores = Stores::new();
        let cache = cache(&stores);
        keep(&cache, &[1..2, 3..4]).await;
        assert_made(read(&cache, 1..2).await, 1..2);
    }

    #[tokio::test]
    async fn damaged_segments_are_found_and_give_no_rows() {
        let stores = Stores::new();
        let first = cache(&stores);
        keep(&first, &[0..10, 10..20]).await;
        let place = first.object(&stores.list(first.folder()).await.unwrap()[0].name);
        let whole = stores.get(&place).await.unwrap();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len()).step_by(7).map(|length| whole[..length].to_vec()).collect();
        for bit in (0..whole.len() * 8).step_by(11) {
            let mut flipped = whole.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            damaged.push(flipped);
        }
        for bytes in damaged {
            stores.put(&place, bytes.into()).await.unwrap();
            let other = cache(&stores);
            other.look().await.unwrap();
            for ids in [0..10, 10..20] {
                if let Some(rows) = read(&other, ids.clone()).await {
                    assert_made(Some(rows), ids);
                }
            }
        }
        // A segment that is gone is forgotten, and kept again.
        stores.delete(&place).await.unwrap();
        assert!(read(&first, 0..10).await.is_none());
        assert!(first.find(0..10).is_none());
        keep(&first, &[0..10, 10..20]).await;
        assert_made(read(&first, 0..20).await, 0..20);
    }
}
