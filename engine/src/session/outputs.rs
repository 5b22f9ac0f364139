//! The results of statements.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::Schema;
use forebay_arrays::type_name;
use forebay_storage::Dataset;

use crate::batch::Query;
use crate::pipeline::Pipeline;

/// The result of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// The statement changed the session, as the text describes.
    Done(String),
    /// The statement created or replaced a pipeline.
    CreatedPipeline {
        /// The pipeline's name.
        name: String,
        /// The same as a message.
        done: String,
    },
    /// A text of several lines.
    Rows(Vec<Vec<String>>),
    /// A text of several lines.
    Text(String),
    /// A query, which runs when its rows are read.
    Query(Box<Query>),
}

/// The result of `SHOW PIPELINES`.
pub(super) fn pipelines(pipelines: &BTreeMap<String, Arc<Pipeline>>) -> Output {
    let rows = pipelines.values().map(|pipeline| {
        let options: Vec<_> = pipeline.options().iter().map(|(name, value)| format!("{name} = {value}")).collect();
        vec![pipeline.name().to_owned(), pipeline.table().to_owned(), options.join(", ")]
    });
    table(["pipeline", "table", "with"], rows)
}

/// The result of `SHOW TABLES`.
pub(super) fn tables(tables: &BTreeMap<String, Dataset>) -> Output {
    let rows = tables.iter().map(|(name, dataset)| {
        let snapshot = dataset.snapshot();
        vec![name.clone(), snapshot.files().len().to_string(), snapshot.rows().to_string()]
    });
    table(["table", "files", "rows"], rows)
}

/// The result of `DESCRIBE`.
pub(super) fn schema(schema: &Schema) -> Output {
    let rows = schema.fields().iter().map(|field| {
        vec![field.name().clone(), type_name(field), if field.is_nullable() { "yes" } else { "no" }.to_owned()]
    });
    table(["column", "type", "nullable"], rows)
}

fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = Vec<String>>) -> Output {
    Output::Rows(std::iter::once(header.map(str::to_owned).to_vec()).chain(rows).collect())
}
