//! TLS of a server: its certificate and key and, for mutual TLS, the CA of its clients. New connections use what was
//! read last.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind, Result};
use forebay_flight_client::pem::PemFile;
use forebay_flight_client::validity::Validity;
use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::certificate::CertificateRoles;

/// A server's TLS configuration, read and checked.
#[derive(Clone)]
pub struct ServerTls {
    files: Arc<Files>,
    /// Shared by all clones, so that they have the same files at any time.
    content: Arc<RwLock<Content>>,
    /// The roles of clients by certificate, if it asks for certificates.
    roles: Option<CertificateRoles>,
}

/// When a file's certificates expire.
#[derive(Clone, Debug)]
pub(crate) struct Expiry {
    /// What the file is for, as metrics name it.
    pub(crate) file: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) not_after_unix_seconds: u64,
}

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

struct Content {
    config: Arc<ServerConfig>,
    certificate: Option<Validity>,
    client_ca: Option<Validity>,
}

impl ServerTls {
    /// Reads PEM files. With `client_ca`, the server accepts only clients with a certificate that this CA signed. Such
    /// a client has the role that its certificate has by default: see [`CertificateRoles`].
    ///
    /// # Errors
    /// `NotFound` or `Invalid`, naming the file that is missing, is not PEM, does not match the others, or has a
    /// certificate that is not valid now.
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
        // The last that can fail, so that all of it changes or nothing.
        self.roles.as_ref().map_or(Ok(()), CertificateRoles::read_again)?;
        *self.content.write() = content;
        Ok(())
    }

    /// The files that it reads.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let Files { certificate, key, client_ca } = &*self.files;
        let own = [certificate.clone(), key.clone()];
        own.into_iter().chain(client_ca.clone()).chain(self.roles.as_ref().and_then(CertificateRoles::path)).collect()
    }

    /// The files with certificates, and when these expire.
    pub(crate) fn expiries(&self) -> Vec<Expiry> {
        let Content { certificate, client_ca, .. } = &*self.content.read();
        let expiry = |file, path: &Path, validity: &Option<Validity>| {
            let not_after_unix_seconds = validity.as_ref()?.not_after_unix_seconds;
            Some(Expiry { file, path: path.to_owned(), not_after_unix_seconds })
        };
        let of_ca = self.files.client_ca.as_ref().and_then(|path| expiry("client_ca", path, client_ca));
        expiry("certificate", &self.files.certificate, certificate).into_iter().chain(of_ca).collect()
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
        let validity = certificate.chain_validity()?;
        let key = PemFile::read("TLS key", key)?;
        let private = key.private_key()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::new(ErrorKind::Internal, format!("TLS cannot be set up: {error}")))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => builder.with_client_cert_verifier(clients(path, provider)?),
        };
        let client_ca = client_ca.as_deref().map(|path| PemFile::read("CA certificate", path)?.ca_validity());
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
        Ok(Content { config: Arc::new(config), certificate: validity, client_ca: client_ca.transpose()?.flatten() })
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
