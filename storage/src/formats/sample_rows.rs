//! The rows that most formats' samples hold.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};

/// Rows of an endless table: a number, a fraction that may be missing, and a text, some of which repeat.
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
