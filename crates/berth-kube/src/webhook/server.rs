//! The HTTPS server: `POST /mutate` over HTTP/1.1 and HTTP/2, with a certificate that may change while
//! it serves. Reads a bounded body, and never panics on what it reads.

use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use http_body_util::LengthLimitError;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use super::admission::AdmissionHandler;
use super::metrics::AdmissionResult;
use super::review;
use crate::http_server::{self, Limits};

/// The API server accepts objects up to about 3 MiB; a review contains one, escaped.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 20;
/// Timeout of a TLS handshake, and of reading a body.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The API server keeps idle connections for a while; requests may finish after the stop.
const LIMITS: Limits = Limits {
    http2: true,
    header_timeout: Duration::from_secs(120),
    drain_timeout: Duration::from_secs(10),
};

/// The certificate in use. It may change; existing connections keep theirs.
#[derive(Clone, Default)]
pub(super) struct Certificate(Arc<RwLock<Option<Arc<ServerConfig>>>>);

impl Certificate {
    /// Replaces the certificate for new connections.
    pub(super) fn set(&self, config: ServerConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
    }

    fn get(&self) -> Option<Arc<ServerConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is one.
    pub(super) fn is_set(&self) -> bool {
        self.get().is_some()
    }
}

/// Serves reviews until stopped; then finishes the requests in progress.
pub(super) async fn serve(
    listener: TcpListener,
    certificate: Certificate,
    handler: Arc<AdmissionHandler>,
    stop: CancellationToken,
) {
    let router = Router::new()
        .route("/mutate", post(mutate))
        .fallback(async || (StatusCode::NOT_FOUND, "reviews are accepted at POST /mutate\n"))
        .method_not_allowed_fallback(async || {
            (StatusCode::METHOD_NOT_ALLOWED, "only POST is accepted here\n")
        })
        .with_state(handler);
    let accept = move |stream, peer| accept_tls(certificate.get(), stream, peer);
    http_server::serve(listener, router, accept, LIMITS, stop).await;
}

async fn accept_tls(
    config: Option<Arc<ServerConfig>>,
    stream: TcpStream,
    peer: SocketAddr,
) -> Option<TlsStream<TcpStream>> {
    let handshake = TlsAcceptor::from(config?).accept(stream);
    match tokio::time::timeout(READ_TIMEOUT, handshake).await.ok()? {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!(%peer, %error, "TLS handshake failed");
            None
        }
    }
}

async fn mutate(State(handler): State<Arc<AdmissionHandler>>, uri: Uri, body: Body) -> Response {
    let began = Instant::now();
    let reject = |status: StatusCode, message: String| {
        handler.metrics.record_admission(AdmissionResult::BadRequest, began.elapsed());
        (status, message).into_response()
    };
    let body = match tokio::time::timeout(READ_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) if error.source().is_some_and(|it| it.is::<LengthLimitError>()) => {
            let message = format!("the body is longer than {BODY_BYTES_MAX} bytes\n");
            return reject(StatusCode::PAYLOAD_TOO_LARGE, message);
        }
        Ok(Err(error)) => {
            return reject(StatusCode::BAD_REQUEST, format!("failed to read the body: {error}\n"));
        }
        Err(_) => {
            let message = "the body did not arrive in time\n".to_owned();
            return reject(StatusCode::REQUEST_TIMEOUT, message);
        }
    };
    let request = match review::AdmissionRequest::read(&body) {
        Ok(request) => request,
        Err(invalid) => return reject(StatusCode::BAD_REQUEST, format!("{invalid}\n")),
    };
    let (response, result) = handler.handle(&request, request_timeout(&uri)).await;
    handler.metrics.record_admission(result, began.elapsed());
    let json = [(CONTENT_TYPE, "application/json")];
    (json, response.to_review(&request.uid).to_string()).into_response()
}

/// How long the API server waits, which it states with every call: `?timeout=5s`.
fn request_timeout(uri: &Uri) -> Option<Duration> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, text) = pairs.find(|(name, _)| *name == "timeout")?;
    let seconds = text.strip_suffix('s')?.parse().ok()?;
    (1..=60).contains(&seconds).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_own_deadline_is_read() {
        let read = |text: &str| request_timeout(&text.parse().unwrap());
        assert_eq!(read("/mutate?timeout=5s"), Some(Duration::from_secs(5)));
        assert_eq!(read("/mutate?a=b&timeout=30s"), Some(Duration::from_secs(30)));
        for odd in ["/mutate", "/mutate?timeout=", "/mutate?timeout=5", "/mutate?timeout=0s"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
