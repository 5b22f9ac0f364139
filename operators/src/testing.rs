//! Test support for this crate: calls through DataFusion's planner, and small images.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, UInt8Type};
use datafusion::common::Result;
use datafusion::logical_expr::{Expr, ScalarUDF, lit};
use datafusion::prelude::SessionContext;

use crate::constants;
use crate::image_column::{self, CHANNELS, Images};
use crate::operator::OperatorUdf;
use crate::registry;

pub(crate) type Column = (Field, ArrayRef);

/// A named column of nullable values.
pub(crate) fn column(name: &str, array: impl Array + 'static) -> Column {
    (Field::new(name, array.data_type().clone(), true), Arc::new(array))
}

/// Returns the result of an SQL expression over the columns, or the error's text without DataFusion's wrapping.
pub(crate) fn sql(expression: &str, columns: Vec<Column>) -> std::result::Result<Column, String> {
    collect(columns, async |context| context.sql(&format!("SELECT {expression} AS out FROM t")).await)
}

/// Like `sql`, for an expression built by hand.
pub(crate) fn select(expression: Expr, columns: Vec<Column>) -> std::result::Result<Column, String> {
    collect(columns, async |context| context.table("t").await?.select(vec![expression.alias("out")]))
}

/// Returns the result of a call such as `bucketize(x, [1, 2.5])`, with columns and literals by position. In SQL, lists
/// need the engine's planner; here they do not.
pub(crate) fn call(text: &str, columns: Vec<Column>) -> std::result::Result<Column, String> {
    let (name, arguments) = text.strip_suffix(')').and_then(|text| text.split_once('(')).unwrap();
    let mut depth = 0;
    let arguments = arguments.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    let arguments = arguments.map(str::trim).map(|text| match constants::parse_literal(text) {
        Some(value) => lit(value),
        None => datafusion::prelude::col(text),
    });
    select(udf(name).call(arguments.collect()), columns)
}

/// Builds a call of a keyed-random operator at site 5, with the keys of the column `key`. Arguments that are left out
/// have their defaults.
pub(crate) fn keyed(name: &str, arguments: Vec<Expr>) -> Expr {
    keyed_at(5, name, arguments)
}

/// Builds a call of a keyed-random operator at a site.
pub(crate) fn keyed_at(site: u64, name: &str, mut arguments: Vec<Expr>) -> Expr {
    let parameters = registry::find(name).unwrap().descriptor().parameters;
    arguments.extend(parameters[arguments.len()..].iter().map(|parameter| lit(parameter.default_value().unwrap())));
    arguments.extend([datafusion::prelude::col("key"), lit(site)]);
    udf(name).call(arguments)
}

/// Returns the keys of samples 0, 1, 2, ... in epoch 0 of seed 1.
pub(crate) fn keys(rows: u64) -> Column {
    let keys = (0..rows).map(|sample_id| crate::random_key(1, 0, sample_id));
    (Field::new("key", DataType::UInt64, false), Arc::new(UInt64Array::from_iter_values(keys)))
}

pub(crate) fn udf(name: &str) -> ScalarUDF {
    ScalarUDF::from(OperatorUdf::new(registry::find(name).unwrap()))
}

fn collect(
    columns: Vec<Column>,
    plan: impl AsyncFnOnce(&SessionContext) -> Result<datafusion::prelude::DataFrame>,
) -> std::result::Result<Column, String> {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    let context = SessionContext::new();
    context.register_batch("t", batch).unwrap();
    registry::scalar_udfs().into_iter().for_each(|udf| context.register_udf(udf));
    let run = async {
        let frame = plan(&context).await?;
        let batches = frame.collect().await?;
        Ok((batches[0].schema().field(0).clone(), Arc::clone(batches[0].column(0))))
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(run).map_err(|e: datafusion::common::DataFusionError| {
        let text = e.find_root().strip_backtrace();
        let frames = ["Error during planning: ", "Execution error: "];
        frames.iter().find_map(|frame| text.strip_prefix(frame)).unwrap_or(&text).to_owned()
    })
}

/// Reads a file in `testdata`.
pub(crate) fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Reads the values of a reference implementation: see golden/<name>.py.
pub(crate) fn golden(name: &str) -> serde_json::Value {
    let path = format!("{}/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Returns the path of a small tokenizer in `testdata`.
pub(crate) fn tokenizer(name: &str) -> String {
    format!("{}/testdata/tokenizers/{name}.json", env!("CARGO_MANIFEST_DIR"))
}

/// Returns the decoded images of files in `testdata`.
pub(crate) fn decoded(names: &[&str]) -> Column {
    let bytes = BinaryArray::from_iter_values(names.iter().map(|name| file(name)));
    let (field, array) = sql("decode_image(bytes)", vec![column("bytes", bytes)]).unwrap();
    (field.with_name("image"), array)
}

/// Returns height, width and pixels of one row.
pub(crate) fn image((field, array): &Column, row: usize) -> Option<(usize, usize, Vec<u8>)> {
    let images = Images::try_new(field, array).unwrap();
    images.get(row).unwrap().map(|image| (image.height, image.width, image.pixels.to_vec()))
}

/// Makes fixed-shape images from pixels.
pub(crate) fn fixed(height: usize, width: usize, pixels: Vec<u8>) -> Column {
    assert_eq!(pixels.len() % (height * width * CHANNELS), 0);
    (
        image_column::fixed_field("image", DataType::UInt8, height, width, false).unwrap(),
        image_column::fixed_array::<UInt8Type>(pixels.into(), height, width, None).unwrap(),
    )
}

/// Returns 9 x 13 pixels of noise. Python makes the same noise: see testdata/README.md.
pub(crate) fn noise() -> Column {
    let pixel = |y: usize, x: usize, c: usize| ((x * 19 + y * 31 + c * 57 + x * y * 7) % 256) as u8;
    let at = |i: usize| pixel(i / 39, i / 3 % 13, i % 3);
    fixed(9, 13, (0..9 * 13 * 3).map(at).collect())
}

/// Asserts that both images have the same size and that no value differs by more than the tolerance.
pub(crate) fn assert_near(got: &Column, expect: &str, tolerance: u8) {
    let (height, width, pixels) = image(got, 0).unwrap();
    let (expect_height, expect_width, expect_pixels) = image(&decoded(&[expect]), 0).unwrap();
    assert_eq!((height, width), (expect_height, expect_width), "{expect}");
    let worst = pixels.iter().zip(&expect_pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(worst <= tolerance, "{expect}: values differ by up to {worst}");
}
