//! Answering one request: who asks, for whom, and with which code.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_api::AskPermit;
use berth_engine::elastic::Size;
use berth_ledger::Text;
use http::{HeaderValue, Method, StatusCode, header};
use tower_http::catch_panic::CatchPanicLayer;

use super::pod::{self, PodTarget};
use crate::access::Access;
use crate::http::{caller, caller_from, check_local};
use crate::metrics::HttpMetrics;
use crate::problem::ApiError;
use crate::state::AppState;
use berth_api::wire::WireRequest as Request;
use berth_control::caller::Caller;
use berth_control::elastic::{self, PermitCaller};
use berth_control::{ControlError, ErrorKind};

/// The largest body, as agents expect it. A longer one is read no further, and so is no JSON.
const BODY_BYTES: usize = 1024;

/// How long an answer may take: agents give up after ten seconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The route whose roles may ask here too.
const SAME_AS: &str = "/v1/instances/{instance}/permit";

/// How the protocol is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireSettings {
    /// Whether callers must sign in; if not, only callers on this machine are answered.
    pub sign_in: bool,
    /// MiB of a memory slot, in which versions before 4.0 count.
    pub slot_mib: u32,
}

impl Default for WireSettings {
    fn default() -> Self {
        Self { sign_in: true, slot_mib: 1024 }
    }
}

/// What answers need.
#[derive(Clone)]
pub struct WirePermits {
    state: AppState,
    settings: WireSettings,
}

/// A refusal: a code that agents know, and why.
type Refused = (StatusCode, String);

/// The whole protocol, for a listener of its own.
pub fn router(state: AppState, settings: WireSettings) -> Router {
    let metrics = Arc::clone(&state.metrics);
    let state = WirePermits { state, settings };
    guarded(Router::new().fallback(answer).with_state(state), metrics)
}

/// Answers defects with a code, and counts every answer by its code.
fn guarded(app: Router, metrics: Arc<HttpMetrics>) -> Router {
    app.layer(CatchPanicLayer::custom(panicked))
        .layer(axum::middleware::from_fn_with_state(metrics, count))
}

async fn count(
    State(metrics): State<Arc<HttpMetrics>>,
    request: HttpRequest,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    metrics.count_wire_request(response.status());
    response
}

#[allow(clippy::needless_pass_by_value, reason = "the layer's signature")]
fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "panic in permit handler");
    let why = "internal error; see the server log for details".to_owned();
    refusal((StatusCode::INTERNAL_SERVER_ERROR, why))
}

async fn answer(State(wire): State<WirePermits>, request: HttpRequest) -> Response {
    match tokio::time::timeout(PATIENCE, permit(&wire, request)).await {
        Ok(Ok(response)) => response,
        Ok(Err(refused)) => refusal(refused),
        Err(_) => {
            let why = "the outcome is unknown; ask again".to_owned();
            refusal((StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    }
}

fn refusal((status, why): Refused) -> Response {
    let mut response = Response::new(Body::from(format!("{why}\n")));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    if status == StatusCode::UNAUTHORIZED {
        let bearer = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
    }
    response
}

fn bad(why: impl Into<String>) -> Refused {
    (StatusCode::BAD_REQUEST, why.into())
}

async fn permit(wire: &WirePermits, request: HttpRequest) -> Result<Response, Refused> {
    if request.uri().path() != "/" {
        let path = request.uri().path();
        return Err((StatusCode::NOT_FOUND, format!("there is nothing at {path}; use /")));
    }
    if request.method() != Method::POST {
        return Err(bad(format!("the method is {}; accepted is POST", request.method())));
    }
    let caller = who(wire, &request)?;
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES).await;
    let body =
        body.map_err(|_| bad(format!("the body cannot be read, or is above {BODY_BYTES} bytes")))?;
    let request = Request::read(&body, wire.settings.slot_mib).map_err(bad)?;
    let control = &wire.state.control;
    let instance = match pod::find(control, &caller, &request.pod).await {
        PodTarget::Instance(instance) => instance,
        PodTarget::Ambiguous(several) => {
            let pod = &request.pod;
            return Err(bad(format!("{several} instances run as {pod}; name one by its id")));
        }
        PodTarget::NotFound => return Err((StatusCode::NOT_FOUND, unknown(&request))),
    };
    let by = PermitCaller {
        tenant: Some(Text::from(request.pod.namespace.as_str())),
        node: caller.node().cloned(),
        sees_nodes: false,
        // Agents that are told the unit request multiples of it.
        any_size: !request.tells_unit(),
        rigid_while_moving: true,
    };
    let wish = AskPermit {
        resources: request.wanted,
        seq: None,
        fence: None,
        last_permit: request.last_permit,
        heard: None,
        headroom: None,
        load: request.load,
    };
    let unit_of = |unit| request.unit.unwrap_or_else(|| request.in_slots(unit));
    let permit = elastic::request_permit(control, by, instance, &wish, unit_of).await;
    let permit = permit.map_err(|error| refused(&error, &request))?;
    // A permit that was answered has the unit it was decided by.
    let unit = permit.compute_unit.unwrap_or(Size::ZERO);
    let answer = request.answer(permit.permit, permit.frozen, unit);
    Ok(axum::Json(answer).into_response())
}

fn unknown(request: &Request) -> String {
    format!("there is no instance {}", request.pod)
}

/// Codes of this protocol for errors of the native API.
fn refused(error: &ControlError, request: &Request) -> Refused {
    match (error.kind(), error.code()) {
        // It has no node yet, or is about to leave it.
        (ErrorKind::NotFound, _) | (_, "wrong_state") => (StatusCode::NOT_FOUND, unknown(request)),
        (_, "not_elastic") => bad(format!("instance {} is not elastic", request.pod)),
        (_, "migrating") => {
            bad(format!("instance {} is being moved and stays as large as it is", request.pod))
        }
        _ if error.is_callers() => bad(error.detail()),
        _ => (StatusCode::INTERNAL_SERVER_ERROR, error.detail().to_owned()),
    }
}

/// Who asks: those who may ask natively.
fn who(wire: &WirePermits, request: &HttpRequest) -> Result<Caller, Refused> {
    let access = &wire.state.access;
    let forbidden = |error: ApiError| (StatusCode::FORBIDDEN, error.problem().detail.clone());
    let known = caller(access, request).map_err(forbidden)?;
    // That this machine is trusted elsewhere does not make it so here.
    let known = known.filter(|caller| {
        !wire.settings.sign_in || caller.token.is_some() || caller.node().is_some()
    });
    let from = caller_from(request.extensions());
    let is_local = from.is_some_and(|from| from.to_canonical().is_loopback());
    let presents = request.headers().contains_key(header::AUTHORIZATION);
    let known = match known {
        None if !wire.settings.sign_in && is_local && !presents => {
            check_local(request).map_err(forbidden)?;
            Some(Caller { from, ..Caller::local("anyone on this machine") })
        }
        known => known,
    };
    let caller = known.ok_or_else(|| {
        let why =
            "authentication required: send Authorization: Bearer TOKEN of an agent or an operator";
        (StatusCode::UNAUTHORIZED, why.to_owned())
    })?;
    match access.permissions.of(&Method::POST, SAME_AS) {
        Some(Access::Roles(roles)) if roles.contains(&caller.role) => Ok(caller),
        _ => {
            let role = caller.role.name();
            Err((StatusCode::FORBIDDEN, format!("a token of role {role} may not ask for permits")))
        }
    }
}

#[cfg(test)]
mod tests {
    use tower::Service as _;

    use super::*;

    #[tokio::test]
    async fn a_defect_is_500_in_plain_text() {
        let broken = Router::new().fallback(|| async { panic!("a defect") as () });
        let mut app = guarded(broken, Arc::default());
        let response = app.call(HttpRequest::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "text/plain");
    }
}
