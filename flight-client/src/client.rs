//! A connection to a Forebay server: list, open, read.

use std::time::Duration;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Criteria, FlightDescriptor, FlightInfo, Ticket};
use forebay_engine::{Batch, Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::wire::{BatchMetadata, FeedMetadata, StreamRequest};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Without keep-alive a client whose server's machine vanished would wait for ever.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a server.
#[derive(Clone, Debug)]
pub struct Client {
    service: FlightServiceClient<Channel>,
    uri: String,
}

/// A pipeline that a server offers.
#[derive(Clone, Debug)]
pub struct PipelineInfo {
    /// Its name.
    pub name: String,
    /// The schema of its samples.
    pub schema: Schema,
}

impl Client {
    /// Connects to `uri`, such as `grpc://127.0.0.1:7070`.
    ///
    /// # Errors
    /// `Invalid` for a URI of another kind, `Unavailable` if nothing answers within five seconds.
    pub async fn connect(uri: &str) -> Result<Self> {
        let address = match uri.split_once("://") {
            Some(("grpc" | "grpc+tcp" | "http", address)) => address,
            None => uri,
            Some((scheme, _)) => {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    format!("cannot connect to \"{uri}\": unknown scheme \"{scheme}\""),
                )
                .with_hint("write grpc://HOST:PORT"));
            }
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| {
                Error::new(ErrorKind::Invalid, format!("\"{uri}\" is not an address: {error}"))
                    .with_hint("write grpc://HOST:PORT")
            })?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            // The default of 64 KiB would pace a stream of batches by round trips.
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(16 << 20);
        let channel = endpoint.connect().await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, format!("no server answers at {uri}: {}", root_cause(&error)))
                .with_hint("start one with `forebay serve FILE.sql`, or check host and port")
        })?;
        let service = FlightServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        Ok(Self { service, uri: uri.to_owned() })
    }

    /// The pipelines that the server offers.
    ///
    /// # Errors
    /// `Unavailable` if the server is gone.
    pub async fn pipelines(&mut self) -> Result<Vec<PipelineInfo>> {
        let flights = self.service.list_flights(Criteria::default()).await.map_err(|status| self.error(&status))?;
        let flights: Vec<FlightInfo> =
            flights.into_inner().try_collect().await.map_err(|status| self.error(&status))?;
        flights
            .into_iter()
            .map(|info| {
                let name =
                    info.flight_descriptor.as_ref().map(|descriptor| descriptor.path.join("/")).unwrap_or_default();
                Ok(PipelineInfo { name, schema: self.schema(info)? })
            })
            .collect()
    }

    /// Plans a stream; nothing is computed yet.
    ///
    /// # Errors
    /// What the server says: `NotFound` for an unknown pipeline, `Invalid` for options that make no sense.
    pub async fn open(&mut self, request: &StreamRequest) -> Result<RemoteFeed> {
        let command = serde_json::to_vec(request).expect("plain data becomes JSON");
        let info = self.service.get_flight_info(FlightDescriptor::new_cmd(command)).await;
        let info = info.map_err(|status| self.error(&status))?.into_inner();
        let foreign = || not_forebay(&self.uri, "its flight info names no feed");
        let metadata: FeedMetadata = serde_json::from_slice(&info.app_metadata).map_err(|_| foreign())?;
        let ticket = info.endpoint.first().and_then(|endpoint| endpoint.ticket.clone()).ok_or_else(foreign)?;
        let schema = SchemaRef::new(self.schema(info)?);
        Ok(RemoteFeed { client: self.clone(), metadata, schema, ticket })
    }

    fn schema(&self, info: FlightInfo) -> Result<Schema> {
        info.try_decode_schema().map_err(|error| {
            Error::new(ErrorKind::Internal, format!("{} sent a schema that cannot be read: {error}", self.uri))
        })
    }

    /// Of a first request, when nothing was there yet to be lost.
    fn error(&self, status: &Status) -> Error {
        error_of(&self.uri, status, |cause| not_forebay(&self.uri, cause))
    }
}

/// A feed that a server has planned.
#[derive(Clone, Debug)]
pub struct RemoteFeed {
    client: Client,
    metadata: FeedMetadata,
    schema: SchemaRef,
    ticket: Ticket,
}

impl RemoteFeed {
    /// The feed's id.
    pub fn id(&self) -> &str {
        &self.metadata.feed
    }

    /// The schema of its samples.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Samples per epoch over all ranks, where that is known before reading.
    pub fn samples_per_epoch(&self) -> Option<u64> {
        self.metadata.samples_per_epoch
    }

    /// Begins to read.
    ///
    /// # Errors
    /// What the server says.
    pub async fn read(mut self) -> Result<RemoteReader> {
        let stream = self.client.service.do_get(self.ticket).await;
        let stream = stream
            .map_err(|status| error_of(&self.client.uri, &status, |cause| lost(&self.client.uri, cause)))?
            .into_inner();
        let data = FlightDataDecoder::new(stream.map_err(|status| FlightError::Tonic(Box::new(status))));
        Ok(RemoteReader { data, uri: self.client.uri, last: None, failed: false })
    }
}

/// Reads batches from a server; the same batches that a reader in process gives.
pub struct RemoteReader {
    data: FlightDataDecoder,
    uri: String,
    last: Option<BatchMetadata>,
    failed: bool,
}

impl RemoteReader {
    /// The next batch, or `None` after the last epoch. After an error there is nothing more.
    pub async fn next(&mut self) -> Option<Result<Batch>> {
        if self.failed {
            return None;
        }
        let next = self.advance().await;
        self.failed = next.is_err();
        next.transpose()
    }

    async fn advance(&mut self) -> Result<Option<Batch>> {
        loop {
            let Some(data) = self.data.next().await else { return Ok(None) };
            let data = data.map_err(|error| self.lost(&error))?;
            let DecodedPayload::RecordBatch(records) = data.payload else { continue };
            let metadata: BatchMetadata = serde_json::from_slice(&data.inner.app_metadata).map_err(|error| {
                Error::new(ErrorKind::Internal, format!("{} sent a batch without its place: {error}", self.uri))
            })?;
            // A position counts what was handed out, so nothing may come twice or out of order.
            if self.last.as_ref().is_some_and(|last| (metadata.epoch, metadata.offset) <= (last.epoch, last.offset)) {
                let place = format!("epoch {}, offset {}", metadata.epoch, metadata.offset);
                return Err(Error::new(ErrorKind::Internal, format!("{} sent {place} out of order", self.uri)));
            }
            let batch = Batch {
                epoch: metadata.epoch,
                step: metadata.step,
                offset: metadata.offset,
                positions: metadata.positions,
                records,
                token: metadata.token.parse()?,
            };
            self.last = Some(metadata);
            return Ok(Some(batch));
        }
    }

    fn lost(&self, error: &FlightError) -> Error {
        let error = match error {
            FlightError::Tonic(status) => error_of(&self.uri, status, |cause| lost(&self.uri, cause)),
            other => Error::new(ErrorKind::Internal, format!("{} sent what cannot be read: {other}", self.uri)),
        };
        match &self.last {
            Some(last) if error.kind() == ErrorKind::Unavailable => {
                error.with_hint(format!("when it is back, go on with --from {}", last.token))
            }
            _ => error,
        }
    }
}

fn lost(uri: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("lost the server at {uri}: {cause}"))
        .with_hint("check that it runs, then read again")
}

fn not_forebay(uri: &str, cause: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("{uri} does not answer as a Forebay server does: {cause}"))
        .with_hint("check host and port: `forebay serve` says where it listens")
}

/// The server's error as the engine made it, or what `broken` makes of a broken connection.
fn error_of(uri: &str, status: &Status, broken: impl Fn(&str) -> Error) -> Error {
    let sent = std::error::Error::source(status).is_none();
    let kind = match status.code() {
        Code::InvalidArgument => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::NotFound,
        Code::FailedPrecondition => ErrorKind::Conflict,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::DataLoss => ErrorKind::Data,
        Code::Unimplemented => return not_forebay(uri, status.message()),
        Code::Unavailable if sent => ErrorKind::Unavailable,
        Code::Internal if sent => ErrorKind::Internal,
        // A broken connection surfaces as Unknown, Internal or Cancelled with a transport error inside.
        _ => return broken(&std::error::Error::source(status).map_or_else(|| status.message().to_owned(), root_cause)),
    };
    match status.message().split_once("\nhint: ") {
        Some((message, hint)) => Error::new(kind, message).with_hint(hint),
        None => Error::new(kind, status.message()),
    }
}

fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
