//! Operators over lists: `cargo bench -p forebay-operators --bench lists`.
//!
//! Cost sketch: padding copies each value once and writes the padding, so memory bandwidth is the limit. For 1,024 rows
//! of 64 to 128 tokens as Int32 it writes half a megabyte in some tens of microseconds. A hash of 8 or 16 bytes takes 2
//! ns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray, ListArray, UInt32Array, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Int32Type};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;
use divan::Bencher;
use divan::counter::ItemsCount;
use forebay_operators::{Draws, InputPart, InputRows, RowArguments, find_table_operator};

const ROWS: usize = 1024;

fn main() {
    divan::main();
}

#[divan::bench]
fn pad_to(bencher: Bencher) {
    let rows = (0..ROWS).map(|row| Some((0..64 + row as i32 % 64).map(Some)));
    let tokens = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
    let boundaries = [64, 96, 128].map(|boundary| ScalarValue::Int64(Some(boundary)));
    let constants = [
        ScalarValue::List(ScalarValue::new_list(&boundaries, &DataType::Int64, true)),
        ScalarValue::Int64(Some(0)),
        ScalarValue::Boolean(Some(false)),
    ];
    bench(bencher, "pad_to", &[Arc::new(tokens)], &constants);
}

/// Bigrams: two hashes per value.
#[divan::bench]
fn ngram(bencher: Bencher) {
    let rows = (0..ROWS).map(|row| Some((0..64 + row as i32 % 64).map(Some)));
    let ids = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
    let constants = [2, 1_000_003, 0].map(|n| ScalarValue::Int64(Some(n)));
    bench(bencher, "ngram", &[Arc::new(ids)], &constants);
}

/// Signatures of 128 numbers in 26 bands of four or five. A third of the rows are copies with ten numbers changed.
#[divan::bench]
fn drop_near_duplicates(bencher: Bencher) {
    let mut draws = Draws::new(1, 0);
    let mut rows: Vec<Vec<u32>> = Vec::new();
    for row in 0..ROWS {
        let mut signature: Vec<u32> = match row % 3 {
            2 => rows[row - 2].clone(),
            _ => (0..128).map(|_| draws.below(1 << 32) as u32).collect(),
        };
        for _ in 0..if row % 3 == 2 { 10 } else { 0 } {
            signature[draws.below(128) as usize] = draws.below(1 << 32) as u32;
        }
        rows.push(signature);
    }
    let item = Field::new_list_field(DataType::UInt32, true);
    let field = Field::new_fixed_size_list("g", item.clone(), 128, true);
    let numbers = UInt32Array::from(rows.concat());
    let signatures: ArrayRef = Arc::new(FixedSizeListArray::new(Arc::new(item), 128, Arc::new(numbers), None));
    let operator = find_table_operator("drop_near_duplicates").expect("a registered operator");
    let (constants, columns) = ([ScalarValue::Float64(Some(0.8)), ScalarValue::Null], vec![field].into());
    let plan = operator.plan(&RowArguments::new(operator.descriptor(), &constants, &columns)).expect("a plan");
    let (ids, reads) = (UInt64Array::from_iter_values(0..ROWS as u64), [signatures]);
    let part = InputPart { reads: &reads, random_keys: &ids, origins: &ids, ids: &ids };
    let window = InputRows { parts: vec![part], wanted: &[], order: &|_| 0, call: 0, bytes_max: 1 << 30 };
    let run = || {
        let made = plan.rows.make(&window).expect("a bounded search");
        made.map(|made| made.expect("rows").parents.len()).sum::<usize>()
    };
    assert_eq!(run(), ROWS - ROWS / 3);
    bencher.counter(ItemsCount::new(ROWS)).bench_local(run);
}

/// Contiguous lists, which are not copied.
#[divan::bench]
fn reshape(bencher: Bencher) {
    let shape = [4, 32].map(|side| ScalarValue::Int64(Some(side)));
    let shape = ScalarValue::List(ScalarValue::new_list(&shape, &DataType::Int64, true));
    bench(bencher, "reshape", &[features()], &[shape]);
}

/// A multiplication into fresh memory, since the features are shared: 1,024 rows of 128 float32, half a megabyte.
#[divan::bench]
fn tensor_mul(bencher: Bencher) {
    bench(bencher, "tensor_mul", &[tensors()], &[ScalarValue::Float64(Some(0.5))]);
}

#[divan::bench(args = ["stack", "tensor_concat"])]
fn join(bencher: Bencher, operator: &str) {
    let mut constants = vec![ScalarValue::Null; 6];
    constants.push(ScalarValue::Int64(Some(0)));
    bench(bencher, operator, &[tensors(), tensors()], &constants);
}

fn tensors() -> ArrayRef {
    let shape = ScalarValue::List(ScalarValue::new_list(&[ScalarValue::Int64(Some(128))], &DataType::Int64, true));
    call("reshape", &[features()], &[shape])
}

fn features() -> ArrayRef {
    let rows = (0..ROWS).map(|row| Some((0..128).map(move |at| Some((row * at) as f32))));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn bench(bencher: Bencher, operator: &str, rows: &[ArrayRef], constants: &[ScalarValue]) {
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| call(operator, rows, constants));
}

/// Calls an operator like a physical plan does.
fn call(operator: &str, rows: &[ArrayRef], constants: &[ScalarValue]) -> ArrayRef {
    let operator = forebay_operators::find(operator).expect("the operator is registered");
    let udf = ScalarUDF::from(forebay_operators::OperatorUdf::new(operator));
    let field = |rows: &ArrayRef| Arc::new(Field::new("rows", rows.data_type().clone(), true));
    let mut arg_fields: Vec<FieldRef> = rows.iter().map(field).collect();
    arg_fields.extend(constants.iter().map(|c| Arc::new(Field::new("constant", c.data_type(), false))));
    let scalar_arguments: Vec<_> = rows.iter().map(|_| None).chain(constants.iter().map(Some)).collect();
    let planned = ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &scalar_arguments };
    let return_field = udf.return_field_from_args(planned).expect("the arguments fit");
    let mut args: Vec<_> = rows.iter().cloned().map(ColumnarValue::Array).collect();
    args.extend(constants.iter().cloned().map(ColumnarValue::Scalar));
    let config_options = Arc::new(ConfigOptions::default());
    let call = ScalarFunctionArgs { args, arg_fields, number_rows: ROWS, return_field, config_options };
    udf.invoke_with_args(call).and_then(|value| value.into_array(ROWS)).expect("the rows are sound")
}
