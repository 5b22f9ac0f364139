//! TLS of a server: its certificate and key and, for mutual TLS, the CA of its clients. New connections use what was
//! read last.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind, Result};
use forebay_flight_client::pem::PemFile;
use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::certificate::CertificateRoles;
use crate::clock::now_unix_seconds;
use crate::validity::expires_unix_seconds;

/// A server's TLS configuration, read and checked.
#[derive(Clone)]
pub struct ServerTls {
    files: Arc<Files>,
    /// Shared by all clones, so that they have the same files at any time.
    content: Arc<RwLock<Content>>,
    /// The roles of clients by certificate, if it asks for certificates.
    roles: Option<CertificateRoles>,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

#[derive(Clone)]
struct Content {
    config: Arc<ServerConfig>,
    expires_unix_seconds: Option<u64>,
}

impl ServerTls {
    /// Reads PEM files. With `client_ca`, the server accepts only clients with a certificate that this CA signed. Such
    /// a client has the role that its certificate has by default: see [`CertificateRoles`].
    ///
    /// # Errors
    /// `NotFound` or `Invalid`, naming the file that is missing, is not PEM, does not match the others, or has an expired
    /// certificate.
    pub fn read(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self> {
        let client_ca = client_ca.map(Path::to_owned);
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned(), client_ca };
        let content = Arc::new(RwLock::new(files.content()?));
        let roles = files.client_ca.as_ref().map(|_| CertificateRoles::default());
        Ok(Self { files: Arc::new(files), content, roles })
    }

    /// Reads the files again. New connections use them from now on.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); then nothing changes.
    pub(crate) fn read_again(&self) -> Result<()> {
        let content = self.files.content()?;
        *self.content.write() = content;
        self.roles.as_ref().map_or(Ok(()), CertificateRoles::read_again)
    }

    /// The files that it reads.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let Files { certificate, key, client_ca } = &*self.files;
        let own = [certificate.clone(), key.clone()];
        own.into_iter().chain(client_ca.clone()).chain(self.roles.as_ref().and_then(CertificateRoles::path)).collect()
    }

    /// The file of the certificate, for messages.
    pub(crate) fn certificate(&self) -> &Path {
        &self.files.certificate
    }

    /// The end of the certificate's validity, in seconds since 1970.
    pub(crate) fn expires_unix_seconds(&self) -> Option<u64> {
        self.content.read().expires_unix_seconds
    }

    /// The same configuration with these roles of clients. Has no effect without `client_ca`.
    #[must_use]
    pub fn with_roles(self, roles: CertificateRoles) -> Self {
        Self { roles: self.roles.map(|_| roles), ..self }
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.content.read().config))
    }

    pub(crate) fn roles(&self) -> Option<&CertificateRoles> {
        self.roles.as_ref()
    }
}

impl Files {
    fn content(&self) -> Result<Content> {
        let Self { certificate, key, client_ca } = self;
        // Name the provider: a process in which another crate enabled a second one has no default.
        let provider = Arc::new(ring::default_provider());
        let certificate = PemFile::read("TLS certificate", certificate)?;
        let chain = certificate.certificates()?;
        let expires_unix_seconds = chain.first().and_then(|own| expires_unix_seconds(own));
        let expired = expires_unix_seconds.map(|at| now_unix_seconds().saturating_sub(at)).filter(|since| *since > 0);
        if let Some(since) = expired {
            let (days, hours) = (since / (24 * 3600), since / 3600 % 24);
            let how = format!("expired {days} days and {hours} hours ago");
            let hint = "give a certificate that is valid now: openssl x509 -noout -dates -in FILE shows its dates";
            return Err(certificate.wrong(&how).with_hint(hint));
        }
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
        Ok(Content { config: Arc::new(config), expires_unix_seconds })
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
