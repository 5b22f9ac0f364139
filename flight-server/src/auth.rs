//! Which clients may call this server, and which may call it as a worker: by token, by certificate, or by user.
//!
//! The gate is before the lookup of the method, so no method can forget the check. The resulting [`Caller`] travels
//! with the request.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blake3::Hash;
use forebay_engine::{Error, ErrorKind, Result};
use forebay_flight_client::secret;
use forebay_flight_client::token_file::{TokenRole, read_tokens};
use parking_lot::RwLock;
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::caller::{Caller, Peer, Pipelines, Proof};
use crate::logins::FailedLogins;
use crate::status::status;

/// Advice for a refused worker. At this point the server does not know whether the caller is a worker.
const WORKERS: &str =
    "a worker needs the option \"worker_token_file\", or the option \"token_file\" if the dispatcher has only that one";
/// Advice for a client of another user, or of another system's container.
const USER: &str = "run the client as that user, or give the server the option \"token_file\" and the client \
    FOREBAY_TOKEN (a worker the same option); with the option \"insecure\" the server trusts every user of its machine";
/// Advice for a client without a certificate, which TLS refuses earlier.
const CERTIFICATE: &str = "give yours with the option \"tls.cert\" and the option \"tls.key\"";

/// The tokens that a server accepts. Several tokens allow replacing one while both are in use.
///
/// Only hashes are kept: comparing hashes takes constant time for any length, and a hash cannot leak its token.
#[derive(Clone)]
pub struct AccessTokens {
    file: Arc<Path>,
    /// Shared by all clones.
    known: Arc<RwLock<Vec<Known>>>,
}

/// A token, and what its line says of it.
#[derive(Clone)]
struct Known {
    hash: Hash,
    role: Option<TokenRole>,
    pipelines: Pipelines,
}

impl AccessTokens {
    /// Reads one token per line, which may say more: see [`read_tokens`]. Skips empty lines and lines that begin with
    /// `#`.
    ///
    /// # Errors
    /// `Invalid` for a file that cannot be read, has no token, or has a token that is too short, too long or not
    /// visible ASCII. The error names the file and the line, never the token.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self { file: path.into(), known: Arc::new(RwLock::new(known(path)?)) })
    }

    /// Reads the file again. Requests are checked against its tokens from now on.
    ///
    /// # Errors
    /// Those of [`read`](Self::read); then nothing changes.
    pub(crate) fn read_again(&self) -> Result<()> {
        let known = known(&self.file)?;
        *self.known.write() = known;
        Ok(())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.to_path_buf()
    }

    /// The line of `token`, if it is one of them. Comparing takes the same time for each.
    fn find(&self, token: &[u8]) -> Option<Known> {
        let given = blake3::hash(token);
        // `Hash` compares in constant time, and all are compared.
        let known = self.known.read();
        let found: Vec<_> = known.iter().filter(|known| known.hash == given).collect();
        found.first().map(|&known| known.clone())
    }

    #[cfg(test)]
    fn accept(&self, token: &[u8]) -> bool {
        self.find(token).is_some()
    }
}

fn known(path: &Path) -> Result<Vec<Known>> {
    let lines = read_tokens(path)?.into_iter();
    let known = lines.map(|line| Known {
        hash: blake3::hash(line.token.as_bytes()),
        role: line.role,
        pipelines: Pipelines(line.pipelines),
    });
    Ok(known.collect())
}

impl fmt::Debug for AccessTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({})", self.known.read().len())
    }
}

/// The tokens that a server requires. Without any, see [`Security`](crate::Security).
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Tokens of trainers and other readers. If absent, only workers' tokens are accepted.
    pub readers: Option<AccessTokens>,
    /// Tokens of workers and dispatchers, which may also read. If absent, every token is valid for a worker.
    pub workers: Option<AccessTokens>,
}

/// Who may call, and as what. Each method of a server is behind one.
#[derive(Clone)]
pub(crate) enum Gate {
    /// Everyone, as a worker.
    Open,
    /// Those who send a token.
    Tokens(Access),
    /// Those whose certificate the TLS handshake has accepted, in the role that it has.
    Certificates,
    /// The server's own user: with the user's secret as a worker, otherwise as a reader. Without a hash there is no
    /// secret, and so no worker.
    User(Option<Hash>),
}

/// A gate, and the count of those whom it did not let pass.
#[derive(Clone)]
pub(crate) struct Guard {
    pub(crate) gate: Gate,
    pub(crate) failed: Arc<FailedLogins>,
}

/// Why a request did not pass: a word for the metric, and what the client is told.
struct Refusal {
    reason: &'static str,
    message: &'static str,
    hint: String,
}

impl Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
        let request = self.gate.pass(request, &peer).map_err(|refusal| {
            self.failed.add(refusal.reason, peer.address, refusal.message);
            status(&Error::new(ErrorKind::Denied, refusal.message).with_hint(refusal.hint))
        })?;
        // The connection of an accepted request may stay.
        peer.admission.admit();
        Ok(request)
    }
}

impl Gate {
    fn pass(&self, mut request: Request<()>, peer: &Peer) -> Result<Request<()>, Refusal> {
        // Removed, so that no later code can log them.
        let token = request.metadata_mut().remove("authorization");
        let secret = request.metadata_mut().remove(secret::HEADER);
        let mut pipelines = Pipelines::default();
        let caller = match self {
            Self::Open => Caller::Worker,
            Self::Tokens(access) => {
                let (caller, of_token) = access.caller(token.as_ref().map(|token| token.as_bytes()))?;
                pipelines = of_token;
                caller
            }
            Self::Certificates => {
                peer.certificate.ok_or_else(|| denied("no_certificate", "no certificate was shown", CERTIFICATE))?
            }
            Self::User(known) => {
                let given = secret.map(|secret| blake3::hash(secret.as_bytes()));
                match given.is_some() && given == *known {
                    true => Caller::Worker,
                    false if peer.is_own_user => Caller::Reader(Proof::User),
                    false => return Err(denied("other_user", "this server answers only the user who runs it", USER)),
                }
            }
        };
        request.extensions_mut().insert(caller);
        request.extensions_mut().insert(pipelines);
        Ok(request)
    }
}

impl Access {
    /// Whether no token is required.
    pub(crate) fn is_empty(&self) -> bool {
        self.readers.is_none() && self.workers.is_none()
    }

    /// The permissions of the token in this header.
    fn caller(&self, header: Option<&[u8]>) -> Result<(Caller, Pipelines), Refusal> {
        let Some(header) = header else {
            let hint = "set FOREBAY_TOKEN, or send \"authorization: Bearer TOKEN\"";
            return Err(denied("no_token", "no token was sent", &format!("{hint}; {WORKERS}")));
        };
        let token = header.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
        let Some((_, token)) = token else {
            let hint = "send \"authorization: Bearer TOKEN\"";
            return Err(denied("no_bearer_token", "the authorization is not a bearer token", hint));
        };
        self.of_token(token.trim_ascii()).ok_or_else(|| {
            let hint = format!("ask the server's operator for a current token; {WORKERS}");
            denied("unknown_token", "the token is not one that this server knows", &hint)
        })
    }

    /// What a token permits: what its line says, or else what its file is for.
    fn of_token(&self, token: &[u8]) -> Option<(Caller, Pipelines)> {
        let find = |tokens: &Option<AccessTokens>| tokens.as_ref().and_then(|tokens| tokens.find(token));
        // Both sets are always checked, so that the time is the same.
        let (of_workers, of_readers) = (find(&self.workers), find(&self.readers));
        let is_of_worker = of_workers.is_some() || self.workers.is_none();
        let Known { role, pipelines, .. } = of_workers.or(of_readers)?;
        let caller = match role {
            Some(TokenRole::Worker) => Caller::Worker,
            Some(TokenRole::Operator) => Caller::Operator,
            Some(TokenRole::Reader) => Caller::Reader(Proof::Token),
            None if is_of_worker => Caller::Worker,
            None => Caller::Reader(Proof::Token),
        };
        Some((caller, pipelines))
    }
}

fn denied(reason: &'static str, message: &'static str, hint: &str) -> Refusal {
    Refusal { reason, message, hint: hint.to_owned() }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    const OLD: &str = "an-old-token-of-ours";
    const NEW: &str = "a-new-token-of-ours/+=";

    fn read(text: &str) -> Result<AccessTokens> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        AccessTokens::read(file.path()).inspect_err(|error| {
            assert!(error.message().contains(&file.path().display().to_string()), "{error} names the file");
        })
    }

    #[test]
    fn a_file_has_one_token_per_line() {
        let tokens = read(&format!("\u{feff}# in turn\n\n  {OLD} \r\n{NEW}\n#{OLD}2\n")).unwrap();
        assert!(tokens.accept(OLD.as_bytes()) && tokens.accept(NEW.as_bytes()));
        for other in ["", "# in turn", "an-old-token-of-our", "an-old-token-of-ours2", "an-old-token-of-ourt"] {
            assert!(!tokens.accept(other.as_bytes()), "{other}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(2)");
    }

    #[test]
    fn unusable_files_are_refused() {
        for (text, phrase) in [
            ("", "has no token"),
            ("# none\n\n", "has no token"),
            ("# one\nfifteen-letters", "line 2: the token is shorter than 16 characters"),
            ("two-words-and-long enough", "line 1: the second word is no role"),
            (&"x".repeat(5000), "line 1: the token is longer than 4096"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.message().contains(phrase), "{error}");
            assert!(!text.lines().any(|line| line.len() > 6 && error.to_string().contains(line)), "{error} tells");
        }
        let error = AccessTokens::read("no/such/file".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "the token file \"no/such/file\" does not exist\nhint: check the path");
    }

    #[test]
    fn the_gate_says_what_is_wrong() {
        let tokens = Some(read(&format!("{OLD}\n{NEW}")).unwrap());
        let gate = Gate::Tokens(Access { readers: tokens, workers: None });
        let mut gate = Guard { gate, failed: Arc::default() };
        let mut ask = |header: Option<&str>| {
            let mut request = Request::new(());
            if let Some(header) = header {
                request.metadata_mut().insert("authorization", header.parse().unwrap());
            }
            gate.call(request)
        };
        for header in [format!("Bearer {OLD}"), format!("bearer {NEW}"), format!("BEARER  {NEW}")] {
            let request = ask(Some(&header)).unwrap();
            assert!(request.metadata().is_empty(), "the token goes no further");
            assert_eq!(request.extensions().get(), Some(&Caller::Worker), "one kind of token is worth all");
        }
        let basic = format!("Basic {OLD}");
        for (header, message) in [
            (None, "no token was sent"),
            (Some("Bearer wrong"), "the token is not one that this server knows"),
            (Some("Bearer "), "the token is not one that this server knows"),
            (Some("Bearer"), "the authorization is not a bearer token"),
            (Some(OLD), "the authorization is not a bearer token"),
            (Some(&basic), "the authorization is not a bearer token"),
            (Some(""), "the authorization is not a bearer token"),
        ] {
            let refused = ask(header).unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated);
            assert!(refused.message().starts_with(&format!("{message}\nhint: ")), "{}", refused.message());
        }
        let counted = gate.failed.counts();
        assert_eq!((counted["no_token"], counted["unknown_token"], counted["no_bearer_token"]), (1, 2, 4));
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_broken_one_changes_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), OLD).unwrap();
        let tokens = AccessTokens::read(file.path()).unwrap();
        let gate = tokens.clone();
        std::fs::write(file.path(), format!("{NEW}\n{OLD}")).unwrap();
        tokens.read_again().unwrap();
        assert!(gate.accept(NEW.as_bytes()) && gate.accept(OLD.as_bytes()));
        for broken in ["", "short"] {
            std::fs::write(file.path(), broken).unwrap();
            tokens.read_again().unwrap_err();
            assert!(gate.accept(NEW.as_bytes()));
        }
        std::fs::write(file.path(), NEW).unwrap();
        tokens.read_again().unwrap();
        assert!(!gate.accept(OLD.as_bytes()), "a token that was removed is refused");
    }

    /// What the gate makes of a request with this secret from this peer.
    fn ask(gate: &Gate, secret: Option<&str>, peer: Peer) -> Result<Caller, Status> {
        let mut request = Request::new(());
        if let Some(secret) = secret {
            request.metadata_mut().insert(secret::HEADER, secret.parse().unwrap());
        }
        request.extensions_mut().insert(peer.clone());
        let request = Guard { gate: gate.clone(), failed: Arc::default() }.call(request);
        assert_eq!(peer.admission.is_admitted(), request.is_ok());
        let request = request?;
        assert!(request.metadata().is_empty(), "the secret goes no further");
        Ok(*request.extensions().get().unwrap())
    }

    #[test]
    fn the_secret_makes_a_worker_and_the_user_a_reader() {
        let own = || Peer { is_own_user: true, ..Peer::default() };
        let gate = Gate::User(Some(blake3::hash(NEW.as_bytes())));
        for peer in [own(), Peer::default()] {
            assert_eq!(ask(&gate, Some(NEW), peer).unwrap(), Caller::Worker);
        }
        for (gate, secret) in [(&gate, None), (&gate, Some(OLD)), (&gate, Some("")), (&Gate::User(None), Some(NEW))] {
            assert_eq!(ask(gate, secret, own()).unwrap(), Caller::Reader(Proof::User));
            let refused = ask(gate, secret, Peer::default()).unwrap_err();
            assert_eq!(refused.code(), Code::Unauthenticated);
            let message = "this server answers only the user who runs it\nhint: run the client as that user, or give";
            assert!(refused.message().starts_with(message), "{}", refused.message());
        }
    }

    #[test]
    fn a_certificate_is_worth_its_role() {
        for role in [Caller::Worker, Caller::Reader(Proof::Certificate)] {
            let peer = Peer { certificate: Some(role), ..Peer::default() };
            assert_eq!(ask(&Gate::Certificates, None, peer).unwrap(), role);
        }
        let own_user = Peer { is_own_user: true, ..Peer::default() };
        assert_eq!(ask(&Gate::Certificates, None, own_user).unwrap_err().code(), Code::Unauthenticated);
        assert_eq!(ask(&Gate::Open, None, Peer::default()).unwrap(), Caller::Worker);
    }

    #[test]
    fn a_token_is_worth_what_its_file_is_for() {
        const READER: Caller = Caller::Reader(Proof::Token);
        const WORKER: Caller = Caller::Worker;
        let caller = |(caller, _): (Caller, Pipelines)| caller;
        let (readers, workers) = (Some(read(OLD).unwrap()), Some(read(NEW).unwrap()));
        let both = Access { readers: readers.clone(), workers: workers.clone() };
        assert_eq!(both.of_token(OLD.as_bytes()).map(caller), Some(READER));
        assert_eq!(both.of_token(NEW.as_bytes()).map(caller), Some(WORKER));
        assert_eq!(both.of_token(b"another-token-altogether").map(caller), None);
        let same = Access { readers: workers.clone(), workers: workers.clone() };
        assert_eq!(same.of_token(NEW.as_bytes()).map(caller), Some(WORKER));
        for one in [Access { readers, workers: None }, Access { readers: None, workers }] {
            let known = if one.workers.is_some() { NEW } else { OLD };
            assert_eq!(one.of_token(known.as_bytes()).map(caller), Some(WORKER));
            assert_eq!([OLD, NEW].iter().filter(|token| one.of_token(token.as_bytes()).is_some()).count(), 1);
        }
    }

    #[test]
    fn a_line_says_what_its_token_is_worth() {
        let reader = format!("{OLD} reader train,eval\n{NEW} operator\n{NEW}2 worker\n{NEW}3");
        let readers = Access { readers: Some(read(&reader).unwrap()), workers: None };
        let of = |access: &Access, token: &str| access.of_token(token.as_bytes()).unwrap();
        let (caller, pipelines) = of(&readers, OLD);
        assert_eq!(caller, Caller::Reader(Proof::Token));
        assert!(pipelines.check("eval").is_ok());
        let refused = pipelines.check("test").unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(
            refused.message().starts_with("the token may not read pipeline \"test\"\nhint: it may read train, eval")
        );
        let (caller, pipelines) = of(&readers, NEW);
        assert_eq!((caller, pipelines.check("test").is_ok()), (Caller::Operator, true));
        assert_eq!(of(&readers, &format!("{NEW}2")).0, Caller::Worker);
        assert_eq!(of(&readers, &format!("{NEW}3")).0, Caller::Worker, "the only file serves both");
        let workers = Some(read("the-token-of-the-workers").unwrap());
        let both = Access { workers, ..readers };
        assert_eq!(of(&both, &format!("{NEW}3")).0, Caller::Reader(Proof::Token));
        assert_eq!(of(&both, &format!("{NEW}2")).0, Caller::Worker);
    }
}
