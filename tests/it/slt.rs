//! SQL behaviour as text: runs every file of `tests/slt`, each SELECT in it as a pipeline in file order, unless it
//! begins with a line `-- whole tables`.
//!
//! Each file runs twice: read in process, and read over Flight from a server of the same session. Only samples travel
//! over Flight; other statements (CREATE, DROP, SHOW, DESCRIBE, EXPLAIN) have no request in the protocol, so both runs
//! execute them, and plan each SELECT, on the session itself.
//!
//! After an intended change, `SLT_UPDATE=1 cargo test --test it slt` writes the new results; read the diff.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field};
use arrow::util::display::array_value_to_string;
use forebay_engine::{Error, FeedOptions, Output, ReadOptions, Session};
use forebay_flight_client::{Client, StreamRequest};
use forebay_flight_server::Server;
use futures::TryStreamExt;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, ExpectedError, QueryExpect, Record, Runner, StatementExpect};
use tokio::task::JoinSet;

use crate::support::repository;

/// The first line of a query that is run once, over whole tables.
const WHOLE_TABLES: &str = "-- whole tables";
/// Maximum number of a tensor's values in a result.
const SHOWN: usize = 12;

struct Database {
    session: Arc<Session>,
    served: Option<Served>,
}

/// A server of the session, and a client of it. The server ends when this is dropped.
struct Served {
    client: Client,
    _serving: JoinSet<Result<(), Error>>,
}

impl Database {
    /// A session whose relative locations begin at `tests/slt`.
    fn in_process() -> Result<Self, Error> {
        let base = repository().join("tests/slt");
        let session = Session::builder().base(base).root("memory:///slt").threads(1).build()?;
        Ok(Self { session: Arc::new(session), served: None })
    }

    /// The same, with samples read over Flight.
    async fn over_flight() -> Result<Self, Error> {
        let database = Self::in_process()?;
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await?;
        let uri = server.uri();
        let mut serving = JoinSet::new();
        serving.spawn(server.serve(Arc::clone(&database.session), std::future::pending()));
        let client = Client::connect(&uri).await?;
        Ok(Self { served: Some(Served { client, _serving: serving }), ..database })
    }

    /// The samples of a query, which becomes the pipeline `slt`.
    async fn pipeline(&mut self, query: &str) -> Result<Vec<Vec<String>>, Error> {
        self.session.execute("slt", &format!("CREATE OR REPLACE PIPELINE slt AS {query}")).await?;
        self.session.prepare("slt").await?;
        Ok(shown(&self.samples().await?))
    }

    /// The samples of the pipeline `slt`.
    async fn samples(&mut self) -> Result<Vec<RecordBatch>, Error> {
        let mut batches = Vec::new();
        let options = FeedOptions { seed: Some(7), ..FeedOptions::default() };
        match &mut self.served {
            None => {
                let mut reader = self.session.open("slt", &options)?.read(&ReadOptions::default())?;
                while let Some(batch) = reader.next().await {
                    batches.push(batch?.records);
                }
            }
            Some(served) => {
                let request = StreamRequest::new("slt", &options, &ReadOptions::default());
                let mut reader = served.client.open(&request).await?.read()?;
                while let Some(batch) = reader.next().await {
                    batches.push(batch?.records);
                }
                reader.close().await;
            }
        }
        Ok(batches)
    }
}

#[async_trait::async_trait]
impl AsyncDB for Database {
    type Error = Error;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Error> {
        if let Some(query) = sql.trim_start().strip_prefix(WHOLE_TABLES) {
            let batches: Vec<_> = self.session.query(query).await?.rows()?.into_stream().try_collect().await?;
            let rows = shown(&batches);
            // As a pipeline, the query is a stage, whose rows are kept.
            let samples = self.pipeline(query).await?;
            let sorted = |mut rows: Vec<Vec<String>>| {
                rows.sort();
                rows
            };
            assert_eq!(sorted(samples), sorted(rows.clone()), "{query}");
            return Ok(rows_or_nothing(rows));
        }
        if !sql.trim_start().to_ascii_uppercase().starts_with("SELECT") {
            let rows = self.session.execute("slt", sql).await?.into_iter().flat_map(|output| match output {
                Output::Done(_) | Output::CreatedPipeline { .. } | Output::Query(_) => vec![],
                Output::Rows(rows) => rows,
                Output::Text(text) => text.lines().map(|line| vec![line.to_owned()]).collect(),
            });
            return Ok(rows_or_nothing(rows.collect()));
        }
        Ok(rows_or_nothing(self.pipeline(sql).await?))
    }

    async fn shutdown(&mut self) {}
}

fn rows_or_nothing(rows: Vec<Vec<String>>) -> DBOutput<DefaultColumnType> {
    match rows.first().map(Vec::len) {
        None => DBOutput::StatementComplete(0),
        Some(columns) => DBOutput::Rows { types: vec![DefaultColumnType::Text; columns], rows },
    }
}

fn shown(batches: &[RecordBatch]) -> Vec<Vec<String>> {
    batches.iter().flat_map(|records| (0..records.num_rows()).map(move |row| show(records, row))).collect()
}

fn show(records: &RecordBatch, row: usize) -> Vec<String> {
    let columns = records.schema_ref().fields().iter().zip(records.columns());
    columns.map(|(field, column)| cell(field, column, row)).collect()
}

fn cell(field: &Field, column: &ArrayRef, row: usize) -> String {
    if column.is_null(row) {
        return "NULL".to_owned();
    }
    match (field.metadata().get("ARROW:extension:name").map(String::as_str), column.data_type()) {
        (Some("arrow.fixed_shape_tensor"), _) => {
            let shape = field.metadata().get("ARROW:extension:metadata").and_then(|text| {
                serde_json::from_str::<serde_json::Value>(text).ok().map(|json| json["shape"].to_string())
            });
            format!("{} {}", shape.unwrap_or_default(), values(&column.as_fixed_size_list().value(row)))
        }
        (Some("arrow.variable_shape_tensor"), _) => {
            let parts = column.as_struct();
            let part = |name| parts.column_by_name(name).expect("a tensor's part");
            let shape = values(&part("shape").as_fixed_size_list().value(row)).replace(' ', ",");
            format!("[{shape}] {}", values(&part("data").as_list::<i32>().value(row)))
        }
        (_, DataType::Binary) => format!("{} bytes", column.as_binary::<i32>().value(row).len()),
        // Results are split at white space, so an empty text would be lost.
        _ => match array_value_to_string(column, row).expect("a value that can be shown") {
            text if text.is_empty() => "(empty)".to_owned(),
            text => text,
        },
    }
}

fn values(array: &ArrayRef) -> String {
    let shown = (0..array.len().min(SHOWN)).map(|row| array_value_to_string(array, row).expect("a number"));
    let mut text = shown.collect::<Vec<_>>().join(" ");
    if array.len() > SHOWN {
        text.push_str(&format!(" … ({})", array.len()));
    }
    text
}

/// Every file of `tests/slt`, ordered by name.
fn files() -> Vec<PathBuf> {
    let folder = repository().join("tests/slt");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("tests/slt exists")
        .map(|entry| entry.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "slt"))
        .collect();
    files.sort();
    assert!(files.len() > 10, "found only {files:?}");
    files
}

#[test]
fn every_slt_file_holds() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for file in files() {
        let mut runner = Runner::new(|| async { Database::in_process() });
        if std::env::var_os("SLT_UPDATE").is_some() {
            let update = runner.update_test_file(
                &file,
                " ",
                sqllogictest::default_validator,
                sqllogictest::default_normalizer,
                sqllogictest::default_column_validator,
            );
            runtime.block_on(update).expect("the file can be updated");
        } else if let Err(error) = runtime.block_on(runner.run_file_async(&file)) {
            panic!("{}", error.display(false));
        }
    }
}

#[test]
fn every_slt_file_holds_over_flight() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for file in files() {
        let mut runner = Runner::new(Database::over_flight);
        if let Err(error) = runtime.block_on(runner.run_file_async(&file)) {
            panic!("over Flight: {}", error.display(false));
        }
    }
}

#[test]
fn every_expected_error_says_which() {
    let mut expected = 0;
    for file in files() {
        for record in sqllogictest::parse_file::<DefaultColumnType>(&file).expect("the file can be parsed") {
            let (loc, error) = match record {
                Record::Statement { loc, expected: StatementExpect::Error(error), .. } => (loc, error),
                Record::Query { loc, expected: QueryExpect::Error(error), .. } => (loc, error),
                _ => continue,
            };
            assert!(
                !matches!(error, ExpectedError::Empty),
                "{loc}: without a pattern any error passes, even that of a typo: write `statement error PATTERN`"
            );
            expected += 1;
        }
    }
    assert!(expected > 200, "only {expected} errors are expected");
}

#[test]
fn every_operator_has_an_slt_file() {
    for descriptor in forebay_engine::operators::descriptors() {
        let name = descriptor.name;
        let file = repository().join(format!("tests/slt/{name}.slt"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{} is missing", file.display()));
        assert!(text.contains(&format!("{name}(")), "{} does not call {name}", file.display());
    }
}

/// Minimum number of examples that run. The others show their result in words, or read columns that this table lacks.
const EXAMPLES_RUN_MIN: usize = 40;

#[test]
fn the_operators_examples_are_true() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut run = 0;
    runtime.block_on(async {
        let mut database = Database::in_process().expect("a session");
        let table = "CREATE EXTERNAL TABLE numbers STORED AS JSONL LOCATION 'data/numbers.jsonl'";
        database.run(table).await.expect("the table exists");
        for operator in forebay_engine::operators::OPERATORS {
            for example in operator.descriptor().examples {
                let sql = example.sql.replace("'tokenizer.json'", "'../../operators/testdata/tokenizers/gpt2.json'");
                let result = database.run(&format!("SELECT {sql} AS example FROM numbers WHERE id = 0")).await;
                let got = match result {
                    Ok(DBOutput::Rows { rows, .. }) => rows[0][0].clone(),
                    Ok(_) => panic!("{sql} gives no rows"),
                    // Golden tests cover examples that read images or other columns that this table lacks.
                    Err(error) if error.to_string().contains("\" not found") => continue,
                    Err(error) => format!("error: {error}"),
                };
                let is_true = match example.result.strip_prefix("error: ") {
                    Some(problem) => got.contains(problem),
                    // The results of draws are described in words.
                    None if operator.descriptor().determinism.varies_by_epoch() => !got.starts_with("error: "),
                    None => got == example.result,
                };
                assert!(is_true, "{sql} gives {got} and not {}", example.result);
                run += 1;
            }
        }
    });
    assert!(run >= EXAMPLES_RUN_MIN, "only {run} examples ran");
}

/// An example of a table operator is a whole query, and its result is rows.
#[test]
fn the_table_operators_examples_are_true() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let mut database = Database::in_process().expect("a session");
        for (table, format, location) in [("numbers", "JSONL", "numbers.jsonl"), ("pictures", "MEDIA", "pictures")] {
            let create = format!("CREATE EXTERNAL TABLE {table} STORED AS {format} LOCATION 'data/{location}'");
            database.run(&create).await.expect("the table exists");
        }
        for operator in forebay_engine::operators::TABLE_OPERATORS {
            for example in operator.descriptor().examples {
                let sql = example.sql;
                let got = match database.run(sql).await {
                    Ok(DBOutput::Rows { rows, .. }) => {
                        rows.iter().map(|row| row.join(" ")).collect::<Vec<_>>().join("; ")
                    }
                    Ok(_) => "no rows".to_owned(),
                    Err(error) => format!("error: {error}"),
                };
                assert_eq!(got, example.result, "{sql}");
            }
        }
    });
}
