//! Listening, serving and stopping.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use forebay_engine::{Error, ErrorKind, Result, Session};
use forebay_flight_client::{ConnectOptions, DispatcherClient};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server as TonicServer;

use crate::auth::{Access, Gate, Guard};
use crate::crash_record::CrashRecord;
use crate::dispatcher::DispatcherService;
use crate::encode::RawBodyService;
use crate::health_service::HealthService;
use crate::jobs::Jobs;
use crate::listen::{self, Identification, connections};
use crate::logins::FailedLogins;
use crate::metrics::health::Health;
use crate::metrics::{Metrics, MetricsEndpoint, SecurityState};
use crate::rotation::{Reload, Rotation, RotationState};
use crate::scaling::{Scaling, ScalingService};
use crate::scripts::Scripts;
use crate::service::{ProcessRoles, ProcessService};
use crate::tls::ServerTls;
use crate::user_secret::UserSecret;
use crate::worker::{Link, WorkerService};

/// How long open streams may continue, by default, after a server was told to stop or a worker has drained.
const STREAMS_DRAIN: Duration = Duration::from_secs(5);
/// How long trainers may continue to read, by default, from a worker that was told to stop.
const WORKER_DRAIN: Duration = Duration::from_secs(30);
/// The interval of checks that the user's secret is in its file.
const SECRET_CHECKED: Duration = Duration::from_secs(30);
/// A peer that is silent for longer than the sum of both is treated as lost.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent streams per connection.
const STREAMS_MAX: u32 = 1024;
/// The token is the only large header of a request.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Requests are small JSON.
pub(crate) const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Which clients are served, and how. The default speaks plain text, and serves its own user on loopback, or everyone
/// elsewhere.
///
/// The first of these that is given decides what a client may do: the tokens, its certificate, its user.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// The tokens. If any are set, every request must send one of them.
    pub access: Access,
    /// The certificates. Without them, the server speaks plain text.
    pub tls: Option<ServerTls>,
    /// Lets every user of this machine read, and join as a worker, if the server listens on loopback without tokens
    /// and client certificates.
    pub insecure: bool,
    /// Asks the server to read the files of tokens and certificates again at once. It also looks for changes itself.
    pub reload: Reload,
}

/// The roles of a process in a cluster. The default has all of them.
#[derive(Clone)]
pub struct Roles {
    /// The dispatchers to compute for; the first that answers is used. If empty, this process is the dispatcher.
    pub dispatchers: Vec<String>,
    /// Memory for the windows that this process computes; `None` computes none.
    pub worker_memory_bytes: Option<u64>,
    /// The address at which trainers reach the worker, if it differs from the listening address.
    pub advertise: Option<String>,
    /// Whether the worker is beside a trainer, and computes on what that leaves.
    pub beside_trainer: bool,
    /// Whether trainers on this machine may read over a local socket, if the server speaks plain text.
    pub local_socket: bool,
    /// How long trainers may continue to read after `stop`. A worker leaves earlier if nobody reads from it; what it
    /// still sends at the end may continue for five seconds. By default 30 seconds for a worker, and five for a
    /// dispatcher, which ends earlier if no stream is open.
    pub drain_timeout: Option<Duration>,
    /// How this process connects to the others.
    pub connect: ConnectOptions,
    /// The scripts behind the session of a dispatcher, if they can be opened again.
    pub scripts: Option<Arc<dyn Scripts>>,
    /// How many workers a dispatcher should have, and who starts them.
    pub scaling: Scaling,
    /// The folders and URLs below which operators may have a dispatcher's workers write files.
    pub writable: Vec<String>,
}

impl Default for Roles {
    fn default() -> Self {
        let connect = ConnectOptions::default();
        Self {
            dispatchers: Vec::new(),
            worker_memory_bytes: Some(1 << 30),
            advertise: None,
            beside_trainer: false,
            local_socket: true,
            drain_timeout: None,
            connect,
            scripts: None,
            scaling: Scaling::default(),
            writable: Vec::new(),
        }
    }
}

/// A server whose port is bound but which does not answer yet.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    /// The port that was asked for, or 0 for any free one.
    asked_port: u16,
    security: Security,
    /// Made by `secure`, or when the server begins to serve.
    gate: Option<Gate>,
    /// Kept until the server ends, for workers and other processes of this user.
    secret: Option<UserSecret>,
    /// Answers on the metrics port, if there is one.
    measuring: JoinSet<Infallible>,
    health: Arc<Health>,
    failed_logins: Arc<FailedLogins>,
    rotation: Arc<RotationState>,
    /// The CA of the other processes.
    ca: Option<PathBuf>,
}

impl Server {
    /// Binds the port; port 0 binds a free one.
    ///
    /// # Errors
    /// `Conflict` for a port in use, `Invalid` for an address that is not of this machine.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let asked_port = address.port();
        let (listener, address) = listen::bind(address, "port").await?;
        Ok(Self {
            listener,
            address,
            asked_port,
            security: Security::default(),
            gate: None,
            secret: None,
            measuring: JoinSet::new(),
            health: Arc::default(),
            failed_logins: Arc::default(),
            rotation: Arc::default(),
            ca: None,
        })
    }

    /// The same server, serving only the clients that `security` allows.
    ///
    /// A server for its own user leaves a secret for other processes of this user at once, so that it is there before
    /// they hear of the address. If no folder can hold the secret, they can read, and none can join as a worker.
    #[must_use]
    pub fn secure(mut self, security: Security) -> Self {
        let has_roles = security.tls.as_ref().is_some_and(|tls| tls.roles().is_some());
        let is_for_user = self.address.ip().to_canonical().is_loopback() && !security.insecure;
        // An earlier secret goes before a new one comes.
        self.secret = None;
        let gate = if !security.access.is_empty() {
            Gate::Tokens(security.access.clone())
        } else if has_roles {
            Gate::Certificates
        } else if is_for_user {
            let secret = UserSecret::create(self.address);
            let hint = "workers on this machine need the option \"token_file\" here and there";
            self.secret = secret.inspect_err(|error| tracing::warn!(%error, hint, "no secret for workers")).ok();
            Gate::User(self.secret.as_ref().map(UserSecret::hash))
        } else {
            Gate::Open
        };
        Self { security, gate: Some(gate), ..self }
    }

    /// The same server, with a port for metrics and health. The port answers from now on, though the server is not
    /// ready before it serves. Needs the runtime.
    #[must_use]
    pub fn measured(mut self, metrics: MetricsEndpoint) -> Self {
        self.measuring.spawn(metrics.serve(Arc::clone(&self.health)));
        self
    }

    /// The URI that the server listens on.
    pub fn uri(&self) -> String {
        let scheme = if self.security.tls.is_some() { "grpc+tls" } else { "grpc" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves the pipelines of `session` until `stop`, as dispatcher and worker in one process, which other workers may
    /// join. After `stop`, open streams may continue for some seconds.
    ///
    /// # Errors
    /// `Internal` if the listener fails.
    pub async fn serve(self, session: Arc<Session>, stop: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        self.run(session, Roles::default(), stop).await
    }

    /// Serves in these `roles` until `stop`. After `stop`, open streams may continue for some seconds.
    ///
    /// # Errors
    /// `Internal` if the listener fails; for a worker, permanent refusals by the dispatcher.
    pub async fn run(
        mut self,
        session: Arc<Session>,
        roles: Roles,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let address = roles.advertise.unwrap_or_else(|| self.uri());
        let dispatchers = roles.dispatchers.join(",");
        let is_worker_only = !roles.dispatchers.is_empty();
        let drain = roles.drain_timeout.unwrap_or(if is_worker_only { WORKER_DRAIN } else { STREAMS_DRAIN });
        let streams_drain = if is_worker_only { STREAMS_DRAIN } else { drain };
        let dispatcher = match roles.dispatchers.is_empty() {
            true => Some(Arc::new(DispatcherService::new(Arc::clone(&session))?)),
            false => None,
        };
        let worker = match roles.worker_memory_bytes {
            Some(memory) => {
                let worker = WorkerService::new(Arc::clone(&session), address.clone(), memory, drain)?;
                Some(Arc::new(worker.beside_trainer(roles.beside_trainer)))
            }
            None => None,
        };
        if let Some(dispatcher) = &dispatcher {
            dispatcher.set_own(worker.as_ref().map(|worker| worker.id()), &address);
        }
        let crashes = match (&dispatcher, &worker) {
            (Some(dispatcher), Some(worker)) => self.crashes(&session).map(|crashes| {
                let crashes = Arc::new(crashes);
                dispatcher.set_crashes(Arc::clone(&crashes));
                worker.set_crashes(Arc::clone(&crashes));
                crashes
            }),
            _ => None,
        };
        let link = Arc::new(match &dispatcher {
            Some(dispatcher) => Link::Here(Arc::clone(dispatcher)),
            None => Link::There(Box::new(DispatcherClient::new(roles.dispatchers, roles.connect.clone()))),
        });
        let streams = Arc::default();
        let health = Arc::clone(&self.health);
        let security =
            SecurityState { failed_logins: Arc::clone(&self.failed_logins), rotation: Arc::clone(&self.rotation) };
        self.ca = roles.connect.tls.ca.clone();
        health.serves(Metrics::new(dispatcher.clone(), worker.clone(), Arc::clone(&streams), security));
        // Dropped, and so ended, with this function.
        let _measuring = std::mem::take(&mut self.measuring);
        let scripts = roles.scripts.clone();
        let jobs = match &dispatcher {
            Some(_) => Some(Arc::new(Jobs::new(Arc::clone(&session), &roles.writable)?)),
            None => None,
        };
        let scaling = match &dispatcher {
            Some(dispatcher) => Some(ScalingService::new(Arc::clone(dispatcher), roles.scaling)?),
            None => None,
        };
        let process = ProcessRoles {
            dispatcher: dispatcher.clone(),
            worker: worker.clone(),
            address,
            dispatchers,
            scripts,
            jobs: jobs.clone(),
        };
        let service = ProcessService::new(session, process, streams, roles.connect);
        let (drained, is_drained) = tokio::sync::oneshot::channel::<()>();
        let draining = worker.clone();
        let stop = async move {
            stop.await;
            health.stops();
            // A worker drains: its trainers read on while other workers take over. A dispatcher stops with its worker.
            if let Some(worker) = draining.filter(|_| is_worker_only) {
                worker.drain();
                let _ = is_drained.await;
            }
        };
        let watching = async {
            match (&dispatcher, &jobs) {
                (Some(dispatcher), Some(jobs)) => dispatcher.watch(|| jobs.stop_forgotten()).await,
                _ => std::future::pending().await,
            }
        };
        let deciding = async {
            match &scaling {
                Some(scaling) => scaling.run().await,
                None => std::future::pending().await,
            }
        };
        let computing = async {
            match &worker {
                Some(worker) => worker.run(link).await,
                None => std::future::pending().await,
            }
        };
        let mut asked = self.security.reload.subscribe();
        let reloading = async {
            let Some(scripts) = roles.scripts else { return std::future::pending().await };
            while asked.changed().await.is_ok() {
                let scripts = Arc::clone(&scripts);
                // A task of its own, because planning takes long, and this process's worker must not fall silent.
                let mut opening = JoinSet::new();
                opening.spawn(async move { scripts.reload(false).await });
                opening.join_next().await;
            }
        };
        let has_local = roles.local_socket && self.security.tls.is_none();
        let local = worker.as_ref().filter(|_| has_local).and_then(|worker| listen::local(worker.id()));
        let serving = self.answer(service, local, streams_drain, stop);
        tokio::pin!(serving, watching, deciding, computing, reloading);
        let mut drained = Some(drained);
        loop {
            tokio::select! {
                // This process's worker joins before the first connection is accepted. Otherwise the first reader might
                // hear that there are no workers.
                biased;
                computed = &mut computing, if drained.is_some() => {
                    computed?;
                    drained.take().map(|drained| drained.send(()));
                }
                served = &mut serving => {
                    crashes.inspect(|crashes| crashes.remove());
                    return served;
                }
                () = &mut watching => {}
                () = &mut deciding => {}
                () = &mut reloading => {}
            }
        }
    }

    /// What earlier processes computed that ended here. Servers at any free port have no successor.
    fn crashes(&self, session: &Session) -> Option<CrashRecord> {
        if self.asked_port > 0 { CrashRecord::open(session.root(), self.address) } else { None }
    }

    /// Serves any Flight service, like [`Server::serve`].
    pub(crate) async fn answer(
        self,
        service: impl FlightService,
        local: Option<UnixListener>,
        drain: Duration,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let Self { listener, security, gate, mut secret, failed_logins, rotation, ca, health, .. } = match self.gate {
            Some(_) => self,
            None => self.secure(Security::default()),
        };
        let gate = gate.expect("a secured server has a gate");
        let (stopped, told) = tokio::sync::oneshot::channel();
        let stop = async move {
            stop.await;
            let _ = stopped.send(());
        };
        let identification = Identification {
            tls: security.tls.clone(),
            asks_user: matches!(gate, Gate::User(_)),
            failed: Arc::clone(&failed_logins),
        };
        let tokens = [&security.access.readers, &security.access.workers].into_iter().flatten();
        let rotating = Rotation::new(security.tls.as_ref(), tokens, ca, rotation).run(security.reload);
        let guard = Guard { gate, failed: failed_logins };
        let incoming = connections(listener, local, identification, listen::PATIENCE);
        let service = FlightServiceServer::new(service).max_decoding_message_size(REQUEST_BYTES_MAX);
        let service = RawBodyService(service);
        let serving = TonicServer::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(KEEP_ALIVE_TIMEOUT))
            .max_concurrent_streams(STREAMS_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .add_service(InterceptedService::new(service, guard))
            // Outside of the gate.
            .add_service(HealthService::server(health))
            .serve_with_incoming_shutdown(incoming, stop);
        let deadline = async {
            // An error means that serving ended by itself. The other branch reports that.
            if told.await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(drain).await;
        };
        let keeping = async {
            loop {
                tokio::time::sleep(SECRET_CHECKED).await;
                // Another process may hold the folder's lock.
                let restored = tokio::task::spawn_blocking(move || {
                    secret.iter_mut().for_each(UserSecret::restore);
                    secret
                });
                secret = restored.await.unwrap_or_default();
            }
        };
        tokio::select! {
            never = keeping => match never {},
            never = rotating => match never {},
            served = serving => {
                served.map_err(|error| Error::new(ErrorKind::Internal, format!("serving failed: {error}")))
            }
            () = deadline => {
                tracing::warn!("streams were still open at the end of the drain deadline");
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_flight::flight_service_client::FlightServiceClient;
    use arrow_flight::{Action, Criteria, Empty, FlightData, FlightDescriptor, HandshakeRequest, Ticket};
    use futures::stream;
    use tonic::Code;
    use tonic::transport::Channel;

    use super::*;
    use crate::auth::AccessTokens;

    /// Runs `test` with a client of a server without pipelines.
    async fn with_server<T>(security: Security, test: impl AsyncFnOnce(FlightServiceClient<Channel>) -> T) -> T {
        with_pipelines("", security, test).await
    }

    /// Runs `test` with a client of a server of these pipelines, which may read three rows of `rows.csv`.
    async fn with_pipelines<T>(
        script: &str,
        security: Security,
        test: impl AsyncFnOnce(FlightServiceClient<Channel>) -> T,
    ) -> T {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rows.csv"), "id,name\n1,a\n2,b\n3,c\n").unwrap();
        let session = Session::builder().base(folder.path()).root(folder.path().to_str().unwrap()).build().unwrap();
        session.execute("script.sql", script).await.unwrap();
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap().secure(security);
        let address = format!("http://{}", server.address);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let testing = async {
            let channel = Channel::from_shared(address).unwrap().connect().await.unwrap();
            let tested = test(FlightServiceClient::new(channel)).await;
            drop(stop);
            tested
        };
        let stopped = async {
            let _ = stopped.await;
        };
        let (served, tested) = tokio::join!(server.serve(Arc::new(session), stopped), testing);
        served.unwrap();
        tested
    }

    fn tokens() -> AccessTokens {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "sixteen-letters-or-more").unwrap();
        AccessTokens::read(file.path()).unwrap()
    }

    /// The code that each method of the service answers with.
    async fn codes(client: &mut FlightServiceClient<Channel>) -> Vec<Option<Code>> {
        macro_rules! codes {
            ($($method:ident($argument:expr)),* $(,)?) => {
                vec![$(client.$method($argument).await.err().map(|status| status.code())),*]
            };
        }
        codes![
            handshake(stream::empty::<HandshakeRequest>()),
            list_flights(Criteria::default()),
            get_flight_info(FlightDescriptor::new_path(vec!["train".into()])),
            poll_flight_info(FlightDescriptor::default()),
            get_schema(FlightDescriptor::default()),
            do_get(Ticket::new("{}")),
            do_put(stream::empty::<FlightData>()),
            do_exchange(stream::empty::<FlightData>()),
            do_action(Action::default()),
            list_actions(Empty {}),
        ]
    }

    #[tokio::test]
    async fn a_server_has_its_worker_before_it_accepts_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let session = Session::builder().base(folder.path()).root(folder.path().to_str().unwrap()).build().unwrap();
        let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        let health = Arc::clone(&server.health);
        let serving = server.serve(Arc::new(session), std::future::pending());
        tokio::pin!(serving);
        assert!(futures::poll!(&mut serving).is_pending());
        let metrics = health.metrics().await.unwrap().text().unwrap();
        assert!(metrics.contains("\nforebay_dispatcher_workers 1\n"), "{metrics}");
    }

    #[tokio::test]
    async fn every_method_asks_for_the_token() {
        let access = Access { readers: Some(tokens()), workers: None };
        let security = Security { access, ..Security::default() };
        let codes_with_tokens = with_server(security, async |mut client| codes(&mut client).await).await;
        assert_eq!(codes_with_tokens, [Some(Code::Unauthenticated); 10]);
        let codes = with_server(Security::default(), async |mut client| codes(&mut client).await).await;
        assert!(!codes.contains(&Some(Code::Unauthenticated)), "{codes:?}");
    }

    /// A socket of another user needs root. Without it, this test checks nothing.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn on_loopback_every_method_asks_for_the_user() {
        let connect_as_other = |address: SocketAddr| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            std::os::unix::fs::fchown(&socket, Some(54_321), None)?;
            socket.connect(&address.into())?;
            socket.set_nonblocking(true)?;
            tokio::net::TcpStream::from_std(socket.into())
        };
        for insecure in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let session = Session::builder().base(folder.path()).root(folder.path().to_str().unwrap()).build().unwrap();
            let security = Security { insecure, ..Security::default() };
            let server = Server::bind(([127, 0, 0, 1], 0).into()).await.unwrap().secure(security);
            let address = server.address;
            let stream = match connect_as_other(address) {
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return,
                stream => hyper_util::rt::TokioIo::new(stream.unwrap()),
            };
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let testing = async {
                let mut stream = Some(stream);
                let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
                let connector = tower::service_fn(move |_| {
                    std::future::ready(stream.take().ok_or(std::io::Error::from(std::io::ErrorKind::NotConnected)))
                });
                let channel = endpoint.connect_with_connector(connector).await.unwrap();
                let codes = codes(&mut FlightServiceClient::new(channel)).await;
                drop(stop);
                codes
            };
            let stopped = async {
                let _ = stopped.await;
            };
            let (served, codes) = tokio::join!(server.serve(Arc::new(session), stopped), testing);
            served.unwrap();
            let refused = codes.iter().filter(|code| **code == Some(Code::Unauthenticated)).count();
            assert_eq!(refused, if insecure { 0 } else { 10 }, "{codes:?}");
        }
    }

    #[tokio::test]
    async fn requests_that_would_take_any_memory_are_refused_before_a_feed_is_opened_or_read() {
        let script = "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'rows.csv';
            CREATE PIPELINE all_rows AS SELECT resize(decode_image(CAST(name AS BYTEA)), 1024, 1024) AS image FROM t;
            CREATE PIPELINE some_rows AS
                SELECT resize(decode_image(CAST(name AS BYTEA)), 1024, 1024) AS image FROM t WHERE id > 1;";
        with_pipelines(script, Security::default(), async |mut client| {
            // The limit comes first: there is no such pipeline.
            for option in ["window_rows", "window_bytes", "batch_size", "global_batch_size"] {
                let request = format!("{{\"pipeline\": \"nowhere\", \"{option}\": 1152921504606846976}}");
                let refused = client.get_flight_info(FlightDescriptor::new_cmd(request)).await.unwrap_err();
                let expected = format!("a client of this server may set \"{option}\" to at most");
                assert!(refused.code() == Code::InvalidArgument && refused.message().contains(&expected), "{refused}");
            }
            let mut read = async |pipeline: &str, batch_size: u64| {
                let request = format!("{{\"pipeline\": \"{pipeline}\", \"batch_size\": {batch_size}}}");
                client.do_get(Ticket::new(request)).await.map(|_| ()).map_err(|status| status.message().to_owned())
            };
            let refused = "a batch of 683 samples of 3145728 bytes each is more than one Flight message holds (2 GiB)\n\
                           hint: give \"batch_size\" at most 682";
            assert_eq!(read("some_rows", 683).await, Err(refused.to_owned()));
            assert_eq!(read("some_rows", 682).await, Ok(()));
            // Three rows fit, however many are asked for.
            assert_eq!(read("all_rows", 683).await, Ok(()));
        })
        .await;
    }

    #[tokio::test]
    async fn requests_have_a_size_limit() {
        with_server(Security::default(), async |mut client| {
            let command = vec![b' '; REQUEST_BYTES_MAX + 1];
            let refused = client.get_flight_info(FlightDescriptor::new_cmd(command)).await.unwrap_err();
            assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
            assert!(refused.message().contains("1048576"), "{refused}");
            let mut request = tonic::Request::new(FlightDescriptor::default());
            let long = "x".repeat(2 * HEADER_BYTES_MAX as usize);
            request.metadata_mut().insert("authorization", long.parse().unwrap());
            let refused = client.get_schema(request).await.unwrap_err();
            assert!(refused.message().contains("431"), "{refused}");
            // The connection survives.
            assert!(client.list_flights(Criteria::default()).await.is_ok());
        })
        .await;
    }
}
