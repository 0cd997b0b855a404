//! The guard before every route: who calls, and may they?

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use berth_api::Role;
use berth_engine::NodeId;
use http::{Method, StatusCode, header};

use crate::access::Access;
use crate::access::AccessControl;
use crate::pages::ErrorPage;
use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::caller::{Caller, Scope};
use berth_control::clock::now;

/// The cookie that a signed-in browser has.
pub(crate) const COOKIE: &str = "berth_token";

/// The node that a verified client certificate names, put beside a connection by the TLS layer.
#[derive(Clone, Debug)]
pub struct CertifiedNode(pub NodeId);

/// Put beside a request that came over TLS, by the TLS layer: cookies are then for TLS only.
#[derive(Clone, Copy, Debug)]
pub struct OverTls;

/// Nobody said who calls.
pub(crate) fn who_are_you() -> ApiError {
    let detail = "the request has no valid token";
    let title = "sign in first";
    ApiError::new(StatusCode::UNAUTHORIZED, "not_signed_in", title, detail)
        .remedy("send Authorization: Bearer TOKEN; berth token create makes one")
}

fn not_allowed(role: Role) -> ApiError {
    let detail = format!("a token of role {} may not do this", role.name());
    let title = "this role may not do this";
    ApiError::new(StatusCode::FORBIDDEN, "not_allowed", title, detail)
        .remedy("use a token of another role; berth whoami says which this one has")
}

/// A method that the table does not have for a path, or a path that it does not have at all.
fn not_served(access: &AccessControl, path: &str) -> Response {
    let methods = access.permissions.methods(path);
    if methods.is_empty() {
        tracing::error!(path, "a route is not in the table of permissions");
        return super::nothing_here().into_response();
    }
    let mut response = super::wrong_method().into_response();
    if let Ok(methods) = methods.parse() {
        response.headers_mut().insert(header::ALLOW, methods);
    }
    response
}

/// Lets a request through to its handler, or answers in its stead.
pub(crate) async fn guard(
    State(state): State<AppState>,
    path: Option<MatchedPath>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = path.as_ref().map_or("", |path| path.as_str());
    // What is not in the table answers nobody, also when the router knows it.
    let Some(access) = state.access.permissions.of(request.method(), path) else {
        return not_served(&state.access, path);
    };
    let caller = caller(&state.access, &request);
    let is_open = access == Access::Open
        || (path == "/metrics" && state.control.settings.load().open_metrics);
    match (access, caller) {
        (_, Some(caller)) if is_open => drop(request.extensions_mut().insert(caller)),
        (_, None) if is_open => {}
        (Access::Roles(roles), Some(caller)) if roles.contains(&caller.role) => {
            request.extensions_mut().insert(caller);
        }
        (_, Some(caller)) if is_page(path) => {
            return ErrorPage::response(&not_allowed(caller.role), Some(&caller));
        }
        (_, Some(caller)) => return not_allowed(caller.role).into_response(),
        (_, None) if is_page(path) => return Redirect::to("/sign-in").into_response(),
        (_, None) => return who_are_you().into_response(),
    }
    next.run(request).await
}

/// Whether people look at this path with a browser.
fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with("/decisions/")
}

/// Who calls; absent when nothing valid says so.
pub(crate) fn caller(access: &AccessControl, request: &Request) -> Option<Caller> {
    let from = from(request.extensions());
    if let Some(text) = presented(request) {
        // A token that is presented decides, also when it is not valid.
        return access.tokens.caller(text, from, now());
    }
    if let Some(CertifiedNode(node)) = request.extensions().get() {
        let name = Arc::from(format!("certificate of {node}"));
        let scope = Arc::new(Scope::Node(node.clone()));
        return Some(Caller { role: Role::Agent, name, token: None, scope, from });
    }
    let is_local = from.is_some_and(|from| from.to_canonical().is_loopback());
    (access.no_sign_in && is_local)
        .then(|| Caller { from, ..Caller::local("anyone on this machine") })
}

/// The address that a request came from.
pub(crate) fn from(extensions: &http::Extensions) -> Option<IpAddr> {
    let info = extensions.get::<ConnectInfo<SocketAddr>>();
    info.map(|ConnectInfo(address)| address.ip())
}

/// What the caller presents. A cookie is sent by a browser without being asked, so it serves only
/// for what changes nothing.
fn presented(request: &Request) -> Option<&str> {
    let headers = request.headers();
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or("");
        let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
        return Some(if scheme.eq_ignore_ascii_case("bearer") { token } else { "" });
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return None;
    }
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|cookies| cookies.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}
