//! The connection from a trainer's process to a cluster.

use std::time::Duration;

use forebay_engine::JobOptions;
use forebay_flight_client::wire::{JobAnswer, Traced, WritingProgress};
use forebay_flight_client::{ClientTls, ConnectOptions, StreamRequest};
use parking_lot::Mutex;
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::local_worker::LocalWorker;
use crate::runtime::{OfProcess, Runtime};
use crate::session::{columns, json};
use crate::steps::Steps;
use crate::stream::{Source, Stream};

/// A connection to a dispatcher.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Client {
    client: OfProcess<forebay_flight_client::Client>,
    runtime: Runtime,
    uri: String,
    options: ConnectOptions,
}

impl Client {
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.options
    }
}

#[pymethods]
impl Client {
    /// Connects to `uri`, within `retry_for` seconds.
    #[new]
    #[pyo3(signature = (
        uri, *, token = None, token_file = None, ca = None, certificate = None, key = None, server_name = None, insecure = false,
        retry_for = None, buffer_bytes = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords of one constructor")]
    fn new(
        py: Python<'_>,
        uri: &str,
        token: Option<String>,
        token_file: Option<String>,
        ca: Option<String>,
        certificate: Option<String>,
        key: Option<String>,
        server_name: Option<String>,
        insecure: bool,
        retry_for: Option<f64>,
        buffer_bytes: Option<u64>,
    ) -> PyResult<Self> {
        let tls = ClientTls {
            ca: ca.map(Into::into),
            certificate: certificate.map(Into::into),
            key: key.map(Into::into),
            server_name,
        };
        let patience = retry_for.map(Duration::try_from_secs_f64).transpose();
        let patience = patience.map_err(|error| crate::error::invalid(py, format!("\"retry_for\": {error}")))?;
        let token_file = token_file.map(Into::into);
        let options =
            ConnectOptions { token, token_file, tls, insecure, patience, buffer_bytes, ..ConnectOptions::default() };
        let runtime = Runtime::new().or_raise(py)?;
        let connecting = forebay_flight_client::Client::connect_with(uri, &options);
        let client = runtime.wait(py, connecting)?.or_raise(py)?;
        Ok(Self { client: OfProcess::new(client), runtime, uri: uri.to_owned(), options })
    }

    /// Returns the names of the pipelines that the server offers.
    fn pipelines(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let mut client = (*self.client).clone();
        let pipelines = self.runtime.wait(py, async move { client.pipelines().await })?.or_raise(py)?;
        Ok(pipelines.into_iter().map(|pipeline| pipeline.name).collect())
    }

    /// Returns the state of the dispatcher, as JSON.
    fn status(&self, py: Python<'_>) -> PyResult<String> {
        let mut client = (*self.client).clone();
        let status = self.runtime.wait(py, async move { client.status().await })?.or_raise(py)?;
        serde_json::to_string(&status).map_err(|error| crate::error::invalid(py, error.to_string()))
    }

    /// Plans one rank's stream, and computes nothing yet.
    fn open(&self, py: Python<'_>, request: &str) -> PyResult<RemoteFeed> {
        let request = json::<StreamRequest>(py, request)?;
        let mut client = (*self.client).clone();
        let feed = self.runtime.wait(py, async move { client.open(&request).await })?.or_raise(py)?;
        Ok(RemoteFeed { feed: OfProcess::new(feed), runtime: self.runtime.clone() })
    }

    /// Has the workers write the samples of a pipeline to files in the folder or URL `to`, with job options as JSON.
    /// Returns the result as JSON. Calls `show` with complete files, all files, samples and bytes.
    fn materialize(
        &self,
        py: Python<'_>,
        request: &str,
        to: &str,
        job: &str,
        show: Option<Py<PyAny>>,
    ) -> PyResult<String> {
        let (request, options) = (json::<StreamRequest>(py, request)?, json::<JobOptions>(py, job)?);
        let mut client = (*self.client).clone();
        let newest = Mutex::new(WritingProgress::default());
        let heard = |answer: &JobAnswer| {
            if let JobAnswer::Writing(progress) = answer {
                newest.lock().clone_from(progress);
            }
        };
        let call = |py: Python<'_>, numbers: (u64, u64, u64, u64)| {
            show.as_ref().map_or(Ok(()), |show| show.call1(py, numbers).map(drop))
        };
        let call_newest = |py: Python<'_>| {
            let WritingProgress { stored, files, rows, bytes, .. } = newest.lock().clone();
            call(py, (stored.into(), files.into(), rows, bytes))
        };
        let written = async { client.materialize(request, to, &options, heard).await };
        let done = self.runtime.wait_showing(py, written, call_newest)?.or_raise(py)?;
        call(py, (done.files as u64, done.files as u64, done.rows, done.bytes))?;
        serde_json::to_string(&done).map_err(|error| crate::error::invalid(py, error.to_string()))
    }
}

/// A feed planned by a server for one rank.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct RemoteFeed {
    feed: OfProcess<forebay_flight_client::RemoteFeed>,
    runtime: Runtime,
}

#[pymethods]
impl RemoteFeed {
    #[getter]
    fn id(&self) -> &str {
        self.feed.id()
    }

    #[getter]
    fn columns(&self) -> Vec<(String, String, bool)> {
        columns(self.feed.schema())
    }

    #[getter]
    fn samples_per_epoch(&self) -> Option<u64> {
        self.feed.samples_per_epoch()
    }

    /// Batch size, epochs, whether incomplete steps are dropped, and the number of this rank's samples if it is known.
    #[getter]
    fn settings(&self) -> (u64, u64, bool, Option<u64>) {
        let metadata = self.feed.metadata();
        (metadata.batch_size, metadata.epochs, metadata.drop_last, metadata.samples)
    }

    /// The feed's identity, as JSON.
    #[getter]
    fn identity(&self) -> String {
        self.feed.metadata().identity.to_string()
    }

    /// Returns source file and row of each sample of the rank's batch of a step.
    fn trace(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<Vec<(String, u64)>> {
        self.runtime.wait(py, self.feed.trace(epoch, Traced::Step(step)))?.or_raise(py)
    }

    /// Returns source file and row of each sample of an epoch, for `count` offsets starting at `first`.
    fn trace_offsets(&self, py: Python<'_>, epoch: u64, first: u64, count: u64) -> PyResult<Vec<(String, u64)>> {
        let wanted = first..first.saturating_add(count);
        self.runtime.wait(py, self.feed.trace(epoch, Traced::Offsets(wanted)))?.or_raise(py)
    }

    /// Starts reading, up to `ahead` batches before Python asks for them. `beside` is the worker in this process.
    #[pyo3(signature = (ahead, beside = None))]
    fn read(&self, py: Python<'_>, ahead: usize, beside: Option<&LocalWorker>) -> PyResult<Stream> {
        self.runtime.check_process(py)?;
        let _in_runtime = self.runtime.handle().enter();
        let reader = (*self.feed).clone().read().or_raise(py)?;
        let steps = beside.map(|worker| Steps::new(worker.steps(), self.feed.id()));
        Ok(Stream::start(&self.runtime, Source::Remote(Box::new(reader)), ahead, steps))
    }
}
