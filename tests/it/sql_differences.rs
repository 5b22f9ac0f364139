//! Runs every expression of docs/sql-differences.md, and compares its result with the page.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::util::display::array_value_to_string;
use forebay_engine::{Error, FeedOptions, OnError, ReadOptions, Session};

use crate::support::repository;

/// The expression and the expected result of each row of the page's tables.
fn rows(page: &str) -> Vec<(String, String)> {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_matches('|').replace("\\|", "\u{1}");
        line.split('|').map(|cell| cell.trim().replace('\u{1}', "|")).collect()
    };
    let tables = page.lines().filter(|line| line.starts_with("| `")).map(cells);
    let plain = |cell: &str| cell.trim_matches('`').to_owned();
    tables.map(|cells| (plain(&cells[0]), cells[1].clone())).collect()
}

async fn result(session: &Session, expression: &str) -> Result<String, Error> {
    session.define("p", &format!("SELECT {expression} AS x FROM t")).await?;
    let options = FeedOptions { on_error: Some(OnError::Raise), ..FeedOptions::default() };
    let mut reader = session.open("p", &options)?.read(&ReadOptions::default())?;
    let batch = reader.next().await.expect("one row")?;
    let column = batch.records.column(0);
    let text = array_value_to_string(column, 0).expect("a value that can be shown");
    Ok(match (column.is_null(0), text.is_empty()) {
        (true, _) => "`NULL`".to_owned(),
        (false, true) => "(empty)".to_owned(),
        (false, false) => format!("`{text}`"),
    })
}

#[tokio::test]
async fn the_page_says_what_expressions_return() {
    let page = std::fs::read_to_string(repository().join("docs/sql-differences.md")).expect("the page");
    let session = Session::builder().threads(1).root("memory:///root").build().expect("a session");
    let columns: [(&str, ArrayRef); 2] =
        [("id", Arc::new(Int64Array::from(vec![1]))), ("Name", Arc::new(StringArray::from(vec!["red"])))];
    let table = RecordBatch::try_from_iter(columns).expect("columns of one length");
    session.register(Some("t"), table.schema(), vec![table]).await.expect("a table");
    let rows = rows(&page);
    assert!(rows.len() > 60, "only {} rows", rows.len());
    let mut wrong = Vec::new();
    for (expression, expected) in rows {
        let fits = match (result(&session, &expression).await, expected.strip_prefix("error: ")) {
            (Ok(found), None) if found == expected => Ok(()),
            (Ok(found), _) => Err(found),
            (Err(error), Some(part)) if error.to_string().contains(part.trim_matches('`')) => Ok(()),
            (Err(error), _) => Err(error.to_string()),
        };
        if let Err(found) = fits {
            wrong.push(format!("{expression}: the page says {expected}, found {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
