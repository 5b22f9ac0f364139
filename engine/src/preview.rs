//! The first processed rows of a pipeline: as a table, as JSON, and as a page with images.

use std::fmt::Write;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float32Type, Int32Type, UInt8Type};
use arrow::util::display::{ArrayFormatter, FormatOptions, array_value_to_string};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_arrays::{TensorType, type_name};
use forebay_diagnostics::shortened;
use forebay_protocol::{FeedOptions, OnError, ReadOptions};
use serde_json::{Map, Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::feed::{Feed, Reader};
use crate::session::Session;

/// Samples of a preview to compute at a time.
const ROWS_AT_A_TIME: u64 = 64;
/// The most characters of a text in a table.
const CELL_CHARS_MAX: usize = 40;

/// Samples of a pipeline as a trainer would receive them.
pub struct Preview {
    pipeline: String,
    rows: RecordBatch,
    bad_rows: u64,
}

impl Session {
    /// The first `rows` samples of pipeline `name`. Unless `options` say otherwise, bad rows are skipped and counted,
    /// because a bad row should not hide good rows, and a preview should not write quarantine files.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and errors of reading.
    pub async fn preview(&self, name: &str, options: &FeedOptions, rows: u64) -> Result<Preview> {
        let mut options = options.clone();
        options.on_error.get_or_insert(OnError::Skip);
        self.prepare(name).await?;
        let feed = self.open(name, &options)?;
        let (rows, bad_rows) = feed.first_rows(rows).await?;
        Ok(Preview { pipeline: name.to_owned(), rows, bad_rows })
    }
}

impl Feed {
    /// The first `rows` samples in one batch, and the number of bad rows before the last of them.
    async fn first_rows(&self, rows: u64) -> Result<(RecordBatch, u64)> {
        let mut reader = self.looked_at(rows)?;
        let (mut batches, mut found, mut bad_rows) = (Vec::new(), 0, 0);
        while found < rows {
            let Some(batch) = reader.next().await.transpose()? else { break };
            bad_rows += batch.bad_rows();
            found += batch.records.num_rows() as u64;
            batches.push(batch.records);
        }
        let all = concat_batches(&self.schema(), &batches).map_err(unshowable)?;
        let rows = all.slice(0, all.num_rows().min(usize::try_from(rows).unwrap_or(usize::MAX)));
        Ok((rows, bad_rows))
    }

    /// A reader of one epoch, in small batches, for about `rows` samples.
    pub(crate) fn looked_at(&self, rows: u64) -> Result<Reader> {
        // With length buckets the feed determines the batch size.
        let batch_size = self.settings().buckets.is_none().then_some(rows.clamp(1, ROWS_AT_A_TIME));
        self.read(&ReadOptions { batch_size, epochs: Some(1), ..ReadOptions::default() })
    }
}

impl Preview {
    /// Rows to show.
    pub fn of(rows: RecordBatch) -> Self {
        Self { pipeline: "query".to_owned(), rows, bad_rows: 0 }
    }

    /// The number of rows.
    pub fn num_rows(&self) -> usize {
        self.rows.num_rows()
    }

    /// The number of bad rows before the last row.
    pub fn bad_rows(&self) -> u64 {
        self.bad_rows
    }

    /// A header row, then each row's values as text.
    ///
    /// # Errors
    /// `Internal` for values that cannot be displayed.
    pub fn table(&self) -> Result<Vec<Vec<String>>> {
        let fields = self.rows.schema_ref().fields();
        let mut table = vec![fields.iter().map(|field| format!("{}: {}", field.name(), type_name(field))).collect()];
        for row in 0..self.rows.num_rows() {
            table.push(cells(&self.rows, row)?.iter().map(|(_, cell)| cell.text()).collect());
        }
        Ok(table)
    }

    /// An object for each row. Tensors appear as type, shape and statistics, and binary values in base64.
    ///
    /// # Errors
    /// `Internal` for values that cannot be displayed.
    pub fn json(&self) -> Result<Vec<Value>> {
        let schema = self.rows.schema_ref();
        (0..self.rows.num_rows()).map(|row| object(schema.fields(), self.rows.columns(), row)).collect()
    }

    /// A web page with the rows and their images.
    ///
    /// # Errors
    /// `Internal` for values that cannot be displayed.
    pub fn page(&self) -> Result<String> {
        let title = format!("{}: {} rows", escape(&self.pipeline), self.rows.num_rows());
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>body{{font:14px \
             system-ui,sans-serif;margin:2rem;color:#222;background:#fafafa}}</style>\n<h1>{title}</h1>\n{}</html>\n",
            self.html()?
        ))
    }

    /// The rows and their images, to embed in another page, such as a notebook.
    ///
    /// # Errors
    /// `Internal` for values that cannot be displayed.
    pub fn html(&self) -> Result<String> {
        let mut html = format!("<style>{STYLE}</style>\n<div class=\"forebay\">\n");
        for row in 0..self.rows.num_rows() {
            html.push_str("<figure>");
            let cells = cells(&self.rows, row)?;
            for (name, cell) in &cells {
                if let Cell::Tensor(tensor) = cell
                    && let Some(png) = tensor.png()?
                {
                    // Writing to a String cannot fail.
                    let png = BASE64.encode(png);
                    let _ = write!(html, "<img alt=\"{}\" src=\"data:image/png;base64,{png}\">", escape(name));
                }
            }
            html.push_str("<dl>");
            for (name, cell) in &cells {
                let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&cell.text()));
            }
            html.push_str("</dl></figure>\n");
        }
        html.push_str("</div>\n");
        Ok(html)
    }
}

fn unshowable(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot display a row: {error}"))
}

/// One value of a row.
enum Cell {
    Text(String),
    /// A number or a boolean. Its text is JSON, unless the number is not finite.
    Plain(String),
    Null,
    Tensor(ShownTensor),
}

/// A tensor of a row, as numbers.
struct ShownTensor {
    dtype: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl ShownTensor {
    fn statistics(&self) -> (f32, f32, f32) {
        let min = self.values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = self.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mean = self.values.iter().map(|&value| f64::from(value)).sum::<f64>() / self.values.len().max(1) as f64;
        (min, max, mean as f32)
    }

    /// A PNG, if the tensor has the shape of an image. Floats are scaled to the range of grey levels.
    fn png(&self) -> Result<Option<Vec<u8>>> {
        let [height, width, channels @ (1 | 3)] = self.shape[..] else { return Ok(None) };
        let (min, max, _) = self.statistics();
        let (low, scale) =
            if self.dtype == "uint8" { (0.0, 1.0) } else { (min, 255.0 / (max - min).max(f32::EPSILON)) };
        let pixels: Vec<u8> = self.values.iter().map(|&value| ((value - low) * scale).round() as u8).collect();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, side(width)?, side(height)?);
        encoder.set_color(if channels == 3 { png::ColorType::Rgb } else { png::ColorType::Grayscale });
        encoder.write_header().and_then(|mut png| png.write_image_data(&pixels)).map_err(unshowable)?;
        Ok(Some(bytes))
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Text(text) => printable(&shortened(text, CELL_CHARS_MAX)),
            Self::Plain(text) => text.clone(),
            Self::Tensor(tensor) => {
                let (min, max, mean) = tensor.statistics();
                format!("{}{:?} {min:.2}..{max:.2} mean {mean:.3}", tensor.dtype, tensor.shape)
            }
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Text(text) => Value::from(text.as_str()),
            Self::Plain(text) => match serde_json::from_str(text) {
                // Its floats may be off by a bit.
                Ok(Value::Number(number)) if number.is_f64() => {
                    text.parse::<f64>().map_or(Value::Number(number), Value::from)
                }
                Ok(value) => value,
                Err(_) => Value::from(text.as_str()),
            },
            Self::Tensor(tensor) => {
                let (min, max, mean) = tensor.statistics();
                json!({ "dtype": tensor.dtype, "shape": tensor.shape, "min": min, "max": max, "mean": mean })
            }
        }
    }
}

/// The text without characters that move the cursor or break a table.
fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn cells(rows: &RecordBatch, row: usize) -> Result<Vec<(String, Cell)>> {
    let columns = rows.schema_ref().fields().iter().zip(rows.columns());
    columns.map(|(field, column)| Ok((field.name().clone(), cell(field, column, row)?))).collect()
}

fn cell(field: &Field, column: &ArrayRef, row: usize) -> Result<Cell> {
    if column.is_null(row) {
        return Ok(Cell::Null);
    }
    let tensor = |values: &ArrayRef, shape: Vec<usize>| {
        let (dtype, values) = match values.data_type() {
            DataType::UInt8 => {
                ("uint8", values.as_primitive::<UInt8Type>().values().iter().map(|&v| f32::from(v)).collect())
            }
            DataType::Float32 => ("float32", values.as_primitive::<Float32Type>().values().to_vec()),
            _ => return None,
        };
        Some(Cell::Tensor(ShownTensor { dtype: dtype.to_owned(), shape, values }))
    };
    let cell = match TensorType::of(field) {
        Some(TensorType::Fixed(fixed)) => tensor(&column.as_fixed_size_list().value(row), fixed.shape),
        Some(TensorType::Variable(_)) => {
            let parts = column.as_struct();
            let part = |name| parts.column_by_name(name).ok_or_else(|| unshowable(format!("a tensor without {name}")));
            let sides = part("shape")?.as_fixed_size_list().value(row);
            let shape = sides.as_primitive::<Int32Type>().values().iter().map(|&side| side as usize).collect();
            tensor(&part("data")?.as_list::<i32>().value(row), shape)
        }
        None => None,
    };
    Ok(match (cell, column.data_type()) {
        (Some(cell), _) => cell,
        (None, DataType::Binary) => Cell::Text(format!("{} bytes", column.as_binary::<i32>().value(row).len())),
        (None, plain) if plain.is_integer() || plain.is_floating() || *plain == DataType::Boolean => {
            Cell::Plain(array_value_to_string(column, row).map_err(unshowable)?)
        }
        (None, DataType::Null) => Cell::Null,
        (None, _) => {
            // Also within structs and lists.
            let options = FormatOptions::new().with_null("null");
            let shown = ArrayFormatter::try_new(column, &options).map_err(unshowable)?;
            Cell::Text(shown.value(row).try_to_string().map_err(unshowable)?)
        }
    })
}

/// The columns' values in a row.
fn object(fields: &Fields, columns: &[ArrayRef], row: usize) -> Result<Value> {
    let value = |(field, column): (&FieldRef, &ArrayRef)| Ok((field.name().clone(), json_value(field, column, row)?));
    Ok(Value::Object(fields.iter().zip(columns).map(value).collect::<Result<Map<_, _>>>()?))
}

fn json_value(field: &Field, column: &ArrayRef, row: usize) -> Result<Value> {
    let items = |item: &Field, items: &ArrayRef| {
        (0..items.len()).map(|at| json_value(item, items, at)).collect::<Result<Vec<_>>>()
    };
    let base64 = |bytes: &[u8]| Value::from(BASE64.encode(bytes));
    if column.is_null(row) {
        return Ok(Value::Null);
    }
    if TensorType::is_named_by(field)
        && let tensor @ Cell::Tensor(_) = cell(field, column, row)?
    {
        return Ok(tensor.json());
    }
    Ok(match column.data_type() {
        DataType::List(item) => Value::Array(items(item, &column.as_list::<i32>().value(row))?),
        DataType::LargeList(item) => Value::Array(items(item, &column.as_list::<i64>().value(row))?),
        DataType::FixedSizeList(item, _) => Value::Array(items(item, &column.as_fixed_size_list().value(row))?),
        DataType::Struct(fields) => object(fields, column.as_struct().columns(), row)?,
        DataType::Map(entry, _) => {
            let DataType::Struct(fields) = entry.data_type() else { return Err(unshowable("a map without entries")) };
            let entries = column.as_map().value(row);
            let pair = |at| {
                let key = json_value(&fields[0], entries.column(0), at)?;
                let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                Ok((key, json_value(&fields[1], entries.column(1), at)?))
            };
            Value::Object((0..entries.len()).map(pair).collect::<Result<Map<_, _>>>()?)
        }
        DataType::Binary => base64(column.as_binary::<i32>().value(row)),
        DataType::LargeBinary => base64(column.as_binary::<i64>().value(row)),
        DataType::FixedSizeBinary(_) => base64(column.as_fixed_size_binary().value(row)),
        _ => cell(field, column, row)?.json(),
    })
}

const STYLE: &str = ".forebay{display:flex;flex-wrap:wrap;gap:1rem}\
    .forebay figure{margin:0;padding:.75rem;color:#222;background:#fff;\
    border:1px solid #ddd;border-radius:8px;max-width:260px}\
    .forebay img{display:block;max-width:100%;image-rendering:auto}\
    .forebay dl{margin:.5rem 0 0;display:grid;grid-template-columns:auto 1fr;gap:.1rem .6rem}\
    .forebay dt{color:#777}.forebay dd{margin:0;overflow-wrap:anywhere}";

fn side(pixels: usize) -> Result<u32> {
    u32::try_from(pixels).map_err(unshowable)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
