//! `forebay preview`: the first processed rows, in the terminal or as a page.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, UInt8Type};
use arrow::util::display::array_value_to_string;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::Args;
use forebay_engine::{OnError, ReadOptions, type_name};
use serde_json::{Map, Value, json};

use crate::output::{self, Format};
use crate::script::{self, FeedArguments, ScriptArguments};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    script: ScriptArguments,
    /// Pipeline to preview; may be left out if the script creates only one.
    #[arg(long)]
    pipeline: Option<String>,
    /// How many rows to show.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rows: u64,
    /// Also write a web page with the rows and their images.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    feed: FeedArguments,
    /// How to print.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let session = arguments.script.open().await?;
    let pipeline = script::pipeline(&session, arguments.pipeline.as_deref())?;
    // Looking must not write quarantine files, and one bad row must not hide the good ones: it is counted instead.
    let mut options = arguments.feed.options();
    options.on_error.get_or_insert(OnError::Skip);
    let feed = session.open(&pipeline, &options)?;
    // With length buckets the feed says how large batches are.
    let batch_size = feed.settings().buckets.is_none().then_some(arguments.rows);
    let read = ReadOptions { batch_size, epochs: Some(1), ..ReadOptions::default() };
    let mut reader = feed.read(&read)?;
    let (mut batches, mut found, mut bad) = (Vec::new(), 0, 0);
    while found < arguments.rows {
        let Some(batch) = reader.next().await.transpose()? else { break };
        bad += batch.bad_rows();
        found += batch.records.num_rows() as u64;
        batches.push(batch.records);
    }
    let rows = concat_batches(&feed.schema(), &batches)?;
    let rows = rows.slice(0, rows.num_rows().min(usize::try_from(arguments.rows)?));
    if bad > 0 {
        output::note(&format!("note: left out {bad} rows that cannot be processed; --on-error raise names the first"));
    }
    match arguments.output {
        Format::Text => print(&rows)?,
        Format::Json => {
            for row in 0..rows.num_rows() {
                let cells = cells(&rows, row)?.into_iter().map(|(name, cell)| (name, cell.json()));
                output::json(&Value::Object(Map::from_iter(cells)))?;
            }
        }
    }
    if let Some(file) = &arguments.html {
        let page = page(&pipeline, &rows)?;
        std::fs::write(file, page).with_context(|| format!("cannot write \"{}\"", file.display()))?;
        output::note(&format!("wrote {}", file.display()));
    }
    Ok(())
}

/// One value of a row.
enum Cell {
    Text(String),
    /// A number or a boolean, whose text is JSON unless it is no finite number.
    Plain(String),
    Null,
    Tensor(Tensor),
}

/// A tensor of a row, as numbers.
struct Tensor {
    dtype: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Tensor {
    fn statistics(&self) -> (f32, f32, f32) {
        let min = self.values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = self.values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mean = self.values.iter().map(|&value| f64::from(value)).sum::<f64>() / self.values.len().max(1) as f64;
        (min, max, mean as f32)
    }

    /// A PNG, if this has the shape of a picture. Floats are stretched over the range of grey levels.
    fn png(&self) -> Result<Option<Vec<u8>>> {
        let [height, width, channels @ (1 | 3)] = self.shape[..] else { return Ok(None) };
        let (min, max, _) = self.statistics();
        let (low, scale) =
            if self.dtype == "uint8" { (0.0, 1.0) } else { (min, 255.0 / (max - min).max(f32::EPSILON)) };
        let pixels: Vec<u8> = self.values.iter().map(|&value| ((value - low) * scale).round() as u8).collect();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, u32::try_from(width)?, u32::try_from(height)?);
        encoder.set_color(if channels == 3 { png::ColorType::Rgb } else { png::ColorType::Grayscale });
        encoder.write_header()?.write_image_data(&pixels)?;
        Ok(Some(bytes))
    }
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Text(text) if text.chars().count() > 40 => format!("{}…", text.chars().take(39).collect::<String>()),
            Self::Text(text) | Self::Plain(text) => text.clone(),
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
            Self::Plain(text) => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str())),
            Self::Tensor(tensor) => {
                let (min, max, mean) = tensor.statistics();
                json!({ "dtype": tensor.dtype, "shape": tensor.shape, "min": min, "max": max, "mean": mean })
            }
        }
    }
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
        Some(Cell::Tensor(Tensor { dtype: dtype.to_owned(), shape, values }))
    };
    let metadata = field.metadata();
    let cell = match metadata.get("ARROW:extension:name").map(String::as_str) {
        Some("arrow.fixed_shape_tensor") => {
            let parameters: Value = metadata
                .get("ARROW:extension:metadata")
                .map(|text| serde_json::from_str(text))
                .transpose()?
                .unwrap_or_default();
            let shape = serde_json::from_value(parameters["shape"].clone()).unwrap_or_default();
            tensor(&column.as_fixed_size_list().value(row), shape)
        }
        Some("arrow.variable_shape_tensor") => {
            let parts = column.as_struct();
            let shape = parts
                .column_by_name("shape")
                .context("a variable-shape tensor has shapes")?
                .as_fixed_size_list()
                .value(row);
            let shape = shape.as_primitive::<Int32Type>().values().iter().map(|&side| side as usize).collect();
            let data = parts.column_by_name("data").context("a variable-shape tensor has data")?;
            tensor(&data.as_list::<i32>().value(row), shape)
        }
        _ => None,
    };
    Ok(match (cell, column.data_type()) {
        (Some(cell), _) => cell,
        (None, DataType::Binary) => Cell::Text(format!("{} bytes", column.as_binary::<i32>().value(row).len())),
        (None, plain) if plain.is_integer() || plain.is_floating() || *plain == DataType::Boolean => {
            Cell::Plain(array_value_to_string(column, row)?)
        }
        (None, DataType::Null) => Cell::Null,
        (None, _) => Cell::Text(array_value_to_string(column, row)?),
    })
}

fn print(rows: &RecordBatch) -> Result<()> {
    let header =
        rows.schema_ref().fields().iter().map(|field| format!("{}: {}", field.name(), type_name(field))).collect();
    let mut table = vec![header];
    for row in 0..rows.num_rows() {
        table.push(cells(rows, row)?.iter().map(|(_, cell)| cell.text()).collect());
    }
    output::table(&table)
}

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2rem;color:#222;background:#fafafa}\
    main{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;padding:.75rem;background:#fff;border:1px solid #ddd;border-radius:8px;max-width:260px}\
    img{display:block;max-width:100%;image-rendering:auto}dl{margin:.5rem 0 0;display:grid;grid-template-columns:auto 1fr;gap:.1rem .6rem}\
    dt{color:#777}dd{margin:0;overflow-wrap:anywhere}";

fn page(pipeline: &str, rows: &RecordBatch) -> Result<String> {
    let title = format!("{}: {} rows", escape(pipeline), rows.num_rows());
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n<main>\n"
    );
    for row in 0..rows.num_rows() {
        page.push_str("<figure>");
        let cells = cells(rows, row)?;
        for (name, cell) in &cells {
            if let Cell::Tensor(tensor) = cell
                && let Some(png) = tensor.png()?
            {
                write!(page, "<img alt=\"{}\" src=\"data:image/png;base64,{}\">", escape(name), BASE64.encode(png))?;
            }
        }
        page.push_str("<dl>");
        for (name, cell) in &cells {
            write!(page, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&cell.text()))?;
        }
        page.push_str("</dl></figure>\n");
    }
    page.push_str("</main></html>\n");
    Ok(page)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
