//! The native half of the Python package `forebay`: the engine in the trainer's process, and the client of a cluster.
//!
//! It receives options as JSON, and returns batches as DLPack tensors and Arrow capsules, and errors as exceptions. The
//! Python half (`python/forebay/`) holds what users see: names, defaults and frameworks.

mod arrow_capsule;
mod batch;
mod client;
mod column;
mod dlpack;
mod error;
mod function;
mod local_worker;
mod logs;
mod query;
mod runtime;
mod server;
mod session;
mod steps;
mod stream;

use pyo3::prelude::*;

/// The module `forebay._native`.
#[pymodule(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    logs::begin();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<arrow_capsule::ArrowArray>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<client::Client>()?;
    module.add_class::<client::RemoteFeed>()?;
    module.add_class::<column::Ragged>()?;
    module.add_class::<dlpack::Tensor>()?;
    module.add_class::<local_worker::LocalWorker>()?;
    module.add_class::<query::Query>()?;
    module.add_class::<query::QueryRows>()?;
    module.add_class::<server::Server>()?;
    module.add_class::<session::Feed>()?;
    module.add_class::<session::Session>()?;
    module.add_class::<stream::Stream>()?;
    module.add_function(wrap_pyfunction!(function::end_functions, module)?)?;
    module.add_function(wrap_pyfunction!(session::formats, module)?)?;
    module.add_function(wrap_pyfunction!(session::format_of, module)?)?;
    module.add_function(wrap_pyfunction!(session::operators, module)?)?;
    Ok(())
}
