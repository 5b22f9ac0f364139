//! Slices as Flight streams, over TCP or a local socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::Ticket;
use async_trait::async_trait;
use forebay_arrays::pool::Pool;
use forebay_delivery::WorkerId;
use forebay_protocol::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::timeout;
use tonic::Code;

use super::{SliceError, SliceRows, SliceStream, SliceTransport};
use crate::connect::{self, Carrier, ConnectOptions};
use crate::local;
use crate::receive::{BrokenStream, Receiving};
use crate::status::{error_of, lost};
use crate::wire::WindowRequest;

/// A worker that does not answer a request within this time is treated as lost.
const OPEN_TIMEOUT: Duration = Duration::from_secs(3);
/// Memory kept for future messages, over all streams.
const POOL_BYTES: usize = 64 << 20;

/// Opens slices over connections that all streams share, one per worker.
pub(crate) struct FlightTransport {
    connections: Arc<Connections>,
    /// The memory that messages are received into.
    pool: Arc<Pool>,
}

struct Connections {
    options: ConnectOptions,
    carriers: Mutex<HashMap<WorkerId, Carrier>>,
}

impl FlightTransport {
    pub(crate) fn new(options: ConnectOptions) -> Arc<Self> {
        let connections = Arc::new(Connections { options, carriers: Mutex::default() });
        Arc::new(Self { connections, pool: Pool::new(POOL_BYTES) })
    }
}

#[async_trait]
impl SliceTransport for FlightTransport {
    async fn open(&self, worker: WorkerId, address: &str, request: WindowRequest) -> Result<SliceStream, SliceError> {
        let ticket = Ticket::new(serde_json::to_vec(&request).expect("plain data becomes JSON"));
        let peer = Peer { connections: Arc::clone(&self.connections), worker, address: address.to_owned() };
        let opened = timeout(OPEN_TIMEOUT, async {
            let carrier = peer.connections.carrier(worker, address).await.map_err(SliceError::Unreachable)?;
            let opened = Receiving::open(carrier, ticket, Arc::clone(&self.pool)).await;
            opened.map_err(|status| error(address, status.into()))
        });
        let silent = |_| Err(SliceError::Unreachable(lost(address, "it does not answer")));
        let slice = opened.await.unwrap_or_else(silent).inspect_err(|error| peer.failed(error))?;
        let rows = stream::try_unfold((slice, peer), |(mut slice, peer)| async move {
            let next = next(&mut slice).await.map_err(|broken| error(&peer.address, broken));
            Ok(next.inspect_err(|error| peer.failed(error))?.map(|rows| (rows, (slice, peer))))
        });
        Ok(rows.boxed())
    }
}

async fn next(slice: &mut Receiving) -> Result<Option<SliceRows>, BrokenStream> {
    let Some(received) = slice.next().await? else { return Ok(None) };
    let metadata = serde_json::from_slice(&received.metadata);
    let metadata = metadata.map_err(|error| BrokenStream::Unreadable(error.to_string()))?;
    Ok(Some(SliceRows { records: received.records, metadata, bytes: received.bytes }))
}

impl Connections {
    async fn carrier(&self, worker: WorkerId, address: &str) -> Result<Carrier> {
        if let Some(carrier) = self.carriers.lock().get(&worker) {
            return Ok(carrier.clone());
        }
        let carrier = connect::carrier(address, Some(&local::socket(worker)), &self.options).await?;
        self.carriers.lock().insert(worker, carrier.clone());
        Ok(carrier)
    }
}

/// The worker that a slice comes from.
struct Peer {
    connections: Arc<Connections>,
    worker: WorkerId,
    address: String,
}

impl Peer {
    /// Drops the connection if it may have caused the error.
    fn failed(&self, error: &SliceError) {
        let is_suspect = match error {
            SliceError::Missing => false,
            SliceError::Unreachable(_) | SliceError::TicketRefused(_) => true,
            SliceError::Failed(error) => matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Exhausted),
        };
        if is_suspect {
            self.connections.carriers.lock().remove(&self.worker);
        }
    }
}

fn error(address: &str, broken: BrokenStream) -> SliceError {
    let status = match broken {
        BrokenStream::Status(status) => status,
        BrokenStream::Unreadable(cause) => return unreadable(address, &cause),
    };
    let error = || error_of(address, &status, |cause| lost(address, cause));
    match status.code() {
        Code::NotFound => SliceError::Missing,
        // The server at that address is not a worker.
        Code::Unimplemented => SliceError::Unreachable(error()),
        // A restarted dispatcher signs with a new key.
        Code::PermissionDenied => SliceError::TicketRefused(error()),
        _ => SliceError::Failed(error()),
    }
}

/// The error for an answer that cannot be decoded.
fn unreadable(address: &str, cause: &str) -> SliceError {
    let message = format!("{address} sent an answer that cannot be read: {cause}");
    SliceError::Failed(Error::new(ErrorKind::Internal, message))
}
