//! Command-line options for security: tokens and TLS, for servers and for clients.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use forebay_flight_client::{ClientTls, ConnectOptions};
use forebay_flight_server::{Access, AccessTokens, CertificateRoles, Reload, Security, ServerTls};

use crate::exit::refuse;
use crate::script;

/// Which clients a server accepts.
#[derive(Args, Clone, Debug)]
pub(crate) struct ServerSecurity {
    /// File with the tokens that clients may send, one per line; without it and --worker-token-file, no token is
    /// required, and a server on loopback answers only its own user.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// File with the tokens of the cluster's own processes; this process sends the first. With this option, tokens of
    /// --token-file only read [default: --token-file serves both].
    #[arg(long, value_name = "FILE", env = "FOREBAY_WORKER_TOKEN_FILE")]
    worker_token_file: Option<PathBuf>,
    /// Serve TLS with this certificate (PEM, the server's own first).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate that this CA signed (PEM): mutual TLS.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// File with a name (URI or DNS) of clients' certificates and its role, `worker` or `reader`, per line; others read
    /// [default: certificates with the URI forebay://role/worker are workers'].
    #[arg(long, value_name = "FILE", requires = "tls_client_ca")]
    #[arg(conflicts_with_all = ["token_file", "worker_token_file"])]
    tls_client_roles: Option<PathBuf>,
    /// CA that signed the certificates of the other processes of the cluster (PEM) [default: the system's].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Serve other machines without TLS, or without tokens and client certificates, and on loopback all users: anyone
    /// who can reach the port can read the feeds, and join as a worker.
    #[arg(long)]
    insecure: bool,
}

impl ServerSecurity {
    /// Reads the files, and refuses options that would let anyone on the network read the feeds. `reload` asks the
    /// server to read the files again.
    pub(crate) fn open(&self, host: IpAddr, reload: Reload) -> Result<Security> {
        let token_file = self.token_file.as_ref().or(self.worker_token_file.as_ref());
        let lacks = match (&self.tls_cert, token_file, &self.tls_client_ca) {
            (None, None, _) => Some("neither TLS nor tokens"),
            (None, Some(_), _) => {
                Some("tokens but no TLS, so anyone on the network path can read them and the samples")
            }
            (Some(_), None, None) => {
                Some("TLS but neither tokens nor client certificates, so anyone can read the feeds")
            }
            (Some(_), ..) => None,
        };
        if let Some(lacks) = lacks.filter(|_| !host.to_canonical().is_loopback() && !self.insecure) {
            refuse!(
                "{host} is reachable from other machines, and this server has {lacks}\n\
                 hint: add --tls-cert FILE --tls-key FILE and --token-file FILE (or --tls-client-ca FILE), \
                 use --host 127.0.0.1 with a tunnel, or add --insecure on a network you trust"
            );
        }
        let read = |path: &Option<PathBuf>| path.as_deref().map(AccessTokens::read).transpose();
        let access = Access { readers: read(&self.token_file)?, workers: read(&self.worker_token_file)? };
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(ServerTls::read(certificate, key, self.tls_client_ca.as_deref())?),
            _ => None,
        };
        let roles = self.tls_client_roles.as_deref().map(CertificateRoles::read).transpose()?;
        let tls = match roles {
            Some(roles) => tls.map(|tls| tls.with_roles(roles)),
            None => tls,
        };
        Ok(Security { access, tls, insecure: self.insecure, reload })
    }

    /// Whether others are served without the usual demands.
    pub(crate) fn insecure(&self) -> bool {
        self.insecure
    }

    /// The variables of these files, for other processes of the same cluster on this machine.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let files = [
            ("FOREBAY_TOKEN_FILE", &self.token_file),
            ("FOREBAY_WORKER_TOKEN_FILE", &self.worker_token_file),
            ("FOREBAY_TLS_CERT", &self.tls_cert),
            ("FOREBAY_TLS_KEY", &self.tls_key),
            ("FOREBAY_TLS_CLIENT_CA", &self.tls_client_ca),
            ("FOREBAY_TLS_CLIENT_ROLES", &self.tls_client_roles),
            ("FOREBAY_TLS_CA", &self.tls_ca),
        ];
        files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?.into()))).collect()
    }

    /// Returns how this process connects to the others of its cluster: with the first token of its file, and its own
    /// certificate.
    pub(crate) fn connect(&self) -> ConnectOptions {
        let token_file = self.worker_token_file.clone().or(self.token_file.clone());
        // Shown to servers that ask for a client certificate.
        let (certificate, key) = (self.tls_cert.clone(), self.tls_key.clone());
        let tls = ClientTls { ca: self.tls_ca.clone(), certificate, key, server_name: None };
        ConnectOptions { token_file, tls, insecure: self.insecure, ..ConnectOptions::default() }
    }
}

/// How a client identifies itself, and which servers it trusts.
#[derive(Args, Clone)]
pub(crate) struct ClientSecurity {
    /// Token to send to the server; other users of this machine can see arguments, but not FOREBAY_TOKEN.
    #[arg(long, value_name = "TEXT", env = "FOREBAY_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// File with the token to send, in its first line, unless --token gives one. It is read again when it changes.
    #[arg(long, value_name = "FILE", env = "FOREBAY_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// CA that signed the server's certificate (PEM) [default: the system's].
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// This client's certificate (PEM), for a server with --tls-client-ca.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The name in the server's certificate [default: the host of the URI].
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Send the token as plain text even to another machine.
    #[arg(long)]
    insecure: bool,
}

/// How a trainer reads.
#[derive(Args, Clone)]
pub(crate) struct ReadingArguments {
    /// How long to retry while no server answers [default: 30].
    #[arg(long, value_name = "SECONDS", value_parser = script::seconds)]
    retry_for: Option<f64>,
    /// Memory for batches received ahead of the reader, such as 1GiB [default: 64MiB].
    #[arg(long, value_name = "SIZE", value_parser = script::bytes)]
    buffer_limit: Option<u64>,
}

impl ClientSecurity {
    /// How to connect.
    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions {
            // An empty variable means that there is no token.
            token: self.token.clone().filter(|token| !token.is_empty()),
            token_file: self.token_file.clone(),
            tls: ClientTls {
                ca: self.tls_ca.clone(),
                certificate: self.tls_cert.clone(),
                key: self.tls_key.clone(),
                server_name: self.tls_server_name.clone(),
            },
            insecure: self.insecure,
            ..ConnectOptions::default()
        }
    }
}

impl ReadingArguments {
    /// How to connect for reading.
    pub(crate) fn options(&self, security: &ClientSecurity) -> ConnectOptions {
        let patience = self.retry_for.map(Duration::from_secs_f64);
        ConnectOptions { patience, buffer_bytes: self.buffer_limit, ..security.options() }
    }
}
