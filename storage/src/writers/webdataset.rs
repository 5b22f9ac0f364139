//! Tar shards of WebDataset: a member for each value, and consecutive members of one key for each row.
//!
//! A member's name is the key, the column, and an extension that tells readers how to decode it. What follows the first
//! period of a name is not part of the key.

use std::io::Write;

use arrow::array::RecordBatch;
use arrow::datatypes::{FieldRef, Schema};
use arrow_json::writer::EncoderOptions;
use bytes::Bytes;

use super::cells::{Cells, Kind, Shape, Unfit};
use super::format::{FileWriter, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::jsonl::not_finite;
use super::npy;
use super::plain::Plain;
use super::refusals::{WITHOUT_NULLS, not_json, not_numpy, refuse, refused_value};
use super::tar::{TooLarge, append_end, append_member};
use crate::formats::{FormatOption, FormatOptionKind, OptionValues};
use crate::{Error, Result};

/// The column of keys.
const KEY: &str = "__key__";
/// Dimensions of numpy's arrays in all of its versions.
const RANK_MAX: usize = 32;

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "webdataset",
    aliases: &["wds", "tar"],
    summary: "tar shards of WebDataset",
    extension: "tar",
    options: &[FormatOption {
        name: "compression",
        kind: FormatOptionKind::OneOf(&["none"]),
        default: "none",
        docs: "how the data are compressed",
        only_columns: false,
    }],
    columns: "Each value is a member `key.column.extension`: `cls` for integers and booleans, `txt` for texts, dates, \
              times, durations and decimals, `npy` for tensors and lists of numbers without nulls, `jpg`, `png` and others for \
              bytes that begin like such a file, `bin` for other bytes, and `json` for all else. A column whose name \
              is such an extension or ends with one, as in `jpg` and `mask.png`, has no second one. A text column \
              `__key__` holds the keys; without it, they are numbers.",
    may_be_partitioned: false,
    nulls: "A row has no member for a null. A row of only nulls is refused, since it would be no sample.",
    refused: "unions, tensors of bfloat16, tensors in another order than C's, within `json` what jsonl refuses, keys \
              with a period or equal to the one before, and names of columns with slashes or equal but for case",
};

/// Tar shards of WebDataset.
#[derive(Debug)]
pub(crate) struct WebDataset;

impl WriteFormat for WebDataset {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, |field| match Kind::of(field) {
            Kind::Text if field.name() == KEY => None,
            _ if field.name() == KEY => Some("cast it to VARCHAR, since keys are texts"),
            _ if not_numpy(field).is_some() => not_numpy(field),
            Kind::Array(_, Shape::Ragged(rank)) if rank > RANK_MAX => Some("give the tensor at most 32 dimensions"),
            Kind::Json => not_json(field),
            _ => None,
        })?;
        let mut names: Vec<String> = Vec::new();
        for field in schema.fields() {
            let name = field.name();
            if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') || name.ends_with('.') {
                return Err(Error::invalid(format!("\"{name}\" cannot be a part of a {} member", DESCRIPTOR.name))
                    .with_hint("give the column a name without slashes, and without periods at its ends"));
            }
            let lower = name.to_lowercase();
            if names.contains(&lower) {
                return Err(Error::invalid(format!(
                    "two columns are named \"{lower}\" but for case, which readers of {} ignore",
                    DESCRIPTOR.name
                ))
                .with_hint("name them apart in the query: column AS name"));
            }
            names.push(lower);
        }
        match names.iter().any(|name| name != KEY) {
            true => Ok(()),
            false => Err(Error::invalid(format!("a {} sample needs a column beside its key", DESCRIPTOR.name))),
        }
    }

    fn writer(&self, file: &NewFile<'_>, _options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        if let Some(problem) = problem_of_key(&format!("{}0", file.key_prefix)) {
            return Err(Error::invalid(format!(
                "keys cannot begin with \"{}\": such a key {problem}",
                file.key_prefix
            )));
        }
        let plain = Plain::for_text(file.schema);
        let fields = plain.schema().fields().iter().enumerate();
        let members = fields.clone().filter(|(_, field)| field.name() != KEY).map(Member::new).collect();
        let key = fields.clone().find(|(_, field)| field.name() == KEY).map(|(at, _)| at);
        Ok(Box::new(TarWriter {
            members,
            key,
            key_prefix: file.key_prefix.to_owned(),
            plain,
            json: EncoderOptions::default().with_explicit_nulls(true),
            archive: Vec::new(),
            taken: 0,
            rows: 0,
            last_key: Vec::new(),
        }))
    }
}

/// The members of a column.
struct Member {
    column: String,
    at: usize,
    /// How its values are encoded.
    kind: Kind,
    /// What follows the key in the name. Bytes of an unknown kind get another extension by their first bytes.
    suffix: String,
    is_known: bool,
    /// The head of arrays of one shape.
    head: Vec<u8>,
}

impl Member {
    fn new((at, field): (usize, &FieldRef)) -> Self {
        let (column, kind) = (field.name().clone(), Kind::of(field));
        let (usual, others): (&str, &[&str]) = match &kind {
            Kind::Number(number) if number.is_integer() => ("cls", &["cls", "cls2", "class", "count", "index", "id"]),
            Kind::Boolean => ("cls", &["cls", "cls2", "class"]),
            Kind::Text => ("txt", &["txt", "text", "transcript", "html", "htm", "json", "xml"]),
            Kind::Decimal | Kind::Time => ("txt", &["txt", "text"]),
            Kind::Bytes => ("bin", MEDIA),
            Kind::Array(_, _) => ("npy", &["npy"]),
            Kind::Number(_) | Kind::Json => ("json", &["json"]),
        };
        let lower = column.to_lowercase();
        let last = lower.rsplit('.').next().unwrap_or_default();
        let is_known = others.contains(&last);
        let suffix = if is_known { format!(".{column}") } else { format!(".{column}.{usual}") };
        let mut head = Vec::new();
        if let Kind::Array(number, Shape::Fixed(shape)) = &kind {
            let shape: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
            npy::append_head(*number, &shape, &mut head);
        }
        // Numbers are text, as in JSON.
        let kind = if matches!(kind, Kind::Number(_)) { Kind::Json } else { kind };
        Self { column, at, kind, suffix, is_known, head }
    }
}

/// Extensions of bytes.
const MEDIA: &[&str] = &[
    "bin", "jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "wav", "flac", "mp3", "ogg", "m4a", "mp4", "mkv",
    "webm", "avi", "mov", "pdf", "npy", "npz", "pth", "gz",
];

/// The extension of bytes that begin like a file of a known kind.
fn extension_of(bytes: &[u8]) -> Option<&'static str> {
    let marks: &[(usize, &[u8], &str)] = &[
        (0, b"\xff\xd8\xff", "jpg"),
        (0, b"\x89PNG\r\n\x1a\n", "png"),
        (8, b"WEBP", "webp"),
        (8, b"WAVE", "wav"),
        (0, b"GIF8", "gif"),
        (0, b"II*\0", "tif"),
        (0, b"MM\0*", "tif"),
        (0, b"fLaC", "flac"),
        (0, b"OggS", "ogg"),
        (0, b"ID3", "mp3"),
        (4, b"ftyp", "mp4"),
        (0, b"%PDF-", "pdf"),
        (0, b"\x93NUMPY", "npy"),
    ];
    let begins = |(at, mark, _): &&(usize, &[u8], &str)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(mark));
    marks.iter().find(begins).map(|(_, _, extension)| *extension)
}

struct TarWriter {
    plain: Plain,
    members: Vec<Member>,
    /// The position of the column of keys.
    key: Option<usize>,
    key_prefix: String,
    json: EncoderOptions,
    archive: Vec<u8>,
    taken: u64,
    rows: u64,
    last_key: Vec<u8>,
}

impl FileWriter for TarWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.plain.check(rows)?;
        let rows = self.plain.rows(rows)?;
        self.append(&rows)
    }

    fn finish(&mut self) -> Result<()> {
        append_end(&mut self.archive);
        Ok(())
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        let bytes = std::mem::take(&mut self.archive);
        self.taken += bytes.len() as u64;
        Ok((!bytes.is_empty()).then(|| bytes.into()))
    }

    fn bytes(&self) -> u64 {
        self.taken + self.archive.len() as u64
    }
}

impl TarWriter {
    fn append(&mut self, rows: &RecordBatch) -> Result<()> {
        let schema = rows.schema_ref();
        let of = |kind: &Kind, at: usize| {
            Cells::new(kind, rows.column(at), &schema.fields()[at], &self.json)
                .map_err(|error| unwritable(DESCRIPTOR.name, error))
        };
        let mut cells = self.members.iter().map(|member| of(&member.kind, member.at)).collect::<Result<Vec<_>>>()?;
        let keys = self.key.map(|at| of(&Kind::Text, at)).transpose()?;
        for (cells, member) in cells.iter().zip(&self.members) {
            if let Some(row) = cells.first_not_finite() {
                return Err(not_finite(DESCRIPTOR.name, &member.column, self.rows + row as u64));
            }
        }
        let (mut name, mut shape) = (Vec::new(), Vec::new());
        for row in 0..rows.num_rows() {
            let number = self.rows;
            name.clear();
            match &keys {
                None => _ = write!(name, "{}{number:08}", self.key_prefix),
                Some(keys) => {
                    name.extend_from_slice(own_key(keys, row, number)?);
                    if name == self.last_key {
                        let key = String::from_utf8_lossy(&name);
                        return Err(Error::invalid(format!(
                            "rows {} and {number} of the file have the key \"{key}\", and would be one sample",
                            number - 1
                        ))
                        .with_hint("make the keys unique"));
                    }
                    self.last_key.clone_from(&name);
                }
            }
            let (key_bytes, begin) = (name.len(), self.archive.len());
            for (cells, member) in cells.iter_mut().zip(&self.members) {
                if cells.is_null(row) {
                    continue;
                }
                name.truncate(key_bytes);
                name.extend_from_slice(member.suffix.as_bytes());
                if let (Kind::Bytes, false) = (&member.kind, member.is_known)
                    && let Some(extension) = cells.bytes(row).and_then(extension_of)
                {
                    name.truncate(name.len() - "bin".len());
                    name.extend_from_slice(extension.as_bytes());
                }
                append_member(&mut self.archive, &name, |out| append_value(member, cells, row, &mut shape, out))
                    .map_err(|problem| problem.error(&member.column, number))?;
            }
            if self.archive.len() == begin {
                return Err(Error::invalid(format!("row {number} of the file has only nulls, and would be no sample"))
                    .with_hint(WITHOUT_NULLS));
            }
            self.rows += 1;
        }
        Ok(())
    }
}

/// Why a value cannot be stored.
enum Problem {
    Unfit(Unfit),
    TooLarge,
}

impl From<TooLarge> for Problem {
    fn from(_: TooLarge) -> Self {
        Self::TooLarge
    }
}

impl Problem {
    fn error(self, column: &str, row: u64) -> Error {
        let (problem, advice) = match self {
            Self::Unfit(Unfit::NullElement) => ("has a null element", WITHOUT_NULLS),
            Self::Unfit(Unfit::Malformed) => ("has other values than its shape says", "write the tensors again"),
            Self::TooLarge => ("has a value of more than 8 GiB", "write parquet or arrow files"),
        };
        refused_value(DESCRIPTOR.name, column, row, problem, advice)
    }
}

fn append_value(
    member: &Member,
    cells: &mut Cells<'_>,
    row: usize,
    shape: &mut Vec<u64>,
    out: &mut Vec<u8>,
) -> Result<(), Problem> {
    match &member.kind {
        Kind::Array(_, Shape::Fixed(_)) => out.extend_from_slice(&member.head),
        Kind::Array(number, _) => {
            cells.shape(row, shape).map_err(Problem::Unfit)?;
            npy::append_head(*number, shape, out);
        }
        Kind::Boolean => {
            cells.append(row, out).map_err(Problem::Unfit)?;
            // The digit.
            if let Some(last) = out.last_mut() {
                *last += b'0';
            }
            return Ok(());
        }
        _ => {}
    }
    cells.append(row, out).map_err(Problem::Unfit)
}

fn own_key<'a>(keys: &'a Cells<'_>, row: usize, number: u64) -> Result<&'a [u8]> {
    let key = if keys.is_null(row) { None } else { keys.bytes(row) };
    let text = key.map(String::from_utf8_lossy);
    let problem = text.as_ref().map_or(Some("is null"), |key| problem_of_key(key));
    match (key, problem) {
        (Some(key), None) => Ok(key),
        (_, problem) => Err(Error::invalid(format!(
            "the key of row {number} of the file{} {}",
            text.map(|key| format!(", \"{}\",", forebay_diagnostics::shortened(&key, 80))).unwrap_or_default(),
            problem.unwrap_or_default()
        ))
        .with_hint("give each row a key without periods, such as its number")),
    }
}

/// Why readers would not find a sample of this key, or would find another one. The text follows "the key".
fn problem_of_key(key: &str) -> Option<&'static str> {
    let last = key.rsplit('/').next().unwrap_or_default();
    if last.is_empty() {
        return Some("is empty, or ends with a slash");
    }
    if last.contains('.') {
        return Some("has a period, where readers end keys");
    }
    if key.starts_with("__") {
        return Some("begins with \"__\", as names that readers skip");
    }
    if key.starts_with('/') || key.split('/').any(|part| part == "..") || key.contains(['\0', '\n']) {
        return Some("is not a relative path");
    }
    None
}
