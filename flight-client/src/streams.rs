//! Streams from workers: one task a window, each received as fast as the loop has room.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::Ticket;
use forebay_delivery::{Ended, Fragment, Open, WindowId, WorkerId};
use forebay_protocol::{Error, ErrorKind};
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tonic::Code;

use crate::connect::{self, Carrier, ConnectOptions};
use crate::local;
use crate::reader::{Piece, Shared};
use crate::receive::{Broken, Received, Receiving};
use crate::status::{error_of, lost};
use crate::wire::{PieceMetadata, WindowRequest};
use forebay_arrays::pool::Pool;

/// A worker that does not answer a request within this is taken for lost.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Kept for messages to come, over all streams.
const POOL_BYTES: usize = 64 << 20;

/// The streams of a reader.
pub(crate) struct WindowStreams {
    shared: Arc<Shared>,
    workers: Arc<Workers>,
    secret: String,
    ticket: String,
    tasks: JoinSet<()>,
    open: HashMap<WindowId, AbortHandle>,
}

/// Connections to workers, and the memory that their messages come in.
pub(crate) struct Workers {
    options: ConnectOptions,
    carriers: Mutex<HashMap<WorkerId, Carrier>>,
    pool: Arc<Pool>,
}

impl WindowStreams {
    pub(crate) fn new(shared: Arc<Shared>, workers: Arc<Workers>, secret: String) -> Self {
        Self { shared, workers, secret, ticket: String::new(), tasks: JoinSet::new(), open: HashMap::new() }
    }

    pub(crate) fn set_ticket(&mut self, ticket: String) {
        self.ticket = ticket;
    }

    /// Opens streams, each in place of the one of the same window.
    pub(crate) fn open(&mut self, opens: Vec<Open>) {
        for open in opens {
            let task = self.tasks.spawn(receive(
                Arc::clone(&self.shared),
                Arc::clone(&self.workers),
                self.ticket.clone(),
                self.secret.clone(),
                open.clone(),
            ));
            if let Some(before) = self.open.insert(open.window, task) {
                before.abort();
            }
        }
    }

    /// Waits until a stream has ended, for ever if there is none.
    pub(crate) async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_) => self.open.retain(|_, task| !task.is_finished()),
            None => std::future::pending().await,
        }
    }
}

async fn receive(shared: Arc<Shared>, workers: Arc<Workers>, ticket: String, secret: String, open: Open) {
    let (window, lease, worker, address) = (open.window, open.lease, open.worker, open.address.clone());
    let how = match try_receive(&shared, &workers, ticket, secret, open).await {
        Ok(()) => Ended::Complete,
        Err(failed) => workers.judge(&shared, worker, &address, failed),
    };
    shared.trainer.lock().ended(window, lease, how, shared.now());
    shared.news.notify_one();
    shared.moved.notify_one();
}

enum Failed {
    Stream(Broken),
    Other(Error),
}

impl From<Broken> for Failed {
    fn from(broken: Broken) -> Self {
        Self::Stream(broken)
    }
}

async fn try_receive(
    shared: &Shared,
    workers: &Workers,
    ticket: String,
    secret: String,
    open: Open,
) -> Result<(), Failed> {
    let Open { window, lease, worker, address, slice, from_row } = open;
    let feed = shared.trainer.lock().feed().clone();
    let request = WindowRequest { ticket, secret, feed, window, slice, from_row };
    let ticket = Ticket::new(serde_json::to_vec(&request).expect("plain data becomes JSON"));
    let stream = timeout(OPEN_TIMEOUT, async {
        let carrier = workers.carrier(worker, &address).await.map_err(Failed::Other)?;
        Ok::<_, Failed>(Receiving::open(carrier, ticket, Arc::clone(&workers.pool)).await.map_err(Broken::from)?)
    });
    let mut stream = stream.await.unwrap_or_else(|_| Err(Failed::Other(lost(&address, "it does not answer"))))?;
    loop {
        room(shared, window).await;
        let Some(Received { records, metadata, bytes }) = stream.next().await? else { return Ok(()) };
        let piece: PieceMetadata =
            serde_json::from_slice(&metadata).map_err(|error| Broken::Unreadable(error.to_string()))?;
        let rows = piece.rows.1.saturating_sub(piece.rows.0);
        if piece.gaps > rows || records.num_rows() as u64 > rows - piece.gaps || !shared.is_expected(&records) {
            return Err(Broken::Unreadable("other rows or columns than were asked for".to_owned()).into());
        }
        let records = Piece { records, gaps: piece.gaps };
        let fragment = Fragment { rows: piece.rows.0..piece.rows.1, bytes, records };
        if !shared.trainer.lock().received(window, lease, fragment) {
            // Replaced, or a worker that sends what nobody asked for: what is missing is asked for again.
            return Ok(());
        }
        shared.all_is_well();
        shared.moved.notify_one();
    }
}

/// Waits until the loop has room for more of this window.
async fn room(shared: &Shared, window: WindowId) {
    loop {
        let room = shared.room.notified();
        tokio::pin!(room);
        // Listening begins before looking, so what happens in between is not missed.
        room.as_mut().enable();
        if shared.trainer.lock().wants(window) {
            return;
        }
        room.await;
    }
}

/// Names the worker in an error that would else be taken for the dispatcher's.
fn at(address: &str, error: &Error) -> Error {
    let named = Error::new(ErrorKind::Unavailable, format!("the worker at {address}: {}", error.message()));
    named.with_hint(
        "look at how that worker was started: its address (the option \"advertise\"), certificates and tokens must go with the others'",
    )
}

impl Workers {
    pub(crate) fn new(options: ConnectOptions) -> Arc<Self> {
        Arc::new(Self { options, carriers: Mutex::default(), pool: Pool::new(POOL_BYTES) })
    }

    async fn carrier(&self, worker: WorkerId, address: &str) -> forebay_protocol::Result<Carrier> {
        if let Some(carrier) = self.carriers.lock().get(&worker) {
            return Ok(carrier.clone());
        }
        let carrier = connect::carrier(address, Some(&local::socket(worker)), &self.options).await?;
        self.carriers.lock().insert(worker, carrier.clone());
        Ok(carrier)
    }

    /// What the end of a stream means for the reader.
    fn judge(&self, shared: &Shared, worker: WorkerId, address: &str, failed: Failed) -> Ended {
        let (is_ticket, error) = match failed {
            Failed::Stream(Broken::Status(status)) if status.code() == Code::NotFound => return Ended::Missing,
            // Whatever listens at that address is no worker: another worker's may be right.
            Failed::Stream(Broken::Status(status)) if status.code() == Code::Unimplemented => {
                self.carriers.lock().remove(&worker);
                shared.stream_trouble(at(address, &error_of(address, &status, |cause| lost(address, cause))));
                return Ended::Lost;
            }
            // A new dispatcher signs with a new key: the next message brings a ticket that is good.
            Failed::Stream(Broken::Status(status)) => {
                (status.code() == Code::PermissionDenied, error_of(address, &status, |cause| lost(address, cause)))
            }
            Failed::Stream(Broken::Unreadable(cause)) => {
                let message = format!("{address} sent what cannot be read: {cause}");
                (false, Error::new(ErrorKind::Internal, message))
            }
            // A worker that cannot be reached as it says is its own misfortune, not the reader's.
            Failed::Other(error) => {
                self.carriers.lock().remove(&worker);
                shared.stream_trouble(at(address, &error));
                return Ended::Lost;
            }
        };
        match error.kind() {
            ErrorKind::Data | ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::Internal => {
                Ended::Failed(error.report())
            }
            // It knows other tokens than the dispatcher: others may not.
            ErrorKind::Denied if !is_ticket => {
                shared.stream_trouble(at(address, &error));
                Ended::Lost
            }
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Unavailable | ErrorKind::Exhausted => {
                self.carriers.lock().remove(&worker);
                shared.stream_trouble(error);
                Ended::Lost
            }
        }
    }
}
