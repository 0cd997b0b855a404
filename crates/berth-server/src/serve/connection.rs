//! One connection: agree on encryption and protocol, then answer requests until it ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use super::stall::{TimedBody, TimedStream};
use super::{ConnectionLimits, Shared, Stop};
use crate::http::{CertifiedNode, OverTls, ServedAt};

/// Requests of one HTTP/2 connection that may be under way; further ones wait at the client.
pub(crate) const STREAMS_MAX: u32 = 100;

/// How often an idle HTTP/2 client is pinged.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves a connection until it ends.
pub(super) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    shared: &Shared,
    limits: ConnectionLimits,
) {
    // Responses are small and complete: waiting to fill a packet would only delay them.
    let _ = stream.set_nodelay(true);
    let served_at = stream.local_addr().ok().map(ServedAt);
    let (app, draining) = (shared.app.clone(), shared.stop.draining.clone());
    let Some(tls) = &shared.tls else {
        let context =
            Context { app, peer, served_at, node: None, over_tls: None, limits, draining };
        return http1(stream, context, &shared.stop).await;
    };
    let handshake = tls.acceptor().accept(stream);
    let stream = tokio::select! {
        () = shared.stop.closing.cancelled() => return,
        done = tokio::time::timeout(limits.header_timeout, handshake) => match done {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => return,
        },
    };
    let session = stream.get_ref().1;
    let node = super::tls::certified_node(session.peer_certificates()).map(CertifiedNode);
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let over_tls = Some(OverTls);
    let context = Context { app, peer, served_at, node, over_tls, limits, draining };
    if is_http2 {
        http2(stream, context, &shared.stop).await;
    } else {
        http1(stream, context, &shared.stop).await;
    }
}

/// What every request of a connection has with it.
struct Context {
    app: Router,
    peer: SocketAddr,
    served_at: Option<ServedAt>,
    node: Option<CertifiedNode>,
    limits: ConnectionLimits,
    draining: CancellationToken,
    over_tls: Option<OverTls>,
}

impl Context {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(ConnectInfo(self.peer));
        if let Some(served_at) = self.served_at {
            parts.extensions.insert(served_at);
        }
        if let Some(node) = &self.node {
            parts.extensions.insert(node.clone());
        }
        if let Some(over_tls) = self.over_tls {
            parts.extensions.insert(over_tls);
        }
        let body = Body::new(TimedBody::new(body, self.limits.stall_timeout));
        match self.app.clone().call(Request::from_parts(parts, body)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

async fn http1<S>(stream: S, context: Context, stop: &Stop)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, context) = (context.limits, Arc::new(context));
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        async move {
            let mut response = context.answer(request).await;
            // The next request goes elsewhere, instead of into a connection that is being closed.
            if context.draining.is_cancelled() {
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
            }
            Ok::<_, Infallible>(response)
        }
    });
    let io = TokioIo::new(TimedStream::new(stream, limits.stall_timeout));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = stop.closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cut.cancelled() => {}
    }
}

async fn http2<S>(stream: S, context: Context, stop: &Stop)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (limits, context) = (context.limits, Arc::new(context));
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        async move { Ok::<_, Infallible>(context.answer(request).await) }
    });
    let io = TokioIo::new(TimedStream::new(stream, limits.stall_timeout));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(limits.stall_timeout)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => return,
        () = stop.closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cut.cancelled() => {}
    }
}

const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: application/problem+json\r\n\
retry-after: 1\r\n\
connection: close\r\n\
content-length: 147\r\n\
\r\n\
{\"code\":\"too_many_connections\",\"title\":\"too many connections\",\"status\":503,\"detail\":\"this server takes no more connections now\",\"retry_after_s\":1}\n";

/// Answers that there are too many connections, within a second or not at all.
pub(super) async fn refuse(mut stream: TcpStream) {
    let tell = async {
        stream.write_all(FULL).await?;
        stream.shutdown().await?;
        // Closing with unread data would reset the connection and discard the response.
        let mut unread = [0; 4096];
        while stream.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(Duration::from_secs(1), tell).await;
}

#[cfg(test)]
pub(super) fn full() -> &'static [u8] {
    FULL
}
