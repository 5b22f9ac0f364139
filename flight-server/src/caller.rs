//! Who sends a request, and what the sender may do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::{Error, ErrorKind};
use tonic::Status;

use crate::status::forbidden;

/// The permissions of a request's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// May read.
    Reader(Proof),
    /// May read, and let the server open its scripts again.
    Operator,
    /// May do all of this, and receive leases and the specs of feeds.
    Worker,
}

/// The pipelines that a token permits to read; by default all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pipelines(pub(crate) Option<Arc<[String]>>);

impl Pipelines {
    pub(crate) fn permit(&self, pipeline: &str) -> bool {
        self.0.as_ref().is_none_or(|permitted| permitted.iter().any(|name| name == pipeline))
    }

    /// Refuses a pipeline that is not permitted.
    pub(crate) fn check(&self, pipeline: &str) -> Result<(), Status> {
        match &self.0 {
            Some(permitted) if !self.permit(pipeline) => {
                let message = format!("the token may not read pipeline \"{pipeline}\"");
                let hint = format!("it may read {}; ask the server's operator for another token", permitted.join(", "));
                Err(forbidden(&Error::new(ErrorKind::Denied, message).with_hint(hint)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a token of some pipelines what shows all of them.
    pub(crate) fn check_all(&self, what: &str) -> Result<(), Status> {
        let Some(permitted) = &self.0 else { return Ok(()) };
        let message = format!("the token is for some pipelines only, and {what} shows all");
        let hint = format!("read {} as feeds, or ask the server's operator for another token", permitted.join(", "));
        Err(forbidden(&Error::new(ErrorKind::Denied, message).with_hint(hint)))
    }
}

/// What shows that a reader may read. Errors name what a worker has in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A token.
    Token,
    /// A certificate.
    Certificate,
    /// The user of the sender's process, which is the server's own.
    User,
}

impl Caller {
    /// Refuses a caller that is not a worker.
    pub(crate) fn check_worker(self) -> Result<(), Status> {
        let proof = match self {
            Self::Worker => return Ok(()),
            Self::Operator => Proof::Token,
            Self::Reader(proof) => proof,
        };
        let (message, hint) = match proof {
            Proof::Token => (
                "this call needs a worker's token, and got a trainer's",
                "give the worker the dispatcher's tokens for workers, with the option \"worker_token_file\"",
            ),
            Proof::Certificate => (
                "this call needs a worker's certificate, and got a trainer's",
                "give the worker a certificate with the URI forebay://role/worker, or list a name of its certificate \
                 in the dispatcher's option \"tls.client_roles\"",
            ),
            Proof::User => (
                "this call needs the secret of the user who runs the dispatcher",
                "run the worker as the same user on the same file system, where it finds the secret by itself, or give \
                 dispatcher and worker the option \"token_file\"",
            ),
        };
        Err(forbidden(&Error::new(ErrorKind::Denied, message).with_hint(hint)))
    }
}

impl Caller {
    /// Refuses a caller that only reads.
    pub(crate) fn check_operator(self) -> Result<(), Status> {
        let Self::Reader(proof) = self else { return Ok(()) };
        let hint = match proof {
            Proof::Token => "send a token whose line in the server's token file says `operator`, or a worker's token",
            Proof::Certificate => "show a certificate with the URI forebay://role/worker",
            Proof::User => "run the command as the user who runs the server",
        };
        let message = "this call needs an operator's right, and got a trainer's";
        Err(forbidden(&Error::new(ErrorKind::Denied, message).with_hint(hint)))
    }
}

/// What is known of the other side of a connection. Requests carry it as an extension.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Its address; `None` at the local socket.
    pub(crate) address: Option<SocketAddr>,
    /// The permissions of its certificate, if the server asks for certificates.
    pub(crate) certificate: Option<Caller>,
    /// Whether its process belongs to the server's own user or to root, if the server asks.
    pub(crate) is_own_user: bool,
    pub(crate) admission: Admission,
}

/// Whether a connection has made a request that the gate accepted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission(Arc<AtomicBool>);

impl Admission {
    /// Lets the connection stay.
    pub(crate) fn admit(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_reader_that_calls_as_a_worker_is_told_what_a_worker_has() {
        assert!(Caller::Worker.check_worker().is_ok());
        for (proof, needs, option) in [
            (Proof::Token, "a worker's token", "worker_token_file"),
            (Proof::Certificate, "a worker's certificate", "tls.client_roles"),
            (Proof::User, "the secret of the user", "token_file"),
        ] {
            let refused = Caller::Reader(proof).check_worker().unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            let (message, hint) = refused.message().split_once("\nhint: ").unwrap();
            assert!(message.contains(needs) && hint.contains(&format!("option \"{option}\"")), "{refused}");
        }
    }
}
