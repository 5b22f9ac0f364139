//! A server in this process: for notebooks, and for ranks on one machine.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind};
use forebay_flight_server::Security;
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{OrRaise, invalid};
use crate::runtime::{OfProcess, Runtime};
use crate::session::Session;

/// The sender that stops the server, and the server's result.
type RunningServer = (oneshot::Sender<()>, JoinHandle<forebay_engine::Result<()>>);

/// A server that runs until it is stopped or dropped.
#[pyclass(frozen, module = "forebay._native")]
pub(crate) struct Server {
    #[pyo3(get)]
    uri: String,
    runtime: Runtime,
    running: OfProcess<Mutex<Option<RunningServer>>>,
}

#[pymethods]
impl Server {
    /// Serves the pipelines of `session` at `host`:`port`: to its own user on loopback, unless `insecure`.
    #[new]
    fn new(py: Python<'_>, session: &Session, host: &str, port: u16, insecure: bool) -> PyResult<Self> {
        let host = host.parse().map_err(|_| invalid(py, format!("\"host\" must be an IP address, got \"{host}\"")))?;
        let runtime = Runtime::new().or_raise(py)?;
        // Pipelines of methods of tables are not for clients.
        for pipeline in session.session.pipelines().into_iter().filter(|name| !name.starts_with('_')) {
            runtime.wait(py, session.session.prepare(&pipeline))?.or_raise(py)?;
        }
        let bound = runtime.wait(py, forebay_flight_server::Server::bind(SocketAddr::new(host, port)))?;
        let server = bound.or_raise(py)?.secure(Security { insecure, ..Security::default() });
        let uri = server.uri();
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async move {
            let _ = stopped.await;
        };
        let task = runtime.handle().spawn(server.serve(Arc::clone(&session.session), stopped));
        Ok(Self { uri, runtime, running: OfProcess::new(Mutex::new(Some((stop, task)))) })
    }

    /// Waits some seconds for streams to end, then closes the port.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.runtime.check_process(py)?;
        let running = self.running.lock().take();
        let Some((stop, task)) = running else { return Ok(()) };
        let _ = stop.send(());
        let ended = self.runtime.wait(py, task)?;
        ended.unwrap_or_else(|error| Err(Error::new(ErrorKind::Internal, error.to_string()))).or_raise(py)
    }
}
