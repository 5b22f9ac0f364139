//! What this crate's tests share: calls through DataFusion's planner, and small images.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, UInt8Type};
use datafusion::common::Result;
use datafusion::logical_expr::{Expr, ScalarUDF, lit};
use datafusion::prelude::SessionContext;

use crate::operator::OperatorUdf;
use crate::registry;
use crate::tensor::{self, CHANNELS, Images};

pub(crate) type Column = (Field, ArrayRef);

/// A column that may hold nulls.
pub(crate) fn column(name: &str, array: impl Array + 'static) -> Column {
    (Field::new(name, array.data_type().clone(), true), Arc::new(array))
}

/// The result of an SQL expression over the columns, or the error's text without DataFusion's frame around it.
pub(crate) fn sql(expression: &str, columns: Vec<Column>) -> std::result::Result<Column, String> {
    collect(columns, async |context| context.sql(&format!("SELECT {expression} AS out FROM t")).await)
}

/// The same for an expression that is built by hand.
pub(crate) fn select(expression: Expr, columns: Vec<Column>) -> std::result::Result<Column, String> {
    collect(columns, async |context| context.table("t").await?.select(vec![expression.alias("out")]))
}

/// A call of a keyed-random operator at site 5, with the keys of the column `key`.
pub(crate) fn keyed(name: &str, mut arguments: Vec<Expr>) -> Expr {
    arguments.extend([datafusion::prelude::col("key"), lit(5u64)]);
    udf(name).call(arguments)
}

/// The keys of samples 0, 1, 2, ... in epoch 0 of seed 1.
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

/// The contents of a file in `testdata`.
pub(crate) fn file(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The decoded images of files in `testdata`.
pub(crate) fn decoded(names: &[&str]) -> Column {
    let bytes = BinaryArray::from_iter_values(names.iter().map(|name| file(name)));
    let (field, array) = sql("decode_image(bytes)", vec![column("bytes", bytes)]).unwrap();
    (field.with_name("image"), array)
}

/// Height, width and pixels of one row.
pub(crate) fn image((field, array): &Column, row: usize) -> Option<(usize, usize, Vec<u8>)> {
    let images = Images::try_new(field, array).unwrap();
    images.get(row).unwrap().map(|image| (image.height, image.width, image.pixels.to_vec()))
}

/// Fixed-shape images around given pixels.
pub(crate) fn fixed(height: usize, width: usize, pixels: Vec<u8>) -> Column {
    assert_eq!(pixels.len() % (height * width * CHANNELS), 0);
    (
        tensor::fixed_field("image", DataType::UInt8, height, width, false).unwrap(),
        tensor::fixed_array::<UInt8Type>(pixels.into(), height, width, None).unwrap(),
    )
}

/// 9 x 13 pixels of noise that Python makes as well: see testdata/README.md.
pub(crate) fn noise() -> Column {
    let pixel = |y: usize, x: usize, c: usize| ((x * 19 + y * 31 + c * 57 + x * y * 7) % 256) as u8;
    let at = |i: usize| pixel(i / 39, i / 3 % 13, i % 3);
    fixed(9, 13, (0..9 * 13 * 3).map(at).collect())
}

/// Both have one size, and no value differs by more than the tolerance.
pub(crate) fn assert_near(got: &Column, expect: &str, tolerance: u8) {
    let (height, width, pixels) = image(got, 0).unwrap();
    let (expect_height, expect_width, expect_pixels) = image(&decoded(&[expect]), 0).unwrap();
    assert_eq!((height, width), (expect_height, expect_width), "{expect}");
    let worst = pixels.iter().zip(&expect_pixels).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(worst <= tolerance, "{expect}: values differ by up to {worst}");
}

#[test]
fn timing() {
    use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ReturnFieldArgs};
    use datafusion::scalar::ScalarValue as S;
    use std::time::Instant;
    let mut files = vec![];
    for dir in std::fs::read_dir("/work/shared/data/photos").unwrap() {
        let dir = dir.unwrap().path();
        if !dir.is_dir() { continue; }
        for f in std::fs::read_dir(dir).unwrap() { files.push(std::fs::read(f.unwrap().path()).unwrap()); }
    }
    let n = files.len();
    let bytes: ArrayRef = Arc::new(BinaryArray::from_iter_values(&files));
    let call = |name: &str, field: &Field, array: ArrayRef, consts: Vec<S>, key: bool| -> Column {
        let udf = udf(name);
        let rows = array.len();
        let mut fields = vec![Arc::new(field.clone())];
        let mut args = vec![ColumnarValue::Array(array)];
        for c in consts { fields.push(Arc::new(Field::new("c", c.data_type(), false))); args.push(ColumnarValue::Scalar(c)); }
        if key {
            let k = keys(rows as u64);
            fields.push(Arc::new(k.0)); args.push(ColumnarValue::Array(k.1));
            fields.push(Arc::new(Field::new("c", DataType::UInt64, false))); args.push(ColumnarValue::Scalar(S::UInt64(Some(5))));
        }
        let scalars: Vec<_> = args.iter().map(|a| match a { ColumnarValue::Scalar(s) => Some(s.clone()), _ => None }).collect();
        let sr: Vec<_> = scalars.iter().map(Option::as_ref).collect();
        let rf = udf.return_field_from_args(ReturnFieldArgs { arg_fields: &fields, scalar_arguments: &sr }).unwrap();
        let out = udf.invoke_with_args(ScalarFunctionArgs { args, arg_fields: fields, number_rows: rows, return_field: Arc::clone(&rf), config_options: Default::default() }).unwrap();
        (rf.as_ref().clone(), out.into_array(rows).unwrap())
    };
    for _ in 0..3 {
        let mut t = [0.0; 5];
        for start in (0..n).step_by(48) {
            let part = bytes.slice(start, 48.min(n - start));
            let s = Instant::now();
            let a = call("decode_image", &Field::new("b", DataType::Binary, true), part, vec![], false);
            t[0] += s.elapsed().as_secs_f64(); let s = Instant::now();
            let f = a.0.clone();
            let b = call("random_resized_crop", &f, a.1, vec![S::Int64(Some(224)), S::Int64(Some(224))].into_iter().chain([0.08, 1.0, 0.75, 1.3333333333333333].map(|x| S::Float64(Some(x)))).collect(), true);
            t[1] += s.elapsed().as_secs_f64(); let s = Instant::now();
            let c = call("random_hflip", &b.0.clone(), b.1, vec![S::Float64(Some(0.5))], true);
            t[2] += s.elapsed().as_secs_f64(); let s = Instant::now();
            let d = call("normalize", &c.0.clone(), c.1, vec![], false);
            t[3] += s.elapsed().as_secs_f64();
            assert_eq!(d.1.len(), 48.min(n - start));
        }
        t[4] = t[..4].iter().sum();
        println!("decode {:.3} rrc {:.3} flip {:.3} normalize {:.3} total {:.3} ms per image", t[0]*1e3/n as f64, t[1]*1e3/n as f64, t[2]*1e3/n as f64, t[3]*1e3/n as f64, t[4]*1e3/n as f64);
    }
}
