//! JSON lines: one object per line, with its keys in the order of the columns.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow_json::WriterBuilder;
use arrow_json::writer::LineDelimited;
use bytes::Bytes;

use super::compressed::{COMPRESSION, Compressed, compression};
use super::format::{FileWriter, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::plain::Plain;
use super::refusals::{first_not_finite, not_json, refuse, refused_value};
use crate::Result;
use crate::formats::OptionValues;

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "jsonl",
    aliases: &["json", "ndjson"],
    summary: "one JSON object per line",
    extension: "jsonl",
    options: &[compression(&["none", "gzip", "zstd"], "none")],
    columns: "Numbers, decimals, booleans and texts are those of JSON, lists are arrays, and structs and maps are \
              objects. A tensor is the list of its values, without its shape, and a ragged one an object of `data` and \
              `shape`. Dates and times are texts, those with a zone in UTC.",
    may_be_partitioned: true,
    nulls: "A null is `null`.",
    refused: "bytes, durations, intervals, unions, tensors of bfloat16, maps whose keys are no texts, and numbers that \
              are infinite or not a number",
};

/// One JSON object per line.
#[derive(Debug)]
pub(crate) struct Jsonl;

impl WriteFormat for Jsonl {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn extension(&self, options: &OptionValues) -> &'static str {
        match options.text(COMPRESSION) {
            "gzip" => "jsonl.gz",
            "zstd" => "jsonl.zst",
            _ => "jsonl",
        }
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, not_json)
    }

    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        let text = Compressed::new(options.text(COMPRESSION), None)?;
        Ok(Box::new(JsonlWriter { plain: Plain::for_text(file.schema), text, rows: 0 }))
    }
}

struct JsonlWriter {
    plain: Plain,
    text: Compressed,
    rows: u64,
}

impl FileWriter for JsonlWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.plain.check(rows)?;
        let rows = self.plain.rows(rows)?;
        check_finite(DESCRIPTOR.name, &rows, self.rows)?;
        self.rows += rows.num_rows() as u64;
        let builder = WriterBuilder::new().with_explicit_nulls(true);
        let mut writer = builder.build::<_, LineDelimited>(self.text.plain());
        writer.write(&rows).map_err(|error| unwritable(DESCRIPTOR.name, error))?;
        self.text.advance()
    }

    fn finish(&mut self) -> Result<()> {
        self.text.finish()
    }

    fn take(&mut self) -> Result<Option<Bytes>> {
        Ok(self.text.take())
    }

    fn bytes(&self) -> u64 {
        self.text.plain_bytes()
    }
}

/// Refuses numbers that JSON does not have, which encoders would turn into nulls.
fn check_finite(format: &str, rows: &RecordBatch, before: u64) -> Result<()> {
    for (column, field) in rows.columns().iter().zip(rows.schema_ref().fields()) {
        if let Some(row) = first_not_finite(column) {
            return Err(not_finite(format, field.name(), before + row as u64));
        }
    }
    Ok(())
}

/// The refusal of a number that JSON does not have.
pub(super) fn not_finite(format: &str, column: &str, row: u64) -> crate::Error {
    let advice = "replace such numbers in the query, or write parquet or arrow files";
    refused_value(format, column, row, "has a number that is infinite or not a number", advice)
}
