//! The HTTP API: routes, roles, errors, and the document that describes them.

mod document;
mod extract;
mod guard;
mod list;
mod routes;
mod watch;

use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use http::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::predicate::{NotForContentType, Predicate as _, SizeAbove};
use tower_http::compression::{CompressionLayer, CompressionLevel};
use tower_http::decompression::RequestDecompressionLayer;

use crate::problem::ApiError;
use crate::state::AppState;

pub use document::openapi;
pub use guard::{CertifiedNode, OverTls};
pub(crate) use guard::{caller, from as caller_from};

/// Limits of the HTTP layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Most bytes of a body, after decompression.
    pub body_bytes: usize,
    /// Most bytes of an import's body.
    pub import_bytes: usize,
    /// How long a request may take, streams aside.
    pub timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self { body_bytes: 2 << 20, import_bytes: 256 << 20, timeout: Duration::from_secs(30) }
    }
}

/// The whole API of a service.
pub fn router(state: AppState, limits: HttpLimits) -> Router {
    let (api, _) = routes::all(limits).split_for_parts();
    // Small answers, which nearly all are, are not worth compressing; streams must not be.
    let worth = SizeAbove::new(1024)
        .and(NotForContentType::GRPC)
        .and(NotForContentType::IMAGES)
        .and(NotForContentType::SSE);
    let compression =
        CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth);
    api.method_not_allowed_fallback(|| async { wrong_method() })
        .route_layer(axum::middleware::from_fn_with_state(state.clone(), guard::guard))
        .fallback(|| async { nothing_here() })
        .layer(axum::middleware::from_fn_with_state((state.clone(), limits), watch::watch))
        .layer(compression)
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(state)
}

/// No route has this path.
fn nothing_here() -> ApiError {
    let detail = "there is nothing at this path";
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "there is no such thing", detail)
        .remedy("GET /openapi.json lists what there is")
}

/// No route has this method.
fn wrong_method() -> ApiError {
    let title = "this path does not know this method";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", title, title)
}

/// A defect in a handler costs one request, not the server.
#[allow(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> axum::response::Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a handler panicked");
    let detail = "the server met a defect of its own; its log says more";
    let title = "the server failed";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "defect", title, detail).into_response()
}
