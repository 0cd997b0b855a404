//! The HTTPS listener: `POST /mutate`, over HTTP/1.1 and HTTP/2, with a certificate that may change
//! while it serves. It reads a bounded body, answers, and never panics over what it reads.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admit::Clerk;
use super::metrics::Admission;
use super::review;

/// The API server takes objects up to about 3 MiB; a review holds one, escaped.
const BODY_MOST: usize = 8 << 20;

/// How long a client may take to agree on encryption, or to send a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long requests may go on when the webhook stops.
const LAST_REQUESTS: Duration = Duration::from_secs(10);

/// The certificate in use. It may change; connections that are there keep theirs.
#[derive(Clone, Default)]
pub(super) struct Certificate(Arc<RwLock<Option<Arc<ServerConfig>>>>);

impl Certificate {
    /// Serves with this from now on.
    pub(super) fn set(&self, config: ServerConfig) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
    }

    fn get(&self) -> Option<Arc<ServerConfig>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.get().is_some()
    }
}

/// Answers reviews on a listener until it is told to stop; then answers those that are there.
pub(super) async fn serve(
    listener: TcpListener,
    certificate: Certificate,
    clerk: Arc<Clerk>,
    stop: CancellationToken,
) {
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Some(config) = certificate.get() else { continue };
                let (clerk, stop) = (Arc::clone(&clerk), stop.clone());
                tracker.spawn(connection(stream, peer, config, clerk, stop));
            }
            Err(error) => {
                // Out of file descriptors, most likely: others will end.
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    let _ = tokio::time::timeout(LAST_REQUESTS, tracker.wait()).await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    config: Arc<ServerConfig>,
    clerk: Arc<Clerk>,
    stop: CancellationToken,
) {
    // Answers are small and complete: waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = match tokio::time::timeout(PATIENCE, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%peer, %error, "no encryption agreed on"),
        Err(_) => return,
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let clerk = Arc::clone(&clerk);
        async move { Ok::<_, Infallible>(answer(&clerk, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(120));
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20));
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        // A client that went away is no news.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn answer(clerk: &Clerk, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let began = Instant::now();
    if request.uri().path() != "/mutate" {
        return text(StatusCode::NOT_FOUND, "reviews are taken at POST /mutate\n".to_owned());
    }
    if request.method() != Method::POST {
        let what = "only POST is accepted here\n".to_owned();
        return text(StatusCode::METHOD_NOT_ALLOWED, what);
    }
    let patience = patience(request.uri());
    let refuse = |status, why: String| {
        clerk.metrics.admitted(Admission::BadRequest, began.elapsed());
        text(status, why)
    };
    let reading = Limited::new(request.into_body(), BODY_MOST).collect();
    let body = match tokio::time::timeout(PATIENCE, reading).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let why = format!("the body is longer than {BODY_MOST} bytes, which no review is\n");
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, why);
        }
        Ok(Err(error)) => {
            return refuse(StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n"));
        }
        Err(_) => {
            let why = "the body did not come in time\n".to_owned();
            return refuse(StatusCode::REQUEST_TIMEOUT, why);
        }
    };
    let review = match review::Request::read(&body) {
        Ok(review) => review,
        Err(invalid) => return refuse(StatusCode::BAD_REQUEST, format!("{invalid}\n")),
    };
    let (answer, result) = clerk.answer(&review, patience).await;
    clerk.metrics.admitted(result, began.elapsed());
    let mut response = Response::new(Full::new(answer.review(&review.uid).to_string().into()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

/// How long the API server waits, as it says with every call: `?timeout=5s`.
fn patience(uri: &Uri) -> Option<Duration> {
    let mut pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let (_, text) = pairs.find(|(name, _)| *name == "timeout")?;
    let seconds = text.strip_suffix('s')?.parse().ok()?;
    (1..=60).contains(&seconds).then(|| Duration::from_secs(seconds))
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_servers_own_deadline_is_read() {
        let read = |text: &str| patience(&text.parse().unwrap());
        assert_eq!(read("/mutate?timeout=5s"), Some(Duration::from_secs(5)));
        assert_eq!(read("/mutate?a=b&timeout=30s"), Some(Duration::from_secs(30)));
        for odd in ["/mutate", "/mutate?timeout=", "/mutate?timeout=5", "/mutate?timeout=0s"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
