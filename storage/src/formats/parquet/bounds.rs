//! Bounds on values from a file's statistics, for the types and writers whose statistics can be trusted.
//!
//! The footer has bounds for each row group. A column index, which is read only for the columns of a condition that
//! those do not decide, has bounds for each page.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::basic::Type as PhysicalType;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaDataBuilder, ParquetMetaDataReader};

use super::offset_index::Fetched;
use super::thrift::{Kind, Struct, Walk};
use crate::source_file::RowRange;
use crate::statistics::ColumnStatistics;

/// Maximum bytes of a column index for each page.
const PAGE_INDEX_BYTES_MAX: u64 = 4 << 10;

static COLUMN_INDEX: Struct = Struct {
    name: "ColumnIndex",
    fields: &[
        ("null_pages", Kind::List(&Kind::Bool)),
        ("min_values", Kind::List(&Kind::Binary)),
        ("max_values", Kind::List(&Kind::Binary)),
        ("boundary_order", Kind::Number),
        ("null_counts", Kind::List(&Kind::Number)),
        ("repetition_level_histograms", Kind::List(&Kind::Number)),
        ("definition_level_histograms", Kind::List(&Kind::Number)),
    ],
};

/// A column of one leaf in a row group of a file.
#[derive(Clone, Copy)]
pub(super) struct StoredColumn<'a> {
    pub(super) footer: &'a ArrowReaderMetadata,
    /// The number of the row group.
    pub(super) group: usize,
    /// The number of the column among the file's, and of its leaf.
    pub(super) root: usize,
    pub(super) leaf: usize,
    /// The column of the dataset.
    pub(super) field: &'a Field,
}

/// Bounds on a column's values in each page of a row group.
#[derive(Debug)]
pub(super) struct PageBounds {
    /// The first row of each page, in the row group, and then the number of rows.
    pub(super) rows: Vec<u64>,
    bounds: ColumnStatistics,
}

impl StoredColumn<'_> {
    fn chunk(&self) -> &ColumnChunkMetaData {
        self.footer.metadata().row_group(self.group).column(self.leaf)
    }

    /// Whether statistics bound all values.
    fn is_bounded(&self) -> bool {
        let stored = self.footer.schema().field(self.root);
        let is_old = self.chunk().statistics().is_some_and(|statistics| statistics.is_min_max_deprecated());
        let is_odd = self.chunk().column_type() == PhysicalType::INT96;
        !is_old && !is_odd && is_ordered(stored.data_type()) && is_ordered(self.field.data_type())
    }

    fn converter(&self) -> Result<StatisticsConverter<'_>, ParquetError> {
        let name = self.footer.schema().field(self.root).name();
        let converter = StatisticsConverter::try_new(name, self.footer.schema(), self.footer.parquet_schema())?;
        Ok(converter.with_missing_null_counts_as_zero(false))
    }

    /// The bounds in `rows` rows of the row group. `None` if they are unknown.
    pub(super) fn bounds(&self, rows: u64) -> Result<Option<ColumnStatistics>, ParquetError> {
        if !self.is_bounded() || self.chunk().statistics().is_none() {
            return Ok(None);
        }
        let (converter, group) = (self.converter()?, self.footer.metadata().row_group(self.group));
        let (min, max) = (converter.row_group_mins([group])?, converter.row_group_maxes([group])?);
        let nulls = converter.row_group_null_counts([group])?;
        let of_group = conformed(&min, &max, nulls, self.field);
        Ok(of_group.map(|bounds| of_part(&bounds, 0, group.num_rows().max(0) as u64, rows)))
    }

    /// Where the column index lies in a file of this size, if it says something and can be read.
    pub(super) fn index(&self, file_bytes: u64) -> Option<Range<u64>> {
        let start = u64::try_from(self.chunk().column_index_offset()?).ok()?;
        let length = u64::try_from(self.chunk().column_index_length()?).ok()?;
        let end = start.checked_add(length)?;
        let pages =
            self.footer.metadata().offset_index()?.get(self.group)?.get(self.leaf)?.page_locations().len() as u64;
        let is_usable = self.is_bounded() && end <= file_bytes && length <= (pages + 1) * PAGE_INDEX_BYTES_MAX;
        is_usable.then_some(start..end)
    }

    /// The bounds in each page, from the bytes of the column index.
    pub(super) async fn page_bounds(
        &self,
        index: Range<u64>,
        bytes: Bytes,
    ) -> Result<Option<PageBounds>, ParquetError> {
        let metadata = self.footer.metadata();
        let Some(offsets) = metadata.offset_index() else { return Ok(None) };
        if !has_pages(&bytes, offsets[self.group][self.leaf].page_locations().len()) {
            return Ok(None);
        }
        // The reader reads the indexes of all columns that have one.
        let group = metadata.row_group(self.group);
        let chunks = group.columns().iter().enumerate().map(|(leaf, chunk)| match leaf == self.leaf {
            true => Ok(chunk.clone()),
            false => chunk.clone().into_builder().set_column_index_offset(None).build(),
        });
        let alone = group.clone().into_builder().set_column_metadata(chunks.collect::<Result<_, _>>()?).build()?;
        let alone = ParquetMetaDataBuilder::new(metadata.file_metadata().clone()).add_row_group(alone).build();
        let mut reader = ParquetMetaDataReader::new_with_metadata(alone)
            .with_offset_index_policy(PageIndexPolicy::Skip)
            .with_column_index_policy(PageIndexPolicy::Optional);
        reader.load_page_index(Fetched { start: index.start, bytes }).await?;
        let alone = reader.finish()?;
        let Some(indexes) = alone.column_index() else { return Ok(None) };
        let (converter, offsets) = (self.converter()?, vec![offsets[self.group].clone()]);
        let (min, max) =
            (converter.data_page_mins(indexes, &offsets, [&0])?, converter.data_page_maxes(indexes, &offsets, [&0])?);
        let nulls = converter.data_page_null_counts(indexes, &offsets, [&0])?;
        let pages = offsets[0][self.leaf].page_locations();
        if [min.len(), max.len(), nulls.len()].iter().any(|length| *length != pages.len()) {
            return Ok(None);
        }
        let rows = pages.iter().map(|page| page.first_row_index as u64).chain([group.num_rows().max(0) as u64]);
        let bounds = conformed(&min, &max, nulls, self.field);
        Ok(bounds.map(|bounds| PageBounds { rows: rows.collect(), bounds }))
    }
}

/// Whether a column index can be read and has bounds for this many pages.
fn has_pages(index: &[u8], pages: usize) -> bool {
    let mut fits = true;
    let walked = Walk::new(index).fields(&COLUMN_INDEX, |walk, id| {
        if !matches!(id, 2 | 3) {
            return Ok(false);
        }
        let bounds = walk.list(&Kind::Binary)?;
        fits &= bounds == pages;
        (0..bounds).try_for_each(|_| walk.binary().map(drop)).map(|()| true)
    });
    walked.is_ok() && fits
}

impl PageBounds {
    /// The bounds in each of `parts`, none of which has rows of two pages. `first_row` is the row group's first row.
    pub(super) fn of_parts(&self, parts: &[RowRange], first_row: u64) -> ColumnStatistics {
        let page = |part: &RowRange| self.rows.partition_point(|row| *row <= part.first_row - first_row) - 1;
        let pages: Vec<usize> = parts.iter().map(page).collect();
        let nulls = pages.iter().zip(parts).map(|(&page, part)| {
            of_part(&self.bounds, page, self.rows[page + 1] - self.rows[page], part.rows).nulls.iter().next().flatten()
        });
        let at = UInt32Array::from_iter_values(pages.iter().map(|page| *page as u32));
        let pick = |bounds: &ArrayRef| take(bounds, &at, None).expect("there is such a page");
        ColumnStatistics { min: pick(&self.bounds.min), max: pick(&self.bounds.max), nulls: nulls.collect() }
    }
}

/// Of bounds of something with `all` rows, the one at `at`, for `rows` of its rows.
fn of_part(bounds: &ColumnStatistics, at: usize, all: u64, rows: u64) -> ColumnStatistics {
    // The number of nulls says something about a part of the rows only if none or all are null.
    let nulls = match bounds.nulls.is_valid(at).then(|| bounds.nulls.value(at)) {
        Some(0) => Some(0),
        Some(nulls) if nulls == all => Some(rows),
        _ => None,
    };
    let (min, max) = (bounds.min.slice(at, 1), bounds.max.slice(at, 1));
    ColumnStatistics { min, max, nulls: UInt64Array::from(vec![nulls]) }
}

/// Whether statistics bound all values of the type. Those of floats leave out NaN, which queries compare as the
/// greatest value.
fn is_ordered(data_type: &DataType) -> bool {
    use DataType::{Boolean, Date32, Date64, Decimal128, Timestamp, Utf8};

    data_type.is_integer() || matches!(data_type, Boolean | Date32 | Date64 | Decimal128(..) | Timestamp(..) | Utf8)
}

/// Bounds as values of the dataset's column, unless its type may hold them otherwise.
fn conformed(min: &ArrayRef, max: &ArrayRef, nulls: UInt64Array, field: &Field) -> Option<ColumnStatistics> {
    let conform = |bounds: &ArrayRef| {
        let (from, to) = (bounds.data_type(), field.data_type());
        let is_same = from == to || from.is_integer() && to.is_integer();
        let cast = is_same.then(|| cast(bounds, to).ok()).flatten()?;
        // A bound that does not fit would look unknown, but reading its value fails.
        (cast.null_count() == bounds.null_count()).then_some(cast)
    };
    Some(ColumnStatistics { min: conform(min)?, max: conform(max)?, nulls })
}

/// The bounds of a column that a file lacks.
pub(super) fn of_missing(field: &Field, parts: &[RowRange]) -> ColumnStatistics {
    let unknown = ColumnStatistics::unknown(field.data_type(), parts.len());
    ColumnStatistics { nulls: UInt64Array::from_iter_values(parts.iter().map(|part| part.rows)), ..unknown }
}
