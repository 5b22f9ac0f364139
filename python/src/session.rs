//! A session and its feeds, in the trainer's own process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_engine::{
    FeedOptions, JobOptions, JobProgress, Materialized, Output, ReadOptions, SessionOptions, SourceRow, type_name,
};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use serde::de::DeserializeOwned;

use crate::arrow_capsule::{import, schema_capsule};
use crate::error::{OrRaise, invalid};
use crate::function;
use crate::query::Query;
use crate::runtime::{OfProcess, Runtime};
use crate::stream::{Source, Stream};

/// Tables, pipelines, and the threads that compute them.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Session {
    pub(crate) session: OfProcess<Arc<forebay_engine::Session>>,
    pub(crate) runtime: Runtime,
}

impl Session {
    fn query_of(&self, query: forebay_engine::Query) -> Query {
        Query { query: OfProcess::new(query), runtime: self.runtime.clone() }
    }
}

#[pymethods]
impl Session {
    /// Starts a session with the session options given as JSON.
    #[new]
    fn new(py: Python<'_>, options: &str) -> PyResult<Self> {
        let builder = forebay_engine::Session::builder().options(json::<SessionOptions>(py, options)?).yields(true);
        let session = OfProcess::new(Arc::new(builder.build().or_raise(py)?));
        Ok(Self { session, runtime: Runtime::new().or_raise(py)? })
    }

    /// Runs the statements of `text`, which errors call `name`. Returns each statement's result: a text, or the rows of
    /// a table.
    fn execute<'py>(&self, py: Python<'py>, name: &str, text: &str) -> PyResult<Bound<'py, PyList>> {
        let outputs = self.runtime.wait(py, self.session.execute(name, text))?.or_raise(py)?;
        let list = PyList::empty(py);
        for output in outputs {
            match output {
                Output::Done(text) | Output::CreatedPipeline { done: text, .. } | Output::Text(text) => {
                    list.append(text)?
                }
                Output::Rows(rows) => list.append(rows)?,
                // Its rows are those of `query`.
                Output::Query(query) => list.append(query.text())?,
            }
        }
        Ok(list)
    }

    /// Runs the statements of `text`, which errors call `name`. Returns the last of their pipelines and queries: the
    /// name of a pipeline that they created, or a query.
    fn run_script(&self, py: Python<'_>, name: &str, text: &str) -> PyResult<(Option<String>, Option<Query>)> {
        let outputs = self.runtime.wait(py, self.session.execute(name, text))?.or_raise(py)?;
        let last = outputs.into_iter().rev().find_map(|output| match output {
            Output::CreatedPipeline { name, .. } => Some((Some(name), None)),
            Output::Query(query) => Some((None, Some(self.query_of(*query)))),
            _ => None,
        });
        Ok(last.unwrap_or_default())
    }

    /// Creates or replaces the pipeline `name` from a query. Errors show the query's own lines.
    fn define(&self, py: Python<'_>, name: &str, query: &str) -> PyResult<()> {
        self.runtime.wait(py, self.session.define(name, query))?.or_raise(py)
    }

    /// Creates or replaces a table of rows in memory: any object with `__arrow_c_stream__` or `__arrow_c_array__`.
    /// Returns its name; without a given name, the content determines it.
    #[pyo3(signature = (name, data))]
    fn register(&self, py: Python<'_>, name: Option<&str>, data: &Bound<'_, PyAny>) -> PyResult<String> {
        let (schema, batches) = import(data)?;
        self.runtime.wait(py, self.session.register(name, schema, batches))?.or_raise(py)
    }

    /// Creates or replaces a table of the files at `location`. Without a format, the files' extensions determine it.
    /// `options` are names and values as in SQL.
    #[pyo3(signature = (name, location, format, options))]
    fn add_files(
        &self,
        py: Python<'_>,
        name: &str,
        location: &str,
        format: Option<&str>,
        options: Vec<(String, String)>,
    ) -> PyResult<()> {
        self.runtime.wait(py, self.session.add_files(name, location, format, &options))?.or_raise(py)
    }

    /// Creates or replaces a table of the files at all of these locations.
    #[pyo3(signature = (name, locations, format, options))]
    fn add_all_files(
        &self,
        py: Python<'_>,
        name: &str,
        locations: Vec<String>,
        format: Option<&str>,
        options: Vec<(String, String)>,
    ) -> PyResult<()> {
        self.runtime.wait(py, self.session.add_all_files(name, &locations, format, &options))?.or_raise(py)
    }

    /// Releases a table that was registered without a name; the last release frees its rows. It never waits, and does
    /// nothing in a forked child, because Python's garbage collector calls it.
    fn release(&self, py: Python<'_>, name: &str) {
        if !self.session.is_forked() {
            py.detach(|| self.session.release(name));
        }
    }

    /// Adds a `forebay.Udf`, so that queries can call it.
    fn add_function(&self, py: Python<'_>, udf: &Bound<'_, PyAny>) -> PyResult<()> {
        self.session.add_function(function::read(udf)?).or_raise(py)
    }

    /// Removes a pipeline. Its open feeds continue.
    fn undefine(&self, py: Python<'_>, name: &str) {
        if !self.session.is_forked() {
            py.detach(|| self.session.undefine(name));
        }
    }

    fn pipelines(&self) -> Vec<String> {
        self.session.pipelines()
    }

    /// Returns the pipeline's name as it was created, or an error if there is none.
    fn pipeline(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        Ok(self.session.pipeline(name).or_raise(py)?.name().to_owned())
    }

    /// Describes how a pipeline will run, with feed options as JSON.
    fn explain(&self, py: Python<'_>, name: &str, options: &str) -> PyResult<String> {
        let options = json::<FeedOptions>(py, options)?;
        Ok(self.runtime.wait(py, self.session.explain(name, &options))?.or_raise(py)?.to_string())
    }

    /// Returns the samples' columns: name, type and whether they may be null.
    fn columns(&self, py: Python<'_>, name: &str) -> PyResult<Vec<(String, String, bool)>> {
        Ok(columns(&self.session.pipeline(name).or_raise(py)?.schema()))
    }

    /// Returns the samples' schema as an Arrow capsule.
    fn schema<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.session.pipeline(name).or_raise(py)?.schema())
    }

    /// Returns whether a query can be run only over all rows of its tables, and not as a pipeline.
    fn needs_all_rows(&self, py: Python<'_>, query: &str) -> PyResult<bool> {
        self.session.needs_all_rows(query).or_raise(py)
    }

    /// Checks a query over whole tables.
    fn query(&self, py: Python<'_>, query: &str) -> PyResult<Query> {
        Ok(self.query_of(self.runtime.wait(py, self.session.query(query))?.or_raise(py)?))
    }

    /// Returns the first processed rows as a table and as HTML, their number, and the number of bad rows left out.
    fn preview(&self, py: Python<'_>, name: &str, options: &str, rows: u64) -> PyResult<(String, String, usize, u64)> {
        let options = json::<FeedOptions>(py, options)?;
        let preview = self.runtime.wait(py, self.session.preview(name, &options, rows))?.or_raise(py)?;
        let table = aligned(&preview.table().or_raise(py)?);
        Ok((table, preview.html().or_raise(py)?, preview.num_rows(), preview.bad_rows()))
    }

    /// Writes the samples of one epoch to files in the folder or URL `to`, with feed options and job options as JSON.
    /// Returns the result as JSON. Calls `show` with complete files, all files, samples and bytes.
    fn materialize(
        &self,
        py: Python<'_>,
        name: &str,
        feed: &str,
        to: &str,
        job: &str,
        show: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let (feed, options) = (json::<FeedOptions>(py, feed)?, json::<JobOptions>(py, job)?);
        let (progress, all) = (JobProgress::default(), AtomicU32::new(0));
        let written = async {
            let job = self.session.job(name, &feed, to, &options).await?;
            all.store(job.files(), Ordering::Relaxed);
            job.run(&progress).await
        };
        let call = |py: Python<'_>, numbers: (u64, u64, u64, u64)| {
            show.as_ref().map_or(Ok(()), |show| show.call1(py, numbers).map(drop))
        };
        let call_newest = |py: Python<'_>| {
            let all = all.load(Ordering::Relaxed).into();
            call(py, (progress.files(), all, progress.rows(), progress.bytes()))
        };
        let done = self.runtime.wait_showing(py, written, call_newest)?.or_raise(py)?;
        let files = done.files().len() as u64;
        call(py, (files, files, done.rows(), done.bytes()))?;
        Ok(materialized(&done))
    }

    /// Writes the samples to files that the session keeps, unless it has them. Returns the result as JSON.
    fn cache(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        Ok(materialized(&self.runtime.wait(py, self.session.cached(name))?.or_raise(py)?))
    }

    /// Opens a pipeline as a feed, with feed options as JSON, and with all columns or only the given ones.
    #[pyo3(signature = (name, options, columns = None))]
    fn open(&self, py: Python<'_>, name: &str, options: &str, columns: Option<Vec<String>>) -> PyResult<Feed> {
        self.runtime.check_process(py)?;
        let options = json::<FeedOptions>(py, options)?;
        self.runtime.wait(py, self.session.prepare(name))?.or_raise(py)?;
        let open = || match &columns {
            Some(columns) => self.session.open_columns(name, &options, columns),
            None => self.session.open(name, &options),
        };
        let feed = OfProcess::new(py.detach(open).or_raise(py)?);
        Ok(Feed { feed, runtime: self.runtime.clone() })
    }

    /// URL or absolute path of the folder that Forebay writes to.
    #[getter]
    fn root(&self) -> &str {
        self.session.root()
    }

    /// Returns the seconds that the compute threads were busy, summed over threads.
    fn compute_seconds(&self) -> f64 {
        self.session.compute_time().as_secs_f64()
    }
}

/// A pipeline opened for training.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Feed {
    feed: OfProcess<forebay_engine::Feed>,
    runtime: Runtime,
}

#[pymethods]
impl Feed {
    #[getter]
    fn id(&self) -> &str {
        self.feed.id()
    }

    #[getter]
    fn columns(&self) -> Vec<(String, String, bool)> {
        columns(&self.feed.schema())
    }

    #[getter]
    fn samples_per_epoch(&self) -> Option<u64> {
        self.feed.samples_per_epoch()
    }

    #[getter]
    fn has_length_buckets(&self) -> bool {
        self.feed.settings().buckets.is_some()
    }

    /// The feed's identity, as JSON. Errors compare the identities of two feeds.
    #[getter]
    fn identity(&self) -> String {
        self.feed.identity().to_string()
    }

    /// Checks read options, given as JSON. Returns batch size, epochs, whether incomplete steps are dropped, and the
    /// number of this rank's samples if it is known.
    fn resolve(&self, py: Python<'_>, options: &str) -> PyResult<(u64, u64, bool, Option<u64>)> {
        let options = json::<ReadOptions>(py, options)?;
        let (settings, _) = self.feed.resolve(&options).or_raise(py)?;
        let samples = self.feed.expected_samples(&options).or_raise(py)?;
        Ok((settings.batch_size, settings.epochs, settings.drop_last, samples))
    }

    /// Calls whose results must not be stored.
    #[getter]
    fn uncacheable_calls(&self) -> Vec<String> {
        self.feed.uncacheable_calls()
    }

    /// Returns source file and row of each sample of the rank's batch of a step.
    fn trace(&self, py: Python<'_>, options: &str, epoch: u64, step: u64) -> PyResult<Vec<(String, u64)>> {
        let options = json::<ReadOptions>(py, options)?;
        let rows = self.runtime.wait(py, self.feed.trace(&options, epoch, step))?.or_raise(py)?;
        Ok(rows.into_iter().map(place).collect())
    }

    /// Returns source file and row of each sample of an epoch, for `count` offsets starting at `first`.
    fn trace_offsets(&self, py: Python<'_>, epoch: u64, first: u64, count: u64) -> PyResult<Vec<(String, u64)>> {
        let wanted = first..first.saturating_add(count);
        let rows = self.runtime.wait(py, self.feed.trace_offsets(epoch, wanted))?.or_raise(py)?;
        Ok(rows.into_iter().map(place).collect())
    }

    /// Counts the offsets of an epoch over all ranks, by reading its windows.
    fn count(&self, py: Python<'_>, epoch: u64) -> PyResult<u64> {
        self.runtime.wait(py, self.feed.count(epoch))?.or_raise(py)
    }

    /// Whether all epochs have the same number of offsets.
    #[getter]
    fn has_equal_epochs(&self) -> bool {
        self.feed.has_equal_epochs()
    }

    /// Starts reading with options as JSON, up to `ahead` batches before Python asks for them.
    fn read(&self, py: Python<'_>, options: &str, ahead: usize) -> PyResult<Stream> {
        self.runtime.check_process(py)?;
        let reader = self.feed.read(&json::<ReadOptions>(py, options)?).or_raise(py)?;
        Ok(Stream::start(&self.runtime, Source::Local(Box::new(reader)), ahead, None))
    }
}

/// The fields of Python's `Materialized`, as JSON.
fn materialized(done: &Materialized) -> String {
    let files: Vec<&str> = done.files().iter().map(|file| file.name.as_str()).collect();
    let fields = serde_json::json!({
        "url": done.url(),
        "job": done.job(),
        "files": files,
        "rows": done.rows(),
        "bad_rows": done.bad_rows(),
        "bytes": done.bytes(),
        "found": done.found(),
        "quarantine": done.quarantine(),
    });
    fields.to_string()
}

fn place(source: SourceRow) -> (String, u64) {
    (source.file, source.row)
}

/// Returns the names of the formats of files.
#[pyfunction]
pub(crate) fn formats() -> Vec<&'static str> {
    forebay_engine::formats::names().collect()
}

/// Returns the format that the extension of a path tells, if any.
#[pyfunction]
pub(crate) fn format_of(path: &str) -> Option<&'static str> {
    forebay_engine::formats::find_by_extension(path).map(|format| format.descriptor().name)
}

/// Returns every operator, with its version.
#[pyfunction]
pub(crate) fn operators() -> Vec<(String, u32)> {
    forebay_engine::operator_versions().clone().into_iter().collect()
}

pub(crate) fn columns(schema: &arrow::datatypes::Schema) -> Vec<(String, String, bool)> {
    schema.fields().iter().map(|field| (field.name().clone(), type_name(field), field.is_nullable())).collect()
}

/// Parses options from the Python half.
pub(crate) fn json<T: DeserializeOwned>(py: Python<'_>, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        // Drop the position: it points into JSON that no user wrote.
        invalid(py, message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message))
    })
}

/// Formats rows as an aligned table. The first row is the header.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    let mut lines: Vec<String> = rows.iter().map(|row| line(row)).collect();
    lines.insert(lines.len().min(1), line(&rule));
    lines.join("\n")
}
