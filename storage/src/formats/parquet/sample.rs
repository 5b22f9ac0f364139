//! Files for the conformance suite.

use std::ops::Range;

use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::formats::format::SampleFile;
use crate::formats::sample_rows::sample_rows;

/// Several row groups with several pages and a page index, so that parts can be read.
const GROUP_ROWS: usize = 1000;
const PAGE_ROWS: usize = 100;

pub(super) fn file(numbers: Range<u64>) -> SampleFile {
    let rows = sample_rows(numbers);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS / 2)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).expect("these columns fit");
    writer.write(&rows).expect("a vector takes all");
    SampleFile { bytes: writer.into_inner().expect("a vector takes all"), rows, damaged: None }
}
