//! The pages of one read, checked before the decoder trusts them.
//!
//! The decoder takes the memory that a page's header claims or that its content unpacks to, and a value for each level
//! that a header claims. All of them together are bounded by what the row group claims in the footer, because that is
//! what the rest of the program accounts for.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::offset_index::PageLocation;

use super::cuts::dictionary;
use super::page_header::{Budget, header};
use super::shared::Wanted;
use super::thrift::Problem;

/// The pages of a read may have this many bytes beside those that their row group claims.
const PAGE_BYTES_BESIDE: u64 = 64 << 20;

/// The pages that a read asks for.
pub(super) struct Pages {
    metadata: Arc<ParquetMetaData>,
    group: usize,
    /// The columns, in the order of the file.
    columns: Vec<Column>,
    /// The memory that the row group claims.
    group_bytes: u64,
    /// The rows to read.
    rows: u64,
}

/// The pages of a column.
struct Column {
    leaf: usize,
    parts: Vec<Part>,
    /// The values that its pages may claim.
    values: u64,
}

/// Bytes that the decoder asks for at once.
struct Part {
    range: Range<u64>,
    /// Whether reads of other rows ask for them too.
    is_shared: bool,
    /// Where the decoder expects pages. Without them, the next page begins where one ends.
    pages: Vec<Range<u64>>,
}

impl Pages {
    /// The pages of the columns `mask` of a row group, whole or with some rows selected.
    pub(super) fn new(
        metadata: &Arc<ParquetMetaData>,
        group: usize,
        group_bytes: u64,
        mask: &ProjectionMask,
        selected: Option<&Range<u64>>,
    ) -> Self {
        let row_group = metadata.row_group(group);
        let group_rows = row_group.num_rows().max(0) as u64;
        let rows = selected.map_or(group_rows, |rows| rows.end - rows.start);
        let indexes = metadata.offset_index().and_then(|indexes| indexes.get(group)).filter(|them| !them.is_empty());
        let column = |(leaf, chunk): (usize, &ColumnChunkMetaData)| {
            let (start, length) = chunk.byte_range();
            let range = start..start.saturating_add(length);
            let locations = indexes.map(|indexes| &indexes[leaf].page_locations()[..]);
            let parts = match (locations, selected) {
                (None, _) => vec![Part { range, is_shared: false, pages: Vec::new() }],
                (Some(pages), None) => {
                    let pages = dictionary(start, pages).into_iter().chain(pages.iter().map(place)).collect();
                    vec![Part { range, is_shared: false, pages }]
                }
                (Some(pages), Some(rows)) => {
                    let part = |range: Range<u64>, is_shared| Part { pages: vec![range.clone()], range, is_shared };
                    let dictionary = dictionary(start, pages).map(|range| part(range, true));
                    let has_others = |range: &Range<u64>| {
                        let at = pages.partition_point(|page| (page.offset as u64) < range.start);
                        let first = pages.get(at).map_or(0, first_row);
                        let end = pages.get(at + 1).map_or(group_rows, first_row);
                        // A record may begin in a page and go on in the next, which then has the same first row.
                        first < rows.start || end > rows.end || first == end
                    };
                    let data = selection(rows).scan_ranges(pages).into_iter().map(|range| {
                        let is_shared = has_others(&range);
                        part(range, is_shared)
                    });
                    dictionary.into_iter().chain(data).collect()
                }
            };
            Column { leaf, parts, values: (chunk.num_values().max(0) as u64).max(group_rows) }
        };
        let leaves = row_group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf));
        let columns = leaves.map(column).collect();
        Self { metadata: Arc::clone(metadata), group, columns, group_bytes, rows }
    }

    /// The bytes to read, in the order in which the decoder asks for them.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        let parts = self.columns.iter().flat_map(|column| &column.parts);
        parts.map(|part| Wanted { range: part.range.clone(), is_shared: part.is_shared }).collect()
    }

    /// Checks the bytes of all pages. The error names the page's place in the file.
    pub(super) fn check(&self, fetched: &[Bytes]) -> Result<(), Problem> {
        let group = self.metadata.row_group(self.group);
        let bytes_max = self.group_bytes.saturating_add(PAGE_BYTES_BESIDE);
        let mut budget = Budget { group_bytes: self.group_bytes, bytes_max, bytes_left: bytes_max, values_left: 0 };
        let mut fetched = fetched.iter();
        for column in &self.columns {
            budget.values_left = column.values;
            for (part, bytes) in column.parts.iter().zip(&mut fetched) {
                let checked = part.check(group.column(column.leaf), bytes, &mut budget);
                checked.map_err(|problem| format!("the pages from byte {}: {problem}", part.range.start))?;
            }
            // The decoder takes memory for all rows before it looks for their values.
            let values = column.values - budget.values_left;
            if values < self.rows {
                let name = group.column(column.leaf).column_path();
                return Err(format!("column {name} has {values} values for {} rows", self.rows));
            }
        }
        Ok(())
    }
}

/// The rows of a row group to read, for the decoder.
pub(super) fn selection(rows: &Range<u64>) -> RowSelection {
    let (skipped, selected) = (rows.start as usize, (rows.end - rows.start) as usize);
    RowSelection::from(vec![RowSelector::skip(skipped), RowSelector::select(selected)])
}

fn first_row(page: &PageLocation) -> u64 {
    page.first_row_index as u64
}

fn place(page: &PageLocation) -> Range<u64> {
    let start = page.offset as u64;
    start..start.saturating_add(page.compressed_page_size as u64)
}

impl Part {
    fn check(&self, chunk: &ColumnChunkMetaData, bytes: &[u8], budget: &mut Budget) -> Result<(), Problem> {
        for page in &self.pages {
            let at = |byte: u64| byte.checked_sub(self.range.start).and_then(|at| usize::try_from(at).ok());
            let page = at(page.start).zip(at(page.end)).and_then(|(start, end)| bytes.get(start..end));
            let (header, content) = header(page.ok_or_else(|| "its offset index leaves its column".to_owned())?)?;
            header.content(content)?;
            header.check(chunk, content, budget)?;
        }
        let mut pages = if self.pages.is_empty() { bytes } else { &[] };
        // The decoder stops at an empty header.
        while pages.first().is_some_and(|first| *first > 0) {
            let (header, rest) = header(pages)?;
            let content = header.content(rest)?;
            header.check(chunk, content, budget)?;
            pages = &rest[content.len()..];
        }
        Ok(())
    }
}
