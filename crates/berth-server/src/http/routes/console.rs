//! The console: its page, whatever view a URL names, and its files. None of them has data of the
//! fleet; the console reads those by the routes of the API.

use axum::body::Body;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Routes;
use crate::console::{self, ConsoleFile};
use crate::http::extract::Path;
use crate::problem::{ApiError, ApiResult};

pub(super) fn routes() -> Routes {
    OpenApiRouter::new()
        .routes(routes!(home))
        .routes(routes!(view))
        .routes(routes!(object))
        .routes(routes!(part))
        .routes(routes!(file))
        .routes(routes!(file_in_folder))
        .routes(routes!(decision))
}

/// Open the console
///
/// A page for people: the fleet, and everything that can be seen and done.
#[utoipa::path(get, path = "/", tag = "pages",
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn home(headers: HeaderMap) -> Response {
    send(console::index(), &headers)
}

/// Open a view of the console
#[utoipa::path(get, path = "/ui/{view}", tag = "pages",
    params(("view" = String, Path, description = "The view.")),
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn view(headers: HeaderMap) -> Response {
    send(console::index(), &headers)
}

/// Open a view of one object in the console
#[utoipa::path(get, path = "/ui/{view}/{id}", tag = "pages",
    params(
        ("view" = String, Path, description = "The view."),
        ("id" = String, Path, description = "The object."),
    ),
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn object(headers: HeaderMap) -> Response {
    send(console::index(), &headers)
}

/// Open a view of one object of a tenant in the console
#[utoipa::path(get, path = "/ui/{view}/{id}/{part}", tag = "pages",
    params(
        ("view" = String, Path, description = "The view."),
        ("id" = String, Path, description = "The tenant."),
        ("part" = String, Path, description = "The object."),
    ),
    responses((status = 200, description = "The page.", content_type = "text/html", body = String)))]
async fn part(headers: HeaderMap) -> Response {
    send(console::index(), &headers)
}

/// Open a decision in the console
///
/// A short address of its view, for links.
#[utoipa::path(get, path = "/decisions/{id}", tag = "pages",
    params(("id" = String, Path, description = "The decision.")),
    responses((status = 308, description = "The view of the decision.")))]
async fn decision(Path(id): Path<String>) -> Response {
    // Only a path of this server: what is not part of an id is left out.
    let id: String =
        id.chars().filter(|c| c.is_ascii_alphanumeric() || "-._".contains(*c)).collect();
    Redirect::permanent(&format!("/ui/decisions/{id}")).into_response()
}

/// Load a file of the console
#[utoipa::path(get, path = "/console/{path}", tag = "pages",
    params(("path" = String, Path, description = "The file.")),
    responses(
        (status = 200, description = "The file.",
            content((String = "text/javascript"), (String = "text/css"), (String = "image/svg+xml"))),
        (status = 304, description = "The file is what `If-None-Match` says."),
    ))]
async fn file(Path(path): Path<String>, headers: HeaderMap) -> ApiResult<Response> {
    found(&path, &headers)
}

/// Load a file of the console that is in a folder
#[utoipa::path(get, path = "/console/{path}/{file}", tag = "pages",
    params(
        ("path" = String, Path, description = "The folder."),
        ("file" = String, Path, description = "The file."),
    ),
    responses(
        (status = 200, description = "The file.",
            content((String = "text/javascript"), (String = "text/css"), (String = "image/svg+xml"))),
        (status = 304, description = "The file is what `If-None-Match` says."),
    ))]
async fn file_in_folder(
    Path((folder, file)): Path<(String, String)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    found(&format!("{folder}/{file}"), &headers)
}

fn found(path: &str, headers: &HeaderMap) -> ApiResult<Response> {
    let file = ConsoleFile::find(path).ok_or_else(|| ApiError::not_found("file", path))?;
    Ok(send(file, headers))
}

/// A file on its way to a browser; only its headers if the browser has it already.
fn send(file: &'static ConsoleFile, headers: &HeaderMap) -> Response {
    let is_known = headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|tags| tags.to_str().ok())
        .any(|tags| tags.contains(file.etag()));
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => Response::new(Body::from(file.bytes)),
    };
    let pairs = [
        (header::CONTENT_TYPE, file.content_type()),
        (header::CONTENT_SECURITY_POLICY, console::POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        // Kept, and asked for again: a new server's files are used at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, file.etag()),
    ];
    for (name, value) in pairs {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
