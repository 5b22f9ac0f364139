//! Parquet files.

use bytes::Bytes;
use forebay_storage::{Dataset, DatasetSpec, PathColumns, Stores, TableFormat};

use crate::runtime::block_on;

/// Files that claim more rows are opened, but not read.
const ROWS_MAX: u64 = 4096;
const LOCATION: &str = "memory:///file.parquet";

/// Opens a Parquet file as a table, and reads all of its rows. Rows that are read must be as many as the file's footer
/// says.
pub fn footer(data: &[u8]) -> bool {
    block_on(async {
        let stores = Stores::new();
        let put = stores.put(LOCATION, Bytes::copy_from_slice(data)).await;
        put.expect("memory takes any file");
        let format = TableFormat::named("parquet").expect("the format is registered");
        let spec = DatasetSpec {
            location: LOCATION.to_owned(),
            format,
            schema: None,
            path_columns: PathColumns::Inferred,
            path_column: None,
        };
        let Ok(dataset) = Dataset::open(&stores, &spec).await else { return false };
        if dataset.snapshot().rows() > ROWS_MAX {
            return false;
        }
        let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
        let mut is_whole = true;
        for range in dataset.row_ranges(1 << 20) {
            let Ok(rows) = dataset.read(&range, &columns).await else {
                is_whole = false;
                continue;
            };
            assert_eq!(rows.batch.num_rows() + rows.bad.len(), range.rows as usize, "rows of {range:?}");
            for column in rows.batch.columns() {
                column.to_data().validate_full().expect("a column that was read is valid");
            }
        }
        is_whole
    })
}
