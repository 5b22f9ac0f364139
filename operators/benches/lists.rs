//! Operators over lists: `cargo bench -p forebay-operators --bench lists`.
//!
//! Cost sketch: padding copies each value once and writes the padding, so it is bound by memory bandwidth; 1,024 rows of
//! 64 to 128 tokens as Int32 are half a megabyte out, some tens of microseconds.

use std::sync::Arc;

use arrow::array::{Array, ListArray};
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;
use divan::Bencher;
use divan::counter::ItemsCount;

const ROWS: usize = 1024;

fn main() {
    divan::main();
}

#[divan::bench]
fn pad_to(bencher: Bencher) {
    let rows = (0..ROWS).map(|row| Some((0..64 + row as i32 % 64).map(Some)));
    let tokens = ListArray::from_iter_primitive::<Int32Type, _, _>(rows);
    let field = Arc::new(Field::new("tokens", tokens.data_type().clone(), true));
    let operator = forebay_operators::find("pad_to").expect("the operator is registered");
    let udf = ScalarUDF::from(forebay_operators::OperatorUdf::new(operator));
    let boundaries = [64, 96, 128].map(|boundary| ScalarValue::Int64(Some(boundary)));
    let constants = [
        ScalarValue::List(ScalarValue::new_list(&boundaries, &DataType::Int64, true)),
        ScalarValue::Int64(Some(0)),
        ScalarValue::Boolean(Some(false)),
    ];
    let mut args = vec![ColumnarValue::Array(Arc::new(tokens))];
    args.extend(constants.into_iter().map(ColumnarValue::Scalar));
    let mut arg_fields = vec![Arc::clone(&field)];
    arg_fields.extend(args[1..].iter().map(|arg| Arc::new(Field::new("argument", arg.data_type(), false))));
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        udf.invoke_with_args(ScalarFunctionArgs {
            args: args.clone(),
            arg_fields: arg_fields.clone(),
            number_rows: ROWS,
            return_field: Arc::clone(&field),
            config_options: Arc::new(ConfigOptions::default()),
        })
        .expect("the lists are short enough")
    });
}
