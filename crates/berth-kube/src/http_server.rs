//! Serves an axum router on a listener, plain or over TLS, with timeouts, until stopped.
//!
//! Like `axum::serve`, which has no timeout for request headers and no TLS.

use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Protocol and timeouts of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Whether HTTP/2 is accepted as well.
    pub(crate) http2: bool,
    /// How long a client may take to send the headers of a request.
    pub(crate) header_timeout: Duration,
    /// How long requests in progress may take after the stop.
    pub(crate) drain_timeout: Duration,
}

impl Limits {
    /// Plain HTTP/1 without long requests.
    pub(crate) const fn http1(header_timeout: Duration) -> Self {
        Self { http2: false, header_timeout, drain_timeout: Duration::from_secs(1) }
    }
}

/// Serves until stopped, then finishes the requests in progress. `accept` prepares a connection, for
/// example by a TLS handshake; `None` drops it.
pub(crate) async fn serve<A, S>(
    listener: TcpListener,
    router: Router,
    accept: impl Fn(TcpStream, SocketAddr) -> A,
    limits: Limits,
    stop: CancellationToken,
) where
    A: Future<Output = Option<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Responses are small and complete: waiting to fill a packet would only delay them.
                let _ = stream.set_nodelay(true);
                let stream = accept(stream, peer);
                tracker.spawn(serve_connection(stream, router.clone(), limits, stop.clone()));
            }
            Err(error) => {
                // Most likely out of file descriptors: wait until other connections end.
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    drop(listener);
    tracker.close();
    let _ = tokio::time::timeout(limits.drain_timeout, tracker.wait()).await;
}

/// Serves until stopped, without TLS.
pub(crate) async fn serve_plain(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) {
    serve(listener, router, async |stream, _| Some(stream), limits, stop).await;
}

async fn serve_connection<S>(
    stream: impl Future<Output = Option<S>>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(stream) = stream.await else { return };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    if !limits.http2 {
        builder = builder.http1_only();
    }
    builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.header_timeout);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Duration::from_secs(20));
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // Errors of a connection are the client's.
        _ = connection.as_mut() => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
