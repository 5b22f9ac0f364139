//! Listening, serving and stopping.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_engine::{Error, ErrorKind, Result, Session};
use tokio::net::TcpListener;
use tonic::transport::Server as TonicServer;
use tonic::transport::server::TcpIncoming;

use crate::service::Service;

/// How long streams may go on after the server was told to stop.
const DRAIN_DEADLINE: Duration = Duration::from_secs(5);
/// A peer that is silent for longer than both of these together is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A server that has its port, but does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
}

impl Server {
    /// Takes the port; port 0 takes a free one.
    ///
    /// # Errors
    /// `Conflict` for a port in use, `Invalid` for an address that is not this machine's.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                Error::new(ErrorKind::Conflict, format!("port {} of {} is in use", address.port(), address.ip()))
                    .with_hint("stop the process that has it, or give another --port (0 takes a free one)")
            }
            _ => Error::new(ErrorKind::Invalid, format!("cannot listen on {address}: {error}"))
                .with_hint("--host takes an address of this machine, and a --port below 1024 may need privileges"),
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn uri(&self) -> String {
        format!("grpc://{}", self.address)
    }

    /// Serves the pipelines of `session` until `stop`, then lets streams end for some seconds.
    ///
    /// # Errors
    /// `Internal` if the listener fails.
    pub async fn serve(self, session: Arc<Session>, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let (stopped, told) = tokio::sync::oneshot::channel();
        let stop = async move {
            stop.await;
            let _ = stopped.send(());
        };
        // Small requests would wait 40 ms for an acknowledgement without this.
        let incoming = TcpIncoming::from(self.listener).with_nodelay(Some(true));
        let serving = TonicServer::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
            .add_service(FlightServiceServer::new(Service::new(session)))
            .serve_with_incoming_shutdown(incoming, stop);
        let deadline = async {
            // An error means that serving ended by itself, which the other branch reports.
            if told.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(DRAIN_DEADLINE).await;
        };
        tokio::select! {
            served = serving => served.map_err(|error| Error::new(ErrorKind::Internal, format!("serving failed: {error}"))),
            () = deadline => {
                tracing::warn!("streams were still open at the end of the drain deadline");
                Ok(())
            }
        }
    }
}
