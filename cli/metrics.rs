//! The port for metrics, on the command line.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use clap::Args;
use forebay_flight_server::{MetricsEndpoint, Server};

/// Where metrics are read.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MetricsArguments {
    /// Serve metrics for Prometheus on this port of --host: GET /metrics and GET /healthz, for whoever reaches it; 0 takes a free one.
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
}

impl MetricsArguments {
    /// The server with the port for metrics that was asked for, and where that is.
    pub(crate) async fn of(self, server: Server, host: IpAddr) -> Result<(Server, Option<String>)> {
        let Some(port) = self.metrics_port else { return Ok((server, None)) };
        let endpoint = MetricsEndpoint::bind(SocketAddr::new(host, port)).await?;
        let uri = endpoint.uri();
        Ok((server.measured(endpoint), Some(uri)))
    }
}
