//! PEM files, for both sides of a connection. Each error names its file.

use std::io;
use std::path::{Path, PathBuf};

use forebay_protocol::{Error, ErrorKind, Result};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::validity::Validity;
use crate::wall_clock::now_unix_seconds;

/// The content of a PEM file, and its purpose.
pub struct PemFile {
    what: &'static str,
    path: PathBuf,
    bytes: Vec<u8>,
}

impl PemFile {
    /// Reads the file. `what` names its purpose in errors, such as `TLS certificate`.
    ///
    /// # Errors
    /// `NotFound` if the file does not exist, `Invalid` if it cannot be read.
    pub fn read(what: &'static str, path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("the {what} \"{}\" does not exist", path.display()))
                    .with_hint("check the path")
            }
            _ => Error::new(ErrorKind::Invalid, format!("cannot read the {what} \"{}\": {error}", path.display())),
        })?;
        Ok(Self { what, path: path.to_owned(), bytes })
    }

    /// The raw bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its certificates, at least one.
    ///
    /// # Errors
    /// `Invalid` for a file without certificates or with a damaged one.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let certificates = CertificateDer::pem_slice_iter(&self.bytes).collect::<Result<Vec<_>, _>>();
        let certificates = certificates.map_err(|error| self.damaged(&error))?;
        if certificates.is_empty() {
            return Err(self.lacks("certificate", "give a file with a section \"-----BEGIN CERTIFICATE-----\""));
        }
        Ok(certificates)
    }

    /// When all certificates of this chain are valid, if they say so.
    ///
    /// # Errors
    /// `Invalid` for a chain that is not valid now, and the errors of [`certificates`](Self::certificates).
    pub fn chain_validity(&self) -> Result<Option<Validity>> {
        self.validity(Validity::and)
    }

    /// When one of these CA certificates is valid, if they say so.
    ///
    /// # Errors
    /// `Invalid` if none of them is valid now, and the errors of [`certificates`](Self::certificates).
    pub fn ca_validity(&self) -> Result<Option<Validity>> {
        self.validity(Validity::or)
    }

    fn validity(&self, combine: fn(Validity, Validity) -> Validity) -> Result<Option<Validity>> {
        let certificates = self.certificates()?;
        let validity = certificates.iter().filter_map(|certificate| Validity::of(certificate)).reduce(combine);
        match validity.and_then(|validity| validity.refusal(now_unix_seconds())) {
            Some(how) => Err(self.wrong(&how).with_hint(
                "give a certificate that is valid now; `openssl x509 -noout -dates -in FILE` shows the dates of one",
            )),
            None => Ok(validity),
        }
    }

    /// Its private key.
    ///
    /// # Errors
    /// `Invalid` for a file without a key, or whose key is damaged or encrypted.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound if self.mentions("ENCRYPTED PRIVATE KEY") => {
                self.lacks("private key that is not encrypted", "remove its password: openssl pkey -in FILE -out FILE")
            }
            pem::Error::NoItemsFound => {
                self.lacks("private key", "give a file with a section \"-----BEGIN PRIVATE KEY-----\"")
            }
            error => self.damaged(&error),
        })
    }

    /// An error about this file, such as a key that does not match its certificate.
    pub fn wrong(&self, how: &str) -> Error {
        Error::new(ErrorKind::Invalid, format!("the {} \"{}\" {how}", self.what, self.path.display()))
    }

    /// The file's path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn mentions(&self, text: &str) -> bool {
        self.bytes.windows(text.len()).any(|window| window == text.as_bytes())
    }

    fn lacks(&self, what: &str, hint: &str) -> Error {
        self.wrong(&format!("holds no {what} in PEM form")).with_hint(hint)
    }

    fn damaged(&self, error: &pem::Error) -> Error {
        self.wrong(&format!("is damaged: {error}"))
    }
}
