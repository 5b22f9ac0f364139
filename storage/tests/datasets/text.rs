//! Tests specific to CSV and JSON lines.

use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use forebay_storage::{Dataset, ErrorKind, TableFormat};

use crate::support::{TestFolder, csv, csv_table, csv_with, ids_of, jsonl, stored_as};

fn schema(columns: &[(&str, DataType, bool)]) -> SchemaRef {
    let fields = columns.iter().map(|(name, data_type, nullable)| Field::new(*name, data_type.clone(), *nullable));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The rows of the first range as text, each with its id, and the bad rows with the reason.
async fn show(dataset: &Dataset) -> Vec<String> {
    let columns: Vec<usize> = (0..dataset.schema().fields().len()).collect();
    let rows = dataset.read(&dataset.row_ranges(u64::MAX)[0], &columns).await.unwrap();
    let cell = |column: &dyn Array, row| arrow::util::display::array_value_to_string(column, row).unwrap();
    let good = ids_of(&rows).into_iter().enumerate().map(|(row, id)| {
        let cells: Vec<String> = rows.batch.columns().iter().map(|c| cell(c, row)).collect();
        format!("{id}: {}", cells.join(" | "))
    });
    let bad = rows.bad.iter().map(|bad| format!("{}! {}", bad.sample_id, bad.reason));
    good.chain(bad).collect()
}

async fn check(format: TableFormat, schema: Option<SchemaRef>, text: &[u8], expect: &[&str]) {
    for place in TestFolder::all() {
        place.put("a.text", text.to_vec()).await;
        let dataset = place.open_with("a.text", format.clone(), schema.clone()).await.unwrap();
        assert_eq!(show(&dataset).await, expect, "{}", String::from_utf8_lossy(text));
    }
}

#[tokio::test]
async fn csv_records_are_what_quotes_and_newlines_make_them() {
    let lines = b"\xef\xbb\xbfname,age\r\n\"a\n\"\"b\"\",\",1\r\n\r\n\n,2\nc,\n\"d\",4";
    check(csv_table(), None, lines, &["0: a\n\"b\", | 1", "1:  | 2", "2: c | ", "3: d | 4"]).await;
    let semicolons = csv_with(&[("has_header", "false"), ("delimiter", ";")]);
    check(semicolons, None, b"a;1\nb;2\n", &["0: a | 1", "1: b | 2"]).await;
}

#[tokio::test]
async fn csv_options_say_what_quotes_escapes_nulls_and_comments_are() {
    let lines = b"# people, by age\nname,age\n'a,\\'b\n',1\n#c,2\n\"d\",NA\n'',3\nNA,\ne,4 # not a comment\n'f''g',5";
    let given = csv_with(&[("quote", "'"), ("escape", "\\"), ("null", "NA,"), ("comment", "#")]);
    let columns = schema(&[("name", DataType::Utf8, true), ("age", DataType::Int64, true)]);
    let expect = [
        "0: a,'b\n | 1",
        "1: \"d\" | ",
        "2:  | 3",
        "3:  | ",
        "5: f'g | 5",
        "4! column \"age\": cannot read \"4 # not a comment\" as Int64",
    ];
    check(given, Some(columns.clone()), lines, &expect).await;
    // Without the empty text among them, only these texts are null.
    let place = TestFolder::memory();
    place.put("a.csv", "name,age\n,1\nNA,2\nnull,3\n").await;
    let dataset = place.open_with("", csv_with(&[("null", "NA,null")]), Some(columns)).await.unwrap();
    let rows = dataset.read(&dataset.row_ranges(u64::MAX)[0], &[0]).await.unwrap();
    let names: Vec<_> = rows.batch.column(0).as_string::<i32>().iter().collect();
    assert_eq!(names, [Some(""), None, None]);
}

#[tokio::test]
async fn added_options_leave_the_ids_of_tables_as_they_were() {
    let place = TestFolder::memory();
    place.put("a.csv", "name,age\nAda,1\n").await;
    let id = async |options: &[(&str, &str)]| {
        let dataset = place.open("", csv_with(options)).await.unwrap();
        dataset.snapshot().id().to_owned()
    };
    let plain = id(&[]).await;
    assert_eq!(id(&[("quote", "\""), ("escape", "none"), ("null", ""), ("comment", "none")]).await, plain);
    assert_ne!(id(&[("null", "NA")]).await, plain);
    assert_ne!(id(&[("quote", "'")]).await, id(&[("comment", "'")]).await);
}

#[tokio::test]
async fn a_bad_csv_record_is_reported_and_the_others_are_read() {
    let columns = schema(&[("name", DataType::Utf8, true), ("age", DataType::Int64, false)]);
    let lines = b"name,age\nAda,36\nBob,abc\nEve\nx,1,2\nCy\xff,7\nDan,\nFay,8\n";
    let expect = [
        "0: Ada | 36",
        "6: Fay | 8",
        "1! column \"age\": cannot read \"abc\" as Int64",
        "2! 1 fields where 2 are expected",
        "3! 3 fields where 2 are expected",
        "4! not UTF-8",
        "5! column \"age\": is empty, which the schema does not allow",
    ];
    check(csv_table(), Some(columns), lines, &expect).await;
}

#[tokio::test]
async fn a_cell_that_is_not_asked_for_is_not_read() {
    let place = TestFolder::memory();
    place.put("a.csv", "name,age\nBob,1\nAda,abc\n").await;
    let columns = schema(&[("name", DataType::Utf8, true), ("age", DataType::Int64, true)]);
    let dataset = place.open_with("", csv_table(), Some(columns)).await.unwrap();
    let rows = dataset.read(&dataset.row_ranges(1)[0], &[0]).await.unwrap();
    assert_eq!(ids_of(&rows), [0, 1]);
    let rows = dataset.read(&dataset.row_ranges(1)[0], &[1]).await.unwrap();
    assert_eq!(ids_of(&rows), [0]);
}

#[tokio::test]
async fn a_bad_json_line_is_reported_and_the_others_are_read() {
    let columns = schema(&[
        ("n", DataType::Int64, true),
        ("s", DataType::Struct(vec![Field::new("m", DataType::Int64, true)].into()), true),
    ]);
    let lines = b"\xef\xbb\xbf{\"n\": 1}\n\n{\"n\": \"abc\"}\n{\"s\": {\"m\": \"x\"}}\n{\"n\": 2\n\
                  {\"n\": 3}{\"n\": 4}\n{\"n\": 5}";
    let expect = [
        "0: 1 | ",
        "5: 5 | ",
        "1! column \"n\": cannot read \"abc\" as Int64",
        "2! column \"s.m\": cannot read \"x\" as Int64",
        "3! not a JSON object: Truncated record whilst reading object",
        "4! one line holds 2 objects",
    ];
    check(stored_as("jsonl"), Some(columns), lines, &expect).await;
}

#[tokio::test]
async fn json_columns_are_inferred() {
    let lines = b"{\"a\": 1, \"b\": \"x\"}\n{\"b\": 2, \"c\": {\"d\": [1.5]}}\n";
    check(stored_as("jsonl"), None, lines, &["0: 1 | x | ", "1:  | 2 | {d: [1.5]}"]).await;
}

#[tokio::test]
async fn json_fields_that_appear_late_are_columns() {
    for place in TestFolder::all() {
        // The records of the late fields lie in other pieces of the scan than the first ones.
        let many: String =
            (0..100_000).map(|n| format!("{{\"n\": {n}, \"s\": {{\"text\": \"{n:040}\"}}}}\n")).collect();
        place.put("a.jsonl", format!("{many}{{\"late\": 1}}\n{many}{{\"s\": {{\"x\": [true]}}}}")).await;
        place.put("b.jsonl", "{\"other\": null, \"n\": 2.5}\n{\"other\": 7}\n").await;
        let dataset = place.open("", stored_as("jsonl")).await.unwrap();
        let columns: Vec<String> =
            dataset.schema().fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
        assert_eq!(columns, ["n Int64", "s Struct(\"text\": Utf8, \"x\": List(Boolean))", "late Int64", "other Int64"]);
        assert_eq!(dataset.snapshot().rows(), 200_004);
        let last = dataset.row_ranges(1).pop().unwrap();
        let rows = dataset.read(&last, &[2, 3]).await.unwrap();
        assert_eq!(rows.batch.column(1).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [None, Some(7)]);
        let rows = dataset.read(&last, &[0]).await.unwrap();
        assert_eq!(rows.bad[0].reason, "column \"n\": a number is not of type Int64");
    }
}

#[tokio::test]
async fn json_over_several_lines_is_refused() {
    let declared = schema(&[("a", DataType::Int64, true)]);
    let long = format!("[{}{{}}]", "{\"a\": 1}, ".repeat(1 << 19));
    for (text, what, filter) in [
        ("[\n  {\n    \"a\": 1\n  },\n  {\n    \"a\": 2\n  }\n]\n", "one JSON array", ".[]"),
        ("\u{feff}[{\"a\": 1}, {\"a\": 2}]", "one JSON array", ".[]"),
        ("[ {\n\"a\": 1 } ]", "one JSON array", ".[]"),
        (&long, "one JSON array", ".[]"),
        (&long.replace(", ", ",\n"), "one JSON array", ".[]"),
        ("\n{\r\n  \"a\": 1\r\n}\r\n", "JSON objects over several lines", "."),
        ("{\n  \"a\": 1\n}\n{\n  \"a\": 2\n}\n", "JSON objects over several lines", "."),
    ] {
        for columns in [None, Some(declared.clone())] {
            let place = TestFolder::memory();
            place.put("a.json", text.to_owned()).await;
            let error = place.open_with("", stored_as("jsonl"), columns).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let expect =
                format!("\"memory:///root/a.json\" holds {what}, and a JSON lines file holds one object in each line");
            assert_eq!(error.to_string(), expect);
            assert!(error.hint().unwrap().contains(&format!("jq -c '{filter}'")), "{:?}", error.hint());
        }
    }
}

#[tokio::test]
async fn text_is_read_in_blocks() {
    for (format, name, text) in
        [(csv_table(), "a.csv", csv(0..20_000)), (stored_as("jsonl"), "a.jsonl", jsonl(0..20_000))]
    {
        let place = TestFolder::memory();
        let bad = text.replace("text\n12345", "text\n12345\",\"").replace("{\"n\": 12345,", "{\"n\": [],");
        place.put(name, bad).await;
        let dataset = place.open("", format).await.unwrap();
        let ranges = dataset.row_ranges(u64::MAX);
        assert_eq!(ranges.iter().map(|r| r.rows).collect::<Vec<_>>(), [8192, 8192, 3616]);
        let rows = dataset.read(&ranges[1], &[0]).await.unwrap();
        assert_eq!(rows.bad.len(), 1);
        assert_eq!(rows.bad[0].sample_id, 12345);
        let ids: Vec<i64> = ids_of(&rows).into_iter().map(|id| id as i64).collect();
        assert_eq!(rows.batch.column(0).as_primitive::<Int64Type>().values(), &ids[..]);
        assert_eq!(ids.len(), 8191);
    }
}

#[tokio::test]
async fn csv_files_with_other_columns_are_refused() {
    let check = async |second: &str, expect: &str| {
        let place = TestFolder::memory();
        place.put("a.csv", "name,age\nAda,36\n").await;
        place.put("b.csv", second.to_owned()).await;
        let error = place.open("", csv_table()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let expect = format!(
            "\"memory:///root/b.csv\" has {expect}; declare every column in the header's order, and give all files \
             the same"
        );
        assert_eq!(error.to_string(), expect);
    };
    check("age,name\n36,Ada\n", "column \"age\" where \"name\" is expected").await;
    check("name\nAda\n", "1 columns, expected 2").await;
}

#[tokio::test]
async fn columns_that_text_cannot_hold_are_refused() {
    let place = TestFolder::memory();
    place.put("a.csv", "x\n1\n").await;
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    let error = place.open_with("", csv_table(), Some(schema(&[("x", list, true)]))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().starts_with("the columns cannot be read from text: "), "{error}");
    place.put("b.csv", "x,x\n1,2\n").await;
    let error = place.open("b.csv", csv_table()).await.unwrap_err();
    assert_eq!(error.to_string(), "\"memory:///root/b.csv\" has two columns named \"x\"; rename one");
}
