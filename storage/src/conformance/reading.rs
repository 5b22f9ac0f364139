//! Checks that files give the same rows in every way of reading them.

use std::ops::Range;

use arrow::array::{Array, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::DataType;

use super::samples::{Samples, ensure};
use crate::dataset::{BadRead, Dataset, RangeBatches, RangeRows};
use crate::source_file::RowRange;
use crate::{Error, ErrorKind};

/// Enough for several row groups in most formats.
const ROWS: Range<u64> = 0..9_000;
const MORE_ROWS: Range<u64> = 9_000..9_003;
/// Approximate maximum number of pieces to read the rows in.
const PIECES: u64 = 32;

pub(super) async fn check(samples: &Samples<'_>) -> Result<(), String> {
    let (first, second) = (samples.name("a"), samples.name("sub/b"));
    let samples_of_both = [samples.sample(&first, ROWS), samples.sample(&second, MORE_ROWS)];
    for (name, sample) in [&first, &second].into_iter().zip(&samples_of_both) {
        samples.put(name, sample.bytes.clone()).await;
    }
    let rows = samples_of_both.iter().map(|sample| &sample.rows);
    let expected = concat_batches(&samples_of_both[0].rows.schema(), rows).map_err(|error| error.to_string())?;
    for columns in samples.declared(&samples_of_both[0]) {
        let dataset = samples.open("", columns).await.map_err(|error| error.to_string())?;
        let files: Vec<u64> = dataset.snapshot().files().iter().map(|file| file.rows).collect();
        let rows: Vec<u64> = samples_of_both.iter().map(|sample| sample.rows.num_rows() as u64).collect();
        ensure!(files == rows, "files of {rows:?} rows were opened as {files:?}");
        same_rows(&dataset, &expected, &[]).await?;
        some_columns(&dataset, &expected).await?;
        let travelled = samples.travelled(&dataset)?;
        same_rows(&travelled, &expected, &[]).await.map_err(|problem| format!("opened from a snapshot: {problem}"))?;
        names_are_declared(samples, &dataset, &second).await?;
    }
    bad_row(samples).await?;
    changed_file(samples).await
}

/// Reads the dataset whole, and in pieces of several sizes. `bad` are the ids of the unreadable rows, which `expected`
/// lacks.
async fn same_rows(dataset: &Dataset, expected: &RecordBatch, bad: &[u64]) -> Result<(), String> {
    let bytes: u64 = dataset.row_ranges(u64::MAX).iter().map(|range| range.bytes).sum();
    for target in [u64::MAX, bytes / 3, bytes / PIECES] {
        let read = read_all(dataset, target).await.map_err(|error| error.to_string())?;
        let ids: Vec<u64> = (0..dataset.snapshot().rows()).filter(|id| !bad.contains(id)).collect();
        ensure!(read.ids == ids, "in pieces of {target} bytes the ids are not those of all rows, in order");
        let found: Vec<u64> = read.bad.iter().map(|bad| bad.sample_id).collect();
        ensure!(found == bad, "the bad rows are {:?}, expected {bad:?}", read.bad);
        same_values(&read.rows, expected).map_err(|problem| format!("in pieces of {target} bytes: {problem}"))?;
    }
    Ok(())
}

/// Compares columns by name, because inferred columns may come in another order, and casts them to the expected types.
fn same_values(read: &RecordBatch, expected: &RecordBatch) -> Result<(), String> {
    let count = (read.num_columns(), expected.num_columns());
    ensure!(count.0 == count.1, "{} columns were read, expected {}", count.0, count.1);
    for (field, column) in expected.schema().fields().iter().zip(expected.columns()) {
        let name = field.name();
        let found = read.column_by_name(name).ok_or_else(|| format!("column \"{name}\" is missing"))?;
        let found = cast(found, field.data_type()).map_err(|error| error.to_string())?;
        ensure!(found.as_ref() == column.as_ref(), "column \"{name}\" differs\n got {found:?}\nwant {column:?}");
    }
    Ok(())
}

/// Reads each column alone, all columns in another order, no column, and texts as dictionaries.
async fn some_columns(dataset: &Dataset, expected: &RecordBatch) -> Result<(), String> {
    let count = dataset.schema().fields().len();
    let alone = (0..count).map(|column| vec![column]);
    for columns in alone.chain([(0..count).rev().collect(), vec![]]) {
        let mut first_row = 0;
        for range in dataset.row_ranges(u64::MAX) {
            for dictionaries in [&[][..], &columns] {
                let read = dataset.read_with_dictionaries(&range, &columns, dictionaries).await;
                let read = read.map_err(|error| format!("columns {columns:?}: {error}"))?.batch;
                ensure!(read.num_rows() as u64 == range.rows, "columns {columns:?} have {} rows", read.num_rows());
                for (at, column) in columns.iter().enumerate() {
                    let name = dataset.schema().field(*column).name();
                    ensure!(read.schema().field(at).name() == name, "columns {columns:?} are in another order");
                    let expected = expected.column_by_name(name).ok_or_else(|| format!("column \"{name}\""))?;
                    let expected = expected.slice(first_row, read.num_rows());
                    let is_dictionary = matches!(read.column(at).data_type(), DataType::Dictionary(..));
                    ensure!(!is_dictionary || dataset.has_dictionaries(), "a dictionary of a format that has none");
                    let found = cast(read.column(at), expected.data_type()).map_err(|error| error.to_string())?;
                    ensure!(found.as_ref() == expected.as_ref(), "column \"{name}\" alone differs");
                }
            }
            first_row += range.rows as usize;
        }
    }
    Ok(())
}

/// Checks that a format declares whether file names are part of its rows. If so, they enter the snapshot's id.
async fn names_are_declared(samples: &Samples<'_>, dataset: &Dataset, name: &str) -> Result<(), String> {
    let columns = dataset.spec().schema.clone();
    let alone = samples.open("sub", columns).await.map_err(|error| error.to_string())?;
    let last = dataset.row_ranges(u64::MAX).into_iter().filter(|range| range.file == 1);
    let all: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    for (of_two, of_one) in last.zip(alone.row_ranges(u64::MAX)) {
        let of_two = dataset.read(&of_two, &all).await.map_err(|error| error.to_string())?.batch;
        let of_one = alone.read(&of_one, &all).await.map_err(|error| error.to_string())?.batch;
        let problem = same_values(&of_two, &of_one).err().filter(|_| !samples.format.descriptor().names_are_data);
        if let Some(problem) = problem {
            return Err(format!("the rows of \"{name}\" depend on where the location begins: {problem}"));
        }
    }
    Ok(())
}

/// Checks that one bad row is named and the other rows are read.
async fn bad_row(samples: &Samples<'_>) -> Result<(), String> {
    let name = samples.name("damaged/a");
    let sample = samples.sample(&name, ROWS);
    let Some(damaged) = sample.damaged else { return Ok(()) };
    samples.put(&name, damaged.bytes).await;
    let columns = samples.format.descriptor().may_declare_columns.then(|| sample.rows.schema());
    let dataset = samples.open(&name, columns).await.map_err(|error| format!("with a bad row: {error}"))?;
    let row = damaged.row as usize;
    let good = [sample.rows.slice(0, row), sample.rows.slice(row + 1, sample.rows.num_rows() - row - 1)];
    let good = concat_batches(&sample.rows.schema(), &good).map_err(|error| error.to_string())?;
    same_rows(&dataset, &good, &[damaged.row]).await.map_err(|problem| format!("with a bad row: {problem}"))?;
    let read = read_all(&dataset, u64::MAX).await.map_err(|error| error.to_string())?;
    let reason = &read.bad[0].reason;
    ensure!(reason.contains(damaged.reason), "the bad row is \"{reason}\", which lacks \"{}\"", damaged.reason);
    Ok(())
}

/// Checks that a changed file is a conflict and is never read.
async fn changed_file(samples: &Samples<'_>) -> Result<(), String> {
    let name = samples.name("changed/a");
    let sample = samples.sample(&name, 0..100);
    let longer = [&sample.bytes[..], b"\n"].concat();
    let shorter = sample.bytes[..sample.bytes.len() - 1].to_vec();
    for (what, change) in [("longer", Some(longer)), ("shorter", Some(shorter)), ("removed", None)] {
        samples.put(&name, sample.bytes.clone()).await;
        let opened = samples.open(&name, None).await.map_err(|error| error.to_string())?;
        let travelled = samples.travelled(&opened)?;
        match change {
            Some(bytes) => samples.put(&name, bytes).await,
            None => samples.delete(&name).await,
        }
        for dataset in [opened, travelled] {
            match read_all(&dataset, u64::MAX).await {
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    ensure!(error.to_string().contains(&name), "a {what} file is not named: {error}");
                }
                Err(error) => return Err(format!("a {what} file is no conflict, but {:?}: {error}", error.kind())),
                Ok(_) => return Err(format!("a {what} file is read")),
            }
        }
    }
    Ok(())
}

/// All rows of a dataset.
pub(super) struct ReadRows {
    pub(super) rows: RecordBatch,
    pub(super) ids: Vec<u64>,
    pub(super) bad: Vec<BadRead>,
}

pub(super) async fn read_all(dataset: &Dataset, target: u64) -> Result<ReadRows, Error> {
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let (mut batches, mut ids, mut bad) = (Vec::new(), Vec::new(), Vec::new());
    for range in dataset.row_ranges(target) {
        let rows = dataset.read(&range, &columns).await?;
        check_batches(dataset, &range, &columns, &rows).await?;
        ids.extend_from_slice(rows.sample_ids.values());
        bad.extend(rows.bad);
        batches.push(rows.batch);
    }
    let rows = concat_batches(dataset.schema(), &batches).map_err(|e| Error::internal(e.to_string()))?;
    Ok(ReadRows { rows, ids, bad })
}

/// Checks that reading a range in batches gives the same rows.
async fn check_batches(dataset: &Dataset, range: &RowRange, columns: &[usize], rows: &RangeRows) -> Result<(), Error> {
    let RangeBatches { batches, bad } = dataset.read_in_batches(range, columns, 2).await?;
    let mut first = 0;
    for (batch, ids) in batches {
        let count = batch.num_rows();
        let is_same = first + count <= rows.batch.num_rows()
            && batch == rows.batch.slice(first, count)
            && ids == rows.sample_ids.slice(first, count);
        if !is_same {
            return Err(Error::internal(format!("the batch at row {first} of {range:?} has other rows")));
        }
        first += count;
    }
    match first == rows.batch.num_rows() && bad == rows.bad {
        true => Ok(()),
        false => Err(Error::internal(format!("the batches of {range:?} lack some of its rows or bad rows"))),
    }
}
