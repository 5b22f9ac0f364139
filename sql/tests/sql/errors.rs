//! Every error that a text can cause, as rendered for the user.
//!
//! `errors.txt` holds the cases: a text, `----`, the rendered error, `====`. A query stands for that of a pipeline `p`,
//! and one after `bare:` for itself. `UPDATE=1 cargo nextest run -p forebay-sql` regenerates the file; read the
//! difference.

use std::fmt::Write as _;

use forebay_sql::{Statement, parse};

use crate::{planned, query_planned, session};

const CASES: &str = include_str!("errors.txt");

#[test]
fn errors_read_as_expected() {
    let state = session();
    let mut actual = String::new();
    for case in CASES.split("\n====\n").filter(|case| !case.trim().is_empty()) {
        let text = case.split("\n----\n").next().unwrap().trim_start_matches('\n');
        let first = text.split_whitespace().find(|word| !word.starts_with("--")).unwrap_or_default().to_uppercase();
        let is_query = ["SELECT", "WITH", "FROM", "(SELECT", "VALUES", "TABLE"].contains(&first.as_str());
        let whole = match text.strip_prefix("bare:") {
            Some(text) => text.trim_start().to_owned(),
            None if is_query => format!("CREATE PIPELINE p AS\n{text}"),
            None => text.to_owned(),
        };
        let outcome = parse(&whole).and_then(|statements| match statements.last() {
            Some(Statement::CreatePipeline(pipeline)) => {
                planned(pipeline, &state).map(|plan| plan.display_indent().to_string())
            }
            Some(Statement::Query(query)) => query_planned(query, &state).map(|plan| plan.display_indent().to_string()),
            other => Ok(format!("{other:?}")),
        });
        let rendered = match outcome {
            Ok(value) => format!("no error: {value}"),
            Err(error) => error.render("p.sql", &whole),
        };
        let _ = writeln!(actual, "{text}\n----\n{}\n====", rendered.trim_end());
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sql/errors.txt"), &actual).unwrap();
        return;
    }
    for (actual, expected) in actual.split("\n====\n").zip(CASES.split("\n====\n")) {
        assert_eq!(actual, expected);
    }
    assert_eq!(actual, CASES);
}
