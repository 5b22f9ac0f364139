//! The Flight service: list pipelines, plan a stream, read it.

use std::sync::Arc;

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use forebay_engine::{Error, ErrorKind, Feed, FeedOptions, OnError, ReadOptions, Session};
use forebay_flight_client::{FeedMetadata, StreamRequest};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::{encode, status::status};

type Reply<T> = Result<Response<T>, Status>;
type ReplyStream<T> = BoxStream<'static, Result<T, Status>>;

/// Batches that are encoded ahead of the connection, which itself buffers little.
const ENCODED_AHEAD: usize = 2;

/// Serves the pipelines of a session.
pub(crate) struct Service {
    session: Arc<Session>,
}

impl Service {
    pub(crate) fn new(session: Arc<Session>) -> Self {
        Self { session }
    }

    /// Opens the feed that `request` asks for and checks its options. Reads nothing.
    fn open(&self, request: &StreamRequest) -> Result<(Feed, Option<u64>), Status> {
        let feed = self.session.open(&request.pipeline, &request.feed_options()).map_err(|error| status(&error))?;
        if let Some(expected) = request.feed.as_ref().filter(|&expected| expected != feed.id()) {
            return Err(Status::failed_precondition(format!(
                "the ticket is of feed {expected}, but pipeline \"{}\" now opens as feed {}\nhint: ask for flight info again",
                request.pipeline,
                feed.id()
            )));
        }
        let positions = feed.check(&request.read_options()).map_err(|error| status(&error))?;
        Ok((feed, positions))
    }

    fn info(&self, descriptor: FlightDescriptor, mut request: StreamRequest) -> Result<FlightInfo, Status> {
        let (feed, positions) = self.open(&request)?;
        request.feed = Some(feed.id().to_owned());
        let ticket = Ticket::new(serde_json::to_vec(&request).expect("plain data becomes JSON"));
        let metadata = FeedMetadata { feed: feed.id().to_owned(), samples_per_epoch: feed.samples_per_epoch() };
        // Rows that will be left out are not known before they are read.
        let records =
            positions.filter(|_| feed.settings().on_error == OnError::Raise).and_then(|n| i64::try_from(n).ok());
        let info = FlightInfo::new()
            .with_descriptor(descriptor)
            .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
            .with_total_records(records.unwrap_or(-1))
            .with_ordered(true)
            .with_app_metadata(serde_json::to_vec(&metadata).expect("plain data becomes JSON"));
        info.try_with_schema(&feed.schema())
            .map_err(|error| Status::internal(format!("cannot encode the schema: {error}")))
    }
}

/// What a descriptor asks for: the path is a pipeline's name, the command a [`StreamRequest`].
fn request(descriptor: &FlightDescriptor) -> Result<StreamRequest, Status> {
    match descriptor.r#type() {
        DescriptorType::Path if descriptor.path.len() == 1 => {
            Ok(StreamRequest::new(&descriptor.path[0], &FeedOptions::default(), &ReadOptions::default()))
        }
        DescriptorType::Cmd => parse(&descriptor.cmd, "command"),
        _ => Err(Status::invalid_argument(
            "the descriptor must be a path of one pipeline name, or a JSON command such as {\"pipeline\": \"train\", \"rank\": 0}",
        )),
    }
}

fn parse(json: &[u8], what: &str) -> Result<StreamRequest, Status> {
    serde_json::from_slice(json).map_err(|error| {
        Status::invalid_argument(format!(
            "the {what} is not a stream request: {error}\nhint: send JSON such as {{\"pipeline\": \"train\", \"batch_size\": 32, \"rank\": 0, \"world_size\": 2}}"
        ))
    })
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = ReplyStream<HandshakeResponse>;
    type ListFlightsStream = ReplyStream<FlightInfo>;
    type DoGetStream = ReplyStream<FlightData>;
    type DoPutStream = ReplyStream<PutResult>;
    type DoActionStream = ReplyStream<arrow_flight::Result>;
    type ListActionsStream = ReplyStream<ActionType>;
    type DoExchangeStream = ReplyStream<FlightData>;

    async fn list_flights(&self, _: Request<Criteria>) -> Reply<Self::ListFlightsStream> {
        let infos: Vec<_> = self
            .session
            .pipelines()
            .into_iter()
            .filter_map(|name| {
                let descriptor = FlightDescriptor::new_path(vec![name.clone()]);
                let info = request(&descriptor).and_then(|request| self.info(descriptor, request));
                // One pipeline that cannot be opened must not hide the others; asking for it says why.
                info.inspect_err(|error| tracing::warn!(pipeline = %name, %error, "pipeline left out of the list")).ok()
            })
            .map(Ok)
            .collect();
        Ok(Response::new(stream::iter(infos).boxed()))
    }

    async fn get_flight_info(&self, descriptor: Request<FlightDescriptor>) -> Reply<FlightInfo> {
        let descriptor = descriptor.into_inner();
        let request = request(&descriptor)?;
        self.info(descriptor, request).map(Response::new)
    }

    async fn get_schema(&self, descriptor: Request<FlightDescriptor>) -> Reply<SchemaResult> {
        let (feed, _) = self.open(&request(descriptor.get_ref())?)?;
        let options = IpcWriteOptions::default();
        let message = IpcMessage::try_from(SchemaAsIpc::new(&feed.schema(), &options));
        let IpcMessage(schema) =
            message.map_err(|error| Status::internal(format!("cannot encode the schema: {error}")))?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, ticket: Request<Ticket>) -> Reply<Self::DoGetStream> {
        let request = parse(&ticket.get_ref().ticket, "ticket")?;
        let (feed, _) = self.open(&request)?;
        let reader = feed.read(&request.read_options()).map_err(|error| status(&error))?;
        tracing::info!(pipeline = %request.pipeline, feed = %feed.id(), rank = request.rank, world_size = request.world_size, from = %request.from, "stream opened");
        let schema = encode::schema(&feed.schema());
        let batches = reader
            .into_stream()
            .map(|batch| async move {
                let batch = batch?;
                // Copying a batch into a message takes longer than the serving threads may be held.
                match tokio::task::spawn_blocking(move || encode::batch(&batch)).await {
                    Ok(encoded) => encoded,
                    Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server is shutting down")),
                }
            })
            // Not `try_buffered`: an error there overtakes the good batches before it.
            .buffered(ENCODED_AHEAD)
            .map_err(|error| status(&error));
        Ok(Response::new(stream::once(async { Ok(schema) }).chain(batches).boxed()))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Reply<Self::HandshakeStream> {
        Err(Status::unimplemented("no handshake is needed"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Reply<PollInfo> {
        Err(Status::unimplemented("planning is immediate: use GetFlightInfo"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoPutStream> {
        Err(Status::unimplemented("a feed is read, not written"))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoExchangeStream> {
        Err(Status::unimplemented("use DoGet"))
    }

    async fn do_action(&self, _: Request<Action>) -> Reply<Self::DoActionStream> {
        Err(Status::unimplemented("there are no actions"))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Reply<Self::ListActionsStream> {
        Ok(Response::new(stream::empty().boxed()))
    }
}
