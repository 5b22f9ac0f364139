//! Tar shards, read as the package webdataset does.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};

use crate::rows::without_nulls;
use crate::support::{array_of, encoded, format, parts};

/// Name and content of each file of an archive.
fn members(mut bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let (mut members, mut long_name) = (Vec::new(), None);
    while bytes[0] != 0 {
        let (header, rest) = bytes.split_at(512);
        let octal = |at: usize, len: usize| {
            let text = std::str::from_utf8(&header[at..at + len]).unwrap();
            usize::from_str_radix(text.trim_matches(['\0', ' ']), 8).unwrap()
        };
        let sum =
            header.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { *byte as usize });
        assert_eq!(octal(148, 8), sum.sum::<usize>());
        assert_eq!(&header[257..265], b"ustar\x0000");
        assert_eq!(octal(136, 12), 0, "the time is that of no run");
        let size = octal(124, 12);
        let content = rest[..size].to_vec();
        let name = header[..100].split(|byte| *byte == 0).next().unwrap().to_vec();
        let name = String::from_utf8(name).unwrap();
        match header[156] {
            b'x' => {
                let text = String::from_utf8(content).unwrap();
                let (length, record) = text.split_once(' ').unwrap();
                assert_eq!(length.parse::<usize>().unwrap(), text.len());
                long_name = Some(record.trim_end().strip_prefix("path=").unwrap().to_owned());
            }
            _ => members.push((long_name.take().unwrap_or(name), content)),
        }
        bytes = &rest[size.next_multiple_of(512)..];
    }
    assert_eq!(bytes, [0; 1024]);
    members
}

/// The samples: key, and content by what follows the key.
fn samples(bytes: &[u8]) -> Vec<(String, BTreeMap<String, Vec<u8>>)> {
    let mut samples: Vec<(String, BTreeMap<String, Vec<u8>>)> = Vec::new();
    for (name, content) in members(bytes) {
        let begin = name.rfind('/').map_or(0, |at| at + 1);
        let period = begin + name[begin..].find('.').unwrap();
        let (key, suffix) = (&name[..period], &name[period + 1..]);
        if samples.last().is_none_or(|(last, _)| last != key) {
            samples.push((key.to_owned(), BTreeMap::new()));
        }
        let repeated = samples.last_mut().unwrap().1.insert(suffix.to_owned(), content);
        assert!(repeated.is_none(), "{name}");
    }
    samples
}

/// The description, the shape and the values of a numpy file.
fn npy(bytes: &[u8]) -> (String, Vec<u64>, Vec<u8>) {
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\0");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0);
    let head = std::str::from_utf8(&bytes[10..10 + length]).unwrap().trim_end();
    let rest = head.strip_prefix("{'descr': '").unwrap();
    let (description, rest) = rest.split_once("', 'fortran_order': False, 'shape': (").unwrap();
    let sides = rest.strip_suffix("), }").unwrap().split(',').map(str::trim).filter(|side| !side.is_empty());
    (description.to_owned(), sides.map(|side| side.parse().unwrap()).collect(), bytes[10 + length..].to_vec())
}

/// The rows of a shard, with these columns.
pub(crate) fn read(bytes: &[u8], schema: &Schema) -> RecordBatch {
    let samples = samples(bytes);
    let column = |field: &Arc<Field>| -> ArrayRef {
        if field.name() == "__key__" {
            return Arc::new(samples.iter().map(|(key, _)| Some(key.clone())).collect::<StringArray>());
        }
        let (name, prefix) = (field.name(), format!("{}.", field.name()));
        let mut is_json = false;
        let mut sides = Vec::new();
        let cell = |(_, members): &(String, BTreeMap<String, Vec<u8>>)| {
            let (suffix, content) =
                members.iter().find(|(suffix, _)| *suffix == name || suffix.starts_with(&prefix))?;
            let mut content = content.clone();
            match suffix.rsplit('.').next().unwrap() {
                "json" | "cls" => is_json = true,
                "npy" => {
                    let (_, shape, values) = npy(&content);
                    sides.push(shape);
                    content = values;
                }
                _ => {}
            }
            Some(content)
        };
        let mut cells: Vec<Option<Vec<u8>>> = samples.iter().map(cell).collect();
        if field.data_type().eq(&arrow::datatypes::DataType::Boolean) {
            let word = |cell: &Vec<u8>| if cell == b"1" { b"true".to_vec() } else { b"false".to_vec() };
            cells.iter_mut().flatten().for_each(|cell| *cell = word(cell));
        }
        array_of(field, is_json, &cells, &sides)
    };
    let columns = schema.fields().iter().map(column).collect();
    RecordBatch::try_new(Arc::new(schema.clone()), columns).unwrap()
}

#[test]
fn members_have_the_extensions_that_readers_decode() {
    let rows = without_nulls(0..3);
    let file = encoded(&format("webdataset"), &[rows]);
    let samples = samples(&file.bytes);
    let keys: Vec<&str> = samples.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["shard-00000000", "shard-00000001", "shard-00000002"]);
    let names = |at: usize| samples[at].1.keys().map(String::as_str).collect::<Vec<_>>();
    let of_column = |name: &str| names(0).into_iter().find(|it| it.starts_with(&format!("{name}."))).unwrap();
    for (column, extension) in [
        ("i64", "cls"),
        ("bool", "cls"),
        ("f32", "json"),
        ("day", "txt"),
        ("price", "txt"),
        ("list", "json"),
        ("struct", "json"),
        ("matrix", "npy"),
        ("ragged", "npy"),
        ("tokens", "npy"),
        ("embedding", "npy"),
        ("category", "txt"),
        ("fixed", "bin"),
    ] {
        assert_eq!(of_column(column), format!("{column}.{extension}"));
    }
    // The name of this column is an extension of texts.
    assert!(names(0).contains(&"text"));
    let of_images = [0, 1, 2].map(|at| names(at).into_iter().find(|it| it.starts_with("image.")).unwrap());
    assert_eq!(of_images, ["image.bin", "image.jpg", "image.png"]);
    assert_eq!(samples[2].1["i64.cls"], b"6000000000");
    assert_eq!(samples[2].1["day.txt"], b"1970-01-03");
    let (description, shape, values) = npy(&samples[1].1["matrix.npy"]);
    assert_eq!((description.as_str(), shape, values.len()), ("<f4", vec![2, 3], 24));
    let (description, shape, values) = npy(&samples[1].1["ragged.npy"]);
    assert_eq!((description.as_str(), shape, values.len()), ("|u1", vec![2, 2], 4));
}

#[test]
fn columns_with_an_extension_in_their_name_have_no_second_one() {
    let texts = || Arc::new(StringArray::from(vec![Some("a"), None])) as ArrayRef;
    let numbers = || Arc::new(Int64Array::from(vec![5, 6])) as ArrayRef;
    let columns = [("cls", numbers()), ("txt", texts()), ("caption.txt", texts()), ("jpg", numbers())];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let file = encoded(&format("webdataset"), &[rows]);
    let names: Vec<String> = members(&file.bytes).into_iter().map(|(name, _)| name).collect();
    let first = ["cls", "txt", "caption.txt", "jpg.cls"].map(|suffix| format!("shard-00000000.{suffix}"));
    // A null has no member.
    let second = ["cls", "jpg.cls"].map(|suffix| format!("shard-00000001.{suffix}"));
    assert_eq!(names, [&first[..], &second[..]].concat());
}

/// Files of one job have keys of their own, in the order of the rows.
#[test]
fn keys_are_unique_and_sorted() {
    let rows = RecordBatch::try_from_iter([("cls", Arc::new(Int64Array::from_iter_values(0..1200)) as ArrayRef)]);
    let rows = rows.unwrap();
    let keys = |prefix: &str| {
        let mut writer = format("webdataset").writer(&rows.schema(), prefix).unwrap();
        let mut bytes = Vec::new();
        for batch in parts(&rows, 500) {
            writer.write(&batch).unwrap();
        }
        writer.finish().unwrap();
        while let Some(piece) = writer.take().unwrap() {
            bytes.extend(piece);
        }
        samples(&bytes).into_iter().map(|(key, _)| key).collect::<Vec<_>>()
    };
    let all = [keys("000000/"), keys("000001/")].concat();
    assert!(all.is_sorted_by(|one, other| one < other));
    assert_eq!((all.len(), all[1199].as_str()), (2400, "000000/00001199"));
}

#[test]
fn long_names_are_kept() {
    for length in [90, 94, 95, 200, 985, 1100] {
        let key = format!("a.b/{}", "k".repeat(length));
        let columns: [(&str, ArrayRef); 2] =
            [("__key__", Arc::new(StringArray::from(vec![key.clone()]))), ("id", Arc::new(Int64Array::from(vec![7])))];
        let file = encoded(&format("webdataset"), &[RecordBatch::try_from_iter(columns).unwrap()]);
        assert_eq!(members(&file.bytes), [(format!("{key}.id"), b"7".to_vec())]);
    }
}
