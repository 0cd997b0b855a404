//! What all pages have: the frame, its headers, its stylesheet; and the smallest pages.

use askama::Template;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

use crate::problem::ApiError;
use berth_control::caller::Caller;

/// The stylesheet of all pages.
pub(crate) const STYLE: &str = include_str!("../../templates/style.css");

/// Pages load a stylesheet and small pictures of their own, and nothing else, from nowhere else.
const POLICY: &str = "default-src 'none'; style-src 'self'; img-src 'self' data:; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The layout around every page.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// The page's title.
    pub(crate) title: String,
    /// Who looks at it, if they signed in.
    pub(super) who: Option<String>,
    /// Whether there is something to sign out of.
    pub(super) signed_in: bool,
    /// Of this server.
    pub(super) version: &'static str,
}

impl Frame {
    /// The frame of a page for a caller.
    pub(crate) fn new(title: &str, caller: Option<&Caller>) -> Self {
        Self {
            title: title.to_owned(),
            who: caller.map(|caller| format!("{} ({})", caller.name, caller.role.name())),
            signed_in: caller.is_some_and(|caller| caller.token.is_some()),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// A page that shows an error.
#[derive(Template)]
#[template(path = "error.html")]
pub(crate) struct ErrorPage {
    frame: Frame,
    code: String,
    detail: String,
    remedy: Option<String>,
}

impl ErrorPage {
    /// An error as a page.
    pub(crate) fn response(error: &ApiError, caller: Option<&Caller>) -> Response {
        let problem = error.problem();
        let status = StatusCode::from_u16(problem.status);
        let page = Self {
            frame: Frame::new(&problem.title, caller),
            code: problem.code.clone(),
            detail: problem.detail.clone(),
            remedy: problem.remedy.clone(),
        };
        html(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &page)
    }
}

/// The page to sign in on.
#[derive(Template)]
#[template(path = "sign_in.html")]
pub(crate) struct SignInPage {
    frame: Frame,
    /// What was wrong with the last try.
    wrong: Option<&'static str>,
}

impl SignInPage {
    /// The page, after a try that went wrong or before the first.
    pub(crate) fn new(caller: Option<&Caller>, wrong: Option<&'static str>) -> Self {
        Self { frame: Frame::new("Sign in", caller), wrong }
    }
}

/// A page on its way to a browser.
pub(crate) fn html(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(text) => with_headers(status, text),
        Err(error) => {
            tracing::error!(%error, "failed to render page");
            let detail = "failed to render the page; see the server log for details";
            let title = "internal error";
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::new(status, "defect", title, detail).into_response()
        }
    }
}

fn with_headers(status: StatusCode, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let pairs = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // With `no-referrer`, browsers would send `Origin: null` with our own forms.
        (header::REFERRER_POLICY, "same-origin"),
        // What one person saw is not for the next one at the same browser.
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in pairs {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
