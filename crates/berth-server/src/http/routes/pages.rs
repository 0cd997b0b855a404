//! Pages for people that need no script: the API, what a code means, signing in and out.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest as _, Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use berth_api::Role;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::access::AccessControl;
use crate::http::auth::{COOKIE, OverTls};
use crate::http::extract::Path;
use crate::http::same_origin::check_form;
use crate::pages::{self, ErrorPage, SignInPage};
use crate::problem::ApiError;
use crate::state::AppState;
use berth_control::caller::Caller;

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(sign_in_page, sign_in))
        .routes(routes!(sign_out))
        .routes(routes!(docs))
        .routes(routes!(problem))
        .routes(routes!(style))
}

/// The caller of a public page, if signed in.
struct Viewer(Option<Caller>);

impl axum::extract::FromRequestParts<AppState> for Viewer {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &AppState,
    ) -> Result<Self, Self::Rejection> {
        Ok(Self(parts.extensions.get::<Caller>().cloned()))
    }
}

/// Read about the API
///
/// A page for people, made of the same document as `/openapi.json`.
#[utoipa::path(get, path = "/docs", tag = "pages",
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn docs(Viewer(caller): Viewer) -> Response {
    pages::docs_page(caller.as_ref(), crate::http::openapi)
}

/// Read what a code means
///
/// A page for people: a problem's `type` leads here.
#[utoipa::path(get, path = "/problems/{code}", tag = "pages",
    params(("code" = String, Path, description = "The code.")),
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn problem(Viewer(caller): Viewer, Path(code): Path<String>) -> Response {
    match pages::ProblemPage::of(&code, caller.as_ref()) {
        Some(page) => pages::html(StatusCode::OK, &page),
        None => ErrorPage::response(&ApiError::not_found("code", &code), caller.as_ref()),
    }
}

/// Load the pages' stylesheet
#[utoipa::path(get, path = "/style.css", tag = "pages",
    responses((status = 200, description = "The stylesheet.", content_type = "text/css", body = String)))]
async fn style() -> Response {
    let kind = (header::CONTENT_TYPE, "text/css; charset=utf-8");
    // Short, so that a new server's pages do not wear the old one's clothes for long.
    let kept = (header::CACHE_CONTROL, "public, max-age=300");
    ([kind, kept, (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], pages::STYLE).into_response()
}

/// Look at the form to sign in with
#[utoipa::path(get, path = "/sign-in", tag = "pages",
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn sign_in_page(Viewer(caller): Viewer) -> Response {
    pages::html(StatusCode::OK, &SignInPage::new(caller.as_ref(), None))
}

/// What the form sends.
#[derive(Deserialize)]
struct SignIn {
    token: String,
}

/// Sign in
///
/// Takes a token from a form and gives it back as a cookie that scripts cannot read. It serves for
/// reading, and for changes that the console of this server makes.
#[utoipa::path(post, path = "/sign-in", tag = "pages",
    request_body(content = String, content_type = "application/x-www-form-urlencoded", description = "`token=TOKEN`"),
    responses(
        (status = 303, description = "Signed in."),
        (status = 403, description = "The token is not valid, or another site sent the form.", content_type = "text/html", body = String),
    ))]
async fn sign_in(State(access): State<Arc<AccessControl>>, request: Request) -> Response {
    let wrong = |why| pages::html(StatusCode::FORBIDDEN, &SignInPage::new(None, Some(why)));
    let (parts, body) = request.into_parts();
    if check_form(&parts.uri, &parts.headers).is_err() {
        return wrong("This came from another site. Paste the token here yourself.");
    }
    let secure = is_secure(&parts.headers, parts.extensions.get::<OverTls>().is_some());
    let from = crate::http::auth::from(&parts.extensions);
    let whole = Request::from_parts(parts, body);
    let bytes = Bytes::from_request(whole, &access).await;
    let form = bytes.ok().and_then(|bytes| read_form(&bytes));
    let Some(form) = form else { return wrong("Nothing was sent. Paste a token.") };
    let token = form.token.trim();
    let Some(caller) = access.tokens.caller(token, from, access.clock.now()) else {
        return wrong("This token is not valid: it may be mistyped, expired or revoked.");
    };
    // An agent has nothing to look at.
    let home = if caller.role == Role::Agent { "/docs" } else { "/" };
    let mut response = Redirect::to(home).into_response();
    set_cookie(&mut response, token, None, secure);
    response
}

/// Sign out
#[utoipa::path(post, path = "/sign-out", tag = "pages",
    responses(
        (status = 303, description = "Signed out."),
        (status = 403, description = "Another site sent the form.", content_type = "text/html", body = String),
    ))]
async fn sign_out(request: Request) -> Response {
    if let Err(error) = check_form(request.uri(), request.headers()) {
        return ErrorPage::response(&error, None);
    }
    let mut response = Redirect::to("/sign-in").into_response();
    let over_tls = request.extensions().get::<OverTls>().is_some();
    set_cookie(&mut response, "", Some(0), is_secure(request.headers(), over_tls));
    response
}

/// A form is written like the query of a URL.
fn read_form(bytes: &[u8]) -> Option<SignIn> {
    let text = std::str::from_utf8(bytes).ok()?;
    let uri: Uri = format!("/?{text}").parse().ok()?;
    axum::extract::Query::<SignIn>::try_from_uri(&uri).ok().map(|form| form.0)
}

/// Whether the browser came over TLS, to us or to a proxy before us.
fn is_secure(headers: &HeaderMap, over_tls: bool) -> bool {
    let proto = headers.get("x-forwarded-proto").and_then(|proto| proto.to_str().ok());
    over_tls || proto.is_some_and(|proto| proto.eq_ignore_ascii_case("https"))
}

fn set_cookie(response: &mut Response, token: &str, age_s: Option<u32>, secure: bool) {
    let mut cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/");
    if let Some(age) = age_s {
        cookie.push_str(&format!("; Max-Age={age}"));
    }
    if secure {
        cookie.push_str("; Secure");
    }
    // A valid token has no characters that a header cannot have.
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_read_and_a_cookie_is_strict() {
        let token = |body: &str| read_form(body.as_bytes()).map(|form| form.token);
        assert_eq!(token("token=berth_1%20x+y").as_deref(), Some("berth_1 x y"));
        assert_eq!(token("other=1"), None);
        assert_eq!(token("\u{1}"), None);
        let mut response = StatusCode::OK.into_response();
        set_cookie(&mut response, "abc", None, true);
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap();
        assert_eq!(cookie, "berth_token=abc; HttpOnly; SameSite=Strict; Path=/; Secure");
    }
}
