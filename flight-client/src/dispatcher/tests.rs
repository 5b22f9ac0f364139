//! A server that ends its answers late.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    PollInfo, PutResult, Result as Answer, SchemaResult, Ticket,
};
use futures::StreamExt;
use futures::future::ready;
use futures::stream::{self, BoxStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Streaming};

use super::*;

/// The time between an answer and its end.
const LATE: Duration = Duration::from_millis(20);

/// Counts the answers that it could end.
struct LateEnds(Arc<AtomicUsize>);

type Answers<T> = Result<Response<BoxStream<'static, Result<T, Status>>>, Status>;

fn unused<T>() -> Result<T, Status> {
    Err(Status::unimplemented("only actions are answered"))
}

#[tonic::async_trait]
impl FlightService for LateEnds {
    type HandshakeStream = BoxStream<'static, Result<HandshakeResponse, Status>>;
    type ListFlightsStream = BoxStream<'static, Result<FlightInfo, Status>>;
    type DoGetStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoPutStream = BoxStream<'static, Result<PutResult, Status>>;
    type DoExchangeStream = BoxStream<'static, Result<FlightData, Status>>;
    type DoActionStream = BoxStream<'static, Result<Answer, Status>>;
    type ListActionsStream = BoxStream<'static, Result<ActionType, Status>>;

    async fn do_action(&self, _: Request<Action>) -> Answers<Answer> {
        let answer = stream::iter([Ok(Answer { body: Bytes::from_static(b"7") })]);
        let ended = Arc::clone(&self.0);
        let end = stream::once(sleep(LATE)).filter_map(move |()| {
            ended.fetch_add(1, Ordering::Relaxed);
            ready(None)
        });
        Ok(Response::new(answer.chain(end).boxed()))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Answers<HandshakeResponse> {
        unused()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Answers<FlightInfo> {
        unused()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        unused()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        unused()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        unused()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Answers<FlightData> {
        unused()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Answers<PutResult> {
        unused()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Answers<FlightData> {
        unused()
    }

    async fn list_actions(&self, _: Request<Empty>) -> Answers<ActionType> {
        unused()
    }
}

/// A call that is dropped before its end is reset, and HTTP/2 closes connections with many of these.
#[tokio::test]
async fn calls_are_read_to_their_end() {
    const CALLS: usize = 3;
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let uri = format!("grpc://{}", incoming.local_addr().expect("bound"));
    let ended = Arc::new(AtomicUsize::new(0));
    let service = FlightServiceServer::new(LateEnds(Arc::clone(&ended)));
    let mut server = JoinSet::new();
    server.spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    let client = DispatcherClient::new(vec![uri], ConnectOptions::default());
    for calls in 1..=CALLS {
        assert_eq!(client.call::<u64>("any", &()).await.expect("answered"), 7);
        assert_eq!(ended.load(Ordering::Relaxed), calls);
    }
}
