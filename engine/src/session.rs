//! A session: tables, pipelines, worker threads and memory limits; where SQL becomes feeds.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use forebay_sql::{Place, Statement, TableDefinition};
use forebay_storage::{Dataset, DatasetSpec, Format, Snapshot, Stores};
use parking_lot::{Mutex, RwLock};

use crate::compile::{Audience, FeedTable, HIDDEN};
use crate::error::{Error, ErrorKind, Result};
use crate::executor::Executor;
use crate::explain;
use crate::feed::{Feed, FeedOptions, FeedParts, FeedSettings, FeedSpec, OpenFeeds};
use crate::function::{Function, FunctionUdf};
use crate::pipeline::{Pipeline, Refusal};

/// Builds a [`Session`].
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    threads: usize,
    window_memory_bytes: u64,
    lookup_memory_bytes: u64,
    base: PathBuf,
    root: String,
}

impl SessionBuilder {
    /// Worker threads; all cores by default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Memory for the windows of one feed. A feed always holds the window that is being read, so a limit below the
    /// pipeline's `window_bytes` means no looking ahead.
    #[must_use]
    pub fn window_memory_bytes(mut self, bytes: u64) -> Self {
        self.window_memory_bytes = bytes;
        self
    }

    /// Memory for the tables that one feed's joins look rows up in, 1 GiB by default. A feed that needs more is refused.
    #[must_use]
    pub fn lookup_memory_bytes(mut self, bytes: u64) -> Self {
        self.lookup_memory_bytes = bytes;
        self
    }

    /// The folder that relative locations and paths are relative to; the current one by default.
    #[must_use]
    pub fn base(mut self, folder: impl Into<PathBuf>) -> Self {
        self.base = folder.into();
        self
    }

    /// URL or path of the folder for what Forebay writes: `.forebay` in the current folder by default.
    #[must_use]
    pub fn root(mut self, root: impl Into<String>) -> Self {
        self.root = root.into();
        self
    }

    /// Starts the worker threads.
    ///
    /// # Errors
    /// `Invalid` for no or absurdly many threads, `Internal` if the system starts no more threads.
    pub fn build(self) -> Result<Session> {
        if !(1..=THREADS_MAX).contains(&self.threads) {
            return Err(Error::invalid(format!(
                "\"threads\" must be between 1 and {THREADS_MAX}, got {}",
                self.threads
            )));
        }
        forebay_operators::pool::settle_allocator();
        let mut config = SessionConfig::new().with_target_partitions(1).with_information_schema(false);
        let parser = &mut config.options_mut().sql_parser;
        // Arrow's view types are young: many readers of Flight and IPC do not know them.
        parser.map_string_types_to_utf8view = false;
        parser.collect_spans = true;
        let mut builder = SessionStateBuilder::new().with_config(config).with_default_features();
        let operators = forebay_operators::scalar_udfs().into_iter().map(Arc::new);
        builder.scalar_functions().get_or_insert_default().extend(operators);
        // First, so that it sees array literals before DataFusion makes function calls of them.
        builder.expr_planners().get_or_insert_default().insert(0, forebay_sql::expr_planner());
        builder.relation_planners().get_or_insert_default().insert(0, forebay_sql::relation_planner());
        let state = builder.build();
        // Absolute from here on: the process may go elsewhere.
        let base = std::env::current_dir().map(|folder| folder.join(&self.base)).unwrap_or(self.base);
        Ok(Session {
            context: SessionContext::new_with_state(state),
            tables: RwLock::new(BTreeMap::new()),
            pipelines: RwLock::new(BTreeMap::new()),
            feeds: OpenFeeds::default(),
            specs: Mutex::default(),
            executing: tokio::sync::Mutex::new(()),
            unnamed: Mutex::default(),
            stores: Stores::new().with_base(&base),
            base,
            executor: Arc::new(Executor::new(self.threads)?),
            root: absolute(self.root)?,
            window_memory_bytes: self.window_memory_bytes,
            lookup_memory_bytes: self.lookup_memory_bytes,
        })
    }
}

/// More threads than any machine has cores are a slip of the keyboard, and would take minutes to start.
const THREADS_MAX: usize = 4096;

/// Compiled specs that are kept, for a worker that opens the feeds of a few jobs over and over.
const SPECS_KEPT: usize = 16;

/// Against the current folder, not the tables': it is not part of the data, and messages name it.
fn absolute(root: String) -> Result<String> {
    if root.contains("://") {
        return Ok(root);
    }
    let absolute = std::path::absolute(&root)
        .map_err(|error| Error::invalid(format!("\"{root}\" is not a folder to write to: {error}")))?;
    absolute.into_os_string().into_string().map_err(|_| Error::invalid(format!("the path of \"{root}\" is not UTF-8")))
}

/// Tables, pipelines and the threads that compute them.
pub struct Session {
    context: SessionContext,
    tables: RwLock<BTreeMap<String, Dataset>>,
    pipelines: RwLock<BTreeMap<String, Arc<Pipeline>>>,
    feeds: OpenFeeds,
    /// Specs that were opened, the latest last, with what they compiled to.
    specs: Mutex<Vec<(FeedSpec, Arc<Pipeline>)>>,
    /// One script at a time: a statement reads tables and names before it writes them.
    pub(crate) executing: tokio::sync::Mutex<()>,
    /// How many hold each table in memory that was given no name.
    pub(crate) unnamed: Mutex<BTreeMap<String, usize>>,
    pub(crate) stores: Stores,
    /// Where paths of files that operators are called with begin.
    base: PathBuf,
    executor: Arc<Executor>,
    root: String,
    window_memory_bytes: u64,
    lookup_memory_bytes: u64,
}

/// What a statement came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// It was done; what was.
    Done(String),
    /// A table, its header first.
    Rows(Vec<Vec<String>>),
    /// A text of several lines.
    Text(String),
}

impl Session {
    /// A builder with the defaults of a laptop.
    pub fn builder() -> SessionBuilder {
        SessionBuilder {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            window_memory_bytes: 128 << 20,
            lookup_memory_bytes: 1 << 30,
            base: PathBuf::new(),
            root: ".forebay".to_owned(),
        }
    }

    /// Runs the statements of `text`; `name` is what errors call it.
    ///
    /// # Errors
    /// Of the first statement that fails, with its place in the text; those before it stay done.
    pub async fn execute(&self, name: &str, text: &str) -> Result<Vec<Output>> {
        let placed = |kind, error: &forebay_sql::Error| Error::new(kind, error.render(name, text).trim_end());
        let _executing = self.executing.lock().await;
        let statements = forebay_sql::parse(text).map_err(|error| placed(ErrorKind::Invalid, &error))?;
        let mut outputs = Vec::new();
        for statement in statements {
            outputs.push(self.statement(statement).await.map_err(|failure| match failure {
                Failure::Refused(Refusal::Placed(error)) => placed(ErrorKind::Invalid, &error),
                Failure::Refused(Refusal::Whole(error)) => error,
                Failure::At(place, error) => {
                    let mut whole = forebay_sql::Error::new(error.message()).with_place(place);
                    if let Some(hint) = error.hint() {
                        whole = whole.with_hint(hint);
                    }
                    placed(error.kind(), &whole)
                }
            })?);
        }
        Ok(outputs)
    }

    /// Creates or replaces the pipeline `name` from `query`. Errors show the query's own lines.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub async fn define(&self, name: &str, query: &str) -> Result<()> {
        let _executing = self.executing.lock().await;
        let pipeline = self.compile_query(name, query).await?;
        let replaced = self.pipelines.write().insert(name.to_owned(), Arc::new(pipeline));
        // Not under the lock: it may be the last to hold many rows.
        drop(replaced);
        Ok(())
    }

    /// Forgets a pipeline, if there is one. Feeds of it that are open go on.
    pub fn undefine(&self, name: &str) {
        let forgotten = self.pipelines.write().remove(name);
        drop(forgotten);
    }

    /// Compiles `query` as what pipeline `name` would be.
    pub(crate) async fn compile_query(&self, name: &str, query: &str) -> Result<Pipeline> {
        let text = format!("CREATE PIPELINE \"{}\" AS\n{query}", name.replace('"', "\"\""));
        // The first line of the text is not the user's.
        let placed = |error: &forebay_sql::Error| {
            let error = match error.place() {
                Some(place) => error.clone().with_place(Place { line: place.line.saturating_sub(1).max(1), ..place }),
                None => error.clone(),
            };
            Error::new(ErrorKind::Invalid, error.render("query", query).trim_end())
        };
        let mut statements = forebay_sql::parse(&text).map_err(|error| placed(&error))?;
        let (Some(Statement::CreatePipeline(definition)), true) = (statements.pop(), statements.is_empty()) else {
            return Err(
                Error::invalid("the text is more than one query").with_hint("run a script statement by statement")
            );
        };
        let tables = self.tables.read().clone();
        match Pipeline::compile(&definition, Audience::User, &tables, &self.base, &self.context.state()).await {
            Err(Refusal::Placed(error)) => Err(placed(&error)),
            Err(Refusal::Whole(error)) => Err(error),
            Ok(pipeline) => Ok(pipeline),
        }
    }

    /// Adds a function of the program's own to what queries may call, or replaces one.
    ///
    /// # Errors
    /// `Conflict` for the name of an operator or a function of SQL.
    pub fn add_function(&self, function: Function) -> Result<()> {
        let taken = self.context.state().scalar_functions().get(&function.name).cloned();
        if taken.is_some_and(|taken| taken.inner().downcast_ref::<FunctionUdf>().is_none()) {
            let message = format!("there is a function \"{}\" already", function.name);
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("give yours another name"));
        }
        self.context.register_udf(FunctionUdf::of(function));
        Ok(())
    }

    pub(crate) fn add_table(&self, table: &str, dataset: Dataset) -> Result<()> {
        check_columns(&dataset)?;
        let provider = FeedTable::new(table, Arc::clone(dataset.schema()));
        // A replaced table leaves the pipelines made over the old one as they are: they hold their snapshot.
        self.context.deregister_table(name(table))?;
        self.context.register_table(name(table), Arc::new(provider))?;
        let replaced = self.tables.write().insert(table.to_owned(), dataset);
        drop(replaced);
        Ok(())
    }

    /// How long the threads that compute were busy, all together.
    pub fn compute_time(&self) -> Duration {
        self.executor.busy()
    }

    async fn statement(&self, statement: Statement) -> Result<Output, Failure> {
        match statement {
            Statement::CreateTable(table) => self.create_table(table).await,
            Statement::DropTable { name, if_exists, place } => {
                self.drop_table(&name, if_exists).map_err(|e| Failure::At(place, e))
            }
            Statement::CreatePipeline(definition) => {
                let name = definition.name.clone();
                if self.pipelines.read().contains_key(&name) && !definition.or_replace {
                    if definition.if_not_exists {
                        return Ok(Output::Done(format!("pipeline \"{name}\" exists already")));
                    }
                    let error = Error::new(ErrorKind::Conflict, format!("pipeline \"{name}\" exists already"))
                        .with_hint("write CREATE OR REPLACE PIPELINE, or drop it first");
                    return Err(Failure::At(definition.name_place, error));
                }
                let tables = self.tables.read().clone();
                let pipeline =
                    match Pipeline::compile(&definition, Audience::User, &tables, &self.base, &self.context.state())
                        .await
                    {
                        Err(Refusal::Whole(error)) => return Err(Failure::At(definition.place, error)),
                        compiled => compiled.map_err(Failure::Refused)?,
                    };
                self.pipelines.write().insert(name.clone(), Arc::new(pipeline));
                Ok(Output::Done(format!("created pipeline \"{name}\"")))
            }
            Statement::DropPipeline { name, if_exists, place } => match self.pipelines.write().remove(&name) {
                None if !if_exists => Err(Failure::At(place, unknown("pipeline", &name, Vec::new()))),
                Some(_) => Ok(Output::Done(format!("dropped pipeline \"{name}\""))),
                None => Ok(Output::Done(format!("there is no pipeline \"{name}\""))),
            },
            Statement::ShowPipelines => Ok(explain::pipelines(&self.pipelines.read())),
            Statement::ShowTables => Ok(explain::tables(&self.tables.read())),
            Statement::DescribePipeline { name, place } => {
                Ok(explain::schema(&self.pipeline(&name).map_err(|error| Failure::At(place, error))?.schema()))
            }
            Statement::DescribeTable { name, place } => match self.tables.read().get(&name) {
                Some(dataset) => Ok(explain::schema(dataset.schema())),
                None => Err(Failure::At(place, self.unknown_table(&name))),
            },
            Statement::ExplainPipeline { name, place } => self
                .explain(&name, &FeedOptions::default())
                .map(|explanation| Output::Text(explanation.to_string()))
                .map_err(|error| Failure::At(place, error)),
        }
    }

    async fn create_table(&self, table: TableDefinition) -> Result<Output, Failure> {
        if self.tables.read().contains_key(&table.name) && !table.or_replace {
            if table.if_not_exists {
                return Ok(Output::Done(format!("table \"{}\" exists already", table.name)));
            }
            let error = Error::new(ErrorKind::Conflict, format!("table \"{}\" exists already", table.name))
                .with_hint("write CREATE OR REPLACE EXTERNAL TABLE, or drop it first");
            return Err(Failure::At(table.name_place, error));
        }
        let format = format(&table)?;
        let spec = DatasetSpec { location: table.location.clone(), format, schema: table.columns.clone() };
        let dataset = Dataset::open(&self.stores, &spec)
            .await
            .map_err(|error| Failure::At(table.location_place, misplaced(Error::from(error))))?;
        let snapshot = Arc::clone(dataset.snapshot());
        self.add_table(&table.name, dataset).map_err(|error| Failure::At(table.location_place, error))?;
        let done =
            format!("created table \"{}\": {} files, {} rows", table.name, snapshot.files().len(), snapshot.rows());
        Ok(Output::Done(done))
    }

    pub(crate) fn drop_table(&self, table: &str, if_exists: bool) -> Result<Output> {
        let dropped = self.tables.write().remove(table);
        self.context.deregister_table(name(table))?;
        match dropped {
            None if !if_exists => Err(self.unknown_table(table)),
            Some(_) => Ok(Output::Done(format!("dropped table \"{table}\""))),
            None => Ok(Output::Done(format!("there is no table \"{table}\""))),
        }
    }

    fn unknown_table(&self, name: &str) -> Error {
        unknown("table", name, self.tables.read().keys().cloned().collect())
    }

    pub(crate) fn executor(&self) -> Arc<Executor> {
        Arc::clone(&self.executor)
    }

    /// URL or absolute path of the folder for what Forebay writes.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The names and columns of all tables.
    pub fn tables(&self) -> Vec<(String, SchemaRef)> {
        self.tables.read().iter().map(|(name, dataset)| (name.clone(), Arc::clone(dataset.schema()))).collect()
    }

    /// The names of all pipelines.
    pub fn pipelines(&self) -> Vec<String> {
        self.pipelines.read().keys().cloned().collect()
    }

    /// The pipeline `name`.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name.
    pub fn pipeline(&self, name: &str) -> Result<Arc<Pipeline>> {
        let pipelines = self.pipelines.read();
        let found = pipelines.get(name).map(Arc::clone);
        found.ok_or_else(|| unknown("pipeline", name, pipelines.keys().cloned().collect()))
    }

    /// Opens pipeline `name` as a feed.
    ///
    /// # Errors
    /// `NotFound` for an unknown pipeline, `Invalid` for options that make no sense or a dataset without rows.
    pub fn open(&self, name: &str, options: &FeedOptions) -> Result<Feed> {
        self.open_pipeline(self.pipeline(name)?, options)
    }

    /// As [`open`](Self::open), of only some columns of the samples, in this order; what the others need is not computed. It
    /// is the same feed, with the same offsets and tokens, but a row is bad only where these columns fail.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and `Invalid` for columns that there are not.
    pub fn open_columns(&self, name: &str, options: &FeedOptions, columns: &[String]) -> Result<Feed> {
        let pipeline = self.pipeline(name)?;
        let settings = options.resolve(&pipeline.feed_options)?;
        self.open_feed(pipeline, settings, &self.root, Some(columns))
    }

    pub(crate) fn open_pipeline(&self, pipeline: Arc<Pipeline>, options: &FeedOptions) -> Result<Feed> {
        let settings = options.resolve(&pipeline.feed_options)?;
        self.open_feed(pipeline, settings, &self.root, None)
    }

    fn open_feed(
        &self,
        pipeline: Arc<Pipeline>,
        settings: FeedSettings,
        root: &str,
        columns: Option<&[String]>,
    ) -> Result<Feed> {
        Feed::open(FeedParts {
            pipeline,
            settings,
            columns,
            context: &self.context,
            executor: Arc::clone(&self.executor),
            stores: self.stores.clone(),
            root,
            memory_limit_bytes: self.window_memory_bytes,
            lookup_bytes_max: self.lookup_memory_bytes,
            open: &self.feeds,
        })
    }

    /// Opens the feed that [`Feed::spec`] describes, of this session or of another process, to send its samples. Creates no
    /// table and no pipeline, looks at no file, and is cheap where the spec was opened before; equal feeds share their windows.
    /// What makes samples larger at the end is left to whoever receives them: [`finish`](crate::finish).
    ///
    /// # Errors
    /// `Conflict` if it would not be the same feed here, saying what differs; `Invalid` for what no feed's spec holds.
    pub async fn open_spec(&self, spec: &FeedSpec) -> Result<Feed> {
        let known = self.specs.lock().iter().find(|(known, _)| known == spec).map(|(_, pipeline)| Arc::clone(pipeline));
        let pipeline = match known {
            Some(pipeline) => pipeline,
            None => Arc::new(self.compile_spec(spec).await?),
        };
        let feed = self.open_feed(Arc::clone(&pipeline), spec.settings.clone(), &spec.root, None)?;
        let mut specs = self.specs.lock();
        specs.retain(|(known, _)| known != spec);
        specs.push((spec.clone(), pipeline));
        if specs.len() > SPECS_KEPT {
            specs.remove(0);
        }
        Ok(feed)
    }

    /// Compiles a spec's query in a catalog of its own, so that specs may name their tables as they like.
    async fn compile_spec(&self, spec: &FeedSpec) -> Result<Pipeline> {
        spec.check()?;
        let mut tables = BTreeMap::new();
        for table in spec.tables() {
            let dataset = match self.held(table.snapshot) {
                Some(dataset) => dataset,
                None => spec.open_dataset(&table, &self.stores)?,
            };
            check_columns(&dataset)?;
            tables.insert(table.name.to_owned(), dataset);
        }
        let definition = spec.definition()?;
        let state = self.context.state();
        let config = state.config().clone();
        let state = SessionStateBuilder::new_from_existing(state)
            .with_config(config)
            .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
            .build();
        let context = SessionContext::new_with_state(state);
        for (table, dataset) in &tables {
            let provider = FeedTable::new(table, Arc::clone(dataset.schema()));
            context.register_table(name(table), Arc::new(provider))?;
        }
        let compiled =
            Pipeline::compile(&definition, Audience::Trainer, &tables, spec.base.as_ref(), &context.state()).await;
        let pipeline = compiled.map_err(|refusal| spec.uncompiled(refusal))?;
        spec.check_opened(&pipeline)?;
        Ok(pipeline)
    }

    /// The rows of a spec's table, where they are in this process's memory.
    fn held(&self, snapshot: &Snapshot) -> Option<Dataset> {
        let is_it = |dataset: &&Dataset| dataset.snapshot().id() == snapshot.id();
        let of_tables = self.tables.read().values().find(is_it).cloned();
        // A table may have been replaced since.
        let pipelines = self.pipelines.read();
        let found =
            of_tables.or_else(|| pipelines.values().flat_map(|pipeline| pipeline.datasets()).find(is_it).cloned());
        found.filter(|dataset| dataset.spec().format == Format::Memory)
    }

    /// How pipeline `name` will run.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn explain(&self, name: &str, options: &FeedOptions) -> Result<explain::Explanation> {
        let (pipeline, feed) = (self.pipeline(name)?, self.open(name, options)?);
        Ok(explain::Explanation::new(&pipeline, &feed))
    }
}

/// Why a statement failed.
enum Failure {
    Refused(Refusal),
    At(Place, Error),
}

/// Says how a location is read, where nothing is found there.
pub(crate) fn misplaced(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => {
            error.with_hint("check the path; relative ones begin at the script's folder, or the session's base")
        }
        _ => error,
    }
}

/// Names are used as written, never folded or split at dots by DataFusion.
fn name(name: &str) -> datafusion::common::TableReference {
    datafusion::common::TableReference::bare(name.to_owned())
}

fn check_columns(dataset: &Dataset) -> Result<()> {
    match HIDDEN.into_iter().find(|name| dataset.schema().index_of(name).is_ok()) {
        Some(taken) => Err(Error::invalid(format!("column \"{taken}\" has a name that Forebay keeps for itself"))),
        None => Ok(()),
    }
}

fn unknown(what: &str, name: &str, known: Vec<String>) -> Error {
    let error = Error::new(ErrorKind::NotFound, format!("there is no {what} \"{name}\""));
    match forebay_sql::nearest(name, known.iter().map(String::as_str)) {
        Some(nearest) => error.with_hint(format!("did you mean \"{nearest}\"?")),
        None if known.is_empty() => error.with_hint(format!("no {what} has been created")),
        None => error.with_hint(format!("{what}s: {}", known.join(", "))),
    }
}

fn format(table: &TableDefinition) -> Result<Format, Failure> {
    let mut format = match table.file_type.as_str() {
        "PARQUET" => Format::Parquet,
        "CSV" if table.location.ends_with(".tsv") => Format::Csv { has_header: true, delimiter: b'\t' },
        "CSV" => Format::Csv { has_header: true, delimiter: b',' },
        "JSON" | "JSONL" | "NDJSON" => Format::Jsonl,
        "MEDIA" => Format::Media,
        other => {
            let error = Error::invalid(format!("unknown file type \"{other}\""))
                .with_hint("STORED AS PARQUET, CSV, JSONL, or MEDIA for a folder of pictures");
            return Err(Failure::At(table.file_type_place, error));
        }
    };
    for (key, value) in &table.options {
        let refuse = |message: String| Failure::At(table.place, Error::invalid(message));
        match (&mut format, key.strip_prefix("format.").unwrap_or(key)) {
            (Format::Csv { has_header, .. }, "has_header") => {
                *has_header = value
                    .parse()
                    .map_err(|_| refuse(format!("\"has_header\" must be true or false, got '{value}'")))?;
            }
            (Format::Csv { delimiter, .. }, "delimiter") => match value.as_bytes() {
                [byte] if byte.is_ascii() => *delimiter = *byte,
                _ => return Err(refuse(format!("\"delimiter\" must be one ASCII character, got '{value}'"))),
            },
            (format, _) => {
                let hint = match format {
                    Format::Csv { .. } => "options of csv: format.has_header and format.delimiter",
                    _ => "leave OPTIONS out",
                };
                let message = format!("a {} table has no option \"{key}\"", table.file_type.to_lowercase());
                return Err(Failure::At(table.place, Error::invalid(message).with_hint(hint)));
            }
        }
    }
    Ok(format)
}
