//! Operators on text and tables: `cargo bench -p forebay-operators --bench tables`.
//!
//! Cost sketch: a row of Criteo has 13 integers and 26 strings of 8 hexadecimal digits. Filling, clamping and the
//! logarithm each read and write 8 bytes per integer, and the logarithm in software takes some 10 ns. Reading a string
//! by words takes some 2 ns, the modulus by multiplication 1 ns. So a row should take 13 x 12 + 26 x 4 = 260 ns. A
//! token of a byte-level BPE takes a lookup in a cache of words, some 35 ns.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::{Field, FieldRef, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};
use datafusion::scalar::ScalarValue;
use divan::Bencher;
use divan::counter::ItemsCount;
use forebay_operators::{Draws, OperatorUdf};

const ROWS: usize = 4096;

fn main() {
    divan::main();
}

/// A row of Criteo's table, by operators one after the other.
#[divan::bench]
fn criteo_row(bencher: Bencher) {
    let (numbers, texts) = (integers(), hexadecimal());
    let fill = Call::new("fill_null", vec![]);
    let clamp = Call::new("clamp", vec![0i64.into(), (1i64 << 40).into()]);
    let log1p = Call::new("log1p", vec![]);
    let hex = Call::new("hex_to_int", vec![]);
    let modulus = Call::new("positive_mod", vec![1_000_003i64.into()]);
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| {
        for _ in 0..13 {
            let filled = clamp.run(fill.run(Arc::clone(&numbers)));
            let floats = arrow::compute::cast(&filled, &arrow::datatypes::DataType::Float32).expect("numbers");
            divan::black_box(log1p.run(floats));
        }
        for _ in 0..26 {
            divan::black_box(modulus.run(hex.run(Arc::clone(&texts))));
        }
    });
}

#[divan::bench]
fn hex_to_int(bencher: Bencher) {
    bench(bencher, hexadecimal(), &Call::new("hex_to_int", vec![]));
}

#[divan::bench]
fn positive_mod(bencher: Bencher) {
    bench(bencher, integers(), &Call::new("positive_mod", vec![1_000_003i64.into()]));
}

#[divan::bench]
fn sigrid_hash(bencher: Bencher) {
    bench(bencher, integers(), &Call::new("sigrid_hash", vec![0i64.into(), 1_000_003i64.into()]));
}

#[divan::bench]
fn vocab_apply(bencher: Bencher) {
    // A file, as a vocabulary of this size would be: it is read once.
    let path = std::env::temp_dir().join(format!("forebay-bench-{}.txt", std::process::id()));
    let texts = hexadecimal();
    let mut entries: Vec<_> = texts.as_string::<i32>().iter().flatten().collect();
    entries.sort_unstable();
    entries.dedup();
    std::fs::write(&path, entries.join("\n")).expect("a folder for temporary files");
    let pinned = forebay_operators::files::pin(&path.to_string_lossy(), Path::new("")).expect("it was just written");
    bench(bencher, texts, &Call::new("vocab_apply", vec![pinned.into()]));
    let _ = std::fs::remove_file(path);
}

#[divan::bench]
fn index_of(bencher: Bencher) {
    let texts = hexadecimal();
    let classes: Vec<_> = texts.as_string::<i32>().iter().flatten().take(100).map(ScalarValue::from).collect();
    let classes = ScalarValue::List(ScalarValue::new_list(&classes, &arrow::datatypes::DataType::Utf8, true));
    bench(bencher, texts, &Call::new("index_of", vec![classes]));
}

#[divan::bench]
fn chunk_text(bencher: Bencher) {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![include_str!("../../ARCHITECTURE.md"); 8]));
    let call = Call::new("chunk_text", vec![200i64.into()]);
    bencher.counter(ItemsCount::new(8usize)).bench_local(|| call.run(Arc::clone(&texts)));
}

/// The items are tokens per second: see the count in the function.
#[divan::bench]
fn tokenize(bencher: Bencher) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/tokenizers/gpt2.json");
    let pinned = forebay_operators::files::pin(file, Path::new("")).expect("it is in the repository");
    let pages = [include_str!("../../ARCHITECTURE.md"), include_str!("../../CONTRIBUTING.md")];
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(pages.iter().cycle().take(64)));
    let call = Call::new("tokenize", vec![pinned.into()]);
    let tokens = call.run(Arc::clone(&texts)).as_list::<i32>().values().len();
    bencher.counter(ItemsCount::new(tokens)).bench_local(|| call.run(Arc::clone(&texts)));
}

#[divan::bench]
fn minhash_signature(bencher: Bencher) {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![include_str!("../../ARCHITECTURE.md"); 8]));
    let call = Call::new("minhash_signature", vec![]);
    bencher.counter(ItemsCount::new(8usize)).bench_local(|| call.run(Arc::clone(&texts)));
}

fn bench(bencher: Bencher, column: ArrayRef, call: &Call) {
    bencher.counter(ItemsCount::new(ROWS)).bench_local(|| call.run(Arc::clone(&column)));
}

/// Integers below 2^32, one in twenty null, as in Criteo's table.
fn integers() -> ArrayRef {
    let mut draws = Draws::new(1, 0);
    let integers = (0..ROWS).map(|_| (draws.below(20) > 0).then(|| draws.below(1 << 32) as i64 - 2));
    Arc::new(arrow::array::PrimitiveArray::<Int64Type>::from(integers.collect::<Int64Array>().into_data()))
}

fn hexadecimal() -> ArrayRef {
    let mut draws = Draws::new(2, 0);
    let texts = (0..ROWS).map(|_| (draws.below(20) > 0).then(|| format!("{:08x}", draws.below(1 << 32))));
    Arc::new(texts.collect::<StringArray>())
}

/// A call of one input and constants, like a physical plan makes it.
struct Call {
    udf: ScalarUDF,
    constants: Vec<ScalarValue>,
}

impl Call {
    fn new(name: &str, mut constants: Vec<ScalarValue>) -> Self {
        let operator = forebay_operators::find(name).expect("the operator is registered");
        let parameters = operator.descriptor().parameters;
        constants.extend(parameters[1 + constants.len()..].iter().filter_map(|p| p.default_value()));
        Self { udf: ScalarUDF::from(OperatorUdf::new(operator)), constants }
    }

    fn run(&self, array: ArrayRef) -> ArrayRef {
        let rows = array.len();
        let mut arg_fields: Vec<FieldRef> = vec![Arc::new(Field::new("x", array.data_type().clone(), true))];
        arg_fields.extend(self.constants.iter().map(|c| Arc::new(Field::new("constant", c.data_type(), false))));
        let scalar_arguments: Vec<_> = std::iter::once(None).chain(self.constants.iter().map(Some)).collect();
        let planned = ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &scalar_arguments };
        let return_field = self.udf.return_field_from_args(planned).expect("the arguments fit");
        let mut args = vec![ColumnarValue::Array(array)];
        args.extend(self.constants.iter().cloned().map(ColumnarValue::Scalar));
        let config_options = Arc::new(ConfigOptions::default());
        let call = ScalarFunctionArgs { args, arg_fields, number_rows: rows, return_field, config_options };
        self.udf.invoke_with_args(call).and_then(|value| value.into_array(rows)).expect("the rows are sound")
    }
}
