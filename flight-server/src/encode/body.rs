//! Answers whose body bypasses tonic's encoder.
//!
//! tonic's service decodes the request and makes the answer's head. A method that answers with [`RawBody`] messages
//! stores them in the answer's extensions, and the wrapper [`RawBodyService`] turns them into the body.

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

use super::frames::{Frames, OutgoingMessage};

type OutgoingMessages = BoxStream<'static, Result<OutgoingMessage, Status>>;

/// Messages to send without tonic's encoder.
// An extension must be cloneable. The messages are taken once.
#[derive(Clone)]
pub(crate) struct RawBody(Arc<Mutex<Option<OutgoingMessages>>>);

impl RawBody {
    /// An answer with these messages. `encoded` is the empty stream of messages for tonic's encoder.
    pub(crate) fn answer<T>(messages: OutgoingMessages, encoded: T) -> Response<T> {
        let mut response = Response::new(encoded);
        response.extensions_mut().insert(Self(Arc::new(Mutex::new(Some(messages)))));
        response
    }
}

/// A service that may answer with [`RawBody`] messages.
#[derive(Clone)]
pub(crate) struct RawBodyService<S>(pub(crate) S);

impl<S: NamedService> NamedService for RawBodyService<S> {
    const NAME: &'static str = S::NAME;
}

type Answer<E> = Result<http::Response<Body>, E>;

impl<S, R> Service<R> for RawBodyService<S>
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
    let messages = answer.extensions_mut().remove::<RawBody>().and_then(|direct| direct.0.lock().take());
    if let Some(messages) = messages {
        *answer.body_mut() = Body::new(RawFrames { messages: Some(messages), frames: Frames::default(), end: None });
    }
    answer
}

struct RawFrames {
    /// None after the last message.
    messages: Option<OutgoingMessages>,
    frames: Frames,
    end: Option<http::HeaderMap>,
}

impl hyper::body::Body for RawFrames {
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
                        // The caller polls again, and then waits for more.
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
                    // The code alone is always a valid header.
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

#[cfg(test)]
mod tests {
    use arrow_flight::FlightData;
    use futures::StreamExt;
    use futures::stream;
    use http_body_util::BodyExt;
    use tokio::sync::mpsc;

    use super::*;

    fn message(bytes: usize) -> OutgoingMessage {
        FlightData { data_body: vec![7; bytes].into(), ..FlightData::default() }.into()
    }

    /// The body of a service's answer, in place of tonic's.
    fn body(messages: OutgoingMessages) -> Body {
        let answer = RawBody::answer(messages, ());
        let (_, (), extensions) = answer.into_parts();
        let mut answer = http::Response::new(Body::empty());
        *answer.extensions_mut() = extensions;
        direct(answer).into_body()
    }

    #[tokio::test]
    async fn what_came_before_an_error_is_sent_before_it() {
        let failed = Status::data_loss("row 3 is bad: ä\nhint: look at it");
        let sent = [Ok(message(10)), Ok(message(100 << 10)), Ok(message(10)), Err(failed.clone())];
        let got = body(stream::iter(sent).boxed()).collect().await.unwrap();
        let trailers = got.trailers().unwrap().clone();
        let status = Status::from_header_map(&trailers).unwrap();
        assert_eq!((status.code(), status.message()), (failed.code(), failed.message()));
        assert_eq!(got.to_bytes().iter().filter(|&&byte| byte == 7).count(), 20 + (100 << 10));
    }

    #[tokio::test]
    async fn an_end_is_said_to_be_good() {
        let got = body(stream::iter([]).boxed()).collect().await.unwrap();
        assert_eq!(Status::from_header_map(got.trailers().unwrap()).unwrap().code(), Code::Ok);
        assert!(got.to_bytes().is_empty());
    }

    #[tokio::test]
    async fn small_messages_go_together_but_do_not_wait() {
        let (send, mut receive) = mpsc::unbounded_channel();
        let mut body = body(stream::poll_fn(move |context| receive.poll_recv(context)).boxed());
        for count in [3, 1] {
            (0..count).for_each(|_| send.send(Ok(message(10))).unwrap());
            let piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece.iter().filter(|&&byte| byte == 7).count(), 10 * count);
        }
        drop(send);
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.frame().await.is_none());
    }
}
