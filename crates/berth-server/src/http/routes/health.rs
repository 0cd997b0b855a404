//! Whether the server lives and works, what it counts, who the caller is, and the API's document.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use berth_api::{ServerStatus, ServerWarning, WhoAmI};
use berth_ledger::invariant_ok;
use berth_ledger::invariants::{self, ViolatedInvariant};
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
        .routes(routes!(status))
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
/// 200 when the database answers and takes commits, the threads that all requests share run and the server is not
/// stopping; 503 otherwise, with the reason.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 200, description = "It can.", content_type = "text/plain", body = String)))]
async fn readyz(State(control): State<Arc<ControlPlane>>) -> ApiResult<&'static str> {
    check_readiness(&control).await?;
    Ok("ready\n")
}

async fn check_readiness(control: &ControlPlane) -> ApiResult<()> {
    if control.lifecycle.draining().is_cancelled() || control.lifecycle.stopping().is_cancelled() {
        return Err(ApiError::unavailable("stopping", "the server is stopping"));
    }
    // First what is known already: while the database is away, probes must not pile up on it.
    let problems = control.problems();
    if !problems.is_empty() {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        return Err(ApiError::unavailable("not_ready", problems.join("; ")));
    }
    let late = |what: &str| {
        let limit = PROBE_TIMEOUT.as_millis();
        ApiError::unavailable("not_ready", format!("{what} did not answer within {limit} ms"))
    };
    tokio::time::timeout(PROBE_TIMEOUT, control.probe_write())
        .await
        .map_err(|_| late("a commit of the database"))??;
    let answers = control.read(|ledger| ledger.newest_event());
    tokio::time::timeout(PROBE_TIMEOUT, answers).await.map_err(|_| late("the database"))??;
    let applied = control.wait_for_read_your_writes();
    tokio::time::timeout(PROBE_TIMEOUT, applied).await.map_err(|_| late("the catalogue"))?;
    Ok(())
}

/// How long a probe waits.
const PROBE_TIMEOUT: Duration = Duration::from_millis(900);

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

/// Read the server's status
///
/// Its version, its database and its clock, whether it can serve, and what needs attention. Answered with 200 also when it
/// cannot; for load balancers there is `/readyz`.
#[utoipa::path(get, path = "/v1/status", tag = "health",
    responses((status = 200, description = "The server.", body = ServerStatus)))]
#[allow(clippy::disallowed_methods, reason = "how long the database takes is measured")]
async fn status(State(control): State<Arc<ControlPlane>>) -> axum::Json<ServerStatus> {
    let began = std::time::Instant::now();
    let ready = check_readiness(&control).await;
    let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    axum::Json(ServerStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        schema: control.ledger.schema_version(),
        database: control.ledger.database().to_owned(),
        database_ms: ready.is_ok().then_some(took),
        time: control.now(),
        ready: ready.is_ok(),
        warnings: warnings(&control, ready.is_ok()).await,
        reason: ready.err().map(|error| error.detail().to_owned()),
    })
}

/// What needs attention: events that cannot be read, what is wrong with the policy in force, invariants that
/// were violated, and what the database says about itself.
async fn warnings(control: &ControlPlane, is_ready: bool) -> Vec<ServerWarning> {
    let unreadable = control.unreadable_events().into_iter().map(|part| {
        let last = part.first + part.count - 1;
        ServerWarning {
            text: format!("events {} to {last} of the log cannot be read", part.first),
            remedy: "what they changed was read from the tables instead; streams show them as \
                     log.unreadable; check the database with berth verify, and restore it if the disk is at fault"
                .to_owned(),
        }
    });
    let of_policy = control.policy_warnings().into_iter();
    let of_policy = of_policy.map(|it| ServerWarning { text: it.text, remedy: it.remedy });
    let violated = invariants::violated().into_iter().map(violation_warning);
    let mut warnings: Vec<ServerWarning> = unreadable.chain(of_policy).chain(violated).collect();
    if is_ready {
        warnings.extend(durability_warnings(control).await);
    }
    warnings
}

/// Something happened that cannot: an operator can only report it.
fn violation_warning(violated: ViolatedInvariant) -> ServerWarning {
    // Its context may name what not everyone may see: it is in the log.
    let ViolatedInvariant { name, count, last: _ } = violated;
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
    ServerWarning {
        text: format!("invariant {name} was violated {times} since the server started"),
        remedy:
            "it is a bug: report it with the server's log; check the database with berth verify"
                .to_owned(),
    }
}

/// What the database says about itself now; nothing if it does not answer in time.
async fn durability_warnings(control: &ControlPlane) -> Vec<ServerWarning> {
    let warnings = control.read(|ledger| ledger.durability_warnings());
    let answered = tokio::time::timeout(PROBE_TIMEOUT, warnings).await;
    let warnings = answered.ok().and_then(Result::ok).unwrap_or_default();
    warnings
        .iter()
        .map(|warning| ServerWarning {
            text: warning.to_string(),
            remedy: warning.remedy().to_owned(),
        })
        .collect()
}

/// Read the OpenAPI document
#[utoipa::path(get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "The document.", content_type = "application/json", body = Object)))]
async fn document() -> Response {
    static DOCUMENT: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let text = DOCUMENT.get_or_init(|| {
        invariant_ok!(crate::http::openapi().to_json(), "openapi_is_json").unwrap_or_default()
    });
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}
