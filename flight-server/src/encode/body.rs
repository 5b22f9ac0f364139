//! Answers whose body tonic does not encode.
//!
//! tonic's service decodes the request and makes the answer's head. A method that answers with [`Direct`] messages puts
//! them into the answer's extensions, and [`Direction`], around the service, makes them the body.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{FutureExt, Map};
use futures::stream::BoxStream;
use hyper::body::Frame;
use parking_lot::Mutex;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::server::NamedService;
use tonic::{Code, Response, Status};

use super::frames::{Frames, Message};

type Messages = BoxStream<'static, Result<Message, Status>>;

/// Messages to send past tonic's encoder.
// An extension has to be cloneable; it is taken once.
#[derive(Clone)]
pub(crate) struct Direct(Arc<Mutex<Option<Messages>>>);

impl Direct {
    /// An answer of these messages; `encoded` are those for tonic, of which there are none.
    pub(crate) fn answer<T>(messages: Messages, encoded: T) -> Response<T> {
        let mut response = Response::new(encoded);
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(messages)))));
        response
    }
}

/// A service that may answer with [`Direct`] messages.
#[derive(Clone)]
pub(crate) struct Direction<S>(pub(crate) S);

impl<S: NamedService> NamedService for Direction<S> {
    const NAME: &'static str = S::NAME;
}

type Answer<E> = Result<http::Response<Body>, E>;

impl<S, R> Service<R> for Direction<S>
where
    S: Service<R, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Map<S::Future, fn(Answer<S::Error>) -> Answer<S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        self.0.call(request).map(|answer| answer.map(direct))
    }
}

fn direct(mut answer: http::Response<Body>) -> http::Response<Body> {
    let messages = answer.extensions_mut().remove::<Direct>().and_then(|direct| direct.0.lock().take());
    if let Some(messages) = messages {
        *answer.body_mut() = Body::new(DirectBody { messages: Some(messages), frames: Frames::default(), end: None });
    }
    answer
}

struct DirectBody {
    /// None after the last.
    messages: Option<Messages>,
    frames: Frames,
    end: Option<http::HeaderMap>,
}

impl hyper::body::Body for DirectBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.frames.pop() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(messages) = &mut this.messages else {
                return Poll::Ready(this.end.take().map(|end| Ok(Frame::trailers(end))));
            };
            let end = match messages.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(message))) => {
                    this.frames.push(message);
                    continue;
                }
                Poll::Ready(Some(Err(status))) => status,
                Poll::Ready(None) => Status::new(Code::Ok, ""),
                Poll::Pending => {
                    this.frames.flush();
                    match this.frames.pop() {
                        // The rest is asked for again before there is room for more.
                        Some(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                        None => return Poll::Pending,
                    }
                }
            };
            this.messages = None;
            this.frames.flush();
            let mut trailers = http::HeaderMap::new();
            this.end = Some(match end.add_header(&mut trailers) {
                Ok(()) => trailers,
                Err(unsendable) => {
                    let mut trailers = http::HeaderMap::new();
                    // The code alone can always be sent.
                    let _ = Status::new(unsendable.code(), "").add_header(&mut trailers);
                    trailers
                }
            });
        }
    }

    fn is_end_stream(&self) -> bool {
        false
    }
}
