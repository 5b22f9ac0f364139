//! CSV: record boundaries, columns, and the reasons for bad records.
//!
//! csv-core splits the text, as in Arrow's decoder, so that both always agree on records: quotes, newlines in quotes,
//! CRLF, blank lines, a byte order mark, a missing last newline.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use arrow_csv::ReaderBuilder;
use arrow_csv::reader::Format as ArrowCsv;
use csv_core::{ReadRecordResult, Reader, ReaderBuilder as CoreBuilder};
use forebay_diagnostics::shortened;
use futures::future::{BoxFuture, FutureExt};
use regex::Regex;

use super::format::{
    DamagedSample, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReaderRequest, SampleFile,
};
use super::options::{FormatOption, FormatOptionKind, ImpliedOption, OptionValues};
use super::sample_rows::{cells, sample_rows, unnamed};
use super::text::{self, RecordText, Records};
use crate::source_file::{RowGroup, SourceFile};
use crate::{Error, Result};

/// The value of an option that is off.
const NONE: &str = "none";
const INFER_ROWS: usize = 1000;
const SHOWN_CHARS_MAX: usize = 80;

static DESCRIPTOR: FormatDescriptor = FormatDescriptor {
    name: "csv",
    summary: "text with a record per line, except for newlines in quotes",
    extensions: &["csv", "tsv"],
    options: &[
        FormatOption {
            name: "has_header",
            kind: FormatOptionKind::Flag,
            default: "true",
            docs: "whether the first record of each file names the columns; `false` gives `column_1`, `column_2`, …",
            only_columns: false,
        },
        FormatOption {
            name: "delimiter",
            kind: FormatOptionKind::Character,
            default: ",",
            docs: "one ASCII character; write a tab as `E'\\t'`",
            only_columns: false,
        },
        FormatOption {
            name: "quote",
            kind: FormatOptionKind::Character,
            default: "\"",
            docs: "the character around values with delimiters and newlines; within them, two stand for one",
            only_columns: false,
        },
        FormatOption {
            name: "escape",
            kind: FormatOptionKind::Text,
            default: NONE,
            docs: "a character that makes the next one plain within quotes, such as `\\`; or `none`",
            only_columns: false,
        },
        FormatOption {
            name: "null",
            kind: FormatOptionKind::Text,
            default: "",
            docs: "the texts that stand for null, separated by commas: `NA,null,` are these two and the empty text",
            only_columns: false,
        },
        FormatOption {
            name: "comment",
            kind: FormatOptionKind::Text,
            default: NONE,
            docs: "a character at the beginning of lines to leave out, such as `#`; or `none`",
            only_columns: false,
        },
    ],
    added_options: &["quote", "escape", "null", "comment"],
    implied: &[ImpliedOption { suffix: ".tsv", option: "delimiter", value: "\t" }],
    row_group: text::ROW_GROUP,
    may_declare_columns: true,
    ..FormatDescriptor::BASE
};

/// Text with a record per line, except for newlines in quotes.
#[derive(Debug)]
pub(crate) struct Csv;

impl Format for Csv {
    fn descriptor(&self) -> &'static FormatDescriptor {
        &DESCRIPTOR
    }

    fn check_options(&self, options: &OptionValues) -> Result<(), String> {
        let mut seen: Vec<(&str, u8)> = Vec::new();
        for name in ["delimiter", "quote", "escape", "comment"] {
            let given = match name {
                "delimiter" | "quote" => Some(options.character(name)),
                _ => character(options.text(name)).map_err(|()| {
                    format!("\"{name}\" must be one ASCII character or {NONE}, got '{}'", options.text(name))
                })?,
            };
            let Some(given) = given else { continue };
            match (given, name) {
                (b'\n' | b'\r', _) => return Err(format!("\"{name}\" must not be a newline")),
                (b'"', "delimiter") => {
                    return Err("a csv delimiter must be an ASCII character other than a quote or newline".to_owned());
                }
                _ => {}
            }
            if let Some((other, _)) = seen.iter().find(|(_, other)| *other == given) {
                return Err(format!("\"{other}\" and \"{name}\" are both '{}'", char::from(given)));
            }
            seen.push((name, given));
        }
        Ok(())
    }

    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        text::open(CsvText::of(request.options), request).boxed()
    }

    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        text::reader(CsvText::of(request.options), request)
    }

    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String> {
        text::misfit(file, group)
    }

    fn sample(&self, _name: &str, numbers: Range<u64>, options: &OptionValues) -> SampleFile {
        sample(&CsvText::of(options), numbers)
    }

    fn sample_options(&self) -> &'static [&'static [(&'static str, &'static str)]] {
        &[
            &[],
            &[("has_header", "false"), ("delimiter", ";")],
            &[("quote", "'"), ("escape", "\\"), ("null", "NA,"), ("comment", "#")],
        ]
    }
}

/// The character of an option that may be off.
fn character(text: &str) -> Result<Option<u8>, ()> {
    match text.as_bytes() {
        _ if text == NONE => Ok(None),
        [byte] if byte.is_ascii() => Ok(Some(*byte)),
        _ => Err(()),
    }
}

/// CSV with its options.
#[derive(Clone, Debug)]
struct CsvText {
    has_header: bool,
    delimiter: u8,
    quote: u8,
    escape: Option<u8>,
    comment: Option<u8>,
    /// What matches cells that are null, unless these are the empty ones.
    null: Option<Regex>,
}

impl CsvText {
    fn of(options: &OptionValues) -> Self {
        let nulls: Vec<String> = options.text("null").split(',').map(regex::escape).collect();
        // An escaped text is a correct expression.
        let null = Regex::new(&format!("^(?:{})$", nulls.join("|"))).ok();
        Self {
            has_header: options.flag("has_header"),
            delimiter: options.character("delimiter"),
            quote: options.character("quote"),
            escape: character(options.text("escape")).unwrap_or_default(),
            comment: character(options.text("comment")).unwrap_or_default(),
            null: null.filter(|_| !options.text("null").is_empty()),
        }
    }

    fn core_reader(&self) -> Reader {
        CoreBuilder::new().delimiter(self.delimiter).quote(self.quote).escape(self.escape).comment(self.comment).build()
    }

    fn arrow_format(&self) -> ArrowCsv {
        let mut format = ArrowCsv::default().with_delimiter(self.delimiter).with_quote(self.quote);
        if let Some(escape) = self.escape {
            format = format.with_escape(escape);
        }
        if let Some(comment) = self.comment {
            format = format.with_comment(comment);
        }
        if let Some(null) = &self.null {
            format = format.with_null_regex(null.clone());
        }
        format
    }
}

impl RecordText for CsvText {
    type Seen = ();

    fn records(&self) -> Box<dyn Records> {
        Box::new(CsvRecords::new(self))
    }

    fn has_header(&self) -> bool {
        self.has_header
    }

    fn check_header(&self, file: &str, header: &[u8], schema: &SchemaRef) -> Result<()> {
        check_header(file, &fields(header, self), schema, header)
    }

    fn infer(&self, sample: &[u8]) -> Result<SchemaRef, ArrowError> {
        infer(sample, self)
    }

    /// Decodes an empty record, which fails for types that Arrow cannot read from CSV.
    fn check_types(&self, schema: &SchemaRef) -> Result<(), ArrowError> {
        let fields: Vec<Field> = schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
        let quote = char::from(self.quote);
        let empty_record = vec![format!("{quote}{quote}"); fields.len()].join(&char::from(self.delimiter).to_string());
        let columns: Vec<usize> = (0..fields.len()).collect();
        // Whatever stands for null in the files, the empty text does here.
        let plain = Self { null: None, ..self.clone() };
        plain.decode(empty_record.as_bytes(), 1, &Arc::new(Schema::new(fields)), &columns)?;
        Ok(())
    }

    fn decode(
        &self,
        records: &[u8],
        rows: usize,
        schema: &SchemaRef,
        columns: &[usize],
    ) -> Result<RecordBatch, ArrowError> {
        decode(records, rows, self, schema, columns)
    }

    fn reason(&self, record: &[u8], schema: &SchemaRef, columns: &[usize], error: &ArrowError) -> String {
        reason(record, self, schema, columns, error)
    }
}

/// Records with quoted texts. One in the middle has a text instead of a number.
fn sample(csv: &CsvText, numbers: Range<u64>) -> SampleFile {
    let named = sample_rows(numbers);
    let delimiter = char::from(csv.delimiter);
    let (rows, header) = match csv.has_header {
        true => (named, format!("n{delimiter}fraction{delimiter}text\n")),
        false => (unnamed(&named), String::new()),
    };
    let quote = char::from(csv.quote);
    let record = |c: &Vec<String>| format!("{}{delimiter}{}{delimiter}{quote}{}{quote}\r\n", c[0], c[1], c[2]);
    let mut records: Vec<String> = cells(&rows).iter().map(record).collect();
    let bytes = |records: &[String]| (header.clone() + &records.concat()).into_bytes();
    let (whole, row) = (bytes(&records), records.len() / 2);
    records[row].insert(0, 'x');
    let damaged = DamagedSample { bytes: bytes(&records), row: row as u64, reason: "cannot read \"x" };
    SampleFile { bytes: whole, rows, damaged: Some(damaged) }
}

/// Finds record ends.
struct CsvRecords {
    reader: Reader,
    at: u64,
    /// A byte without a meaning.
    plain: u8,
}

impl CsvRecords {
    fn new(csv: &CsvText) -> Self {
        let special = [Some(csv.delimiter), Some(csv.quote), csv.escape, csv.comment];
        let plain = (b'a'..=b'z').find(|byte| !special.contains(&Some(*byte))).unwrap_or(b'x');
        Self { reader: csv.core_reader(), at: 0, plain }
    }

    /// Reads to the next record end in `input`, or to the end of `input`.
    fn step(&mut self, input: &[u8]) -> (ReadRecordResult, usize) {
        // Only the record's length matters here, not the fields that csv-core unquotes.
        let (mut fields, mut field_ends) = ([0; 1024], [0; 64]);
        let (result, read, _, _) = self.reader.read_record(input, &mut fields, &mut field_ends);
        self.at += read as u64;
        (result, read)
    }
}

impl Records for CsvRecords {
    fn push(&mut self, mut piece: &[u8], record_ends: &mut dyn FnMut(u64)) {
        // csv-core treats empty input as the end of the text.
        while !piece.is_empty() {
            let (result, read) = self.step(piece);
            piece = &piece[read..];
            if matches!(result, ReadRecordResult::Record) {
                record_ends(self.at);
            }
        }
    }

    fn finish(&mut self, record_ends: &mut dyn FnMut(u64)) -> bool {
        let end = self.at;
        // csv-core does not report open quotes, but this input ends a record unless a quote is open.
        match self.step(&[b'\n', self.plain, b'\n']) {
            (ReadRecordResult::Record, 1) => record_ends(end),
            (ReadRecordResult::Record, _) => {}
            _ => return false,
        }
        true
    }
}

/// Infers the columns from the beginning of a file. All are nullable; a column that is empty so far is text.
fn infer(sample: &[u8], csv: &CsvText) -> Result<SchemaRef, ArrowError> {
    // A record that is not UTF-8 or has too few fields is reported when it is read, and must not prevent opening.
    let sample = String::from_utf8_lossy(sample);
    let (schema, _) = csv
        .arrow_format()
        .with_header(csv.has_header)
        .with_truncated_rows(true)
        .infer_schema(sample.as_bytes(), Some(INFER_ROWS))?;
    let fields = schema.fields().iter().map(|field| match field.data_type() {
        DataType::Null => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
        _ => Arc::clone(field),
    });
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// Refuses a header that differs from the schema, because columns are read by position.
fn check_header(file: &str, names: &[String], schema: &SchemaRef, header: &[u8]) -> Result<()> {
    if header.is_empty() {
        return Ok(());
    }
    if std::str::from_utf8(header).is_err() || header.contains(&0) {
        return Err(Error::invalid(format!(
            "\"{file}\" has a header that is not UTF-8 text; convert the file to UTF-8"
        )));
    }
    if names.len() != schema.fields().len() {
        return Err(Error::invalid(format!(
            "\"{file}\" has {} columns, expected {}; declare every column in the header's order, and give all files \
             the same",
            names.len(),
            schema.fields().len()
        )));
    }
    match names.iter().zip(schema.fields()).find(|(name, field)| *name != field.name()) {
        Some((name, field)) => Err(Error::invalid(format!(
            "\"{file}\" has column \"{name}\" where \"{}\" is expected; declare every column in the header's order, \
             and give all files the same",
            field.name()
        ))),
        None => Ok(()),
    }
}

fn decode(
    records: &[u8],
    rows: usize,
    csv: &CsvText,
    schema: &SchemaRef,
    columns: &[usize],
) -> Result<RecordBatch, ArrowError> {
    let batch = decode_as_is(records, rows, csv, schema, columns)?;
    check_kept(records, rows, csv, schema, columns)?;
    Ok(batch)
}

fn decode_as_is(
    records: &[u8],
    rows: usize,
    csv: &CsvText,
    schema: &SchemaRef,
    columns: &[usize],
) -> Result<RecordBatch, ArrowError> {
    let mut decoder = ReaderBuilder::new(Arc::clone(schema))
        .with_format(csv.arrow_format())
        // One more than expected, so that the caller detects extra rows.
        .with_batch_size(rows + 1)
        .with_projection(columns.to_vec())
        .build_decoder();
    let mut rest = records;
    loop {
        let read = decoder.decode(rest)?;
        rest = &rest[read..];
        if read == 0 {
            break;
        }
    }
    match decoder.flush()? {
        Some(batch) => Ok(batch),
        None => Ok(RecordBatch::new_empty(Arc::new(schema.project(columns)?))),
    }
}

/// Checks that dates, times and floats keep the whole value of their texts. Arrow cuts off a time of day and fractions
/// of a second, and rounds integers. Columns are decoded again, as texts, where the text may have such a value.
fn check_kept(
    records: &[u8],
    rows: usize,
    csv: &CsvText,
    schema: &SchemaRef,
    columns: &[usize],
) -> Result<(), ArrowError> {
    let has = |byte: u8| records.contains(&byte);
    let (has_times, has_fractions) = (has(b':'), has(b'.'));
    let digits_max = longest_number(records);
    let is_suspect = |column: &usize| match schema.field(*column).data_type() {
        DataType::Date32 | DataType::Date64 => has_times,
        DataType::Timestamp(TimeUnit::Nanosecond, _) => false,
        DataType::Timestamp(..) => has_times && has_fractions,
        DataType::Float64 => digits_max > 15,
        DataType::Float32 => digits_max > 7,
        _ => false,
    };
    let suspects: Vec<usize> = columns.iter().copied().filter(is_suspect).collect();
    if suspects.is_empty() {
        return Ok(());
    }
    let text = |(at, field): (usize, &FieldRef)| match suspects.contains(&at) {
        true => Arc::new(field.as_ref().clone().with_data_type(DataType::Utf8).with_nullable(true)),
        false => Arc::clone(field),
    };
    let texts = Arc::new(Schema::new(schema.fields().iter().enumerate().map(text).collect::<Vec<_>>()));
    let texts = decode_as_is(records, rows, csv, &texts, &suspects)?;
    for (&at, column) in suspects.iter().zip(texts.columns()) {
        let field = schema.field(at);
        if let Some(text) = column.as_string::<i32>().iter().flatten().find(|text| !keeps(text, field.data_type())) {
            let (name, data_type) = (field.name(), field.data_type());
            let text = shortened(text, SHOWN_CHARS_MAX);
            return Err(ArrowError::ParseError(format!("column \"{name}\": {data_type} would not keep \"{text}\"")));
        }
    }
    Ok(())
}

/// The most digits in a row.
fn longest_number(text: &[u8]) -> usize {
    let (mut digits, mut most) = (0, 0);
    for byte in text {
        digits = if byte.is_ascii_digit() { digits + 1 } else { 0 };
        most = most.max(digits);
    }
    most
}

/// Whether a value of this type keeps the text's value.
fn keeps(text: &str, data_type: &DataType) -> bool {
    let fraction = text.rsplit_once('.').map_or("", |(_, it)| it);
    let end = fraction.find(|character: char| !character.is_ascii_digit()).unwrap_or(fraction.len());
    let places = fraction[..end].trim_end_matches('0').len();
    match data_type {
        // Midnight is the date.
        DataType::Date32 | DataType::Date64 => {
            !text.contains(':') || text.get(10..).is_none_or(|rest| !rest.contains(|it| matches!(it, '1'..='9')))
        }
        DataType::Timestamp(TimeUnit::Second, _) => places == 0,
        DataType::Timestamp(TimeUnit::Millisecond, _) => places <= 3,
        DataType::Timestamp(TimeUnit::Microsecond, _) => places <= 6,
        DataType::Float32 => text.parse::<i64>().map_or(true, |it| it as f32 as i128 == i128::from(it)),
        DataType::Float64 => text.parse::<i64>().map_or(true, |it| it as f64 as i128 == i128::from(it)),
        _ => true,
    }
}

/// Describes which cell of a record cannot be read, by trying the columns one at a time.
fn reason(record: &[u8], csv: &CsvText, schema: &SchemaRef, columns: &[usize], error: &ArrowError) -> String {
    let cells = fields(record, csv);
    if cells.len() != schema.fields().len() {
        return format!("{} fields where {} are expected", cells.len(), schema.fields().len());
    }
    for &column in columns {
        if decode(record, 1, csv, schema, &[column]).is_ok() {
            continue;
        }
        let field = schema.field(column);
        let (name, cell) = (field.name(), &cells[column]);
        return match (cell.is_empty(), std::str::from_utf8(record).is_ok()) {
            (true, _) => format!("column \"{name}\": is empty, which the schema does not allow"),
            (_, false) => "not UTF-8".to_owned(),
            _ => format!(
                "column \"{name}\": cannot read \"{}\" as {}",
                shortened(cell, SHOWN_CHARS_MAX),
                field.data_type()
            ),
        };
    }
    error.to_string()
}

/// The fields of one record, unquoted.
fn fields(record: &[u8], csv: &CsvText) -> Vec<String> {
    let mut reader = csv.core_reader();
    // Unquoting only shortens, and there is at most one field more than there are delimiters, so one step suffices.
    let mut text = vec![0; record.len() + 1];
    let mut ends = vec![0; record.iter().filter(|b| **b == csv.delimiter).count() + 2];
    let (mut used, mut count, mut rest) = (0, 0, record);
    loop {
        let (result, read, written, ended) = reader.read_record(rest, &mut text[used..], &mut ends[count..]);
        (used, count, rest) = (used + written, count + ended, &rest[read..]);
        match result {
            ReadRecordResult::InputEmpty => {}
            _ => break,
        }
    }
    let starts = std::iter::once(0).chain(ends[..count].iter().copied());
    starts.zip(&ends[..count]).map(|(start, end)| String::from_utf8_lossy(&text[start..*end]).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::table_format::TableFormat;
    use crate::formats::text::record_ends;

    fn csv(options: &[(&str, &str)]) -> CsvText {
        let options: Vec<_> = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        CsvText::of(TableFormat::new(&Csv, "", &options).unwrap().options())
    }

    #[test]
    fn characters_must_differ_and_be_characters() {
        let check = |options: &[(&str, &str)]| {
            let options: Vec<_> = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            TableFormat::new(&Csv, "", &options).unwrap().check().unwrap_err().to_string()
        };
        assert_eq!(check(&[("quote", ",")]), "\"delimiter\" and \"quote\" are both ','");
        assert_eq!(check(&[("escape", "ab")]), "\"escape\" must be one ASCII character or none, got 'ab'");
        assert_eq!(check(&[("comment", "\n")]), "\"comment\" must not be a newline");
    }

    #[test]
    fn records_end_where_arrow_ends_them() {
        let csv = csv(&[]);
        let check = |text: &str, expect: &[&str]| {
            for piece_bytes in [1, 2, 3, 1000] {
                let ends = record_ends(CsvRecords::new(&csv), text, piece_bytes);
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let records: Vec<&str> = starts.zip(&ends).map(|(s, e)| text[s as usize..*e as usize].trim()).collect();
                assert_eq!(records, expect, "{text:?} in pieces of {piece_bytes}");
            }
        };
        check("", &[]);
        check("\n\r\n\n", &[]);
        check("a,1\nb,2", &["a,1", "b,2"]);
        check("a,1\r\nb,2\r\n", &["a,1", "b,2"]);
        check("\na,1\n\n\nb,2\n\n", &["a,1", "b,2"]);
        check("\"a\nb\",1\nc,2\n", &["\"a\nb\",1", "c,2"]);
        check("\"a \"\"\r\nb\"\"\",1\r\n\"\"\n", &["\"a \"\"\r\nb\"\"\",1", "\"\""]);
        check("a,1\nb,\"never closed\nc,2\n", &["a,1"]);
        check(&"x,".repeat(2000), &["x,".repeat(2000).as_str()]);
    }

    #[test]
    fn an_open_quote_is_noticed() {
        let csv = csv(&[]);
        let check = |text: &str, closed: bool| {
            for piece_bytes in [1, 2, 1000] {
                let mut records = CsvRecords::new(&csv);
                for piece in text.as_bytes().chunks(piece_bytes) {
                    records.push(piece, &mut |_| {});
                }
                assert_eq!(records.finish(&mut |_| {}), closed, "{text:?}");
            }
        };
        for closed in ["", "\n", "a", "a,", "a\r", "\"a\"", "\"a\"\n", "a\"b", "\"a\"\"b\"", "\"a\n\"", "\"a\"b"] {
            check(closed, true);
        }
        let marked = CsvRecords::new(&csv_of_x()).finish(&mut |_| {});
        assert!(marked, "a comment is no open quote");
        for open in ["\"", "\"a", "a,\"b\n", "\"a\"\"", "\"a\"\"b\n\n", "a\n\"\r\nb,c\n"] {
            check(open, false);
        }
    }

    fn csv_of_x() -> CsvText {
        csv(&[("comment", "x")])
    }

    #[test]
    fn fields_are_unquoted() {
        assert_eq!(fields(b"a,\"b \"\"c\"\", d\",\r\n", &csv(&[])), ["a", "b \"c\", d", ""]);
        assert_eq!(fields(b"a;b", &csv(&[("delimiter", ";")])), ["a", "b"]);
        let quoted = csv(&[("quote", "'"), ("escape", "\\"), ("comment", "#")]);
        assert_eq!(fields(b"# x,y\n'a\\',''b',\"c\"", &quoted), ["a','b", "\"c\""]);
    }

    #[test]
    fn a_value_that_its_type_would_not_keep_is_refused() {
        let csv = csv(&[]);
        let read = |data_type: DataType, text: &str| {
            let schema =
                Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("v", data_type, true)]));
            let record = format!("1,{text}\n2,\n");
            let whole = decode(record.as_bytes(), 2, &csv, &schema, &[0, 1]);
            assert_eq!(whole.is_ok(), decode(record.as_bytes(), 2, &csv, &schema, &[1]).is_ok());
            whole.map_err(|error| reason(format!("1,{text}").as_bytes(), &csv, &schema, &[0, 1], &error))
        };
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        for (data_type, kept) in [
            (DataType::Date32, "2024-01-01"),
            (DataType::Date32, "2024-01-01 00:00:00"),
            (seconds.clone(), "2024-01-01 10:00:00"),
            (seconds.clone(), "2024-01-01 10:00:00.000"),
            (DataType::Timestamp(TimeUnit::Nanosecond, None), "2024-01-01 10:00:00.123456789"),
            (DataType::Float64, "0.12345678901234567890"),
            (DataType::Float64, "9007199254740992"),
            (DataType::Float64, "NaN"),
        ] {
            assert!(read(data_type.clone(), kept).is_ok(), "{kept} as {data_type}");
        }
        for (data_type, lost) in [
            (DataType::Date32, "2024-01-01 08:30:00"),
            (seconds, "2024-01-01 10:00:00.750"),
            (DataType::Timestamp(TimeUnit::Millisecond, None), "2024-01-01 10:00:00.7501"),
            (DataType::Float64, "9007199254740993"),
            (DataType::Float32, "16777217"),
        ] {
            let expected = format!("column \"v\": cannot read \"{lost}\" as {data_type}");
            assert_eq!(read(data_type, lost).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_schema_is_inferred_from_good_and_bad_rows() {
        let schema = infer(b"a,b,c,d\n1,x,,2.5\n2,\xff,\n3\n", &csv(&[])).unwrap();
        let types: Vec<_> = schema.fields().iter().map(|f| f.data_type().clone()).collect();
        assert_eq!(types, [DataType::Int64, DataType::Utf8, DataType::Utf8, DataType::Float64]);
    }
}
