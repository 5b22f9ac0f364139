//! JSON lines: one object per line. Blank lines are skipped.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Float64Type, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow_json::{LineDelimitedWriter, ReaderBuilder};
use futures::future::{BoxFuture, FutureExt};
use serde::de::IgnoredAny;

use super::format::{
    DamagedSample, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReaderRequest, SampleFile,
};
use super::json_fields::JsonFields;
use super::options::OptionValues;
use super::sample_rows::sample_rows;
use super::text::{self, LineEnds, RecordText, Records};
use crate::source_file::{RowGroup, SourceFile};
use crate::{Error, Result};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

static DESCRIPTOR: FormatDescriptor = FormatDescriptor {
    name: "jsonl",
    aliases: &["json", "ndjson"],
    summary: "one JSON object per line",
    extensions: &["jsonl", "ndjson", "json"],
    row_group: text::ROW_GROUP,
    may_declare_columns: true,
    ..FormatDescriptor::BASE
};

/// One JSON object per line.
#[derive(Debug)]
pub(crate) struct Jsonl;

impl Format for Jsonl {
    fn descriptor(&self) -> &'static FormatDescriptor {
        &DESCRIPTOR
    }

    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        text::open(JsonLines, request).boxed()
    }

    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        text::reader(JsonLines, request)
    }

    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String> {
        text::misfit(file, group)
    }

    fn sample(&self, _name: &str, numbers: Range<u64>, _options: &OptionValues) -> SampleFile {
        sample(numbers)
    }
}

#[derive(Debug)]
struct JsonLines;

impl RecordText for JsonLines {
    type Seen = SeenLines;

    fn records(&self) -> Box<dyn Records> {
        Box::new(LineEnds::default())
    }

    fn see(&self, seen: &mut SeenLines, file: &str, piece: &[u8], infers: bool) -> Result<()> {
        let text = match std::mem::replace(&mut seen.has_begun, true) {
            true => piece,
            false => {
                let text = without_mark(piece);
                check_lines(file, text)?;
                text
            }
        };
        if infers {
            seen.add(text);
        }
        Ok(())
    }

    fn inferred(&self, seen: &mut [SeenLines]) -> Option<Result<SchemaRef, ArrowError>> {
        for file in seen.iter_mut() {
            // The last line may have no end.
            file.fields.add(&std::mem::take(&mut file.begun));
        }
        Some(JsonFields::columns(seen.iter().map(|file| &file.fields)))
    }

    fn check_types(&self, schema: &SchemaRef) -> Result<(), ArrowError> {
        ReaderBuilder::new(Arc::clone(schema)).build_decoder()?;
        Ok(())
    }

    fn decode(
        &self,
        records: &[u8],
        rows: usize,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        decode(records, rows, schema, columns)
    }

    fn reason(&self, _record: &[u8], _schema: &SchemaRef, _columns: &[usize], error: &ArrowError) -> String {
        reason(error)
    }
}

/// Objects, one of which lacks its end.
fn sample(numbers: Range<u64>) -> SampleFile {
    let rows = sample_rows(numbers);
    let mut writer = LineDelimitedWriter::new(Vec::new());
    writer.write(&rows).expect("a vector takes all");
    writer.finish().expect("a vector takes all");
    let bytes = writer.into_inner();
    let row = rows.num_rows() / 2;
    let mut ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    let damaged = ends.nth(row).map(|end| {
        let mut bytes = bytes.clone();
        bytes[end - 1] = b' ';
        DamagedSample { bytes, row: row as u64, reason: "not a JSON object" }
    });
    SampleFile { bytes, rows, damaged }
}

/// What the lines of a file show while it is scanned.
#[derive(Debug, Default)]
struct SeenLines {
    fields: JsonFields,
    /// The beginning of a line whose end is in the next piece.
    begun: Vec<u8>,
    has_begun: bool,
}

impl SeenLines {
    fn add(&mut self, mut piece: &[u8]) {
        while let Some(newline) = piece.iter().position(|byte| *byte == b'\n') {
            match self.begun.is_empty() {
                true => self.fields.add(&piece[..newline]),
                false => {
                    self.begun.extend_from_slice(&piece[..newline]);
                    self.fields.add(&self.begun);
                    self.begun.clear();
                }
            }
            piece = &piece[newline + 1..];
        }
        self.begun.extend_from_slice(piece);
    }
}

/// Refuses a file that is one JSON value over many lines, or one array of all records. Its lines are not its records.
fn check_lines(file: &str, start: &[u8]) -> Result<()> {
    let start = start.trim_ascii_start();
    let line_end = start.iter().position(|byte| *byte == b'\n');
    let first_line = start[..line_end.unwrap_or(start.len())].trim_ascii();
    let only_opens = first_line.iter().all(|byte| b"[{ \t".contains(byte)) && !first_line.is_empty();
    let mut values = serde_json::Deserializer::from_slice(start).into_iter::<IgnoredAny>();
    let is_whole = match values.next() {
        Some(Ok(_)) => true,
        Some(Err(error)) if error.is_eof() => false,
        _ => return Ok(()),
    };
    let end = values.byte_offset();
    // An array in each of several lines is a table of bad rows, which are reported one by one.
    let is_one_array = start.starts_with(b"[") && (!is_whole || start[end..].trim_ascii().is_empty());
    let spans_lines = only_opens && line_end.is_some_and(|at| !is_whole || end > at);
    if !is_one_array && !spans_lines {
        return Ok(());
    }
    let (what, filter) = match start.first() {
        Some(b'[') => ("one JSON array", ".[]"),
        _ => ("JSON objects over several lines", "."),
    };
    Err(Error::invalid(format!("\"{file}\" holds {what}, and a JSON lines file holds one object in each line"))
        .with_hint(format!("write one object per line, for example with jq -c '{filter}' in.json > out.jsonl")))
}

fn decode(records: &[u8], rows: usize, schema: &SchemaRef, columns: &[usize]) -> Result<RecordBatch, ArrowError> {
    let schema = Arc::new(schema.project(columns)?);
    let mut decoder = ReaderBuilder::new(Arc::clone(&schema))
        // One more than expected, so that the caller detects extra rows.
        .with_batch_size(rows + 1)
        // A column with both text and numbers is inferred as text.
        .with_coerce_primitive(true)
        .build_decoder()?;
    decoder.decode(without_mark(records))?;
    let decoded = decoder.flush()?;
    // The decoder accepts objects over several lines, and several objects in one line. Then rows would not be lines.
    let mut lines = without_mark(records).split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    if !lines.all(|line| line.is_empty() || (line.starts_with(b"{") && line.ends_with(b"}"))) {
        return Err(ArrowError::JsonError("a line is not one whole object".to_owned()));
    }
    match decoded {
        Some(batch) => {
            check_integers(records, &batch)?;
            Ok(batch)
        }
        None => Ok(RecordBatch::new_empty(schema)),
    }
}

/// Checks that the decoder kept the values of integers: it drops fractions and saturates, without an error. Columns of
/// integers are decoded again, as floats, where the text may have other numbers.
fn check_integers(records: &[u8], batch: &RecordBatch) -> Result<(), ArrowError> {
    let is_suspect = |pair: &[u8]| pair[0] == b'.' || (pair[0].is_ascii_digit() && matches!(pair[1], b'e' | b'E'));
    if !records.windows(2).any(is_suspect) {
        return Ok(());
    }
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let integers: Vec<(FieldRef, &ArrayRef)> =
        columns.filter_map(|(field, column)| Some((as_floats(field)?, column))).collect();
    if integers.is_empty() {
        return Ok(());
    }
    let schema = Schema::new(integers.iter().map(|(field, _)| Arc::clone(field)).collect::<Vec<_>>());
    let mut decoder = ReaderBuilder::new(Arc::new(schema)).with_batch_size(batch.num_rows() + 1).build_decoder()?;
    decoder.decode(without_mark(records))?;
    let Some(floats) = decoder.flush()? else { return Ok(()) };
    for ((field, integers), floats) in integers.iter().zip(floats.columns()) {
        if with_positive_zero(&cast(integers, field.data_type())?) != with_positive_zero(floats) {
            let expected = integers.data_type();
            let message = format!("whilst decoding field '{}': a number is not of type {expected}", field.name());
            return Err(ArrowError::JsonError(message));
        }
    }
    Ok(())
}

/// The field with floats in the place of integers, if it has integers.
fn as_floats(field: &FieldRef) -> Option<FieldRef> {
    let data_type = match field.data_type() {
        data_type if data_type.is_integer() => DataType::Float64,
        DataType::List(item) => DataType::List(as_floats(item)?),
        DataType::LargeList(item) => DataType::LargeList(as_floats(item)?),
        DataType::Struct(fields) => {
            let floats: Vec<Option<FieldRef>> = fields.iter().map(as_floats).collect();
            if floats.iter().all(Option::is_none) {
                return None;
            }
            let fields = fields.iter().zip(floats);
            DataType::Struct(fields.map(|(field, floats)| floats.unwrap_or_else(|| Arc::clone(field))).collect())
        }
        _ => return None,
    };
    Some(Arc::new(field.as_ref().clone().with_data_type(data_type)))
}

/// The integer of `-0` is 0, and arrays compare floats bit by bit.
fn with_positive_zero(floats: &ArrayRef) -> ArrayRef {
    match floats.as_primitive_opt::<Float64Type>() {
        Some(floats) => Arc::new(floats.unary::<_, Float64Type>(|x| x + 0.0)),
        None => Arc::clone(floats),
    }
}

fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// Rewrites Arrow's message to contain the column's name, if it does.
fn reason(error: &ArrowError) -> String {
    let ArrowError::JsonError(text) = error else {
        return error.to_string();
    };
    let mut rest = text.as_str();
    let mut path = Vec::new();
    while let Some((name, inner)) = rest.strip_prefix("whilst decoding field '").and_then(|r| r.split_once("': ")) {
        path.push(name);
        rest = inner;
    }
    let rest = match rest.strip_prefix("failed to parse ") {
        Some(value) => format!("cannot read {value}"),
        None => rest.to_owned(),
    };
    match path.is_empty() {
        true => format!("not a JSON object: {rest}"),
        false => format!("column \"{}\": {rest}", path.join(".")),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    #[test]
    fn integers_keep_their_values_or_are_refused() {
        let list = DataType::List(Arc::new(Field::new("item", DataType::Int32, true)));
        let inner = DataType::Struct(vec![Field::new("y", DataType::Int64, true)].into());
        for (data_type, good, bad) in [
            (
                DataType::Int64,
                vec!["1", "-0", "null", "2.0", "1e3", "9223372036854775807"],
                vec!["0.75", "-0.9", "1e30"],
            ),
            (DataType::UInt8, vec!["255"], vec!["2.5", "254.5"]),
            (list, vec!["[1, 2]", "[]", "[3.0, null]"], vec!["[1, 2.7]"]),
            (inner, vec!["{\"y\": 1}", "{}"], vec!["{\"y\": 1.9}"]),
        ] {
            // The float beside it makes every row a suspect.
            let fields = vec![Field::new("x", data_type.clone(), true), Field::new("z", DataType::Float64, true)];
            let schema = Arc::new(Schema::new(fields));
            let check = |value: &str| {
                let line = format!("{{\"x\": {value}, \"z\": 0.5}}\n");
                decode(line.as_bytes(), 1, &schema, &[0, 1]).map(|batch| batch.num_rows())
            };
            for value in good {
                assert_eq!(check(value).unwrap(), 1, "{value} as {data_type}");
            }
            for value in bad {
                let error = check(value).unwrap_err();
                assert!(reason(&error).starts_with("column \"x\": "), "{error}");
            }
        }
    }

    #[test]
    fn reasons_name_the_column() {
        let reason = |text: &str| reason(&ArrowError::JsonError(text.to_owned()));
        assert_eq!(
            reason("whilst decoding field 'a': whilst decoding field 'b': failed to parse \"x\" as Int64"),
            "column \"a.b\": cannot read \"x\" as Int64"
        );
    }
}
