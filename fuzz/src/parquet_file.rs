//! Parquet files.

use arrow::array::Array;
use bytes::Bytes;
use forebay_storage::{Dataset, DatasetSpec, Of, PathColumns, RowRange, Stores, TableFormat};

use crate::runtime::block_on;

/// Files that claim more rows are opened, but not read.
const ROWS_MAX: u64 = 4096;
const LOCATION: &str = "memory:///file.parquet";
/// Sizes of ranges: whole row groups, and as many cuts as a file has.
const RANGE_BYTES: [u64; 2] = [1 << 20, 64];
/// The most ranges of a file that are read.
const RANGES_MAX: usize = 64;

/// Opens a Parquet file as a table, and reads all of its rows: whole row groups, ranges that are cut at pages, and the
/// parts of both for which there are statistics. Rows that are read must be as many as the file's footer says.
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
        let mut is_whole = true;
        for bytes in RANGE_BYTES {
            let ranges = dataset.row_ranges(bytes);
            assert_eq!(ranges.iter().map(|range| range.rows).sum::<u64>(), dataset.snapshot().rows());
            for range in ranges.iter().take(RANGES_MAX) {
                is_whole &= read(&dataset, range).await;
                for of in [Of::Groups, Of::Pages] {
                    is_whole &= skip(&dataset, range, of).await;
                }
            }
        }
        is_whole
    })
}

/// Reads the rows of a range. Returns whether they can be read.
async fn read(dataset: &Dataset, range: &RowRange) -> bool {
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let Ok(rows) = dataset.read(range, &columns).await else { return false };
    assert_eq!(rows.batch.num_rows() + rows.bad.len(), range.rows as usize, "rows of {range:?}");
    for column in rows.batch.columns() {
        column.to_data().validate_full().expect("a column that was read is valid");
    }
    true
}

/// Looks up the bounds on a range's parts, as for a condition, and reads every second part, as if the condition
/// excluded the others. Returns whether that succeeds.
///
/// A file may lie about its bounds, so values outside of them are no finding.
async fn skip(dataset: &Dataset, range: &RowRange, of: Of) -> bool {
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let Ok(statistics) = dataset.statistics(range, &columns, of).await else { return false };
    let mut row = range.first_row;
    for part in &statistics.parts {
        assert!(part.first_row == row && (part.rows > 0 || range.rows == 0), "{:?} of {range:?}", statistics.parts);
        row += part.rows;
    }
    assert_eq!(row, range.first_row + range.rows, "{:?} of {range:?}", statistics.parts);
    for (field, bounds) in dataset.schema().fields().iter().zip(&statistics.columns) {
        assert_eq!(bounds.nulls.len(), statistics.parts.len());
        for bound in [&bounds.min, &bounds.max] {
            assert_eq!((bound.len(), bound.data_type()), (statistics.parts.len(), field.data_type()));
            bound.to_data().validate_full().expect("bounds are valid values");
        }
    }
    // A part that is a whole range was read before.
    let mut is_whole = true;
    if statistics.parts.len() > 1 && dataset.reads_parts(range) {
        for part in statistics.parts.iter().step_by(2) {
            is_whole &= read(dataset, part).await;
        }
    }
    is_whole
}
