//! `pair_rows` and `sample_negatives`: give each row others of its window, drawn by its random key.

mod groups;
mod negatives;
mod pairs;

pub(super) use negatives::SampleNegatives;
pub(super) use pairs::PairRows;
