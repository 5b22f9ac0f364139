//! A connection to a Forebay server: list, open, read.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::{Action, Criteria, FlightDescriptor, FlightInfo};
use forebay_delivery::Status as ClusterStatus;
use forebay_protocol::{Error, ErrorKind, JobEstimate, Result};
use futures::TryStreamExt;
use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant, sleep};
use tonic::Status;

use crate::connect::{self, AuthorizedClient, ConnectOptions};
use crate::dispatcher::{DispatcherClient, addresses, call};
use crate::probe;
use crate::read_plan::ReadPlan;
use crate::remote::RemoteReader;
use crate::status::{not_forebay, sent_error};
use crate::wire::{
    FeedMetadata, JobAnswer, JobCall, ReloadCall, ScriptReport, StreamRequest, TraceCall, Traced, actions,
};

/// Pause between attempts to connect to a server that is not up yet, and to call one whose connection broke.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// A connection to a server.
#[derive(Clone, Debug)]
pub struct Client {
    service: AuthorizedClient,
    /// The address in use, and its number.
    uri: String,
    at: usize,
    addresses: Vec<String>,
    options: ConnectOptions,
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
    /// Connects to `uri`, such as `grpc://127.0.0.1:7070`. Of a comma-separated list, connects to the first that
    /// answers.
    ///
    /// # Errors
    /// `Invalid` for an unsupported URI, `Unavailable` if no server answers within five seconds.
    pub async fn connect(uri: &str) -> Result<Self> {
        Self::connect_with(uri, &ConnectOptions::default()).await
    }

    /// Connects to `uri`, such as `grpc+tls://feeds.example.org:7070`, with a token or over TLS. If `options` set a
    /// patience, retries for that long until the server is up.
    ///
    /// # Errors
    /// Those of [`Client::connect`]; `Denied` if no secure connection can be made.
    pub async fn connect_with(uri: &str, options: &ConnectOptions) -> Result<Self> {
        Self::connect_from(&addresses(uri), 0, options, options.patience.unwrap_or_default()).await
    }

    /// Tries each address once, beginning with number `first`, and repeats that until `patience` has passed.
    async fn connect_from(
        addresses: &[String],
        first: usize,
        options: &ConnectOptions,
        patience: Duration,
    ) -> Result<Self> {
        let began = Instant::now();
        loop {
            match Self::connect_once(addresses, first, options).await {
                Err(error) if error.kind() == ErrorKind::Unavailable && began.elapsed() < patience => {
                    sleep(RETRY_PAUSE.min(patience)).await;
                }
                connected => return connected,
            }
        }
    }

    async fn connect_once(addresses: &[String], first: usize, options: &ConnectOptions) -> Result<Self> {
        let mut failed = None;
        for (at, uri) in addresses.iter().enumerate().cycle().skip(first % addresses.len()).take(addresses.len()) {
            match connect::connect(uri, options).await {
                Ok(service) => {
                    let (uri, addresses, options) = (uri.clone(), addresses.to_vec(), options.clone());
                    return Ok(Self { service, uri, at, addresses, options });
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "no server address was given")))
    }

    /// The pipelines that the server offers.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer.
    pub async fn pipelines(&mut self) -> Result<Vec<PipelineInfo>> {
        let listed = |mut service: AuthorizedClient| async move {
            service.list_flights(Criteria::default()).await?.into_inner().try_collect().await
        };
        let flights: Vec<FlightInfo> = self.call(listed).await?;
        flights
            .into_iter()
            .map(|info| {
                let name =
                    info.flight_descriptor.as_ref().map(|descriptor| descriptor.path.join("/")).unwrap_or_default();
                Ok(PipelineInfo { name, schema: self.schema(info)? })
            })
            .collect()
    }

    /// Plans a stream. Computes nothing yet.
    ///
    /// # Errors
    /// The server's errors: `NotFound` for an unknown pipeline, `Invalid` for invalid options.
    pub async fn open(&mut self, request: &StreamRequest) -> Result<RemoteFeed> {
        let command = serde_json::to_vec(request).expect("plain data becomes JSON");
        let descriptor = FlightDescriptor::new_cmd(command);
        let planned = |mut service: AuthorizedClient| {
            let descriptor = descriptor.clone();
            async move { service.get_flight_info(descriptor).await }
        };
        let info = self.call(planned).await?.into_inner();
        let foreign = || not_forebay(&self.uri, "its flight info names no feed");
        let metadata: FeedMetadata = serde_json::from_slice(&info.app_metadata).map_err(|_| foreign())?;
        let schema = SchemaRef::new(self.schema(info)?);
        let request = StreamRequest { feed: Some(metadata.feed.clone()), ..request.clone() };
        Ok(RemoteFeed { client: self.clone(), metadata, schema, request })
    }

    /// The state of the dispatcher: feeds, workers, readers.
    ///
    /// # Errors
    /// `Unavailable` if the server does not answer or is not a dispatcher.
    pub async fn status(&mut self) -> Result<ClusterStatus> {
        self.act(Action::new(actions::STATUS, "")).await
    }

    /// Asks the server to open its scripts again: those that changed, or `all`.
    ///
    /// # Errors
    /// `Denied` without an operator's token; `Unsupported` for a server without scripts; `Unavailable` if the server
    /// does not answer.
    pub async fn reload(&mut self, all: bool) -> Result<Vec<ScriptReport>> {
        let body = serde_json::to_vec(&ReloadCall { all }).expect("plain data becomes JSON");
        self.act(Action::new(actions::RELOAD, body)).await
    }

    /// Asks for a job, which continues while it is asked for. The answer takes half a second at most.
    pub(crate) async fn ask_for_job(&mut self, call: &JobCall) -> Result<JobAnswer> {
        let body = serde_json::to_vec(call).expect("plain data becomes JSON");
        self.act(Action::new(actions::JOB_SYNC, body)).await
    }

    /// Asks for a job's estimate.
    pub(crate) async fn ask_for_estimate(&mut self, call: &JobCall) -> Result<JobEstimate> {
        let body = serde_json::to_vec(call).expect("plain data becomes JSON");
        self.act(Action::new(actions::JOB_ESTIMATE, body)).await
    }

    /// Turns to the next of several addresses that answers.
    pub(crate) async fn next_server(&mut self) -> Result<()> {
        *self = Self::connect_from(&self.addresses, self.at + 1, &self.options, Duration::ZERO).await?;
        Ok(())
    }

    fn schema(&self, info: FlightInfo) -> Result<Schema> {
        info.try_decode_schema().map_err(|error| {
            Error::new(ErrorKind::Internal, format!("{} sent a schema that cannot be read: {error}", self.uri))
        })
    }

    /// Calls an action, as [`call`](Self::call) does.
    async fn act<T: DeserializeOwned>(&mut self, action: Action) -> Result<T> {
        let acted = |mut service: AuthorizedClient| {
            let action = action.clone();
            async move { call(&mut service, action).await }
        };
        self.call(acted).await
    }

    /// Calls the server. If the connection breaks, calls the next address. The connection to a server that has just
    /// ended breaks, and so does one to a service that is not Forebay's, so each address is tried again.
    async fn call<T, Called>(&mut self, call: impl Fn(AuthorizedClient) -> Called) -> Result<T>
    where
        Called: Future<Output = Result<T, Status>>,
    {
        let (began, patience) = (Instant::now(), self.options.patience.unwrap_or_default());
        let mut retries = self.addresses.len();
        loop {
            let broken = match call(self.service.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(status) => match sent_error(&self.uri, &status) {
                    Ok(sent) => return Err(sent),
                    Err(cause) => not_forebay(&self.uri, &cause),
                },
            };
            if broken.kind() != ErrorKind::Unavailable || (retries == 0 && began.elapsed() >= patience) {
                return Err(broken);
            }
            if retries == 0
                && let Some(mistaken) = probe::mistaken(&self.uri).await
            {
                return Err(mistaken);
            }
            retries = retries.saturating_sub(1);
            sleep(RETRY_PAUSE).await;
            let patience = patience.saturating_sub(began.elapsed());
            *self = Self::connect_from(&self.addresses, self.at + 1, &self.options, patience).await?;
        }
    }
}

/// A feed planned by a server.
#[derive(Clone, Debug)]
pub struct RemoteFeed {
    client: Client,
    metadata: FeedMetadata,
    schema: SchemaRef,
    request: StreamRequest,
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

    /// The resolved request: batch size, epochs, start position.
    pub fn metadata(&self) -> &FeedMetadata {
        &self.metadata
    }

    /// Samples per epoch over all ranks, if known before reading.
    pub fn samples_per_epoch(&self) -> Option<u64> {
        self.metadata.samples_per_epoch
    }

    /// Source file and row (from 0) of samples of an epoch, like `Feed::trace`. The server reads and filters their
    /// windows and transforms nothing.
    ///
    /// # Errors
    /// The server's errors while it reads the sources; `Invalid` for more than 2^20 samples.
    pub async fn trace(&self, epoch: u64, of: Traced) -> Result<Vec<(String, u64)>> {
        let call_of = TraceCall { request: self.request.clone(), epoch, of };
        let body = serde_json::to_vec(&call_of).expect("plain data becomes JSON");
        let action = Action::new(actions::FEED_TRACE, body);
        self.client.clone().act(action).await
    }

    /// Starts reading, from the workers that the server names.
    ///
    /// # Errors
    /// `Invalid` if dynamic delivery cannot start at this position.
    pub fn read(self) -> Result<RemoteReader> {
        let dispatcher = DispatcherClient::new(self.client.addresses, self.client.options.clone());
        let what = ReadPlan { request: self.request, metadata: self.metadata, schema: self.schema };
        RemoteReader::new(Arc::new(dispatcher), what, self.client.options)
    }
}
