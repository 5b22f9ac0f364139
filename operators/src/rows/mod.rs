//! Table operators: functions of rows, called in FROM.

mod drop_near_duplicates;
mod mix;
mod pack;
mod partners;
mod repeat_rows;

use crate::row_operator::RowOperator;

/// Every table operator, by name. A new one is a file in this folder and two lines here.
pub static TABLE_OPERATORS: &[&dyn RowOperator] = &[
    &mix::CUTMIX,
    &drop_near_duplicates::DropNearDuplicates,
    &mix::MIXUP,
    &pack::PackOperator,
    &partners::PairRows,
    &repeat_rows::RepeatRows,
    &partners::SampleNegatives,
];
