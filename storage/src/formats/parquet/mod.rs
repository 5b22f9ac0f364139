//! Parquet: reads footers once, and row groups as ranges of rows.

mod bounds;
mod checks;
mod codec;
mod columns;
mod cuts;
mod decode;
mod delta;
mod footer;
mod offset_index;
mod page_header;
mod pages;
mod sample;
mod shared;
mod texts;
mod thrift;
mod write;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::OnceLock;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, FieldRef};
use futures::future::{BoxFuture, FutureExt};
use futures::lock::Mutex;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;

pub use self::write::write_parquet;

use self::bounds::{PageBounds, of_missing};
use self::columns::{add_nulls, merge_schemas, positions, with_types_of};
use self::cuts::cut;
use self::decode::{damaged, decode, guarded};
use self::footer::{Footer, GROUP_ROWS_MAX, read_footer, row_groups};
use self::pages::Pages;
use self::shared::{SHARED_BYTES_MAX, SharedBytes, Wanted};
use self::texts::texts_as_dictionary;
use super::format::{
    BytesToRead, Decoded, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest,
    SampleFile,
};
use super::options::{FormatOption, FormatOptionKind, OptionValues};
use crate::pinned::for_all;
use crate::source_file::{RowGroup, RowRange, SourceFile};
use crate::statistics::{ColumnStatistics, Of, RangeStatistics};
use crate::widening::{Drift, conform, unfit};
use crate::{Error, Result};

static DESCRIPTOR: FormatDescriptor = FormatDescriptor {
    name: "parquet",
    summary: "Apache Parquet",
    extensions: &["parquet", "parq", "pq"],
    row_group: "a Parquet row group. With a page index, a piece of it can be read without the rest",
    options: &[
        FormatOption {
            name: "missing",
            kind: FormatOptionKind::Text,
            default: "auto",
            docs: "a column, or a field of a struct, that some files lack is null there (`null`) or refused (`error`); \
                   `auto` is `null`, but refuses files that share no column, and names that differ only by case",
            only_columns: true,
        },
        FormatOption {
            name: "widen",
            kind: FormatOptionKind::Flag,
            default: "true",
            docs: "whether a column has the widest of its types: integers, floats and units of timestamps may differ",
            only_columns: true,
        },
    ],
    reads_parts: true,
    has_dictionaries: true,
    ..FormatDescriptor::BASE
};

/// Apache Parquet.
#[derive(Debug)]
pub(crate) struct Parquet;

impl Format for Parquet {
    fn descriptor(&self) -> &'static FormatDescriptor {
        &DESCRIPTOR
    }

    fn check_options(&self, options: &OptionValues) -> Result<(), String> {
        match options.text("missing") {
            "auto" | "null" | "error" => Ok(()),
            other => Err(format!("the option \"missing\" must be 'auto', 'null' or 'error', got '{other}'")),
        }
    }

    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        open(request).boxed()
    }

    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        let footers = (0..request.files).map(|_| LazyFooter::default()).collect();
        Ok(Box::new(ParquetReader { footers, shared: SharedBytes::default() }))
    }

    fn misfit(&self, _file: &SourceFile, group: &RowGroup) -> Option<String> {
        let claims = || format!("a row group claims {} rows", group.rows);
        (group.rows > GROUP_ROWS_MAX as u64).then(claims).or_else(|| group.cuts.misfit(group.rows))
    }

    fn sample(&self, _name: &str, numbers: Range<u64>, _options: &OptionValues) -> SampleFile {
        sample::file(numbers)
    }
}

async fn open(request: OpenRequest<'_>) -> Result<Opened> {
    let files = request.files;
    let footers: Vec<ArrowReaderMetadata> = for_all(files, read_footer).await?;
    let options = request.options;
    let missing = options.text("missing");
    let drift = Drift { missing: missing != "error", alike: missing == "null", widen: options.flag("widen") };
    let schema = merge_schemas(files, &footers, drift)?;
    let groups = files.iter().zip(&footers).map(|(file, footer)| row_groups(file, footer.metadata()));
    let mut groups = groups.collect::<Result<Vec<_>>>()?;
    let of_file = |footer: &ArrowReaderMetadata| positions(&schema, footer.schema());
    let all: Option<Vec<_>> = footers.iter().map(of_file).collect();
    let all = all.expect("merge_schemas made types for all files");
    for (((file, footer), columns), groups) in files.iter().zip(&footers).zip(&all).zip(&mut groups) {
        add_nulls(file, &schema, columns, footer.schema(), groups)?;
    }
    cut(footers.iter().map(|footer| &**footer.metadata()), &mut groups);
    let mut lazy_footers = Vec::with_capacity(files.len());
    for ((file, metadata), columns) in files.iter().zip(footers).zip(all) {
        let metadata = guarded(file, async { with_types_of(&schema, &columns, metadata) }).await?;
        lazy_footers.push(LazyFooter { footer: Footer::new(columns, metadata).into(), reading: Mutex::default() });
    }
    Ok(Opened {
        schema,
        groups,
        reader: Box::new(ParquetReader { footers: lazy_footers, shared: SharedBytes::default() }),
    })
}

/// The footers of a dataset's files.
#[derive(Debug)]
struct ParquetReader {
    footers: Vec<LazyFooter>,
    shared: SharedBytes,
}

/// A footer, read when the dataset is opened. If the dataset was pinned elsewhere, it is read with the first read of
/// the file.
#[derive(Debug, Default)]
struct LazyFooter {
    footer: OnceLock<Footer>,
    /// Held by the task that reads the footer, while other tasks that need it wait.
    reading: Mutex<()>,
}

impl FormatReader for ParquetReader {
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>> {
        async move { self.decoded(&request).await }.boxed()
    }

    fn bytes_to_read<'a>(
        &'a self,
        request: ReadRequest<'a>,
        ranges: &'a [RowRange],
    ) -> BoxFuture<'a, Result<Option<BytesToRead>>> {
        self.bytes(request, ranges).boxed()
    }

    fn shared_bytes_max(&self) -> u64 {
        SHARED_BYTES_MAX
    }

    fn statistics<'a>(&'a self, request: ReadRequest<'a>, of: Of) -> BoxFuture<'a, Result<RangeStatistics>> {
        match of {
            Of::Groups => self.group_statistics(request).boxed(),
            Of::Pages => self.page_statistics(request).boxed(),
        }
    }
}

impl ParquetReader {
    /// The bytes of `ranges`, which are of the request's file.
    async fn bytes(&self, request: ReadRequest<'_>, ranges: &[RowRange]) -> Result<Option<BytesToRead>> {
        let footer = self.footer(&request).await?;
        let roots = request.columns.iter().filter_map(|column| footer.columns[*column]);
        let metadata = footer.metadata.metadata();
        let mask = ProjectionMask::roots(metadata.file_metadata().schema_descr(), roots);
        let (mut bytes, mut seen, mut groups) = (BytesToRead::default(), HashSet::new(), HashSet::new());
        for range in ranges {
            let group = &request.groups[range.group as usize];
            let first = range.first_row - group.first_row;
            let selected = (range.rows < group.rows).then_some(first..first + range.rows);
            let pages = Pages::new(metadata, range.group as usize, group.bytes, &mask, selected.as_ref());
            for Wanted { range: place, is_shared } in pages.wanted() {
                let length = place.end - place.start;
                match (is_shared, seen.insert(place.start)) {
                    (false, _) => bytes.own = bytes.own.saturating_add(length),
                    (true, true) => bytes.shared = bytes.shared.saturating_add(length),
                    (true, false) => bytes.again = bytes.again.saturating_add(length),
                }
            }
            if groups.insert(range.group) {
                let chunks = metadata.row_group(range.group as usize).columns().iter().enumerate();
                let chunks = chunks.filter(|(leaf, _)| mask.leaf_included(*leaf));
                let stored = chunks.map(|(_, chunk)| chunk.byte_range().1);
                bytes.stored = stored.fold(bytes.stored, u64::saturating_add);
            }
        }
        Ok(Some(bytes))
    }

    /// The footer of a file, which must have the columns and the row groups of the snapshot.
    async fn footer(&self, request: &ReadRequest<'_>) -> Result<&Footer> {
        let (file, lazy) = (request.file, &self.footers[request.range.file as usize]);
        if let Some(footer) = lazy.footer.get() {
            return Ok(footer);
        }
        let _reading = lazy.reading.lock().await;
        if let Some(footer) = lazy.footer.get() {
            return Ok(footer);
        }
        let metadata = read_footer(file).await?;
        let mut groups = row_groups(file, metadata.metadata())?;
        let positions = positions(request.schema, metadata.schema());
        if let Some(columns) = &positions {
            add_nulls(file, request.schema, columns, metadata.schema(), &mut groups)?;
        }
        match positions {
            Some(columns) if are_same(&groups, request.groups) => {
                let typed = guarded(file, async { with_types_of(request.schema, &columns, metadata) }).await?;
                Ok(lazy.footer.get_or_init(|| Footer::new(columns, typed)))
            }
            _ => Err(Error::conflict(format!(
                "the columns and row groups of \"{}\" do not match the feed's snapshot; create its table again \
                 (restart the run or server) to read the new file",
                file.path()
            ))),
        }
    }

    async fn group_statistics(&self, request: ReadRequest<'_>) -> Result<RangeStatistics> {
        let (footer, range) = (self.footer(&request).await?, *request.range);
        let mut columns = Vec::with_capacity(request.columns.len());
        for (&column, field) in request.columns.iter().zip(request.output.fields()) {
            let known = match (footer.columns[column], footer.stored(range.group, column, field)) {
                (None, _) => Some(of_missing(field, &[range])),
                (_, Some(stored)) => guarded(request.file, async { stored.bounds(range.rows) }).await?,
                _ => None,
            };
            columns.push(known.unwrap_or_else(|| ColumnStatistics::unknown(field.data_type(), 1)));
        }
        Ok(RangeStatistics { parts: vec![range], columns })
    }

    async fn page_statistics(&self, request: ReadRequest<'_>) -> Result<RangeStatistics> {
        let (footer, range, group) = (self.footer(&request).await?, *request.range, request.group());
        let mut known = Vec::with_capacity(request.columns.len());
        for (&column, field) in request.columns.iter().zip(request.output.fields()) {
            let stored = footer.stored(range.group, column, field);
            known.push(match stored.and_then(|stored| Some((stored, stored.index(request.file.size())?))) {
                Some((stored, index)) => {
                    let wanted = [Wanted { range: index.clone(), is_shared: true }];
                    let read = self.shared.read(range.file, request.file, &wanted).await?.swap_remove(0);
                    // Pages are only skipped with an index, so a damaged one is left alone.
                    guarded(request.file, stored.page_bounds(index, read)).await.ok().flatten()
                }
                None => None,
            });
        }
        let from = range.first_row - group.first_row;
        let rows = from..from + range.rows;
        let firsts = known.iter().flatten().flat_map(|pages: &PageBounds| &pages.rows).copied();
        let mut firsts: Vec<u64> = firsts.filter(|row| rows.contains(row)).chain([rows.start]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let ends = firsts.iter().skip(1).copied().chain([rows.end]);
        let part = |(&first, end): (&u64, u64)| {
            let bytes = u128::from(range.bytes) * u128::from(end - first) / u128::from(range.rows.max(1));
            RowRange { first_row: group.first_row + first, rows: end - first, bytes: bytes as u64, ..range }
        };
        let parts: Vec<RowRange> = firsts.iter().zip(ends).map(part).collect();
        let columns = request.columns.iter().zip(request.output.fields()).zip(known).map(
            |((&column, field), known)| match known {
                Some(pages) => pages.of_parts(&parts, group.first_row),
                None if footer.columns[column].is_none() => of_missing(field, &parts),
                None => ColumnStatistics::unknown(field.data_type(), parts.len()),
            },
        );
        Ok(RangeStatistics { columns: columns.collect(), parts })
    }

    /// The requested columns of the range.
    async fn decoded(&self, request: &ReadRequest<'_>) -> Result<Decoded> {
        let ReadRequest { file, range, columns, dictionaries, .. } = *request;
        if columns.is_empty() {
            return request.all_good(Vec::new());
        }
        let footer = self.footer(request).await?;
        let roots: Vec<usize> = columns.iter().filter_map(|c| footer.columns[*c]).collect();
        if roots.is_empty() {
            // The file has none of these columns.
            let rows = range.rows as usize;
            let nulls = request.output.fields().iter().map(|f| new_null_array(f.data_type(), rows));
            return request.all_good(nulls.collect());
        }
        let has_texts = |root: &usize| !footer.metadata.schema().field(*root).data_type().is_null();
        let roots_of = dictionaries.iter().filter_map(|c| footer.columns[*c]).filter(has_texts);
        let types = roots_of.map(|root| (root, footer.cheapest_texts(range, root))).collect();
        let decoding = async { decode(request, &self.shared, footer.with_types(types)?, &roots).await };
        let batches = guarded(file, decoding).await?;
        let (found, expected) = (batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>(), range.rows);
        if found != expected {
            return Err(damaged(file, &format!("{found} rows where the footer says {expected}")));
        }
        // The decoder returns columns in the file's order, not in the requested order.
        let mut in_file_order = roots.clone();
        in_file_order.sort_unstable();
        in_file_order.dedup();
        let fields = || columns.iter().zip(request.output.fields());
        let root_of = |column: &usize| footer.columns[*column];
        let at = |root| in_file_order.partition_point(|other| *other < root);
        let arrays = |batch: &RecordBatch| -> Result<Vec<ArrayRef>, Failure> {
            let array = |(column, field): (&usize, &FieldRef)| {
                let array = root_of(column).map(|root| batch.column(at(root)));
                match array.filter(|array| !array.data_type().is_null()) {
                    None => Ok(new_null_array(field.data_type(), batch.num_rows())),
                    Some(array) if dictionaries.contains(column) => {
                        texts_as_dictionary(array).map_err(|e| Failure::Whole(damaged(file, &e.to_string())))
                    }
                    Some(array) => conform(array, field.data_type()).map_err(|_| Failure::Rows),
                }
            };
            fields().map(array).collect()
        };
        let mut decoded = Decoded::default();
        let mut before = 0;
        for batch in batches {
            let rows = batch.num_rows();
            match arrays(&batch) {
                Ok(arrays) => decoded.batches.push(request.batch(arrays, rows)?),
                Err(Failure::Whole(error)) => return Err(error),
                Err(Failure::Rows) => {
                    let mut bad = BTreeMap::new();
                    for (column, field) in fields().filter(|(column, _)| !dictionaries.contains(column)) {
                        let Some(root) = root_of(column) else { continue };
                        for (row, error) in unfit(batch.column(at(root)), field.data_type()) {
                            bad.entry(row as u64).or_insert_with(|| misfit(field, &error));
                        }
                    }
                    let good: BooleanArray = (0..rows as u64).map(|row| Some(!bad.contains_key(&row))).collect();
                    let unexpected = || Error::internal("rows that fit their types do not fit them");
                    let kept = filter_record_batch(&batch, &good).map_err(|error| unexpected().with_source(error))?;
                    let arrays = arrays(&kept).map_err(|_| unexpected())?;
                    decoded.batches.push(request.batch(arrays, kept.num_rows())?);
                    decoded.bad.extend(bad.into_iter().map(|(row, reason)| (before + row, reason)));
                }
            }
            before += rows as u64;
        }
        Ok(decoded)
    }
}

/// The reason that a row is bad whose value in `field` has another type.
fn misfit(field: &Field, error: &impl std::fmt::Display) -> String {
    let (name, data_type) = (field.name(), field.data_type());
    format!("column \"{name}\": a value does not fit {data_type}, the type of all files: {error}")
}

/// Whether row groups have the same rows and bytes. Their cuts depend on the other files of the dataset.
fn are_same(these: &[RowGroup], those: &[RowGroup]) -> bool {
    let of = |group: &RowGroup| (group.rows, group.bytes);
    these.iter().map(of).eq(those.iter().map(of))
}

/// Why columns cannot be converted to the types of all files.
enum Failure {
    Whole(Error),
    /// Some rows have values that do not fit.
    Rows,
}
