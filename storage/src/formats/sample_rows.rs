//! The rows of most formats' samples.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};

/// Rows of an endless table: a number, a fraction that may be missing, and a text that sometimes repeats.
pub(crate) fn sample_rows(numbers: Range<u64>) -> RecordBatch {
    let numbers = numbers.start as i64..numbers.end as i64;
    let fraction: Float64Array = numbers.clone().map(|n| (n % 7 > 0).then_some(n as f64 + 0.25)).collect();
    let text: StringArray = numbers.clone().map(|n| Some(format!("text {}", n % 1000))).collect();
    let columns: [(&str, ArrayRef, bool); 3] = [
        ("n", Arc::new(Int64Array::from_iter_values(numbers)), true),
        ("fraction", Arc::new(fraction), true),
        ("text", Arc::new(text), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("the columns are of one length")
}

/// The same rows with the columns `column_1`, `column_2` and so on, as in files without column names.
pub(crate) fn unnamed(rows: &RecordBatch) -> RecordBatch {
    let schema = rows.schema();
    let names = (1..).map(|number| format!("column_{number}"));
    let fields = schema.fields().iter().zip(names).map(|(field, name)| field.as_ref().clone().with_name(name));
    let schema = Schema::new(fields.collect::<Vec<Field>>());
    RecordBatch::try_new(Arc::new(schema), rows.columns().to_vec()).expect("only the names are others")
}

/// The rows as text. A missing value is an empty text.
pub(crate) fn cells(rows: &RecordBatch) -> Vec<Vec<String>> {
    let options = FormatOptions::default();
    let columns = rows.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
    let columns: Vec<_> = columns.collect::<Result<_, _>>().expect("these types have a text");
    (0..rows.num_rows()).map(|row| columns.iter().map(|column| column.value(row).to_string()).collect()).collect()
}
