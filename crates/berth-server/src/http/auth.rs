//! Authentication and authorization of every request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use berth_api::Role;
use berth_engine::NodeId;
use http::{Method, StatusCode, header};

use super::same_origin::{check_local, is_from_console};
use crate::access::Access;
use crate::access::AccessControl;
use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::caller::{Caller, Scope};
use berth_control::tenant_requests::{RequestKind, TenantRequest};

/// The cookie that a signed-in browser has.
pub(crate) const COOKIE: &str = "berth_token";

/// The node named by a verified client certificate; the TLS layer attaches it to requests.
#[derive(Clone, Debug)]
pub struct CertifiedNode(pub NodeId);

/// Attached to requests that came over TLS: their cookies are then marked as secure.
#[derive(Clone, Copy, Debug)]
pub struct OverTls;

/// The request has no valid token.
pub(crate) fn not_signed_in() -> ApiError {
    let detail = "the request has no valid token";
    let title = "authentication required";
    ApiError::new(StatusCode::UNAUTHORIZED, "not_signed_in", title, detail)
        .remedy("send Authorization: Bearer TOKEN; create one with berth tokens create")
}

fn not_allowed(role: Role) -> ApiError {
    let detail = format!("a token of role {} may not do this", role.name());
    let title = "this role may not do this";
    ApiError::new(StatusCode::FORBIDDEN, "not_allowed", title, detail)
        .remedy("use a token of another role; berth whoami shows the role of this one")
}

/// A method that the table does not have for a path, or a path that it does not have at all.
fn not_served(access: &AccessControl, path: &str) -> Response {
    let methods = access.permissions.methods(path);
    if methods.is_empty() {
        tracing::error!(path, "route is missing from the permission table");
        return super::no_such_path().into_response();
    }
    let mut response = super::wrong_method().into_response();
    if let Ok(methods) = methods.parse() {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Passes a request on to its handler, or rejects it.
pub(crate) async fn authenticate(
    State(state): State<AppState>,
    path: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = path.as_ref().map_or("", |path| path.as_str());
    // A route that is not in the table is never served, even if the router has it.
    let Some(access) = state.access.permissions.of(request.method(), path) else {
        return not_served(&state.access, path);
    };
    let (caller, refused) = match caller(&state.access, &request) {
        Ok(caller) => (caller, None),
        Err(error) => (None, Some(error)),
    };
    let is_open = access == Access::Open
        || (path == "/metrics" && state.control.lifecycle.settings().open_metrics);
    match (access, caller) {
        (_, Some(caller)) if is_open => drop(request.extensions_mut().insert(caller)),
        (_, None) if is_open => {}
        (Access::Roles(roles), Some(caller)) if roles.contains(&caller.role) => {
            let admitted = check_load(&state, &caller, request.method(), path)
                .and_then(|()| admit_change(&state, &caller, request.method(), path))
                .and_then(|()| enter_request(&state, &caller, request.method(), path));
            let is_paced = caller.is_tenant() && is_placement(request.method(), path);
            let paced = is_paced.then(|| caller.clone());
            let (response, place) = match admitted {
                Ok(place) => {
                    request.extensions_mut().insert(caller);
                    (next.run(request).await, place)
                }
                Err(error) => (error.into_response(), None),
            };
            drop(place);
            if let Some(caller) = paced {
                state.pacing.pace(&caller, response.status()).await;
            }
            return response;
        }
        (_, Some(caller)) => return not_allowed(caller.role).into_response(),
        (_, None) => return unauthenticated(refused),
    }
    next.run(request).await
}

/// Turns a placement away before its body is read, if it would be turned away afterwards.
fn check_load(
    state: &AppState,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<(), ApiError> {
    match is_placement(method, path) {
        true => Ok(state.control.check_admission(caller)?),
        false => Ok(()),
    }
}

fn is_placement(method: &Method, path: &str) -> bool {
    *method == Method::POST && path == "/v1/placements"
}

/// A place among the tenant's requests. Placements are admitted by the claim path, and what waits for
/// something to happen is no work.
fn enter_request(
    state: &AppState,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<Option<TenantRequest>, ApiError> {
    if is_placement(method, path) || path.ends_with("/stream") || path == "/v1/queue/{id}" {
        return Ok(None);
    }
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let kind = if is_read { RequestKind::Read } else { RequestKind::Change };
    Ok(state.control.enter_request(caller, kind)?)
}

/// Turns a tenant away that has left too much in the log, unless it reads or gives something back.
fn admit_change(
    state: &AppState,
    caller: &Caller,
    method: &Method,
    path: &str,
) -> Result<(), ApiError> {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let asks = path.ends_with("/explain") || path.ends_with("/check");
    if !caller.is_tenant() || reads || asks {
        return Ok(());
    }
    let gives_back = *method == Method::DELETE || path.ends_with("/release");
    Ok(state.control.admit_change(caller, gives_back)?)
}

/// The answer to a request without a caller, and why it has none if that is known.
fn unauthenticated(refused: Option<ApiError>) -> Response {
    refused.unwrap_or_else(not_signed_in).into_response()
}

/// The caller; absent without valid credentials.
///
/// # Errors
/// When nothing but its address speaks for a request, and another site may have caused it.
pub(crate) fn caller(
    access: &AccessControl,
    request: &Request,
) -> Result<Option<Caller>, ApiError> {
    let from = from(request.extensions());
    if let Some(text) = presented(request) {
        // A presented token decides, even when it is not valid.
        return Ok(access.tokens.caller(text, from, access.clock.now()));
    }
    if let Some(CertifiedNode(node)) = request.extensions().get() {
        let name = Arc::from(format!("certificate of {node}"));
        let scope = Arc::new(Scope::Node(node.clone()));
        return Ok(Some(Caller { role: Role::Agent, name, token: None, scope, from }));
    }
    let is_local = from.is_some_and(|from| from.to_canonical().is_loopback());
    if !access.no_sign_in || !is_local {
        return Ok(None);
    }
    check_local(request)?;
    Ok(Some(Caller { from, ..Caller::local("anyone on this machine") }))
}

/// The address that a request came from.
pub(crate) fn from(extensions: &http::Extensions) -> Option<IpAddr> {
    let info = extensions.get::<ConnectInfo<SocketAddr>>();
    info.map(|ConnectInfo(address)| address.ip())
}

/// The credentials that the caller presents. A browser also sends a cookie with requests that
/// another site caused, so a cookie is accepted only for requests that change nothing, and for those
/// that the console of this server makes.
fn presented(request: &Request) -> Option<&str> {
    let headers = request.headers();
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or("");
        let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
        return Some(if scheme.eq_ignore_ascii_case("bearer") { token } else { "" });
    }
    let reads = request.method() == Method::GET || request.method() == Method::HEAD;
    if !reads && !is_from_console(request.uri(), headers) {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}
