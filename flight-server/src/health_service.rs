//! The gRPC health service, `grpc.health.v1.Health`, on the Flight port, for orchestrators and load balancers that
//! probe with gRPC.
//!
//! It stands beside the gate, because probes have no token. So it tells nothing but whether the process is ready, and a
//! connection that asks for nothing else is not admitted: it ends as one without an accepted request does, and probes
//! connect again.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::ErrorKind;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::{Health as Protocol, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::metrics::health::Health;
use crate::status::failure;

/// The name of the service behind the gate.
const FLIGHT: &str = "arrow.flight.protocol.FlightService";
/// How often a watched process looks whether it is ready.
const LOOKED: Duration = Duration::from_millis(250);
/// A request is the name of a service.
const REQUEST_BYTES_MAX: usize = 4 << 10;

/// Answers for the whole process, whose name is empty, and for Flight.
pub(crate) struct HealthService(Arc<Health>);

impl HealthService {
    pub(crate) fn server(health: Arc<Health>) -> HealthServer<Self> {
        HealthServer::new(Self(health)).max_decoding_message_size(REQUEST_BYTES_MAX)
    }
}

fn is_known(request: &Request<HealthCheckRequest>) -> bool {
    ["", FLIGHT].contains(&request.get_ref().service.as_str())
}

/// The state of a service.
fn state(health: &Health, is_known: bool) -> ServingStatus {
    match health.ready() {
        _ if !is_known => ServingStatus::ServiceUnknown,
        Ok(()) => ServingStatus::Serving,
        Err(_) => ServingStatus::NotServing,
    }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Protocol for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        match is_known(&request) {
            true => Ok(Response::new(answer(state(&self.0, true)))),
            false => {
                let message = format!("there is no service \"{}\"", request.get_ref().service);
                Err(failure(ErrorKind::NotFound, message))
            }
        }
    }

    /// The state now and whenever it changes, until the process stops.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        // As the protocol asks, the call stays open for an unknown service, too.
        let is_known = is_known(&request);
        let told = (Arc::clone(&self.0), None);
        let changes = stream::unfold(told, move |(health, told)| async move {
            let status = changed(&health, is_known, told).await?;
            Some((Ok(answer(status)), (health, Some(status))))
        });
        Ok(Response::new(changes.boxed()))
    }
}

/// The state, as soon as it is another than `told`. None when the process stops and `told` says so: an open stream
/// would hold the process up.
async fn changed(health: &Health, is_known: bool, told: Option<ServingStatus>) -> Option<ServingStatus> {
    loop {
        let status = state(health, is_known);
        if Some(status) != told {
            return Some(status);
        }
        if health.is_stopping() {
            return None;
        }
        tokio::time::sleep(LOOKED).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures::TryStreamExt;
    use tonic::Code;
    use tonic::transport::Channel;
    use tonic_health::pb::health_client::HealthClient;

    use super::*;
    use crate::auth::{Access, AccessTokens};
    use crate::server::{Roles, Security, Server};

    fn request(service: &str) -> HealthCheckRequest {
        HealthCheckRequest { service: service.to_owned() }
    }

    async fn watched(stream: &mut tonic::Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
        stream.message().await.unwrap().map(|answer| answer.status())
    }

    /// Serves in these roles while `test` runs with a client, which has no token; `test` stops the server.
    async fn with_server(
        roles: Roles,
        test: impl AsyncFnOnce(HealthClient<Channel>, tokio::sync::oneshot::Sender<()>),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let session = forebay_engine::Session::builder().base(folder.path()).root(root).build().unwrap();
        let file = folder.path().join("tokens");
        std::fs::write(&file, "sixteen-letters-or-more").unwrap();
        let access = Access { readers: Some(AccessTokens::read(&file).unwrap()), workers: None };
        let server = Server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let server = server.secure(Security { access, ..Security::default() });
        let uri = server.uri().replace("grpc://", "http://");
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let testing = async {
            let channel = Channel::from_shared(uri).unwrap().connect().await.unwrap();
            test(HealthClient::new(channel), stop).await;
        };
        let stopped = async {
            let _ = stopped.await;
        };
        let (served, ()) = tokio::join!(server.run(Arc::new(session), roles, stopped), testing);
        served.unwrap();
    }

    #[tokio::test]
    async fn probes_need_no_token_and_hear_that_the_process_stops() {
        // Longer than the test may take.
        let roles = Roles { drain_timeout: Some(Duration::from_secs(600)), ..Roles::default() };
        with_server(roles, async |mut client, stop| {
            for service in ["", FLIGHT] {
                let answer = client.check(request(service)).await.unwrap().into_inner();
                assert_eq!(answer.status(), ServingStatus::Serving, "{service}");
            }
            let unknown = client.check(request("forebay")).await.unwrap_err();
            assert_eq!((unknown.code(), unknown.message()), (Code::NotFound, "there is no service \"forebay\""));
            let long = client.check(request(&"x".repeat(REQUEST_BYTES_MAX))).await.unwrap_err();
            assert_eq!(long.code(), Code::OutOfRange);
            let mut known = client.watch(request("")).await.unwrap().into_inner();
            let mut unknown = client.watch(request("forebay")).await.unwrap().into_inner();
            assert_eq!(watched(&mut known).await, Some(ServingStatus::Serving));
            assert_eq!(watched(&mut unknown).await, Some(ServingStatus::ServiceUnknown));
            drop(stop);
            assert_eq!(watched(&mut known).await, Some(ServingStatus::NotServing));
            // The streams end, so that they do not hold the process up.
            assert_eq!((watched(&mut known).await, watched(&mut unknown).await), (None, None));
        })
        .await;
    }

    #[tokio::test]
    async fn a_worker_without_a_dispatcher_is_not_ready() {
        let dispatchers = vec!["grpc://127.0.0.1:1".to_owned()];
        let drain_timeout = Some(Duration::ZERO);
        with_server(Roles { dispatchers, drain_timeout, ..Roles::default() }, async |mut client, stop| {
            let answer = client.check(request("")).await.unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::NotServing);
            let stream = client.watch(request("")).await.unwrap().into_inner();
            drop(stop);
            let heard: Vec<_> = stream.map_ok(|answer| answer.status()).try_collect().await.unwrap();
            assert_eq!(heard, [ServingStatus::NotServing]);
        })
        .await;
    }
}
