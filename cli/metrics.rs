//! The command-line option for the metrics port.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use clap::Args;
use forebay_flight_server::{MetricsEndpoint, Server};

/// The metrics port.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MetricsArguments {
    /// Serve metrics for Prometheus and health on this port of --host: GET /metrics, GET /healthz (alive) and GET
    /// /readyz (has work or can get some), without any access check; 0 takes a free port.
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
}

impl MetricsArguments {
    /// Adds the metrics port to `server`, if one is given, and returns the port's URI.
    pub(crate) async fn of(self, server: Server, host: IpAddr) -> Result<(Server, Option<String>)> {
        let Some(port) = self.metrics_port else { return Ok((server, None)) };
        let endpoint = MetricsEndpoint::bind(SocketAddr::new(host, port)).await?;
        let uri = endpoint.uri();
        Ok((server.measured(endpoint), Some(uri)))
    }
}
