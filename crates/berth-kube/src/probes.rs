//! An HTTP server for the kubelet and Prometheus: `/healthz`, `/livez`, `/readyz`, `/metrics`.
//!
//! Plain HTTP/1, without secrets and side effects. `/readyz` says what is missing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use berth_control::metrics_format::MetricsFormat;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::http_server::{self, Limits};

/// How long a client may take to send a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A server that is bound to its address and does not serve yet.
pub struct Probes {
    listener: TcpListener,
}

impl Probes {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(address).await? })
    }

    /// The bound address, with the actual port.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until stopped. `check_ready` returns what is missing, if anything is.
    pub async fn serve(
        self,
        check_ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        registry: Arc<Registry>,
        stop: CancellationToken,
    ) {
        self.serve_with(check_ready, registry, Router::new(), stop).await;
    }

    /// The same, with further routes.
    pub(crate) async fn serve_with(
        self,
        check_ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        registry: Arc<Registry>,
        routes: Router,
        stop: CancellationToken,
    ) {
        let check_ready = Arc::new(check_ready);
        let readyz = async move || match check_ready() {
            Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
            Err(missing) => (StatusCode::SERVICE_UNAVAILABLE, format!("{missing}\n")),
        };
        let router = Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route(
                "/metrics",
                get(async move |headers: HeaderMap| encode_metrics(&registry, &headers)),
            )
            .merge(routes)
            .fallback(async || (StatusCode::NOT_FOUND, "not found; see /readyz and /metrics\n"))
            .method_not_allowed_fallback(async || {
                (StatusCode::METHOD_NOT_ALLOWED, "only GET is accepted here\n")
            });
        let limits = Limits::http1(HEADER_TIMEOUT);
        http_server::serve_plain(self.listener, router, limits, stop).await;
    }
}

fn encode_metrics(registry: &Registry, headers: &HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let format = MetricsFormat::accepted(accept);
    let mut body = String::new();
    match encode(&mut body, registry) {
        Ok(()) => ([(CONTENT_TYPE, format.content_type())], format.render(body)).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed to encode metrics\n").into_response(),
    }
}
