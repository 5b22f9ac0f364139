//! The statements of a text.
//!
//! Statements carry only names and literal text. No name has been resolved.

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast::Query;

use crate::error::Place;

/// One statement of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `CREATE [OR REPLACE] EXTERNAL TABLE [IF NOT EXISTS] …`
    CreateTable(TableDefinition),
    /// `DROP TABLE [IF EXISTS] name`
    DropTable {
        /// The table.
        name: String,
        /// Whether a missing table is accepted.
        if_exists: bool,
        /// Where the name is.
        place: Place,
    },
    /// `CREATE [OR REPLACE] PIPELINE [IF NOT EXISTS] name [WITH (…)] AS query`
    CreatePipeline(PipelineDefinition),
    /// `DROP PIPELINE [IF EXISTS] name`
    DropPipeline {
        /// The pipeline.
        name: String,
        /// Whether a missing pipeline is accepted.
        if_exists: bool,
        /// Where the name is.
        place: Place,
    },
    /// `SHOW PIPELINES`
    ShowPipelines,
    /// `SHOW TABLES`
    ShowTables,
    /// `DESCRIBE PIPELINE name`
    DescribePipeline {
        /// The pipeline.
        name: String,
        /// Where the name is.
        place: Place,
    },
    /// `DESCRIBE [TABLE] name`
    DescribeTable {
        /// The table.
        name: String,
        /// Where the name is.
        place: Place,
    },
    /// `EXPLAIN PIPELINE name`
    ExplainPipeline {
        /// The pipeline.
        name: String,
        /// Where the name is.
        place: Place,
    },
    /// `MATERIALIZE pipeline | (query) TO 'url' [WITH (…)]`
    Materialize(MaterializeDefinition),
    /// `SELECT …`: rows to look at.
    Query(QueryDefinition),
}

/// A query whose rows are computed once, from whole tables.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryDefinition {
    /// The query, with places in the whole text that was parsed.
    pub query: Box<Query>,
    /// Its source text, character for character.
    pub text: String,
    /// Where it starts.
    pub place: Place,
}

/// Samples to write to files, as `MATERIALIZE` declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct MaterializeDefinition {
    /// The samples.
    pub source: MaterializeSource,
    /// The path or URL of the folder, as it was written.
    pub url: String,
    /// Where that text is.
    pub url_place: Place,
    /// The pairs of `WITH (…)`, in order. Each name occurs once.
    pub options: Vec<PipelineOption>,
    /// Where the statement starts.
    pub place: Place,
}

/// The samples that `MATERIALIZE` writes.
#[derive(Clone, Debug, PartialEq)]
pub enum MaterializeSource {
    /// Those of a pipeline.
    Pipeline {
        /// The pipeline.
        name: String,
        /// Where the name is.
        place: Place,
    },
    /// Those of a query in brackets: a pipeline without options.
    Query(Box<PipelineDefinition>),
}

/// A named table over files, as `CREATE EXTERNAL TABLE` declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct TableDefinition {
    /// The table's name; lower case unless it was quoted.
    pub name: String,
    /// `OR REPLACE` was given.
    pub or_replace: bool,
    /// `IF NOT EXISTS` was given.
    pub if_not_exists: bool,
    /// The word after `STORED AS`, in upper case.
    pub file_type: String,
    /// Where that word is.
    pub file_type_place: Place,
    /// The text after `LOCATION`, as it was written.
    pub location: String,
    /// Where that text is.
    pub location_place: Place,
    /// The declared columns; `None` when the files say what their columns are.
    pub columns: Option<SchemaRef>,
    /// The columns of `PARTITIONED BY`, which are in the paths; `None` without that clause. A column without a type has
    /// the type `Null`.
    pub path_columns: Option<SchemaRef>,
    /// The pairs of `OPTIONS (…)`, in order. Keys are lower case and each occurs once.
    pub options: Vec<(String, String)>,
    /// Where each of them is.
    pub option_places: Vec<Place>,
    /// Where the statement starts.
    pub place: Place,
    /// Where the name is.
    pub name_place: Place,
}

/// A pipeline as `CREATE PIPELINE` declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineDefinition {
    /// The pipeline's name; lower case unless it was quoted.
    pub name: String,
    /// `OR REPLACE` was given.
    pub or_replace: bool,
    /// `IF NOT EXISTS` was given.
    pub if_not_exists: bool,
    /// The pairs of `WITH (…)`, in order. Each name occurs once.
    pub options: Vec<PipelineOption>,
    /// The query, with places in the whole text that was parsed.
    pub query: Box<Query>,
    /// The query's source text, character for character.
    pub text: String,
    /// The whole statement's source text, from CREATE to the end of the query.
    pub statement: String,
    /// Where the query starts.
    pub place: Place,
    /// Where the name is.
    pub name_place: Place,
}

/// One `name = value` of a pipeline's `WITH (…)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineOption {
    /// The option's name; lower case unless it was quoted.
    pub name: String,
    /// Its value.
    pub value: OptionValue,
    /// Where the name is.
    pub place: Place,
    /// Where the value is.
    pub value_place: Place,
}

/// The value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A quoted text or a bare word.
    Text(String),
    /// A number as it was written, with its sign.
    Number(String),
    /// `true` or `false`.
    Boolean(bool),
}

impl std::fmt::Display for OptionValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OptionValue::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
            OptionValue::Number(number) => f.write_str(number),
            OptionValue::Boolean(boolean) => write!(f, "{boolean}"),
        }
    }
}
