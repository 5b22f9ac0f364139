//! Connecting to a server: its URI, TLS, and the token or the user's secret in every request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use forebay_delivery::STREAMS_OF_A_RANK_MAX;
use forebay_protocol::{Error, ErrorKind, Result, VERSION_HEADER, version};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

use crate::last_read::LastRead;
use crate::local;
use crate::pem::PemFile;
use crate::secret;
use crate::status::{root_cause, tls_failure};
use crate::token_file::read_own_token;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Without keep-alive, a client would wait forever for a server whose machine vanished.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes received at a time. Each frame is a system call of the server and should stay in a core's cache until it is
/// copied.
const FRAME_BYTES: u32 = 512 << 10;

/// Bytes of one stream that a server may send before the client asks for more. The default of 64 KiB would limit a
/// stream of batches to one window per round trip.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Bytes of all streams of a connection that a server may send before the client asks for more.
///
/// A rank does not poll streams without room, and their bytes stay in this window. With room for the full windows of
/// all streams of a rank, the one that its loop waits for always has its own part.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS_OF_A_RANK_MAX as u32;

/// Default of the bytes received ahead of a loop, about, over all streams.
const BUFFER_BYTES: u64 = 64 << 20;

/// A Flight client that sends the token with every request.
pub(crate) type AuthorizedClient = FlightServiceClient<Carrier>;
/// The channel of an [`AuthorizedClient`]. It adds the token.
pub(crate) type Carrier = InterceptedService<Channel, Bearer>;

/// How to connect to servers, and the credentials to use.
#[derive(Clone, Default)]
pub struct ConnectOptions {
    /// The token that proves to the server that this client may call it, if the server requires one.
    pub token: Option<String>,
    /// A file whose first token is sent, if there is no `token`. It is read again for each request, so a new token
    /// needs no new connection.
    pub token_file: Option<PathBuf>,
    /// Certificates, for URIs such as `grpc+tls://HOST:PORT`.
    pub tls: ClientTls,
    /// Sends the token in plain text to other machines too, where anyone on the network path can read it.
    pub insecure: bool,
    /// How long a server or all workers may be unreachable before reading gives up; default 30 seconds. If set,
    /// connecting also retries for this long while the server is not up yet.
    pub patience: Option<Duration>,
    /// Bytes to receive ahead of the loop, about; default 64 MiB.
    pub buffer_bytes: Option<u64>,
    /// What was read last from the files of token and certificates: used while a file is missing or wrong.
    pub last_read: LastRead,
}

/// Certificates of a client, as PEM files.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// The only CA to trust; default the system's.
    pub ca: Option<PathBuf>,
    /// The client's own certificate, for a server that requires one.
    pub certificate: Option<PathBuf>,
    /// The key of `certificate`.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have; default the URI's host.
    pub server_name: Option<String>,
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("token_file", &self.token_file)
            .field("tls", &self.tls)
            .field("insecure", &self.insecure)
            .field("patience", &self.patience)
            .field("buffer_bytes", &self.buffer_bytes)
            .finish()
    }
}

impl ConnectOptions {
    /// Bytes to receive ahead of the loop, about.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.buffer_bytes.unwrap_or(BUFFER_BYTES)
    }
}

impl ClientTls {
    fn is_given(&self) -> bool {
        self.ca.is_some() || self.certificate.is_some() || self.key.is_some() || self.server_name.is_some()
    }

    fn config(&self) -> Result<ClientTlsConfig> {
        let mut config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
        config = match &self.ca {
            Some(path) => {
                let file = PemFile::read("CA certificate", path)?;
                file.ca_validity()?;
                config.ca_certificate(Certificate::from_pem(file.bytes()))
            }
            None => config.with_native_roots(),
        };
        if let Some(name) = &self.server_name {
            config = config.domain_name(name);
        }
        match (&self.certificate, &self.key) {
            (None, None) => Ok(config),
            (Some(certificate), Some(key)) => {
                let certificate = PemFile::read("client certificate", certificate)?;
                certificate.chain_validity()?;
                let key = PemFile::read("client key", key)?;
                key.private_key()?;
                Ok(config.identity(Identity::from_pem(certificate.bytes(), key.bytes())))
            }
            (Some(_), None) => {
                Err(invalid("a client certificate was given without its key", "add the option \"tls.key\""))
            }
            (None, Some(_)) => {
                Err(invalid("a client key was given without its certificate", "add the option \"tls.cert\""))
            }
        }
    }

    /// The error for files that tonic could not combine.
    fn unusable(&self, cause: &str) -> Error {
        let path = |path: &Option<PathBuf>| path.as_deref().unwrap_or("".as_ref()).display().to_string();
        if cause.contains("KeyMismatch") {
            let message = format!(
                "the client key \"{}\" does not belong to the client certificate \"{}\"",
                path(&self.key),
                path(&self.certificate)
            );
            return invalid(&message, "give the key that the certificate was made for");
        }
        if cause.contains("no native certs") {
            return invalid("this system has no CA certificates", "give the server's CA with the option \"tls.ca\"");
        }
        Error::new(ErrorKind::Invalid, format!("TLS cannot be set up: {cause}"))
    }
}

/// Adds the version, the token and, on loopback, the user's secret to each request.
#[derive(Clone)]
pub(crate) struct Bearer {
    token: Option<MetadataValue<Ascii>>,
    /// The file of the token, if it is in a file.
    file: Option<(PathBuf, LastRead)>,
    /// The server's address, if it is on loopback.
    server: Option<SocketAddr>,
}

impl Bearer {
    fn new(options: &ConnectOptions) -> Result<Self> {
        let token = options.token.as_deref().map(header).transpose()?;
        let file = options.token_file.clone().filter(|_| token.is_none());
        let bearer = Self { token, file: file.map(|path| (path, options.last_read.clone())), server: None };
        bearer.current()?;
        Ok(bearer)
    }

    /// The token to send now.
    fn current(&self) -> Result<Option<MetadataValue<Ascii>>> {
        let Some((path, last_read)) = &self.file else { return Ok(self.token.clone()) };
        last_read.token(read_own_token(path).and_then(|token| header(&token))).map(Some)
    }
}

/// The header with a token.
fn header(token: &str) -> Result<MetadataValue<Ascii>> {
    let value = format!("Bearer {token}").parse().ok().filter(|_| token.bytes().all(|byte| byte.is_ascii_graphic()));
    // The message must not contain the token.
    let mut value: MetadataValue<Ascii> = value.ok_or_else(|| {
        invalid("the token has characters that a header cannot hold", "a token is visible ASCII without spaces")
    })?;
    value.set_sensitive(true);
    Ok(value)
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Ok(version) = version().parse() {
            request.metadata_mut().insert(VERSION_HEADER, version);
        }
        // Reading succeeded once, so there is a token.
        if let Some(token) = self.current().ok().flatten() {
            request.metadata_mut().insert("authorization", token);
        }
        // Read each time: a server that restarted at the same address has another secret.
        let secret = self.server.and_then(secret::read).and_then(|secret| secret.parse::<MetadataValue<Ascii>>().ok());
        if let Some(mut secret) = secret {
            secret.set_sensitive(true);
            request.metadata_mut().insert(secret::HEADER, secret);
        }
        Ok(request)
    }
}

/// Connects to `uri`: `grpc://HOST:PORT`, or `grpc+tls://HOST:PORT` with TLS.
///
/// # Errors
/// `Invalid` for an unsupported URI, for unusable files, and for a token that anyone on the network path could read;
/// `Unavailable` if no server answers within five seconds; `Denied` if no secure connection can be made.
pub(crate) async fn connect(uri: &str, options: &ConnectOptions) -> Result<AuthorizedClient> {
    let carrier = carrier(uri, None, options).await?;
    Ok(FlightServiceClient::new(carrier).max_decoding_message_size(usize::MAX))
}

/// Like [`connect`], for requests that are not made by tonic. Uses the socket `local` if it exists on this machine.
pub(crate) async fn carrier(uri: &str, local: Option<&Path>, options: &ConnectOptions) -> Result<Carrier> {
    let mut bearer = Bearer::new(options)?;
    let has_token = bearer.token.is_some() || bearer.file.is_some();
    let (tls, address) = split(uri)?;
    let mut endpoint = endpoint(uri, tls, address)?;
    bearer.server = endpoint.uri().port_u16().and_then(|port| secret::address(endpoint.uri().host()?, port));
    if let Some(server) = bearer.server.filter(|_| !tls) {
        // Not by name, which may lead to another address than the one of the secret.
        endpoint = self::endpoint(uri, tls, &server.to_string())?;
    }
    endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES);
    if tls {
        let with = |endpoint: &Endpoint, config: ClientTlsConfig| {
            let configured = endpoint.clone().tls_config(config);
            configured.map_err(|error| options.tls.unusable(&root_cause(&error)))
        };
        let read = options.tls.config().and_then(|config| with(&endpoint, config.clone()).map(|_| config));
        endpoint = with(&endpoint, options.last_read.tls(read)?)?;
    } else if options.tls.is_given() {
        let message = format!("TLS options were given, but \"{uri}\" is plain text");
        return Err(invalid(&message, "write grpc+tls://HOST:PORT"));
    } else if has_token && !options.insecure && !endpoint.uri().host().is_some_and(is_loopback) {
        let message = format!("the token would go to {uri} as plain text, which anyone on the way can read");
        let hint = "write grpc+tls:// for a server with TLS, or set the option \"insecure\" on a network you trust";
        return Err(invalid(&message, hint));
    }
    // The server may require certificates over TLS, so the local socket never bypasses TLS.
    if let Some(local) = local.filter(|_| !tls)
        && let Some(channel) = local::connect(local, &endpoint).await
    {
        return Ok(InterceptedService::new(channel, bearer));
    }
    let channel = endpoint.connect().await.map_err(|error| {
        let cause = root_cause(&error);
        tls_failure(uri, &cause).unwrap_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("no server answers at {uri}: {cause}"))
                .with_hint("start one with `forebay serve FILE.sql`, or check host and port")
        })
    })?;
    Ok(InterceptedService::new(channel, bearer))
}

/// The endpoint at `address`, which is part of `uri`.
fn endpoint(uri: &str, tls: bool, address: &str) -> Result<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("{}://{address}", if tls { "https" } else { "http" }));
    let endpoint = endpoint.map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("\"{uri}\" is not an address: {error}"))
            .with_hint("write grpc://HOST:PORT")
    })?;
    if let Some(authority) = endpoint.uri().authority()
        && authority.port_u16().is_none()
        && !authority.as_str().ends_with(authority.host())
    {
        let message = format!("\"{uri}\" is not an address: its port is not a number up to 65535");
        return Err(invalid(&message, "write grpc://HOST:PORT"));
    }
    Ok(endpoint)
}

/// Whether `uri` selects TLS.
pub(crate) fn is_tls(uri: &str) -> bool {
    split(uri).is_ok_and(|(tls, _)| tls)
}

/// The address of a plain-text URI.
pub(crate) fn plain_address(uri: &str) -> Option<&str> {
    split(uri).ok().and_then(|(tls, address)| (!tls).then_some(address))
}

/// Whether the URI selects TLS, and its address.
fn split(uri: &str) -> Result<(bool, &str)> {
    match uri.split_once("://") {
        Some(("grpc" | "grpc+tcp" | "http", address)) => Ok((false, address)),
        Some(("grpc+tls" | "grpcs" | "https", address)) => Ok((true, address)),
        None => Ok((false, uri)),
        Some((scheme, _)) => {
            let message = format!("cannot connect to \"{uri}\": unknown scheme \"{scheme}\"");
            Err(invalid(&message, "write grpc://HOST:PORT, or grpc+tls://HOST:PORT"))
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or(host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

fn invalid(message: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Invalid, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["127.0.0.1", "127.8.8.8", "[::1]", "localhost", "LOCALHOST"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["0.0.0.0", "10.0.0.1", "[::]", "localhost.example.org", "127.0.0.1.example.org", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn debug_hides_the_token() {
        let options = ConnectOptions { token: Some("swordfish-swordfish".into()), ..ConnectOptions::default() };
        assert!(!format!("{options:?}").contains("swordfish"));
    }

    #[test]
    fn a_token_is_one_visible_word() {
        for token in ["", "with space", "line\nbreak", "ümlaut"] {
            let refused = header(token).map(|_| ());
            assert_eq!(refused.is_err(), !token.is_empty(), "{token:?}");
            if let Err(error) = refused {
                assert!(!error.to_string().contains(token));
            }
        }
    }
}
