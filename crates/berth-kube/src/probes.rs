//! A small listener for the kubelet and Prometheus: `/healthz`, `/livez`, `/readyz`, `/metrics`.
//!
//! Plain HTTP/1, no secrets, no effects. `/readyz` says in words what is still missing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What Prometheus expects.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long a client may take to ask.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listener that has its address and does not serve yet.
pub struct Probes {
    listener: TcpListener,
}

/// An answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Further paths: what is answered to a request, if its path is one of them.
pub(crate) type Routes =
    Arc<dyn Fn(&Request<Incoming>) -> Option<BoxFuture<'static, Answer>> + Send + Sync>;

/// What is answered with.
struct Answers {
    ready: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    registry: Arc<Registry>,
    routes: Option<Routes>,
}

impl Probes {
    /// Takes the address.
    ///
    /// # Errors
    /// When it cannot be had.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The address as it is: a port that was left open is known now.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until it is told to stop. `ready` says what is missing, if anything is.
    pub async fn serve(
        self,
        ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        registry: Arc<Registry>,
        stop: CancellationToken,
    ) {
        self.serve_with(ready, registry, None, stop).await;
    }

    /// The same, with further paths.
    pub(crate) async fn serve_with(
        self,
        ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        registry: Arc<Registry>,
        routes: Option<Routes>,
        stop: CancellationToken,
    ) {
        let answers = Arc::new(Answers { ready: Box::new(ready), registry, routes });
        let tracker = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    tracker.spawn(connection(stream, Arc::clone(&answers), stop.clone()));
                }
                // Out of file descriptors, most likely: others will end.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        tracker.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), tracker.wait()).await;
    }
}

async fn connection(stream: TcpStream, answers: Arc<Answers>, stop: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answers = Arc::clone(&answers);
        async move { Ok::<_, Infallible>(answers.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        // A client that went away is no news.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

impl Answers {
    async fn answer(&self, request: &Request<Incoming>) -> Answer {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is accepted here\n");
        }
        if let Some(answer) = self.routes.as_ref().and_then(|routes| routes(request)) {
            return answer.await;
        }
        match request.uri().path() {
            "/healthz" | "/livez" => text(StatusCode::OK, "ok\n"),
            "/readyz" => match (self.ready)() {
                Ok(()) => text(StatusCode::OK, "ok\n"),
                Err(missing) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")),
            },
            "/metrics" => self.metrics(),
            _ => text(
                StatusCode::NOT_FOUND,
                "there are /healthz, /livez, /readyz and /metrics here\n",
            ),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut body = String::new();
        if encode(&mut body, &self.registry).is_err() {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be written\n");
        }
        let mut response = text(StatusCode::OK, body);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(OPEN_METRICS));
        response
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: &serde_json::Value) -> Answer {
    let mut response = text(status, format!("{body}\n"));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// An answer in words.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
