//! A session and its feeds in the trainer's own process.

use std::sync::Arc;

use forebay_engine::{FeedOptions, FileFormat, Output, ReadOptions, SourceRow, type_name};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use serde::de::DeserializeOwned;

use crate::arrow_capsule::{import, schema_capsule};
use crate::error::{OrRaise, invalid};
use crate::function;
use crate::runtime::{OfProcess, Runtime};
use crate::stream::{Source, Stream};

/// Tables, pipelines, and the threads that compute them.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Session {
    pub(crate) session: OfProcess<Arc<forebay_engine::Session>>,
    pub(crate) runtime: Runtime,
}

#[pymethods]
impl Session {
    #[new]
    #[pyo3(signature = (threads = None, base = None, root = None, window_memory_limit = None, lookup_memory_limit = None))]
    fn new(
        py: Python<'_>,
        threads: Option<usize>,
        base: Option<&str>,
        root: Option<&str>,
        window_memory_limit: Option<u64>,
        lookup_memory_limit: Option<u64>,
    ) -> PyResult<Self> {
        let mut builder = forebay_engine::Session::builder();
        if let Some(threads) = threads {
            builder = builder.threads(threads);
        }
        if let Some(base) = base {
            builder = builder.base(base);
        }
        if let Some(root) = root {
            builder = builder.root(root);
        }
        if let Some(bytes) = window_memory_limit {
            builder = builder.window_memory_bytes(bytes);
        }
        if let Some(bytes) = lookup_memory_limit {
            builder = builder.lookup_memory_bytes(bytes);
        }
        let session = OfProcess::new(Arc::new(builder.build().or_raise(py)?));
        Ok(Self { session, runtime: Runtime::new().or_raise(py)? })
    }

    /// Runs the statements of `text`, which errors call `name`. What each came to: a text, or the rows of a table.
    fn execute<'py>(&self, py: Python<'py>, name: &str, text: &str) -> PyResult<Bound<'py, PyList>> {
        let outputs = self.runtime.wait(py, self.session.execute(name, text))?.or_raise(py)?;
        let list = PyList::empty(py);
        for output in outputs {
            match output {
                Output::Done(text) | Output::Text(text) => list.append(text)?,
                Output::Rows(rows) => list.append(rows)?,
            }
        }
        Ok(list)
    }

    /// Creates or replaces the pipeline `name` from a query; errors show the query's own lines.
    fn define(&self, py: Python<'_>, name: &str, query: &str) -> PyResult<()> {
        self.runtime.wait(py, self.session.define(name, query))?.or_raise(py)
    }

    /// Creates or replaces a table of rows in memory: anything with `__arrow_c_stream__` or `__arrow_c_array__`. Gives its name,
    /// which says what is in it if none is given.
    #[pyo3(signature = (name, data))]
    fn register(&self, py: Python<'_>, name: Option<&str>, data: &Bound<'_, PyAny>) -> PyResult<String> {
        let (schema, batches) = import(data)?;
        self.runtime.wait(py, self.session.register(name, schema, batches))?.or_raise(py)
    }

    /// Creates or replaces a table of the files at `location`; `format` is "parquet", "csv", "jsonl" or "media".
    fn add_files(&self, py: Python<'_>, name: &str, location: &str, format: &str) -> PyResult<()> {
        let format = json::<FileFormat>(py, &format!("\"{format}\""))?;
        self.runtime.wait(py, self.session.add_files(name, location, format))?.or_raise(py)
    }

    /// Forgets a table that was registered without a name, when the last holder of its rows does so. Never waits, and does
    /// nothing in a forked child: it is called when Python collects garbage.
    fn release(&self, py: Python<'_>, name: &str) {
        if !self.session.is_forked() {
            py.detach(|| self.session.release(name));
        }
    }

    /// Lets queries call a `forebay.Udf`.
    fn add_function(&self, py: Python<'_>, udf: &Bound<'_, PyAny>) -> PyResult<()> {
        self.session.add_function(function::read(udf)?).or_raise(py)
    }

    /// Forgets a pipeline; feeds of it that are open go on.
    fn undefine(&self, py: Python<'_>, name: &str) {
        if !self.session.is_forked() {
            py.detach(|| self.session.undefine(name));
        }
    }

    fn pipelines(&self) -> Vec<String> {
        self.session.pipelines()
    }

    /// The name as it was created, where there is such a pipeline.
    fn pipeline(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        Ok(self.session.pipeline(name).or_raise(py)?.name().to_owned())
    }

    /// How a pipeline will run, with the feed options given as JSON.
    fn explain(&self, py: Python<'_>, name: &str, options: &str) -> PyResult<String> {
        Ok(self.session.explain(name, &json::<FeedOptions>(py, options)?).or_raise(py)?.to_string())
    }

    /// The samples' columns: name, type and whether they may be null.
    fn columns(&self, py: Python<'_>, name: &str) -> PyResult<Vec<(String, String, bool)>> {
        Ok(columns(&self.session.pipeline(name).or_raise(py)?.schema()))
    }

    /// The samples' schema as an Arrow capsule.
    fn schema<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.session.pipeline(name).or_raise(py)?.schema())
    }

    /// The first rows, processed: as a table, as HTML, how many there are and how many bad ones were left out.
    fn preview(&self, py: Python<'_>, name: &str, options: &str, rows: u64) -> PyResult<(String, String, usize, u64)> {
        let options = json::<FeedOptions>(py, options)?;
        let preview = self.runtime.wait(py, self.session.preview(name, &options, rows))?.or_raise(py)?;
        let table = aligned(&preview.table().or_raise(py)?);
        Ok((table, preview.html().or_raise(py)?, preview.num_rows(), preview.bad_rows()))
    }

    /// Opens a pipeline as a feed, with the feed options given as JSON, of all columns or only these.
    #[pyo3(signature = (name, options, columns = None))]
    fn open(&self, py: Python<'_>, name: &str, options: &str, columns: Option<Vec<String>>) -> PyResult<Feed> {
        self.runtime.check_process(py)?;
        let options = json::<FeedOptions>(py, options)?;
        let open = || match &columns {
            Some(columns) => self.session.open_columns(name, &options, columns),
            None => self.session.open(name, &options),
        };
        let feed = OfProcess::new(py.detach(open).or_raise(py)?);
        Ok(Feed { feed, runtime: self.runtime.clone() })
    }

    /// URL or absolute path of the folder for what Forebay writes.
    #[getter]
    fn root(&self) -> &str {
        self.session.root()
    }

    /// Seconds that the compute threads were busy, all together.
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

    /// What the feed is made of, as JSON: what two feeds that differ differ in.
    #[getter]
    fn identity(&self) -> String {
        self.feed.identity().to_string()
    }

    /// Checks read options, given as JSON: batch size, epochs and whether incomplete steps are dropped, and how many samples
    /// this rank will get where that is known.
    fn resolve(&self, py: Python<'_>, options: &str) -> PyResult<(u64, u64, bool, Option<u64>)> {
        let options = json::<ReadOptions>(py, options)?;
        let (settings, _) = self.feed.resolve(&options).or_raise(py)?;
        let samples = self.feed.check(&options).or_raise(py)?;
        Ok((settings.batch_size, settings.epochs, settings.drop_last, samples))
    }

    /// Writes the samples to Parquet under `url`; the manifest as JSON, and whether all was there already.
    fn materialize(&self, py: Python<'_>, url: &str) -> PyResult<(String, bool)> {
        let done = self.runtime.wait(py, self.feed.materialize(url))?.or_raise(py)?;
        Ok((serde_json::to_string(&done).map_err(|error| invalid(py, error.to_string()))?, done.found))
    }

    /// Calls whose results must not be kept.
    #[getter]
    fn uncacheable_calls(&self) -> Vec<String> {
        self.feed.uncacheable_calls()
    }

    /// Source file and row of each sample of the rank's batch of a step.
    fn trace(&self, py: Python<'_>, options: &str, epoch: u64, step: u64) -> PyResult<Vec<(String, u64)>> {
        let options = json::<ReadOptions>(py, options)?;
        let rows = self.runtime.wait(py, self.feed.trace(&options, epoch, step))?.or_raise(py)?;
        Ok(rows.into_iter().map(place).collect())
    }

    /// Source file and row of each sample of an epoch with one of `count` offsets from `first` on.
    fn trace_offsets(&self, py: Python<'_>, epoch: u64, first: u64, count: u64) -> PyResult<Vec<(String, u64)>> {
        let wanted = first..first.saturating_add(count);
        let rows = self.runtime.wait(py, self.feed.trace_offsets(epoch, wanted))?.or_raise(py)?;
        Ok(rows.into_iter().map(place).collect())
    }

    /// Begins to read with the options given as JSON, up to `ahead` batches before they are asked for.
    fn read(&self, py: Python<'_>, options: &str, ahead: usize) -> PyResult<Stream> {
        self.runtime.check_process(py)?;
        let reader = self.feed.read(&json::<ReadOptions>(py, options)?).or_raise(py)?;
        Ok(Stream::start(&self.runtime, Source::Local(Box::new(reader)), ahead))
    }
}

fn place(source: SourceRow) -> (String, u64) {
    (source.file, source.row)
}

/// Every operator, with its version.
#[pyfunction]
pub(crate) fn operators() -> Vec<(String, u32)> {
    forebay_engine::operator_versions().into_iter().collect()
}

pub(crate) fn columns(schema: &arrow::datatypes::Schema) -> Vec<(String, String, bool)> {
    schema.fields().iter().map(|field| (field.name().clone(), type_name(field), field.is_nullable())).collect()
}

/// Options as the Python half puts them together.
pub(crate) fn json<T: DeserializeOwned>(py: Python<'_>, text: &str) -> PyResult<T> {
    serde_json::from_str(text).map_err(|error| {
        let message = error.to_string();
        // The place is one in a text that no user wrote.
        invalid(py, message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message))
    })
}

/// Rows as an aligned table; the first is the header.
fn aligned(rows: &[Vec<String>]) -> String {
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
