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

    fn gather(&self, all: &mut SeenLines, mut file: SeenLines) -> Result<(), ArrowError> {
        // The last line may have no end.
        file.fields.add(&file.begun);
        all.fields.gather(file.fields)
    }

    fn inferred(&self, all: &SeenLines) -> Option<SchemaRef> {
        Some(all.fields.columns())
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
    // A line that lacks its end is a bad row, unless the next lines complete it.
    let spans_lines = line_end.is_some_and(|at| if is_whole { end > at } else { only_opens });
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
            check_large(records, &batch)?;
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

/// Checks that floats keep the digits of integers. Columns of floats are decoded again, as texts, where the text may
/// have integers of more digits than a float holds.
fn check_large(records: &[u8], batch: &RecordBatch) -> Result<(), ArrowError> {
    if !has_many_digits(records) {
        return Ok(());
    }
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let floats: Vec<(FieldRef, &ArrayRef)> =
        columns.filter_map(|(field, column)| Some((as_texts(field)?, column))).collect();
    if floats.is_empty() {
        return Ok(());
    }
    let schema = Schema::new(floats.iter().map(|(field, _)| Arc::clone(field)).collect::<Vec<_>>());
    let builder = ReaderBuilder::new(Arc::new(schema)).with_batch_size(batch.num_rows() + 1);
    let mut decoder = builder.with_coerce_primitive(true).build_decoder()?;
    decoder.decode(without_mark(records))?;
    let Some(texts) = decoder.flush()? else { return Ok(()) };
    for ((field, floats), texts) in floats.iter().zip(texts.columns()) {
        if let Some(number) = lost(floats, texts) {
            return Err(ArrowError::JsonError(format!(
                "whilst decoding field '{}': {number} has more digits than Float64 holds; declare another type",
                field.name()
            )));
        }
    }
    Ok(())
}

/// Whether the text has more than 15 digits in a row that do not follow a period. A float holds all numbers of fewer.
fn has_many_digits(text: &[u8]) -> bool {
    let (mut digits, mut is_fraction) = (0, false);
    text.iter().any(|byte| {
        match byte {
            b'0'..=b'9' => digits += 1,
            _ => (digits, is_fraction) = (0, *byte == b'.'),
        }
        digits > 15 && !is_fraction
    })
}

/// An integer among the texts whose digits its float lacks.
fn lost(floats: &ArrayRef, texts: &ArrayRef) -> Option<String> {
    match floats.data_type() {
        DataType::Float64 => {
            let pairs = floats.as_primitive::<Float64Type>().iter().zip(texts.as_string::<i32>());
            let mut pairs = pairs.filter_map(|(float, text)| Some((float?, text?)));
            pairs.find(|(float, text)| !keeps(*float, text)).map(|(_, text)| text.to_owned())
        }
        DataType::List(_) => lost(floats.as_list::<i32>().values(), texts.as_list::<i32>().values()),
        DataType::LargeList(_) => lost(floats.as_list::<i64>().values(), texts.as_list::<i64>().values()),
        DataType::Struct(_) => {
            let columns = floats.as_struct().columns().iter().zip(texts.as_struct().columns());
            columns
                .filter(|(one, other)| one.data_type() != other.data_type())
                .find_map(|(one, other)| lost(one, other))
        }
        _ => None,
    }
}

/// Whether the float is the integer, or is written as the integer: some writers pad large floats with zeros.
fn keeps(float: f64, text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_integer = digits.bytes().all(|byte| byte.is_ascii_digit());
    !is_integer
        || digits.len() <= 15
        || text.parse::<i128>().is_ok_and(|number| float.abs() < 1e38 && float as i128 == number)
        || float.to_string() == text
}

/// The field with floats in the place of integers, if it has integers.
fn as_floats(field: &FieldRef) -> Option<FieldRef> {
    replaced(field, |data_type| data_type.is_integer().then_some(DataType::Float64))
}

/// The field with texts in the place of floats, if it has floats.
fn as_texts(field: &FieldRef) -> Option<FieldRef> {
    replaced(field, |data_type| (*data_type == DataType::Float64).then_some(DataType::Utf8))
}

/// The field with other types inside, if it has any that `other` replaces.
fn replaced(field: &FieldRef, other: impl Fn(&DataType) -> Option<DataType> + Copy) -> Option<FieldRef> {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(replaced(item, other)?),
        DataType::LargeList(item) => DataType::LargeList(replaced(item, other)?),
        DataType::Struct(fields) => {
            let found: Vec<Option<FieldRef>> = fields.iter().map(|field| replaced(field, other)).collect();
            if found.iter().all(Option::is_none) {
                return None;
            }
            let fields = fields.iter().zip(found);
            DataType::Struct(fields.map(|(field, found)| found.unwrap_or_else(|| Arc::clone(field))).collect())
        }
        data_type => other(data_type)?,
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
    fn floats_keep_the_digits_of_integers_or_are_refused() {
        let float = || Field::new("y", DataType::Float64, true);
        let list = DataType::List(Arc::new(float()));
        let inner = DataType::Struct(vec![float(), Field::new("z", DataType::Int64, true)].into());
        let numbers =
            ["9007199254740992", "123456789012345680000", "0.12345678901234567", "1e300", "-1", "9007199254740993.5"];
        for (data_type, open, close) in [(DataType::Float64, "", ""), (list, "[1.5, ", "]"), (inner, "{\"y\": ", "}")] {
            let schema = Arc::new(Schema::new(vec![Field::new("x", data_type, true)]));
            let check = |value: &str| {
                let line = format!("{{\"x\": {open}{value}{close}, \"id\": 12345678901234567890}}\n");
                decode(line.as_bytes(), 1, &schema, &[0]).map(|batch| batch.num_rows())
            };
            for value in numbers {
                assert_eq!(check(value).unwrap(), 1, "{value}");
            }
            for value in [
                "9007199254740993",
                "-9007199254740993",
                "18446744073709551617",
                "10000000000000000000000000000000000000000001",
            ] {
                let error = check(value).unwrap_err();
                assert!(reason(&error).starts_with(&format!("column \"x\": {value} has more digits")), "{error}");
            }
        }
    }

    #[test]
    fn files_of_objects_over_lines_are_told_from_damaged_lines() {
        let check =
            |text: &str, is_lines: bool| assert_eq!(check_lines("f", text.as_bytes()).is_ok(), is_lines, "{text}");
        check("{\"id\": 1,\n \"x\": 2}", false);
        check("{\"id\": {\"a\": 1,\n \"x\": 2}}\n", false);
        check("{\n\"id\": 1", false);
        check("{\"id\": 1,\n{\"id\": 2}", true);
        check("{\"id\": 1\n{\"id\": 2}", true);
        check("{\"id\": 1,\n", true);
        check("{\"id\": 1}\n{\"id\":\n2}", true);
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
