//! The image chain of a training feed, one operator at a time: `cargo bench -p forebay-operators`.
//!
//! Cost sketch for one photograph of 300 x 300 (20 KB). Decoding is CPU-bound at about a nanosecond per output byte.
//! Cropping and scaling read part of 270 KB and write 150 KB. Mirroring moves half of that within the cache.
//! Normalizing writes 600 KB, and page faults for fresh memory cost more than the arithmetic.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;
use divan::Bencher;
use divan::counter::ItemsCount;
use forebay_operators::{ColumnValue, RowArguments, find_table_operator};

const ROWS: usize = 32;

fn main() {
    divan::main();
}

#[divan::bench]
fn decode_image(bencher: Bencher) {
    bench(bencher, files(), "decode_image", &[]);
}

#[divan::bench]
fn resize(bencher: Bencher) {
    bench(bencher, decoded(), "resize", &[224, 224]);
}

#[divan::bench]
fn random_resized_crop(bencher: Bencher) {
    bench(bencher, decoded(), "random_resized_crop", &[224, 224]);
}

#[divan::bench]
fn random_hflip(bencher: Bencher) {
    bench(bencher, cropped(), "random_hflip", &[]);
}

#[divan::bench]
fn normalize(bencher: Bencher) {
    bench(bencher, cropped(), "normalize", &[]);
}

#[divan::bench(args = ["center_crop", "auto_contrast", "encode_jpeg", "encode_png", "equalize", "gaussian_blur", "pad",
    "rand_augment", "random_erasing", "random_rotate", "to_chw", "trivial_augment"])]
fn others(bencher: Bencher, operator: &str) {
    let constants: &[i64] = match operator {
        "center_crop" => &[192, 192],
        "pad" => &[4],
        "random_rotate" => &[15],
        _ => &[],
    };
    bench(bencher, cropped(), operator, constants);
}

/// All four changes, with SimCLR's settings.
#[divan::bench]
fn color_jitter_full(bencher: Bencher) {
    let images = cropped();
    let constants = [0.4, 0.4, 0.4, 0.1].map(|range| ScalarValue::Float64(Some(range)));
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| call_with("color_jitter", images.clone(), &constants));
}

#[divan::bench]
fn whole_chain(bencher: Bencher) {
    let files = files();
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        let images = call("decode_image", files.clone(), &[]);
        let images = call("random_resized_crop", images, &[224, 224]);
        call("normalize", call("random_hflip", images, &[]), &[])
    });
}

#[divan::bench(args = ["nearest", "bilinear", "bicubic", "area", "lanczos"])]
fn interpolations(bencher: Bencher, interpolation: &str) {
    let images = decoded();
    let sides = [224, 224].map(|side| ScalarValue::Int64(Some(side)));
    let constants = [sides[0].clone(), sides[1].clone(), interpolation.into()];
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| call_with("resize", images.clone(), &constants));
}

#[divan::bench(args = ["mixup", "cutmix"])]
fn mixed(bencher: Bencher, operator: &str) {
    let operator = find_table_operator(operator).expect("a registered operator");
    let (image, images) = cropped();
    let constants = operator.descriptor().parameters[1..].iter().map(|parameter| match parameter.name {
        "num_classes" => ScalarValue::from(10_i64),
        _ => parameter.default_value().expect("the others have defaults"),
    });
    let constants: Vec<ScalarValue> = constants.collect();
    let columns = vec![image.as_ref().clone(), Field::new("label", DataType::Int64, false)].into();
    let plan = operator.plan(&RowArguments::new(operator.descriptor(), &constants, &columns)).expect("a plan");
    let ColumnValue::Call(function, _) = &plan.results[0].value else { panic!("the image is a function") };
    let keys: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..ROWS as u64));
    let sites: ArrayRef = Arc::new(UInt64Array::from_value(7, ROWS));
    let arguments = [&images, &images, &keys, &sites].map(|array| ColumnarValue::Array(Arc::clone(array)));
    let number = Arc::new(Field::new("key", DataType::UInt64, false));
    let fields = vec![Arc::clone(&image), Arc::clone(&image), Arc::clone(&number), number];
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        let args = ScalarFunctionArgs {
            args: arguments.to_vec(),
            arg_fields: fields.clone(),
            number_rows: ROWS,
            return_field: Arc::clone(&image),
            config_options: Arc::new(ConfigOptions::default()),
        };
        function.invoke_with_args(args).expect("mixed images")
    });
}

type Column = (FieldRef, ArrayRef);

fn bench(bencher: Bencher, column: Column, operator: &str, constants: &[i64]) {
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| call(operator, column.clone(), constants));
}

fn files() -> Column {
    let photo = include_bytes!("../testdata/photo.jpg");
    let files = BinaryArray::from_iter_values([photo; ROWS]);
    (Arc::new(Field::new("bytes", DataType::Binary, false)), Arc::new(files))
}

fn decoded() -> Column {
    call("decode_image", files(), &[])
}

fn cropped() -> Column {
    call("random_resized_crop", decoded(), &[224, 224])
}

fn call(name: &str, column: Column, constants: &[i64]) -> Column {
    let constants: Vec<_> = constants.iter().map(|n| ScalarValue::Int64(Some(*n))).collect();
    call_with(name, column, &constants)
}

/// Calls an operator like a physical plan does, including defaults and keys.
fn call_with(name: &str, (field, array): Column, constants: &[ScalarValue]) -> Column {
    let operator = forebay_operators::find(name).expect("the operator is registered");
    let udf = ScalarUDF::from(forebay_operators::OperatorUdf::new(operator));
    let parameters = operator.descriptor().parameters;
    let mut scalars = constants.to_vec();
    scalars.extend(parameters[1 + scalars.len()..].iter().filter_map(|parameter| parameter.default_value()));
    let mut args = vec![ColumnarValue::Array(array)];
    args.extend(scalars.into_iter().map(ColumnarValue::Scalar));
    if operator.descriptor().determinism == forebay_operators::Determinism::KeyedRandom {
        let keys = (0..ROWS as u64).map(|sample_id| forebay_operators::random_key(1, 0, sample_id));
        args.push(ColumnarValue::Array(Arc::new(UInt64Array::from_iter_values(keys))));
        args.push(ColumnarValue::Scalar(ScalarValue::UInt64(Some(5))));
    }
    let mut arg_fields = vec![field];
    arg_fields.extend(args[1..].iter().map(|arg| Arc::new(Field::new("argument", arg.data_type(), false))));
    let constants: Vec<_> = args
        .iter()
        .map(|arg| match arg {
            ColumnarValue::Scalar(value) => Some(value.clone()),
            ColumnarValue::Array(_) => None,
        })
        .collect();
    let scalar_arguments: Vec<_> = constants.iter().map(Option::as_ref).collect();
    let planned = udf
        .return_field_from_args(ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &scalar_arguments })
        .expect("the arguments fit");
    let result = udf
        .invoke_with_args(ScalarFunctionArgs {
            args,
            arg_fields,
            number_rows: ROWS,
            return_field: Arc::clone(&planned),
            config_options: Arc::new(ConfigOptions::default()),
        })
        .and_then(|value| value.into_array(ROWS))
        .expect("the photograph is sound");
    (planned, result)
}
