//! Files of a few bytes that claim more than any memory holds, or are nested without a bound. Without the checks, they
//! end the process: by an allocation that fails, or by a stack overflow.

use std::io::{Write, copy, repeat};
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{FixedSizeListArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use forebay_storage::{Dataset, ErrorKind, Result};
use parquet::arrow::arrow_writer::{ArrowWriter, ArrowWriterOptions};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, encode_arrow_schema};
use parquet::file::metadata::{KeyValue, PageIndexPolicy, ParquetMetaDataReader};
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::properties::WriterProperties;

use crate::support::{TestFolder, parquet_bytes_split, stored_as};

/// A struct in Thrift's compact protocol.
#[derive(Clone, Default)]
struct Thrift {
    bytes: Vec<u8>,
    last: u8,
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

impl Thrift {
    fn field(mut self, id: u8, wire: u8, value: &[u8]) -> Self {
        self.bytes.push((id - self.last) << 4 | wire);
        self.bytes.extend(value);
        self.last = id;
        self
    }

    fn number(self, id: u8, number: u32) -> Self {
        self.field(id, 5, &varint(2 * u64::from(number)))
    }

    fn text(self, id: u8, text: &str) -> Self {
        self.field(id, 8, &[&varint(text.len() as u64), text.as_bytes()].concat())
    }

    fn part(self, id: u8, part: Self) -> Self {
        self.field(id, 12, &part.end())
    }

    /// A list that claims `claimed` elements of a type.
    fn list(self, id: u8, wire: u8, claimed: usize, elements: &[Vec<u8>]) -> Self {
        self.field(id, 9, &[vec![0xF0 | wire], varint(claimed as u64), elements.concat()].concat())
    }

    fn structs(self, id: u8, elements: Vec<Self>) -> Self {
        let elements: Vec<_> = elements.into_iter().map(Self::end).collect();
        self.list(id, 12, elements.len(), &elements)
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// An element of a schema: an optional group, or a required text if it has no children.
fn element(name: &str, children: u32) -> Thrift {
    match children {
        0 => Thrift::default().number(1, 6).number(3, 0).text(4, name),
        _ => Thrift::default().number(3, 1).text(4, name).number(5, children),
    }
}

fn footer(schema: Vec<Thrift>) -> Thrift {
    Thrift::default().number(1, 1).structs(2, schema).number(3, 0)
}

fn file(pages: &[u8], footer: Thrift) -> Vec<u8> {
    let footer = footer.end();
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1", pages, &footer, &length, b"PAR1"].concat()
}

/// A file of ten texts in one column chunk, whose bytes are `pages`.
fn ten_texts(codec: u32, pages: &[u8]) -> Vec<u8> {
    ten_values(6, element("t", 0), codec, pages)
}

/// A file of ten values of a physical type.
fn ten_values(physical: u32, leaf: Thrift, codec: u32, pages: &[u8]) -> Vec<u8> {
    values((10, 10), physical, leaf, codec, pages)
}

/// A file of one column chunk that claims so many values and rows.
fn values((values, rows): (u32, u32), physical: u32, leaf: Thrift, codec: u32, pages: &[u8]) -> Vec<u8> {
    let size = pages.len() as u32;
    let chunk = Thrift::default()
        .number(1, physical)
        .list(2, 5, 1, &[vec![0]])
        .list(3, 8, 1, &[vec![1, b't']])
        .number(4, codec)
        .number(5, values)
        .number(6, size)
        .number(7, size)
        .number(9, 4);
    let chunk = Thrift::default().number(2, 4).part(3, chunk);
    let group = Thrift::default().structs(1, vec![chunk]).number(2, size).number(3, rows);
    let schema = vec![element("root", 1), leaf];
    file(pages, Thrift::default().number(1, 1).structs(2, schema).number(3, rows).structs(4, vec![group]))
}

async fn read(bytes: Vec<u8>) -> Result<Dataset> {
    let place = TestFolder::memory();
    place.put("a.parquet", bytes).await;
    let dataset = place.open("", stored_as("parquet")).await?;
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    for range in dataset.row_ranges(u64::MAX) {
        dataset.read(&range, &columns).await?;
    }
    Ok(dataset)
}

async fn check(bytes: Vec<u8>, expect: &str) {
    let error = read(bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    let expect = format!("\"memory:///root/a.parquet\" is not a readable parquet file: {expect}");
    assert_eq!(error.to_string(), expect);
}

#[tokio::test]
async fn the_number_of_a_groups_children_is_checked() {
    let bytes = file(&[], footer(vec![element("root", i32::MAX as u32)]).structs(4, Vec::new()));
    assert!(bytes.len() <= 44, "{}", bytes.len());
    let damaged = "its footer is damaged:";
    check(bytes, &format!("{damaged} element 0 of the schema claims 2147483647 children, but 0 elements follow it"))
        .await;
    let schema = vec![element("root", 2), element("a", 2), element("b", 0)];
    let expect = format!("{damaged} element 0 of the schema claims 2 children, but 2 elements follow it");
    // The root has two children, and the first of them claims the second one's place, and one more.
    let expect = expect.replace("element 0", "element 1").replace("but 2", "but 1");
    check(file(&[], footer(schema).structs(4, Vec::new())), &expect).await;
    let schema = vec![element("root", 1), element("a", 0), element("b", 0)];
    let expect = format!("{damaged} element 2 of the schema belongs to no group");
    check(file(&[], footer(schema).structs(4, Vec::new())), &expect).await;
}

fn nested(levels: usize) -> Vec<u8> {
    let mut schema = vec![element("g", 1); levels];
    schema.push(element("t", 0));
    file(&[], footer(schema).structs(4, Vec::new()))
}

#[tokio::test]
async fn groups_are_nested_only_so_deep() {
    for levels in [20_000, 65] {
        check(nested(levels), "its footer is damaged: groups of the schema are nested over 64 levels deep").await;
    }
    assert_eq!(read(nested(64)).await.unwrap().schema().fields().len(), 1);
}

#[tokio::test]
async fn lists_have_only_as_many_elements_as_fit() {
    let schema = || vec![element("root", 1), element("t", 0)];
    let bytes = file(&[], footer(schema()).list(4, 12, i32::MAX as usize, &[]));
    let expect = "its footer is damaged: FileMetaData.row_groups: a list claims 2147483647 elements in 1 bytes";
    check(bytes, expect).await;
    // Skipping this list of booleans takes the decoder 2^31 steps and no byte.
    let bytes = file(&[], footer(schema()).structs(4, Vec::new()).list(15, 1, i32::MAX as usize, &[]));
    let expect = "its footer is damaged: FileMetaData.15: a list of booleans, which is no part of the format";
    check(bytes, expect).await;
    let long = "n".repeat(1 << 20);
    let mut schema = vec![element("root", 1), element(&long, 1000)];
    schema.resize(1002, element("t", 0));
    let expect = "its footer is damaged: the names of the schema's columns and their groups exceed 67108864 bytes";
    check(file(&[], footer(schema).structs(4, Vec::new())), expect).await;
}

/// A change of the pages in an offset index.
type Change = dyn Fn(&mut [PageLocation]);

/// The place of the offset index of a row group's first column, and its pages.
fn offset_index(file: &[u8], group: usize) -> (Range<usize>, Vec<PageLocation>) {
    let metadata = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Required);
    let metadata = metadata.parse_and_finish(&bytes::Bytes::copy_from_slice(file)).unwrap();
    let chunk = metadata.row_group(group).column(0);
    let start = chunk.offset_index_offset().unwrap() as usize;
    let pages = metadata.offset_index().unwrap()[group][0].page_locations().clone();
    (start..start + chunk.offset_index_length().unwrap() as usize, pages)
}

/// Without an index, the decoder cannot read a part of a row group.
#[tokio::test]
async fn a_file_with_a_damaged_offset_index_is_read_without_it() {
    let sound = parquet_bytes_split(0..900, 300);
    assert_eq!(read(sound.clone()).await.unwrap().row_ranges(1).len(), 900);
    let (place, pages) = offset_index(&sound, 1);
    assert_eq!(pages.len(), 3);
    let with = |change: &Change| {
        let mut pages = pages.clone();
        change(&mut pages);
        let index = [&[0x19, 0x3C][..], &pages.iter().flat_map(location).collect::<Vec<u8>>(), &[0]].concat();
        assert!(index.len() <= place.len(), "{pages:?}");
        let mut bytes = sound.clone();
        bytes[place.start..place.start + index.len()].copy_from_slice(&index);
        bytes
    };
    assert_eq!(read(with(&|_| ())).await.unwrap().row_ranges(1).len(), 900);
    let changes: [&Change; 7] = [
        &|pages| pages[1].offset = pages[0].offset,
        &|pages| pages[1].offset -= 1,
        &|pages| pages[0].compressed_page_size += 1,
        &|pages| pages[0].compressed_page_size = -1,
        &|pages| pages[2].compressed_page_size += 1000,
        &|pages| pages[2].first_row_index = 1,
        &|pages| pages[0].offset = -1,
    ];
    let damaged = changes.map(with);
    let mut claims_more = sound.clone();
    claims_more[place.start..place.start + 7].copy_from_slice(&[0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 7]);
    let mut encrypted = sound.clone();
    encrypted[place.clone()].iter_mut().for_each(|byte| *byte ^= 0xA7);
    for (number, bytes) in damaged.into_iter().chain([claims_more, encrypted]).enumerate() {
        let dataset = read(bytes).await.unwrap_or_else(|error| panic!("damage {number}: {error}"));
        assert_eq!(dataset.row_ranges(1).len(), 3, "damage {number}");
    }
}

/// A page's place in an offset index.
fn location(page: &PageLocation) -> Vec<u8> {
    let zigzag = |number: i64| varint((number << 1 ^ number >> 63) as u64);
    Thrift::default()
        .field(1, 6, &zigzag(page.offset))
        .field(2, 5, &zigzag(page.compressed_page_size.into()))
        .field(3, 6, &zigzag(page.first_row_index))
        .end()
}

/// A page header and its page.
fn page(kind: u32, decoded: u32, header: (u8, Thrift), content: &[u8]) -> Vec<u8> {
    let page = Thrift::default().number(1, kind).number(2, decoded).number(3, content.len() as u32);
    [page.part(header.0, header.1).end(), content.to_vec()].concat()
}

#[tokio::test]
async fn pages_have_only_the_values_and_bytes_that_fit() {
    let texts = [2, 0, 0, 0, b'o', b'k'].repeat(10);
    let sound = page(0, 60, data(10, 0), &texts);
    assert_eq!(read(ten_texts(0, &sound)).await.unwrap().snapshot().rows(), 10);

    let dictionary = Thrift::default().number(1, i32::MAX as u32).number(2, 0);
    let pages = [page(2, 6, (7, dictionary), &texts[..6]), sound].concat();
    let expect = "the pages from byte 4: a dictionary of 2147483647 values in 6 bytes";
    check(ten_texts(0, &pages), expect).await;

    let snappy = page(0, i32::MAX as u32, data(10, 0), &texts);
    let expect = format!("the pages from byte 4: a page of 2147483647 bytes in a row group of {} bytes", snappy.len());
    check(ten_texts(1, &snappy), &expect).await;
}

/// The header of a data page.
fn data(values: u32, encoding: u32) -> (u8, Thrift) {
    (5, Thrift::default().number(1, values).number(2, encoding).number(3, 3).number(4, 3))
}

/// So many zeros.
fn zeros(bytes: u64, to: &mut dyn Write) {
    copy(&mut std::io::Read::take(repeat(0), bytes), to).unwrap();
}

#[tokio::test]
async fn a_page_unpacks_to_no_more_than_it_claims() {
    // More than a read may always take. Brotli has no bound.
    const BYTES: u64 = 72 << 20;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zeros(BYTES, &mut gzip);
    let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 1, 22);
    zeros(1 << 20, &mut brotli);
    let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
    zeros(BYTES, &mut lz4);
    for (codec, bomb) in [(2, gzip.finish().unwrap()), (4, brotli.into_inner()), (5, lz4.finish().unwrap())] {
        let expect = "the pages from byte 4: a page decompresses to over the 60 bytes that it claims";
        check(ten_texts(codec, &page(0, 60, data(10, 0), &bomb)), expect).await;
        let v2 = Thrift::default().number(1, 10).number(2, 0).number(3, 10).number(4, 0).number(5, 2).number(6, 0);
        let after_levels = [&[20, 1][..], &bomb].concat();
        check(ten_texts(codec, &page(3, 62, (8, v2), &after_levels)), expect).await;
    }
}

/// Each of these ten pages alone is within the bound.
#[tokio::test]
async fn pages_take_a_bounded_memory_together() {
    let one = page(0, 40 << 20, data(1, 0), &[0; 100]);
    let pages = one.repeat(10);
    let expect = format!("the pages from byte 4: a page of 41943040 bytes in a row group of {} bytes", pages.len());
    check(ten_texts(1, &pages), &expect).await;
}

#[tokio::test]
async fn pages_have_only_the_values_of_their_column() {
    let texts = [2, 0, 0, 0, b'o', b'k'].repeat(10);
    let expect = "the pages from byte 4: its pages have more values than the footer says";
    check(ten_texts(0, &page(0, 60, data(1 << 30, 0), &texts)), expect).await;
    check(ten_texts(0, &page(0, 60, data(10, 0), &texts).repeat(2)), expect).await;
}

#[tokio::test]
async fn rows_without_values_take_no_memory() {
    let texts = page(0, 60, data(10, 0), &[2, 0, 0, 0, b'o', b'k'].repeat(10));
    for claimed in [(10, i32::MAX as u32), (i32::MAX as u32, i32::MAX as u32)] {
        let error = read(values(claimed, 6, element("t", 0), 0, &texts)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data);
        assert!(error.to_string().contains("column \"t\" has 10 values for "), "{error}");
    }
}

#[tokio::test]
async fn nulls_take_as_much_memory_as_values() {
    let leaf = Thrift::default().number(1, 2).number(3, 1).text(4, "t");
    let place = TestFolder::memory();
    for claimed in [(0, 1 << 20), (1 << 20, 10)] {
        place.put("a.parquet", values(claimed, 2, leaf.clone(), 0, &[])).await;
        let dataset = place.open("", stored_as("parquet")).await.unwrap();
        assert_eq!(dataset.row_ranges(u64::MAX).iter().map(|range| range.bytes).sum::<u64>(), 8 << 20);
    }
}

#[tokio::test]
async fn delta_encoded_texts_have_only_as_many_lengths_as_values() {
    // 128 lengths in a block of 4 miniblocks, the number of lengths, and the first.
    let lengths = |count: u64| [vec![0x80, 1, 4], varint(count), vec![0]].concat();
    for count in [11, 1 << 44] {
        let expect = format!("the pages from byte 4: a page of 10 values has {count} lengths");
        for encoding in [6, 7] {
            let plain = lengths(count);
            check(ten_texts(0, &page(0, 0, data(10, encoding), &plain)), &expect).await;
            let packed = snap::raw::Encoder::new().compress_vec(&plain).unwrap();
            check(ten_texts(1, &page(0, plain.len() as u32, data(10, encoding), &packed)), &expect).await;
        }
        // Ten prefixes, all of the length 0, in a block whose smallest difference is 0.
        let prefixes = [lengths(10), vec![0, 0, 0, 0, 0], lengths(count)].concat();
        check(ten_texts(0, &page(0, 0, data(10, 7), &prefixes)), &expect).await;
    }
}

#[tokio::test]
async fn values_of_a_fixed_length_take_a_bounded_memory() {
    let leaf = |length| Thrift::default().number(1, 7).number(2, length).number(3, 1).text(4, "t");
    let expect = "row group 0 claims 67108864000 bytes of values of a fixed length";
    check(values((10, 1000), 7, leaf(64 << 20), 0, &[]), expect).await;
    for length in [i32::MAX as u32, (64 << 20) + 1] {
        let expect = "its footer is damaged: element 1 of the schema has values of";
        let expect = format!("{expect} {length} bytes, over the limit of 67108864");
        check(file(&[], footer(vec![element("root", 1), leaf(length)]).structs(4, Vec::new())), &expect).await;
    }
}

#[tokio::test]
async fn lists_of_a_fixed_length_take_a_bounded_memory() {
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let schema = |length| {
        let list = DataType::FixedSizeList(Arc::clone(&item), length);
        Arc::new(Schema::new(vec![Field::new("list", list, true)]))
    };
    let nulls = FixedSizeListArray::new_null(Arc::clone(&item), 16, 1000);
    let batch = RecordBatch::try_new(schema(16), vec![Arc::new(nulls)]).unwrap();
    let claiming = |length| {
        let claim = KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), encode_arrow_schema(&schema(length)));
        let properties = WriterProperties::builder().set_key_value_metadata(Some(vec![claim])).build();
        let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
        let mut writer = ArrowWriter::try_new_with_options(Vec::new(), batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    };
    assert_eq!(read(claiming(16)).await.unwrap().snapshot().rows(), 1000);
    let expect = "Parquet error: 1000 lists of \"list\" claim 134217728000 bytes of values of a fixed length, over the \
                  limit of 17179869184";
    check(claiming(1 << 24), expect).await;
}

#[tokio::test]
async fn json_that_is_nested_too_deeply_is_an_error() {
    let place = TestFolder::memory();
    let deep = format!("{{\"n\": 1, \"deep\": {}{}}}\n", "[".repeat(100_000), "]".repeat(100_000));
    place.put("a.jsonl", format!("{deep}{{\"n\": 2}}\n{deep}")).await;
    let Err(error) = place.open("", stored_as("jsonl")).await else { panic!("a line of any depth is read") };
    assert!(error.to_string().contains("recursion limit exceeded"), "{error}");
}
