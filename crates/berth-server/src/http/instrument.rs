//! Around every request: tracing, metrics and the timeout.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use tracing::Instrument as _;

use super::HttpLimits;
use super::routes::{placements, queue};
use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::{ListRead, REQUESTS};

/// How long a request may take; absent for responses that stream, or take as long as there is work.
fn time_limit(path: &str, request: &Request, limits: HttpLimits) -> Option<Duration> {
    let is_unlimited = path.ends_with("/stream")
        || matches!(
            path,
            "/v1/state"
                | "/v1/debug/state"
                | "/v1/policies/diff"
                | "/v1/decisions/{id}/replay"
                | "/v1/nodes/import"
        );
    // What the caller asked to wait for comes on top.
    let held_s = match path {
        "/v1/placements" => placements::held_s(request.headers()),
        "/v1/queue/{id}" => queue::held_s(request.uri().query().unwrap_or_default()),
        _ => 0,
    };
    (!is_unlimited).then(|| limits.timeout + Duration::from_secs(held_s))
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
    let limit = time_limit(path.as_ref().map_or("", |path| path.as_str()), &request, limits);
    let answer = LIST_AGE.scope(Cell::new(None), async {
        let response = next.run(request).await;
        with_age(&state, &method, response)
    });
    let answer = answer.instrument(span.clone());
    let response = match limit {
        Some(limit) => tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| timed_out()),
        None => answer.await,
    };
    span.record("http.response.status_code", response.status().as_u16());
    let path = path.as_ref().map_or("", |path| path.as_str());
    state.metrics.count_request(&method, path, response.status(), began.elapsed());
    response
}

tokio::task_local! {
    /// How old the list is that a request is answered with; none if it was just read.
    static LIST_AGE: Cell<Option<Duration>>;
}

/// The items of a list of the database. If they come from memory, their age is stated with the answer.
pub(crate) fn items_with_age<T>(read: ListRead<T>) -> Arc<Vec<T>> {
    if let Some(age) = read.age {
        // Outside of a request, as in tests, nobody is told.
        let _ = LIST_AGE.try_with(|noted| noted.set(noted.get().max(Some(age))));
    }
    read.items
}

/// States how old an answer from memory is, while the database does not answer.
fn with_age(state: &AppState, method: &Method, mut response: Response) -> Response {
    let is_read = method == Method::GET && response.status().is_success();
    let age = || LIST_AGE.with(Cell::get).or_else(|| state.control.staleness());
    if let Some(age) = is_read.then(age).flatten() {
        response.headers_mut().insert(header::AGE, HeaderValue::from(age.as_secs()));
    }
    response
}

fn timed_out() -> Response {
    let detail = "the request took longer than this server allows; its outcome is unknown, since it may \
                  still complete";
    let title = "request timed out";
    let status = StatusCode::GATEWAY_TIMEOUT;
    ApiError::new(status, "timeout", title, detail)
        .remedy("retry with the same request id")
        .retry_after(1)
        .into_response()
}
