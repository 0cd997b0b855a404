//! Around every request: tracing, metrics and the timeout.

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use tracing::Instrument as _;

use super::HttpLimits;
use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::REQUESTS;

/// Paths whose responses stream, or wait at the caller's request.
fn may_take_long(path: &str) -> bool {
    path.ends_with("/stream")
        || path == "/v1/state"
        || path == "/v1/debug/state"
        || path == "/v1/policies/diff"
        || path == "/v1/decisions/{id}/replay"
        || path == "/v1/nodes/import"
        || path == "/v1/queue/{id}"
        || path == "/v1/placements"
}

/// Times a request, counts it, and aborts it when it takes too long.
pub(crate) async fn instrument(
    State((state, limits)): State<(AppState, HttpLimits)>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let began = tokio::time::Instant::now();
    // Without a trace collector, the span is disabled and costs nothing.
    let span = tracing::info_span!(
        target: REQUESTS,
        "request",
        otel.kind = "server",
        http.request.method = %method,
        http.route = path.as_ref().map(MatchedPath::as_str),
        http.response.status_code = tracing::field::Empty,
    );
    let answer = next.run(request).instrument(span.clone());
    let response = if path.as_ref().is_some_and(|path| may_take_long(path.as_str())) {
        answer.await
    } else {
        tokio::time::timeout(limits.timeout, answer).await.unwrap_or_else(|_| timed_out())
    };
    span.record("http.response.status_code", response.status().as_u16());
    let path = path.as_ref().map_or("", |path| path.as_str());
    state.metrics.count_request(&method, path, response.status(), began.elapsed());
    response
}

fn timed_out() -> Response {
    let detail = "the request took longer than this server allows; it may still complete";
    let title = "request timed out";
    let status = StatusCode::GATEWAY_TIMEOUT;
    ApiError::new(status, "timeout", title, detail)
        .remedy("send it again with the same request id")
        .retry_after(1)
        .into_response()
}
