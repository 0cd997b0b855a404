//! Whether the server lives and works, what it counts, who the caller is, and the API's document.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use berth_api::WhoAmI;
use http::{HeaderMap, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::problem::{ApiError, ApiResult};
use crate::state::AppState;
use berth_control::ControlPlane;
use berth_control::caller::Caller;
use berth_control::metrics_format::MetricsFormat;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz))
        .routes(routes!(metrics))
        .routes(routes!(whoami))
        .routes(routes!(document))
}

/// Is the process alive?
#[utoipa::path(get, path = "/healthz", tag = "health",
    responses((status = 200, description = "It is.", content_type = "text/plain", body = String)))]
async fn healthz() -> &'static str {
    "ok\n"
}

/// Can it serve?
///
/// 200 when the ledger answers and the server is not stopping; 503 otherwise, with the reason.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "It can.", content_type = "text/plain", body = String)))]
async fn readyz(State(control): State<Arc<ControlPlane>>) -> ApiResult<&'static str> {
    if control.lifecycle.draining().is_cancelled() || control.lifecycle.stopping().is_cancelled() {
        return Err(ApiError::unavailable("stopping", "the server is stopping"));
    }
    control.read(|ledger| ledger.newest_event()).await?;
    control.wait_for_read_your_writes().await;
    Ok("ready\n")
}

/// Read the metrics
///
/// In Prometheus' text format, or as OpenMetrics for clients that accept it.
#[utoipa::path(get, path = "/metrics", tag = "health",
    responses((status = 200, description = "The metrics.", content(
        (String = "text/plain"), (String = "application/openmetrics-text")))))]
async fn metrics(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let format = MetricsFormat::accepted(accept);
    let text = format.render(state.metrics.text(&state.control));
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

/// Who am I?
#[utoipa::path(get, path = "/v1/whoami", tag = "access",
    responses((status = 200, description = "The authenticated caller.", body = WhoAmI)))]
async fn whoami(caller: Caller) -> axum::Json<WhoAmI> {
    axum::Json(WhoAmI {
        role: caller.role,
        name: caller.name.to_string(),
        token: caller.token.as_deref().map(str::to_owned),
        tenants: caller.tenants().unwrap_or_default().to_vec(),
        node: caller.node().cloned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

/// Read the OpenAPI document
#[utoipa::path(get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "The document.", content_type = "application/json", body = Object)))]
async fn document() -> Response {
    static DOCUMENT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let text = DOCUMENT.get_or_init(|| crate::http::openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}
