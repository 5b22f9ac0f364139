//! The pinned list of a dataset's files, and the arithmetic of its row numbers.
//!
//! A row's `sample_id` is the number of rows in all earlier files plus its row number in its own file. Files are
//! ordered by path, so the ids are dense and depend only on the snapshot.

use std::borrow::Cow;

use arrow::datatypes::Schema;
use serde::{Deserialize, Serialize, Serializer};

use crate::artifact::ContentDigest;
use crate::content_id::content_id;
use crate::dataset_spec::DatasetSpec;
use crate::pinned::PinnedFile;
use crate::source_file::{Cuts, FileContent, RowGroup, RowRange, SourceFile, row_ranges};
use crate::{Error, Result};

/// A snapshot from another process may hold any numbers. Sums of a few numbers below this limit do not overflow.
const TOTAL_MAX: u64 = 1 << 62;

/// All inputs that determine the rows of a dataset. Immutable; its id is a hash of its content.
///
/// Its JSON omits derived values: see `Written`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Written<'static>")]
pub struct Snapshot {
    id: String,
    rows: u64,
    files: Vec<SourceFile>,
}

impl Snapshot {
    pub(crate) fn new(
        spec: &DatasetSpec,
        schema: &Schema,
        files: &[PinnedFile],
        groups: Vec<Vec<RowGroup>>,
    ) -> Result<Self> {
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
                    content: file.verifier.as_ref().map(|verifier| verifier.content),
                }
            })
            .collect();
        let differs = |file: &&SourceFile| file.content.is_some_and(|content| content.rows != file.rows);
        if let Some(file) = sources.iter().find(differs) {
            let expected = file.content.map_or(0, |content| content.rows);
            return Err(Error::data(format!(
                "\"{}\" has {} rows, and its artifact's manifest says {expected}",
                file.path, file.rows
            )));
        }
        let id = id(spec, schema, files, &sources);
        Ok(Self { id, rows, files: sources })
    }

    /// Fails unless [`Snapshot::new`] would create this snapshot from these files, because an id from another process
    /// is not trusted.
    pub(crate) fn check(&self, spec: &DatasetSpec, schema: &Schema, files: &[PinnedFile]) -> Result<()> {
        for file in &self.files {
            if let Some(why) = file.groups.iter().find_map(|group| spec.format.format().misfit(file, group)) {
                return Err(Error::invalid(format!("\"{}\" in the snapshot: {why}", file.path)));
            }
        }
        match id(spec, schema, files, &self.files) {
            content if content == self.id => Ok(()),
            content => Err(Error::conflict(format!(
                "the snapshot was altered: its id is {}, but its format, columns and files make {content}",
                self.id
            ))),
        }
    }

    /// The files, ordered by path.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The common prefix of all paths, up to a slash.
    pub(crate) fn folder(&self) -> &str {
        // The files are sorted, so the common prefix of the first and the last is common to all.
        let (Some(first), Some(last)) = (self.files.first(), self.files.last()) else { return "" };
        let shared = first.path.bytes().zip(last.path.bytes()).take_while(|(a, b)| a == b).count();
        let slash = first.path.as_bytes()[..shared].iter().rposition(|byte| *byte == b'/');
        &first.path[..slash.map_or(0, |at| at + 1)]
    }

    /// The hash, in hexadecimal, of the format, the schema, and each file's path, size, version and row groups. For an
    /// artifact's files, their digests take the place of paths, sizes and versions.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The number of rows in all files, including unreadable rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The file of a sample, and the row number in the file.
    ///
    /// # Panics
    ///
    /// If the snapshot has no such sample, that is, `sample_id >= self.rows()`.
    pub fn locate(&self, sample_id: u64) -> (usize, u64) {
        assert!(sample_id < self.rows, "sample {sample_id} of a snapshot with {} rows", self.rows);
        // The last file that begins at or before the sample. Empty files begin where the next file does.
        let file = self.files.partition_point(|f| f.first_sample_id <= sample_id) - 1;
        (file, sample_id - self.files[file].first_sample_id)
    }

    pub(crate) fn row_ranges(&self, bytes_target: u64) -> Vec<RowRange> {
        row_ranges(&self.files, bytes_target)
    }
}

/// A snapshot in JSON. It contains no sums, which could contradict their parts. The common folder of all paths is
/// written once, so that a hundred thousand files take a few megabytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Written<'a> {
    pub(crate) id: Cow<'a, str>,
    pub(crate) folder: Cow<'a, str>,
    pub(crate) files: Vec<WrittenFile<'a>>,
}

/// Path after the folder, size, modification time in milliseconds, etag, groups; for a file of an artifact, its digest
/// and the number of folders to it.
#[derive(Serialize, Deserialize)]
pub(crate) struct WrittenFile<'a>(
    Cow<'a, str>,
    u64,
    i64,
    Option<Cow<'a, str>>,
    Vec<WrittenGroup>,
    #[serde(default, skip_serializing_if = "Option::is_none")] Option<(ContentDigest, u32)>,
);

/// Rows, bytes, offset, length, cuts.
#[derive(Serialize, Deserialize)]
struct WrittenGroup(u64, u64, u64, u64, WrittenCuts);

/// Whether a group is cut anywhere, or the rows of each piece but the last: smaller numbers than those of the cuts.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenCuts {
    Anywhere(bool),
    Pieces(Vec<u32>),
}

impl From<&Cuts> for WrittenCuts {
    fn from(cuts: &Cuts) -> Self {
        match cuts {
            Cuts::Nowhere => Self::Anywhere(false),
            Cuts::Anywhere => Self::Anywhere(true),
            Cuts::At(rows) => {
                let mut before = 0;
                Self::Pieces(rows.iter().map(|row| row - std::mem::replace(&mut before, *row)).collect())
            }
        }
    }
}

impl WrittenCuts {
    /// The cuts, or `None` if a row's number overflows.
    fn cuts(self) -> Option<Cuts> {
        match self {
            Self::Anywhere(false) => Some(Cuts::Nowhere),
            Self::Anywhere(true) => Some(Cuts::Anywhere),
            Self::Pieces(rows) => {
                let mut cut = 0_u32;
                let cuts = rows.into_iter().map(|rows| {
                    cut = cut.checked_add(rows)?;
                    Some(cut)
                });
                cuts.collect::<Option<_>>().map(Cuts::At)
            }
        }
    }
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let folder = self.folder();
        let files = self.files.iter().map(|file| file.written(folder)).collect();
        Written { id: self.id.as_str().into(), folder: folder.into(), files }.serialize(serializer)
    }
}

impl SourceFile {
    pub(crate) fn written(&self, folder: &str) -> WrittenFile<'_> {
        let group = |g: &RowGroup| WrittenGroup(g.rows, g.bytes, g.offset, g.length, (&g.cuts).into());
        let groups = self.groups.iter().map(group).collect();
        let name = self.path[folder.len()..].into();
        let content = self.content.map(|content| (content.digest, content.folders));
        WrittenFile(name, self.size, self.modified_ms, self.etag.as_deref().map(Cow::from), groups, content)
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

/// The files of a snapshot being read, checked as they are added.
#[derive(Debug, Default)]
pub(crate) struct FilesChecked {
    rows: u64,
    bytes: u64,
    files: Vec<SourceFile>,
}

impl FilesChecked {
    /// Adds the next file, whose name is a path below `folder`.
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
        let WrittenFile(name, size, modified_ms, etag, groups, content) = file;
        let path = format!("{folder}{name}");
        if self.files.last().is_some_and(|before| before.path >= path) {
            return Err(damaged(&format!("\"{path}\" is out of order")));
        }
        count(self.files.len() + 1)?;
        count(groups.len())?;
        let (first_sample_id, mut first_row) = (self.rows, 0);
        let mut found = Vec::with_capacity(groups.len());
        for WrittenGroup(group_rows, group_bytes, offset, length, cuts) in groups {
            let cuts = cuts.cuts().ok_or_else(|| damaged(&format!("\"{path}\" has too many rows")))?;
            found.push(RowGroup { first_row, rows: group_rows, bytes: group_bytes, offset, length, cuts });
            add(&mut self.rows, group_rows)?;
            add(&mut self.bytes, group_bytes)?;
            first_row += group_rows;
        }
        let etag = etag.map(Cow::into_owned);
        let rows = first_row;
        let content = content.map(|(digest, folders)| FileContent { digest, rows, folders });
        self.files.push(SourceFile { path, size, etag, modified_ms, first_sample_id, rows, groups: found, content });
        Ok(())
    }

    /// The snapshot of these files. Its id is unverified.
    pub(crate) fn snapshot(self, id: String) -> Snapshot {
        Snapshot { id, rows: self.rows, files: self.files }
    }
}

fn id(spec: &DatasetSpec, schema: &Schema, files: &[PinnedFile], sources: &[SourceFile]) -> String {
    content_id(&spec.format, schema, first_name(files), spec.path_column.is_some(), sources)
}

/// The first file's path below the dataset's folder. It determines where the folder is.
fn first_name(files: &[PinnedFile]) -> &str {
    files.first().map_or("", |file| &file.relative)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;
    use crate::TableFormat;

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
                groups: vec![RowGroup {
                    first_row: 0,
                    rows: *rows,
                    bytes: 1,
                    offset: 0,
                    length: 0,
                    cuts: Cuts::Nowhere,
                }],
                content: None,
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
        let id = |format: &str, schema: &Schema, files: &[SourceFile]| {
            content_id(&TableFormat::named(format).unwrap(), schema, "", false, files)
        };
        let first = id("parquet", &schema(), &files);
        assert_eq!(first, id("parquet", &schema(), &files));
        assert_ne!(first, id("jsonl", &schema(), &files));
        assert_ne!(first, id("parquet", &Schema::empty(), &files));
        let changes: [fn(&mut SourceFile); 7] = [
            |f| f.path.push('x'),
            |f| f.size += 1,
            |f| f.etag = Some("x".into()),
            |f| f.modified_ms += 1,
            |f| f.groups[0].rows += 1,
            |f| f.groups[0].cuts = Cuts::Anywhere,
            |f| f.groups[0].cuts = Cuts::At([1].into()),
        ];
        for change in changes {
            let mut changed = files.clone();
            change(&mut changed[0]);
            assert_ne!(first, id("parquet", &schema(), &changed));
        }
    }
}
