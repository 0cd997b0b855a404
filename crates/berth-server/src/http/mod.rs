//! The HTTP API: routes, roles, errors, and the document that describes them.

mod auth;
mod extract;
mod instrument;
mod list;
mod openapi;
mod openapi_limits;
mod routes;
mod same_origin;

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

pub use auth::{CertifiedNode, OverTls};
/// Pieces of an export that may wait for a slow reader.
pub(crate) const PIECES_WAITING: usize = routes::PIECES_WAITING;
pub(crate) use auth::{caller, from as caller_from};
pub use openapi::openapi;
pub use same_origin::ServedAt;
pub(crate) use same_origin::check_local;

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

/// The router of the whole API.
pub fn router(state: AppState, limits: HttpLimits) -> Router {
    let (api, _) = routes::all(limits).split_for_parts();
    // Nearly all responses are small and not worth compressing; streams must not be compressed.
    let worth = SizeAbove::new(1024)
        .and(NotForContentType::GRPC)
        .and(NotForContentType::IMAGES)
        .and(NotForContentType::SSE);
    let compression =
        CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(worth);
    api.method_not_allowed_fallback(|| async { wrong_method() })
        .route_layer(axum::middleware::from_fn_with_state(state.clone(), auth::authenticate))
        .fallback(|| async { no_such_path() })
        .layer(axum::middleware::from_fn_with_state(
            (state.clone(), limits),
            instrument::instrument,
        ))
        .layer(compression)
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(state)
}

/// No route has this path.
fn no_such_path() -> ApiError {
    let detail = "there is no resource at this path";
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "not found", detail)
        .remedy("GET /openapi.json lists all paths")
}

/// No route has this method.
fn wrong_method() -> ApiError {
    let title = "this path does not support this method";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", title, title)
}

/// A panic in a handler fails one request, not the server.
#[allow(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> axum::response::Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "panic in request handler");
    let detail = "internal error; see the server log for details";
    let title = "internal error";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "defect", title, detail).into_response()
}
