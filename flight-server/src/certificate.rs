//! Roles by certificate: which clients with a certificate are workers.
//!
//! A certificate's names are the URIs and DNS names of its subject alternative names, which the CA vouches for. Its
//! common name counts for nothing: it has no type, and CAs that issue certificates for workloads leave it empty.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_engine::{Error, ErrorKind, Result};
use parking_lot::RwLock;
use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::caller::{Caller, Proof};

/// The name of a worker's certificate, where no file lists names.
const WORKER: &str = "forebay://role/worker";

/// The names of certificates whose owners may do more than read.
///
/// By default, a certificate with the URI `forebay://role/worker` is a worker's. Every other one is a reader's.
#[derive(Clone, Debug)]
pub struct CertificateRoles {
    file: Option<Arc<Path>>,
    /// Shared by all clones.
    roles: Arc<RwLock<BTreeMap<String, Role>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Reader,
    Worker,
}

impl Default for CertificateRoles {
    fn default() -> Self {
        let roles = BTreeMap::from([(WORKER.to_owned(), Role::Worker)]);
        Self { file: None, roles: Arc::new(RwLock::new(roles)) }
    }
}

impl CertificateRoles {
    /// Reads one name and its role, `worker` or `reader`, per line, such as
    /// `spiffe://example.org/ns/feeds/sa/worker worker`. Skips empty lines and lines that begin with `#`. Certificates
    /// without a listed name are readers', and the URI `forebay://role/worker` means nothing unless it is listed.
    ///
    /// # Errors
    /// `NotFound` or `Invalid` for a file that cannot be read, and `Invalid` for a line that is not a name and a role,
    /// or that gives a name another role than an earlier line. The error names the file and the line.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { file: Some(path.into()), roles: Arc::new(RwLock::new(Self::parse(path)?)) })
    }

    /// Reads the file again, if there is one. New connections have the roles in it from now on.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); then nothing changes.
    pub(crate) fn read_again(&self) -> Result<()> {
        if let Some(file) = &self.file {
            let roles = Self::parse(file)?;
            *self.roles.write() = roles;
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.file.as_deref().map(Path::to_owned)
    }

    fn parse(path: &Path) -> Result<BTreeMap<String, Role>> {
        let file = format!("the file of roles \"{}\"", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, format!("{file} does not exist")).with_hint("check the path")
            }
            _ => Error::new(ErrorKind::Invalid, format!("{file} cannot be read: {error}")),
        })?;
        let mut roles = BTreeMap::new();
        for (number, line) in (1..).zip(text.strip_prefix('\u{feff}').unwrap_or(&text).lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |what: &str| {
                Error::new(ErrorKind::Invalid, format!("{file} has an invalid line {number}: {what}"))
                    .with_hint("write a URI or DNS name and its role, such as: spiffe://example.org/worker worker")
            };
            let words: Vec<&str> = line.split_whitespace().collect();
            let &[name, role] = &words[..] else { return Err(wrong("it is not a name and a role")) };
            let role = match role {
                "worker" => Role::Worker,
                "reader" => Role::Reader,
                _ => return Err(wrong(&format!("its role is \"{role}\", and neither \"worker\" nor \"reader\""))),
            };
            if roles.insert(key(name), role).is_some_and(|before| before != role) {
                return Err(wrong(&format!("\"{name}\" has another role in an earlier line")));
            }
        }
        Ok(roles)
    }

    /// The permissions of a client with this certificate, which the handshake has verified.
    pub(crate) fn caller(&self, certificate: &CertificateDer<'_>) -> Caller {
        let names = names(certificate);
        let roles = self.roles.read();
        let is_worker = names.iter().any(|name| roles.get(&key(name)) == Some(&Role::Worker));
        tracing::debug!(?names, is_worker, "client certificate");
        if is_worker { Caller::Worker } else { Caller::Reader(Proof::Certificate) }
    }
}

/// The form in which a name is compared. The case of a DNS name has no meaning; that of a URI's path has.
fn key(name: &str) -> String {
    if name.contains("://") { name.to_owned() } else { name.to_ascii_lowercase() }
}

/// The URIs and DNS names of a certificate.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    match EndEntityCert::try_from(certificate) {
        Ok(certificate) => {
            certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(str::to_owned).collect()
        }
        Err(error) => {
            tracing::warn!(%error, "a client certificate that cannot be read has no names");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// A certificate with these names; those with `://` are URIs.
    fn certificate(names: &[&str]) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::new([]).unwrap();
        parameters.distinguished_name.push(DnType::CommonName, WORKER);
        let san = |name: &&str| match name.contains("://") {
            true => SanType::URI((*name).try_into().unwrap()),
            false => SanType::DnsName((*name).try_into().unwrap()),
        };
        parameters.subject_alt_names = names.iter().map(san).collect();
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn read(text: &str) -> Result<CertificateRoles> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        CertificateRoles::read(file.path()).inspect_err(|error| {
            assert!(error.message().contains(&file.path().display().to_string()), "{error} names the file");
        })
    }

    const READER: Caller = Caller::Reader(Proof::Certificate);

    #[test]
    fn a_certificate_is_a_reader_s_unless_a_name_says_otherwise() {
        let roles = CertificateRoles::default();
        assert_eq!(roles.caller(&certificate(&["worker-1.example.org", WORKER])), Caller::Worker);
        for names in [
            &[][..],
            &["worker"],
            &["trainer.example.org"],
            &["forebay://role/reader"],
            &["forebay://role/worker/2"],
            &["forebay://role/Worker"],
        ] {
            assert_eq!(roles.caller(&certificate(names)), READER, "{names:?}");
        }
        assert_eq!(roles.caller(&CertificateDer::from(vec![0x30, 0])), READER, "no certificate at all");
    }

    #[test]
    fn a_file_lists_names_of_workers() {
        let spiffe = "spiffe://example.org/ns/feeds/sa/worker";
        let roles = read(&format!("\u{feff}# ours\n\n {spiffe}\tworker \r\nNode-7.example.org worker\nx.org reader\n"));
        let roles = roles.unwrap();
        for names in [&[spiffe][..], &["node-7.example.org"], &["x.org", spiffe]] {
            assert_eq!(roles.caller(&certificate(names)), Caller::Worker, "{names:?}");
        }
        for names in [&[][..], &[WORKER], &["x.org"], &["spiffe://example.org/ns/feeds/sa/Worker"], &["example.org"]] {
            assert_eq!(roles.caller(&certificate(names)), READER, "{names:?}");
        }
    }

    #[test]
    fn unusable_files_are_refused() {
        for (text, phrase) in [
            ("a.org", "line 1: it is not a name and a role"),
            ("# names\na.org worker reader", "line 2: it is not a name and a role"),
            ("a.org admin", "line 1: its role is \"admin\""),
            ("a.org worker\nA.org reader", "line 2: \"A.org\" has another role in an earlier line"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(phrase) && error.hint().is_some(), "{error}");
        }
        let error = CertificateRoles::read("no/such/file".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "the file of roles \"no/such/file\" does not exist\nhint: check the path");
    }
}
