//! Requests to object stores that wait.
//!
//! The client of a store retries by itself, for up to three minutes, and says nothing. This module is between that
//! client and its connections: it logs what has waited for five seconds, counts what waits now, gives errors their
//! address, and has listings whose answer breaks off repeated.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep};

use crate::error::innermost;

/// Waiting for less is not worth a line.
const WORTH_A_LINE: Duration = Duration::from_secs(5);
/// The interval of further lines about the same request.
const LINES_INTERVAL: Duration = Duration::from_secs(30);
/// A failed request that is not repeated for this long has been given up. The client pauses for 15 seconds at most.
const GIVEN_UP: Duration = Duration::from_secs(40);

/// The requests of a process that have waited for their store for five seconds or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreWait {
    /// Their number.
    pub requests: u64,
    /// How long the oldest has waited, with all its retries.
    pub oldest: Duration,
    /// What the oldest asks for: the URL without its parameters.
    pub object: String,
}

/// The requests of all stores.
#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: HashMap<u64, Waiting>,
    /// Requests that failed and will be repeated, by their text.
    failed: HashMap<Arc<str>, Failed>,
}

#[derive(Clone, Debug)]
struct Waiting {
    request: Arc<str>,
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    since: Instant,
    last: Instant,
    times: u32,
}

impl Waits {
    /// What waits now, if anything has waited for long.
    pub(crate) fn now(&self) -> Option<StoreWait> {
        let state = self.0.lock();
        let failed = state.failed.iter().filter(|(_, failed)| failed.last.elapsed() < GIVEN_UP);
        let mut oldest: HashMap<&Arc<str>, Instant> = failed.map(|(request, failed)| (request, failed.since)).collect();
        for Waiting { request, since } in state.waiting.values() {
            let oldest = oldest.entry(request).or_insert(*since);
            *oldest = (*oldest).min(*since);
        }
        oldest.retain(|_, since| since.elapsed() >= WORTH_A_LINE);
        let (request, since) = oldest.iter().min_by_key(|(_, since)| **since)?;
        let (_, object) = parts(request);
        Some(StoreWait { requests: oldest.len() as u64, oldest: since.elapsed(), object: object.to_owned() })
    }

    fn begin(self: &Arc<Self>, request: &Arc<str>) -> Wait {
        let mut state = self.0.lock();
        state.last += 1;
        let (id, now) = (state.last, Instant::now());
        let since = state.failed.get(request).map_or(now, |failed| failed.since);
        state.waiting.insert(id, Waiting { request: Arc::clone(request), since });
        Wait { waits: Arc::clone(self), id, request: Arc::clone(request), since, line: Box::pin(sleep(WORTH_A_LINE)) }
    }

    fn succeeded(&self, request: &Arc<str>) {
        self.0.lock().failed.remove(request);
    }

    /// Records that a request failed and will be repeated, and logs it if it has been for a while.
    fn failed(&self, wait: &Wait, why: &str) {
        let mut state = self.0.lock();
        state.failed.retain(|_, failed| failed.last.elapsed() < GIVEN_UP);
        let now = Instant::now();
        let failed = Failed { since: wait.since, last: now, times: 0 };
        let failed = state.failed.entry(Arc::clone(&wait.request)).or_insert(failed);
        (failed.last, failed.times) = (now, failed.times + 1);
        if failed.since.elapsed() >= WORTH_A_LINE {
            let (method, object) = parts(&wait.request);
            let (waited_s, times) = (failed.since.elapsed().as_secs(), failed.times);
            tracing::warn!(method, object, why, waited_s, times, "a request to a store failed, and is repeated");
        }
    }
}

/// Method and URL of a request's text.
fn parts(request: &str) -> (&str, &str) {
    let mut words = request.split(' ');
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

/// One request on its way, or one answer of which the next bytes are awaited.
struct Wait {
    waits: Arc<Waits>,
    id: u64,
    request: Arc<str>,
    since: Instant,
    line: Pin<Box<Sleep>>,
}

impl Wait {
    /// Logs the wait when it is time. Wakes the task for the next line.
    fn poll_line(&mut self, context: &mut Context<'_>) {
        while self.line.as_mut().poll(context).is_ready() {
            let (method, object) = parts(&self.request);
            let waited_s = self.since.elapsed().as_secs();
            tracing::warn!(method, object, waited_s, "a store does not answer; waiting");
            self.line.as_mut().reset(Instant::now() + LINES_INTERVAL);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.0.lock().waiting.remove(&self.id);
    }
}

/// Makes clients whose requests are watched.
#[derive(Debug)]
pub(crate) struct WatchedConnector(pub(crate) Arc<Waits>);

impl HttpConnector for WatchedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Watched { client, waits: Arc::clone(&self.0) }))
    }
}

#[derive(Debug)]
struct Watched {
    client: HttpClient,
    waits: Arc<Waits>,
}

#[async_trait]
impl HttpService for Watched {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let server = uri.authority().map_or("", |authority| authority.as_str()).to_owned();
        let (scheme, path) = (uri.scheme_str().unwrap_or_default().to_owned(), uri.path().to_owned());
        // Requests for several ranges of an object are told apart by the rest.
        let range = request.headers().get("range").and_then(|range| range.to_str().ok()).unwrap_or_default();
        let text =
            format!("{} {scheme}://{server}{path} {} {range}", request.method(), uri.query().unwrap_or_default());
        let text: Arc<str> = text.into();
        let is_read = request.method() == "GET" && !uri.query().is_some_and(|query| query.contains("list-type="));
        let mut wait = self.waits.begin(&text);
        let mut answer = std::pin::pin!(self.client.execute(request));
        let answer = std::future::poll_fn(|context| {
            wait.poll_line(context);
            answer.as_mut().poll(context)
        });
        match answer.await {
            Err(error) => {
                let error = explained(&scheme, &server, &path, error);
                if is_repeated(error.kind()) {
                    self.waits.failed(&wait, &innermost(&error));
                }
                Err(error)
            }
            Ok(response) => {
                let status = response.status();
                if status.is_server_error() || matches!(status.as_u16(), 408 | 429) {
                    self.waits.failed(&wait, &format!("{server} answered {status}"));
                } else {
                    self.waits.succeeded(&text);
                }
                let waits = Arc::clone(&self.waits);
                let (parts, body) = response.into_parts();
                let body = HttpResponseBody::new(WatchedBody { body, request: text, server, waits, wait: None });
                if is_read || !status.is_success() {
                    return Ok(HttpResponse::from_parts(parts, body));
                }
                // The client resumes the reading of an object, but gives up a listing whose answer breaks off. It
                // repeats requests, so such an answer is part of its request.
                let whole = body.bytes().await.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
                Ok(HttpResponse::from_parts(parts, whole.into()))
            }
        }
    }
}

/// The body of an answer. The time in which nobody asks for its bytes does not count.
struct WatchedBody {
    body: HttpResponseBody,
    request: Arc<str>,
    server: String,
    waits: Arc<Waits>,
    wait: Option<Wait>,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            if self.wait.is_none() {
                self.wait = Some(self.waits.begin(&self.request));
            }
            self.wait.as_mut().expect("set above").poll_line(context);
            return Poll::Pending;
        };
        let wait = self.wait.take();
        Poll::Ready(frame.map(|frame| {
            frame.map_err(|error| {
                let error = explained("", &self.server, "", error);
                if let Some(wait) = wait.filter(|_| is_repeated(error.kind())) {
                    self.waits.failed(&wait, &innermost(&error));
                }
                error
            })
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whether the client repeats a request after such an error.
fn is_repeated(kind: HttpErrorKind) -> bool {
    !matches!(kind, HttpErrorKind::Unknown | HttpErrorKind::Decode)
}

/// An error in our words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Explained(String);

/// The error with the server's address and the setting that may be wrong. Some errors that the client would repeat for
/// minutes are final.
fn explained(scheme: &str, server: &str, path: &str, error: HttpError) -> HttpError {
    let (kind, cause) = (error.kind(), innermost(&error));
    let unreachable = matches!(kind, HttpErrorKind::Connect | HttpErrorKind::Timeout);
    if unreachable && (path.starts_with("/latest/api/token") || path.starts_with("/latest/meta-data/")) {
        return HttpError::new(HttpErrorKind::Unknown, Explained(no_credentials(server)));
    }
    if cause.contains("URL scheme is not allowed") {
        let text = format!("{scheme}://{server} is not encrypted; set AWS_ALLOW_HTTP=true to allow that");
        return HttpError::new(HttpErrorKind::Unknown, Explained(text));
    }
    match kind {
        HttpErrorKind::Connect if cause.contains("certificate") => {
            HttpError::new(HttpErrorKind::Unknown, Explained(format!("no secure connection to {server}: {cause}")))
        }
        HttpErrorKind::Connect => HttpError::new(kind, Explained(format!("no connection to {server}: {cause}"))),
        HttpErrorKind::Timeout => HttpError::new(kind, Explained(format!("{server} did not answer in time"))),
        _ => HttpError::new(kind, Explained(format!("{server}: {cause}"))),
    }
}

fn no_credentials(server: &str) -> String {
    format!(
        "there are no AWS credentials: AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, AWS_WEB_IDENTITY_TOKEN_FILE, \
         AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and AWS_CONTAINER_CREDENTIALS_FULL_URI are not set, and no service for \
         them answers at {server}; set the first two, or AWS_SKIP_SIGNATURE=true for a public bucket"
    )
}
