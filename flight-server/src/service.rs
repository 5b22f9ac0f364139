//! The Flight service: lists pipelines, plans and serves streams, and serves the calls and windows of a cluster.

use std::sync::Arc;

use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use arrow_ipc::writer::IpcWriteOptions;
use forebay_delivery::{Start, Status as ClusterStatus};
use forebay_diagnostics::shortened;
use forebay_engine::{CacheMode, DeliveryMode, Error, ErrorKind, Feed, FeedOptions, OnError, ReadOptions, Session};
use forebay_flight_client::wire::{
    ClaimCall, JobCall, ReaderCall, ReloadCall, TraceCall, Traced, WindowRequest, actions,
};
use forebay_flight_client::{ConnectOptions, ReadPlan, RemoteReader, StreamRequest};
use forebay_protocol::{VERSION_HEADER, version};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::{Request, Response, Status, Streaming};

use crate::caller::{Caller, Pipelines, Proof};
use crate::dispatcher::{self, DispatcherService};
use crate::in_process::{Here, metadata};
use crate::jobs::Jobs;
use crate::metrics::streams::StreamCounts;
use crate::scripts::Scripts;
use crate::status::{failure, status, unsendable_schema};
use crate::transport::flight::FlightSender;
use crate::worker::{WorkerService, store_wait};
use crate::{encode, limits, snapshots, sql};

type Reply<T> = Result<Response<T>, Status>;
type ReplyStream<T> = BoxStream<'static, Result<T, Status>>;

/// Batches encoded ahead of the connection, which itself buffers little.
const ENCODED_AHEAD: usize = 2;
/// The most characters of a client's version in an error.
const VERSION_CHARS_MAX: usize = 40;
/// Maximum number of samples to trace per call.
const TRACED_MAX: u64 = 1 << 20;

/// The roles of a process.
pub(crate) struct ProcessRoles {
    pub(crate) dispatcher: Option<Arc<DispatcherService>>,
    pub(crate) worker: Option<Arc<WorkerService>>,
    /// The address of this process.
    pub(crate) address: String,
    /// The dispatchers that it computes for, if it is not a dispatcher itself: a comma-separated list.
    pub(crate) dispatchers: String,
    /// The scripts behind the session.
    pub(crate) scripts: Option<Arc<dyn Scripts>>,
    /// Of a dispatcher.
    pub(crate) jobs: Option<Arc<Jobs>>,
}

/// What a request's sender may do.
#[derive(Clone)]
struct Permit {
    caller: Caller,
    pipelines: Pipelines,
    /// Of a client of Forebay's own, if it is not this server's.
    other_version: Option<String>,
}

impl Permit {
    /// Refuses a client of Forebay's own of another version, which may read batches in another way.
    fn check_version(&self) -> Result<(), Status> {
        let Some(there) = &self.other_version else { return Ok(()) };
        let here = version();
        let message = format!("this client is forebay version {there}, and the server is version {here}");
        let hint = format!("use version {here} for the client, or read from a server of version {there}");
        Err(status(&Error::new(ErrorKind::Conflict, message).with_hint(hint)))
    }
}

/// The service of a process: a dispatcher's calls and feeds, a worker's windows, or both.
pub(crate) struct ProcessService {
    session: Arc<Session>,
    roles: ProcessRoles,
    streams: Arc<StreamCounts>,
    /// How this process connects to workers, to relay their windows.
    connect: ConnectOptions,
}

impl ProcessService {
    pub(crate) fn new(
        session: Arc<Session>,
        roles: ProcessRoles,
        streams: Arc<StreamCounts>,
        connect: ConnectOptions,
    ) -> Self {
        Self { session, roles, streams, connect }
    }

    /// The dispatcher, or an error for a client that mistakes this worker for a dispatcher.
    fn dispatcher(&self) -> Result<&Arc<DispatcherService>, Status> {
        let elsewhere = || {
            let ProcessRoles { address, dispatchers, .. } = &self.roles;
            let message = format!("{address} is the address of a worker, not of a dispatcher");
            let hint = format!("connect to its dispatcher: {dispatchers}");
            status(&Error::new(ErrorKind::Conflict, message).with_hint(hint))
        };
        self.roles.dispatcher.as_ref().ok_or_else(elsewhere)
    }

    /// Opens the requested feed and checks its options. Reads nothing.
    fn open(&self, request: &StreamRequest, permit: &Permit) -> Result<(Feed, Option<u64>), Status> {
        permit.check_version()?;
        // Opening a feed with options out of bounds may already take any memory.
        limits::check(request, permit.caller).map_err(|error| status(&error))?;
        permit.pipelines.check(&request.pipeline)?;
        self.check_seed(request, permit)?;
        let of_token = match &request.from {
            Start::Token(token) => Some(&*token.feed),
            Start::Offset { .. } => None,
        };
        let id = request.feed.as_deref().or(of_token);
        let feed = dispatcher::open(&self.session, request, id).map_err(|error| status(&error))?;
        if let Some(expected) = request.feed.as_ref().filter(|&expected| expected != feed.id()) {
            let message = format!(
                "the ticket is of feed {expected}, but pipeline \"{}\" now opens as feed {}",
                request.pipeline,
                feed.id()
            );
            return Err(status(&Error::new(ErrorKind::Conflict, message).with_hint("ask for flight info again")));
        }
        let positions = feed.expected_samples(&request.read_options()).map_err(|error| status(&error))?;
        Ok((feed, positions))
    }

    /// Refuses a reader a seed of its own, if the server would keep all results for each seed.
    fn check_seed(&self, request: &StreamRequest, permit: &Permit) -> Result<(), Status> {
        let Ok(pipeline) = self.session.pipeline(&request.pipeline) else { return Ok(()) };
        let own = pipeline.feed_options();
        let is_own = request.seed.is_none_or(|seed| seed == own.seed.unwrap_or_default());
        let is_full = request.feed_options().cache_mode(own) == CacheMode::Full;
        if is_own || !is_full || !matches!(permit.caller, Caller::Reader(_)) {
            return Ok(());
        }
        let message = format!(
            "pipeline \"{}\" keeps its random results on the server, for the seed {} only",
            request.pipeline,
            own.seed.unwrap_or_default()
        );
        let hint = "leave out \"seed\", or ask the server's operator for cache = 'prefix'";
        Err(status(&Error::new(ErrorKind::Denied, message).with_hint(hint)))
    }

    /// Refuses a reader a feed of a pipeline that its token is not for.
    fn check_feed(&self, request: &StreamRequest, feed: &str, permit: &Permit) -> Result<(), Status> {
        permit.check_version()?;
        permit.pipelines.check(&request.pipeline)?;
        self.check_seed(request, permit)?;
        // The request may name another pipeline than the feed's.
        let Ok(open) = self.dispatcher()?.feed(feed) else { return Ok(()) };
        let refusal = permit.pipelines.check(open.pipeline());
        // Two pipelines with equal queries have one feed, under the name of the one that opened it.
        let is_also = || dispatcher::open(&self.session, request, Some(feed)).is_ok_and(|opened| opened.id() == feed);
        if refusal.is_err() && is_also() { Ok(()) } else { refusal }
    }

    /// The part of the dispatcher's status that the caller may see: all of it for the server's own user, who could read
    /// the server's memory, and for operators and workers.
    fn status(&self, dispatcher: &DispatcherService, permit: &Permit) -> ClusterStatus {
        let scripts_failed = self.roles.scripts.as_ref().map_or(Vec::new(), |scripts| scripts.failures());
        // A worker of this process reports it, too.
        let store_wait = self.roles.worker.is_none().then(|| store_wait(&self.session)).flatten();
        let whole = ClusterStatus { scripts_failed, store_wait, ..dispatcher.status() };
        match permit.caller {
            Caller::Worker | Caller::Operator | Caller::Reader(Proof::User) => whole,
            Caller::Reader(Proof::Token | Proof::Certificate) => dispatcher.redacted(whole, &permit.pipelines),
        }
    }

    /// The scripts, if they can be opened again.
    fn scripts(&self) -> Result<&Arc<dyn Scripts>, Status> {
        let none = || failure(ErrorKind::Unsupported, "this server has no scripts: a program made its pipelines");
        self.roles.scripts.as_ref().ok_or_else(none)
    }

    /// Returns the source files and rows of samples.
    async fn trace(
        &self,
        call: TraceCall,
        permit: &Permit,
    ) -> Result<forebay_engine::Result<Vec<(String, u64)>>, Status> {
        let TraceCall { request, epoch, of } = call;
        let (feed, _) = self.open(&request, permit)?;
        let samples = match &of {
            Traced::Step(_) => feed.resolve(&request.read_options()).map_err(|error| status(&error))?.0.batch_size,
            Traced::Offsets(offsets) => offsets.end.saturating_sub(offsets.start),
        };
        if samples > TRACED_MAX {
            let message = format!("{samples} samples were requested; a call traces at most {TRACED_MAX}");
            return Err(failure(ErrorKind::Invalid, message));
        }
        let rows = match of {
            Traced::Step(step) => feed.trace(&request.read_options(), epoch, step).await,
            Traced::Offsets(offsets) => feed.trace_offsets(epoch, offsets).await,
        };
        Ok(rows.map(|rows| rows.into_iter().map(|row| (row.file, row.row)).collect()))
    }

    /// Serves one rank's stream to a client that only speaks Flight. Computes it here, or relays it from the workers.
    fn feed(&self, request: StreamRequest, permit: &Permit) -> Result<ReplyStream<FlightData>, Status> {
        let (feed, _) = self.open(&request, permit)?;
        let batch_size = feed.resolve(&request.read_options()).map_err(|error| status(&error))?.0.batch_size;
        let most = batch_size.min(feed.offsets_per_epoch().unwrap_or(u64::MAX));
        encode::check_batch(&feed.schema(), most).map_err(|error| status(&error))?;
        let (rank, world_size) = (request.rank, request.world_size);
        tracing::info!(
            pipeline = %request.pipeline, feed = %feed.id(), rank, world_size, from = %request.from, "stream opened"
        );
        let schema = encode::schema(&feed.schema());
        let is_alone = match (&self.roles.dispatcher, &self.roles.worker) {
            (Some(dispatcher), Some(worker)) => dispatcher.is_alone(worker.id()),
            _ => false,
        };
        let batches = match &self.roles.dispatcher {
            // Only the dispatcher knows the claims of ranks.
            Some(dispatcher) if !is_alone || request.delivery == Some(DeliveryMode::Dynamic) => {
                let metadata = metadata(&feed, &request).map_err(|error| status(&error))?;
                let request = StreamRequest { feed: Some(feed.id().to_owned()), ..request };
                let what = ReadPlan { request, metadata, schema: feed.schema() };
                let dispatch = Arc::new(Here(Arc::clone(dispatcher)));
                let reader = RemoteReader::new(dispatch, what, self.connect.clone()).map_err(|error| status(&error))?;
                let next = |mut reader: RemoteReader| async move { Some((reader.next().await?, reader)) };
                stream::unfold(reader, next).boxed()
            }
            _ => feed.read(&request.read_options()).map_err(|error| status(&error))?.into_stream().boxed(),
        };
        let counted = self.streams.open(feed.id(), feed.pipeline());
        let batches = batches.inspect_ok(move |batch| counted.sent(std::slice::from_ref(&batch.records))).boxed();
        Ok(encoded(schema, batches, |batch| encode::batch(&batch)))
    }

    fn info(
        &self,
        descriptor: FlightDescriptor,
        mut request: StreamRequest,
        permit: &Permit,
    ) -> Result<FlightInfo, Status> {
        let (feed, positions) = self.open(&request, permit)?;
        request.feed = Some(feed.id().to_owned());
        let ticket = Ticket::new(serde_json::to_vec(&request).expect("plain data becomes JSON"));
        let metadata = metadata(&feed, &request).map_err(|error| status(&error))?;
        // The number of rows that will be skipped is unknown before they are read.
        let records =
            positions.filter(|_| feed.settings().on_error == OnError::Raise).and_then(|n| i64::try_from(n).ok());
        let info = FlightInfo::new()
            .with_descriptor(descriptor)
            .with_endpoint(FlightEndpoint::new().with_ticket(ticket))
            .with_total_records(records.unwrap_or(-1))
            .with_ordered(true)
            .with_app_metadata(serde_json::to_vec(&metadata).expect("plain data becomes JSON"));
        info.try_with_schema(&feed.schema()).map_err(|error| unsendable_schema(&error))
    }
}

/// A stream of messages that starts with the schema's message.
fn encoded<T: Send + 'static>(
    schema: FlightData,
    items: BoxStream<'static, forebay_engine::Result<T>>,
    encode: impl Fn(T) -> forebay_engine::Result<FlightData> + Clone + Send + 'static,
) -> ReplyStream<FlightData> {
    let messages = items
        .map(move |item| {
            let encode = encode.clone();
            async move {
                let item = item?;
                // Copying a batch into a message takes longer than a serving thread may block.
                match tokio::task::spawn_blocking(move || encode(item)).await {
                    Ok(encoded) => encoded,
                    Err(_) => Err(Error::new(ErrorKind::Unavailable, "the server is shutting down")),
                }
            }
        })
        // Not `try_buffered`: its errors overtake the good batches before them.
        .buffered(ENCODED_AHEAD)
        .map_err(|error| status(&error));
    stream::once(async { Ok(schema) }).chain(messages).boxed()
}

/// The permissions of a request. Every request that passed the gate has a caller.
fn permit<T>(request: &Request<T>) -> Permit {
    let caller = request.extensions().get::<Caller>().copied().unwrap_or(Caller::Reader(Proof::Token));
    let pipelines = request.extensions().get::<Pipelines>().cloned().unwrap_or_default();
    let given = request.metadata().get(VERSION_HEADER).map(|given| String::from_utf8_lossy(given.as_bytes()));
    let other_version =
        given.filter(|given| given != version()).map(|given| shortened(&given, VERSION_CHARS_MAX).into());
    Permit { caller, pipelines, other_version }
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Status> {
    serde_json::from_slice(body)
        .map_err(|error| failure(ErrorKind::Invalid, format!("the action's body cannot be read: {error}")))
}

fn answer<T: Serialize>(answer: &forebay_engine::Result<T>) -> Result<Vec<u8>, Status> {
    match answer {
        Ok(answer) => Ok(serde_json::to_vec(answer).expect("plain data becomes JSON")),
        Err(error) => Err(status(error)),
    }
}

/// The request in a descriptor: the path is a pipeline's name, the command a [`StreamRequest`].
fn request(descriptor: &FlightDescriptor) -> Result<StreamRequest, Status> {
    match descriptor.r#type() {
        DescriptorType::Path if descriptor.path.len() == 1 => {
            Ok(StreamRequest::new(&descriptor.path[0], &FeedOptions::default(), &ReadOptions::default()))
        }
        DescriptorType::Cmd => parse(&descriptor.cmd, "command"),
        _ => Err(failure(
            ErrorKind::Invalid,
            "the descriptor must be a path of one pipeline name, \
             or a JSON command such as {\"pipeline\": \"train\", \"rank\": 0}",
        )),
    }
}

fn parse(json: &[u8], what: &str) -> Result<StreamRequest, Status> {
    serde_json::from_slice(json).map_err(|error| {
        let hint = "send JSON such as {\"pipeline\": \"train\", \"batch_size\": 32, \"rank\": 0, \"world_size\": 2}";
        let message = format!("the {what} is not a stream request: {error}");
        status(&Error::new(ErrorKind::Invalid, message).with_hint(hint))
    })
}

#[tonic::async_trait]
impl FlightService for ProcessService {
    type HandshakeStream = ReplyStream<HandshakeResponse>;
    type ListFlightsStream = ReplyStream<FlightInfo>;
    type DoGetStream = ReplyStream<FlightData>;
    type DoPutStream = ReplyStream<PutResult>;
    type DoActionStream = ReplyStream<arrow_flight::Result>;
    type ListActionsStream = ReplyStream<ActionType>;
    type DoExchangeStream = ReplyStream<FlightData>;

    async fn list_flights(&self, criteria: Request<Criteria>) -> Reply<Self::ListFlightsStream> {
        self.dispatcher()?;
        let permit = permit(&criteria);
        permit.check_version()?;
        let infos: Vec<_> = self
            .session
            .pipelines()
            .into_iter()
            // Unnamed queries are not listed.
            .filter(|name| !name.starts_with('_') && permit.pipelines.permit(name))
            .filter_map(|name| {
                let descriptor = FlightDescriptor::new_path(vec![name.clone()]);
                let info = request(&descriptor).and_then(|request| self.info(descriptor, request, &permit));
                // A pipeline that cannot be opened must not hide the others. Opening it reports the error.
                info.inspect_err(|error| tracing::warn!(pipeline = %name, %error, "pipeline left out of the list")).ok()
            })
            .map(Ok)
            .collect();
        Ok(Response::new(stream::iter(infos).boxed()))
    }

    async fn get_flight_info(&self, descriptor: Request<FlightDescriptor>) -> Reply<FlightInfo> {
        self.dispatcher()?;
        let permit = permit(&descriptor);
        let descriptor = descriptor.into_inner();
        if let Some(command) = sql::command(&descriptor.cmd) {
            permit.pipelines.check_all("Flight SQL")?;
            return sql::info(&self.session, descriptor, command).await.map(Response::new);
        }
        let request = request(&descriptor)?;
        self.info(descriptor, request, &permit).map(Response::new)
    }

    async fn get_schema(&self, descriptor: Request<FlightDescriptor>) -> Reply<SchemaResult> {
        self.dispatcher()?;
        let (feed, _) = self.open(&request(descriptor.get_ref())?, &permit(&descriptor))?;
        let options = IpcWriteOptions::default();
        let message = IpcMessage::try_from(SchemaAsIpc::new(&feed.schema(), &options));
        let IpcMessage(schema) = message.map_err(|error| unsendable_schema(&error))?;
        Ok(Response::new(SchemaResult { schema }))
    }

    async fn do_get(&self, ticket: Request<Ticket>) -> Reply<Self::DoGetStream> {
        let permit = permit(&ticket);
        let ticket = ticket.into_inner().ticket;
        if let (Some(worker), Ok(request)) = (&self.roles.worker, serde_json::from_slice::<WindowRequest>(&ticket)) {
            return worker.serve(&request, &FlightSender).await;
        }
        self.dispatcher()?;
        if let Some(command) = sql::command(&ticket) {
            permit.pipelines.check_all("Flight SQL")?;
            return sql::rows(&self.session, command).await.map(Response::new);
        }
        self.feed(parse(&ticket, "ticket")?, &permit).map(Response::new)
    }

    async fn do_action(&self, action: Request<Action>) -> Reply<Self::DoActionStream> {
        let permit = permit(&action);
        let caller = permit.caller;
        let Action { r#type, body } = action.into_inner();
        let dispatcher = self.dispatcher()?;
        if [actions::WORKER_SYNC, actions::FEED_SPEC, actions::SNAPSHOT].contains(&r#type.as_str()) {
            caller.check_worker()?;
        }
        if r#type == actions::SNAPSHOT {
            return snapshots::answer(dispatcher, read(&body)?).await.map(Response::new);
        }
        let answer = match r#type.as_str() {
            actions::WORKER_SYNC => answer(&dispatcher.worker_sync(read(&body)?).await),
            actions::READER_SYNC => {
                let call: ReaderCall = read(&body)?;
                self.check_feed(&call.request, &call.sync.feed, &permit)?;
                limits::check(&call.request, caller).map_err(|error| status(&error))?;
                let (request, feed) = (call.request.clone(), Arc::clone(&call.sync.feed));
                let answered = dispatcher.reader_sync(call).await;
                // Another client may have opened the feed in between.
                self.check_feed(&request, &feed, &permit)?;
                answer(&answered)
            }
            actions::CLAIM_SYNC => {
                let call: ClaimCall = read(&body)?;
                self.check_feed(&call.request, &call.message.feed, &permit)?;
                limits::check(&call.request, caller).map_err(|error| status(&error))?;
                let (request, feed) = (call.request.clone(), Arc::clone(&call.message.feed));
                let answered = dispatcher.claim_sync(call).await;
                self.check_feed(&request, &feed, &permit)?;
                answer(&answered)
            }
            actions::JOB_SYNC | actions::JOB_ESTIMATE => {
                caller.check_operator()?;
                let call: JobCall = read(&body)?;
                permit.check_version()?;
                permit.pipelines.check(&call.request.pipeline)?;
                limits::check(&call.request, caller).map_err(|error| status(&error))?;
                let jobs = self.roles.jobs.as_ref().ok_or_else(|| failure(ErrorKind::Internal, "no jobs"))?;
                match r#type.as_str() {
                    actions::JOB_ESTIMATE => answer(&jobs.estimate(&call).await),
                    _ => answer(&jobs.ask(dispatcher, call).await),
                }
            }
            actions::FEED_SPEC => answer(&dispatcher.spec(&read::<String>(&body)?)),
            actions::FEED_TRACE => answer(&self.trace(read(&body)?, &permit).await?),
            actions::STATUS => answer(&Ok(self.status(dispatcher, &permit))),
            actions::RELOAD => {
                caller.check_operator()?;
                answer(&Ok(self.scripts()?.reload(read::<ReloadCall>(&body)?.all).await))
            }
            other => Err(failure(ErrorKind::Unsupported, format!("there is no action \"{other}\""))),
        }?;
        Ok(Response::new(stream::iter([Ok(arrow_flight::Result { body: answer.into() })]).boxed()))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Reply<Self::ListActionsStream> {
        let actions = [
            (actions::STATUS, "Feeds, workers and readers, as JSON"),
            (actions::RELOAD, "Opens scripts again that changed, for an operator"),
            (actions::JOB_SYNC, "A job that writes samples to files to how far it is, for an operator"),
            (actions::JOB_ESTIMATE, "A job to what it would write, for an operator"),
            (actions::READER_SYNC, "A trainer's state to its next routes"),
            (actions::CLAIM_SYNC, "A rank's claims to those it may take next"),
            (actions::WORKER_SYNC, "A worker's state to the windows it should hold"),
            (actions::FEED_TRACE, "Samples to their source files and rows"),
            (actions::FEED_SPEC, "The id of a feed or a job to what a worker needs for it"),
            (actions::SNAPSHOT, "A snapshot that a feed reads to its text, in pieces"),
        ];
        let actions = actions.map(|(name, text)| Ok(ActionType { r#type: name.into(), description: text.into() }));
        Ok(Response::new(stream::iter(actions).boxed()))
    }

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Reply<Self::HandshakeStream> {
        Err(failure(ErrorKind::Unsupported, "no handshake is needed"))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Reply<PollInfo> {
        Err(failure(ErrorKind::Unsupported, "planning is immediate: use GetFlightInfo"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoPutStream> {
        Err(failure(ErrorKind::Unsupported, "a feed is read, not written"))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Reply<Self::DoExchangeStream> {
        Err(failure(ErrorKind::Unsupported, "use DoGet"))
    }
}
