//! Tickets and commands, for `fuzz/`: what a client may send, without a connection.

use std::sync::Arc;

use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{FlightDescriptor, Ticket};
use forebay_engine::{Result, Session};
use forebay_flight_client::ConnectOptions;
use forebay_flight_client::wire::WindowRequest;
use tonic::Request;

use crate::dispatcher::DispatcherService;
use crate::service::{ProcessRoles, ProcessService};
use crate::ticket::{self, Signer, Verifier};
use crate::worker::WorkerService;

/// A server without a port.
pub struct Service(ProcessService);

impl Service {
    /// Serves the pipelines of a session.
    ///
    /// # Errors
    /// `Internal` without randomness.
    pub fn new(session: Arc<Session>) -> Result<Self> {
        let roles = ProcessRoles {
            dispatcher: Some(Arc::new(DispatcherService::new(Arc::clone(&session))?)),
            worker: Some(Arc::new(WorkerService::new(
                Arc::clone(&session),
                "http://127.0.0.1:1".to_owned(),
                1 << 20,
                std::time::Duration::ZERO,
            )?)),
            address: "http://127.0.0.1:1".to_owned(),
            dispatchers: String::new(),
            scripts: None,
            jobs: None,
        };
        Ok(Self(ProcessService::new(session, roles, Arc::default(), ConnectOptions::default())))
    }

    /// Answers a command of `GetFlightInfo`, and one of `GetSchema`. Returns whether one of them is accepted.
    pub async fn command(&self, command: &[u8]) -> bool {
        let descriptor = || Request::new(FlightDescriptor::new_cmd(command.to_vec()));
        let info = self.0.get_flight_info(descriptor()).await;
        let schema = self.0.get_schema(descriptor()).await;
        info.is_ok() || schema.is_ok()
    }

    /// Answers a ticket of a window, and returns whether it is one. Other tickets would start to compute.
    pub async fn window(&self, ticket: &[u8]) -> bool {
        let is_window = serde_json::from_slice::<WindowRequest>(ticket).is_ok();
        if is_window {
            let answer = self.0.do_get(Request::new(Ticket::new(ticket.to_vec()))).await;
            assert!(answer.is_err(), "no key is trusted");
        }
        is_window
    }

    /// Parses the content of a ticket, and signs it: the signed ticket must be the same. Returns whether it is one.
    pub fn signed(content: &[u8]) -> bool {
        let Some(claims) = ticket::claims(content) else { return false };
        let (signer, mut verifier) = (Signer::from_seed(&[7; 32]), Verifier::new());
        verifier.trust(signer.public_key());
        let verified = verifier.genuine(&signer.sign(&claims));
        assert_eq!(verified.ok(), Some(claims));
        true
    }

    /// Verifies a text that no one signed, and returns whether it is wrongly accepted.
    pub fn text(text: &str) -> bool {
        let mut verifier = Verifier::new();
        verifier.trust(Signer::from_seed(&[7; 32]).public_key());
        verifier.verify(text, "f", b"secret", 0).is_ok()
    }
}
