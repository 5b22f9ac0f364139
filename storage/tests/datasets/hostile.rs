//! Files of a few bytes that claim more than any memory holds, or are nested without a bound. Without the checks, they
//! end the process: by an allocation that fails, or by a stack overflow.

use forebay_storage::{Dataset, ErrorKind, Result};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};

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
    let size = pages.len() as u32;
    let chunk = Thrift::default()
        .number(1, physical)
        .list(2, 5, 1, &[vec![0]])
        .list(3, 8, 1, &[vec![1, b't']])
        .number(4, codec)
        .number(5, 10)
        .number(6, size)
        .number(7, size)
        .number(9, 4);
    let chunk = Thrift::default().number(2, 4).part(3, chunk);
    let group = Thrift::default().structs(1, vec![chunk]).number(2, size).number(3, 10);
    let schema = vec![element("root", 1), leaf];
    file(pages, Thrift::default().number(1, 1).structs(2, schema).number(3, 10).structs(4, vec![group]))
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

#[tokio::test]
async fn an_offset_index_has_only_as_many_pages_as_fit() {
    let mut bytes = parquet_bytes_split(0..300, 100);
    let whole = bytes::Bytes::from(bytes.clone());
    let metadata = ParquetMetaDataReader::new().with_page_index_policy(PageIndexPolicy::Skip);
    let metadata = metadata.parse_and_finish(&whole).unwrap();
    let at = metadata.row_group(1).column(0).offset_index_offset().unwrap() as usize;
    bytes[at..at + 7].copy_from_slice(&[0x19, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 7]);
    let error = read(bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data);
    let expect = "its offset index is damaged: OffsetIndex.page_locations: a list claims 2147483647 elements in ";
    assert!(error.to_string().contains(expect), "{error}");
}

/// A page header and its page.
fn page(kind: u32, decoded: u32, header: (u8, Thrift), content: &[u8]) -> Vec<u8> {
    let page = Thrift::default().number(1, kind).number(2, decoded).number(3, content.len() as u32);
    [page.part(header.0, header.1).end(), content.to_vec()].concat()
}

#[tokio::test]
async fn pages_have_only_the_values_and_bytes_that_fit() {
    let data = |values| Thrift::default().number(1, values).number(2, 0).number(3, 3).number(4, 3);
    let texts = [2, 0, 0, 0, b'o', b'k'].repeat(10);
    let sound = page(0, 60, (5, data(10)), &texts);
    assert_eq!(read(ten_texts(0, &sound)).await.unwrap().snapshot().rows(), 10);

    let dictionary = Thrift::default().number(1, i32::MAX as u32).number(2, 0);
    let pages = [page(2, 6, (7, dictionary), &texts[..6]), sound].concat();
    let expect = "the pages from byte 4: a dictionary of 2147483647 values in 6 bytes";
    check(ten_texts(0, &pages), expect).await;

    let snappy = page(0, i32::MAX as u32, (5, data(10)), &texts);
    let expect = format!("the pages from byte 4: a page of 2147483647 bytes in a row group of {} bytes", snappy.len());
    check(ten_texts(1, &snappy), &expect).await;
}

#[tokio::test]
async fn values_of_a_fixed_length_take_a_bounded_memory() {
    let values = |length| Thrift::default().number(1, 7).number(2, length).number(3, 1).text(4, "t");
    let expect = "row group 0 claims 21474836470 bytes of values of a fixed length";
    check(ten_values(7, values(i32::MAX as u32), 0, &[]), expect).await;
}

#[tokio::test]
async fn json_that_is_nested_too_deeply_is_an_error() {
    let place = TestFolder::memory();
    let deep = format!("{{\"n\": 1, \"deep\": {}{}}}\n", "[".repeat(100_000), "]".repeat(100_000));
    place.put("a.jsonl", format!("{deep}{{\"n\": 2}}\n{deep}")).await;
    let Err(error) = place.open("", stored_as("jsonl")).await else { panic!("a line of any depth is read") };
    assert!(error.to_string().contains("recursion limit exceeded"), "{error}");
}
