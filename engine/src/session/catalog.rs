//! The tables and pipelines of a session, by name.
//!
//! Each table exists twice: here with its data, and in DataFusion with its columns, for planning.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::MemoryCatalogProviderList;
use datafusion::common::TableReference;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionContext;
use forebay_storage::Dataset;
use parking_lot::{Mutex, RwLock};

use crate::compile::FeedTable;
use crate::error::{Error, ErrorKind, Result};
use crate::feed::TableColumns;
use crate::function::{Function, FunctionUdf};
use crate::pipeline::Pipeline;
use crate::sealed::Sealed;

/// Tables of a script that could not be opened, and the pipelines that read them: see
/// [`Session::execute_what_opens`](super::Session::execute_what_opens).
#[derive(Clone, Debug, Default)]
pub struct Broken {
    /// The error of each table, by name.
    pub tables: BTreeMap<String, Error>,
    /// The error of the table that each pipeline reads, by the pipeline's name.
    pub pipelines: BTreeMap<String, Error>,
}

/// Tables and pipelines by name.
pub(crate) struct Catalog {
    context: Sealed<SessionContext>,
    tables: RwLock<BTreeMap<String, Dataset>>,
    pipelines: RwLock<BTreeMap<String, Arc<Pipeline>>>,
    broken: RwLock<Broken>,
    /// Earlier pipelines, with their names. Their feeds keep them alive.
    replaced: Mutex<Vec<(String, Weak<Pipeline>)>>,
    /// The number of holders of each unnamed table in memory.
    unnamed: Mutex<BTreeMap<String, usize>>,
}

impl Catalog {
    pub(super) fn new(context: SessionContext) -> Self {
        let (tables, pipelines, broken) = (RwLock::default(), RwLock::default(), RwLock::default());
        Self {
            context: context.into(),
            tables,
            pipelines,
            broken,
            replaced: Mutex::default(),
            unnamed: Mutex::default(),
        }
    }

    /// DataFusion, which plans over these tables.
    pub(super) fn context(&self) -> &SessionContext {
        &self.context
    }

    pub(super) fn state(&self) -> SessionState {
        self.context.state()
    }

    /// DataFusion with this catalog's functions, and with `tables` and those of these `columns` as its only tables.
    pub(super) fn state_over(
        &self,
        tables: &BTreeMap<String, Dataset>,
        columns: &[TableColumns],
    ) -> Result<SessionState> {
        let state = self.context.state();
        let config = state.config().clone();
        let state = SessionStateBuilder::new_from_existing(state)
            .with_config(config)
            .with_catalog_list(Arc::new(MemoryCatalogProviderList::new()))
            .build();
        let context = SessionContext::new_with_state(state);
        let columns = columns.iter().map(|TableColumns { table, schema }| (table, schema));
        for (table, schema) in tables.iter().map(|(table, dataset)| (table, dataset.schema())).chain(columns) {
            let provider = FeedTable::new(table, Arc::clone(schema));
            context.register_table(reference(table), Arc::new(provider))?;
        }
        Ok(context.state())
    }

    /// Adds or replaces a function of the embedding program.
    pub(super) fn add_function(&self, function: Function) -> Result<()> {
        let taken = self.context.state().scalar_functions().get(&function.name).cloned();
        let is_taken = taken.is_some_and(|taken| taken.inner().downcast_ref::<FunctionUdf>().is_none());
        if is_taken || forebay_operators::descriptor(&function.name).is_some() {
            let message = format!("a function \"{}\" already exists", function.name);
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("choose another name"));
        }
        self.context.register_udf(FunctionUdf::of(function));
        Ok(())
    }

    /// Adds or replaces the table `name`.
    pub(crate) fn add_table(&self, name: &str, dataset: Dataset) -> Result<()> {
        check_columns(&dataset)?;
        let provider = FeedTable::new(name, Arc::clone(dataset.schema()));
        // Pipelines over a replaced table keep its snapshot.
        self.context.deregister_table(reference(name))?;
        self.context.register_table(reference(name), Arc::new(provider))?;
        self.broken.write().tables.remove(name);
        let replaced = self.tables.write().insert(name.to_owned(), dataset);
        // Drop after releasing the lock, because this may free many rows.
        drop(replaced);
        Ok(())
    }

    /// Adds the table `name` with one holder, until [`release`](Self::release).
    pub(crate) fn add_unnamed(&self, name: &str, dataset: Dataset) -> Result<()> {
        // Keep the lock until the table exists, because another thread may release it meanwhile.
        let mut unnamed = self.unnamed.lock();
        self.add_table(name, dataset)?;
        *unnamed.entry(name.to_owned()).or_insert(0) += 1;
        Ok(())
    }

    /// Removes an unnamed table when its last holder releases it.
    pub(crate) fn release(&self, name: &str) {
        let mut unnamed = self.unnamed.lock();
        let Some(holders) = unnamed.get_mut(name) else { return };
        *holders -= 1;
        if *holders == 0 {
            unnamed.remove(name);
            // A statement may have dropped it already.
            let _ = self.remove_table(name);
        }
    }

    /// Removes the table `name`. Returns whether it existed.
    pub(super) fn remove_table(&self, name: &str) -> Result<bool> {
        let removed = self.tables.write().remove(name);
        let broken = self.broken.write().tables.remove(name);
        self.context.deregister_table(reference(name))?;
        Ok(removed.is_some() || broken.is_some())
    }

    pub(super) fn has_table(&self, name: &str) -> bool {
        self.tables.read().contains_key(name)
    }

    /// A snapshot of all tables.
    pub(super) fn tables(&self) -> BTreeMap<String, Dataset> {
        self.tables.read().clone()
    }

    /// The columns of the table `name`.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name.
    pub(super) fn table_schema(&self, name: &str) -> Result<SchemaRef> {
        let found = self.tables.read().get(name).map(|dataset| Arc::clone(dataset.schema()));
        found.ok_or_else(|| self.unknown_table(name))
    }

    /// What could not be opened.
    pub(super) fn broken(&self) -> Broken {
        self.broken.read().clone()
    }

    /// Records that the table `name` cannot be opened. Pipelines over a table that it would replace keep that one.
    pub(super) fn break_table(&self, name: &str, error: Error) -> Result<()> {
        self.remove_table(name)?;
        self.broken.write().tables.insert(name.to_owned(), error);
        Ok(())
    }

    /// Records that the pipeline `name` cannot be created without `table`, if that table cannot be opened. Returns
    /// whether this is so.
    pub(super) fn break_pipeline(&self, name: &str, table: &str) -> bool {
        let mut broken = self.broken.write();
        let Some(error) = broken.tables.get(table).cloned() else { return false };
        broken.pipelines.insert(name.to_owned(), error);
        self.pipelines.write().remove(name);
        true
    }

    pub(super) fn unknown_table(&self, name: &str) -> Error {
        if let Some(error) = self.broken.read().tables.get(name) {
            return error.clone();
        }
        unknown("table", name, self.tables.read().keys().cloned().collect())
    }

    /// Adds or replaces the pipeline `name`.
    pub(super) fn add_pipeline(&self, name: &str, pipeline: Pipeline) {
        self.broken.write().pipelines.remove(name);
        let replaced = self.pipelines.write().insert(name.to_owned(), Arc::new(pipeline));
        // Drop after releasing the lock, because this may free many rows.
        drop(replaced);
    }

    /// Replaces `pipeline` by the same one with the results of its stages, unless it was replaced meanwhile.
    pub(super) fn set_ready(&self, pipeline: &Arc<Pipeline>, ready: Pipeline) {
        let mut pipelines = self.pipelines.write();
        if let Some(now) = pipelines.get_mut(pipeline.name()).filter(|now| Arc::ptr_eq(now, pipeline)) {
            *now = Arc::new(ready);
        }
    }

    /// Removes the pipeline `name`. Returns whether it existed.
    pub(super) fn remove_pipeline(&self, name: &str) -> bool {
        let broken = self.broken.write().pipelines.remove(name);
        let removed = self.pipelines.write().remove(name);
        removed.is_some() || broken.is_some()
    }

    pub(super) fn has_pipeline(&self, name: &str) -> bool {
        self.pipelines.read().contains_key(name)
    }

    /// A snapshot of all pipelines.
    pub(super) fn pipelines(&self) -> BTreeMap<String, Arc<Pipeline>> {
        self.pipelines.read().clone()
    }

    /// The pipeline `name`.
    ///
    /// # Errors
    /// `NotFound`, with the nearest name, and the error of a table that could not be opened.
    pub(super) fn pipeline(&self, name: &str) -> Result<Arc<Pipeline>> {
        if let Some(error) = self.broken.read().pipelines.get(name) {
            return Err(error.clone());
        }
        let pipelines = self.pipelines.read();
        let found = pipelines.get(name).map(Arc::clone);
        found.ok_or_else(|| unknown("pipeline", name, pipelines.keys().cloned().collect()))
    }

    /// Has the tables and pipelines of `others` from now on, and no other ones.
    pub(super) fn take_over(&self, others: &[&Self]) -> Result<()> {
        let tables: BTreeMap<_, _> = others.iter().flat_map(|other| other.tables()).collect();
        for gone in self.tables().into_keys().filter(|name| !tables.contains_key(name)) {
            self.remove_table(&gone)?;
        }
        for (name, dataset) in tables {
            self.add_table(&name, dataset)?;
        }
        let pipelines: BTreeMap<_, _> = others.iter().flat_map(|other| other.pipelines()).collect();
        let broken = others.iter().map(|other| other.broken()).fold(Broken::default(), |mut all, broken| {
            all.tables.extend(broken.tables);
            all.pipelines.extend(broken.pipelines);
            all
        });
        *self.broken.write() = broken;
        let earlier = std::mem::replace(&mut *self.pipelines.write(), pipelines);
        let now = self.pipelines();
        let is_replaced =
            |(name, earlier): &(String, Arc<Pipeline>)| now.get(name).is_none_or(|now| !Arc::ptr_eq(now, earlier));
        let mut replaced = self.replaced.lock();
        replaced.retain(|(_, pipeline)| pipeline.strong_count() > 0);
        let gone = earlier.into_iter().filter(is_replaced);
        replaced.extend(gone.map(|(name, pipeline)| (name, Arc::downgrade(&pipeline))));
        Ok(())
    }

    /// The earlier pipelines of this name whose feeds are open, the latest first.
    pub(super) fn replaced(&self, name: &str) -> Vec<Arc<Pipeline>> {
        let replaced = self.replaced.lock();
        let of_name = replaced.iter().rev().filter(|(replaced, _)| replaced == name);
        of_name.filter_map(|(_, pipeline)| pipeline.upgrade()).collect()
    }

    /// A dataset of a table or pipeline that satisfies `is_it`. Pipelines count because their table may have been
    /// replaced.
    pub(super) fn find_dataset(&self, is_it: impl Fn(&Dataset) -> bool) -> Option<Dataset> {
        let of_tables = self.tables.read().values().find(|dataset| is_it(dataset)).cloned();
        let pipelines = self.pipelines.read();
        let mut of_pipelines = pipelines.values().flat_map(|pipeline| pipeline.datasets());
        of_tables.or_else(|| of_pipelines.find(|dataset| is_it(dataset)).cloned())
    }
}

/// The beginning of the names of columns that Forebay adds.
const RESERVED: &str = "__forebay_";

/// Refuses columns with reserved names.
pub(super) fn check_columns(dataset: &Dataset) -> Result<()> {
    match dataset.schema().fields().iter().map(|field| field.name()).find(|name| name.starts_with(RESERVED)) {
        Some(taken) => Err(Error::invalid(format!("column \"{taken}\" has a name that is reserved by Forebay"))),
        None => Ok(()),
    }
}

/// The error for an unknown table or pipeline `name`, with the nearest name as a hint.
pub(super) fn unknown(what: &str, name: &str, known: Vec<String>) -> Error {
    let error = Error::new(ErrorKind::NotFound, format!("there is no {what} \"{name}\""));
    match forebay_diagnostics::nearest(name, known.iter().map(String::as_str)) {
        Some(nearest) => error.with_hint(format!("did you mean \"{nearest}\"?")),
        None if known.is_empty() => error.with_hint(format!("no {what} has been created")),
        None => error.with_hint(format!("{what}s: {}", known.join(", "))),
    }
}

/// Names are used as written: DataFusion must neither fold them nor split them at dots.
pub(super) fn reference(name: &str) -> TableReference {
    TableReference::bare(name.to_owned())
}
