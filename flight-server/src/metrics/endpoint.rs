//! The HTTP port that Prometheus scrapes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Metrics;
use super::health::Health;
use crate::listen;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Time limit from the first byte of a request to the last byte of its answer. Prometheus itself gives up after ten
/// seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Further connections wait in the listener's queue.
const CONNECTIONS_MAX: usize = 64;
/// A request is one line and some headers.
const REQUEST_BYTES_MAX: usize = 16 << 10;

/// A port for metrics and health that is bound but does not answer yet.
pub struct MetricsEndpoint {
    listener: TcpListener,
    address: SocketAddr,
    patience: Duration,
}

impl MetricsEndpoint {
    /// Binds the port; port 0 binds a free one.
    ///
    /// # Errors
    /// `Conflict` for a port in use, `Invalid` for an address that is not of this machine.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let (listener, address) = listen::bind(address, "metrics_port").await?;
        Ok(Self { listener, address, patience: PATIENCE })
    }

    /// The URI of the metrics.
    pub fn uri(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// Answers forever.
    pub(crate) async fn serve(self, health: Arc<Health>) -> Infallible {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((tcp, _)) => {
                        connections.spawn(timeout(self.patience, talk(tcp, Arc::clone(&health))));
                    }
                    Err(error) => listen::pause(&error).await,
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Answers one request. Connections are not kept alive, since idle ones would have to be watched.
async fn talk(tcp: TcpStream, health: Arc<Health>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let health = Arc::clone(&health);
        async move { Ok::<_, Infallible>(respond(request.method(), request.uri().path(), &health).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    if let Err(error) = http.serve_connection(TokioIo::new(tcp), answer).await {
        tracing::debug!(%error, "a request for metrics failed");
    }
}

async fn respond(method: &Method, path: &str, health: &Health) -> Response<Full<Bytes>> {
    let is_reading = *method == Method::GET || *method == Method::HEAD;
    let (status, kind, body) = match path {
        "/metrics" if is_reading => match health.metrics().await.map(Metrics::text) {
            Some(Ok(text)) => (StatusCode::OK, OPEN_METRICS, text),
            Some(Err(error)) => (StatusCode::INTERNAL_SERVER_ERROR, PLAIN, format!("{error}\n")),
            None => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, "starting: there are no metrics yet\n".to_owned()),
        },
        "/healthz" if is_reading => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
        "/readyz" if is_reading => match health.ready() {
            Ok(()) => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{why}\n")),
        },
        _ => {
            let served = "not found: this port serves GET /metrics, GET /healthz and GET /readyz\n";
            (StatusCode::NOT_FOUND, PLAIN, served.to_owned())
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use forebay_engine::ErrorKind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Runs `test` against an endpoint with a short time limit.
    async fn with_endpoint<T>(test: impl AsyncFnOnce(SocketAddr) -> T) -> T {
        let mut endpoint = MetricsEndpoint::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        endpoint.patience = Duration::from_millis(200);
        let address = endpoint.address;
        let health = Arc::new(Health::default());
        health.serves(Metrics::new(None, None, Arc::default(), Default::default()));
        tokio::select! {
            never = endpoint.serve(health) => match never {},
            tested = test(address) => tested,
        }
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut tcp = TcpStream::connect(address).await.unwrap();
        let _ = tcp.write_all(request).await;
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn it_answers_and_closes() {
        with_endpoint(async |address| {
            let metrics = ask(address, b"GET /metrics?x=1 HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
            assert!(metrics.contains(&format!("content-type: {OPEN_METRICS}\r\n")), "{metrics}");
            let (_, body) = metrics.split_once("\r\n\r\n").unwrap();
            crate::metrics::check::check(body);
            let health = ask(address, b"GET /healthz HTTP/1.0\r\n\r\n").await;
            assert!(health.starts_with("HTTP/1.0 200 OK") && health.ends_with("\r\n\r\nok\n"), "{health}");
            for other in ["GET /", "GET /metricsx", "POST /metrics", "DELETE /healthz"] {
                let answer = ask(address, format!("{other} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await;
                assert!(answer.starts_with("HTTP/1.1 404"), "{other}: {answer}");
            }
            let head = ask(address, b"HEAD /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await;
            assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_request_has_a_size_limit() {
        with_endpoint(async |address| {
            let mut long = b"GET /metrics HTTP/1.1\r\nhost: ".to_vec();
            long.resize(4 * REQUEST_BYTES_MAX, b'x');
            let answer = ask(address, &long).await;
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
            assert!(ask(address, b"gibberish\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        })
        .await;
    }

    #[tokio::test]
    async fn whoever_is_silent_or_slow_is_hung_up_on() {
        with_endpoint(async |address| {
            let mut silent = Vec::new();
            for _ in 0..2 * CONNECTIONS_MAX {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            // This request waits behind all others, and is answered when the first of them time out.
            let health = ask(address, b"GET /healthz HTTP/1.0\r\n\r\n").await;
            assert!(health.ends_with("ok\n"), "{health}");
            for mut tcp in silent {
                assert!(matches!(tcp.read(&mut [0]).await, Ok(0) | Err(_)));
            }
            let mut slow = TcpStream::connect(address).await.unwrap();
            slow.write_all(b"GET /healthz HTTP/1.1\r\nhost").await.unwrap();
            assert!(matches!(slow.read(&mut [0]).await, Ok(0) | Err(_)));
        })
        .await;
    }

    #[tokio::test]
    async fn a_port_in_use_is_refused() {
        let endpoint = MetricsEndpoint::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
        assert_eq!(endpoint.uri(), format!("http://{}/metrics", endpoint.address));
        let Err(error) = MetricsEndpoint::bind(endpoint.address).await else { panic!("the port is taken") };
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains("option \"metrics_port\""), "{error}");
    }
}
