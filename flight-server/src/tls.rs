//! TLS of a server: its certificate and key and, for mutual TLS, the CA of its clients.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind, Result};
use forebay_flight_client::pem::PemFile;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::certificate::CertificateRoles;

/// A server's TLS configuration, read and checked.
#[derive(Clone)]
pub struct ServerTls {
    config: Arc<ServerConfig>,
    /// The roles of clients by certificate, if it asks for certificates.
    roles: Option<CertificateRoles>,
}

impl ServerTls {
    /// Reads PEM files. With `client_ca`, the server accepts only clients with a certificate that this CA signed. Such
    /// a client has the role that its certificate has by default: see [`CertificateRoles`].
    ///
    /// # Errors
    /// `NotFound` or `Invalid`, naming the file that is missing, is not PEM, or does not match the others.
    pub fn read(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self> {
        // Name the provider: a process in which another crate enabled a second one has no default.
        let provider = Arc::new(ring::default_provider());
        let certificate = PemFile::read("TLS certificate", certificate)?;
        let chain = certificate.certificates()?;
        let key = PemFile::read("TLS key", key)?;
        let private = key.private_key()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("TLS cannot be set up: {error}")))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(clients(path, provider)?),
        };
        let mut config = builder.with_single_cert(chain, private).map_err(|error| {
            if error.to_string().contains("KeyMismatch") {
                let how = format!("does not belong to the TLS certificate \"{}\"", certificate.path().display());
                return key.wrong(&how).with_hint(
                    "give the key that the certificate was made for; \
                     the server's own certificate comes first in its file",
                );
            }
            certificate.wrong(&format!("cannot be used: {error}"))
        })?;
        // gRPC clients require it.
        config.alpn_protocols.push(b"h2".to_vec());
        Ok(Self { config: Arc::new(config), roles: client_ca.map(|_| CertificateRoles::default()) })
    }

    /// The same configuration with these roles of clients. Has no effect without `client_ca`.
    #[must_use]
    pub fn with_roles(self, roles: CertificateRoles) -> Self {
        Self { roles: self.roles.map(|_| roles), ..self }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.config))
    }

    pub(crate) fn roles(&self) -> Option<&CertificateRoles> {
        self.roles.as_ref()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerTls")
    }
}

/// Verifies clients with the CA in this file.
fn clients(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn tokio_rustls::rustls::server::danger::ClientCertVerifier>> {
    let file = PemFile::read("CA certificate", path)?;
    let mut roots = RootCertStore::empty();
    for certificate in file.certificates()? {
        roots.add(certificate).map_err(|error| file.wrong(&format!("cannot be used: {error}")))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| file.wrong(&format!("cannot be used: {error}")))
}
