//! The pinned list of a dataset's files, and the arithmetic of its row numbers.
//!
//! A row's `sample_id` is the number of rows in all earlier files plus its row number in its own file. Files are in the
//! order of their paths, so the ids are dense and depend on nothing but the snapshot.

use std::borrow::Cow;

use arrow::datatypes::{DataType, Field, Schema};
use serde::{Deserialize, Serialize, Serializer};

use crate::dataset::Format;
use crate::parquet_file::GROUP_ROWS_MAX;
use crate::pinned::PinnedFile;
use crate::{Error, Result};

/// A range reads at most this much, so that a batch's 32-bit offsets hold it.
const RANGE_BYTES_MAX: u64 = 1 << 30;

/// A snapshot from elsewhere may claim any numbers; below these, sums of a few stay far from overflow.
const TOTAL_MAX: u64 = 1 << 62;

/// Everything that decides which rows a dataset has. Immutable; its id is a hash of its content.
///
/// As JSON it is lists of values, and what these imply is left out: see `Written`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written<'static>")]
pub struct Snapshot {
    id: String,
    rows: u64,
    files: Vec<SourceFile>,
}

/// One file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// The row number in the file of the group's first row.
    pub first_row: u64,
    /// The number of rows.
    pub rows: u64,
    /// About how many bytes all columns are in memory, as far as the file says.
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
    /// About how many bytes the rows are in memory, with all columns.
    pub bytes: u64,
}

impl Snapshot {
    pub(crate) fn new(format: &Format, schema: &Schema, files: &[PinnedFile], groups: Vec<Vec<RowGroup>>) -> Self {
        let mut rows = 0;
        let sources: Vec<SourceFile> = files
            .iter()
            .zip(groups)
            .map(|(file, groups)| {
                let first_sample_id = rows;
                let file_rows = groups.iter().map(|g| g.rows).sum();
                rows += file_rows;
                SourceFile {
                    path: file.display.to_string(),
                    size: file.size,
                    etag: file.etag.clone(),
                    modified_ms: file.modified_ms,
                    first_sample_id,
                    rows: file_rows,
                    groups,
                }
            })
            .collect();
        let id = content_id(format, schema, first_name(files), &sources);
        Self { id, rows, files: sources }
    }

    /// Fails unless this is what [`Snapshot::new`] would make of these files: an id from elsewhere is only a claim.
    pub(crate) fn check(&self, format: &Format, schema: &Schema, files: &[PinnedFile]) -> Result<()> {
        for file in &self.files {
            if let Some(why) = file.groups.iter().find_map(|group| misfit(format, file, group)) {
                return Err(Error::invalid(format!("\"{}\" in the snapshot: {why}", file.path)));
            }
        }
        match content_id(format, schema, first_name(files), &self.files) {
            content if content == self.id => Ok(()),
            content => Err(Error::conflict(format!(
                "the snapshot was altered: its id is {}, but its format, columns and files make {content}",
                self.id
            ))),
        }
    }

    /// The files, in the order of their paths.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The beginning of all paths, up to a slash.
    pub(crate) fn folder(&self) -> &str {
        // They are sorted, so what the first and the last share is what all share.
        let (Some(first), Some(last)) = (self.files.first(), self.files.last()) else { return "" };
        let shared = first.path.bytes().zip(last.path.bytes()).take_while(|(a, b)| a == b).count();
        let slash = first.path.as_bytes()[..shared].iter().rposition(|byte| *byte == b'/');
        &first.path[..slash.map_or(0, |at| at + 1)]
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

impl SourceFile {
    /// The store's version of the content, where it lasts. A local file's holds its inode: good for noticing a change,
    /// but a restored backup, a copy that keeps its time, and the same file through another mount are the same file.
    pub(crate) fn lasting_etag(&self) -> Option<&String> {
        self.etag.as_ref().filter(|_| !self.path.starts_with('/'))
    }

    pub(crate) fn written(&self, folder: &str) -> WrittenFile<'_> {
        let group = |g: &RowGroup| WrittenGroup(g.rows, g.bytes, g.offset, g.length, g.splittable);
        let groups = self.groups.iter().map(group).collect();
        let name = self.path[folder.len()..].into();
        WrittenFile(name, self.size, self.modified_ms, self.etag.as_deref().map(Cow::from), groups)
    }
}

/// Why a group cannot be one of `file`, if it cannot. Decoders allocate by these numbers.
fn misfit(format: &Format, file: &SourceFile, group: &RowGroup) -> Option<String> {
    let whole_file =
        RowGroup { first_row: 0, rows: 1, bytes: file.size, offset: 0, length: file.size, splittable: false };
    let end = group.offset.saturating_add(group.length);
    match format {
        Format::Parquet => {
            (group.rows > GROUP_ROWS_MAX as u64).then(|| format!("a row group claims {} rows", group.rows))
        }
        Format::Csv { .. } | Format::Jsonl => {
            (end > file.size || group.rows > group.length || group.splittable).then(|| {
                format!("a block of {} rows cannot be bytes {}..{end} of {}", group.rows, group.offset, file.size)
            })
        }
        Format::Media => (*group != whole_file || file.groups.len() != 1)
            .then(|| "a media file is one row of all its bytes".to_owned()),
        Format::Memory => Some("it is of rows in memory".to_owned()),
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

/// How a snapshot is written. Sums are left out, so that they cannot contradict what they are sums of; what all paths
/// begin with is written once, so that a hundred thousand files are a few megabytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) folder: Cow<'a, str>,
    pub(crate) files: Vec<WrittenFile<'a>>,
}

/// Path after the folder, size, time of the last change in milliseconds, etag, groups.
#[derive(Serialize, Deserialize)]
pub(crate) struct WrittenFile<'a>(Cow<'a, str>, u64, i64, Option<Cow<'a, str>>, Vec<WrittenGroup>);

/// Rows, bytes, offset, length, splittable.
#[derive(Serialize, Deserialize)]
struct WrittenGroup(u64, u64, u64, u64, bool);

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let folder = self.folder();
        let files = self.files.iter().map(|file| file.written(folder)).collect();
        Written { id: self.id.as_str().into(), folder: folder.into(), files }.serialize(serializer)
    }
}

impl TryFrom<Written<'_>> for Snapshot {
    type Error = Error;

    fn try_from(written: Written<'_>) -> Result<Self> {
        let Written { id, folder, files } = written;
        let mut checked = FilesChecked { files: Vec::with_capacity(files.len()), ..FilesChecked::default() };
        files.into_iter().try_for_each(|file| checked.add(&folder, file))?;
        Ok(checked.snapshot(id.into_owned()))
    }
}

/// Files of a snapshot that is read, checked as they are added.
#[derive(Debug, Default)]
pub(crate) struct FilesChecked {
    rows: u64,
    bytes: u64,
    files: Vec<SourceFile>,
}

impl FilesChecked {
    /// Adds the next file, whose name is a path after `folder`.
    pub(crate) fn add(&mut self, folder: &str, file: WrittenFile<'_>) -> Result<()> {
        let damaged = |why: &str| Error::invalid(format!("the snapshot is damaged: {why}"));
        let add = |sum: &mut u64, number: u64| {
            *sum = sum
                .checked_add(number)
                .filter(|sum| *sum < TOTAL_MAX)
                .ok_or_else(|| damaged("its files are too large"))?;
            Ok::<_, Error>(())
        };
        let count = |length: usize| u32::try_from(length).map(|_| ()).map_err(|_| damaged("it has too many files"));
        let WrittenFile(name, size, modified_ms, etag, groups) = file;
        let path = format!("{folder}{name}");
        if self.files.last().is_some_and(|before| before.path >= path) {
            return Err(damaged(&format!("\"{path}\" is out of order")));
        }
        count(self.files.len() + 1)?;
        count(groups.len())?;
        let (first_sample_id, mut first_row) = (self.rows, 0);
        let mut found = Vec::with_capacity(groups.len());
        for WrittenGroup(group_rows, group_bytes, offset, length, splittable) in groups {
            found.push(RowGroup { first_row, rows: group_rows, bytes: group_bytes, offset, length, splittable });
            add(&mut self.rows, group_rows)?;
            add(&mut self.bytes, group_bytes)?;
            first_row += group_rows;
        }
        let etag = etag.map(Cow::into_owned);
        self.files.push(SourceFile { path, size, etag, modified_ms, first_sample_id, rows: first_row, groups: found });
        Ok(())
    }

    /// The snapshot of these files, with an id that is a claim.
    pub(crate) fn snapshot(self, id: String) -> Snapshot {
        Snapshot { id, rows: self.rows, files: self.files }
    }
}

/// The first file's path below the dataset's folder, which says where that is.
fn first_name(files: &[PinnedFile]) -> &str {
    files.first().map_or("", |file| &file.relative)
}

/// Hashes an encoding of its own, so that the id does not depend on how serde or Arrow write these types.
fn content_id(format: &Format, schema: &Schema, first_name: &str, files: &[SourceFile]) -> String {
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
    // Two locations may give the same files under other names, and columns of media are made of these.
    if *format == Format::Media {
        hash.text(first_name);
    }
    for file in files {
        hash.text(&file.path);
        hash.number(file.size);
        match file.lasting_etag() {
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
        let id = |format: &Format, schema: &Schema, files: &[SourceFile]| content_id(format, schema, "", files);
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
