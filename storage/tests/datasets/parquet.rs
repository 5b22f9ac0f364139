//! Tests specific to Parquet.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Int64Array, NullArray, RecordBatch, StringArray, StringViewArray,
    StructArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, TimeUnit};
use arrow::util::display::array_value_to_string;
use forebay_storage::formats::find;
use forebay_storage::{
    ColumnStatistics, Dataset, DatasetSpec, ErrorKind, Of, PathColumns, RangeStatistics, RowRange, Stores, TableFormat,
    dictionary_of_texts, write_parquet,
};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::SerializedFileWriter;

use crate::support::{TestFolder, batch, parquet_bytes, parquet_bytes_split, stored_as, write};

#[tokio::test]
async fn row_groups_with_an_offset_index_are_split() {
    let place = TestFolder::memory();
    place.put("a.parquet", parquet_bytes_split(0..3000, 1000)).await;
    place.put("b.parquet", parquet_bytes(0..3000)).await;
    let split = place.open("a.parquet", stored_as("parquet")).await.unwrap();
    let whole = place.open("b.parquet", stored_as("parquet")).await.unwrap();
    assert_eq!(split.row_ranges(u64::MAX).len(), 3);
    assert_eq!(split.row_ranges(1).len(), 3000);
    assert_eq!(whole.row_ranges(1).len(), 1);
    let middle = split.row_ranges(4000)[4];
    let rows = split.read(&middle, &[1, 0]).await.unwrap();
    let first = middle.first_row as i64;
    assert_eq!(rows.batch.column(0).as_string::<i32>().value(0), format!("text {first}"));
    assert_eq!(rows.batch.column(1).as_primitive::<Int64Type>().value(0), first);
    assert_eq!(rows.batch.num_rows() as u64, middle.rows);
}

#[tokio::test]
async fn what_is_written_is_read() {
    let stores = Stores::new();
    write_parquet(&stores, "memory:///x.parquet", &batch(0..10)).await.unwrap();
    let spec = DatasetSpec {
        location: "memory:///x.parquet".to_owned(),
        format: stored_as("parquet"),
        schema: None,
        path_columns: PathColumns::Inferred,
        path_column: None,
    };
    let dataset = Dataset::open(&stores, &spec).await.unwrap();
    let rows = dataset.read(&dataset.row_ranges(u64::MAX)[0], &[0, 1]).await.unwrap();
    assert_eq!(rows.batch, batch(0..10));
}

fn one_column(name: &str, column: ArrayRef) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter([(name, column)]).unwrap();
    write(&batch, WriterProperties::default())
}

#[tokio::test]
async fn views_are_read_as_plain_types() {
    let place = TestFolder::memory();
    let column = Arc::new(StringViewArray::from(vec!["a", "a text that is too long to be inlined"]));
    place.put("a.parquet", one_column("text", column)).await;
    let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
    assert_eq!(dataset.schema().field(0).data_type(), &DataType::Utf8);
    let rows = dataset.read(&dataset.row_ranges(1)[0], &[0]).await.unwrap();
    assert_eq!(rows.batch.column(0).as_string::<i32>().value(0), "a");
}

/// Texts of a category with nulls, other texts, and numbers.
fn categories() -> RecordBatch {
    let category =
        |n: i64| (n % 5 > 0).then(|| format!("text {}, which is {}", n % 90, if n % 3 == 0 { "long" } else { "" }));
    let texts = (0..1000).map(|n| (n % 7 > 0).then(|| format!("{n}")));
    RecordBatch::try_from_iter([
        ("category", Arc::new((0..1000).map(category).collect::<StringArray>()) as ArrayRef),
        ("nothing", Arc::new(StringArray::new_null(1000))),
        ("text", Arc::new(texts.collect::<StringArray>())),
        ("n", Arc::new(Int64Array::from_iter_values(0..1000))),
    ])
    .unwrap()
}

#[tokio::test]
async fn texts_are_read_as_dictionaries_however_they_are_written() {
    let place = TestFolder::memory();
    let batch = categories();
    let write_with = |change: &dyn Fn(WriterPropertiesBuilder) -> WriterPropertiesBuilder| {
        write(&batch, change(WriterProperties::builder()).build())
    };
    for (bytes, most) in [
        (write_with(&|it| it), 73),
        (write_with(&|it| it.set_compression(Compression::SNAPPY)), 73),
        // The first texts are dictionary-encoded, the rest are plain.
        (write_with(&|it| it.set_dictionary_page_size_limit(64).set_write_batch_size(32)), 1000),
        (write_with(&|it| it.set_dictionary_page_size_limit(64).set_compression(Compression::SNAPPY)), 1000),
        (write_with(&|it| it.set_dictionary_enabled(false)), 1000),
        (write_with(&|it| it.set_max_row_group_row_count(Some(300)).set_data_page_row_count_limit(50)), 73),
    ] {
        place.put("a.parquet", bytes).await;
        let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
        assert!(dataset.has_dictionaries());
        for target in [u64::MAX, 4000] {
            for range in dataset.row_ranges(target) {
                // A number requested as a dictionary stays a number.
                let rows = dataset.read_with_dictionaries(&range, &[3, 2, 1, 0], &[0, 1, 2, 3]).await.unwrap().batch;
                let expected = batch.slice(range.first_row as usize, range.rows as usize);
                assert_eq!(rows.column(0), expected.column(3));
                for (column, plain) in [(1, 2), (2, 1), (3, 0)] {
                    let texts = rows.column(column);
                    assert_eq!(*texts.data_type(), dictionary_of_texts());
                    assert_eq!(&cast(texts, &DataType::Utf8).unwrap(), expected.column(plain));
                    let dictionary = texts.as_dictionary::<Int32Type>();
                    assert!(dictionary.values().len() as u64 <= range.rows);
                }
                let values = rows.column(3).as_dictionary::<Int32Type>().values();
                assert!(range.rows < 300 || values.len() <= most, "{} texts of {} rows", values.len(), range.rows);
            }
        }
    }
}

#[tokio::test]
async fn a_piece_of_a_row_group_does_not_keep_its_dictionary() {
    let place = TestFolder::memory();
    let texts: StringArray = (0..5000).map(|n| Some(format!("a text that is no view by itself, {n}"))).collect();
    let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
    for limit in [1 << 20, 100_000] {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_page_size_limit(limit)
            .set_write_batch_size(100)
            .set_data_page_row_count_limit(100);
        place.put("a.parquet", write(&batch, properties.build())).await;
        let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
        let ranges = dataset.row_ranges(4000);
        assert!(ranges.len() > 20);
        for range in ranges {
            let rows = dataset.read_with_dictionaries(&range, &[0], &[0]).await.unwrap().batch;
            let bytes = rows.get_array_memory_size() as u64;
            assert!(bytes < 200 * range.rows, "{bytes} bytes for {} rows", range.rows);
        }
    }
}

#[tokio::test]
async fn json_is_no_category() {
    let schema = "message t { optional binary json (JSON); }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, schema, Default::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<ByteArray> = (0..100).map(|n| ByteArray::from(if n % 2 == 0 { "{}" } else { "[1]" })).collect();
    column.typed::<ByteArrayType>().write_batch(&values, Some(&[1; 100]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    let place = TestFolder::memory();
    place.put("a.parquet", file).await;
    let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
    assert_eq!(dataset.schema().field(0).data_type(), &DataType::Utf8);
    let rows = dataset.read_with_dictionaries(&dataset.row_ranges(u64::MAX)[0], &[0], &[0]).await.unwrap().batch;
    let texts = cast(rows.column(0), &DataType::Utf8).unwrap();
    assert_eq!(texts.as_string::<i32>().value(99), "[1]");
}

#[tokio::test]
async fn extension_types_survive() {
    let place = TestFolder::memory();
    let metadata = HashMap::from([("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned())]);
    let item = Arc::new(Field::new("item", DataType::Int64, false));
    let list = FixedSizeListArray::new(item, 2, Arc::new(Int64Array::from(vec![1, 2, 3, 4])), None);
    let field = Field::new("t", DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Int64, false)), 2), true);
    let schema = Arc::new(Schema::new(vec![field.with_metadata(metadata.clone())]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(list)]).unwrap();
    place.put("a.parquet", write(&batch, WriterProperties::default())).await;
    let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
    assert_eq!(dataset.schema().field(0).metadata(), &metadata);
    let rows = dataset.read(&dataset.row_ranges(1)[0], &[0]).await.unwrap();
    assert_eq!(rows.batch.schema().field(0).metadata(), &metadata);
}

#[tokio::test]
async fn columns_are_matched_by_name() {
    let place = TestFolder::memory();
    place.put("a.parquet", write(&batch(0..3), WriterProperties::default())).await;
    let swapped = batch(3..5).project(&[1, 0]).unwrap();
    place.put("b.parquet", write(&swapped, WriterProperties::default())).await;
    let dataset = place.open("", stored_as("parquet")).await.unwrap();
    let rows = dataset.read(&dataset.row_ranges(1 << 20)[1], &[0, 1]).await.unwrap();
    assert_eq!(rows.batch.columns(), batch(3..5).columns());
}

/// Parquet files that must have the same columns and types.
fn strict() -> TableFormat {
    let options = [("missing", "error"), ("widen", "false")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    TableFormat::new(find("parquet").unwrap(), "", &options).unwrap()
}

/// Three years of a table: columns come, go and move, and types grow.
#[tokio::test]
async fn files_whose_columns_changed_over_the_years_are_one_table() {
    let column = |values: ArrayRef, data_type: DataType| cast(&values, &data_type).unwrap();
    let numbers = |values: [i64; 2]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
    let time = |unit| DataType::Timestamp(unit, None);
    let inner = |fields: Vec<(&str, ArrayRef)>| Arc::new(StructArray::try_from(fields).unwrap()) as ArrayRef;
    let file = |columns: Vec<(&str, ArrayRef)>| {
        write(&RecordBatch::try_from_iter(columns).unwrap(), WriterProperties::default())
    };
    let place = TestFolder::memory();
    let first = file(vec![
        ("id", column(numbers([1, 2]), DataType::Int32)),
        ("price", column(numbers([5, 6]), DataType::Float32)),
        ("at", column(column(numbers([7, 8]), time(TimeUnit::Second)), time(TimeUnit::Millisecond))),
        ("old", numbers([3, 4])),
        ("s", inner(vec![("a", column(numbers([1, 2]), DataType::Int8))])),
    ]);
    let second = file(vec![
        ("s", inner(vec![("b", numbers([9, 9])), ("a", numbers([1 << 40, 4]))])),
        ("at", column(numbers([7_000_000, 8_000_000]), time(TimeUnit::Microsecond))),
        ("id", numbers([1 << 40, 4])),
        ("price", column(numbers([16_777_217, 8]), DataType::Float64)),
        ("new", column(numbers([1, 2]), DataType::Utf8)),
    ]);
    place.put("2024.parquet", first).await;
    place.put("2025.parquet", second.clone()).await;
    let opened = place.open("", stored_as("parquet")).await.unwrap();
    let columns: Vec<String> =
        opened.schema().fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
    let structs =
        DataType::Struct(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Int64, true)].into());
    let expect = ["id Int64", "price Float64", "at Timestamp(µs)", "old Int64", &format!("s {structs}"), "new Utf8"];
    assert_eq!(columns, expect);
    let (spec, snapshot) = (opened.spec().clone(), Arc::clone(opened.snapshot()));
    let elsewhere = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, Arc::clone(opened.schema())).unwrap();
    for dataset in [&opened, &elsewhere] {
        let mut rows = Vec::new();
        for range in dataset.row_ranges(u64::MAX) {
            let read = dataset.read_with_dictionaries(&range, &[5, 0, 1, 2, 3, 4], &[5]).await.unwrap().batch;
            for row in 0..read.num_rows() {
                let cells = read.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
                rows.push(cells.collect::<Vec<_>>().join(" | "));
            }
            // Only columns that one of the files lacks.
            assert_eq!(dataset.read(&range, &[3]).await.unwrap().batch.num_rows(), 2);
            assert_eq!(dataset.read_with_dictionaries(&range, &[5], &[5]).await.unwrap().batch.num_rows(), 2);
        }
        let expect = [
            " | 1 | 5.0 | 1970-01-01T00:00:07 | 3 | {a: 1, b: }",
            " | 2 | 6.0 | 1970-01-01T00:00:08 | 4 | {a: 2, b: }",
            "1 | 1099511627776 | 16777217.0 | 1970-01-01T00:00:07 |  | {a: 1099511627776, b: 9}",
            "2 | 4 | 8.0 | 1970-01-01T00:00:08 |  | {a: 4, b: 9}",
        ];
        assert_eq!(rows, expect);
    }
    // What does not fit is refused with the two files that differ.
    place.put("2026.parquet", one_column("id", Arc::new(StringViewArray::from(vec!["x"])))).await;
    let error = place.open("", stored_as("parquet")).await.unwrap_err().to_string();
    let expect = "root/2026.parquet\" has column \"id\" as Utf8, but \"memory:///root/2025.parquet\" has it as Int64";
    assert!(error.contains(expect), "{error}");
    let option = [("missing".to_owned(), "no".to_owned())];
    let format = TableFormat::new(find("parquet").unwrap(), "", &option).unwrap();
    let error = place.open("", format).await.unwrap_err().to_string();
    assert!(error.contains("the option \"missing\" must be 'auto', 'null' or 'error', got 'no'"), "{error}");
}

#[tokio::test]
async fn a_row_that_the_wider_type_cannot_hold_is_bad() {
    let time = |unit| cast(&Int64Array::from(vec![1 << 40]), &DataType::Timestamp(unit, None)).unwrap();
    let place = TestFolder::memory();
    place.put("a.parquet", one_column("at", time(TimeUnit::Millisecond))).await;
    place.put("b.parquet", one_column("at", time(TimeUnit::Nanosecond))).await;
    place.put("c.parquet", one_column("at", cast(&time(TimeUnit::Millisecond), &DataType::Int64).unwrap())).await;
    let far = cast(&Int64Array::from(vec![1, 1 << 45, 2]), &DataType::Timestamp(TimeUnit::Millisecond, None)).unwrap();
    place.put("d/a.parquet", one_column("at", far)).await;
    place.put("d/b.parquet", one_column("at", time(TimeUnit::Nanosecond))).await;
    let dataset = place.open("d", stored_as("parquet")).await.unwrap();
    let ranges = dataset.row_ranges(u64::MAX);
    let read = dataset.read(&ranges[0], &[0, 0]).await.unwrap();
    assert_eq!((read.batch.num_rows(), read.sample_ids.values().to_vec()), (2, vec![0, 2]));
    assert_eq!(read.bad.iter().map(|bad| bad.sample_id).collect::<Vec<_>>(), [1]);
    let expect = "column \"at\": a value does not fit Timestamp(ns), the type of all files: ";
    assert!(read.bad[0].reason.starts_with(expect), "{}", read.bad[0].reason);
    let in_batches = dataset.read_in_batches(&ranges[0], &[0], 2).await.unwrap();
    let ids: Vec<Vec<u64>> = in_batches.batches.iter().map(|(_, ids)| ids.values().to_vec()).collect();
    assert_eq!((ids, in_batches.bad), (vec![vec![0], vec![2]], read.bad));
    assert_eq!(dataset.read(&ranges[1], &[0]).await.unwrap().batch.num_rows(), 1);
    let near = place.open("{a,b}.parquet", stored_as("parquet")).await.unwrap();
    assert_eq!(near.read(&near.row_ranges(1)[0], &[0]).await.unwrap().batch.num_rows(), 1);
    let mixed = place.open("{a,c}.parquet", stored_as("parquet")).await.unwrap_err();
    assert_eq!(mixed.kind(), ErrorKind::Invalid);
}

fn with_option(name: &str, value: &str) -> TableFormat {
    TableFormat::new(find("parquet").unwrap(), "", &[(name.to_owned(), value.to_owned())]).unwrap()
}

#[tokio::test]
async fn files_that_look_like_other_tables_are_refused_unless_nulls_are_asked_for() {
    let file = |names: &[&str]| {
        let int = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
        let batch = RecordBatch::try_from_iter(names.iter().map(|name| (*name, int()))).unwrap();
        write(&batch, WriterProperties::default())
    };
    let check = async |files: &[&[&str]], expect: Result<usize, &str>, with_null: usize| {
        let place = TestFolder::memory();
        for (at, names) in files.iter().enumerate() {
            place.put(&format!("{at}.parquet"), file(names)).await;
        }
        match (place.open("", stored_as("parquet")).await, expect) {
            (Ok(dataset), Ok(columns)) => assert_eq!(dataset.schema().fields().len(), columns, "{files:?}"),
            (Err(error), Err(text)) => {
                assert_eq!(
                    (error.kind(), error.to_string().replace("memory:///root/", "")),
                    (ErrorKind::Invalid, text.to_owned())
                );
                assert!(error.hint().unwrap().contains("missing=\"null\" in Python"), "{error:?}");
            }
            (opened, _) => panic!("{files:?}: {opened:?} where {expect:?} is expected"),
        }
        let dataset = place.open("", with_option("missing", "null")).await.unwrap();
        assert_eq!(dataset.schema().fields().len(), with_null);
    };
    let alike = "\"1.parquet\" has column \"label\", and \"0.parquet\" has \"Label\": the names differ only by case";
    check(&[&["id", "Label"], &["id", "label"]], Err(alike), 3).await;
    check(&[&["Label"], &["label"]], Err(alike), 2).await;
    let later = "\"2.parquet\" has column \"label\", and \"1.parquet\" has \"Label\": the names differ only by case";
    check(&[&["id"], &["id", "Label"], &["id", "label"]], Err(later), 3).await;
    check(&[&["id", "x", "X"], &["id", "x", "X"], &["id", "x"]], Ok(3), 3).await;
    check(&[&["id", "x"], &["id", "x", "X"]], Ok(3), 3).await;
    let strange = "\"1.parquet\" shares no column with \"0.parquet\": it has \"c\", and the other has \"a\", \"b\"";
    check(&[&["a", "b"], &["c"]], Err(strange), 3).await;
    check(&[&["a", "b"], &["b", "c"], &["c"]], Ok(3), 3).await;
}

#[tokio::test]
async fn tensors_of_other_shapes_are_refused() {
    let file = |shape: Option<&str>| {
        let metadata = shape.map(|shape| {
            let parameters = format!("{{\"shape\":{shape}}}");
            HashMap::from([
                ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
                ("ARROW:extension:metadata".to_owned(), parameters),
            ])
        });
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let list = FixedSizeListArray::new(Arc::clone(&item), 6, Arc::new(Int64Array::from_iter_values(0..6)), None);
        let field = Field::new("t", DataType::FixedSizeList(item, 6), true).with_metadata(metadata.unwrap_or_default());
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(list)]).unwrap();
        write(&batch, WriterProperties::default())
    };
    let check = async |one: Option<&str>, other: Option<&str>, expect: Option<&str>| {
        let place = TestFolder::memory();
        place.put("a.parquet", file(one)).await;
        place.put("b.parquet", file(other)).await;
        match (place.open("", stored_as("parquet")).await, expect) {
            (Ok(_), None) => {}
            (Err(error), Some(expect)) => {
                let text = error.to_string().replace("memory:///root/", "");
                assert!(text.starts_with(expect) && error.hint().is_some(), "{text}");
            }
            (opened, _) => panic!("{one:?} and {other:?}: {opened:?}"),
        }
    };
    check(Some("[2,3]"), Some("[2, 3]"), None).await;
    check(None, None, None).await;
    let expect = "\"b.parquet\" has column \"t\" as arrow.fixed_shape_tensor {\"shape\":[3,2]}, but \"a.parquet\" has \
                  it as arrow.fixed_shape_tensor {\"shape\":[2,3]}";
    check(Some("[2,3]"), Some("[3,2]"), Some(expect)).await;
    let expect = "\"b.parquet\" has column \"t\" as arrow.fixed_shape_tensor {\"shape\":[3,2]}, but \"a.parquet\" has \
                  it as Fixed";
    check(None, Some("[3,2]"), Some(expect)).await;
}

#[tokio::test]
async fn a_file_of_only_nulls_has_any_type() {
    let place = TestFolder::memory();
    place.put("a.parquet", one_column("n", Arc::new(NullArray::new(2)))).await;
    place.put("b.parquet", one_column("n", Arc::new(StringArray::from(vec!["x"])))).await;
    place.put("c.parquet", one_column("n", Arc::new(NullArray::new(1)))).await;
    let opened = place.open("", stored_as("parquet")).await.unwrap();
    assert_eq!(*opened.schema().field(0), Field::new("n", DataType::Utf8, true));
    let (spec, snapshot) = (opened.spec().clone(), Arc::clone(opened.snapshot()));
    let elsewhere = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, Arc::clone(opened.schema())).unwrap();
    for (dataset, dictionaries) in [(&opened, &[][..]), (&opened, &[0]), (&elsewhere, &[0]), (&elsewhere, &[])] {
        let mut texts = Vec::new();
        for range in dataset.row_ranges(u64::MAX) {
            let rows = dataset.read_with_dictionaries(&range, &[0], dictionaries).await.unwrap().batch;
            let rows = cast(rows.column(0), &DataType::Utf8).unwrap();
            texts.extend(rows.as_string::<i32>().iter().map(|text| text.map(str::to_owned)));
        }
        assert_eq!(texts, [None, None, Some("x".to_owned()), None]);
    }
    let error = place.open("", strict()).await.unwrap_err();
    assert!(error.to_string().contains("has column \"n\" as Utf8"), "{error}");
}

#[tokio::test]
async fn nulls_of_wide_types_count_as_memory() {
    let wide = |length: i32| {
        let values = Arc::new(Int64Array::new_null(length as usize));
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let list = Arc::new(FixedSizeListArray::new(item, length, values, None)) as ArrayRef;
        let x = Arc::new(Int64Array::from(vec![1])) as ArrayRef;
        write(&RecordBatch::try_from_iter([("x", x), ("emb", list)]).unwrap(), WriterProperties::default())
    };
    let narrow = |rows: i64| one_column("x", Arc::new(Int64Array::from_iter_values(0..rows)));
    let place = TestFolder::memory();
    place.put("a.parquet", wide(1000)).await;
    place.put("b.parquet", narrow(1000)).await;
    let opened = place.open("", stored_as("parquet")).await.unwrap();
    let bytes = opened.snapshot().files()[1].groups[0].bytes;
    assert!((8_000_000..8_100_000).contains(&bytes), "{bytes}");
    // A worker finds the same.
    let (spec, snapshot) = (opened.spec().clone(), Arc::clone(opened.snapshot()));
    let elsewhere = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, Arc::clone(opened.schema())).unwrap();
    let range = *elsewhere.row_ranges(u64::MAX).last().unwrap();
    assert_eq!(elsewhere.read(&range, &[1]).await.unwrap().batch.column(0).null_count(), 1000);
    place.put("a.parquet", wide(20_000)).await;
    place.put("b.parquet", narrow(120_000)).await;
    let error = place.open("", stored_as("parquet")).await.unwrap_err();
    let expect = "b.parquet\" lacks column \"emb\" or a part of it: its nulls in a row group of 120000 rows would take";
    assert!(error.to_string().contains(expect), "{error}");
}

#[tokio::test]
async fn files_with_other_columns_are_refused() {
    let int = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
    let text = || Arc::new(StringViewArray::from(vec!["x"])) as ArrayRef;
    let both = || {
        let batch = RecordBatch::try_from_iter([("n", int()), ("m", int())]).unwrap();
        write(&batch, WriterProperties::default())
    };
    let check = async |first: Vec<u8>, second: Vec<u8>, expect: &str| {
        let place = TestFolder::memory();
        place.put("a.parquet", first).await;
        place.put("b.parquet", second).await;
        let error = place.open("", strict()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let expect = format!("{expect}; give files of one dataset the same columns");
        assert_eq!(error.to_string().replace("memory:///root/", ""), expect);
    };
    let n = || one_column("n", int());
    check(n(), both(), "\"b.parquet\" has column \"m\", which \"a.parquet\" lacks").await;
    check(both(), n(), "\"b.parquet\" lacks column \"m\", which \"a.parquet\" has").await;
    let types = "\"b.parquet\" has column \"n\" as Utf8, but \"a.parquet\" has it as Int64";
    check(n(), one_column("n", text()), types).await;
}

/// Texts, and the same as bytes, within a list too, in one file for each layout.
#[tokio::test]
async fn files_may_differ_in_the_layout_of_texts_and_bytes() {
    let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
    let dictionary = |keys: DataType, values: DataType| DataType::Dictionary(keys.into(), values.into());
    let (utf8, large, view) = (DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View);
    let category = |keys| dictionary(keys, DataType::Utf8);
    let texts: ArrayRef =
        Arc::new(StringArray::from(vec![Some("a"), None, Some("a text that is too long to be inlined")]));
    let (binary, large_binary, binary_view) = (DataType::Binary, DataType::LargeBinary, DataType::BinaryView);
    let bytes = cast(&texts, &binary).unwrap();
    let lists = cast(&texts, &list(utf8.clone())).unwrap();
    let checks = [
        (&texts, vec![utf8.clone(), large.clone()], large.clone()),
        (&texts, vec![large.clone(), utf8.clone(), view.clone()], large.clone()),
        (&texts, vec![view.clone(), utf8.clone(), category(DataType::Int8)], utf8.clone()),
        (&texts, vec![category(DataType::Int8), category(DataType::Int32)], utf8.clone()),
        (&texts, vec![category(DataType::Int8), large.clone()], large.clone()),
        (&texts, vec![category(DataType::Int8), category(DataType::Int8)], category(DataType::Int8)),
        (&bytes, vec![binary.clone(), binary_view, large_binary.clone()], large_binary.clone()),
        (&bytes, vec![dictionary(DataType::Int32, large_binary.clone()), binary], large_binary),
        (&lists, vec![list(utf8), list(large.clone())], list(large)),
    ];
    for (values, layouts, expect) in checks {
        let place = TestFolder::memory();
        for (number, layout) in layouts.iter().enumerate() {
            let column = cast(values, layout).unwrap();
            place.put(&format!("{number}.parquet"), one_column("t", column)).await;
        }
        let opened = place.open("", stored_as("parquet")).await.unwrap();
        assert_eq!(*opened.schema().field(0).data_type(), expect, "{layouts:?}");
        let (spec, snapshot) = (opened.spec().clone(), Arc::clone(opened.snapshot()));
        let elsewhere = Dataset::pinned(&place.stores_elsewhere(), &spec, snapshot, Arc::clone(opened.schema()));
        for dataset in [opened, elsewhere.unwrap()] {
            for range in dataset.row_ranges(u64::MAX) {
                for dictionaries in [&[][..], &[0]] {
                    let rows = dataset.read_with_dictionaries(&range, &[0], dictionaries).await.unwrap().batch;
                    assert_eq!(&cast(rows.column(0), values.data_type()).unwrap(), values, "{layouts:?}");
                }
                let rows = dataset.read(&range, &[0]).await.unwrap().batch;
                assert_eq!(*rows.column(0).data_type(), expect, "{layouts:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_schema_may_not_be_given() {
    let place = TestFolder::memory();
    place.put("a.parquet", parquet_bytes(0..1)).await;
    let schema = batch(0..1).schema();
    let error = place.open_with("", stored_as("parquet"), Some(schema)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.to_string(), "\"memory:///root/\": parquet files have their own schema; leave the columns out");
}

#[tokio::test]
async fn a_truncated_file_is_an_error_that_names_it() {
    let place = TestFolder::memory();
    let bytes = parquet_bytes_split(0..3000, 1000);
    for length in [0, 3, 8, 100, bytes.len() / 2, bytes.len() - 9, bytes.len() - 1] {
        place.put("a.parquet", bytes[..length].to_vec()).await;
        let error = place.open("", stored_as("parquet")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Data, "{length} bytes: {error}");
        assert!(error.to_string().starts_with("\"memory:///root/a.parquet\" is "), "{error}");
    }
}

/// Damage gives an error that names the file, or goes unnoticed because Parquet has no checksum. It never causes a
/// panic.
#[tokio::test]
async fn a_damaged_file_is_an_error_that_names_it() {
    let place = TestFolder::memory();
    let bytes = parquet_bytes_split(0..300, 100);
    let mut errors = 0;
    // Replaces every seventh byte with each of two values. There is no random seed to print.
    for at in (4..bytes.len() - 8).step_by(7) {
        for change in [0xff, 0x2a] {
            let mut damaged = bytes.clone();
            damaged[at] ^= change;
            place.put("a.parquet", damaged).await;
            let result = async {
                let dataset = place.open("", stored_as("parquet")).await?;
                let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
                for range in dataset.row_ranges(1000) {
                    dataset.read(&range, &columns).await?;
                }
                Ok::<_, forebay_storage::Error>(())
            };
            if let Err(error) = result.await {
                errors += 1;
                assert!(error.to_string().contains("a.parquet"), "{error}");
                assert!(matches!(error.kind(), ErrorKind::Data | ErrorKind::Invalid), "byte {at}: {error}");
            }
        }
    }
    assert!(errors > 100, "only {errors} errors");
}

#[tokio::test]
async fn statistics_bound_row_groups_and_pages() {
    let place = TestFolder::memory();
    place.put("a.parquet", parquet_bytes_split(0..2000, 1000)).await;
    let dataset = place.open("a.parquet", stored_as("parquet")).await.unwrap();
    let range = dataset.row_ranges(u64::MAX)[1];
    let bounds = async |range: &RowRange, of| {
        let RangeStatistics { parts, columns } = dataset.statistics(range, &[0], of).await.unwrap();
        let numbers = |bounds: &ArrayRef| bounds.as_primitive::<Int64Type>().values().to_vec();
        let [ColumnStatistics { min, max, nulls }] = &columns[..] else { panic!("one column was requested") };
        assert_eq!(nulls.iter().flatten().collect::<Vec<_>>(), vec![0; parts.len()]);
        let parts: Vec<(u64, u64)> = parts.iter().map(|part| (part.first_row, part.rows)).collect();
        (parts, numbers(min), numbers(max))
    };
    assert_eq!(bounds(&range, Of::Groups).await, (vec![(1000, 1000)], vec![1000], vec![1999]));
    let (parts, min, max) = bounds(&range, Of::Pages).await;
    assert_eq!(parts, (0..10).map(|page| (1000 + 100 * page, 100)).collect::<Vec<_>>());
    assert_eq!(min, (0..10).map(|page| 1000 + 100 * page).collect::<Vec<_>>());
    assert_eq!(max, (0..10).map(|page| 1099 + 100 * page).collect::<Vec<_>>());
    let piece = RowRange { first_row: 1150, rows: 100, ..range };
    assert_eq!(bounds(&piece, Of::Groups).await, (vec![(1150, 100)], vec![1000], vec![1999]));
    assert_eq!(bounds(&piece, Of::Pages).await, (vec![(1150, 50), (1200, 50)], vec![1100, 1200], vec![1199, 1299]));
}
