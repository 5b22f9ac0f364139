//! CSV files.

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Schema};
use arrow_csv::WriterBuilder;
use bytes::Bytes;

use super::compressed::{COMPRESSION, Compressed, compression};
use super::format::{FileWriter, NewFile, WriteDescriptor, WriteFormat, unwritable};
use super::plain::{Plain, plain};
use super::refusals::refuse;
use crate::Result;
use crate::formats::{FormatOption, FormatOptionKind, OptionValues};

static DESCRIPTOR: WriteDescriptor = WriteDescriptor {
    name: "csv",
    aliases: &[],
    summary: "text with a record per line, except for newlines in quotes",
    extension: "csv",
    options: &[
        compression(&["none", "gzip", "zstd"], "none"),
        FormatOption {
            name: "has_header",
            kind: FormatOptionKind::Flag,
            default: "true",
            docs: "whether the first record of each file names the columns",
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
            name: "null",
            kind: FormatOptionKind::Text,
            default: "",
            docs: "the text that stands for null",
            only_columns: false,
        },
    ],
    columns: "Numbers, booleans, texts, dates, times and decimals. Times with a zone are written in UTC.",
    may_be_partitioned: true,
    nulls: "A null is the text of the option `null`, and so a text that is equal to it is read as null.",
    refused: "lists, structs, maps, tensors, bytes, durations, intervals and unions",
};

/// CSV files.
#[derive(Debug)]
pub(crate) struct Csv;

impl WriteFormat for Csv {
    fn descriptor(&self) -> &'static WriteDescriptor {
        &DESCRIPTOR
    }

    fn check_options(&self, options: &OptionValues) -> Result<(), String> {
        let delimiter = options.character("delimiter");
        if matches!(delimiter, b'"' | b'\n' | b'\r') {
            return Err("a csv delimiter must be an ASCII character other than a quote or newline".to_owned());
        }
        let null = options.text("null");
        match null.contains([char::from(delimiter), '"', '\n', '\r']) {
            true => Err("\"null\" must be a text without delimiters, quotes and newlines".to_owned()),
            false => Ok(()),
        }
    }

    fn extension(&self, options: &OptionValues) -> &'static str {
        match options.text(COMPRESSION) {
            "gzip" => "csv.gz",
            "zstd" => "csv.zst",
            _ => "csv",
        }
    }

    fn check(&self, schema: &Schema, _options: &OptionValues) -> Result<()> {
        refuse(DESCRIPTOR.name, schema, |field| match plain(field.data_type()) {
            other if other.is_nested() => {
                Some("make a column of each of its values, or write jsonl, parquet or arrow files")
            }
            other if other.is_binary() || matches!(other, DataType::FixedSizeBinary(_)) => {
                Some("leave it out of the query, or write parquet, arrow, mds or webdataset files")
            }
            DataType::Duration(_) | DataType::Interval(_) => Some("cast it to BIGINT, or write parquet or arrow files"),
            _ => None,
        })
    }

    fn writer(&self, file: &NewFile<'_>, options: &OptionValues) -> Result<Box<dyn FileWriter>> {
        let plain = Plain::for_text(file.schema);
        let text = Compressed::new(options.text(COMPRESSION), None)?;
        let (delimiter, null) = (options.character("delimiter"), options.text("null").to_owned());
        let mut writer = CsvWriter { plain, text, delimiter, null };
        if options.flag("has_header") {
            // A file without rows names its columns, too.
            let no_rows = RecordBatch::new_empty(std::sync::Arc::clone(writer.plain.schema()));
            writer.encode(&no_rows, true)?;
        }
        Ok(Box::new(writer))
    }
}

struct CsvWriter {
    plain: Plain,
    text: Compressed,
    delimiter: u8,
    null: String,
}

impl FileWriter for CsvWriter {
    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        self.plain.check(rows)?;
        let rows = self.plain.rows(rows)?;
        self.encode(&rows, false)
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

impl CsvWriter {
    fn encode(&mut self, rows: &RecordBatch, header: bool) -> Result<()> {
        let builder = WriterBuilder::new().with_header(header).with_delimiter(self.delimiter);
        let mut writer = builder.with_null(self.null.clone()).build(self.text.plain());
        writer.write(rows).map_err(|error| unwritable(DESCRIPTOR.name, error))?;
        drop(writer);
        self.text.advance()
    }
}
