//! Streams from workers: one task per window, each receiving as fast as the loop has room.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_delivery::{Ended, Fragment, Open, WindowId};
use forebay_protocol::{Error, ErrorKind};
use futures::TryStreamExt;
use tokio::task::{AbortHandle, JoinSet};

use crate::followed::FollowedTrainer;
use crate::piece::Piece;
use crate::transport::{SliceError, SliceTransport};
use crate::wire::WindowRequest;

/// The streams of a trainer.
pub(crate) struct WindowStreams {
    followed: Arc<FollowedTrainer>,
    transport: Arc<dyn SliceTransport>,
    secret: String,
    ticket: String,
    tasks: JoinSet<()>,
    open: HashMap<WindowId, AbortHandle>,
}

impl WindowStreams {
    pub(crate) fn new(followed: Arc<FollowedTrainer>, transport: Arc<dyn SliceTransport>, secret: String) -> Self {
        Self { followed, transport, secret, ticket: String::new(), tasks: JoinSet::new(), open: HashMap::new() }
    }

    pub(crate) fn set_ticket(&mut self, ticket: String) {
        self.ticket = ticket;
    }

    /// Opens streams. Each replaces the open stream of the same window.
    pub(crate) fn open(&mut self, opens: Vec<Open>) {
        for open in opens {
            let window = open.window;
            let request = WindowRequest {
                ticket: self.ticket.clone(),
                secret: self.secret.clone(),
                feed: Arc::clone(&self.followed.feed),
                window,
                slice: open.slice,
                from_row: open.from_row,
            };
            let (followed, transport) = (Arc::clone(&self.followed), Arc::clone(&self.transport));
            let task = self.tasks.spawn(receive(followed, transport, open, request));
            if let Some(before) = self.open.insert(window, task) {
                before.abort();
            }
        }
    }

    /// Waits until a stream ends, forever if none is open.
    pub(crate) async fn ended(&mut self) {
        match self.tasks.join_next().await {
            Some(_) => self.open.retain(|_, task| !task.is_finished()),
            None => std::future::pending().await,
        }
    }
}

async fn receive(
    followed: Arc<FollowedTrainer>,
    transport: Arc<dyn SliceTransport>,
    open: Open,
    request: WindowRequest,
) {
    let how = match try_receive(&followed, &*transport, &open, request).await {
        Ok(()) => Ended::Complete,
        Err(error) => judge(&followed, &open.address, error),
    };
    let now = followed.now();
    followed.with(|trainer| trainer.ended(open.window, open.lease, how, now));
    followed.news.notify_one();
    followed.moved.notify_one();
}

async fn try_receive(
    followed: &FollowedTrainer,
    transport: &dyn SliceTransport,
    open: &Open,
    request: WindowRequest,
) -> Result<(), SliceError> {
    let mut stream = transport.open(open.worker, &open.address, request).await?;
    loop {
        room(followed, open.window).await;
        let Some(rows) = stream.try_next().await? else { return Ok(()) };
        let (begin, end) = rows.metadata.rows;
        let piece = Piece { records: rows.records, gaps: rows.metadata.gaps };
        let covered = end.saturating_sub(begin);
        let is_whole = piece.gaps <= covered && piece.records.num_rows() as u64 <= covered - piece.gaps;
        if !is_whole || !piece.is_of(&followed.schema) {
            let message = format!(
                "{} sent an answer that cannot be read: its rows or columns differ from the request",
                open.address
            );
            return Err(SliceError::Failed(Error::new(ErrorKind::Internal, message)));
        }
        let fragment = Fragment { rows: begin..end, bytes: rows.bytes, records: piece };
        let now = followed.now();
        if followed.with(|trainer| trainer.received(open.window, open.lease, fragment, now)) != Some(true) {
            // The stream was replaced, or the worker sent rows outside the request. Missing rows are requested again.
            return Ok(());
        }
        followed.streams_are_well();
        followed.moved.notify_one();
    }
}

/// Waits until the loop has room for more of this window.
async fn room(followed: &FollowedTrainer, window: WindowId) {
    loop {
        let room = followed.room.notified();
        tokio::pin!(room);
        // Register before looking, so that a change in between is not missed.
        room.as_mut().enable();
        if followed.with(|trainer| trainer.wants(window)) != Some(false) {
            return;
        }
        room.await;
    }
}

/// Maps the error of a stream to its meaning for the trainer.
fn judge(followed: &FollowedTrainer, address: &str, error: SliceError) -> Ended {
    let error = match error {
        SliceError::Missing => return Ended::Missing,
        // A worker with a wrong address is the worker's problem, not the reader's.
        SliceError::Unreachable(error) => at(address, &error),
        SliceError::TicketRefused(error) => error,
        SliceError::Failed(error) => match Ended::of(error.report()) {
            // This worker accepts other tokens than the dispatcher does.
            Ended::Lost if error.kind() == ErrorKind::Denied => at(address, &error),
            Ended::Lost => error,
            ended => return ended,
        },
    };
    followed.stream_trouble(&error);
    Ended::Lost
}

/// Names the worker in an error that would otherwise look like the dispatcher's.
fn at(address: &str, error: &Error) -> Error {
    let message = format!("the worker at {address}: {}", error.message());
    Error::new(ErrorKind::Unavailable, message).with_hint(
        "check how that worker was started: its address (the option \"advertise\"), certificates and tokens must match \
         the others'",
    )
}
