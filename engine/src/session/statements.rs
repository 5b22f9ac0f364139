//! Runs SQL statements over a session's catalog.

use std::sync::Arc;

use forebay_sql::{PipelineDefinition, Place, Statement, TableDefinition};
use forebay_storage::DatasetSpec;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Session;
use super::catalog::unknown;
use super::outputs::{self, Output};
use crate::compile::Audience;
use crate::error::{Error, ErrorKind, Result};
use crate::pipeline::{Pipeline, Refusal};
use crate::table_format::{format_of, path_column_of_options, path_columns_of};
use forebay_protocol::FeedOptions;

impl Session {
    /// Runs the statements of `text`. Errors refer to the text as `name`.
    ///
    /// # Errors
    /// The error of the first statement that fails, with its place in the text. Earlier statements stay executed.
    pub async fn execute(&self, name: &str, text: &str) -> Result<Vec<Output>> {
        let script = Script { name, text };
        let _executing = self.executing.lock().await;
        let mut outputs = Vec::new();
        for statement in script.statements()? {
            let output = self.statement(statement).await;
            outputs.push(output.map_err(|failure| script.error(failure))?);
        }
        Ok(outputs)
    }

    /// Like [`execute`](Self::execute), for a server of several pipelines: a table over a damaged file fails only the
    /// pipelines that read it. [`open`](Self::open) answers with its error, and [`broken`](Self::broken) lists them.
    /// Their queries are checked only as far as this is possible without the table's columns.
    ///
    /// # Errors
    /// The first error of the text, and the first table's error if no pipeline can be opened. A store that cannot be
    /// read at the moment is an error of the text.
    pub async fn execute_what_opens(&self, name: &str, text: &str) -> Result<()> {
        let script = Script { name, text };
        let _executing = self.executing.lock().await;
        let mut first = None;
        for statement in script.statements()? {
            let pipeline = match &statement {
                Statement::CreatePipeline(pipeline) => Some(pipeline.name.clone()),
                _ => None,
            };
            let broken = self.catalog.broken();
            let is_broken = match &statement {
                Statement::DescribeTable { name, .. } => broken.tables.contains_key(name),
                Statement::DescribePipeline { name, .. } | Statement::ExplainPipeline { name, .. } => {
                    broken.pipelines.contains_key(name)
                }
                _ => false,
            };
            let is_query = matches!(statement, Statement::Query(_));
            if let Statement::Materialize(job) = &statement {
                return Err(script.error(Failure::At(job.place, served_job())));
            }
            let Err(failure) = self.statement(statement).await else { continue };
            let reads_broken = pipeline
                .zip(failure.missing_table())
                .is_some_and(|(pipeline, table)| self.catalog.break_pipeline(&pipeline, table));
            match failure {
                Failure::Unopened { table, place, error } if error.kind() == ErrorKind::Data => {
                    self.catalog.break_table(&table, error.clone())?;
                    first.get_or_insert(script.error(Failure::At(place, error)));
                }
                // A query is not run here.
                failure
                    if is_query && failure.missing_table().is_some_and(|table| broken.tables.contains_key(table)) =>
                {
                    tracing::warn!("a query of the script reads a table that cannot be opened");
                }
                failure if !reads_broken && !is_broken => return Err(script.error(failure)),
                _ => {}
            }
        }
        first.filter(|_| self.catalog.pipelines().is_empty()).map_or(Ok(()), Err)
    }

    /// Creates or replaces the pipeline `name` from `query`. Errors show lines of the query only.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute).
    pub async fn define(&self, name: &str, query: &str) -> Result<()> {
        let _executing = self.executing.lock().await;
        let pipeline = self.compile_query(name, query).await?;
        self.catalog.add_pipeline(name, pipeline);
        Ok(())
    }

    /// Removes a pipeline, if it exists. Its open feeds stay open.
    pub fn undefine(&self, name: &str) {
        self.catalog.remove_pipeline(name);
    }

    /// Compiles `query` as the pipeline `name`, without creating it.
    pub(crate) async fn compile_query(&self, name: &str, query: &str) -> Result<Pipeline> {
        let text = format!("CREATE PIPELINE \"{}\" AS\n{query}", name.replace('"', "\"\""));
        // The first line of the text is not part of the user's query.
        let placed = |error: &forebay_sql::Error| {
            let error = match error.place() {
                Some(place) => error.clone().with_place(Place { line: place.line.saturating_sub(1).max(1), ..place }),
                None => error.clone(),
            };
            let kind = if error.is_shortage() { ErrorKind::Exhausted } else { ErrorKind::Invalid };
            Error::new(kind, error.render("query", query).trim_end())
        };
        let mut statements = forebay_sql::parse(&text).map_err(|error| placed(&error))?;
        let (Some(Statement::CreatePipeline(definition)), true) = (statements.pop(), statements.is_empty()) else {
            return Err(Error::invalid("the text contains more than one query")
                .with_hint("run a script statement by statement"));
        };
        self.compile(&definition).await.map_err(|refusal| match refusal {
            Refusal::Placed(error) => placed(&error),
            Refusal::Whole(error) => error,
        })
    }

    async fn compile(&self, definition: &PipelineDefinition) -> Result<Pipeline, Refusal> {
        let tables = self.catalog.tables();
        let state = self.catalog.state();
        let pipeline = Pipeline::compile(definition, Audience::User, &tables, None, &self.base, &state).await?;
        // Refuses what must not be kept now, and not when the pipeline is opened.
        self.table_stages(&pipeline)?;
        Ok(pipeline)
    }

    /// Boxed, because the futures of statements are large, and because every crate above would check all of this one
    /// for `Send` again.
    fn statement(&self, statement: Statement) -> BoxFuture<'_, Result<Output, Failure>> {
        self.run_statement(statement).boxed()
    }

    async fn run_statement(&self, statement: Statement) -> Result<Output, Failure> {
        match statement {
            Statement::CreateTable(table) => self.create_table(table).await,
            Statement::DropTable { name, if_exists, place } => {
                self.drop_table(&name, if_exists).map_err(|error| Failure::At(place, error))
            }
            Statement::CreatePipeline(definition) => self.create_pipeline(definition).await,
            Statement::DropPipeline { name, if_exists, place } => match self.catalog.remove_pipeline(&name) {
                true => Ok(Output::Done(format!("dropped pipeline \"{name}\""))),
                false if if_exists => Ok(Output::Done(format!("there is no pipeline \"{name}\""))),
                false => Err(Failure::At(place, unknown("pipeline", &name, Vec::new()))),
            },
            Statement::ShowPipelines => Ok(outputs::pipelines(&self.catalog.pipelines())),
            Statement::ShowTables => Ok(outputs::tables(&self.catalog.tables())),
            Statement::DescribePipeline { name, place } => {
                let pipeline = self.pipeline(&name).map_err(|error| Failure::At(place, error))?;
                Ok(outputs::schema(&pipeline.schema()))
            }
            Statement::DescribeTable { name, place } => {
                let schema = self.catalog.table_schema(&name).map_err(|error| Failure::At(place, error))?;
                Ok(outputs::schema(&schema))
            }
            Statement::ExplainPipeline { name, place } => self
                .explain(&name, &FeedOptions::default())
                .await
                .map(|explanation| Output::Text(explanation.to_string()))
                .map_err(|error| Failure::At(place, error)),
            Statement::Materialize(definition) => self.materialize(definition).await,
            Statement::Query(definition) => {
                self.checked_query(&definition).await.map(|query| Output::Query(Box::new(query)))
            }
        }
    }

    /// Compiles a definition. The error shows its place.
    pub(super) async fn compiled(&self, definition: &PipelineDefinition) -> Result<Pipeline, Failure> {
        self.compile(definition).await.map_err(|refusal| Failure::of(refusal, definition.place))
    }

    async fn create_pipeline(&self, definition: PipelineDefinition) -> Result<Output, Failure> {
        let name = &definition.name;
        if self.catalog.has_pipeline(name) && !definition.or_replace {
            if definition.if_not_exists {
                return Ok(Output::Done(format!("pipeline \"{name}\" exists already")));
            }
            let error = Error::new(ErrorKind::Conflict, format!("pipeline \"{name}\" exists already"))
                .with_hint("write CREATE OR REPLACE PIPELINE, or drop it first");
            return Err(Failure::At(definition.name_place, error));
        }
        let pipeline = self.compiled(&definition).await?;
        self.catalog.add_pipeline(name, pipeline);
        let done = format!("created pipeline \"{name}\"");
        Ok(Output::CreatedPipeline { name: name.clone(), done })
    }

    fn drop_table(&self, name: &str, if_exists: bool) -> Result<Output> {
        match self.catalog.remove_table(name)? {
            true => Ok(Output::Done(format!("dropped table \"{name}\""))),
            false if if_exists => Ok(Output::Done(format!("there is no table \"{name}\""))),
            false => Err(self.catalog.unknown_table(name)),
        }
    }

    async fn create_table(&self, table: TableDefinition) -> Result<Output, Failure> {
        if self.catalog.has_table(&table.name) && !table.or_replace {
            if table.if_not_exists {
                return Ok(Output::Done(format!("table \"{}\" exists already", table.name)));
            }
            let error = Error::new(ErrorKind::Conflict, format!("table \"{}\" exists already", table.name))
                .with_hint("write CREATE OR REPLACE EXTERNAL TABLE, or drop it first");
            return Err(Failure::At(table.name_place, error));
        }
        let format = format_of(&table).map_err(|(place, error)| Failure::At(place, error))?;
        let path_columns = path_columns_of(&table).map_err(|(place, error)| Failure::At(place, error))?;
        let (location, schema) = (table.location.clone(), table.columns.clone());
        let path_column = path_column_of_options(&table.options);
        let spec = DatasetSpec { location, format, schema, path_columns, path_column };
        let dataset = self.open_dataset(&spec).await.map_err(|error| Failure::Unopened {
            table: table.name.clone(),
            place: table.location_place,
            error: misplaced(Error::from(error)),
        })?;
        let snapshot = Arc::clone(dataset.snapshot());
        self.catalog.add_table(&table.name, dataset).map_err(|error| Failure::At(table.location_place, error))?;
        let done =
            format!("created table \"{}\": {} files, {} rows", table.name, snapshot.files().len(), snapshot.rows());
        Ok(Output::Done(done))
    }
}

/// Why a statement failed.
pub(super) enum Failure {
    Refused(Refusal),
    At(Place, Error),
    /// The files of a table cannot be read.
    Unopened {
        table: String,
        place: Place,
        error: Error,
    },
}

impl Failure {
    /// A refusal of what begins at `start`.
    pub(super) fn of(refusal: Refusal, start: Place) -> Self {
        match refusal {
            Refusal::Whole(error) => Self::At(start, error),
            placed @ Refusal::Placed(_) => Self::Refused(placed),
        }
    }

    /// The table without which a pipeline cannot be planned.
    fn missing_table(&self) -> Option<&str> {
        match self {
            Self::Refused(Refusal::Placed(error)) => error.missing_table(),
            _ => None,
        }
    }
}

/// A text with the name by which errors refer to it.
pub(super) struct Script<'a> {
    pub(super) name: &'a str,
    pub(super) text: &'a str,
}

impl Script<'_> {
    pub(super) fn statements(&self) -> Result<Vec<Statement>> {
        forebay_sql::parse(self.text).map_err(|error| self.placed(ErrorKind::Invalid, &error))
    }

    fn placed(&self, kind: ErrorKind, error: &forebay_sql::Error) -> Error {
        let kind = if error.is_shortage() { ErrorKind::Exhausted } else { kind };
        Error::new(kind, error.render(self.name, self.text).trim_end())
    }

    /// The error of a statement, with its place in the text.
    pub(super) fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Refused(Refusal::Placed(error)) => self.placed(ErrorKind::Invalid, &error),
            Failure::Refused(Refusal::Whole(error)) => error,
            Failure::At(place, error) | Failure::Unopened { place, error, .. } => {
                let mut whole = forebay_sql::Error::new(error.message()).with_place(place);
                if let Some(hint) = error.hint() {
                    whole = whole.with_hint(hint);
                }
                self.placed(error.kind(), &whole)
            }
        }
    }
}

/// The error of MATERIALIZE in a script of a server, which would write whenever the server starts.
fn served_job() -> Error {
    Error::invalid("a script that is served cannot write files: MATERIALIZE")
        .with_hint("put the statement into a script of its own, and run it with `forebay sql`")
}

/// Adds a hint about relative paths if a location does not exist.
pub(crate) fn misplaced(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound if error.hint().is_none() => {
            error.with_hint("check the path; relative paths start at the script's folder, or at the session's base")
        }
        _ => error,
    }
}
