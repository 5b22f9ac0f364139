//! The pinned list of a dataset's files, and the arithmetic of its row numbers.
//!
//! A row's `sample_id` is the number of rows in all earlier files plus its row number in its own file. Files are in the
//! order of their paths, so the ids are dense and depend on nothing but the snapshot.

use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize};

use crate::dataset::Format;
use crate::pinned::PinnedFile;

/// A range reads at most this much uncompressed data, so that a batch's 32-bit offsets hold it.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// Everything that decides which rows a dataset has. Immutable; its id is a hash of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    id: String,
    rows: u64,
    files: Vec<SourceFile>,
}

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The absolute path, or the URL where the file is not on a local disk.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The store's version of the content, where it has one.
    pub etag: Option<String>,
    /// When the file was last written, in milliseconds since 1970.
    pub modified_ms: i64,
    /// The `sample_id` of the file's first row.
    pub first_sample_id: u64,
    /// The number of rows.
    pub rows: u64,
    /// The pieces in which the file is stored, in order.
    pub groups: Vec<RowGroup>,
}

/// Rows that are stored together: a Parquet row group, a block of text, one media file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowGroup {
    /// The row number in the file of the group's first row.
    pub first_row: u64,
    /// The number of rows.
    pub rows: u64,
    /// The uncompressed size of all columns.
    pub bytes: u64,
    /// Where a block of text or a media file begins; zero for Parquet, whose footer knows.
    pub offset: u64,
    /// How long a block of text or a media file is; zero for Parquet.
    pub length: u64,
    /// Whether a part of the group can be read without decoding the rest.
    pub splittable: bool,
}

/// The smallest thing that is read: consecutive rows of one row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowRange {
    /// The position of the file in the snapshot.
    pub file: u32,
    /// The position of the row group in the file.
    pub group: u32,
    /// The row number in the file, not in the group.
    pub first_row: u64,
    /// The number of rows.
    pub rows: u64,
    /// About how many bytes the rows are, uncompressed, with all columns.
    pub bytes: u64,
}

impl Snapshot {
    pub(crate) fn new(format: &Format, schema: &Schema, files: &[PinnedFile], groups: Vec<Vec<RowGroup>>) -> Self {
        let mut rows = 0;
        let files: Vec<SourceFile> = files
            .iter()
            .zip(groups)
            .map(|(file, groups)| {
                let first_sample_id = rows;
                let file_rows = groups.iter().map(|g| g.rows).sum();
                rows += file_rows;
                SourceFile {
                    path: file.display.to_string(),
                    size: file.size(),
                    etag: file.meta.e_tag.clone(),
                    modified_ms: file.meta.last_modified.timestamp_millis(),
                    first_sample_id,
                    rows: file_rows,
                    groups,
                }
            })
            .collect();
        let id = content_id(format, schema, &files);
        Self { id, rows, files }
    }

    /// The files, in the order of their paths.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The hash, in hexadecimal, of the format, the schema, and each file's path, size, version and row groups.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of rows of all files, those that turn out to be unreadable included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file, and the row number in it, of a sample.
    ///
    /// # Panics
    ///
    /// If the snapshot has no such sample, that is, `sample_id >= self.rows()`.
    pub fn locate(&self, sample_id: u64) -> (usize, u64) {
        assert!(sample_id < self.rows, "sample {sample_id} of a snapshot with {} rows", self.rows);
        // The last file that begins at or before the sample: empty files begin where the next one does.
        let file = self.files.partition_point(|f| f.first_sample_id <= sample_id) - 1;
        (file, sample_id - self.files[file].first_sample_id)
    }

    pub(crate) fn row_ranges(&self, bytes_target: u64) -> Vec<RowRange> {
        let mut ranges = Vec::new();
        for (file, source) in self.files.iter().enumerate() {
            for (group, stored) in source.groups.iter().enumerate() {
                split_group(file as u32, group as u32, stored, bytes_target, &mut ranges);
            }
        }
        ranges
    }
}

fn split_group(file: u32, group: u32, stored: &RowGroup, bytes_target: u64, ranges: &mut Vec<RowRange>) {
    if stored.rows == 0 {
        return;
    }
    let target = match stored.splittable {
        true => bytes_target.clamp(1, RANGE_BYTES_MAX),
        false => RANGE_BYTES_MAX,
    };
    let pieces = stored.bytes.div_ceil(target).clamp(1, stored.rows);
    let share = |total: u64, piece: u64| (u128::from(total) * u128::from(piece) / u128::from(pieces)) as u64;
    ranges.extend((0..pieces).map(|piece| {
        let (start, end) = (share(stored.rows, piece), share(stored.rows, piece + 1));
        RowRange {
            file,
            group,
            first_row: stored.first_row + start,
            rows: end - start,
            bytes: share(stored.bytes, piece + 1) - share(stored.bytes, piece),
        }
    }));
}

/// Hashes an encoding of its own, so that the id does not depend on how serde or Arrow write these types.
fn content_id(format: &Format, schema: &Schema, files: &[SourceFile]) -> String {
    let mut hash = ContentHash(blake3::Hasher::new());
    hash.text("forebay snapshot 1");
    hash.text(format.name());
    if let Format::Csv { has_header, delimiter } = format {
        hash.number(u64::from(*has_header));
        hash.number(u64::from(*delimiter));
    }
    hash.number(schema.fields().len() as u64);
    schema.fields().iter().for_each(|field| hash.field(field));
    hash.number(files.len() as u64);
    for file in files {
        hash.text(&file.path);
        hash.number(file.size);
        // A local file's tag holds its inode: good for noticing a change, but a restored backup or a copy that keeps its
        // time is the same file.
        match file.etag.as_ref().filter(|_| !file.path.starts_with('/')) {
            Some(etag) => hash.text(etag),
            None => hash.text(&format!("modified {}", file.modified_ms)),
        }
        hash.number(file.groups.len() as u64);
        for group in &file.groups {
            for number in [group.rows, group.bytes, group.offset, group.length] {
                hash.number(number);
            }
            hash.number(u64::from(group.splittable));
        }
    }
    hash.0.finalize().to_hex().to_string()
}

struct ContentHash(blake3::Hasher);

impl ContentHash {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn field(&mut self, field: &Field) {
        self.text(field.name());
        self.number(u64::from(field.is_nullable()));
        let mut metadata: Vec<_> = field.metadata().iter().collect();
        metadata.sort();
        self.number(metadata.len() as u64);
        for (key, value) in metadata {
            self.text(key);
            self.text(value);
        }
        self.data_type(field.data_type());
    }

    fn data_type(&mut self, data_type: &DataType) {
        match data_type {
            // The text of these would hold their fields' metadata, in the random order of a hash map.
            DataType::List(field) => self.nested("list", [field.as_ref()]),
            DataType::LargeList(field) => self.nested("large list", [field.as_ref()]),
            DataType::ListView(field) => self.nested("list view", [field.as_ref()]),
            DataType::LargeListView(field) => self.nested("large list view", [field.as_ref()]),
            DataType::FixedSizeList(field, size) => self.nested(&format!("list {size}"), [field.as_ref()]),
            DataType::Map(field, sorted) => self.nested(&format!("map {sorted}"), [field.as_ref()]),
            DataType::Struct(fields) => self.nested("struct", fields.iter().map(AsRef::as_ref)),
            DataType::Union(fields, mode) => {
                self.nested(&format!("union {mode:?}"), fields.iter().map(|(_, f)| f.as_ref()));
            }
            DataType::RunEndEncoded(ends, values) => self.nested("run end", [ends.as_ref(), values.as_ref()]),
            DataType::Dictionary(key, value) => {
                self.text("dictionary");
                self.data_type(key);
                self.data_type(value);
            }
            plain => self.text(&plain.to_string()),
        }
    }

    fn nested<'a>(&mut self, name: &str, fields: impl IntoIterator<Item = &'a Field>) {
        self.text(name);
        for field in fields {
            self.number(1);
            self.field(field);
        }
        self.number(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(rows: u64, bytes: u64, splittable: bool) -> RowGroup {
        RowGroup { first_row: 100, rows, bytes, offset: 0, length: 0, splittable }
    }

    fn split(group: RowGroup, target: u64) -> Vec<(u64, u64, u64)> {
        let mut ranges = Vec::new();
        split_group(0, 0, &group, target, &mut ranges);
        ranges.iter().map(|r| (r.first_row, r.rows, r.bytes)).collect()
    }

    #[test]
    fn groups_are_cut_near_the_target() {
        assert_eq!(split(group(10, 100, true), 100), [(100, 10, 100)]);
        assert_eq!(split(group(10, 100, true), 40), [(100, 3, 33), (103, 3, 33), (106, 4, 34)]);
        assert_eq!(split(group(2, 100, true), 0), [(100, 1, 50), (101, 1, 50)]);
        assert_eq!(split(group(0, 0, true), 10), []);
        assert_eq!(split(group(10, 0, true), 10), [(100, 10, 0)]);
    }

    #[test]
    fn a_group_that_does_not_split_stays_whole_while_a_batch_can_hold_it() {
        assert_eq!(split(group(10, 100, false), 1), [(100, 10, 100)]);
        assert_eq!(split(group(10, 3 << 30, false), 1).len(), 3);
        assert_eq!(split(group(10, 3 << 30, true), u64::MAX).len(), 3);
    }

    fn snapshot(rows: &[u64]) -> Snapshot {
        let mut first = 0;
        let files = rows.iter().enumerate().map(|(i, rows)| {
            let first_sample_id = first;
            first += rows;
            SourceFile {
                path: i.to_string(),
                size: 1,
                etag: None,
                modified_ms: 0,
                first_sample_id,
                rows: *rows,
                groups: vec![group(*rows, 1, false)],
            }
        });
        let files = files.collect();
        Snapshot { id: String::new(), rows: first, files }
    }

    #[test]
    fn locate_passes_over_empty_files() {
        let snapshot = snapshot(&[0, 2, 0, 0, 3, 0]);
        let found: Vec<_> = (0..5).map(|id| snapshot.locate(id)).collect();
        assert_eq!(found, [(1, 0), (1, 1), (4, 0), (4, 1), (4, 2)]);
    }

    #[test]
    #[should_panic(expected = "sample 2 of a snapshot with 2 rows")]
    fn locate_refuses_a_sample_that_is_not_there() {
        snapshot(&[2]).locate(2);
    }

    #[test]
    fn the_id_covers_all_that_is_pinned_and_nothing_random() {
        let metadata: Vec<(String, String)> = (0..20).map(|i| (i.to_string(), "x".to_owned())).collect();
        let schema = || {
            let item = Field::new("item", DataType::Int8, true).with_metadata(metadata.clone().into_iter().collect());
            Schema::new(vec![Field::new("a", DataType::List(item.into()), true)])
        };
        let files = snapshot(&[1, 2]).files;
        let id = |format: &Format, schema: &Schema, files: &[SourceFile]| content_id(format, schema, files);
        let first = id(&Format::Parquet, &schema(), &files);
        assert_eq!(first, id(&Format::Parquet, &schema(), &files));
        assert_ne!(first, id(&Format::Jsonl, &schema(), &files));
        assert_ne!(first, id(&Format::Parquet, &Schema::empty(), &files));
        let changes: [fn(&mut SourceFile); 5] = [
            |f| f.path.push('x'),
            |f| f.size += 1,
            |f| f.etag = Some("x".into()),
            |f| f.modified_ms += 1,
            |f| f.groups[0].rows += 1,
        ];
        for change in changes {
            let mut changed = files.clone();
            change(&mut changed[0]);
            assert_ne!(first, id(&Format::Parquet, &schema(), &changed));
        }
    }
}
