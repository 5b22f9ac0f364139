//! The third plan of a feed that groups rows by length: each row's sample id and the measured column.
//!
//! The groups determine offsets, so they must be known before a window's rows are transformed. The transform computes
//! the column again.

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, UInt64Array};
use arrow::compute::{cast, take, take_record_batch};
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef, UInt64Type};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::displayable;
use forebay_protocol::CallOrder;
use futures::FutureExt;

use super::filters::unfiltered;
use super::hidden;
use super::hidden_columns::{SAMPLE_ID, hidden_column};
use super::leaf_plan::LeafPlan;
use super::output::plain;
use super::source_rows::SourceRows;
use super::stage::{BadRow, Stage};
use crate::error::{Error, Result};

/// The plan that measures rows.
pub(crate) struct Lengths {
    plan: LeafPlan,
    /// The table columns that it reads, ascending.
    columns: Vec<usize>,
}

/// The lengths of rows, in order, and the rows whose length cannot be computed.
pub(crate) struct Measured {
    pub(crate) sample_ids: UInt64Array,
    pub(crate) lengths: Vec<u64>,
    pub(crate) bad: Vec<BadRow>,
}

/// Refuses a column that does not exist or has no length.
pub(crate) fn check(schema: &Schema, column: &str) -> Result<()> {
    let Ok(field) = schema.field_with_name(column) else {
        let names = || schema.fields().iter().map(|field| field.name().as_str());
        let error = Error::invalid(format!("\"bucket_by_length\": the samples have no column \"{column}\""));
        return Err(error.with_hint(match forebay_diagnostics::nearest(column, names()) {
            Some(nearest) => format!("did you mean \"{nearest}\"?"),
            None => format!("columns: {}", names().collect::<Vec<_>>().join(", ")),
        }));
    };
    match field.data_type() {
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => Ok(()),
        DataType::Utf8 | DataType::LargeUtf8 => Ok(()),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => Ok(()),
        integer if integer.is_integer() => Ok(()),
        other => Err(Error::invalid(format!("\"bucket_by_length\": column \"{column}\" has no length: it is {other}"))
            .with_hint(
                "name a column of lists, strings or binary values, or of integers, which are lengths themselves",
            )),
    }
}

/// Plans the lengths of `column` of the query `plan`. `source` has the columns of the driving table.
pub(crate) fn lengths(
    plan: &LogicalPlan,
    column: &str,
    order: CallOrder,
    source: &SchemaRef,
    state: &SessionState,
) -> Result<Lengths> {
    let woven = hidden::weave(plan, order)?;
    let source = woven.leaf(source).clone();
    let woven = unfiltered(woven.top)?;
    let found = plan.schema().iter().find(|(_, field)| field.name() == column);
    let (qualifier, field) = found.ok_or_else(|| Error::internal(format!("column \"{column}\" was not checked")))?;
    let id = Expr::Column(hidden_column(&woven, SAMPLE_ID)?);
    let measured = LogicalPlanBuilder::from(woven).project([id, plain(qualifier, field)])?.build()?;
    // The functions that open feeds are not async, and planning over one table never waits.
    let planned = state.create_physical_plan(&measured).now_or_never();
    let plan = planned.ok_or_else(|| Error::internal("planning did not complete at once"))??;
    let plan = LeafPlan::new(plan, &source)?;
    let mut columns: Vec<usize> = plan.columns().collect();
    columns.sort_unstable();
    columns.dedup();
    Ok(Lengths { plan, columns })
}

impl Lengths {
    /// The physical plan, for `EXPLAIN PIPELINE`.
    pub(crate) fn display(&self) -> String {
        format!("length:\n{}", displayable(self.plan.plan.as_ref()).indent(false))
    }
}

impl Stage {
    /// Measures the rows with the ids `kept`, which are in the order of `rows`.
    pub(crate) async fn measure(&self, lengths: &Lengths, rows: &SourceRows, kept: &UInt64Array) -> Result<Measured> {
        let rows = self.narrowed(lengths, rows, kept)?;
        let done = self.run(&lengths.plan, &lengths.columns, &rows, false).await?;
        let ids = done.batches.iter().flat_map(|batch| batch.column(0).as_primitive::<UInt64Type>().values());
        let sample_ids = UInt64Array::from_iter_values(ids.copied());
        let mut all = Vec::with_capacity(sample_ids.len());
        for batch in &done.batches {
            append(&mut all, batch.column(1))?;
        }
        Ok(Measured { sample_ids, lengths: all, bad: done.bad })
    }

    /// Only the rows and columns needed.
    fn narrowed(&self, lengths: &Lengths, rows: &SourceRows, kept: &UInt64Array) -> Result<SourceRows> {
        let cannot = |error| Error::internal(format!("cannot narrow rows: {error}"));
        // The measured column is a column of the samples, so the transform reads its inputs too.
        let at = |column: &usize| {
            self.columns().binary_search(column).map_err(|_| Error::internal("the length needs a column of its own"))
        };
        let columns = lengths.columns.iter().map(at).collect::<Result<Vec<_>>>()?;
        let narrowed = SourceRows { batch: rows.batch.project(&columns).map_err(cannot)?, ..rows.clone() };
        if kept.len() == rows.sample_ids.len() {
            return Ok(narrowed);
        }
        let mut ids = rows.sample_ids.values().iter().zip(0u64..);
        let row =
            |id: &u64| ids.find(|(other, _)| *other == id).map(|(_, row)| row).expect("kept rows are among the rows");
        let indices = UInt64Array::from_iter_values(kept.values().iter().map(row));
        let keys = take(&narrowed.random_keys, &indices, None).map_err(cannot)?;
        Ok(SourceRows {
            batch: take_record_batch(&narrowed.batch, &indices).map_err(cannot)?,
            sample_ids: kept.clone(),
            random_keys: keys.as_primitive::<UInt64Type>().clone(),
            origins: rows.origins.as_ref().map(|origins| {
                UInt64Array::from_iter_values(indices.values().iter().map(|&row| origins.value(row as usize)))
            }),
            step_lengths: None,
        })
    }
}

/// Appends the length of each value: the items of a list, the characters of a string, the bytes of a binary value, or
/// the value of an integer. The length of a null or a negative number is 0.
fn append(lengths: &mut Vec<u64>, array: &ArrayRef) -> Result<()> {
    let valid = |row: usize, length: u64| if array.is_null(row) { 0 } else { length };
    let fixed = |width: i32| (0..array.len()).map(move |row| valid(row, width as u64));
    let integers = |data_type: &DataType| {
        cast(array, data_type).map_err(|error| Error::internal(format!("cannot read lengths: {error}")))
    };
    match array.data_type() {
        DataType::List(_) => lengths.extend(differences(array, array.as_list::<i32>().offsets())),
        DataType::LargeList(_) => lengths.extend(differences(array, array.as_list::<i64>().offsets())),
        DataType::Binary => lengths.extend(differences(array, array.as_binary::<i32>().offsets())),
        DataType::LargeBinary => lengths.extend(differences(array, array.as_binary::<i64>().offsets())),
        DataType::FixedSizeList(_, width) | DataType::FixedSizeBinary(width) => lengths.extend(fixed(*width)),
        DataType::Utf8 => lengths.extend(characters(array.as_string::<i32>().iter())),
        DataType::LargeUtf8 => lengths.extend(characters(array.as_string::<i64>().iter())),
        DataType::UInt64 => {
            lengths.extend(array.as_primitive::<UInt64Type>().iter().map(Option::unwrap_or_default));
        }
        integer if integer.is_integer() => {
            let integers = integers(&DataType::Int64)?;
            let integers = integers.as_primitive::<Int64Type>().iter();
            lengths.extend(integers.map(|length| u64::try_from(length.unwrap_or(0)).unwrap_or(0)));
        }
        other => return Err(Error::internal(format!("{other} has no length and was not refused"))),
    }
    Ok(())
}

fn differences<O: OffsetSizeTrait>(array: &ArrayRef, offsets: &[O]) -> impl Iterator<Item = u64> {
    // Offsets ascend, so a difference is not negative.
    let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]).as_usize() as u64);
    lengths.enumerate().map(|(row, length)| if array.is_null(row) { 0 } else { length })
}

fn characters<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> impl Iterator<Item = u64> {
    texts.map(|text| text.map_or(0, |text| text.chars().count() as u64))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, FixedSizeBinaryArray, FixedSizeListArray, Int8Array, LargeListArray, ListArray, StringArray,
    };
    use arrow::datatypes::{Field, Int32Type};

    use super::*;

    #[track_caller]
    fn expect(array: impl Array + 'static, expected: &[u64]) {
        let array: ArrayRef = Arc::new(array);
        let schema = Schema::new(vec![Field::new("x", array.data_type().clone(), true)]);
        check(&schema, "x").expect("a type that has a length");
        let mut lengths = Vec::new();
        append(&mut lengths, &array).expect("lengths");
        assert_eq!(lengths, expected, "{}", array.data_type());
        lengths.clear();
        append(&mut lengths, &array.slice(1, array.len() - 1)).expect("lengths");
        assert_eq!(lengths, expected[1..], "a slice of {}", array.data_type());
    }

    #[test]
    fn every_type_has_its_length() {
        let lists = || [Some(vec![Some(1), None]), None, Some(vec![]), Some(vec![Some(1); 5])];
        expect(ListArray::from_iter_primitive::<Int32Type, _, _>(lists()), &[2, 0, 0, 5]);
        expect(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists()), &[2, 0, 0, 5]);
        let pairs = [Some(vec![Some(1), None]), None, Some(vec![Some(1), Some(2)])];
        expect(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2), &[2, 0, 2]);
        expect(StringArray::from(vec![Some("añ漢"), None, Some("")]), &[3, 0, 0]);
        expect(BinaryArray::from(vec![Some("añ漢".as_bytes()), None, Some(b"")]), &[6, 0, 0]);
        let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size([Some([1u8; 4]), None].into_iter(), 4);
        expect(fixed.expect("four bytes each"), &[4, 0]);
        expect(Int8Array::from(vec![Some(7), None, Some(-3)]), &[7, 0, 0]);
        expect(UInt64Array::from(vec![Some(u64::MAX), None]), &[u64::MAX, 0]);
    }
}
