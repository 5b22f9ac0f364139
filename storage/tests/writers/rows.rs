//! Rows to write.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Schema, i256};
use forebay_arrays::{FixedShapeTensor, VariableShapeTensor};
use half::f16;

type Column = (Field, ArrayRef);

fn column(name: &str, array: impl Array + 'static) -> Column {
    (Field::new(name, array.data_type().clone(), true), Arc::new(array))
}

fn batch(columns: Vec<Column>) -> RecordBatch {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// Rows that the files of a format can hold.
pub(crate) fn of_format(name: &str, numbers: Range<i64>) -> RecordBatch {
    match name {
        "csv" => scalars(numbers),
        "jsonl" => json(numbers),
        "mds" => without_nulls(numbers),
        "webdataset" => with_key(&without_nulls(numbers)),
        _ => all_types(numbers),
    }
}

/// `Some` unless the number is one of every seven.
fn some<T>(n: i64, value: T) -> Option<T> {
    (n % 7 != 3).then_some(value)
}

fn scalar_columns(numbers: Range<i64>) -> Vec<Column> {
    let all = || numbers.clone();
    vec![
        column("i8", all().map(|n| some(n, n as i8)).collect::<Int8Array>()),
        column("i64", all().map(|n| some(n, n * 3_000_000_000)).collect::<Int64Array>()),
        column("u32", all().map(|n| some(n, n as u32)).collect::<UInt32Array>()),
        column("u64", all().map(|n| some(n, u64::MAX - n as u64)).collect::<UInt64Array>()),
        column("f32", all().map(|n| some(n, n as f32 / 3.0)).collect::<Float32Array>()),
        column("f64", all().map(|n| some(n, n as f64 / 7.0)).collect::<Float64Array>()),
        column("bool", all().map(|n| some(n, n % 3 == 0)).collect::<BooleanArray>()),
        column("text", all().map(|n| some(n, format!("text \"{n}\",\n é{}", n % 5))).collect::<StringArray>()),
        column("day", all().map(|n| some(n, n as i32)).collect::<Date32Array>()),
        column("time", all().map(|n| some(n, n * 1_234_567 + 1)).collect::<TimestampMicrosecondArray>()),
        column(
            "instant",
            all().map(|n| some(n, n * 1_234_567 + 1)).collect::<TimestampMicrosecondArray>().with_timezone("+00:00"),
        ),
        column(
            "price",
            all()
                .map(|n| some(n, i128::from(n) * 7 - 9))
                .collect::<Decimal128Array>()
                .with_precision_and_scale(12, 2)
                .unwrap(),
        ),
    ]
}

/// Columns of further types of scalars.
fn more_scalar_columns(numbers: Range<i64>) -> Vec<Column> {
    let all = || numbers.clone();
    let decimal = |n: i64| some(n, i256::from_i128(i128::from(n) * 1_000_000_007 - 5));
    vec![
        column("i16", all().map(|n| some(n, n as i16 - 9)).collect::<Int16Array>()),
        column("i32", all().map(|n| some(n, n as i32 * -7)).collect::<Int32Array>()),
        column("u8", all().map(|n| some(n, n as u8)).collect::<UInt8Array>()),
        column("u16", all().map(|n| some(n, n as u16 * 3)).collect::<UInt16Array>()),
        column("date64", all().map(|n| some(n, n * 86_400_000)).collect::<Date64Array>()),
        column("time32", all().map(|n| some(n, n as i32 + 1)).collect::<Time32SecondArray>()),
        column("time_s", all().map(|n| some(n, n * 1001)).collect::<TimestampSecondArray>()),
        column("time_ms", all().map(|n| some(n, n * 1001)).collect::<TimestampMillisecondArray>()),
        column("time_ns", all().map(|n| some(n, n * 1_000_001)).collect::<TimestampNanosecondArray>()),
        column(
            "small_price",
            all().map(|n| some(n, n as i32 - 50)).collect::<Decimal32Array>().with_precision_and_scale(7, 1).unwrap(),
        ),
        column("large_price", all().map(decimal).collect::<Decimal256Array>().with_precision_and_scale(60, 4).unwrap()),
    ]
}

/// Columns that CSV can hold.
pub(crate) fn scalars(numbers: Range<i64>) -> RecordBatch {
    batch(scalar_columns(numbers))
}

/// Columns of scalars of every type that text can hold.
pub(crate) fn every_scalar(numbers: Range<i64>) -> RecordBatch {
    let mut columns = scalar_columns(numbers.clone());
    columns.extend(more_scalar_columns(numbers));
    batch(columns)
}

/// Columns of types that feeds hardly have: nested ones, and layouts for saving memory.
pub(crate) fn unusual(numbers: Range<i64>) -> RecordBatch {
    let all = || numbers.clone();
    let texts = |n: i64| (0..n % 3).map(move |at| some(at + n, format!("{n}-{at}")));
    let mut words = LargeListBuilder::new(StringBuilder::new());
    let mut lists_of_lists = ListBuilder::new(ListBuilder::new(Int16Builder::new()));
    let mut views = ListViewBuilder::new(Int64Builder::new());
    let mut map = MapBuilder::new(None, StringBuilder::new(), Float64Builder::new());
    let mut runs = StringRunBuilder::<Int32Type>::new();
    for n in all() {
        let is_valid = n % 7 != 3;
        texts(n).for_each(|text| words.values().append_option(text));
        words.append(is_valid || n % 2 == 0);
        for list in 0..n % 4 {
            (0..list).for_each(|at| lists_of_lists.values().values().append_option(some(at + n, at as i16)));
            lists_of_lists.values().append(list != 2);
        }
        lists_of_lists.append(true);
        (0..n % 3).for_each(|at| views.values().append_value(n * at));
        views.append(is_valid);
        for at in 0..n % 3 {
            map.keys().append_value(format!("key {at}"));
            map.values().append_option(some(n + at, n as f64 / 8.0));
        }
        map.append(is_valid).unwrap();
        runs.append_option(some(n / 5, format!("run {}", n / 5)));
    }
    let structs = structs(all());
    let item = Arc::new(structs.0.clone().with_name("item"));
    let ends = OffsetBuffer::from_lengths(all().map(|n| if n % 2 == 0 { 2 } else { 0 }));
    let of_structs = ListArray::new(item, ends, structs.1.slice(0, all().filter(|n| n % 2 == 0).count() * 2), None);
    let pairs = all().map(|n| some(n, vec![Some(n as i32), some(n + 1, 5)]));
    let mut columns = vec![
        column("words", words.finish()),
        column("lists_of_lists", lists_of_lists.finish()),
        column("views", views.finish()),
        column("map", map.finish()),
        column("runs", runs.finish()),
        column("of_structs", of_structs),
        column("pairs", FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(pairs, 2)),
        column("nothing", NullArray::new(all().count())),
        column("months", all().map(|n| some(n, n as i32)).collect::<IntervalYearMonthArray>()),
        column("bytes_view", all().map(|n| some(n, n.to_le_bytes().repeat(2))).collect::<BinaryViewArray>()),
        column("large_bytes", all().map(|n| some(n, n.to_le_bytes())).collect::<LargeBinaryArray>()),
    ];
    columns.extend(more_scalar_columns(all()));
    batch(columns)
}

fn lists(numbers: Range<i64>) -> Column {
    let list = |n: i64| some(n, (0..n % 4).map(|at| some(at + n, (n + at) as i32)).collect::<Vec<_>>());
    column("list", ListArray::from_iter_primitive::<Int32Type, _, _>(numbers.map(list)))
}

fn structs(numbers: Range<i64>) -> Column {
    let text = numbers.clone().map(|n| some(n + 1, format!("inner {n}"))).collect::<StringArray>();
    let number = numbers.clone().map(|n| some(n + 2, n as f32 / 2.0)).collect::<Float32Array>();
    let fields = vec![Field::new("text", DataType::Utf8, true), Field::new("number", DataType::Float32, true)];
    let nulls: Vec<bool> = numbers.map(|n| n % 7 != 3).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(text), Arc::new(number)];
    column("struct", StructArray::new(fields.into(), columns, Some(nulls.into())))
}

/// Columns that JSON can hold.
fn json(numbers: Range<i64>) -> RecordBatch {
    let mut columns = scalar_columns(numbers.clone());
    columns.push(lists(numbers.clone()));
    columns.push(structs(numbers));
    batch(columns)
}

fn tensors(numbers: Range<i64>, nullable: bool) -> Vec<Column> {
    let len = (numbers.end - numbers.start) as usize;
    let nulls = || nullable.then(|| NullBuffer::from(numbers.clone().map(|n| n % 7 != 3).collect::<Vec<_>>()));
    let matrix = FixedShapeTensor::new(DataType::Float32, vec![2, 3]).field("matrix", nullable).unwrap();
    let values =
        Float32Array::from_iter_values(numbers.clone().flat_map(|n| (0..6).map(move |at| (n * 6 + at) as f32)));
    let DataType::FixedSizeList(item, _) = matrix.data_type().clone() else { panic!() };
    let fixed = FixedSizeListArray::try_new_with_length(item, 6, Arc::new(values), nulls(), len).unwrap();
    let ragged = VariableShapeTensor::new(DataType::UInt8, 2).field("ragged", nullable);
    let sides = |n: i64| [n % 3 + 1, n % 300 + 1];
    let bytes = UInt8Array::from_iter_values(
        numbers.clone().flat_map(|n| (0..sides(n).iter().product::<i64>()).map(move |at| (n + at) as u8)),
    );
    let DataType::Struct(fields) = ragged.data_type().clone() else { panic!() };
    let DataType::List(byte) = fields[0].data_type() else { panic!() };
    let DataType::FixedSizeList(side, _) = fields[1].data_type() else { panic!() };
    let lengths = OffsetBuffer::from_lengths(numbers.clone().map(|n| sides(n).iter().product::<i64>() as usize));
    let data = ListArray::new(Arc::clone(byte), lengths, Arc::new(bytes), None);
    let all_sides = Int32Array::from_iter_values(numbers.clone().flat_map(sides).map(|side| side as i32));
    let shape = FixedSizeListArray::try_new_with_length(Arc::clone(side), 2, Arc::new(all_sides), None, len).unwrap();
    let tensors = StructArray::try_new_with_length(fields, vec![Arc::new(data), Arc::new(shape)], nulls(), len);
    vec![(matrix, Arc::new(fixed)), (ragged, Arc::new(tensors.unwrap()))]
}

/// Columns of all types that feeds have, with nulls.
pub(crate) fn all_types(numbers: Range<i64>) -> RecordBatch {
    let all = || numbers.clone();
    let mut columns = scalar_columns(all());
    columns.push(lists(all()));
    columns.push(structs(all()));
    columns.extend(tensors(all(), true));
    columns.extend(other_columns(all()));
    columns.push(column("span", all().map(|n| some(n, n * 17)).collect::<DurationMillisecondArray>()));
    let category = all().map(|n| some(n, ["red", "green", "blue"][n as usize % 3]));
    columns.push(column("category", category.collect::<DictionaryArray<Int32Type>>()));
    columns
        .push(column("view", all().map(|n| some(n, format!("a view of many bytes {n}"))).collect::<StringViewArray>()));
    batch(columns)
}

fn other_columns(numbers: Range<i64>) -> Vec<Column> {
    let all = || numbers.clone();
    let image = |n: i64| match n % 3 {
        0 => format!("\u{0}image {n}").into_bytes(),
        1 => [&b"\xff\xd8\xff"[..], &n.to_le_bytes()].concat(),
        _ => [&b"\x89PNG\r\n\x1a\n"[..], &n.to_le_bytes()].concat(),
    };
    let fixed = all().map(|n| some(n, (n as u32).to_le_bytes()));
    vec![
        column("half", all().map(|n| some(n, f16::from_f32(n as f32 / 4.0))).collect::<Float16Array>()),
        column("image", all().map(|n| some(n, image(n))).collect::<BinaryArray>()),
        column("large", all().map(|n| some(n, format!("large {n}"))).collect::<LargeStringArray>()),
        column("fixed", FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 4).unwrap()),
        column("clock", all().map(|n| some(n, n * 1000 + 1)).collect::<Time64MicrosecondArray>()),
    ]
}

/// Columns that formats without nulls can hold.
pub(crate) fn without_nulls(numbers: Range<i64>) -> RecordBatch {
    let mut columns = scalar_columns(numbers.clone());
    columns.extend(other_columns(numbers.clone()));
    let category = numbers.clone().map(|n| ["red", "green", "blue"][n as usize % 3]);
    columns.push(column("category", category.map(Some).collect::<DictionaryArray<Int32Type>>()));
    for (field, array) in &mut columns {
        // The value of the row before in the place of a null.
        let rows = (0..array.len() as u64).map(|row| if array.is_null(row as usize) { row - 1 } else { row });
        *array = take(array, &UInt64Array::from_iter_values(rows), None).unwrap();
        field.set_nullable(true);
    }
    columns.push(lists(numbers.clone()));
    columns.push(structs(numbers.clone()));
    columns.extend(tensors(numbers.clone(), false));
    let item = Arc::new(Field::new_list_field(DataType::Int64, false));
    let tokens = Int64Array::from_iter_values(numbers.clone().flat_map(|n| 0..=n % 5));
    let lengths = OffsetBuffer::from_lengths(numbers.clone().map(|n| n as usize % 5 + 1));
    columns.push(column("tokens", ListArray::new(item, lengths, Arc::new(tokens), None)));
    let embedding = numbers.map(|n| Some(vec![Some(n as f32), Some(0.5)]));
    columns.push(column("embedding", FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(embedding, 2)));
    batch(columns)
}

/// The rows with keys.
pub(crate) fn with_key(rows: &RecordBatch) -> RecordBatch {
    let keys: StringArray = (0..rows.num_rows()).map(|row| Some(format!("folder.d/key-{row}"))).collect();
    let mut fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new("__key__", DataType::Utf8, false)));
    let columns = rows.columns().iter().cloned().chain([Arc::new(keys) as ArrayRef]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

/// Rows of a few bytes, and among them rows of a megabyte.
pub(crate) fn uneven(rows: usize) -> RecordBatch {
    let text = |row: usize| Some("x".repeat(if row % 97 == 96 { 1 << 20 } else { row % 30 }));
    batch(vec![
        column("n", Int64Array::from_iter_values(0..rows as i64)),
        column("text", (0..rows).map(text).collect::<StringArray>()),
    ])
}

/// Random bytes in values of a kilobyte.
pub(crate) fn noise(bytes: usize, seed: usize) -> RecordBatch {
    let mut state = seed as u64;
    let mut all = vec![0; bytes.next_multiple_of(1024)];
    for word in all.chunks_exact_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.copy_from_slice(&(state ^ state >> 33).to_le_bytes());
    }
    batch(vec![column("noise", BinaryArray::from_iter_values(all.chunks(1024)))])
}

/// The same as text.
pub(crate) fn noise_text(bytes: usize, seed: usize) -> RecordBatch {
    let noise = noise(bytes, seed);
    let values: &BinaryArray = noise.column(0).as_any().downcast_ref().unwrap();
    let text = |value: Option<&[u8]>| value.map(|value| value.iter().map(|byte| char::from(byte & 63 | 64)).collect());
    let texts: Vec<Option<String>> = values.iter().map(text).collect();
    batch(vec![column("noise", StringArray::from(texts))])
}

/// A column with so many entries of metadata, as has its schema.
pub(crate) fn with_metadata(entries: usize) -> RecordBatch {
    let metadata = || (0..entries).map(|n| (format!("key {n}"), format!("value {n}"))).collect();
    let field = Field::new("n", DataType::Int64, false).with_metadata(metadata());
    let schema = Schema::new_with_metadata(vec![field], metadata());
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from(vec![1, 2, 3]))]).unwrap()
}

/// Equal rows whose arrays hold other values under their nulls, and have other offsets and dictionaries.
pub(crate) fn computed_otherwise(rows: &RecordBatch) -> RecordBatch {
    let other = |array: &ArrayRef| -> ArrayRef {
        let (len, valid) = (array.len(), array.nulls().cloned());
        // Each null takes the value of another row, under its null.
        let filled = |row: usize| if array.is_null(row) { (row + 1) % len } else { row };
        let filled = UInt64Array::from_iter_values((0..len).map(|row| filled(row) as u64));
        let values = take(array, &filled, None).unwrap();
        let values = concat(&[&values.slice(0, 3), &values]).unwrap().slice(3, len);
        match values.data_type() {
            DataType::Dictionary(_, _) => Arc::clone(array),
            _ => make_array(values.to_data().into_builder().nulls(valid).build().unwrap()),
        }
    };
    let columns = rows.columns().iter().map(other).collect();
    let other = RecordBatch::try_new(rows.schema(), columns).unwrap();
    assert_eq!(&other, rows);
    other
}
